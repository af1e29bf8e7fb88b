//! Where the numbers of a product come from, a regime for each way in which rounding can go wrong.
#![forbid(unsafe_code)]
use cuda_std::float::{pack_f16x2, unpack_f16x2};
use serde::Serialize;

use super::fragments::{COLUMNS, DEPTH, ROWS};
use crate::inputs::Stream;

/// A product's matrices: bits of halves, and floats.
#[derive(Clone, Debug)]
pub(super) struct Matrices {
    pub a: [[u16; DEPTH]; ROWS],
    pub b: [[u16; COLUMNS]; DEPTH],
    pub c: [[f32; COLUMNS]; ROWS],
}

/// How a product's numbers are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Regime {
    /// Uniform in -1..1, all three.
    Normal,
    /// Small integers, whose sums are exact whatever the unit keeps.
    Exact,
    /// Any exponent that a half has, and of the addend any that the products reach.
    Wide,
    /// Halves below 2^-14 among those up to 2^-10, and addends from the subnormal ones on.
    Subnormal,
    /// Products in pairs that all but cancel, and an addend that all but cancels their sum.
    Cancelling,
    /// Addends 2^-4 to 2^30 times the products, so that these fall off at the end.
    Dominated,
    /// Zeros of either sign, with few other numbers among them.
    Zeros,
    /// Halves up to the largest, and addends up to 2^100.
    Large,
    /// What the kernels multiply: first and second parts of floats, on a sum of such products.
    Parts,
    /// Infinities and NaNs among numbers. NaNs count as one, whatever their bits.
    Infinite,
}

impl Regime {
    /// Every one of them.
    pub const ALL: [Self; 10] = [
        Self::Normal,
        Self::Exact,
        Self::Wide,
        Self::Subnormal,
        Self::Cancelling,
        Self::Dominated,
        Self::Zeros,
        Self::Large,
        Self::Parts,
        Self::Infinite,
    ];

    /// One product's matrices.
    pub(super) fn draw(self, random: &mut Stream) -> Matrices {
        let mut matrices = Matrices {
            a: [(); ROWS].map(|()| [(); DEPTH].map(|()| self.factor(random))),
            b: [(); DEPTH].map(|()| [(); COLUMNS].map(|()| self.factor(random))),
            c: [[0.0; COLUMNS]; ROWS],
        };
        if self == Self::Cancelling {
            cancel_pairs(&mut matrices, random);
        }
        let (a, b) = (matrices.a, matrices.b);
        for (row, of_row) in matrices.c.iter_mut().enumerate() {
            for (column, c) in of_row.iter_mut().enumerate() {
                let sum = || (0..DEPTH).map(|k| float(a[row][k]) * float(b[k][column])).sum::<f64>();
                *c = self.addend(random, sum);
            }
        }
        matrices
    }

    /// The bits of one half.
    fn factor(self, random: &mut Stream) -> u16 {
        match self {
            Self::Normal | Self::Dominated | Self::Cancelling => half(2.0 * random.uniform() - 1.0),
            Self::Exact => half((random.uniform() * 33.0).floor() - 16.0),
            Self::Wide => bits(random, 1, 31),
            Self::Subnormal => {
                let field = if random.uniform() < 0.5 { 1 } else { 5 };
                bits(random, 0, field)
            }
            Self::Zeros if random.uniform() < 0.8 => sign(random) << 15,
            Self::Zeros => bits(random, 0, 31),
            Self::Large => bits(random, 24, 31),
            Self::Parts => {
                let value = (random.normal() * 4.0) as f32;
                let first = half(f64::from(value));
                if random.uniform() < 0.5 { first } else { half(f64::from(value) - float(first)) }
            }
            Self::Infinite if random.uniform() < 0.02 => {
                let fraction = if random.uniform() < 0.3 { 0x200 } else { 0 };
                sign(random) << 15 | 0x7c00 | fraction
            }
            Self::Infinite => half(random.normal()),
        }
    }

    /// One addend, of products whose sum `sum` gives.
    fn addend(self, random: &mut Stream, sum: impl Fn() -> f64) -> f32 {
        match self {
            Self::Normal => (2.0 * random.uniform() - 1.0) as f32,
            Self::Exact => ((random.uniform() * 4097.0).floor() - 2048.0) as f32,
            Self::Wide => power(random, -60.0, 40.0),
            Self::Subnormal if random.uniform() < 0.2 => f32::from_bits((random.uniform() * 8_388_608.0) as u32),
            Self::Subnormal => power(random, -60.0, -20.0),
            Self::Cancelling => {
                let off = 2f64.powf(-28.0 * random.uniform());
                (-sum() * (1.0 + if random.uniform() < 0.5 { off } else { 0.0 })) as f32
            }
            Self::Dominated => power(random, -4.0, 30.0),
            Self::Zeros if random.uniform() < 0.5 => f32::from_bits(u32::from(sign(random)) << 31),
            Self::Zeros => power(random, -50.0, 30.0),
            Self::Large => power(random, 0.0, 100.0),
            Self::Parts => (random.normal() * 64.0) as f32,
            Self::Infinite if random.uniform() < 0.05 => {
                [f32::INFINITY, f32::NEG_INFINITY, f32::NAN][(3.0 * random.uniform()) as usize]
            }
            Self::Infinite => random.normal() as f32,
        }
    }
}

/// Makes every second product of a sum the negative of the one before, but for the last bits of some.
fn cancel_pairs(matrices: &mut Matrices, random: &mut Stream) {
    for row in &mut matrices.a {
        for pair in row.as_chunks_mut::<2>().0 {
            pair[1] = pair[0] ^ (random.uniform() * 4.0) as u16;
        }
    }
    for pair in matrices.b.as_chunks_mut::<2>().0 {
        pair[1] = pair[0].map(|half| half ^ 0x8000);
    }
}

/// A half's bits, rounded to the nearest.
fn half(value: f64) -> u16 {
    pack_f16x2(value as f32, 0.0) as u16
}

/// A half's value.
fn float(bits: u16) -> f64 {
    unpack_f16x2(bits.into()).0.into()
}

fn sign(random: &mut Stream) -> u16 {
    (random.uniform() * 2.0) as u16
}

/// A half of either sign whose exponent's field is from `low` up to below `high`.
fn bits(random: &mut Stream, low: u16, high: u16) -> u16 {
    let field = low + (random.uniform() * f64::from(high - low)) as u16;
    sign(random) << 15 | field << 10 | (random.uniform() * 1024.0) as u16
}

/// A float of either sign whose logarithm is uniform between `low` and `high`.
fn power(random: &mut Stream, low: f64, high: f64) -> f32 {
    let magnitude = 2f64.powf(low + (high - low) * random.uniform());
    (if sign(random) == 1 { -magnitude } else { magnitude }) as f32
}
