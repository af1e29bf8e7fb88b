//! The products of the scan on tensor cores. Columns of the state are rows of the left factors, so that sums are left factors
//! of the next product without an exchange.
use super::factors::{Apart, Factor, Halves, State, Sums, TOKEN_OCTETS, TOKEN_STEPS, for_each, split, totals};
use crate::kernels::chunk::CHUNK;
use crate::kernels::chunk_tensor::{HEAD_FLOATS, KEY_FLOATS, KEY_MATRIX, TOKEN_MATRIX, key_piece, token_piece};
use crate::shape::HEAD_DIM;
use cuda_std::Tile;
use cuda_std::float::fma;
use cuda_std::tensor::{MatrixRow, load_matrix_x4, load_matrix_x4_transposed, mma_16x8x16};

/// Where the lane's rows of matrices are in shared memory, in floats from their tile's start. The four steps after which a
/// swizzle repeats have their own.
pub struct Rows {
    /// [step % 4], of 16 tokens by 16 rows
    pub keys: [usize; 4],
    /// The same for the transposed load. A factor's two parts must be neighbours, or they have to be moved.
    pub keys_transposed: [usize; 4],
    /// Of 8 tokens by 32 tokens.
    pub tokens: usize,
}

impl Rows {
    #[inline(always)]
    pub fn of(lane: usize) -> Self {
        let (row, matrix) = (lane % 8, lane / 8);
        Self {
            keys: [0, 1, 2, 3].map(|step| key_piece(row + 8 * (matrix / 2), 2 * step + matrix % 2)),
            keys_transposed: [0, 1, 2, 3].map(|step| key_piece(row + 8 * (matrix % 2), 2 * step + matrix / 2)),
            tokens: token_piece(row, matrix),
        }
    }
}

/// Floats from a key's first eight pieces to the others, and over 16 tokens.
pub const HALF_KEY: usize = 32;
pub const KEY_STEP: usize = 16 * HEAD_DIM / 2;

/// Adds 16 rows' part of `s^T` times 32 keys or queries, which are at `first` in the stage's keys.
///
/// # Safety
/// Keys are complete; all lanes of the warp are here; `step < ROW_STEPS`.
#[inline(always)]
pub unsafe fn project_step(
    keys: *mut Tile<KEY_FLOATS>,
    rows: &Rows,
    first: usize,
    step: usize,
    s: &Halves,
    sums: &mut [Apart; TOKEN_OCTETS],
) {
    let row = MatrixRow::of(keys, rows.keys[step % 4]).offset(first + step / 4 * HALF_KEY);
    let (high, low) = (s.high[step], s.low[step]);
    // SAFETY: bounds: by `key_piece`, of two matrices. Barrier: by the caller; all lanes are here.
    unsafe {
        let x_high = [load_matrix_x4(row), load_matrix_x4(row.offset(KEY_STEP))];
        let x_low = [load_matrix_x4(row.offset(KEY_MATRIX)), load_matrix_x4(row.offset(KEY_MATRIX + KEY_STEP))];
        let of = |x: &[Factor; 2], octet: usize| {
            let x = x[octet / 2];
            [x[octet % 2 * 2], x[octet % 2 * 2 + 1]]
        };
        for octet in 0..TOKEN_OCTETS {
            sums[octet].small = mma_16x8x16(sums[octet].small, low, of(&x_high, octet));
        }
        for octet in 0..TOKEN_OCTETS {
            sums[octet].large = mma_16x8x16(sums[octet].large, high, of(&x_high, octet));
        }
        for octet in 0..TOKEN_OCTETS {
            sums[octet].small = mma_16x8x16(sums[octet].small, high, of(&x_low, octet));
        }
    }
}

/// `s^T` times 32 keys or queries, which are at `first` in the stage's keys.
///
/// # Safety
/// Keys are complete; all lanes of the warp are here.
#[inline(always)]
pub unsafe fn project(keys: *mut Tile<KEY_FLOATS>, rows: &Rows, first: usize, s: &Halves) -> [Sums; TOKEN_OCTETS] {
    let mut sums = [Apart::ZERO; TOKEN_OCTETS];
    for_each!(STEP in [0 1 2 3 4 5 6 7] {
        // SAFETY: by the caller.
        unsafe { project_step(keys, rows, first, STEP, s, &mut sums) };
    });
    totals(&sums)
}

/// Adds `y^T` times the transpose of T or P, which is at `first` in the value head's part.
///
/// # Safety
/// As [`project`].
#[inline(always)]
pub unsafe fn solve(
    head: *mut Tile<HEAD_FLOATS>,
    rows: &Rows,
    first: usize,
    high: &[Factor; TOKEN_STEPS],
    low: &[Factor; TOKEN_STEPS],
    mut sums: [Sums; TOKEN_OCTETS],
) -> [Sums; TOKEN_OCTETS] {
    let row = MatrixRow::of(head, rows.tokens).offset(first);
    for_each!(OCTET in [0 1 2 3] {
        let row = row.offset(OCTET * 8 * CHUNK / 2);
        // Later tokens give nothing.
        let steps = OCTET / 2 + 1;
        // SAFETY: bounds: by `token_piece`, of two matrices. Barrier: by the caller; all lanes are here.
        unsafe {
            let (x_high, x_low) = (load_matrix_x4(row), load_matrix_x4(row.offset(TOKEN_MATRIX)));
            let of = |x: Factor, step: usize| [x[2 * step], x[2 * step + 1]];
            let mut sum = sums[OCTET];
            for step in 0..steps {
                sum = mma_16x8x16(sum, low[step], of(x_high, step));
            }
            for step in 0..steps {
                sum = mma_16x8x16(sum, high[step], of(x_low, step));
            }
            for step in 0..steps {
                sum = mma_16x8x16(sum, high[step], of(x_high, step));
            }
            sums[OCTET] = sum;
        }
    });
    sums
}

/// `d^T k` for 16 rows.
///
/// # Safety
/// As [`project_step`].
#[inline(always)]
pub unsafe fn gain(
    keys: *mut Tile<KEY_FLOATS>,
    rows: &Rows,
    step: usize,
    high: &[Factor; TOKEN_STEPS],
    low: &[Factor; TOKEN_STEPS],
) -> [Sums; 2] {
    let row = MatrixRow::of(keys, rows.keys_transposed[step % 4]).offset(step / 4 * HALF_KEY);
    // SAFETY: bounds: by `key_piece`, of two matrices. Barrier: by the caller; all lanes are here.
    unsafe {
        let x_high = [load_matrix_x4_transposed(row), load_matrix_x4_transposed(row.offset(KEY_STEP))];
        let low_row = row.offset(KEY_MATRIX);
        let x_low = [load_matrix_x4_transposed(low_row), load_matrix_x4_transposed(low_row.offset(KEY_STEP))];
        let of = |x: Factor, octet: usize| [x[2 * octet], x[2 * octet + 1]];
        let mut sums = [[0.0; 4]; 2];
        for tokens in 0..TOKEN_STEPS {
            for octet in 0..2 {
                sums[octet] = mma_16x8x16(sums[octet], low[tokens], of(x_high[tokens], octet));
            }
        }
        for tokens in 0..TOKEN_STEPS {
            for octet in 0..2 {
                sums[octet] = mma_16x8x16(sums[octet], high[tokens], of(x_low[tokens], octet));
            }
        }
        for tokens in 0..TOKEN_STEPS {
            for octet in 0..2 {
                sums[octet] = mma_16x8x16(sums[octet], high[tokens], of(x_high[tokens], octet));
            }
        }
        sums
    }
}

/// `s^T <- decay s^T + d^T k`, its halves, and the new s^T times the next chunk's keys: rows as soon as they are new, so that
/// tensor cores have work while they are made.
///
/// # Safety
/// As [`project_step`], of both stages' keys.
#[inline(always)]
#[allow(clippy::too_many_arguments)]
pub unsafe fn update(
    keys: *mut Tile<KEY_FLOATS>,
    next_keys: *mut Tile<KEY_FLOATS>,
    rows: &Rows,
    decay: f32,
    high: &[Factor; TOKEN_STEPS],
    low: &[Factor; TOKEN_STEPS],
    s: &mut State,
    halves: &mut Halves,
) -> [Sums; TOKEN_OCTETS] {
    let mut sums = [Apart::ZERO; TOKEN_OCTETS];
    for_each!(STEP in [0 1 2 3 4 5 6 7] {
        // SAFETY: by the caller.
        let gained = unsafe { gain(keys, rows, STEP, high, low) };
        for octet in 0..2 {
            for i in 0..4 {
                let value = &mut s[2 * STEP + octet][i];
                *value = fma(*value, decay, gained[octet][i]);
            }
        }
        (halves.high[STEP], halves.low[STEP]) = split([s[2 * STEP], s[2 * STEP + 1]]);
        // SAFETY: by the caller.
        unsafe { project_step(next_keys, rows, 0, STEP, halves, &mut sums) };
    });
    totals(&sums)
}
