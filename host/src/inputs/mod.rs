//! Seeded inputs: contiguous tensors of one layer, and the families of gates and keys that the paths are checked with.
#![forbid(unsafe_code)]
mod families;
mod generate;
mod packed;
mod random;

pub use families::Family;
pub use packed::Packed;

use crate::call::{Call, Gates, State, View, ViewMut, default_scale};
use crate::heads::Heads;
use crate::layout::{StateLayout, Strides};

/// Inputs of one call, every tensor contiguous.
#[derive(Clone, Debug, PartialEq)]
pub struct Inputs {
    /// Head counts, sizes and map.
    pub heads: Heads,
    /// T.
    pub tokens: usize,
    /// What the output is multiplied with.
    pub scale: f32,
    /// `[T, HK, K]`.
    pub q: Vec<f32>,
    /// `[T, HK, K]`.
    pub k: Vec<f32>,
    /// `[T, HV, V]`.
    pub v: Vec<f32>,
    /// Log of the forget gate, `[T, HV]`.
    pub g: Vec<f32>,
    /// Write strength, `[T, HV]`.
    pub beta: Vec<f32>,
    /// Before the first token, `[HV][K][V]`.
    pub state: Vec<f32>,
}

impl Inputs {
    /// Inputs of one family. The same seed gives the same bits on every machine and with any number of threads, and the
    /// first tokens of a longer prompt are those of a shorter one.
    #[must_use]
    pub fn seeded(heads: Heads, tokens: usize, family: Family, seed: u64) -> Self {
        generate::generate(heads, tokens, family, seed)
    }

    /// The call over these inputs, with the default strides. `state` is set to the state before the first token here;
    /// lengths are checked when the call is run.
    ///
    /// # Panics
    /// If `state` is not as long as [`Inputs::state`].
    pub fn call<'a>(&'a self, out: &'a mut [f32], state: &'a mut [f32]) -> Call<'a> {
        self.call_first(self.tokens, out, state)
    }

    /// [`Inputs::call`] over the first `tokens` only; `out` is as long as they need.
    ///
    /// # Panics
    /// If `tokens` is above [`Inputs::tokens`], or `state` is not as long as [`Inputs::state`].
    pub fn call_first<'a>(&'a self, tokens: usize, out: &'a mut [f32], state: &'a mut [f32]) -> Call<'a> {
        assert!(tokens <= self.tokens, "{tokens} of {} tokens", self.tokens);
        state.copy_from_slice(&self.state);
        let heads = self.heads;
        let keys = Strides::dense(heads.num_k_heads, heads.head_k_dim);
        let values = Strides::dense(heads.num_v_heads, heads.head_v_dim);
        let scalars = Strides::dense(heads.num_v_heads, 1);
        let gates = Gates::Log { g: View::new(&self.g, scalars), beta: View::new(&self.beta, scalars) };
        Call::new(
            heads,
            tokens,
            View::new(&self.q, keys),
            View::new(&self.k, keys),
            View::new(&self.v, values),
            gates,
            ViewMut::new(out, values),
        )
        .scale(self.scale)
        .state(State { data: state, layout: StateLayout::key_major(&heads) })
    }

    /// Elements of the output of so many tokens.
    #[must_use]
    pub fn out_len(&self, tokens: usize) -> usize {
        tokens * self.heads.num_v_heads * self.heads.head_v_dim
    }

    /// Elements of the state.
    #[must_use]
    pub fn state_len(&self) -> usize {
        self.state.len()
    }

    /// Tensors of zeros and the default scale, to be filled.
    fn zeros(heads: Heads, tokens: usize) -> Self {
        let keys = tokens * heads.num_k_heads * heads.head_k_dim;
        let scalars = tokens * heads.num_v_heads;
        Self {
            heads,
            tokens,
            scale: default_scale(&heads),
            q: vec![0.0; keys],
            k: vec![0.0; keys],
            v: vec![0.0; scalars * heads.head_v_dim],
            g: vec![0.0; scalars],
            beta: vec![0.0; scalars],
            state: vec![0.0; heads.num_v_heads * heads.head_k_dim * heads.head_v_dim],
        }
    }
}

#[cfg(all(test, feature = "cli"))]
mod tests {
    use super::*;
    use crate::heads::HeadMap;
    use clap::ValueEnum;

    fn heads() -> Heads {
        Heads::new(2, 10, HeadMap::Tiled).unwrap()
    }

    /// 64-bit FNV-1a over the bits of every tensor.
    fn fingerprint(inputs: &Inputs) -> u64 {
        [&inputs.q, &inputs.k, &inputs.v, &inputs.g, &inputs.beta, &inputs.state]
            .into_iter()
            .flatten()
            .flat_map(|value| value.to_bits().to_le_bytes())
            .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
    }

    #[test]
    fn the_same_seed_gives_the_same_bits() {
        for &family in Family::value_variants() {
            let one = fingerprint(&Inputs::seeded(heads(), 7, family, 5));
            assert_eq!(one, fingerprint(&Inputs::seeded(heads(), 7, family, 5)), "{family}");
            assert_ne!(one, fingerprint(&Inputs::seeded(heads(), 7, family, 6)), "{family}");
        }
    }

    #[test]
    fn a_shorter_prompt_is_the_beginning_of_a_longer_one() {
        for &family in Family::value_variants() {
            let (short, long) = (Inputs::seeded(heads(), 3, family, 5), Inputs::seeded(heads(), 70, family, 5));
            assert_eq!(short.state, long.state, "{family}");
            for (short, long) in [
                (&short.q, &long.q),
                (&short.k, &long.k),
                (&short.v, &long.v),
                (&short.g, &long.g),
                (&short.beta, &long.beta),
            ] {
                assert!(short.iter().zip(long).all(|(a, b)| a.to_bits() == b.to_bits()), "{family}");
            }
        }
    }

    /// Numbers in reports name a seed, so what a seed means may not drift, not even with a new version of a crate.
    #[test]
    fn what_a_seed_means_is_pinned() {
        let got: Vec<(String, u64)> = Family::value_variants()
            .iter()
            .map(|&family| (family.to_string(), fingerprint(&Inputs::seeded(heads(), 7, family, 1))))
            .collect();
        let pinned: Vec<(String, u64)> =
            PINNED.iter().map(|&(name, fingerprint)| (name.to_owned(), fingerprint)).collect();
        assert_eq!(got, pinned);
    }

    const PINNED: &[(&str, u64)] = &[
        ("bench", 0x4fa0_8a83_aa06_0097),
        ("base", 0x5b26_76b7_0c6e_67ed),
        ("strong", 0xeab6_f5a7_366c_c92a),
        ("reset", 0x3521_96b8_00da_d273),
        ("repeat", 0x1297_96f9_b454_5113),
        ("hard", 0x20bf_e3bd_e0b5_cfec),
        ("slow", 0xa924_f76a_50b0_57a0),
        ("real", 0xefaf_2630_2667_9836),
        ("beta", 0xc27c_2839_6fc2_4831),
        ("outlier", 0x4327_83ed_a04e_c3b2),
        ("positive", 0xf7ef_3651_f306_26bf),
    ];

    #[test]
    fn numbers_are_what_the_call_allows() {
        for &family in Family::value_variants() {
            let inputs = Inputs::seeded(heads(), 80, family, 3);
            assert!(inputs.g.iter().all(|g| !g.is_nan() && *g < f32::INFINITY), "{family}");
            assert!(inputs.beta.iter().all(|beta| (0.0..=2.0).contains(beta)), "{family}");
            for tensor in [&inputs.q, &inputs.k, &inputs.v, &inputs.state] {
                assert!(tensor.iter().all(|value| value.is_finite()), "{family}");
            }
        }
    }
}
