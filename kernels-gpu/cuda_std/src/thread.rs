//! Where a thread stands, and the barrier of its block.
use crate::imp;

/// Index of the thread in its block; blocks are one-dimensional. PTX `%tid.x`.
#[inline(always)]
pub fn thread_idx_x() -> u32 {
    imp::thread_idx_x()
}

/// [`thread_idx_x`] in a block of `THREADS`, for the compiler to know the bound. The launch's block size is checked by the
/// host against the same number, and in the emulator here.
#[inline(always)]
#[track_caller]
pub fn thread_idx_below<const THREADS: usize>() -> usize {
    let thread = imp::thread_idx_x() as usize;
    // SAFETY: blocks have `THREADS` threads: the PTX entry says so (`.maxntid`), and a larger launch fails.
    unsafe { imp::assume(thread < THREADS) };
    thread
}

/// Index of the block in the grid's first dimension. PTX `%ctaid.x`.
#[inline(always)]
pub fn block_idx_x() -> u32 {
    imp::block_idx_x()
}

/// Index of the block in the grid's second dimension. PTX `%ctaid.y`.
#[inline(always)]
pub fn block_idx_y() -> u32 {
    imp::block_idx_y()
}

/// Nanoseconds of a clock that all multiprocessors share. How often it moves depends on the card, from every 32 ns to
/// every millisecond. PTX `%globaltimer`.
#[inline(always)]
pub fn global_nanoseconds() -> u64 {
    imp::global_nanoseconds()
}

/// Cycles of the multiprocessor's own clock since some time: for differences on one multiprocessor. PTX `%clock64`. In the
/// emulator a cycle is a nanosecond.
#[inline(always)]
pub fn clock_cycles() -> u64 {
    imp::clock_cycles()
}

/// Leaves the multiprocessor to others for about so long, at most twice. PTX `nanosleep`.
#[inline(always)]
pub fn sleep<const NANOSECONDS: u32>() {
    imp::sleep::<NANOSECONDS>();
}

/// Waits until every thread of the block is here; what they wrote to shared and global memory before is visible to all
/// of them after. PTX `bar.sync 0`. In the emulator, threads that wait at different barriers, or exit while others
/// wait, are a fault.
///
/// # Safety
/// Every thread of the block reaches the same call the same number of times.
#[inline(always)]
#[track_caller]
pub unsafe fn sync_threads() {
    // SAFETY: the caller's contract is the instruction's.
    unsafe { imp::sync_threads() }
}

/// [`sync_threads`] of a block whose warps have different roles: each comes as often, from a place of its own. The emulator
/// does not ask that threads meet at one place. PTX `barrier.sync 1, THREADS`: with the number of threads, and not `.aligned`,
/// which tools take to mean that all come from one place.
///
/// # Safety
/// As there; the threads of a warp come together, and a block has `THREADS` of them.
#[inline(always)]
pub unsafe fn sync_roles<const THREADS: u32>() {
    // SAFETY: the caller's contract is the instruction's.
    unsafe { imp::sync_roles(THREADS) }
}

/// Lets the next launch on the stream start, if it was made to follow so, as soon as every block of this one has come here:
/// its blocks take the multiprocessors that this one leaves. PTX `griddepcontrol.launch_dependents` (sm_90 and newer).
#[inline(always)]
pub fn let_next_launch_start() {
    imp::let_next_launch_start();
}

/// Waits until the launch before this one has ended, and its writes are visible; what a launch before that one wrote is so
/// from the start. PTX `griddepcontrol.wait` (sm_90 and newer). The emulator runs launches one after another.
#[inline(always)]
pub fn wait_for_last_launch() {
    imp::wait_for_last_launch();
}
