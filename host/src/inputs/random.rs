//! Random numbers that a seed names: ChaCha8, one stream a token and tensor.
//!
//! A stream of its own for each token lets threads share the work and makes a prompt's beginning independent of its
//! length. Deviates are drawn in float64 and rounded to float32 at the end, so that the last bit of a machine's `exp` and
//! `ln` all but never shows.
#![forbid(unsafe_code)]
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use rand_distr::{Distribution, StandardNormal, StandardUniform};
use rayon::prelude::*;

/// What a stream is for. The numbers are part of what a seed means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tensor {
    Q = 1,
    K = 2,
    V = 3,
    Gate = 4,
    Beta = 5,
    State = 6,
    /// What all tokens of a key head share: the centre and the factors of its keys and queries.
    Centre = 7,
    /// What all tokens of a value head share: the size of each channel.
    Channels = 8,
    /// Products for the tensor cores, a stream each.
    #[cfg(feature = "cli")]
    Products = 9,
}

/// A stream of random numbers.
pub(crate) struct Stream(ChaCha8Rng);

impl Stream {
    /// The stream of one token, or of one head where a tensor has no tokens.
    pub fn new(seed: u64, tensor: Tensor, index: usize) -> Self {
        let mut generator = ChaCha8Rng::seed_from_u64(seed);
        generator.set_stream((tensor as u64) << 56 | index as u64);
        Self(generator)
    }

    /// A standard normal deviate.
    pub fn normal(&mut self) -> f64 {
        StandardNormal.sample(&mut self.0)
    }

    /// Uniform in \[0, 1).
    pub fn uniform(&mut self) -> f64 {
        StandardUniform.sample(&mut self.0)
    }

    /// Standard normal deviates.
    pub fn normals(&mut self, count: usize) -> Vec<f64> {
        (0..count).map(|_| self.normal()).collect()
    }
}

/// Fills `data` row by row, `row` elements a token, in parallel.
pub(super) fn fill_tokens(data: &mut [f32], row: usize, fill: impl Fn(usize, &mut [f32]) + Sync) {
    data.par_chunks_mut(row).enumerate().for_each(|(token, row)| fill(token, row));
}

/// Writes `x` scaled to length 1: x / sqrt(sum x^2 + 1e-6), in float64 until the end. The 1e-6 is the usual guard of
/// q and k norms; a row of zeros stays one.
pub(super) fn write_normalised(x: &[f64], to: &mut [f32]) {
    let length = (x.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
    for (to, x) in to.iter_mut().zip(x) {
        *to = (x / length) as f32;
    }
}
