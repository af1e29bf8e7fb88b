//! Where threads meet: the shuffles and the barrier of a warp, and the barrier of the block.
use std::panic::Location;

use super::block::{Block, current, fail, suspend};
use super::fault::{Collective, Fault, Other};

const LANES: usize = 32;
const ALL_LANES: u32 = u32::MAX;

/// The lanes of a warp: who may run, and who has arrived at the collective operation that they meet in.
#[derive(Debug)]
pub(super) struct Warp {
    /// The order in which lanes run: `order[position]` is a lane.
    pub order: [u8; LANES],
    /// The positions of the lanes that may run, one bit each.
    pub ready: u32,
    /// The position of the lane that runs.
    pub running: u32,
    /// When the warp passed its last barrier, of its own or of the block.
    pub interval: u32,
    /// The lanes that wait in the operation, one bit each.
    pub arrived: u32,
    pub operation: Collective,
    pub location: &'static Location<'static>,
    /// The values that lanes bring, of this operation and of the one before: a lane may arrive at the next operation
    /// while others have yet to take their results of the last, but never at the one after.
    values: [[f32; LANES]; 2],
    /// The same for operations that take more than one value.
    operands: [[Operands; LANES]; 2],
    turn: usize,
}

/// What a lane brings to an operation of the tensor cores: a and b of a product, or where its row of a matrix lies.
type Operands = [u32; 6];

impl Warp {
    pub fn new() -> Self {
        Self {
            order: std::array::from_fn(|position| position as u8),
            ready: ALL_LANES,
            running: 0,
            interval: 0,
            arrived: 0,
            operation: Collective::Barrier,
            location: Location::caller(),
            values: [[0.0; LANES]; 2],
            operands: [[[0; 6]; LANES]; 2],
            turn: 0,
        }
    }
}

/// Whether two locations are the same; the compiler may keep several copies of one.
fn same(a: &'static Location<'static>, b: &'static Location<'static>) -> bool {
    std::ptr::eq(a, b) || a == b
}

/// Where the values of an operation are, for a lane that took part.
struct Met {
    warp: *mut Warp,
    turn: usize,
    lane: usize,
}

/// Brings the running lane's value to the warp's operation and waits until all lanes have come. The last one to come
/// goes on without a switch.
#[inline(always)]
fn meet(operation: Collective, value: f32, location: &'static Location<'static>) -> Met {
    let pointer = current();
    // SAFETY: owner: the running thread's block, by `current`; this reference is not used after `suspend`.
    let block = unsafe { &mut *pointer };
    let lane = block.running as usize % LANES;
    let warp = &mut block.warps[block.running as usize / LANES];
    if warp.arrived == 0 {
        warp.operation = operation;
        warp.location = location;
    } else if warp.operation != operation || !same(warp.location, location) {
        diverge(block, operation, location);
    }
    warp.arrived |= 1 << lane;
    let turn = warp.turn;
    warp.values[turn][lane] = value;
    let place = std::ptr::from_mut(warp);
    if warp.arrived == ALL_LANES {
        warp.arrived = 0;
        warp.turn = 1 - turn;
        warp.ready = !(1 << warp.running);
        if operation == Collective::Barrier {
            block.pass_warp_barrier();
        }
    } else {
        // SAFETY: a thread of this block; of the block only `place` is used after, a pointer into a vector that keeps
        // its length while the block runs.
        unsafe { suspend(pointer) };
    }
    Met { warp: place, turn, lane }
}

/// The lane is at another operation than those that wait.
#[cold]
#[inline(never)]
fn diverge(block: &Block, collective: Collective, location: &'static Location<'static>) -> ! {
    let warp_index = block.running / LANES as u32;
    let warp = &block.warps[warp_index as usize];
    fail(Fault::DivergentWarp {
        place: block.place(location),
        collective,
        other: Other {
            thread: warp_index * LANES as u32 + warp.arrived.trailing_zeros(),
            location: Some(warp.location),
        },
        other_collective: warp.operation,
    })
}

/// Meets for a shuffle and takes the value of the lane that `source` names.
#[inline]
fn shuffle(
    collective: Collective,
    value: f32,
    operand: u32,
    location: &'static Location<'static>,
    source: impl FnOnce(usize, usize) -> usize,
) -> f32 {
    if operand as usize >= LANES {
        // SAFETY: owner: the running thread's block, by `current`; the reference ends with the statement.
        let place = unsafe { (*current()).place(location) };
        fail(Fault::LaneOperand { place, collective, operand });
    }
    let Met { warp, turn, lane } = meet(collective, value, location);
    // SAFETY: bounds: `warp` is an element of the block's vector of warps; owner: the running thread alone; barrier: no
    // lane overwrites the values of this turn before this lane has come to the next operation.
    unsafe { (&(*warp).values)[turn][source(lane, operand as usize)] }
}

#[inline(never)]
pub(crate) fn shuffle_xor(value: f32, lane_mask: u32, location: &'static Location<'static>) -> f32 {
    shuffle(Collective::ShuffleXor, value, lane_mask, location, |lane, mask| lane ^ mask)
}

#[inline(never)]
pub(crate) fn shuffle_index(value: f32, source: u32, location: &'static Location<'static>) -> f32 {
    shuffle(Collective::ShuffleIndex, value, source, location, |_, source| source)
}

#[inline(never)]
pub(crate) fn shuffle_up(value: f32, delta: u32, location: &'static Location<'static>) -> f32 {
    shuffle(Collective::ShuffleUp, value, delta, location, |lane, delta| lane.checked_sub(delta).unwrap_or(lane))
}

#[inline(never)]
pub(crate) fn sync_warp(location: &'static Location<'static>) {
    meet(Collective::Barrier, 0.0, location);
}

#[inline(never)]
pub(crate) fn warp_max(value: u32, location: &'static Location<'static>) -> u32 {
    let Met { warp, turn, .. } = meet(Collective::Max, f32::from_bits(value), location);
    // SAFETY: as in `shuffle`.
    unsafe { (&(*warp).values)[turn].iter().map(|value| value.to_bits()).max().unwrap_or(0) }
}

/// Meets with more than one value a lane; gives those of all lanes, for use before the next operation, and the lane.
pub(super) fn exchange(
    collective: Collective,
    operands: Operands,
    location: &'static Location<'static>,
) -> (*const [Operands; LANES], usize) {
    {
        // SAFETY: owner: the running thread's block, by `current`; the reference ends with this scope.
        let block = unsafe { &mut *current() };
        let (warp, lane) = (block.running as usize / LANES, block.running as usize % LANES);
        let warp = &mut block.warps[warp];
        let turn = warp.turn;
        warp.operands[turn][lane] = operands;
    }
    let Met { warp, turn, lane } = meet(collective, 0.0, location);
    // SAFETY: as in `shuffle`.
    (unsafe { &raw const (*warp).operands[turn] }, lane)
}

/// Waits at the block barrier. The scheduler lets all threads go on once all wait.
#[inline(never)]
pub(crate) fn sync_threads(location: &'static Location<'static>) {
    let pointer = current();
    // SAFETY: owner: the running thread's block, by `current`; this reference is not used after `suspend`.
    let block = unsafe { &mut *pointer };
    let place = block.place(location);
    match block.barrier {
        None => block.barrier = Some((place.thread, location)),
        Some((_, other)) if same(other, location) => {}
        Some((thread, other)) => {
            fail(Fault::DivergentBarrier { place, other: Other { thread, location: Some(other) } })
        }
    }
    block.threads[place.thread as usize].barrier = Some(location);
    // SAFETY: a thread of this block; no reference is used after.
    unsafe { suspend(pointer) };
}
