//! Words for the tensor cores (sm_80 and newer): products of small matrices that the lanes of a warp hold together.
//!
//! # Who holds what
//! With `row = lane / 4` and `pair = lane % 4`; two 16-bit floats make a register, the earlier one in its low half:
//! ```text
//!   a  16 x 16   [0] (row, 2 pair ..)   [1] (row + 8, 2 pair ..)   [2] (row, 2 pair + 8 ..)   [3] (row + 8, 2 pair + 8 ..)
//!   b  16 x 8    [0] (2 pair .., row)   [1] (2 pair + 8 .., row)
//!   c  16 x 8    [0], [1] (row, 2 pair ..)   [2], [3] (row + 8, 2 pair ..)
//! ```
//! The c of two neighbouring products, rounded to 16 bits, are the a of the next without an exchange between lanes.
use crate::imp;
use crate::shared::Tile;

/// `a b + c` of 16 x 16, 16 x 8 and 16 x 8, f16 times f16 added in f32. PTX
/// `mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32`.
///
/// The emulator rounds as Hopper does: the sixteen products and c are aligned to the largest exponent among them, cut off
/// after 25 fraction bits, added exactly, and the sum is rounded toward zero.
///
/// # Safety
/// All 32 lanes of the warp make this call together.
#[inline(always)]
#[track_caller]
#[must_use]
pub unsafe fn mma_16x8x16(c: [f32; 4], a: [u32; 4], b: [u32; 2]) -> [f32; 4] {
    // SAFETY: the caller's contract is the instruction's.
    unsafe { imp::mma_16x8x16(c, a, b) }
}

/// Where a lane's row of a matrix lies in shared memory: eight 16-bit floats, 16 bytes on 16 bytes.
#[derive(Clone, Copy, Debug)]
pub struct MatrixRow(imp::SharedAddress);

impl MatrixRow {
    /// The row at `tile[index..index + 4]`.
    #[inline(always)]
    #[track_caller]
    pub fn of<const N: usize>(tile: *mut Tile<N>, index: usize) -> Self {
        Self(imp::shared_address(Tile::address(tile, index, 4)))
    }

    /// The row so many floats further on, which may be in another tile.
    #[inline(always)]
    #[must_use]
    pub fn offset(self, floats: usize) -> Self {
        Self(imp::shared_offset(self.0, floats))
    }
}

/// Four 8 x 8 matrices of 16-bit floats: lane `8 m + r` names row r of matrix m, and each lane gets of every matrix the
/// two elements from column `2 (lane % 4)` on of row `lane / 4`. PTX `ldmatrix.sync.aligned.m8n8.x4.shared.b16`.
///
/// # Safety
/// All 32 lanes of the warp make this call together; a barrier stands between the last write of the rows and this.
#[inline(always)]
#[track_caller]
#[must_use]
pub unsafe fn load_matrix_x4(row: MatrixRow) -> [u32; 4] {
    // SAFETY: the caller's contract is the instruction's.
    unsafe { imp::load_matrix_x4(row.0) }
}

/// [`load_matrix_x4`] of transposed matrices: each lane gets of column `lane / 4` the two elements from row
/// `2 (lane % 4)` on. PTX `ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16`.
///
/// # Safety
/// As there.
#[inline(always)]
#[track_caller]
#[must_use]
pub unsafe fn load_matrix_x4_transposed(row: MatrixRow) -> [u32; 4] {
    // SAFETY: the caller's contract is the instruction's.
    unsafe { imp::load_matrix_x4_transposed(row.0) }
}
