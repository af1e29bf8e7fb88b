//! One long call against several that hand the state on, no tokens, no state (cases 9, 14, 17): bit for bit; a
//! chunked path where the calls end between chunks, the one on tensor cores within a bar.
#![forbid(unsafe_code)]
use std::ops::Range;

use host::inputs::{Family, Inputs};
use host::reference::Expected;
use host::{Call, Gates, HeadMap, Kernel, Strides, View, ViewMut, cpu};
use tests::{
    Buffers, CHUNK, Layout, ORDERS, Output, POISON, Path, agrees, bars, every_heads, every_path, every_path_for,
    expected_of, heads, run, same_bits, tokens_of,
};

/// Runs parts of a prompt one after the other, each on its path, from the state that the part before left.
fn run_parts(inputs: &Inputs, parts: impl IntoIterator<Item = (Path, Range<usize>)>) -> Output {
    let mut whole = Output { out: Vec::new(), state: inputs.state.clone() };
    for (path, tokens) in parts {
        let part = run(path, &tokens_of(inputs, tokens, &whole.state));
        whole.out.extend(part.out);
        whole.state = part.state;
    }
    whole
}

/// Slices of `length` tokens.
fn slices(tokens: usize, length: usize) -> impl Iterator<Item = Range<usize>> {
    (0..tokens).step_by(length).map(move |start| start..(start + length).min(tokens))
}

/// What the parts of a prompt have to be: the whole, or within the bar of float64 where chunks were cut.
struct Whole<'a> {
    inputs: &'a Inputs,
    path: Path,
    expected: &'a Expected,
    output: Output,
}

impl<'a> Whole<'a> {
    fn new(inputs: &'a Inputs, path: Path, expected: &'a Expected) -> Self {
        Self { inputs, path, expected, output: run(path, inputs) }
    }

    #[track_caller]
    fn assert_is(&self, parts: impl IntoIterator<Item = Range<usize>>, what: &str) {
        let parts: Vec<Range<usize>> = parts.into_iter().collect();
        let at_chunks = parts.iter().all(|part| part.start.is_multiple_of(CHUNK));
        let output = run_parts(self.inputs, parts.into_iter().map(|part| (self.path, part)));
        if at_chunks || !self.path.is_chunked() {
            self.path.same_across_cuts(&self.inputs.heads, &self.output, &output)
        } else {
            agrees(&self.inputs.heads, self.expected, &output, &bars::SEQUENTIAL)
        }
        .unwrap_or_else(|e| panic!("{:?}, {what}: {e}", self.path));
    }
}

/// Two calls at every split, one call a token, slices of 64 (case 9).
#[test]
fn several_calls_are_one() {
    let tokens = 300;
    let inputs = Inputs::seeded(heads(1, 2, HeadMap::Grouped), tokens, Family::Base, 1);
    let expected = expected_of(&inputs);
    for path in every_path() {
        let whole = Whole::new(&inputs, path, &expected);
        agrees(&inputs.heads, &expected, &whole.output, &bars::SEQUENTIAL).unwrap_or_else(|e| panic!("{path:?}: {e}"));
        for split in [1, 2, 32, 63, 64, 65, 96, 127, 128, 130, 288, 299] {
            whole.assert_is([0..split, split..tokens], &format!("split at {split}"));
        }
        for length in [1, 32, 64, 96] {
            whole.assert_is(slices(tokens, length), &format!("slices of {length}"));
        }
    }
}

/// Every kind of heads, split inside and at the edges of the kernels' stages.
#[test]
fn several_calls_are_one_for_all_heads() {
    for heads in every_heads() {
        let inputs = Inputs::seeded(heads, 70, Family::Base, 2);
        let expected = expected_of(&inputs);
        for path in every_path_for(&heads) {
            let whole = Whole::new(&inputs, path, &expected);
            whole.assert_is([0..7, 7..7, 7..15, 15..16, 16..70], &format!("{heads:?}"));
            whole.assert_is([0..32, 32..32, 32..64, 64..70], &format!("{heads:?}"));
        }
    }
}

/// One path goes on where the other stopped, inside a chunk and at its end (case 9): the recurrent kernels with the bits of
/// the whole, the others within the bar.
#[test]
fn paths_hand_the_state_to_each_other() {
    let inputs = Inputs::seeded(heads(2, 6, HeadMap::Tiled), 75, Family::Base, 3);
    let expected = expected_of(&inputs);
    let paths = every_path_for(&inputs.heads);
    let whole = run(Path::Emulated(Kernel::RecurrentByColumn), &inputs);
    for &first in &paths {
        for &second in paths.iter().filter(|&&second| second != first) {
            for split in [11, 64] {
                let parts = run_parts(&inputs, [(first, 0..split), (second, split..75)]);
                agrees(&inputs.heads, &expected, &parts, &bars::SEQUENTIAL)
                    .and_then(|()| match first.is_recurrent_kernel() && second.is_recurrent_kernel() {
                        true => same_bits(&inputs.heads, &whole, &parts),
                        false => Ok(()),
                    })
                    .unwrap_or_else(|e| panic!("{first:?} up to {split}, then {second:?}: {e}"));
            }
        }
    }
}

/// No tokens: the state keeps every bit, NaNs and negative zeros included, and the output buffer is not touched (case 17).
#[test]
fn no_tokens_change_nothing() {
    for heads in every_heads() {
        let mut inputs = Inputs::seeded(heads, 0, Family::Base, 4);
        for (index, bits) in [0xffc0_1234, 0x8000_0000, 0x7f80_0000, 1, 0x7fc0_0000].into_iter().enumerate() {
            inputs.state[index * 77] = f32::from_bits(bits);
        }
        for path in every_path_for(&heads) {
            for order in ORDERS {
                let mut buffers = Buffers::new(&inputs, Layout::dense(&heads));
                let before = buffers.clone();
                path.run_in_order(buffers.call(), order).unwrap();
                buffers.untouched(&before).unwrap_or_else(|e| panic!("{path:?}, {heads:?}: {e}"));
            }
        }
    }
}

/// The call over `inputs` that has no state.
fn stateless<'a>(inputs: &'a Inputs, out: &'a mut [f32]) -> Call<'a> {
    let heads = inputs.heads;
    let (keys, values) = (Strides::dense(heads.num_k_heads, 128), Strides::dense(heads.num_v_heads, 128));
    let scalars = Strides::dense(heads.num_v_heads, 1);
    let gates = Gates::Log { g: View::new(&inputs.g, scalars), beta: View::new(&inputs.beta, scalars) };
    let (q, k, v) = (View::new(&inputs.q, keys), View::new(&inputs.k, keys), View::new(&inputs.v, values));
    Call::new(heads, inputs.tokens, q, k, v, gates, ViewMut::new(out, values))
}

/// No state is a state of zeros, whatever is in the output buffer (case 14). The scale is the default one.
#[test]
fn no_state_is_a_state_of_zeros() {
    for (tokens, map) in [(0, HeadMap::Tiled), (1, HeadMap::Grouped), (5, HeadMap::Tiled), (64, HeadMap::Grouped)] {
        let mut inputs = Inputs::seeded(heads(2, 4, map), tokens, Family::Base, 5);
        inputs.state.fill(0.0);
        for path in every_path() {
            let with_zeros = run(path, &inputs);
            for poison in [POISON, 1e30] {
                let mut out = vec![poison; with_zeros.out.len()];
                path.run(stateless(&inputs, &mut out)).unwrap();
                assert!(
                    out.iter().zip(&with_zeros.out).all(|(a, b)| a.to_bits() == b.to_bits()),
                    "{path:?}, {tokens} tokens"
                );
            }
        }
    }
}

/// A forgotten state is gone, however large it was.
#[test]
fn a_decay_of_zero_forgets_a_finite_state() {
    let mut inputs = Inputs::seeded(heads(1, 2, HeadMap::Grouped), 9, Family::Base, 6);
    inputs.g[..2].fill(f32::NEG_INFINITY);
    let zeros = Inputs { state: vec![0.0; inputs.state.len()], ..inputs.clone() };
    inputs.state.fill(1e30);
    for path in every_path() {
        let (a, b) = (run(path, &inputs), run(path, &zeros));
        assert_eq!(a, b, "{path:?}");
    }
}

/// Unasked, the CPU backend goes token by token for so few tokens: the bits are those of that path.
#[test]
fn the_cpu_goes_token_by_token_unasked() {
    for heads in every_heads() {
        let inputs = Inputs::seeded(heads, 33, Family::Base, 7);
        let mut unasked = Output::poisoned(&inputs);
        host::cpu::run(inputs.call(&mut unasked.out, &mut unasked.state)).unwrap();
        same_bits(&heads, &run(Path::Cpu(cpu::Path::Recurrent), &inputs), &unasked)
            .unwrap_or_else(|e| panic!("{heads:?}: {e}"));
    }
}
