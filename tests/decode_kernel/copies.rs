//! States copied from pool to pool, and made zero.
use super::states::{Indices, Lent, States, bits, none, pools};
use cuda_std::emulator::{self, Launch, Memory};
use cuda_std::parameter::Words;
use cuda_std::{Global, GlobalMut};
use host::{HEAD_DIM, HeadMap, Heads};
use kernels_gpu::kernels::copy_states::{Args, KERNEL, grid};
use tests::heads;

fn two_heads() -> Heads {
    heads(1, 2, HeadMap::Grouped)
}

/// The kernel on arguments by reference: an emulated thread is handed no more than 1 KB.
unsafe fn body(args: &Args) {
    // SAFETY: the contract is the same.
    unsafe { (KERNEL.entries[0].body)(*args) }
}

/// The launch, by tables or by words.
#[track_caller]
fn launch(
    memory: &mut Memory<'_>,
    (source, from): Lent,
    (destination, to): Lent,
    [source_table, destination_table]: [(Global<u8>, u32); 2],
    words: &[u32],
    count: usize,
) {
    guarded(memory, (source, from), (destination, to), [source_table, destination_table, NO_TABLE], words, count);
}

const NO_TABLE: (Global<u8>, u32) = (Global::new(std::ptr::null()), 0);

/// The same with a guard of three slots.
#[track_caller]
fn guarded(
    memory: &mut Memory<'_>,
    (source, from): Lent,
    (destination, to): Lent,
    [source_table, destination_table, guard]: [(Global<u8>, u32); 3],
    words: &[u32],
    count: usize,
) {
    let num_value_heads = two_heads().num_v_heads as u32;
    let args = Args {
        words: Words::new(words),
        source: Global::new(source.as_ptr()),
        source_slot_stride: from.slot_stride,
        source_head_stride: from.head_stride,
        source_row_stride: from.row_stride,
        source_column_stride: from.column_stride,
        source_slots: from.slots,
        destination,
        destination_slot_stride: to.slot_stride,
        destination_head_stride: to.head_stride,
        destination_row_stride: to.row_stride,
        destination_column_stride: to.column_stride,
        destination_slots: to.slots,
        source_indices: source_table.0,
        destination_indices: destination_table.0,
        guard_indices: guard.0,
        guard_slots: 3,
        count: count as u32,
        num_value_heads,
        source_index: source_table.1,
        destination_index: destination_table.1,
        guard_index: guard.1,
    };
    let entry = &KERNEL.entries[0];
    let grid = grid(count as u32, num_value_heads);
    let launch = Launch { grid, threads: entry.threads, shared_bytes: entry.shared_bytes, order: 1 };
    // SAFETY: types: the entry takes `Args`. Lengths: what the kernel touches outside `memory` is refused. Lifetime: the
    // caller's memory borrows the pools and tables.
    unsafe { emulator::run(&launch, memory, body, &args) }.unwrap_or_else(|fault| panic!("{fault}"));
}

fn numbered(heads: &Heads, slots: usize) -> Vec<Vec<f32>> {
    let elements = heads.num_v_heads * HEAD_DIM * HEAD_DIM;
    (0..slots).map(|slot| (0..elements).map(|i| (slot * elements + i) as f32).collect()).collect()
}

/// From any order of axes to any, aligned or not; slots that are padding on either side, or past their pool, are left.
#[test]
fn states_arrive_whatever_the_orders_of_axes() {
    const UNTOUCHED: f32 = f32::from_bits(0xffff_fffe);
    let heads = two_heads();
    let states = numbered(&heads, 4);
    let (from, to) = ([2, -1, 0, 4, 1, 3], [0, 1, -1, 2, 5, 3]);
    let copied = [(2, 0), (3, 3)];
    for (name, source_pool) in pools(&heads, 4) {
        for (other, destination_pool) in pools(&heads, 5) {
            let by_words = name == other;
            let mut source = States::new(&heads, source_pool, f32::NAN);
            for (slot, state) in states.iter().enumerate() {
                source.set_slot(&heads, slot, state);
            }
            let before = States::new(&heads, destination_pool, UNTOUCHED);
            let mut destination = before.clone();
            destination.start = 0;
            let tables = [Indices::I64(from.map(i64::from).to_vec()), Indices::I32(to.to_vec())];
            let words: Vec<u32> = to.into_iter().chain(from).map(|slot: i32| slot as u32).collect();
            let mut memory = Memory::new();
            let lent = [source.lend(&mut memory), destination.lend(&mut memory)];
            let tables = tables.each_ref().map(|table| Indices::lend((!by_words).then_some(table), &mut memory));
            let words = if by_words { &words[..] } else { &[] };
            launch(&mut memory, lent[0], lent[1], tables, words, from.len());
            drop(memory);
            for (from, to) in copied {
                assert_eq!(bits(&destination.slot(&heads, to)), bits(&states[from]), "{name} to {other}");
            }
            destination.assert_untouched(&heads, &before, &copied.map(|(_, to)| to));
        }
    }
}

#[test]
fn without_a_source_slots_become_zero() {
    let heads = two_heads();
    for (name, pool) in pools(&heads, 3) {
        let before = States::new(&heads, pool, f32::NAN);
        let mut states = before.clone();
        let mut memory = Memory::new();
        let lent = states.lend(&mut memory);
        launch(&mut memory, none(), lent, [NO_TABLE; 2], &[2, u32::MAX, 0, 3], 4);
        drop(memory);
        for slot in [0, 2] {
            assert!(states.slot(&heads, slot).iter().all(|s| s.to_bits() == 0), "{name}");
        }
        states.assert_untouched(&heads, &before, &[0, 2]);
    }
}

/// What the guard names no slot for is left, whatever the other tables say.
#[test]
fn a_guard_stops_copies() {
    let heads = two_heads();
    let numbers = numbered(&heads, 4);
    for guard in [Indices::I32(vec![2, -1, 0, 3]), Indices::I64(vec![0, i64::MIN, 2, 1 << 40])] {
        let mut source = States::new(&heads, pools(&heads, 4)[0].1, 0.0);
        for (slot, state) in numbers.iter().enumerate() {
            source.set_slot(&heads, slot, state);
        }
        let before = States::new(&heads, pools(&heads, 4)[1].1, f32::NAN);
        let mut states = before.clone();
        let mut memory = Memory::new();
        let lent = [source.lend(&mut memory), states.lend(&mut memory)];
        let guard = Indices::lend(Some(&guard), &mut memory);
        guarded(&mut memory, lent[0], lent[1], [NO_TABLE, NO_TABLE, guard], &[3, 2, 1, 0, 0, 1, 2, 3], 4);
        drop(memory);
        for (slot, from) in [(3, 0), (1, 2)] {
            assert_eq!(bits(&states.slot(&heads, slot)), bits(&numbers[from]));
        }
        states.assert_untouched(&heads, &before, &[3, 1]);
    }
}

/// One pool may be both sides.
#[test]
fn inside_a_pool() {
    let heads = two_heads();
    let mut states = States::new(&heads, pools(&heads, 3)[1].1, 0.0);
    let numbers = numbered(&heads, 3);
    for (slot, state) in numbers.iter().enumerate() {
        states.set_slot(&heads, slot, state);
    }
    let mut memory = Memory::new();
    let lent: (GlobalMut<f32>, _) = states.lend(&mut memory);
    launch(&mut memory, lent, lent, [NO_TABLE; 2], &[2, 0, 1, 0], 2);
    drop(memory);
    for (slot, from) in [(0, 0), (1, 1), (2, 1)] {
        assert_eq!(bits(&states.slot(&heads, slot)), bits(&numbers[from]));
    }
}
