//! The chunked form on tensor cores against the definition in float64, over the ranges that it must carry.
use super::{CARD, run_on};
use crate::call::{Call, Gates, State, View, ViewMut};
use crate::compare::{Tensor, compare};
use crate::heads::{HEAD_DIM, HeadMap, Heads};
use crate::inputs::{Family, Inputs};
use crate::layout::{StateLayout, Strides};
use crate::policy::Card;
use crate::reference::reference_f64;
use crate::{Kernel, PathChoice, Policy};

/// Errors of output and state, relative to the largest value of each head.
const OUT_BAR: f64 = 3e-6;
const STATE_BAR: f64 = 4e-6;

/// Floats on 16 bytes, since vectors move through them.
fn aligned(values: &[f32]) -> Vec<[f32; 4]> {
    // The allocator gives vectors of this size on 16 bytes.
    let quads: Vec<[f32; 4]> =
        values.chunks(4).map(|quad| std::array::from_fn(|i| quad.get(i).copied().unwrap_or(0.0))).collect();
    assert!(quads.as_ptr().addr().is_multiple_of(16) || quads.is_empty());
    quads
}

#[derive(Debug, PartialEq)]
struct Output {
    out: Vec<f32>,
    state: Vec<f32>,
}

fn run_limited(inputs: &Inputs, order: u64, max_scratch_bytes: usize) -> Output {
    let (heads, tokens) = (inputs.heads, inputs.tokens);
    let (keys, values) = (Strides::dense(heads.num_k_heads, HEAD_DIM), Strides::dense(heads.num_v_heads, HEAD_DIM));
    let scalars = Strides::dense(heads.num_v_heads, 1);
    let (q, k, v) = (aligned(&inputs.q), aligned(&inputs.k), aligned(&inputs.v));
    let mut out = aligned(&vec![f32::NAN; inputs.v.len()]);
    let mut state = inputs.state.clone();
    let gates = Gates::Log { g: View::new(&inputs.g, scalars), beta: View::new(&inputs.beta, scalars) };
    let call = Call::new(
        heads,
        tokens,
        View::new(q.as_flattened(), keys),
        View::new(k.as_flattened(), keys),
        View::new(v.as_flattened(), values),
        gates,
        ViewMut::new(out.as_flattened_mut(), values),
    )
    .scale(inputs.scale)
    .state(State { data: &mut state, layout: StateLayout::key_major(&heads) });
    let policy = Policy { max_scratch_bytes, ..Policy::with_path(PathChoice::Forced(Kernel::ChunkedTensor)) };
    // Orders in turn: as on Hopper; on a card with enough shared memory to copy two chunks ahead; on the smallest.
    let card = match order % 3 {
        0 => Card::new(90, CARD.multiprocessors, 227 << 10),
        1 => Card::new(80, CARD.multiprocessors, 227 << 10),
        _ => Card::new(80, CARD.multiprocessors, 99 << 10),
    };
    run_on(&card, call, &policy, order).unwrap();
    Output { out: out.as_flattened().to_vec(), state }
}

fn run(inputs: &Inputs) -> Output {
    run_limited(inputs, 0, usize::MAX)
}

#[track_caller]
fn errors(inputs: &Inputs, output: &Output) -> (f64, f64) {
    let expected = reference_f64(inputs);
    let out = compare(Tensor::Out, &inputs.heads, &expected.out, &output.out);
    let state = compare(Tensor::State, &inputs.heads, &expected.state, &output.state);
    assert_eq!((out.not_finite, state.not_finite), (0, 0), "{:?} {:?}", out.worst, state.worst);
    (out.relative_by_head, state.relative_by_head)
}

#[track_caller]
fn assert_errors(what: &str, inputs: &Inputs, factor: f64) {
    let (out, state) = errors(inputs, &run(inputs));
    println!("{what}: {out:.1e} {state:.1e}");
    assert!(out <= factor * OUT_BAR && state <= factor * STATE_BAR, "{what}: {out:.1e} {state:.1e}");
}

fn heads(values_per_key: usize, map: HeadMap) -> Heads {
    Heads::new(1, values_per_key, map).unwrap()
}

fn one_head(tokens: usize, family: Family, seed: u64) -> Inputs {
    Inputs::seeded(heads(1, HeadMap::Grouped), tokens, family, seed)
}

#[test]
fn lengths_around_the_chunk() {
    for tokens in [0, 1, 2, 31, 32, 33, 64, 65, 95, 130] {
        assert_errors(&format!("{tokens} tokens"), &one_head(tokens, Family::Base, 7 + tokens as u64), 1.0);
    }
}

#[test]
fn every_ratio_and_map() {
    for ratio in 1..=4 {
        for map in [HeadMap::Grouped, HeadMap::Tiled] {
            let inputs = Inputs::seeded(Heads::new(2, 2 * ratio, map).unwrap(), 37, Family::Base, 3);
            assert_errors(&format!("{ratio} {map:?}"), &inputs, 1.0);
        }
    }
}

#[test]
fn families() {
    for family in [
        Family::Bench,
        Family::Strong,
        Family::Reset,
        Family::Repeat,
        Family::Hard,
        Family::Slow,
        Family::Real,
        Family::Beta,
        Family::Outlier,
    ] {
        assert_errors(&family.to_string(), &Inputs::seeded(heads(2, HeadMap::Tiled), 160, family, 9), 1.0);
    }
    // By the fallback.
    for family in [Family::Positive, Family::Unnormalised] {
        assert_errors(&family.to_string(), &one_head(16, family, 9), 30.0);
    }
}

/// The state's error does not grow with the prompt.
#[test]
fn a_longer_prompt() {
    for family in [Family::Bench, Family::Hard] {
        assert_errors(&format!("{family}, 1,024 tokens"), &one_head(1024, family, 21), 1.0);
    }
}

#[test]
fn gates_as_low_as_they_get() {
    for gate in [-0.0, -2.0, -20.0, -88.0, -100.0, -104.0, -200.0, -1e3, -3e38, f32::NEG_INFINITY] {
        let mut inputs = one_head(70, Family::Base, 2);
        inputs.g.fill(gate);
        assert_errors(&format!("gate {gate}"), &inputs, 1.0);
        let mut inputs = one_head(100, Family::Base, 4);
        for g in &mut inputs.g {
            *g *= 0.1;
        }
        for token in [5, 70] {
            inputs.g[token] = gate;
        }
        assert_errors(&format!("one gate of {gate}"), &inputs, 1.0);
    }
}

/// Whether the two halves of the columns, which the scan gives up each by itself, are the fallback's, for all value heads.
fn given_up(inputs: &Inputs, output: &Output) -> [bool; 2] {
    let mut sequential = Output { out: vec![0.0; output.out.len()], state: inputs.state.clone() };
    let call = inputs.call(&mut sequential.out, &mut sequential.state);
    run_on(&CARD, call, &Policy::with_path(PathChoice::Forced(Kernel::RecurrentByColumn)), 0).unwrap();
    [0, 1].map(|half| {
        let rows = output.state.chunks_exact(HEAD_DIM).zip(sequential.state.chunks_exact(HEAD_DIM));
        rows.into_iter().all(|(a, b)| a[64 * half..][..64] == b[64 * half..][..64])
    })
}

/// A large state that is forgotten within a chunk, and values far below it.
#[test]
fn a_state_forgotten_over_several_tokens() {
    for gate in [-1.0, -15.0, -60.0] {
        for exponent in [6, 16, 40, 100] {
            let mut inputs = one_head(70, Family::Base, 4);
            inputs.state.iter_mut().for_each(|s| *s *= 2f32.powi(exponent));
            inputs.g[32..64].fill(gate);
            for order in 0..2 {
                let output = run_limited(&inputs, order, usize::MAX);
                let (out, state) = errors(&inputs, &output);
                println!("2^{exponent}, gates of {gate}, order {order}: {out:.1e} {state:.1e}");
                assert!(out <= OUT_BAR && state <= STATE_BAR, "2^{exponent} {gate} {order}: {out:.1e} {state:.1e}");
                assert_eq!(given_up(&inputs, &output), [exponent > 6; 2], "2^{exponent} {gate} {order}");
            }
        }
    }
}

/// The halves of a head's columns are given up each by itself, and in segments each by itself too.
#[test]
fn a_half_that_is_given_up_leaves_the_other_its_bits() {
    let mut inputs = one_head(70, Family::Base, 4);
    inputs.g[..32].fill(-2.0);
    let plain = run(&inputs);
    assert_eq!(given_up(&inputs, &plain), [false; 2]);
    for row in inputs.state.chunks_exact_mut(HEAD_DIM) {
        row[64..].iter_mut().for_each(|s| *s *= 2f32.powi(60));
    }
    for order in 0..3 {
        let output = run_limited(&inputs, order, usize::MAX);
        assert_eq!(given_up(&inputs, &output), [false, true], "order {order}");
        let (out, state) = errors(&inputs, &output);
        assert!(out <= OUT_BAR && state <= STATE_BAR, "order {order}: {out:.1e} {state:.1e}");
        if order == 0 {
            let rows = output.state.chunks_exact(HEAD_DIM).zip(plain.state.chunks_exact(HEAD_DIM));
            rows.into_iter().for_each(|(a, b)| assert_eq!(a[..64], b[..64]));
        }
    }
    let chunk = kernels_gpu::kernels::chunk_tensor::scratch_len(32, 1, 1) * 4;
    let (out, state) = errors(&inputs, &run_limited(&inputs, 0, 2 * chunk));
    assert!(out <= OUT_BAR && state <= STATE_BAR, "in segments: {out:.1e} {state:.1e}");
}

/// What comes in ordinary prompts is not given up: that costs time.
#[test]
fn ordinary_prompts_are_not_given_up() {
    for family in [Family::Bench, Family::Base, Family::Hard, Family::Slow, Family::Real, Family::Outlier, Family::Tiny]
    {
        for from_zeros in [false, true] {
            let mut inputs = one_head(130, family, 5);
            if from_zeros {
                inputs.state.fill(0.0);
            }
            assert_eq!(given_up(&inputs, &run(&inputs)), [false; 2], "{family}, from zeros: {from_zeros}");
        }
    }
    // Heads that forget fast, whose columns are often small at the end of a chunk.
    for gate in [-1.0, -4.0, -10.0, -30.0, -100.0] {
        let mut inputs = one_head(130, Family::Base, 5);
        inputs.g.fill(gate);
        assert_eq!(given_up(&inputs, &run(&inputs)), [false; 2], "gates of {gate}");
    }
    // Zeros in front, and tokens that write nothing.
    let mut inputs = one_head(130, Family::Base, 5);
    inputs.state.fill(0.0);
    inputs.v[..40 * HEAD_DIM].fill(0.0);
    inputs.beta[50..100].fill(0.0);
    assert_eq!(given_up(&inputs, &run(&inputs)), [false; 2]);
    inputs.beta[..100].fill(0.0);
    assert_eq!(given_up(&inputs, &run(&inputs)), [false; 2]);
}

/// Values and state times a power of two give the same times it, also from no state.
#[test]
fn scaled_values() {
    for state in [1.0, 0.0] {
        let mut inputs = one_head(100, Family::Base, 4);
        inputs.state.iter_mut().for_each(|s| *s *= state);
        let plain = run(&inputs);
        for exponent in [-60, -40, -10, 10, 40, 60] {
            let factor = 2f32.powi(exponent);
            let scaled = |values: &[f32]| values.iter().map(|value| value * factor).collect::<Vec<_>>();
            let other = run(&Inputs { v: scaled(&inputs.v), state: scaled(&inputs.state), ..inputs.clone() });
            assert!(
                other == Output { out: scaled(&plain.out), state: scaled(&plain.state) },
                "{exponent}, state {state}"
            );
        }
    }
}

#[test]
fn scaled_keys_and_queries() {
    let inputs = one_head(100, Family::Base, 4);
    for exponent in [-30, -6, 6, 30] {
        let mut inputs = inputs.clone();
        inputs.q.iter_mut().for_each(|q| *q *= 2f32.powi(exponent));
        assert_errors(&format!("q times 2^{exponent}"), &inputs, 1.0);
    }
    for exponent in [-6, -3] {
        let mut inputs = inputs.clone();
        inputs.k.iter_mut().for_each(|k| *k *= 2f32.powi(exponent));
        assert_errors(&format!("k times 2^{exponent}"), &inputs, 1.0);
    }
}

/// Values that grow, or shrink, by 2^20 in the middle of the prompt.
#[test]
fn values_that_jump() {
    for exponent in [-20, 20] {
        for state in [0.0, 1.0] {
            let mut inputs = one_head(160, Family::Base, 4);
            inputs.v[70 * HEAD_DIM..].iter_mut().for_each(|v| *v *= 2f32.powi(exponent));
            inputs.state.iter_mut().for_each(|s| *s *= state);
            // Of a final state that is small beside what the chunks before it held, fewer bits are left.
            assert_errors(&format!("a jump by 2^{exponent}, state {state}"), &inputs, 2.5);
        }
    }
    // A state that is forgotten, and small values after it: the scale has to grow.
    let mut inputs = one_head(320, Family::Base, 4);
    inputs.v[70 * HEAD_DIM..].iter_mut().for_each(|v| *v *= 2f32.powi(-20));
    inputs.g[70] = -60.0;
    let (_, state) = errors(&inputs, &run(&inputs));
    println!("state after small values: {state:.1e}");
    assert!(state <= STATE_BAR, "{state:.1e}");
}

/// Keys that are all one unit vector, up to the strongest step.
#[test]
fn repeated_keys() {
    for beta in [0.5, 1.0, 1.7, 1.8, 1.9, 2.0] {
        let mut inputs = one_head(130, Family::Base, 6);
        let key = inputs.k[..HEAD_DIM].to_vec();
        for row in inputs.k.chunks_exact_mut(HEAD_DIM) {
            row.copy_from_slice(&key);
        }
        inputs.g.fill(0.0);
        inputs.beta.fill(beta);
        // Nothing forgets an error, and from 1.8 on little damps it: the fallback takes the head.
        assert_errors(&format!("repeated keys, beta {beta}"), &inputs, 1.0);
        assert_eq!(given_up(&inputs, &run(&inputs)), [beta >= 1.8; 2], "beta {beta}");
    }
}

/// What is out of range goes token by token, the other heads do not.
#[test]
fn out_of_range_takes_the_fallback() {
    let heads = Heads::new(1, 2, HeadMap::Grouped).unwrap();
    let inputs = Inputs::seeded(heads, 70, Family::Base, 8);
    let plain = run(&inputs);
    // One strength of one head: the other head keeps its bits.
    let mut strong = inputs.clone();
    strong.beta[2 * 40] = 2.5;
    let output = run(&strong);
    let (out, state) = errors(&strong, &output);
    assert!(out <= 1e-5 && state <= 1e-5, "{out:.1e} {state:.1e}");
    let half = HEAD_DIM * HEAD_DIM;
    assert_eq!(output.state[half..], plain.state[half..]);
    // The fallback's bits are the recurrent kernel's.
    let mut long_keys = inputs.clone();
    long_keys.k[50 * HEAD_DIM..51 * HEAD_DIM].iter_mut().for_each(|k| *k *= 3.0);
    long_keys.beta.iter_mut().for_each(|beta| *beta *= 0.1);
    let (out, state) = errors(&long_keys, &run(&long_keys));
    assert!(out <= 1e-5 && state <= 1e-5, "{out:.1e} {state:.1e}");
    // What is not a number stays in its column.
    let mut poisoned = inputs.clone();
    poisoned.v[33 * 2 * HEAD_DIM + 3] = f32::NAN;
    poisoned.v[33 * 2 * HEAD_DIM + 4] = f32::INFINITY;
    let output = run(&poisoned);
    let is_finite = |column: usize| output.state[..half].iter().skip(column).step_by(HEAD_DIM).all(|s| s.is_finite());
    assert_eq!([2, 3, 4, 5].map(is_finite), [true, false, false, true]);
}

#[test]
fn the_order_of_threads_changes_no_bit() {
    let inputs = Inputs::seeded(heads(3, HeadMap::Tiled), 70, Family::Real, 5);
    let of = |order| run_limited(&inputs, order, usize::MAX);
    // On Hopper; on other cards, whatever their shared memory.
    assert!(of(0) == of(3) && of(0) == of(6), "on Hopper");
    let first = of(1);
    for order in [2, 4, 5] {
        assert!(of(order) == first, "order {order}");
    }
}

#[test]
fn segments_of_any_length_stay_within_the_bars() {
    let inputs = Inputs::seeded(heads(2, HeadMap::Tiled), 130, Family::Base, 11);
    let chunk = kernels_gpu::kernels::chunk_tensor::scratch_len(32, 1, 2) * 4;
    for chunks in [1, 2, 4] {
        // Two segments' scratch takes turns.
        let (out, state) = errors(&inputs, &run_limited(&inputs, 0, 2 * chunks * chunk));
        assert!(out <= OUT_BAR && state <= STATE_BAR, "{chunks}: {out:.1e} {state:.1e}");
    }
}
