//! What a lane has of the state and of sums, and the halves that tensor cores multiply.
use super::ROWS_PER_WARP;
use crate::kernels::chunk::CHUNK;
use crate::kernels::chunk_tensor::for_each;
use cuda_std::float::{SECOND_PART_SCALE, fma, split_f16x2};

/// Groups of eight rows of a warp's part of the state, of eight tokens of a chunk.
pub const ROW_OCTETS: usize = ROWS_PER_WARP / 8;
pub const TOKEN_OCTETS: usize = CHUNK / 8;
/// Steps of sixteen.
pub const ROW_STEPS: usize = ROWS_PER_WARP / 16;
pub const TOKEN_STEPS: usize = CHUNK / 16;

/// A lane's part of a matrix of 16 columns by 8 rows or tokens.
pub type Sums = [f32; 4];
/// A lane's part of 16 columns by 16 rows or tokens in 16 bits.
pub type Factor = [u32; 4];
/// The lane's part of the state.
pub type State = [Sums; ROW_OCTETS];
/// Something of each of the lane's two columns.
pub type Columns<T> = [T; 2];

/// Which of its two columns the lane's element `i` of `Sums` is of.
#[inline(always)]
pub const fn column_of(i: usize) -> usize {
    i / 2
}

/// Two parts of two octets, as the left factors of a product over their sixteen rows or tokens.
#[inline(always)]
pub fn split(octets: [Sums; 2]) -> (Factor, Factor) {
    let (mut high, mut low) = ([0; 4], [0; 4]);
    for part in 0..4 {
        let octet = octets[part / 2];
        (high[part], low[part]) = split_f16x2(octet[part % 2 * 2], octet[part % 2 * 2 + 1]);
    }
    (high, low)
}

/// The lane's part of `STEPS` times sixteen rows or tokens in 16 bits, as products take it.
#[derive(Clone, Copy)]
pub struct Halves<const STEPS: usize> {
    pub high: [Factor; STEPS],
    pub low: [Factor; STEPS],
}

impl<const STEPS: usize> Halves<STEPS> {
    pub const ZERO: Self = Self { high: [[0; 4]; STEPS], low: [[0; 4]; STEPS] };
}

impl Halves<ROW_STEPS> {
    #[inline(always)]
    pub fn of(s: &State) -> Self {
        let mut halves = Self::ZERO;
        for_each!(STEP in [0 1 2 3] {
            (halves.high[STEP], halves.low[STEP]) = split([s[2 * STEP], s[2 * STEP + 1]]);
        });
        halves
    }
}

impl Halves<TOKEN_STEPS> {
    #[inline(always)]
    pub fn of_tokens(y: &[Sums; TOKEN_OCTETS]) -> Self {
        let mut halves = Self::ZERO;
        for_each!(STEP in [0 1] {
            (halves.high[STEP], halves.low[STEP]) = split([y[2 * STEP], y[2 * STEP + 1]]);
        });
        halves
    }
}

/// Products of first parts, and apart from them those with a second part, which is kept larger.
#[derive(Clone, Copy)]
pub struct Apart {
    pub large: Sums,
    pub small: Sums,
}

impl Apart {
    pub const ZERO: Self = Self { large: [0.0; 4], small: [0.0; 4] };

    #[inline(always)]
    pub fn total(&self) -> Sums {
        let mut total = [0.0; 4];
        for i in 0..4 {
            total[i] = fma(self.small[i], 1.0 / SECOND_PART_SCALE, self.large[i]);
        }
        total
    }
}

#[inline(always)]
pub fn totals<const OCTETS: usize>(sums: &[Apart; OCTETS]) -> [Sums; OCTETS] {
    let mut totals = [[0.0; 4]; OCTETS];
    for octet in 0..OCTETS {
        totals[octet] = sums[octet].total();
    }
    totals
}
