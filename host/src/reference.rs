//! The recurrence token by token in float64: what every path is compared with.
//!
//! Naive on purpose and shared with no path: its own loops and the standard library's exp, so that a mistake in a kernel
//! cannot hide here. Per value head, with the state S of K rows x V columns:
//!
//! ```text
//! S_t = e^(g_t) S_(t-1) + k_t d_t^T,   d_t = beta_t (v_t - e^(g_t) S_(t-1)^T k_t),   o_t = scale * S_t^T q_t
//! ```
//!
//! # By hand
//! Two by two, three tokens with k = \[1, 0\], v = \[1, 1\], beta = 1/2, e^g = 1/2, from S = I:
//!
//! ```
//! use host::inputs::Inputs;
//! use host::{HeadMap, Heads};
//!
//! # fn main() -> host::Result<()> {
//! let inputs = Inputs {
//!     heads: Heads::new(1, 1, HeadMap::Grouped)?.with_dims(2, 2),
//!     tokens: 3,
//!     scale: 1.0,
//!     q: vec![1.0, 0.0, 0.0, 1.0, 1.0, 1.0],
//!     k: [1.0, 0.0].repeat(3),
//!     v: vec![1.0; 6],
//!     g: vec![-std::f32::consts::LN_2; 3],
//!     beta: vec![0.5; 3],
//!     state: vec![1.0, 0.0, 0.0, 1.0],
//! };
//! let expected = host::reference::reference_f64(&inputs);
//! // 1: S = I / 2,                     v - S^T k = [1/2, 1],        S += k [1/4, 1/2]     = [[3/4, 1/2], [0, 1/2]]
//! // 2: S = [[3/8, 1/4], [0, 1/4]],    v - S^T k = [5/8, 3/4],      S += k [5/16, 3/8]    = [[11/16, 5/8], [0, 1/4]]
//! // 3: S = [[11/32, 5/16], [0, 1/8]], v - S^T k = [21/32, 11/16],  S += k [21/64, 11/32] = [[43/64, 21/32], [0, 1/8]]
//! let by_hand = [[3.0 / 4.0, 1.0 / 2.0], [0.0, 1.0 / 4.0], [43.0 / 64.0, 21.0 / 32.0 + 1.0 / 8.0]];
//! // The gate is ln(1/2) rounded to float32, hence the bar.
//! for (out, by_hand) in expected.out.iter().zip(by_hand.as_flattened()) {
//!     assert!((out - by_hand).abs() < 1e-7, "{out} is not {by_hand}");
//! }
//! for (state, by_hand) in expected.state.iter().zip([43.0 / 64.0, 21.0 / 32.0, 0.0, 1.0 / 8.0]) {
//!     assert!((state - by_hand).abs() < 1e-7, "{state} is not {by_hand}");
//! }
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]
use std::ops::Range;

use rayon::prelude::*;

use crate::inputs::Inputs;

/// What a run over all tokens gives.
#[derive(Clone, Debug, PartialEq)]
pub struct Expected {
    /// `[tokens, HV, V]`, scale applied.
    pub out: Vec<f64>,
    /// `[HV][K][V]` after the last token.
    pub state: Vec<f64>,
}

/// What runs over the first tokens give, for several counts of them. The outputs of a shorter prompt are the first
/// outputs of a longer one, so one run serves all.
#[derive(Clone, Debug)]
pub struct Prefixes {
    /// Elements of a token's output.
    row: usize,
    /// Of the longest.
    out: Vec<f64>,
    /// By length, ascending.
    states: Vec<(usize, Vec<f64>)>,
}

impl Prefixes {
    /// The output `[tokens, HV, V]` and the state `[HV][K][V]` after so many tokens, if they were asked for.
    #[must_use]
    pub fn at(&self, tokens: usize) -> Option<(&[f64], &[f64])> {
        let (_, state) = self.states.iter().find(|(length, _)| *length == tokens)?;
        Some((&self.out[..tokens * self.row], state))
    }
}

/// The recurrence over all tokens of `inputs`, for any head sizes.
#[must_use]
pub fn reference_f64(inputs: &Inputs) -> Expected {
    let mut run = reference_f64_at(inputs, &[inputs.tokens]);
    Expected { out: run.out, state: run.states.pop().expect("one length, one state").1 }
}

/// The recurrence over the longest of `lengths`, with the state kept at each of them.
///
/// # Panics
/// If a length is above `inputs.tokens`.
#[must_use]
pub fn reference_f64_at(inputs: &Inputs, lengths: &[usize]) -> Prefixes {
    let (key_dim, value_dim) = (inputs.heads.head_k_dim, inputs.heads.head_v_dim);
    let mut lengths = lengths.to_vec();
    lengths.sort_unstable();
    lengths.dedup();
    assert!(lengths.iter().all(|&length| length <= inputs.tokens), "a length above the {} tokens", inputs.tokens);

    let row = inputs.heads.num_v_heads * value_dim;
    let mut state: Vec<f64> = inputs.state.iter().map(|&s| f64::from(s)).collect();
    let mut run = Prefixes { row, out: Vec::new(), states: Vec::new() };
    let mut done = 0;
    for length in lengths {
        // Value heads do not see each other, so they may run at once.
        let outs: Vec<Vec<f64>> = state
            .par_chunks_mut(key_dim * value_dim)
            .enumerate()
            .map(|(v_head, s)| advance(inputs, v_head, done..length, s))
            .collect();
        run.out.resize(length * row, 0.0);
        run.out[done * row..].par_chunks_mut(row).enumerate().for_each(|(t, out)| {
            for (out, head) in out.chunks_exact_mut(value_dim).zip(&outs) {
                out.copy_from_slice(&head[t * value_dim..][..value_dim]);
            }
        });
        run.states.push((length, state.clone()));
        done = length;
    }
    run
}

/// The recurrence of one value head over some tokens: `s` `[K][V]` moves on, the outputs `[tokens][V]` come back.
fn advance(inputs: &Inputs, v_head: usize, tokens: Range<usize>, s: &mut [f64]) -> Vec<f64> {
    let heads = &inputs.heads;
    let (key_dim, value_dim) = (heads.head_k_dim, heads.head_v_dim);
    let k_head = heads.k_head(v_head);
    let mut outs = vec![0.0; tokens.len() * value_dim];
    let mut d = vec![0.0; value_dim];
    for (t, o) in tokens.zip(outs.chunks_exact_mut(value_dim)) {
        let q = &inputs.q[(t * heads.num_k_heads + k_head) * key_dim..][..key_dim];
        let k = &inputs.k[(t * heads.num_k_heads + k_head) * key_dim..][..key_dim];
        let v = &inputs.v[(t * heads.num_v_heads + v_head) * value_dim..][..value_dim];
        let decay = f64::from(inputs.g[t * heads.num_v_heads + v_head]).exp();
        let beta = f64::from(inputs.beta[t * heads.num_v_heads + v_head]);

        // d = beta (v - (e^g S)^T k), with S decayed in place on the way.
        d.fill(0.0);
        for (s, &k) in s.chunks_exact_mut(value_dim).zip(k) {
            let k = f64::from(k);
            for (s, d) in s.iter_mut().zip(&mut d) {
                *s *= decay;
                *d += *s * k;
            }
        }
        for (d, &v) in d.iter_mut().zip(v) {
            *d = beta * (f64::from(v) - *d);
        }
        // S = e^g S + k d^T, and o = scale S^T q.
        for ((s, &k), &q) in s.chunks_exact_mut(value_dim).zip(k).zip(q) {
            let (k, q) = (f64::from(k), f64::from(q));
            for ((s, &d), o) in s.iter_mut().zip(&d).zip(o.iter_mut()) {
                *s += k * d;
                *o += *s * q;
            }
        }
        for o in o {
            *o *= f64::from(inputs.scale);
        }
    }
    outs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::heads::{HeadMap, Heads};
    use crate::inputs::Family;

    fn small(map: HeadMap) -> Inputs {
        let heads = Heads::new(2, 6, map).unwrap().with_dims(3, 5);
        Inputs::seeded(heads, 9, Family::Base, 1)
    }

    #[test]
    fn prefixes_are_what_shorter_runs_give() {
        let inputs = small(HeadMap::Grouped);
        let run = reference_f64_at(&inputs, &[4, 0, 9]);
        for tokens in [0, 4, 9] {
            let shorter = reference_f64(&Inputs { tokens, ..inputs.clone() });
            let (out, state) = run.at(tokens).unwrap();
            assert_eq!((out, state), (&shorter.out[..], &shorter.state[..]));
        }
        assert!(run.at(5).is_none());
    }

    #[test]
    fn no_tokens_leave_the_state() {
        let inputs = Inputs { tokens: 0, ..small(HeadMap::Tiled) };
        let expected = reference_f64(&inputs);
        assert!(expected.out.is_empty());
        assert!(expected.state.iter().zip(&inputs.state).all(|(&a, &b)| a == f64::from(b)));
    }

    /// Only the head map says which key row of the state a value head writes.
    #[test]
    fn value_heads_read_the_mapped_key_head() {
        for (map, rows) in [(HeadMap::Grouped, [0, 0, 0, 1, 1, 1]), (HeadMap::Tiled, [0, 1, 0, 1, 0, 1])] {
            let heads = Heads::new(2, 6, map).unwrap().with_dims(2, 1);
            let inputs = Inputs {
                heads,
                tokens: 1,
                scale: 1.0,
                q: vec![0.0; 4],
                k: vec![1.0, 0.0, 0.0, 1.0],
                v: (1..=6).map(|head| head as f32).collect(),
                g: vec![0.0; 6],
                beta: vec![1.0; 6],
                state: vec![0.0; 12],
            };
            let state = reference_f64(&inputs).state;
            for (v_head, row) in rows.into_iter().enumerate() {
                let mut expected = [0.0; 2];
                expected[row] = (v_head + 1) as f64;
                assert_eq!(state[v_head * 2..][..2], expected, "{map:?}, value head {v_head}");
            }
        }
    }

    /// A gate of -inf forgets the state and leaves no NaN.
    #[test]
    fn a_gate_of_minus_infinity_forgets() {
        let mut inputs = small(HeadMap::Grouped);
        inputs.g[3 * 6..4 * 6].fill(f32::NEG_INFINITY);
        let from_other = Inputs { state: vec![7.0; inputs.state.len()], ..inputs.clone() };
        let (a, b) = (reference_f64(&inputs), reference_f64(&from_other));
        assert_eq!(a.state, b.state);
        assert_eq!(a.out[3 * 30..], b.out[3 * 30..]);
        assert!(a.out.iter().chain(&a.state).all(|value| value.is_finite()));
    }
}
