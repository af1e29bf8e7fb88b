//! What a value head has of a chunk: values, and how much each token still weighs at a later one.
//!
//! A pair's decay is a product of forget gates, carried from token to token: row t is row t-1 times e^(g_t). Differences of
//! prefix sums of g, the usual way, lose small gates beside large ones and make NaN of -inf; a product does neither, and
//! e^g above 1 is as good as below. In float64 its 31 roundings do not show after the one to float32.
#![forbid(unsafe_code)]
use super::keys::Keys;
use super::{CHUNK, Pairs};
use crate::cpu::part::Inputs;
use crate::cpu::segment::{Row, row, scalar};
use pulp::{Simd, WithSimd};

/// Values and weights of a chunk.
#[derive(Clone)]
pub(super) struct Head {
    /// v.
    pub values: [Row; CHUNK],
    /// Write strength.
    pub beta: [f32; CHUNK],
    /// -beta_t decay(t, i) k_t.k_i for i < t.
    pub a: Pairs,
    /// scale decay(t, i) q_t.k_i for i <= t.
    pub p: Pairs,
    /// -beta_t decay(t, start): of the state's part of the correction.
    pub key_weight: [f32; CHUNK],
    /// scale decay(t, start): of the state's part of the output.
    pub query_weight: [f32; CHUNK],
    /// decay(end, t): of the correction in the state.
    pub end_weight: [f32; CHUNK],
    /// decay(end, start).
    pub decay: f32,
}

impl Head {
    /// Overwritten before it is read.
    pub const BLANK: Self = Self {
        values: [const { Row::BLANK }; CHUNK],
        beta: [0.0; CHUNK],
        a: [[0.0; CHUNK]; CHUNK],
        p: [[0.0; CHUNK]; CHUNK],
        key_weight: [0.0; CHUNK],
        query_weight: [0.0; CHUNK],
        end_weight: [0.0; CHUNK],
        decay: 0.0,
    };
}

/// Copies `count` tokens of value head `index` in and weighs their pairs.
pub(super) struct Read<'a> {
    pub head: &'a mut Head,
    pub keys: &'a Keys,
    pub inputs: &'a Inputs<'a>,
    pub first: usize,
    pub count: usize,
    pub index: usize,
}

impl WithSimd for Read<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { head, keys, inputs, first, count, index } = self;
        let scale = f64::from(inputs.scale);
        let mut decays = [0.0_f64; CHUNK];
        let mut from_start = 1.0_f64;
        // On their own, so that the processor has many of them on their way from memory.
        for token in 0..count {
            head.values[token].0.copy_from_slice(row(&inputs.v, first + token, index));
        }
        for token in 0..count {
            let gate = f64::from(scalar(&inputs.g, first + token, index)).exp();
            head.beta[token] = scalar(&inputs.beta, first + token, index);
            let beta = f64::from(head.beta[token]);
            // Of tokens that are not there yet, too: each of them is set before it is read.
            decays.iter_mut().for_each(|decay| *decay *= gate);
            decays[token] = 1.0;
            from_start *= gate;
            for (earlier, decay) in decays.iter().enumerate() {
                head.a[token][earlier] = (-beta * decay) as f32 * keys.kk[token][earlier];
                head.p[token][earlier] = (scale * decay) as f32 * keys.qk[token][earlier];
            }
            head.key_weight[token] = (-beta * from_start) as f32;
            head.query_weight[token] = (scale * from_start) as f32;
        }
        head.end_weight = decays.map(|decay| decay as f32);
        head.decay = from_start as f32;
    }
}
