//! The products of the scan on tensor cores. Columns of the state are rows of the left factors, so that sums are left factors
//! of the next product without an exchange.
use super::factors::{Factor, Halves, Own, Pair, ROW_STEPS, State, Sums, TOKEN_OCTETS, TOKEN_STEPS, column_of};
use super::{HeadTile, KeyTile, ROWS_PER_WARP};
use crate::kernels::chunk_tensor::{KEY_MATRIX, ROW, TOKEN_MATRIX, for_each, key_piece, token_piece};
use cuda_std::float::fma;
use cuda_std::tensor::{MatrixRow, load_matrix_x4, load_matrix_x4_transposed, mma_16x8x16};

/// Floats of 16 tokens' keys or queries.
const KEY_STEP: usize = 16 * ROW;

/// The chunk's octet of tokens that a warp of this half has at `index`: 0 and 1 are those that it makes itself, one of the
/// first and one of the last 16 tokens, which T and P make unequally long; 2 and 3 are the other half's.
#[inline(always)]
pub const fn octet(half: usize, index: usize) -> usize {
    let half = if index < 2 { half } else { 1 - half };
    if index % 2 == 0 { half } else { 3 - half }
}

/// Where the lane's rows of matrices are in shared memory, in floats from their tile's start.
pub struct Rows {
    /// [step] of 16 of the warp's rows, of the tokens of `tokens`.
    steps: [usize; ROW_STEPS],
    /// The same for the transposed load. A factor's two parts must be neighbours, or they have to be moved.
    steps_transposed: [usize; ROW_STEPS],
    /// [own, other octets] of tokens
    tokens: [usize; 2],
    tokens_transposed: usize,
    /// Both parts of the first own octet's rows of T; each part of the second one's.
    narrow: usize,
    wide: [usize; 2],
}

impl Rows {
    #[inline(always)]
    pub fn of(lane: usize, half: usize) -> Self {
        let (row, matrix) = (lane % 8, lane / 8);
        let first_piece = half * (ROWS_PER_WARP / 8);
        let token = |index: usize| (8 * octet(half, index) + row) * ROW;
        // The swizzle depends on a token's place in its octet alone.
        let piece = |piece: usize| key_piece(row, first_piece + piece) - row * ROW;
        Self {
            steps: [0, 1, 2, 3].map(|step| piece(2 * step + matrix % 2)),
            steps_transposed: [0, 1, 2, 3].map(|step| piece(2 * step + matrix / 2)),
            tokens: [token(matrix / 2), token(2 + matrix / 2)],
            tokens_transposed: (row + 8 * (matrix % 2)) * ROW,
            narrow: token_piece(8 * octet(half, 0) + row, matrix % 2 + matrix / 2 * 4),
            wide: [0, 4].map(|part| token_piece(8 * octet(half, 1) + row, part + matrix)),
        }
    }
}

/// Adds 16 rows' part of `s^T` times 32 keys or queries. The small products first.
///
/// # Safety
/// Keys are complete; all lanes of the warp are here.
#[inline(always)]
unsafe fn project_step<const STEP: usize>(
    keys: *mut KeyTile,
    rows: &Rows,
    s: &Halves<ROW_STEPS>,
    sums: &mut [Sums; TOKEN_OCTETS],
) {
    let (high, low) = (s.high[STEP], s.low[STEP]);
    let row = rows.tokens.map(|tokens| MatrixRow::of(keys, tokens + rows.steps[STEP]));
    // SAFETY: bounds: by `key_piece`, of two matrices. Barrier: by the caller; all lanes are here.
    unsafe {
        let x_high = row.map(|row| load_matrix_x4(row));
        let x_low = row.map(|row| load_matrix_x4(row.offset(KEY_MATRIX)));
        let of = |x: &[Factor; 2], octet: usize| {
            let x = x[octet / 2];
            [x[octet % 2 * 2], x[octet % 2 * 2 + 1]]
        };
        for octet in 0..TOKEN_OCTETS {
            sums[octet] = mma_16x8x16(sums[octet], low, of(&x_high, octet));
        }
        for octet in 0..TOKEN_OCTETS {
            sums[octet] = mma_16x8x16(sums[octet], high, of(&x_low, octet));
        }
        for octet in 0..TOKEN_OCTETS {
            sums[octet] = mma_16x8x16(sums[octet], high, of(&x_high, octet));
        }
    }
}

/// `s^T` times 32 keys or queries, over the warp's rows: of the own and the other octets.
///
/// # Safety
/// Keys are complete; all lanes of the warp are here.
#[inline(always)]
pub unsafe fn project(keys: *mut KeyTile, rows: &Rows, s: &Halves<ROW_STEPS>) -> [Sums; TOKEN_OCTETS] {
    let mut sums = [[0.0; 4]; TOKEN_OCTETS];
    for_each!(STEP in [0 1 2 3] {
        // SAFETY: by the caller.
        unsafe { project_step::<STEP>(keys, rows, s, &mut sums) };
    });
    sums
}

/// `y^T` times the transpose of the own octets' rows of T, or of P, which is at `first` in the value head's part.
///
/// # Safety
/// The part is complete; all lanes of the warp are here.
#[inline(always)]
unsafe fn solve(head: *mut HeadTile, first: usize, rows: &Rows, y: &Halves<TOKEN_STEPS>) -> Own {
    let row = |index: usize| MatrixRow::of(head, first + index);
    let mut sums = [[0.0; 4]; 2];
    // SAFETY: bounds: by `token_piece`, of two matrices. Barrier: by the caller; all lanes are here.
    unsafe {
        let (x_high, x_low) = (load_matrix_x4(row(rows.wide[0])), load_matrix_x4(row(rows.wide[1])));
        let x = load_matrix_x4(row(rows.narrow));
        let of = |x: Factor, step: usize| [x[2 * step], x[2 * step + 1]];
        // The first 16 tokens have nothing of the last ones.
        sums[1] = mma_16x8x16(sums[1], y.low[0], of(x_high, 0));
        sums[0] = mma_16x8x16(sums[0], y.low[0], of(x, 0));
        sums[1] = mma_16x8x16(sums[1], y.low[1], of(x_high, 1));
        sums[0] = mma_16x8x16(sums[0], y.high[0], of(x, 1));
        sums[1] = mma_16x8x16(sums[1], y.high[0], of(x_low, 0));
        sums[0] = mma_16x8x16(sums[0], y.high[0], of(x, 0));
        sums[1] = mma_16x8x16(sums[1], y.high[1], of(x_low, 1));
        sums[1] = mma_16x8x16(sums[1], y.high[0], of(x_high, 0));
        sums[1] = mma_16x8x16(sums[1], y.high[1], of(x_high, 1));
    }
    sums
}

/// d of the own octets, times T's scale.
///
/// # Safety
/// T is complete; all lanes of the warp are here.
#[inline(always)]
pub unsafe fn own_d(head: *mut HeadTile, rows: &Rows, y: &Halves<TOKEN_STEPS>) -> Own {
    // SAFETY: by the caller.
    unsafe { solve(head, 0, rows, y) }
}

/// What y gives the own octets' outputs.
///
/// # Safety
/// P is complete; all lanes of the warp are here.
#[inline(always)]
pub unsafe fn own_outputs(head: *mut HeadTile, rows: &Rows, y: &Halves<TOKEN_STEPS>) -> Own {
    // SAFETY: by the caller.
    unsafe { solve(head, TOKEN_MATRIX, rows, y) }
}

/// `d^T k` for 16 of the warp's rows.
///
/// # Safety
/// As [`project_step`].
#[inline(always)]
unsafe fn gain<const STEP: usize>(keys: *mut KeyTile, rows: &Rows, d: &Halves<TOKEN_STEPS>) -> [Sums; 2] {
    let row = MatrixRow::of(keys, rows.tokens_transposed + rows.steps_transposed[STEP]);
    let mut sums = [[0.0; 4]; 2];
    // SAFETY: bounds: by `key_piece`, of two matrices. Barrier: by the caller; all lanes are here.
    unsafe {
        let x_high = [0, 1].map(|step| load_matrix_x4_transposed(row.offset(step * KEY_STEP)));
        let x_low = [0, 1].map(|step| load_matrix_x4_transposed(row.offset(KEY_MATRIX + step * KEY_STEP)));
        let of = |x: Factor, octet: usize| [x[2 * octet], x[2 * octet + 1]];
        for tokens in 0..TOKEN_STEPS {
            for octet in 0..2 {
                sums[octet] = mma_16x8x16(sums[octet], d.low[tokens], of(x_high[tokens], octet));
            }
            for octet in 0..2 {
                sums[octet] = mma_16x8x16(sums[octet], d.high[tokens], of(x_low[tokens], octet));
            }
        }
        for tokens in 0..TOKEN_STEPS {
            for octet in 0..2 {
                sums[octet] = mma_16x8x16(sums[octet], d.high[tokens], of(x_high[tokens], octet));
            }
        }
    }
    sums
}

/// `s^T <- decay s^T + d^T k`, its halves, and the new s^T times the next chunk's keys: rows as soon as they are new, so that
/// tensor cores have work while they are made.
///
/// # Safety
/// As [`project_step`], of both tiles of keys.
#[inline(always)]
pub unsafe fn update(
    keys: *mut KeyTile,
    next_keys: *mut KeyTile,
    rows: &Rows,
    decay: [f32; 2],
    d: &Halves<TOKEN_STEPS>,
    s: &mut State,
    halves: &mut Halves<ROW_STEPS>,
) -> [Sums; TOKEN_OCTETS] {
    let mut sums = [[0.0; 4]; TOKEN_OCTETS];
    for_each!(STEP in [0 1 2 3] {
        // SAFETY: by the caller.
        let gained = unsafe { gain::<STEP>(keys, rows, d) };
        for octet in 0..2 {
            for i in 0..4 {
                let value = &mut s[2 * STEP + octet][i];
                *value = fma(*value, decay[column_of(i)], gained[octet][i]);
            }
        }
        halves.set(STEP, Pair::of([s[2 * STEP], s[2 * STEP + 1]]));
        // SAFETY: by the caller.
        unsafe { project_step::<STEP>(next_keys, rows, halves, &mut sums) };
    });
    sums
}

const _: () = assert!(ROW_STEPS == 4 && TOKEN_STEPS == 2);

#[cfg(test)]
mod tests {
    use super::octet;

    #[test]
    fn each_octet_is_one_halfs_own_and_the_others_other() {
        for index in 0..2 {
            assert_eq!(octet(0, 2 + index), octet(1, index));
            assert_eq!(octet(1, 2 + index), octet(0, index));
            assert!(octet(0, index) / 2 == index && octet(1, index) / 2 == index);
        }
        assert_ne!(octet(0, 0), octet(1, 0));
    }
}
