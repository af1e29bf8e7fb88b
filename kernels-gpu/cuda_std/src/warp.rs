//! Words for the 32 threads of a warp.
use crate::imp;

/// Threads in a warp.
pub const WARP_SIZE: u32 = 32;

/// Index of the thread in its warp. Blocks are one-dimensional, so it is `thread_idx_x() % 32`.
#[inline(always)]
pub fn lane_id() -> u32 {
    imp::thread_idx_x() % WARP_SIZE
}

/// The `value` of the lane whose index differs from this one's in the bits of `lane_mask`. PTX `shfl.sync.bfly.b32`
/// over the whole warp.
///
/// # Safety
/// All 32 lanes of the warp make this call together; `lane_mask < 32`.
#[inline(always)]
#[track_caller]
pub unsafe fn warp_shuffle_xor(value: f32, lane_mask: u32) -> f32 {
    // SAFETY: the caller's contract is the instruction's.
    unsafe { imp::warp_shuffle_xor(value, lane_mask) }
}

/// The `value` of lane `source`. PTX `shfl.sync.idx.b32` over the whole warp.
///
/// # Safety
/// All 32 lanes of the warp make this call together; `source < 32`.
#[inline(always)]
#[track_caller]
pub unsafe fn warp_shuffle_idx(value: f32, source: u32) -> f32 {
    // SAFETY: the caller's contract is the instruction's.
    unsafe { imp::warp_shuffle_idx(value, source) }
}

/// The `value` of the lane `delta` below, or the lane's own where there is none. PTX `shfl.sync.up.b32` over the whole
/// warp.
///
/// # Safety
/// All 32 lanes of the warp make this call together; `delta < 32`.
#[inline(always)]
#[track_caller]
pub unsafe fn warp_shuffle_up(value: f32, delta: u32) -> f32 {
    // SAFETY: the caller's contract is the instruction's.
    unsafe { imp::warp_shuffle_up(value, delta) }
}

/// The largest `value` of the warp's lanes, in each of them. PTX `redux.sync.max.u32` (sm_80 and newer).
///
/// # Safety
/// All 32 lanes of the warp make this call together.
#[inline(always)]
#[track_caller]
pub unsafe fn warp_max(value: u32) -> u32 {
    // SAFETY: the caller's contract is the instruction's.
    unsafe { imp::warp_max(value) }
}

/// Waits for the other lanes of the warp; what they wrote to memory before is visible after. PTX `bar.warp.sync`.
///
/// # Safety
/// All 32 lanes of the warp make this call together.
#[inline(always)]
#[track_caller]
pub unsafe fn sync_warp() {
    // SAFETY: the caller's contract is the instruction's.
    unsafe { imp::sync_warp() }
}
