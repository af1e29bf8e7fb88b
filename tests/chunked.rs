//! What the chunked paths promise beside every case: the same bits in every order of threads, from call to call, in
//! segments of any length and in a grid of any size (cases 2, 35, 43); and random gates against float64.
#![forbid(unsafe_code)]
use host::compare::{Tensor, compare};
use host::inputs::{Family, Inputs};
use host::reference::{Expected, reference_f64_at};
use host::{Call, Card, Gates, HeadMap, Heads, Kernel, PathChoice, Policy, Strides, View, ViewMut, cpu};
use kernels_gpu::kernels::{chunk, chunk_tensor};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use tests::{
    CHUNK, ORDERS, Output, Path, agrees, bars, every_heads, every_path, expected_of, heads, run, run_in_order,
    same_bits,
};

const DIM: usize = 128;
const CARD: Card = Card::new(80, 108, 166_912);
/// The emulated kernels.
const EMULATED: [Path; 2] = [Path::Emulated(KERNELS[0]), Path::Emulated(KERNELS[1])];
const KERNELS: [Kernel; 2] = [Kernel::Chunked, Kernel::ChunkedTensor];

/// Every shape in every order of threads: within the bar of float64, with the same bits.
#[test]
fn every_shape_in_every_order() {
    for heads in every_heads().filter(|heads| EMULATED[0].takes(heads)) {
        for tokens in [0, 1, 31, 32, 33, 64, 65, 103] {
            let inputs = Inputs::seeded(heads, tokens, Family::Base, 1);
            let expected = expected_of(&inputs);
            for path in EMULATED {
                let first = run_in_order(path, &inputs, ORDERS[0]);
                agrees(&heads, &expected, &first, &bars::SEQUENTIAL)
                    .unwrap_or_else(|e| panic!("{path:?}, {tokens} tokens, {heads:?}: {e}"));
                for &order in &ORDERS[1..] {
                    same_bits(&heads, &first, &run_in_order(path, &inputs, order))
                        .unwrap_or_else(|e| panic!("{path:?}, order {order}, {tokens} tokens, {heads:?}: {e}"));
                }
            }
        }
    }
}

/// Decay near 1 and strong, forgotten states, beta 0, 1 and 2, gates above 0, repeated keys: every path.
#[test]
fn every_family_on_every_path() {
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
        Family::Positive,
    ] {
        let inputs = Inputs::seeded(heads(2, 8, HeadMap::Tiled), 100, family, 2);
        tests::holds_within(&family.to_string(), &inputs, &family.bar(), &bars::REPEATED_KEYS);
    }
}

/// The same call again and again, with other orders of threads in between (case 2).
#[test]
fn repeated_calls_give_the_same_bits() {
    let inputs = Inputs::seeded(heads(2, 8, HeadMap::Grouped), 130, Family::Real, 3);
    for path in EMULATED {
        let first = run_in_order(path, &inputs, ORDERS[0]);
        for order in [1, 0, 3] {
            same_bits(&inputs.heads, &first, &run_in_order(path, &inputs, order))
                .unwrap_or_else(|e| panic!("{path:?}: {e}"));
        }
    }
    let path = Path::Cpu(cpu::Path::Chunked);
    let inputs = Inputs::seeded(heads(16, 32, HeadMap::Grouped), 1000, Family::Base, 4);
    let first = run(path, &inputs);
    for round in 0..10 {
        same_bits(&inputs.heads, &first, &run(path, &inputs)).unwrap_or_else(|e| panic!("round {round}: {e}"));
    }
}

/// Launches of a segment, and floats of scratch for such segments, for one key head.
fn segment_of(kernel: Kernel, tokens: usize, values: usize) -> (usize, usize) {
    match kernel {
        // Two segments take turns, each rounded up by the chunk.
        Kernel::ChunkedTensor => (3, 2 * tokens.div_ceil(CHUNK) * chunk_tensor::scratch_len(CHUNK, 1, values)),
        _ => (2, chunk::scratch_len(tokens, values)),
    }
}

/// The policy that lets a chunked kernel have so many floats of scratch.
fn with_scratch(kernel: Kernel, floats: usize) -> Policy {
    let mut policy = Policy::with_path(PathChoice::Forced(kernel));
    policy.max_scratch_bytes = size_of::<f32>() * floats;
    policy
}

/// Segments of 32, 64 and 96 tokens are the whole, around every border (cases 9, 43).
#[test]
fn segments_are_the_whole() {
    let inputs = Inputs::seeded(heads(1, 3, HeadMap::Grouped), 129, Family::Bench, 5);
    for (kernel, path) in KERNELS.into_iter().zip(EMULATED) {
        for tokens in [63, 64, 65, 127, 128, 129] {
            let inputs = tests::tokens_of(&inputs, 0..tokens, &inputs.state);
            let whole = run(path, &inputs);
            agrees(&inputs.heads, &expected_of(&inputs), &whole, &bars::SEQUENTIAL)
                .unwrap_or_else(|e| panic!("{path:?}, {tokens} tokens: {e}"));
            for segment in [32, 64, 96] {
                let (launches, floats) = segment_of(kernel, segment, 3);
                let policy = with_scratch(kernel, floats);
                let launch = host::plan(&CARD, inputs.heads, tokens, &policy).unwrap();
                assert_eq!(launch.launches, launches * tokens.div_ceil(segment), "{launch:?}");
                let mut parts = Output::poisoned(&inputs);
                host::emulated::run_with(inputs.call(&mut parts.out, &mut parts.state), &policy, ORDERS[1]).unwrap();
                path.same_across_cuts(&inputs.heads, &whole, &parts)
                    .unwrap_or_else(|e| panic!("{path:?}, {tokens} tokens in segments of {segment}: {e}"));
            }
        }
    }
}

/// Without a state, the one between segments stands in the scratch: it starts from zeros once, and is kept. Segments come
/// only where the whole prompt would take more scratch than that state.
#[test]
fn segments_without_a_state_are_the_whole() {
    let (rows, scalars) = (Strides::dense(1, DIM), Strides::dense(1, 1));
    for (kernel, path, tokens) in [(KERNELS[0], EMULATED[0], 545), (KERNELS[1], EMULATED[1], 290)] {
        let whole_scratch = match kernel {
            Kernel::ChunkedTensor => chunk_tensor::scratch_len(tokens, 1, 1),
            _ => chunk::scratch_len(tokens, 1),
        };
        let mut inputs = Inputs::seeded(heads(1, 1, HeadMap::Grouped), tokens, Family::Slow, 6);
        inputs.state.fill(0.0);
        let whole = run(path, &inputs);
        for segment in [32, 96] {
            let floats = segment_of(kernel, segment, 1).1 + DIM * DIM;
            assert!(floats < whole_scratch, "one segment is enough");
            let mut parts = Output { out: vec![f32::NAN; whole.out.len()], state: whole.state.clone() };
            let gates = Gates::Log { g: View::new(&inputs.g, scalars), beta: View::new(&inputs.beta, scalars) };
            let [q, k, v] = [&inputs.q, &inputs.k, &inputs.v].map(|data| View::new(data, rows));
            let call = Call::new(inputs.heads, tokens, q, k, v, gates, ViewMut::new(&mut parts.out, rows));
            host::emulated::run_with(call, &with_scratch(kernel, floats), ORDERS[1]).unwrap();
            path.same_across_cuts(&inputs.heads, &whole, &parts)
                .unwrap_or_else(|e| panic!("{path:?}, segments of {segment}: {e}"));
        }
    }
}

/// Around the border of the longest segment. The emulator is too slow for that; `gpu_chunked` has the kernels.
#[test]
fn the_cpu_is_right_around_two_thousand_tokens() {
    let inputs = Inputs::seeded(heads(2, 4, HeadMap::Tiled), 2049, Family::Bench, 6);
    let lengths = [2047, 2048, 2049];
    let prefixes = reference_f64_at(&inputs, &lengths);
    for path in cpu::Path::ALL {
        for tokens in lengths {
            let mut output =
                Output { out: vec![f32::NAN; inputs.out_len(tokens)], state: vec![f32::NAN; inputs.state_len()] };
            cpu::run_by(inputs.call_first(tokens, &mut output.out, &mut output.state), path).unwrap();
            let (out, state) = prefixes.at(tokens).unwrap();
            let expected = Expected { out: out.to_vec(), state: state.to_vec() };
            agrees(&inputs.heads, &expected, &output, &bars::SEQUENTIAL)
                .unwrap_or_else(|e| panic!("{path:?}, {tokens} tokens: {e}"));
        }
    }
}

/// Rows of `row` elements of the heads from `first` on, `count` of all that a token (or the state) has.
fn heads_of(tensor: &[f32], row: usize, all: usize, first: usize, count: usize) -> Vec<f32> {
    tensor.chunks_exact(all * row).flat_map(|token| token[first * row..(first + count) * row].to_vec()).collect()
}

/// A key head and its value heads alone give the bits they have among others, wherever they stand (case 35).
#[test]
fn neighbours_change_no_bit() {
    let together = Inputs::seeded(heads(4, 12, HeadMap::Grouped), 77, Family::Real, 7);
    let outputs: Vec<(Path, Output)> = every_path().into_iter().map(|path| (path, run(path, &together))).collect();
    for key_head in 0..4 {
        let values = |tensor: &[f32], row| heads_of(tensor, row, 12, 3 * key_head, 3);
        let alone = Inputs {
            heads: heads(1, 3, HeadMap::Grouped),
            q: heads_of(&together.q, DIM, 4, key_head, 1),
            k: heads_of(&together.k, DIM, 4, key_head, 1),
            v: values(&together.v, DIM),
            g: values(&together.g, 1),
            beta: values(&together.beta, 1),
            state: values(&together.state, DIM * DIM),
            ..together
        };
        for (path, output) in &outputs {
            let expected = Output { out: values(&output.out, DIM), state: values(&output.state, DIM * DIM) };
            same_bits(&alone.heads, &expected, &run(*path, &alone))
                .unwrap_or_else(|e| panic!("{path:?}, key head {key_head} alone: {e}"));
        }
    }
}

/// Kinds of gates, in ascending strangeness.
const GATES: [fn(f32) -> f32; 9] = [
    |u| -0.1 * u,
    |_| 0.0,
    |_| -0.0,
    |u| -1e-6 * u,
    |u| -1e-42 * u,
    |u| -20.0 - 180.0 * u,
    |u| -1e4 - 1e6 * u,
    |u| -3e38 * u,
    |_| f32::NEG_INFINITY,
];

/// A random problem; all of it follows from these numbers, which a failure prints.
#[derive(Clone, Debug)]
struct Case {
    heads: Heads,
    tokens: usize,
    seed: u64,
    /// How often a gate is of a kind other than the first, of 1.
    strange: f32,
    /// Which kinds may come.
    kinds: usize,
    /// The largest write strength.
    most_beta: f32,
}

impl Case {
    fn inputs(&self) -> Inputs {
        let mut inputs = Inputs::seeded(self.heads, self.tokens, Family::Base, self.seed);
        // Write strengths of this family are uniform in 0..1.
        let uniform = |salt| Inputs::seeded(self.heads, self.tokens, Family::Bench, self.seed ^ salt).beta;
        let (whether, which, how_much) = (uniform(1), uniform(2), uniform(3));
        for (index, g) in inputs.g.iter_mut().enumerate() {
            let kind = (which[index] * self.kinds as f32) as usize;
            let kind = if whether[index] < self.strange { kind.min(self.kinds - 1) } else { 0 };
            *g = GATES[kind](how_much[index]);
        }
        inputs.beta.iter_mut().for_each(|beta| *beta *= self.most_beta);
        inputs
    }
}

fn any_case() -> impl Strategy<Value = Case> {
    let map = prop_oneof![Just(HeadMap::Grouped), Just(HeadMap::Tiled)];
    let strange = prop_oneof![Just(0.02_f32), Just(0.3), Just(1.0)];
    let most_beta = prop_oneof![Just(0.0_f32), Just(1.0), Just(2.0), 0.0..2.0_f32];
    (1..=3_usize, 1..=4_usize, map, 0..100_usize, any::<u64>(), strange, 1..=GATES.len(), most_beta).prop_map(
        |(keys, ratio, map, tokens, seed, strange, kinds, most_beta)| Case {
            heads: heads(keys, keys * ratio, map),
            tokens,
            seed,
            strange,
            kinds,
            most_beta,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 40,
        // The same cases on every machine; what fails is reported in full.
        rng_seed: RngSeed::Fixed(2),
        failure_persistence: None,
        max_shrink_iters: 100,
        ..ProptestConfig::default()
    })]

    #[test]
    fn any_gates_agree_with_float64(case in any_case()) {
        let inputs = case.inputs();
        let expected = expected_of(&inputs);
        for path in tests::every_chunked_path() {
            let output = run(path, &inputs);
            for (tensor, expected, actual) in
                [(Tensor::Out, &expected.out, &output.out), (Tensor::State, &expected.state, &output.state)]
            {
                let comparison = compare(tensor, &inputs.heads, expected, actual);
                prop_assert!(
                    comparison.not_finite == 0 && comparison.relative <= bars::GENERAL.relative,
                    "{path:?}, {tensor:?}: {comparison:?}"
                );
            }
        }
    }
}
