//! Seeded inputs: contiguous tensors of one layer, and the families of gates and keys that the paths are checked with.
#![forbid(unsafe_code)]
mod families;
mod generate;
mod packed;
mod random;

pub use families::Family;
pub use packed::Packed;
#[cfg(feature = "cli")]
pub(crate) use random::{Stream, Tensor};

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

    #[test]
    fn chunked_paths_are_held_to_no_more_than_sequential_ones() {
        for &family in Family::value_variants() {
            let (out, state) = family.chunked_bars();
            assert!(out.relative <= family.bar().relative && state.relative <= family.bar().relative, "{family}");
            let looser = out.relative > 3e-6 || state.relative > 4e-6;
            assert_eq!(looser, matches!(family, Family::Repeat | Family::Beta | Family::Hard), "{family}");
        }
    }

    /// Families that differ by a power of two, or only later on, draw the same numbers.
    #[test]
    fn scaled_families_are_bench_times_a_power_of_two() {
        let of = |family| Inputs::seeded(heads(), 130, family, 4);
        let bench = of(Family::Bench);
        let times = |values: &[f32], exponent: i32| -> Vec<f32> {
            values.iter().map(|&value| (f64::from(value) * 2f64.powi(exponent)) as f32).collect()
        };
        let row = heads().num_v_heads * heads().head_v_dim;
        for (family, exponent) in [
            (Family::Tiny, -40),
            (Family::Small, -10),
            (Family::Large, 10),
            (Family::Huge, 40),
            (Family::Vanishing, -110),
        ] {
            let other = of(family);
            // A subnormal number is rounded where the other was not.
            let same = |a: &[f32], b: &[f32]| a.iter().zip(b).all(|(a, b)| (a - b).abs() <= f32::from_bits(1));
            assert!(same(&other.v, &times(&bench.v, exponent)), "{family}");
            assert!(same(&other.state, &times(&bench.state, exponent)), "{family}");
            assert_eq!((&other.q, &other.k, &other.g, &other.beta), (&bench.q, &bench.k, &bench.g, &bench.beta));
        }
        let jump = of(Family::Jump);
        for (token, (v, bench)) in jump.v.chunks(row).zip(bench.v.chunks(row)).enumerate() {
            let exponent = if (41..82).contains(&token) || token >= 123 { 20 } else { 0 };
            assert_eq!(v, times(bench, exponent), "{token}");
        }
        for (family, first) in [(Family::Forgotten, 0), (Family::Forgetting, 9)] {
            let inputs = of(family);
            let tokens = inputs.g.iter().step_by(heads().num_v_heads).enumerate();
            let forgets: Vec<usize> = tokens.filter(|(_, g)| g.is_infinite()).map(|(token, _)| token).collect();
            assert_eq!(forgets, [first], "{family}");
            assert!(inputs.state.iter().any(|s| s.abs() > 1e30), "{family}");
        }
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
        ("tiny", 0x8ad1_4ac5_9f5d_92ef),
        ("small", 0x99a8_8976_0a44_2c7f),
        ("large", 0x61a3_9486_060d_167b),
        ("huge", 0xc856_152a_6d59_b35f),
        ("vanishing", 0x5dcc_bb22_e72e_bf55),
        ("jump", 0x4fa0_8a83_aa06_0097),
        ("forgotten", 0xff35_3c18_f449_43fe),
        ("forgetting", 0x7adc_fcd4_fc2d_212c),
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
