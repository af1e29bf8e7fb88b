//! The chunked form against the definition in float64, and its promises.
use super::{run, run_with};
use crate::call::{Call, Gates, State, View, ViewMut};
use crate::compare::{Tensor, compare};
use crate::heads::{HEAD_DIM, HeadMap, Heads};
use crate::inputs::{Family, Inputs};
use crate::layout::{StateLayout, Strides};
use crate::reference::reference_f64;
use crate::{Error, Kernel, PathChoice, Policy, Reason, Result};
use kernels_gpu::kernels::chunk::scratch_len;

/// By the chunked kernels, with scratch for no more than `segment` tokens.
fn run_in_segments(call: Call<'_>, order: u64, segment: usize) -> Result<()> {
    let max_scratch_bytes = 4 * scratch_len(segment, call.heads.num_v_heads);
    run_with(call, &Policy { max_scratch_bytes, ..Policy::with_path(PathChoice::Forced(Kernel::Chunked)) }, order)
}

/// Memory on 16 bytes, since vectors move through it.
struct Aligned {
    floats: Vec<f32>,
    first: usize,
    len: usize,
}

impl Aligned {
    fn new(values: &[f32]) -> Self {
        let mut floats = vec![0.0; values.len() + 3];
        let first = (16 - floats.as_ptr() as usize % 16) % 16 / 4;
        floats[first..first + values.len()].copy_from_slice(values);
        Self { floats, first, len: values.len() }
    }

    fn get(&self) -> &[f32] {
        &self.floats[self.first..][..self.len]
    }

    fn get_mut(&mut self) -> &mut [f32] {
        &mut self.floats[self.first..][..self.len]
    }
}

#[derive(Debug, Clone, PartialEq)]
struct Output {
    out: Vec<f32>,
    state: Vec<f32>,
}

/// Tokens `from..to` of `inputs`, from `state`.
fn run_part(inputs: &Inputs, from: usize, to: usize, state: &[f32], order: u64, super_block: usize) -> Output {
    let heads = inputs.heads;
    let (keys, values) = (Strides::dense(heads.num_k_heads, HEAD_DIM), Strides::dense(heads.num_v_heads, HEAD_DIM));
    let scalars = Strides::dense(heads.num_v_heads, 1);
    let part = |data: &[f32], strides: Strides| Aligned::new(&data[from * strides.token..to * strides.token]);
    let (q, k, v) = (part(&inputs.q, keys), part(&inputs.k, keys), part(&inputs.v, values));
    let (g, beta) = (part(&inputs.g, scalars), part(&inputs.beta, scalars));
    let mut out = Aligned::new(&vec![f32::NAN; (to - from) * values.token]);
    let mut state = state.to_vec();
    let gates = Gates::Log { g: View::new(g.get(), scalars), beta: View::new(beta.get(), scalars) };
    let call = Call::new(
        heads,
        to - from,
        View::new(q.get(), keys),
        View::new(k.get(), keys),
        View::new(v.get(), values),
        gates,
        ViewMut::new(out.get_mut(), values),
    )
    .scale(inputs.scale)
    .state(State { data: &mut state, layout: StateLayout::key_major(&heads) });
    run_in_segments(call, order, super_block).unwrap();
    Output { out: out.get().to_vec(), state }
}

fn run_whole(inputs: &Inputs) -> Output {
    run_part(inputs, 0, inputs.tokens, &inputs.state, 0, 2048)
}

/// The larger of the relative errors of output and state, each head by itself.
#[track_caller]
fn error(inputs: &Inputs, output: &Output) -> f64 {
    let expected = reference_f64(inputs);
    let out = compare(Tensor::Out, &inputs.heads, &expected.out, &output.out);
    let state = compare(Tensor::State, &inputs.heads, &expected.state, &output.state);
    assert_eq!((out.not_finite, state.not_finite), (0, 0), "{:?} {:?}", out.worst, state.worst);
    out.relative_by_head.max(state.relative_by_head)
}

#[track_caller]
fn assert_error(what: &str, inputs: &Inputs, limit: f64) {
    let error = error(inputs, &run_whole(inputs));
    println!("{what}: {error:.1e}");
    assert!(error <= limit, "{what}: {error:.1e} is above {limit:.1e}");
}

fn heads(values_per_key: usize, map: HeadMap) -> Heads {
    Heads::new(2, 2 * values_per_key, map).unwrap()
}

const MAPS: [HeadMap; 2] = [HeadMap::Grouped, HeadMap::Tiled];

#[test]
fn lengths_around_the_chunk() {
    for (index, tokens) in [0, 1, 2, 31, 32, 33, 64, 65, 95, 130].into_iter().enumerate() {
        let inputs = Inputs::seeded(heads(3, MAPS[index % 2]), tokens, Family::Base, 7 + tokens as u64);
        assert_error(&format!("{tokens} tokens"), &inputs, 1e-5);
    }
}

#[test]
fn every_ratio_and_map() {
    for ratio in 1..=4 {
        for map in MAPS {
            assert_error(&format!("{ratio} {map:?}"), &Inputs::seeded(heads(ratio, map), 37, Family::Base, 3), 1e-5);
        }
    }
}

#[test]
fn super_blocks_change_no_bit() {
    let inputs = Inputs::seeded(heads(2, HeadMap::Tiled), 130, Family::Base, 11);
    let whole = run_whole(&inputs);
    for super_block in [32, 64, 128] {
        assert_eq!(run_part(&inputs, 0, 130, &inputs.state, 0, super_block), whole, "{super_block}");
    }
}

#[test]
fn calls_split_between_chunks_change_no_bit() {
    let inputs = Inputs::seeded(heads(1, HeadMap::Grouped), 100, Family::Reset, 11);
    let whole = run_whole(&inputs);
    for split in [32, 64, 96] {
        let first = run_part(&inputs, 0, split, &inputs.state, 0, 2048);
        let second = run_part(&inputs, split, 100, &first.state, 0, 2048);
        assert_eq!([first.out, second.out].concat(), whole.out, "{split}");
        assert_eq!(second.state, whole.state, "{split}");
    }
    for split in [1, 31, 33, 63] {
        let first = run_part(&inputs, 0, split, &inputs.state, 0, 2048);
        let second = run_part(&inputs, split, 100, &first.state, 0, 2048);
        let error = error(&inputs, &Output { out: [first.out, second.out].concat(), state: second.state });
        assert!(error <= 1e-5, "{split}: {error:.1e}");
    }
}

#[test]
fn the_order_of_threads_changes_no_bit() {
    for (ratio, tokens) in [(3, 70), (4, 33)] {
        let inputs = Inputs::seeded(heads(ratio, HeadMap::Tiled), tokens, Family::Real, 5);
        let first = run_part(&inputs, 0, tokens, &inputs.state, 0, 2048);
        for order in [1, 2] {
            assert_eq!(run_part(&inputs, 0, tokens, &inputs.state, order, 2048), first, "order {order}");
        }
    }
}

#[test]
fn families() {
    for (family, limit) in [
        (Family::Bench, 1e-5),
        (Family::Strong, 1e-5),
        (Family::Reset, 1e-5),
        (Family::Repeat, 5e-5),
        (Family::Hard, 5e-5),
        (Family::Slow, 1e-5),
        (Family::Real, 1e-5),
        (Family::Beta, 1e-5),
        (Family::Outlier, 1e-5),
        (Family::Positive, 1e-4),
    ] {
        assert_error(&family.to_string(), &Inputs::seeded(heads(4, HeadMap::Tiled), 130, family, 9), limit);
    }
    assert_error("unnormalised", &Inputs::seeded(heads(1, HeadMap::Tiled), 16, Family::Unnormalised, 9), 1e-4);
}

/// Every gate the same.
#[test]
fn gates_as_low_as_they_get() {
    let gates = [-0.0, -2.0, -20.0, -88.0, -100.0, -104.0, -200.0, -1e3, -3e38, f32::NEG_INFINITY, 0.5];
    for gate in gates {
        let mut inputs = Inputs::seeded(heads(1, HeadMap::Grouped), 70, Family::Base, 2);
        inputs.g.fill(gate);
        assert_error(&format!("gate {gate}"), &inputs, if gate > 0.0 { 1e-4 } else { 1e-5 });
    }
}

/// One low gate among others close to 0, in the first chunk and in the third: what comes after does not know the state.
#[test]
fn one_low_gate() {
    for gate in [-20.0, -88.0, -104.0, -200.0, -1e3, -1e4, -1e6, -3e38, f32::NEG_INFINITY] {
        let mut inputs = Inputs::seeded(heads(1, HeadMap::Grouped), 130, Family::Base, 4);
        for g in &mut inputs.g {
            *g *= 0.1;
        }
        for token in [5, 70] {
            inputs.g[token * 2..][..2].fill(gate);
        }
        let output = run_whole(&inputs);
        let error = error(&inputs, &output);
        println!("one gate of {gate}: {error:.1e}");
        assert!(error <= 1e-5, "{gate}: {error:.1e}");
        if gate <= -104.0 {
            let other = Inputs { state: vec![3.0; inputs.state.len()], ..inputs.clone() };
            let other = run_whole(&other);
            assert_eq!(output.state, other.state, "{gate}");
            assert_eq!(output.out[5 * 2 * HEAD_DIM..], other.out[5 * 2 * HEAD_DIM..], "{gate}");
        }
    }
}

/// All keys are one unit vector.
#[test]
fn repeated_keys() {
    for beta in [0.5, 1.0, 1.9, 2.0] {
        let mut inputs = Inputs::seeded(heads(1, HeadMap::Grouped), 130, Family::Base, 6);
        let key = inputs.k[..HEAD_DIM].to_vec();
        for row in inputs.k.chunks_exact_mut(HEAD_DIM) {
            row.copy_from_slice(&key);
        }
        inputs.g.fill(0.0);
        inputs.beta.fill(beta);
        assert_error(&format!("repeated keys, beta {beta}"), &inputs, 5e-5);
    }
}

/// The decay of the last token that exists, in a ragged chunk too.
#[test]
fn decay_at_the_end_of_a_chunk() {
    for tokens in [64, 65, 95, 111, 127, 128] {
        let mut inputs = Inputs::seeded(Heads::new(1, 1, HeadMap::Grouped).unwrap(), tokens, Family::Base, 8);
        inputs.beta.fill(0.99);
        for (token, g) in inputs.g.iter_mut().enumerate() {
            *g = if matches!(token % 64, 60 | 62) { -0.7 } else { 0.0 };
        }
        assert_error(&format!("gates near the end of {tokens}"), &inputs, 1e-5);
    }
}

/// No strength: the state decays and the output does not know the values, even beside a chunk's end.
#[test]
fn without_strength_values_do_not_matter() {
    let mut inputs = Inputs::seeded(heads(1, HeadMap::Grouped), 40, Family::Base, 8);
    inputs.beta.fill(0.0);
    let output = run_whole(&inputs);
    let other = Inputs { v: vec![5.0; inputs.v.len()], ..inputs.clone() };
    assert_eq!(run_whole(&other), output);
    assert!(error(&inputs, &output) <= 1e-5);
}

#[test]
fn rows_off_16_bytes_are_refused() {
    let inputs = Inputs::seeded(heads(1, HeadMap::Grouped), 2, Family::Base, 8);
    let (keys, scalars) = (Strides::dense(2, HEAD_DIM), Strides::dense(2, 1));
    let (q, k, v) = (Aligned::new(&inputs.q), Aligned::new(&inputs.k), Aligned::new(&inputs.v));
    let mut out = Aligned::new(&vec![0.0; inputs.v.len() + 1]);
    let gates = Gates::Log { g: View::new(&inputs.g, scalars), beta: View::new(&inputs.beta, scalars) };
    let [q, k, v] = [&q, &k, &v].map(|data| View::new(data.get(), keys));
    let call = Call::new(inputs.heads, 2, q, k, v, gates, ViewMut::new(&mut out.get_mut()[1..], keys));
    let refused = run(call, Kernel::Chunked, 0);
    assert!(
        matches!(refused, Err(Error::Refused { reason: Reason::Unaligned { argument: "out" }, .. })),
        "{refused:?}"
    );
}
