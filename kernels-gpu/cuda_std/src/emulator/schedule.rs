//! Runs one block: a coroutine for each thread, one interval between block barriers after the other.
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, Yielder};

use super::Launch;
use super::block::{Block, Current};
use super::copies::check_exit;
use super::fault::{Fault, Other};
use super::memory::Region;
use super::order::Order;
use super::panics;

/// Bytes of a thread's stack. Only the pages that are touched cost memory; below it is a guard page.
const STACK_BYTES: usize = 256 << 10;

type GpuThread = Coroutine<(), (), ()>;

/// What an OS thread needs to run blocks, kept from one block to the next.
pub(super) struct Worker {
    block: Box<Block>,
    stacks: Vec<DefaultStack>,
}

// SAFETY: between blocks, when a worker moves, its pointers are those of the last block and are not used again: `start`
// replaces them.
unsafe impl Send for Worker {}

/// Workers that run no block.
static IDLE: Mutex<Vec<Worker>> = Mutex::new(Vec::new());

impl Worker {
    /// An idle worker, or a new one.
    pub fn take() -> Self {
        let idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner).pop();
        idle.unwrap_or_else(|| Self { block: Box::new(Block::new()), stacks: Vec::new() })
    }

    /// Keeps the worker for later.
    pub fn give_back(self) {
        IDLE.lock().unwrap_or_else(PoisonError::into_inner).push(self);
    }

    /// Runs one block to its end or to its first fault.
    ///
    /// # Safety
    /// The contract of [`run`](super::run).
    pub unsafe fn run<A: Copy>(
        &mut self,
        launch: &Launch,
        regions: &[Region],
        index: usize,
        body: unsafe fn(A),
        args: A,
    ) -> Result<(), Fault> {
        let threads = launch.threads as usize;
        while self.stacks.len() < threads {
            self.stacks.push(DefaultStack::new(STACK_BYTES).map_err(Fault::Stack)?);
        }
        let x = launch.grid[0] as usize;
        let place = [(index % x) as u32, (index / x) as u32];
        self.block.start(place, launch.threads, launch.shared_bytes, regions);
        let order = Order::new(launch.order, index, threads / 32);

        let block: *mut Block = &raw mut *self.block;
        let _current = Current::enter(block);
        let spare = self.stacks.len() - threads;
        // By reference: a coroutine is handed no more than 1 KB.
        let args = &args;
        let mut coroutines: Vec<GpuThread> = self
            .stacks
            .drain(spare..)
            .enumerate()
            .map(|(thread, stack)| {
                let main = move |yielder: &Yielder<(), ()>, ()| {
                    // SAFETY: the caller's contract; `drive` resumes this thread of this block only as the running one.
                    unsafe { thread_main(block, thread, yielder, body, *args) }
                };
                // SAFETY: what `main` borrows outlives the coroutine, which ends below.
                unsafe { GpuThread::with_stack_unchecked(stack, main) }
            })
            .collect();
        // SAFETY: `coroutines` are the threads of `block`, to which no reference is left.
        let result = unsafe { drive(block, &mut coroutines, order) };
        // SAFETY: owner: no thread runs.
        unsafe { (*block).cancelled = true };
        for mut coroutine in coroutines {
            // Threads that a fault left waiting are unwound, so that what they own is dropped.
            coroutine.force_unwind();
            self.stacks.push(coroutine.into_stack());
        }
        result
    }
}

/// What a thread does from its first resume to its end.
///
/// # Safety
/// The contract of [`run`](super::run), by the running thread of `block`.
unsafe fn thread_main<A>(block: *mut Block, thread: usize, yielder: &Yielder<(), ()>, body: unsafe fn(A), args: A) {
    // SAFETY: bounds: `thread` is below the launch's threads; owner: the scheduler holds no reference.
    unsafe { (&mut (*block).threads)[thread].yielder = Some(NonNull::from(yielder)) };
    // SAFETY: the caller's contract.
    let result = catch_unwind(AssertUnwindSafe(|| unsafe { body(args) }));
    // SAFETY: owner: the scheduler holds no reference, and the words' references have ended.
    let block = unsafe { &mut *block };
    if block.cancelled {
        return;
    }
    match result {
        Ok(()) => {
            block.threads[thread].exited = true;
            block.fault = check_exit(block);
        }
        Err(payload) => {
            let location = block.panic_location.take().unwrap_or_else(|| "an unknown place".to_owned());
            let message = panics::message(&*payload);
            block.fault = Some(Fault::Panicked { block: block.index, thread: thread as u32, location, message });
        }
    }
}

/// Runs the threads interval by interval until all have exited.
///
/// # Safety
/// `coroutines` are the threads of `block`, and nobody holds a reference to it.
unsafe fn drive(block: *mut Block, coroutines: &mut [GpuThread], mut order: Order) -> Result<(), Fault> {
    loop {
        // SAFETY: owner: no thread runs.
        let warps = order.next(unsafe { &mut (*block).warps });
        for &warp in warps {
            // SAFETY: the caller's contract.
            unsafe { drive_warp(block, coroutines, warp)? };
        }
        // SAFETY: owner: no thread runs; the reference ends before one does.
        let block = unsafe { &mut *block };
        let Some((thread, location)) = block.barrier.take() else {
            // Nobody waits at the barrier, nor in a warp, or there were a fault: all have exited.
            return Ok(());
        };
        if let Some(exited) = block.threads.iter().position(|thread| thread.exited) {
            block.running = thread;
            return Err(Fault::BarrierAfterExit { place: block.place(location), exited: exited as u32 });
        }
        block.threads.iter_mut().for_each(|thread| thread.barrier = None);
        block.warps.iter_mut().for_each(|warp| warp.ready = u32::MAX);
        block.pass_barrier();
    }
}

/// Runs the lanes of a warp until each has exited or waits at the block barrier.
///
/// # Safety
/// As [`drive`].
unsafe fn drive_warp(block: *mut Block, coroutines: &mut [GpuThread], warp_index: usize) -> Result<(), Fault> {
    loop {
        // SAFETY: owner: no thread runs; the references end before the resume.
        let thread = unsafe {
            let warp = &mut (&mut (*block).warps)[warp_index];
            if warp.ready == 0 {
                break;
            }
            warp.running = warp.ready.trailing_zeros();
            warp.ready &= warp.ready - 1;
            let thread = warp_index * 32 + usize::from(warp.order[warp.running as usize]);
            (*block).switch_to(thread as u32);
            thread
        };
        coroutines[thread].resume(());
        // SAFETY: owner: no thread runs.
        unsafe {
            // The test first: `take` alone moves the whole fault at every switch.
            if (*block).fault.is_some() {
                return (*block).fault.take().map_or(Ok(()), Err);
            }
        }
    }
    // SAFETY: owner: no thread runs.
    match unsafe { missing_lane(&mut *block, warp_index) } {
        Some(fault) => Err(fault),
        None => Ok(()),
    }
}

/// The fault of lanes that wait in a collective operation while the others exited or wait at the block barrier, which
/// no one can leave before those lanes come.
fn missing_lane(block: &mut Block, warp_index: usize) -> Option<Fault> {
    let warp = &block.warps[warp_index];
    if warp.arrived == 0 {
        return None;
    }
    let thread = |lane: u32| warp_index as u32 * 32 + lane;
    let (collective, location) = (warp.operation, warp.location);
    let missing = thread(warp.arrived.trailing_ones());
    block.running = thread(warp.arrived.trailing_zeros());
    let missing = Other { thread: missing, location: block.threads[missing as usize].barrier };
    Some(Fault::MissingLane { place: block.place(location), collective, missing })
}
