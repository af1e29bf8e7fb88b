//! What a lane has of the state and of sums, and the halves that tensor cores multiply.
use crate::kernels::chunk::CHUNK;
use crate::shape::HEAD_DIM;
use cuda_std::float::split_f16x2;

/// Groups of eight rows of a state, of eight tokens of a chunk.
pub const ROW_OCTETS: usize = HEAD_DIM / 8;
pub const TOKEN_OCTETS: usize = CHUNK / 8;
/// Steps of sixteen.
pub const ROW_STEPS: usize = HEAD_DIM / 16;
pub const TOKEN_STEPS: usize = CHUNK / 16;

/// A lane's part of a matrix of 16 columns by 8 rows or tokens.
pub type Sums = [f32; 4];
/// A lane's part of 16 columns by 16 rows or tokens in 16 bits.
pub type Factor = [u32; 4];
/// The lane's part of the state.
pub type State = [Sums; ROW_OCTETS];

/// Writes a loop out, since what it indexes is in registers.
macro_rules! for_each {
    ($index:ident in [$($value:literal)*] $body:block) => { $( { const $index: usize = $value; $body } )* };
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

/// The lane's part of the state in 16 bits, as products take it.
#[derive(Clone, Copy)]
pub struct Halves {
    pub high: [Factor; ROW_STEPS],
    pub low: [Factor; ROW_STEPS],
}

impl Halves {
    pub const ZERO: Self = Self { high: [[0; 4]; ROW_STEPS], low: [[0; 4]; ROW_STEPS] };

    #[inline(always)]
    pub fn of(s: &State) -> Self {
        let mut halves = Self::ZERO;
        for_each!(STEP in [0 1 2 3 4 5 6 7] {
            (halves.high[STEP], halves.low[STEP]) = split([s[2 * STEP], s[2 * STEP + 1]]);
        });
        halves
    }
}

/// The larger products apart from the smaller ones.
#[derive(Clone, Copy)]
pub struct Apart {
    pub large: Sums,
    pub small: Sums,
}

impl Apart {
    pub const ZERO: Self = Self { large: [0.0; 4], small: [0.0; 4] };
}

#[inline(always)]
pub fn totals(sums: &[Apart; TOKEN_OCTETS]) -> [Sums; TOKEN_OCTETS] {
    let mut totals = [[0.0; 4]; TOKEN_OCTETS];
    for octet in 0..TOKEN_OCTETS {
        for i in 0..4 {
            totals[octet][i] = sums[octet].large[i] + sums[octet].small[i];
        }
    }
    totals
}

pub(super) use for_each;
