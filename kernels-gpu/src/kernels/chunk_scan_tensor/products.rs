//! The products of the scan on tensor cores. Columns of the state are rows of the left factors, so that sums are left factors
//! of the next product without an exchange.
use super::factors::{
    Apart, Factor, Halves, ROW_STEPS, State, Sums, TOKEN_OCTETS, TOKEN_STEPS, column_of, split, totals,
};
use super::{KeyTile, ROWS_PER_WARP};
use crate::kernels::chunk::CHUNK;
use crate::kernels::chunk_tensor::{HEAD_FLOATS, KEY_MATRIX, TOKEN_MATRIX, for_each, key_piece, token_piece};
use crate::shape::HEAD_DIM;
use cuda_std::Tile;
use cuda_std::float::{SECOND_PART_SCALE, fma};
use cuda_std::tensor::{MatrixRow, load_matrix_x4, load_matrix_x4_transposed, mma_16x8x16};

/// Floats of a token's key or query, and of 16 tokens' ones.
const KEY_ROW: usize = HEAD_DIM / 2;
const KEY_STEP: usize = 16 * KEY_ROW;

/// Where the lane's rows of matrices are in shared memory, in floats from their tile's start.
pub struct Rows {
    /// [step] of 16 of the warp's rows, of the tokens of `keys` and the like.
    steps: [usize; ROW_STEPS],
    /// The same for the transposed load. A factor's two parts must be neighbours, or they have to be moved.
    steps_transposed: [usize; ROW_STEPS],
    /// [first, second 16 tokens]
    pub keys: [usize; 2],
    /// Of queries, in the warp's own order of octets: see [`Rows::octet`].
    pub queries: [usize; 2],
    keys_transposed: usize,
    /// Both parts of T's first octet; one part of its third.
    narrow: usize,
    wide: usize,
    half: usize,
}

impl Rows {
    #[inline(always)]
    pub fn of(lane: usize, half: usize) -> Self {
        let (row, matrix) = (lane % 8, lane / 8);
        let first_piece = half * (ROWS_PER_WARP / 8);
        let token = |octet: usize| (8 * octet + row) * KEY_ROW;
        // The swizzle depends on a token's place in its octet alone.
        let piece = |piece: usize| key_piece(row, first_piece + piece) - row * KEY_ROW;
        Self {
            steps: [0, 1, 2, 3].map(|step| piece(2 * step + matrix % 2)),
            steps_transposed: [0, 1, 2, 3].map(|step| piece(2 * step + matrix / 2)),
            keys: [token(matrix / 2), token(2 + matrix / 2)],
            queries: [token(Self::octet(half, matrix / 2)), token(Self::octet(half, 2 + matrix / 2))],
            keys_transposed: token(matrix % 2),
            narrow: token_piece(row, matrix % 2) + matrix / 2 * TOKEN_MATRIX,
            wide: token_piece(CHUNK / 2 + row, matrix),
            half,
        }
    }

    /// The chunk's octet of tokens that a warp of this half has at `index`: 0 and 1 are those whose output it writes, one of
    /// the first and one of the second 16 tokens, which P makes unequally long; 2 and 3 are the other half's.
    #[inline(always)]
    pub const fn octet(half: usize, index: usize) -> usize {
        let own = if index % 2 == 0 { half } else { 3 - half };
        let other = if index % 2 == 0 { 1 - half } else { 2 + half };
        if index < 2 { own } else { other }
    }
}

/// Adds 16 rows' part of `s^T` times 32 keys or queries.
///
/// # Safety
/// Keys are complete; all lanes of the warp are here.
#[inline(always)]
pub unsafe fn project_step<const STEP: usize>(
    keys: *mut KeyTile,
    tokens: [usize; 2],
    rows: &Rows,
    s: &Halves<ROW_STEPS>,
    sums: &mut [Apart; TOKEN_OCTETS],
) {
    let (high, low) = (s.high[STEP], s.low[STEP]);
    let row = tokens.map(|tokens| MatrixRow::of(keys, tokens + rows.steps[STEP]));
    // SAFETY: bounds: by `key_piece`, of two matrices. Barrier: by the caller; all lanes are here.
    unsafe {
        let x_high = row.map(|row| load_matrix_x4(row));
        let x_low = row.map(|row| load_matrix_x4(row.offset(KEY_MATRIX)));
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

/// `s^T` times 32 keys or queries, over the warp's rows.
///
/// # Safety
/// Keys are complete; all lanes of the warp are here.
#[inline(always)]
pub unsafe fn project(
    keys: *mut KeyTile,
    tokens: [usize; 2],
    rows: &Rows,
    s: &Halves<ROW_STEPS>,
) -> [Apart; TOKEN_OCTETS] {
    let mut sums = [Apart::ZERO; TOKEN_OCTETS];
    for_each!(STEP in [0 1 2 3] {
        // SAFETY: by the caller.
        unsafe { project_step::<STEP>(keys, tokens, rows, s, &mut sums) };
    });
    sums
}

/// `y^T` times the transpose of an octet of rows of T or P, which is at `first` in the value head's part: of the first 16
/// tokens, and the octet at `octet` octets from its start.
///
/// # Safety
/// The part is complete; all lanes of the warp are here.
#[inline(always)]
unsafe fn narrow(head: *mut Tile<HEAD_FLOATS>, at: usize, y: &Halves<TOKEN_STEPS>) -> Apart {
    // SAFETY: bounds: by `token_piece`, of two matrices. Barrier: by the caller; all lanes are here.
    unsafe {
        let x = load_matrix_x4(MatrixRow::of(head, at));
        let (x_high, x_low) = ([x[0], x[1]], [x[2], x[3]]);
        let small = mma_16x8x16([0.0; 4], y.low[0], x_high);
        let large = mma_16x8x16([0.0; 4], y.high[0], x_high);
        Apart { large, small: mma_16x8x16(small, y.high[0], x_low) }
    }
}

/// The same over all 32 tokens.
///
/// # Safety
/// As [`narrow`].
#[inline(always)]
unsafe fn wide(head: *mut Tile<HEAD_FLOATS>, at: usize, y: &Halves<TOKEN_STEPS>) -> Apart {
    let row = MatrixRow::of(head, at);
    let mut sum = Apart::ZERO;
    // SAFETY: as `narrow`.
    unsafe {
        let (x_high, x_low) = (load_matrix_x4(row), load_matrix_x4(row.offset(TOKEN_MATRIX)));
        for step in 0..TOKEN_STEPS {
            let of = |x: Factor| [x[2 * step], x[2 * step + 1]];
            sum.small = mma_16x8x16(sum.small, y.low[step], of(x_high));
            sum.large = mma_16x8x16(sum.large, y.high[step], of(x_high));
            sum.small = mma_16x8x16(sum.small, y.high[step], of(x_low));
        }
    }
    sum
}

/// Floats of T from an octet of tokens to the next.
const TOKEN_OCTET: usize = 8 * 4;

/// `d^T`: y^T times the transpose of T.
///
/// # Safety
/// T is complete; all lanes of the warp are here.
#[inline(always)]
pub unsafe fn solve(head: *mut Tile<HEAD_FLOATS>, rows: &Rows, y: &Halves<TOKEN_STEPS>) -> [Apart; TOKEN_OCTETS] {
    let mut sums = [Apart::ZERO; TOKEN_OCTETS];
    // SAFETY: by the caller.
    unsafe {
        sums[2] = wide(head, rows.wide, y);
        sums[3] = wide(head, rows.wide + TOKEN_OCTET, y);
        sums[0] = narrow(head, rows.narrow, y);
        sums[1] = narrow(head, rows.narrow + TOKEN_OCTET, y);
    }
    sums
}

/// y^T times the transpose of P, for the two octets whose output the warp writes.
///
/// # Safety
/// P is complete; all lanes of the warp are here.
#[inline(always)]
pub unsafe fn own_outputs(head: *mut Tile<HEAD_FLOATS>, rows: &Rows, y: &Halves<TOKEN_STEPS>) -> [Apart; 2] {
    const P: usize = 2 * TOKEN_MATRIX;
    // SAFETY: by the caller.
    unsafe {
        let second = wide(head, P + rows.wide + (1 - rows.half) * TOKEN_OCTET, y);
        [narrow(head, P + rows.narrow + rows.half * TOKEN_OCTET, y), second]
    }
}

/// `d^T k` for 16 of the warp's rows.
///
/// # Safety
/// As [`project_step`].
#[inline(always)]
unsafe fn gain<const STEP: usize>(keys: *mut KeyTile, rows: &Rows, d: &Halves<TOKEN_STEPS>) -> [Sums; 2] {
    let row = MatrixRow::of(keys, rows.keys_transposed + rows.steps_transposed[STEP]);
    let mut sums = [Apart::ZERO; 2];
    // SAFETY: bounds: by `key_piece`, of two matrices. Barrier: by the caller; all lanes are here.
    unsafe {
        for tokens in 0..TOKEN_STEPS {
            let row = row.offset(tokens * KEY_STEP);
            let (x_high, x_low) = (load_matrix_x4_transposed(row), load_matrix_x4_transposed(row.offset(KEY_MATRIX)));
            let of = |x: Factor, octet: usize| [x[2 * octet], x[2 * octet + 1]];
            for octet in 0..2 {
                sums[octet].small = mma_16x8x16(sums[octet].small, d.low[tokens], of(x_high, octet));
            }
            for octet in 0..2 {
                sums[octet].large = mma_16x8x16(sums[octet].large, d.high[tokens], of(x_high, octet));
            }
            for octet in 0..2 {
                sums[octet].small = mma_16x8x16(sums[octet].small, d.high[tokens], of(x_low, octet));
            }
        }
    }
    totals(&sums)
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
) -> [Apart; TOKEN_OCTETS] {
    let mut sums = [Apart::ZERO; TOKEN_OCTETS];
    for_each!(STEP in [0 1 2 3] {
        // SAFETY: by the caller.
        let gained = unsafe { gain::<STEP>(keys, rows, d) };
        for octet in 0..2 {
            for i in 0..4 {
                let value = &mut s[2 * STEP + octet][i];
                *value = fma(*value, decay[column_of(i)], gained[octet][i]);
            }
        }
        (halves.high[STEP], halves.low[STEP]) = split([s[2 * STEP], s[2 * STEP + 1]]);
        // SAFETY: by the caller.
        unsafe { project_step::<STEP>(next_keys, rows.keys, rows, halves, &mut sums) };
    });
    sums
}

const _: () = assert!(ROW_STEPS == 4 && TOKEN_STEPS == 2 && SECOND_PART_SCALE > 1.0);

#[cfg(test)]
mod tests {
    use super::Rows;

    #[test]
    fn each_octet_is_one_halfs_own_and_the_others_other() {
        for index in 0..2 {
            assert_eq!(Rows::octet(0, 2 + index), Rows::octet(1, index));
            assert_eq!(Rows::octet(1, 2 + index), Rows::octet(0, index));
            assert!(Rows::octet(0, index) / 2 == index && Rows::octet(1, index) / 2 == index);
        }
        assert_ne!(Rows::octet(0, 0), Rows::octet(1, 0));
    }
}
