//! A whole call in float64: batches, packed sequences, element types, norm, gates of every kind, pools of states.
//!
//! Naive on purpose, as [`crate::reference`] is, and shares no code with it or with a path: its own index arithmetic, its own
//! gates and norm, the standard library's functions. Nothing is rounded on the way: a raw gate is not that of a path, which
//! rounds it to FP32, but the one that the formula has.
#![forbid(unsafe_code)]
use crate::call::{Call, Decay, Gates, QkNorm, States, View};
use crate::layout::{StateLayout, StateOrder};
use crate::sequences::Sequences;
use rayon::prelude::*;

/// What one sequence gives.
#[derive(Clone, Debug, PartialEq)]
pub struct SequenceExpected {
    /// `[tokens, HV, V]`, scale applied; zeros for padding.
    pub out: Vec<f64>,
    /// `[HV][K][V]` after the last token; None for padding.
    pub state: Option<Vec<f64>>,
}

/// Every sequence of `call`, which is valid, in order.
#[must_use]
pub fn reference_batch_f64(call: &Call<'_>) -> Vec<SequenceExpected> {
    let places: Vec<(usize, usize, usize)> = match call.sequences {
        Sequences::Uniform { batch, tokens } => (0..batch).map(|sequence| (sequence, 0, tokens)).collect(),
        Sequences::Varlen { cu_seqlens } => {
            cu_seqlens.windows(2).map(|ends| (0, ends[0] as usize, (ends[1] - ends[0]) as usize)).collect()
        }
    };
    // Sequences do not see each other, so they may run at once.
    places.into_par_iter().enumerate().map(|(index, place)| sequence(call, index, place)).collect()
}

fn sequence(call: &Call<'_>, index: usize, (batch, first, tokens): (usize, usize, usize)) -> SequenceExpected {
    let heads = &call.heads;
    let (keys, values) = (heads.head_k_dim, heads.head_v_dim);
    let mut out = vec![0.0; tokens * heads.num_v_heads * values];
    let slot = call.indices.map_or(index as i64, |indices| indices.at(index));
    if slot < 0 {
        return SequenceExpected { out, state: None };
    }
    let mut states = Vec::new();
    for head in 0..heads.num_v_heads {
        let mut s = initial(call, slot as usize, head);
        let k_head = heads.k_head(head);
        for t in 0..tokens {
            let token = first + t;
            let row = |view: &View<'_>, head: usize, dim: usize| -> Vec<f64> {
                let start = batch * view.batch_stride + token * view.strides.token + head * view.strides.head;
                (0..dim).map(|i| f64::from(view.data.at(start + i))).collect()
            };
            let (q, k) = (normed(row(&call.q, k_head, keys), call.norm), normed(row(&call.k, k_head, keys), call.norm));
            let v = row(&call.v, head, values);
            let one = |view: &View<'_>| row(view, head, 1)[0];
            let (decay, beta) = match &call.gates {
                Gates::Log { g, beta } => (one(g).exp(), one(beta)),
                Gates::Linear { decay, beta } => (one(decay), one(beta)),
                Gates::Raw { a, b, decay, dt_bias, allow_neg_eigval } => {
                    let rate = match decay {
                        Decay::ALog(values) => f64::from(values[head]).exp(),
                        Decay::NegExpALog(values) => -f64::from(values[head]),
                    };
                    let x = one(a) + f64::from(dt_bias[head]);
                    let softplus = if x > 20.0 { x } else { x.exp().ln_1p() };
                    let strength = 1.0 / (1.0 + (-one(b)).exp());
                    ((-rate * softplus).exp(), if *allow_neg_eigval { 2.0 * strength } else { strength })
                }
            };
            for element in &mut s {
                *element *= decay;
            }
            let sum = |s: &[f64], x: &[f64], column: usize| -> f64 {
                (0..keys).map(|row| s[row * values + column] * x[row]).sum()
            };
            for column in 0..values {
                let d = beta * (v[column] - sum(&s, &k, column));
                for (row, k) in k.iter().enumerate() {
                    s[row * values + column] += k * d;
                }
                out[(t * heads.num_v_heads + head) * values + column] = f64::from(call.scale) * sum(&s, &q, column);
            }
        }
        states.extend(s);
    }
    SequenceExpected { out, state: Some(states) }
}

/// `[K][V]` of a head in a slot.
fn initial(call: &Call<'_>, slot: usize, head: usize) -> Vec<f64> {
    let (keys, values) = (call.heads.head_k_dim, call.heads.head_v_dim);
    let (data, layout): (&[f32], StateLayout) = match &call.states {
        States::InPlace(state) => (state.data, state.layout),
        States::Apart { initial: Some(state), .. } => (state.data, state.layout),
        States::Apart { initial: None, .. } => return vec![0.0; keys * values],
    };
    let mut s = Vec::with_capacity(keys * values);
    for row in 0..keys {
        for column in 0..values {
            let inside = match layout.order {
                StateOrder::KeyMajor => row * layout.row + column,
                StateOrder::ValueMajor => column * layout.row + row,
            };
            s.push(f64::from(data[slot * layout.slot + head * layout.head + inside]));
        }
    }
    s
}

/// x / sqrt(sum x^2 + eps).
fn normed(x: Vec<f64>, norm: QkNorm) -> Vec<f64> {
    match norm {
        QkNorm::None => x,
        QkNorm::L2 { eps } => {
            let root = (x.iter().map(|x| x * x).sum::<f64>() + f64::from(eps)).sqrt();
            x.into_iter().map(|x| if x == 0.0 { 0.0 } else { x / root }).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::{State, ViewMut};
    use crate::inputs::{Family, Inputs};
    use crate::layout::Strides;
    use crate::reference::reference_f64;
    use crate::{HeadMap, Heads};

    /// One sequence of what the other reference takes is what that gives, for any head sizes.
    #[test]
    fn one_plain_sequence_is_that_of_the_definition() {
        for map in [HeadMap::Grouped, HeadMap::Tiled] {
            let heads = Heads::new(2, 6, map).unwrap().with_dims(3, 5);
            let inputs = Inputs::seeded(heads, 7, Family::Base, 1);
            let expected = reference_f64(&inputs);
            let (mut out, mut state) = (vec![0.0; inputs.out_len(7)], vec![0.0; inputs.state_len()]);
            let [sequence] = &reference_batch_f64(&inputs.call(&mut out, &mut state))[..] else { panic!("one") };
            let near = |a: &[f64], b: &[f64]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-12);
            assert!(near(&sequence.out, &expected.out) && near(sequence.state.as_ref().unwrap(), &expected.state));
        }
    }

    /// One token of one head, two by one, worked out by hand: k = (3, 4) is normalised to (0.6, 0.8); A_log = 0 and
    /// a + dt_bias = ln(e - 1) make softplus 1 and e^g = 1 / e; b = 0 makes beta 1 / 2.
    #[test]
    fn norm_and_raw_gates_by_hand() {
        let heads = Heads::new(1, 1, HeadMap::Grouped).unwrap().with_dims(2, 1);
        let (one, two) = (Strides::dense(1, 1), Strides::dense(1, 2));
        let (q, k, v, b) = ([3.0f32, 4.0], [3.0f32, 4.0], [1.0f32], [0.0f32]);
        let a = [(std::f64::consts::E - 1.0).ln() as f32 - 0.25];
        let (mut out, mut state) = ([0.0f32], [1.0f32, 2.0]);
        let call = Call::new(
            heads,
            1,
            View::new(&q, two),
            View::new(&k, two),
            View::new(&v, one),
            Gates::Raw {
                a: View::new(&a, one),
                b: View::new(&b, one),
                decay: Decay::ALog(&[0.0]),
                dt_bias: &[0.25],
                allow_neg_eigval: false,
            },
            ViewMut::new(&mut out, one),
        )
        .scale(1.0)
        .qk_norm(QkNorm::L2 { eps: 0.0 })
        .state(State { data: &mut state, layout: StateLayout::key_major(&heads) });
        let [sequence] = &reference_batch_f64(&call)[..] else { panic!("one") };
        let decay = (-1.0f64).exp();
        let d = 0.5 * (1.0 - decay * (0.6 + 1.6));
        let s = [decay + 0.6 * d, 2.0 * decay + 0.8 * d];
        let expected = [s[0], s[1], 0.6 * s[0] + 0.8 * s[1]];
        let state = sequence.state.as_ref().unwrap();
        for (actual, expected) in [state[0], state[1], sequence.out[0]].into_iter().zip(expected) {
            assert!((actual - expected).abs() < 1e-7, "{actual} {expected}");
        }
    }
}
