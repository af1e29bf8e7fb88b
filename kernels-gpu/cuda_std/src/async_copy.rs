//! Copies from global to shared memory that run while the block computes (sm_80 and newer).
//!
//! A thread's copies since its last [`commit`] form a group. [`wait`] makes the groups but the last few of *this* thread
//! visible to this thread; a barrier then makes them visible to the block. Until then the destination is undefined, in
//! the emulator it is poison.
use crate::imp;
use crate::memory::Global;
use crate::shared::Tile;

/// Copies four floats from `source[source_index..]` to `tile[index..]`. PTX `cp.async.cg.shared.global 16`, which
/// bypasses the first-level cache.
///
/// # Safety
/// The source lies inside its memory; both addresses are 16-byte aligned; no thread touches the destination until the
/// group has been waited for and a barrier has passed.
#[inline(always)]
#[track_caller]
pub unsafe fn copy_16<const N: usize>(tile: *mut Tile<N>, index: usize, source: Global<f32>, source_index: usize) {
    let destination = Tile::address(tile, index, 4);
    // SAFETY: destination in bounds by `address`; the rest is the caller's contract.
    unsafe { imp::copy_async_16(destination, source.as_ptr().wrapping_add(source_index)) }
}

/// Copies one float from `source[source_index]` to `tile[index]`. PTX `cp.async.ca.shared.global 4`.
///
/// # Safety
/// The source lies inside its memory; no thread touches the destination until the group has been waited for and a
/// barrier has passed.
#[inline(always)]
#[track_caller]
pub unsafe fn copy_4<const N: usize>(tile: *mut Tile<N>, index: usize, source: Global<f32>, source_index: usize) {
    let destination = Tile::address(tile, index, 1);
    // SAFETY: destination in bounds by `address`; the rest is the caller's contract.
    unsafe { imp::copy_async_4(destination, source.as_ptr().wrapping_add(source_index)) }
}

/// Ends this thread's current group. PTX `cp.async.commit_group`.
#[inline(always)]
#[track_caller]
pub fn commit() {
    imp::copy_async_commit();
}

/// Waits until at most the `PENDING` last groups of this thread are still under way. PTX `cp.async.wait_group PENDING`.
#[inline(always)]
#[track_caller]
pub fn wait<const PENDING: u32>() {
    imp::copy_async_wait::<PENDING>();
}

/// Asks for the cache line of `source[index]` in the second-level cache; never faults on the GPU. PTX
/// `prefetch.global.L2`.
///
/// # Safety
/// The address lies inside the memory.
#[inline(always)]
#[track_caller]
pub unsafe fn prefetch(source: Global<f32>, index: usize) {
    // SAFETY: the caller's contract.
    unsafe { imp::prefetch(source.as_ptr().wrapping_add(index)) }
}
