//! What a lane has of the state and of sums, and the halves that tensor cores multiply.
use super::ROWS_PER_WARP;
use crate::kernels::chunk::CHUNK;
use crate::kernels::chunk_tensor::for_each;
use cuda_std::float::split_f16x2;

/// Groups of eight rows of a warp's part of the state, of eight tokens of a chunk.
pub const ROW_OCTETS: usize = ROWS_PER_WARP / 8;
pub const TOKEN_OCTETS: usize = CHUNK / 8;
/// Steps of sixteen.
pub const ROW_STEPS: usize = ROWS_PER_WARP / 16;
pub const TOKEN_STEPS: usize = CHUNK / 16;

/// A lane's part of a matrix of 16 columns by 8 rows or tokens.
pub type Sums = [f32; 4];
/// Of the two octets of tokens that a warp makes itself, one of the first and one of the last 16.
pub type Own = [Sums; 2];
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

/// Scales each of two octets' columns by its factor.
#[inline(always)]
pub fn scaled(octets: Own, factors: Columns<f32>) -> Own {
    octets.map(|sums| [0, 1, 2, 3].map(|i| sums[i] * factors[column_of(i)]))
}

/// Two octets in 16 bits.
#[derive(Clone, Copy)]
pub struct Pair {
    /// [both columns of the first octet, of the second]
    pub high: Factor,
    pub low: Factor,
}

impl Pair {
    #[inline(always)]
    pub fn of(octets: Own) -> Self {
        let (mut high, mut low) = ([0; 4], [0; 4]);
        for part in 0..4 {
            let octet = octets[part / 2];
            (high[part], low[part]) = split_f16x2(octet[part % 2 * 2], octet[part % 2 * 2 + 1]);
        }
        Self { high, low }
    }
}

/// The lane's part of `STEPS` times sixteen rows or tokens in 16 bits, as products take it.
#[derive(Clone, Copy)]
pub struct Halves<const STEPS: usize> {
    pub high: [Factor; STEPS],
    pub low: [Factor; STEPS],
}

impl<const STEPS: usize> Halves<STEPS> {
    pub const ZERO: Self = Self { high: [[0; 4]; STEPS], low: [[0; 4]; STEPS] };

    #[inline(always)]
    pub fn set(&mut self, step: usize, pair: Pair) {
        (self.high[step], self.low[step]) = (pair.high, pair.low);
    }
}

impl Halves<ROW_STEPS> {
    #[inline(always)]
    pub fn of(s: &State) -> Self {
        let mut halves = Self::ZERO;
        for_each!(STEP in [0 1 2 3] {
            halves.set(STEP, Pair::of([s[2 * STEP], s[2 * STEP + 1]]));
        });
        halves
    }
}
