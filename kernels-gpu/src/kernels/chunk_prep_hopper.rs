//! [`chunk_prep_tensor`] on Hopper, before [`super::chunk_scan_warpgroup`]: the scan's blocks may start where its own have
//! ended, and wait for it there. Of a later segment it runs beside the scan of the one before, on the multiprocessors
//! that this one leaves, and ends after it: who waits for chunk prep waits for both.
use super::chunk::{Args, chunk_kernel};
use super::chunk_prep_tensor::{self, THREADS, shared_bytes};
use cuda_std::thread::{block_idx_x, block_idx_y, let_next_launch_start, wait_for_last_launch};

chunk_kernel! {
    kernel "chunk_prep_tensor", capability 90 alone, blocks 2;
    entry gdn_chunk_prep_hopper_r1 = run::<1>, threads THREADS, shared shared_bytes(1);
    entry gdn_chunk_prep_hopper_r2 = run::<2>, threads THREADS, shared shared_bytes(2);
    entry gdn_chunk_prep_hopper_r3 = run::<3>, threads THREADS, shared shared_bytes(3);
    entry gdn_chunk_prep_hopper_r4 = run::<4>, threads THREADS, shared shared_bytes(4);
}

/// The kernel.
///
/// # Safety
/// As [`chunk_prep_tensor::run`].
#[inline(always)]
pub unsafe fn run<const VALUES: usize>(args: Args) {
    let_next_launch_start();
    // SAFETY: the contract is the same.
    unsafe { chunk_prep_tensor::run::<VALUES>(args) }
    if block_idx_x() + 1 == args.num_key_heads && block_idx_y() + 1 == args.chunks {
        wait_for_last_launch();
    }
}
