//! Runs kernels on the CPU, from the source that the GPU build compiles, and stops at what a GPU would not mind.
//!
//! A thread of a block is a coroutine; it runs until it has to wait for others: at the block's barrier, or at a shuffle
//! or barrier of its warp. Blocks run in parallel over the machine's cores. What is checked, each with the place in the
//! kernel's source ([`Fault`]):
//!
//! * every access lies inside shared memory or one slice of the launch's [`Memory`], is aligned, and may write there;
//! * all threads reach the same block barriers, all lanes of a warp the same shuffles and warp barriers, so that a
//!   kernel cannot hang;
//! * no two threads of a block touch one 4-byte word with no barrier in between if one of them writes; a warp barrier
//!   counts between lanes of that warp, a shuffle does not;
//! * nobody touches the destination of an asynchronous copy before it is waited for, and all are waited for;
//! * shared memory that was not written is NaN.
//!
//! Not checked: races between blocks, and the registers and shared memory that a GPU has. A thread whose locals need
//! more than 256 KiB of stack ends the process at the stack's guard page.
//!
//! | file | job |
//! | --- | --- |
//! | `schedule` | coroutines of a block and when they run; `order` says in which order |
//! | `block` | what the words share: the running thread, memory, time |
//! | `collective` | barriers and shuffles |
//! | `tensor` | the tensor cores' products, and their loads |
//! | `shared`, `global`, `copies` | the words that touch memory |
//! | `record`, `history` | the race rule, and its records for global memory |
//! | `fault`, `memory`, `panics` | what goes wrong, what is lent, and the place of a panic |
mod block;
mod collective;
mod copies;
mod fault;
mod global;
mod history;
mod memory;
mod order;
mod panics;
mod record;
mod schedule;
mod shared;
mod tensor;
#[cfg(test)]
mod tests;
mod warpgroup;

use rayon::prelude::*;

pub(crate) use collective::{shuffle_index, shuffle_up, shuffle_xor, sync_threads, sync_warp, warp_max};
pub(crate) use copies::{commit, copy_async_4, copy_async_16, wait};
pub use fault::{Action, Collective, Fault, Other, Place, Space};
pub(crate) use global::{global_read, global_write, prefetch};
pub use memory::Memory;
pub(crate) use shared::{
    shared_memory, shared_read, shared_read_pair, shared_read_quad, shared_write, shared_write_pair, shared_write_quad,
};

pub(crate) use tensor::{load_matrix_x4, load_matrix_x4_transposed, mma_16x8x16};
pub(crate) use warpgroup::warpgroup_multiply;

use schedule::Worker;

/// The geometry of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Blocks in each dimension.
    pub grid: [u32; 2],
    /// Threads of a block, a multiple of 32 up to 1024.
    pub threads: u32,
    /// Dynamic shared memory of a block, in bytes.
    pub shared_bytes: u32,
    /// The order in which threads run: 0 ascending, otherwise the seed of a random one. A right kernel's results are the
    /// same to the bit for all.
    pub order: u64,
}

/// Runs `body` once for each thread of each block.
///
/// # Errors
/// The fault of the first block, in the grid's order, that has one. The memory is then partly written.
///
/// # Safety
/// `body` keeps the contract of a kernel: it touches memory through the words of this crate alone, and with this
/// launch's geometry and `args` it does nothing undefined that those words do not check.
pub unsafe fn run<A: Copy + Send + Sync>(
    launch: &Launch,
    memory: &Memory<'_>,
    body: unsafe fn(A),
    args: A,
) -> Result<(), Fault> {
    let Launch { grid, threads, .. } = *launch;
    if threads == 0 || !threads.is_multiple_of(32) || threads > 1024 {
        return Err(Fault::Threads { threads });
    }
    panics::install_hook();
    let regions = memory.regions();
    let blocks = grid[0] as usize * grid[1] as usize;
    let fault = (0..blocks).into_par_iter().find_map_first(|index| {
        let mut worker = Worker::take();
        // SAFETY: the caller's contract.
        let result = unsafe { worker.run(launch, regions, index, body, args) };
        worker.give_back();
        result.err()
    });
    fault.map_or(Ok(()), Err)
}

/// The index of the running thread in its block.
#[inline]
#[track_caller]
pub(crate) fn thread_index() -> u32 {
    // SAFETY: owner: the running thread's block, by `current`.
    unsafe { (*block::current()).running }
}

/// The index of the running block in the grid.
#[inline]
#[track_caller]
pub(crate) fn block_index() -> [u32; 2] {
    // SAFETY: owner: the running thread's block, by `current`.
    unsafe { (*block::current()).index }
}
