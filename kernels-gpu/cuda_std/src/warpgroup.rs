//! Words for Hopper's tensor cores (sm_90a): four warps, the first of which is a multiple of four, multiply together, with one
//! factor in registers and one in shared memory, while they go on with something else.
//!
//! # Order
//! ```text
//!   fence()      before the first product, and after a register that one takes has been written
//!   multiply     any number, in order
//!   commit()     makes a group of them
//!   wait::<N>()  until at most the last N groups are under way; then `arrived` for each sum before its use
//! ```
//! What other threads have written to shared memory is visible to these products after [`fence_shared`] by the writer and a
//! barrier.
//!
//! # Who holds what
//! Warp w of the group has rows 16 w .. of a and of the sums, each lane what it has of [`mma_16x8x16`]'s a and, for each octet
//! of columns, of its c.
//!
//! The emulator multiplies at once, as [`mma_16x8x16`] does.
//!
//! [`mma_16x8x16`]: crate::tensor::mma_16x8x16
use crate::imp;
use crate::shared::Tile;

/// A lane's part of 16 rows of 32 columns: `[4 octet ..]` as c of a product of 16 x 8.
pub type Sums = [f32; 32 / 8 * 4];

/// A factor in shared memory: rows of 128 bytes, eight of them on 1,024 bytes, in which 16-byte piece p of row r stands where
/// piece p ^ (r % 8) would.
#[derive(Clone, Copy, Debug)]
pub struct Matrix(imp::MatrixDescriptor);

impl Matrix {
    /// The one at the start of `tile`, which lies on 1,024 bytes from the start of shared memory.
    #[inline(always)]
    pub fn of<const N: usize>(tile: *mut Tile<N>) -> Self {
        Self(imp::matrix_descriptor(tile.cast()))
    }

    /// From so many floats further on: a multiple of 4 within a row, or of 256.
    #[inline(always)]
    #[must_use]
    pub fn offset(self, floats: usize) -> Self {
        Self(imp::matrix_offset(self.0, floats))
    }
}

/// `sums + a b^T`, where b's 32 rows have 16 elements from the matrix's start on; from zero if `FROM_ZERO`. PTX
/// `wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16`.
///
/// # Safety
/// All 128 threads of the warpgroup make this call together, in the order above; shared memory is not written before the
/// product has been waited for.
#[inline(always)]
#[track_caller]
#[must_use]
pub unsafe fn multiply<const FROM_ZERO: bool>(sums: Sums, a: [u32; 4], b: Matrix) -> Sums {
    // SAFETY: the caller's contract is the instruction's.
    unsafe { imp::warpgroup_multiply::<FROM_ZERO, false>(sums, a, b.0) }
}

/// The same with `a b`, where b's 16 rows have 32 elements from the matrix's start on.
///
/// # Safety
/// As [`multiply`].
#[inline(always)]
#[track_caller]
#[must_use]
pub unsafe fn multiply_transposed<const FROM_ZERO: bool>(sums: Sums, a: [u32; 4], b: Matrix) -> Sums {
    // SAFETY: the caller's contract is the instruction's.
    unsafe { imp::warpgroup_multiply::<FROM_ZERO, true>(sums, a, b.0) }
}

/// Orders registers' writes before the products that take them. PTX `wgmma.fence.sync.aligned`.
#[inline(always)]
pub fn fence() {
    imp::warpgroup_fence();
}

/// Ends the group of products. PTX `wgmma.commit_group.sync.aligned`.
#[inline(always)]
pub fn commit() {
    imp::warpgroup_commit();
}

/// Waits until at most the `PENDING` last groups are under way. PTX `wgmma.wait_group.sync.aligned`.
#[inline(always)]
pub fn wait<const PENDING: u32>() {
    imp::warpgroup_wait::<PENDING>();
}

/// The sums, once they have been waited for: the compiler does not know that they come later than [`multiply`] says.
#[inline(always)]
#[must_use]
pub fn arrived(sums: Sums) -> Sums {
    imp::warpgroup_arrived(sums)
}

/// Makes this thread's writes to shared memory visible to products that come after a barrier. PTX
/// `fence.proxy.async.shared::cta`.
#[inline(always)]
pub fn fence_shared() {
    imp::fence_shared_for_warpgroups();
}
