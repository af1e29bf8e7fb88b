//! The products of the scan by a warpgroup. Columns of the state are rows of the factors in registers, so that sums are factors
//! of the next product without an exchange. The small products come before the large ones.
use super::{HeadTile, KeyTile, ROW_STEPS, TOKEN_STEPS};
use crate::kernels::chunk_scan_tensor::factors::{Factor, Halves};
use crate::kernels::chunk_tensor::{KEY_MATRIX, KEY_PANEL, ROW, TOKEN_MATRIX, for_each};
use cuda_std::warpgroup::{Matrix, Sums, multiply, multiply_transposed};

/// Floats of sixteen elements in 16 bits; of sixteen tokens' rows; of the high parts in a row of T.
const STEP: usize = 8;
const TOKEN_STEP: usize = 16 * ROW;
const TOKEN_PART: usize = ROW / 2;

/// Two of a step's factors.
#[derive(Clone, Copy)]
pub struct Step {
    pub high: Factor,
    pub low: Factor,
}

/// Adds sixteen rows' part of `s^T` times 32 keys or queries.
///
/// # Safety
/// Keys are complete; the whole warpgroup is here, between a fence and a commit; `step < ROW_STEPS`.
#[inline(always)]
pub unsafe fn project<const FROM_ZERO: bool>(sums: Sums, keys: *mut KeyTile, step: usize, s: Step) -> Sums {
    let first = step / 4 * KEY_PANEL;
    let keys = Matrix::of(keys).offset(first + step % 4 * STEP);
    // SAFETY: by the caller.
    unsafe {
        let sums = multiply::<FROM_ZERO>(sums, s.low, keys);
        let sums = multiply::<false>(sums, s.high, keys.offset(KEY_MATRIX));
        multiply::<false>(sums, s.high, keys)
    }
}

/// Adds the part of steps from `FIRST` on up to `FIRST + 4`.
///
/// # Safety
/// As [`project`].
#[inline(always)]
pub unsafe fn project_half<const FIRST: usize, const FROM_ZERO: bool>(
    mut sums: Sums,
    keys: *mut KeyTile,
    s: &Halves<ROW_STEPS>,
) -> Sums {
    for_each!(STEP in [0 1 2 3] {
        let step = Step { high: s.high[FIRST + STEP], low: s.low[FIRST + STEP] };
        // SAFETY: by the caller.
        sums = unsafe {
            if FROM_ZERO && STEP == 0 {
                project::<true>(sums, keys, FIRST + STEP, step)
            } else {
                project::<false>(sums, keys, FIRST + STEP, step)
            }
        };
    });
    sums
}

/// `y^T` times the transpose of T, or of P, which is at `first` in the value head's part.
///
/// # Safety
/// As [`project`], of the part.
#[inline(always)]
unsafe fn solve(head: *mut HeadTile, first: usize, y: &Halves<TOKEN_STEPS>) -> Sums {
    let matrix = Matrix::of(head).offset(first);
    // SAFETY: by the caller.
    unsafe {
        let sums = multiply::<true>([0.0; 16], y.low[0], matrix);
        let sums = multiply::<false>(sums, y.low[1], matrix.offset(STEP));
        let sums = multiply::<false>(sums, y.high[0], matrix.offset(TOKEN_PART));
        let sums = multiply::<false>(sums, y.high[1], matrix.offset(TOKEN_PART + STEP));
        let sums = multiply::<false>(sums, y.high[0], matrix);
        multiply::<false>(sums, y.high[1], matrix.offset(STEP))
    }
}

/// d' of all tokens, times T's scale.
///
/// # Safety
/// As [`project`], of the value head's part.
#[inline(always)]
pub unsafe fn d(head: *mut HeadTile, y: &Halves<TOKEN_STEPS>) -> Sums {
    // SAFETY: by the caller.
    unsafe { solve(head, 0, y) }
}

/// What y gives the outputs.
///
/// # Safety
/// As [`project`], of the value head's part.
#[inline(always)]
pub unsafe fn outputs(head: *mut HeadTile, y: &Halves<TOKEN_STEPS>) -> Sums {
    // SAFETY: by the caller.
    unsafe { solve(head, TOKEN_MATRIX, y) }
}

/// `d^T k` for rows `32 PART ..` of the state.
///
/// # Safety
/// As [`project`].
#[inline(always)]
pub unsafe fn gain<const PART: usize>(keys: *mut KeyTile, d: &Halves<TOKEN_STEPS>) -> Sums {
    let keys = Matrix::of(keys).offset(PART / 2 * KEY_PANEL + PART % 2 * 2 * STEP);
    let low = keys.offset(KEY_MATRIX);
    // SAFETY: by the caller.
    unsafe {
        let sums = multiply_transposed::<true>([0.0; 16], d.low[0], keys);
        let sums = multiply_transposed::<false>(sums, d.low[1], keys.offset(TOKEN_STEP));
        let sums = multiply_transposed::<false>(sums, d.high[0], low);
        let sums = multiply_transposed::<false>(sums, d.high[1], low.offset(TOKEN_STEP));
        let sums = multiply_transposed::<false>(sums, d.high[0], keys);
        multiply_transposed::<false>(sums, d.high[1], keys.offset(TOKEN_STEP))
    }
}
