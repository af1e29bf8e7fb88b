//! Properties that hold for any inputs, on every path: each would break with a whole class of mistakes.
#![forbid(unsafe_code)]
use host::compare::{Tensor, compare};
use host::inputs::{Family, Inputs};
use host::reference::reference_f64_at;
use host::{HeadMap, Heads, Kernel, cpu};
use tests::{
    Output, Path, agrees, bars, every_path, expected_of, heads, holds_on_every_path, on_every_path, run, same_bits,
};

const DIM: usize = 128;

/// Rows of 128 (or of 1 for `dim` 1) in another order: row `order[i]` comes to place `i` of each token.
fn reordered(tensor: &[f32], count: usize, dim: usize, order: &[usize]) -> Vec<f32> {
    let tokens = tensor.chunks_exact(count * dim);
    tokens.flat_map(|token| order.iter().flat_map(|&from| token[from * dim..][..dim].to_vec())).collect()
}

/// `inputs` with its value heads in another order, and their key heads too.
fn with_heads(inputs: &Inputs, keys: &[usize], values: &[usize], map: HeadMap) -> Inputs {
    let Heads { num_k_heads, num_v_heads, .. } = inputs.heads;
    Inputs {
        heads: heads(num_k_heads, num_v_heads, map),
        q: reordered(&inputs.q, num_k_heads, DIM, keys),
        k: reordered(&inputs.k, num_k_heads, DIM, keys),
        v: reordered(&inputs.v, num_v_heads, DIM, values),
        g: reordered(&inputs.g, num_v_heads, 1, values),
        beta: reordered(&inputs.beta, num_v_heads, 1, values),
        state: reordered(&inputs.state, num_v_heads, DIM * DIM, values),
        ..*inputs
    }
}

/// An output with its value heads in another order.
fn output_with_heads(output: &Output, values: &[usize]) -> Output {
    Output {
        out: reordered(&output.out, values.len(), DIM, values),
        state: reordered(&output.state, values.len(), DIM * DIM, values),
    }
}

/// A token's outputs do not know what comes after it, and everything after it does.
#[test]
fn no_token_sees_a_later_one() {
    let inputs = Inputs::seeded(heads(1, 2, HeadMap::Grouped), 30, Family::Base, 1);
    let row = 2 * DIM;
    for (changed, long_key) in [(1, false), (8, true), (8, false), (15, false), (16, false), (24, true), (29, false)] {
        let mut other = inputs.clone();
        let from = |row: usize| changed * row..(changed + 1) * row;
        for (tensor, row) in [(&mut other.q, DIM), (&mut other.v, row)] {
            tensor[from(row)].iter_mut().for_each(|x| *x = 0.5 - *x);
        }
        other.k[from(DIM)].reverse();
        if long_key {
            other.k[from(DIM)].iter_mut().for_each(|x| *x *= 2.0);
        }
        other.g[from(2)].fill(-0.7);
        other.beta[from(2)].fill(0.9);
        for path in every_path() {
            let (a, b) = (run(path, &inputs), run(path, &other));
            let earlier = a.out[..changed * row].iter().zip(&b.out[..changed * row]);
            if long_key && path.kernel() == Some(Kernel::ChunkedTensor) {
                // What 16 bits cannot carry sends the head through the fallback, from the segment's first token on.
                assert!(earlier.clone().all(|(a, b)| (a - b).abs() <= 2e-6), "{path:?}, token {changed}");
            } else {
                assert!(earlier.clone().all(|(a, b)| a == b), "{path:?}, token {changed}");
            }
            for (token, (a, b)) in a.out.chunks_exact(row).zip(b.out.chunks_exact(row)).enumerate().skip(changed) {
                assert_ne!(a, b, "{path:?}: token {token} does not know of {changed}");
            }
            assert_ne!(a.state, b.state, "{path:?}");
        }
    }
}

/// Heads do not see each other: in another order they give the same bits in that order.
#[test]
fn heads_in_another_order_give_the_same_bits() {
    let inputs = Inputs::seeded(heads(3, 6, HeadMap::Grouped), 18, Family::Base, 2);
    // Key heads 2, 0, 1 and the two value heads of each, swapped in the first.
    let (keys, values) = ([2, 0, 1], [5, 4, 0, 1, 2, 3]);
    let other = with_heads(&inputs, &keys, &values, HeadMap::Grouped);
    for path in every_path() {
        let expected = output_with_heads(&run(path, &inputs), &values);
        same_bits(&inputs.heads, &expected, &run(path, &other)).unwrap_or_else(|e| panic!("{path:?}: {e}"));
    }
}

/// The two head maps are two orders of the same value heads.
#[test]
fn grouped_and_tiled_are_two_orders_of_the_same() {
    let inputs = Inputs::seeded(heads(2, 6, HeadMap::Grouped), 18, Family::Base, 3);
    let values = [0, 3, 1, 4, 2, 5];
    let tiled = with_heads(&inputs, &[0, 1], &values, HeadMap::Tiled);
    for path in every_path() {
        let expected = output_with_heads(&run(path, &inputs), &values);
        same_bits(&inputs.heads, &expected, &run(path, &tiled)).unwrap_or_else(|e| panic!("{path:?}: {e}"));
    }
}

/// A head alone is a head among others.
#[test]
fn a_head_alone_gives_the_same_bits() {
    let inputs = Inputs::seeded(heads(2, 4, HeadMap::Grouped), 18, Family::Base, 4);
    for path in every_path() {
        let together = run(path, &inputs);
        for head in 0..4 {
            let alone = Inputs {
                heads: heads(1, 1, HeadMap::Grouped),
                ..with_heads(&inputs, &[head / 2], &[head], HeadMap::Grouped)
            };
            let expected = Output {
                out: reordered(&together.out, 4, DIM, &[head]),
                state: reordered(&together.state, 4, DIM * DIM, &[head]),
            };
            same_bits(&alone.heads, &expected, &run(path, &alone)).unwrap_or_else(|e| panic!("{path:?}, {head}: {e}"));
        }
    }
}

/// Value columns do not see each other either.
#[test]
fn columns_in_another_order_give_the_same_bits() {
    let inputs = Inputs::seeded(heads(1, 3, HeadMap::Grouped), 18, Family::Base, 5);
    // 37 has no factor in common with 128: neighbours part, and columns change warps, blocks and vectors.
    let order: Vec<usize> = (0..DIM).map(|column| (column * 37 + 5) % DIM).collect();
    let columns = |rows: &[f32]| reordered(rows, DIM, 1, &order);
    let other = Inputs { v: columns(&inputs.v), state: columns(&inputs.state), ..inputs.clone() };
    for path in every_path() {
        let output = run(path, &inputs);
        let expected = Output { out: columns(&output.out), state: columns(&output.state) };
        same_bits(&inputs.heads, &expected, &run(path, &other)).unwrap_or_else(|e| panic!("{path:?}: {e}"));
    }
}

/// Tokens that write nothing and forget nothing leave no trace.
#[test]
fn idle_tokens_leave_no_trace() {
    let inputs = Inputs::seeded(heads(1, 2, HeadMap::Grouped), 20, Family::Base, 6);
    let mut padded = Inputs { tokens: 40, ..inputs.clone() };
    let double = |tensor: &[f32], idle: Option<f32>| -> Vec<f32> {
        let row = tensor.len() / 20;
        let rows = tensor.chunks_exact(row);
        rows.flat_map(|row| [row.to_vec(), row.iter().map(|x| idle.unwrap_or(*x)).collect()].concat()).collect()
    };
    (padded.q, padded.v) = (double(&inputs.q, None), double(&inputs.v, None));
    (padded.k, padded.g, padded.beta) =
        (double(&inputs.k, Some(0.0)), double(&inputs.g, Some(0.0)), double(&inputs.beta, Some(0.0)));
    for path in every_path() {
        let padded = run(path, &padded);
        let rows = padded.out.chunks_exact(2 * DIM).step_by(2).flatten().copied().collect();
        let without = Output { out: rows, state: padded.state };
        // Chunks are cut elsewhere, so that a chunked path adds in another order.
        if path.is_chunked() {
            agrees(&inputs.heads, &expected_of(&inputs), &without, &bars::SEQUENTIAL)
        } else {
            same_bits(&inputs.heads, &run(path, &inputs), &without)
        }
        .unwrap_or_else(|e| panic!("{path:?}: {e}"));
    }
}

/// The recurrence is linear in values and state: a power of two multiplies every bit pattern exactly.
#[test]
fn powers_of_two_scale_exactly() {
    let inputs = Inputs::seeded(heads(2, 4, HeadMap::Tiled), 18, Family::Base, 7);
    for factor in [2.0_f32.powi(9), -(2.0_f32.powi(-7))] {
        let times = |tensor: &[f32]| tensor.iter().map(|x| factor * x).collect::<Vec<f32>>();
        let scaled = Inputs { v: times(&inputs.v), state: times(&inputs.state), ..inputs.clone() };
        let loud = Inputs { scale: factor * inputs.scale, ..inputs.clone() };
        for path in every_path() {
            let output = run(path, &inputs);
            let expected = Output { out: times(&output.out), state: times(&output.state) };
            same_bits(&inputs.heads, &expected, &run(path, &scaled)).unwrap_or_else(|e| panic!("{path:?}: {e}"));
            let expected = Output { state: output.state, ..expected };
            same_bits(&inputs.heads, &expected, &run(path, &loud)).unwrap_or_else(|e| panic!("{path:?}, scale: {e}"));
        }
    }
}

/// Without writes a state decays by the sum of its gates.
#[test]
fn decay_alone_is_the_exponential_of_the_sum() {
    let mut inputs = Inputs::seeded(heads(2, 2, HeadMap::Grouped), 60, Family::Slow, 8);
    inputs.beta.fill(0.0);
    for (path, output) in holds_on_every_path("decay alone", &inputs, &bars::SEQUENTIAL) {
        for head in 0..2 {
            let sum: f64 = inputs.g.iter().skip(head).step_by(2).map(|&g| f64::from(g)).sum();
            let (from, to) = (&inputs.state[head * DIM * DIM..], &output.state[head * DIM * DIM..]);
            for (from, to) in from.iter().zip(to).take(DIM * DIM) {
                let expected = sum.exp() * f64::from(*from);
                assert!((f64::from(*to) - expected).abs() <= 1e-5 * expected.abs(), "{path:?}: {to} is not {expected}");
            }
        }
    }
}

/// Turning every key, query and the state's key axis by one orthogonal matrix, a Householder reflection, leaves the output.
#[test]
fn a_rotation_of_the_key_axis_leaves_the_output() {
    let inputs = Inputs::seeded(heads(1, 2, HeadMap::Grouped), 33, Family::Base, 9);
    let axis: Vec<f64> = inputs.v[..DIM].iter().map(|&x| f64::from(x)).collect();
    let squares: f64 = axis.iter().map(|x| x * x).sum();
    let reflected = |row: &[f32]| -> Vec<f32> {
        let along: f64 = axis.iter().zip(row).map(|(a, &x)| a * f64::from(x)).sum();
        axis.iter().zip(row).map(|(a, &x)| (f64::from(x) - 2.0 * along / squares * a) as f32).collect()
    };
    let rows = |tensor: &[f32]| tensor.chunks_exact(DIM).flat_map(reflected).collect::<Vec<f32>>();
    let transposed = |state: &[f32]| -> Vec<f32> {
        let heads = state.chunks_exact(DIM * DIM);
        heads.flat_map(|s| (0..DIM * DIM).map(|i| s[i % DIM * DIM + i / DIM]).collect::<Vec<f32>>()).collect()
    };
    let state = transposed(&rows(&transposed(&inputs.state)));
    let other = Inputs { q: rows(&inputs.q), k: rows(&inputs.k), state, ..inputs.clone() };
    for ((path, a), (_, b)) in on_every_path(&inputs).iter().zip(on_every_path(&other)) {
        // Rounding the turned inputs costs as much as computing with them.
        let comparison = compare(Tensor::Out, &inputs.heads, &a.out, &b.out);
        assert!(comparison.meets(&bars::SEQUENTIAL), "{path:?}: {comparison:?}");
        assert_ne!(a.state, b.state, "{path:?}");
    }
}

/// Every length from 0 to 200 on the CPU, and up to two rounds of the by-key-head kernel's ring in the emulator.
#[test]
fn every_length_without_gaps() {
    let inputs = Inputs::seeded(heads(1, 2, HeadMap::Grouped), 200, Family::Base, 10);
    let lengths: Vec<usize> = (0..=200).collect();
    let prefixes = reference_f64_at(&inputs, &lengths);
    for path in every_path() {
        let most = if matches!(path, Path::Emulated(_)) { 50 } else { 200 };
        for &tokens in &lengths[..=most] {
            let mut output =
                Output { out: vec![f32::NAN; inputs.out_len(tokens)], state: vec![f32::NAN; inputs.state_len()] };
            path.run(inputs.call_first(tokens, &mut output.out, &mut output.state)).unwrap();
            let (out, state) = prefixes.at(tokens).unwrap();
            let expected = host::reference::Expected { out: out.to_vec(), state: state.to_vec() };
            agrees(&inputs.heads, &expected, &output, &bars::SEQUENTIAL)
                .unwrap_or_else(|e| panic!("{path:?}, {tokens} tokens: {e}"));
        }
    }
}

/// The same call gives the same bits again and again, though threads share the work anew each time.
#[test]
fn repeated_calls_give_the_same_bits() {
    let inputs = Inputs::seeded(heads(4, 8, HeadMap::Grouped), 130, Family::Base, 11);
    for path in cpu::Path::ALL.map(Path::Cpu) {
        let first = run(path, &inputs);
        agrees(&inputs.heads, &expected_of(&inputs), &first, &bars::SEQUENTIAL).unwrap();
        for round in 0..50 {
            same_bits(&inputs.heads, &first, &run(path, &inputs))
                .unwrap_or_else(|e| panic!("{path:?}, round {round}: {e}"));
        }
    }
}
