//! Chunks against the definition in float64 and against the sequential path, and the promises of the front page.
#![forbid(unsafe_code)]
use super::CHUNK;
use crate::compare::{Tensor, compare, first_bit_difference};
use crate::cpu::{Path, run, run_by, run_on};
use crate::inputs::{Family, Inputs};
use crate::reference::{Expected, reference_f64, reference_f64_at};
use crate::{HEAD_DIM, HeadMap, Heads};
use pulp::Arch;

/// An output and a state.
type Results = (Vec<f32>, Vec<f32>);

const LENGTHS: [usize; 11] = [1, 2, 31, 32, 33, 63, 64, 65, 95, 130, 300];

fn heads(num_k_heads: usize, num_v_heads: usize, map: HeadMap) -> Heads {
    Heads::new(num_k_heads, num_v_heads, map).unwrap()
}

/// Results of the first `tokens`, over outputs that start as NaN.
fn run_first(inputs: &Inputs, tokens: usize, path: Path) -> Results {
    let mut out = vec![f32::NAN; inputs.out_len(tokens)];
    let mut state = vec![f32::NAN; inputs.state_len()];
    run_by(inputs.call_first(tokens, &mut out, &mut state), path).unwrap();
    (out, state)
}

fn chunked(inputs: &Inputs) -> Results {
    run_first(inputs, inputs.tokens, Path::Chunked)
}

/// That results meet the bar, every head by itself.
fn assert_close<E: Copy + Into<f64> + Sync>(
    (out, state): &Results,
    (expected_out, expected_state): (&[E], &[E]),
    heads: &Heads,
    bar: f64,
    what: &str,
) {
    for (tensor, expected, actual) in [(Tensor::Out, expected_out, out), (Tensor::State, expected_state, state)] {
        let comparison = compare(tensor, heads, expected, actual);
        assert_eq!(comparison.not_finite, 0, "{what}, {tensor:?}: {comparison:?}");
        assert!(comparison.relative_by_head <= bar, "{what}, {tensor:?}: {comparison:?}");
    }
}

/// That chunks meet the bar against the definition.
fn assert_right(inputs: &Inputs, bar: f64, what: &str) {
    let Expected { out, state } = reference_f64(inputs);
    assert_close(&chunked(inputs), (&out, &state), &inputs.heads, bar, what);
}

fn assert_same_bits(a: &Results, b: &Results, heads: &Heads, what: &str) {
    assert_eq!(first_bit_difference(Tensor::Out, heads, &a.0, &b.0), None, "{what}");
    assert_eq!(first_bit_difference(Tensor::State, heads, &a.1, &b.1), None, "{what}");
}

/// Tokens `from` to the end, from `state`.
fn rest(inputs: &Inputs, from: usize, state: &[f32]) -> Inputs {
    let after = |list: &[f32]| list[from * (list.len() / inputs.tokens)..].to_vec();
    Inputs {
        tokens: inputs.tokens - from,
        q: after(&inputs.q),
        k: after(&inputs.k),
        v: after(&inputs.v),
        g: after(&inputs.g),
        beta: after(&inputs.beta),
        state: state.to_vec(),
        ..inputs.clone()
    }
}

#[test]
fn agrees_with_the_definition() {
    for heads in [
        heads(1, 1, HeadMap::Grouped),
        heads(3, 3, HeadMap::Tiled),
        heads(2, 4, HeadMap::Tiled),
        heads(2, 6, HeadMap::Grouped),
        heads(1, 4, HeadMap::Tiled),
        heads(2, 10, HeadMap::Grouped),
    ] {
        for family in [Family::Base, Family::Bench] {
            let inputs = Inputs::seeded(heads, 300, family, 1);
            let expected = reference_f64_at(&inputs, &LENGTHS);
            for tokens in LENGTHS {
                let results = run_first(&inputs, tokens, Path::Chunked);
                let what = format!("{family:?}, {tokens} tokens, {heads:?}");
                assert_close(&results, expected.at(tokens).unwrap(), &heads, 2e-6, &what);
            }
        }
    }
}

#[test]
fn gates_of_every_size_agree_with_the_definition() {
    let heads = heads(2, 4, HeadMap::Tiled);
    let base = Inputs::seeded(heads, 130, Family::Base, 2);
    for gate in [0.0, -0.7, -2.0, -20.0, -100.0, -104.0, -1e3, -3e38, f32::NEG_INFINITY] {
        let mut inputs = Inputs { g: vec![gate; base.g.len()], ..base.clone() };
        assert_right(&inputs, 1e-5, &format!("every gate {gate}"));
        // Of two tokens in a chunk, the last of a chunk, the first of one, and the last of all.
        inputs.g.copy_from_slice(&base.g);
        for token in [5, 9, 31, 64, 70, 129] {
            inputs.g[token * 4..][..4].fill(gate);
        }
        assert_right(&inputs, 1e-5, &format!("some gates {gate}"));
    }
    let mut inputs = base.clone();
    for token in (0..130).step_by(3) {
        inputs.g[token * 4..][..4].fill(0.5);
    }
    assert_right(&inputs, 1e-5, "gates above 0");
    // Above 0 after one that forgets: what it forgot does not come back.
    inputs.g[33 * 4..][..4].fill(f32::NEG_INFINITY);
    inputs.g[34 * 4..][..80].fill(0.5);
    assert_right(&inputs, 1e-5, "gates above 0 after -inf");
}

#[test]
fn every_family_agrees_with_the_definition() {
    let heads = heads(2, 10, HeadMap::Grouped);
    for (family, bar) in [
        (Family::Strong, 1e-5),
        (Family::Reset, 1e-5),
        (Family::Repeat, 5e-5),
        (Family::Hard, 5e-5),
        (Family::Slow, 1e-5),
        (Family::Real, 1e-5),
        (Family::Beta, 1e-5),
        (Family::Outlier, 1e-5),
        (Family::Positive, 1e-5),
    ] {
        assert_right(&Inputs::seeded(heads, 300, family, 4), bar, &format!("{family:?}"));
    }
    assert_right(&Inputs::seeded(heads, 16, Family::Unnormalised, 4), 1e-5, "unnormalised, 16 tokens");
    // Grows by 1e39 in 64 tokens.
    assert_right(&Inputs::seeded(heads, 48, Family::Unnormalised, 4), 1e-4, "unnormalised, 48 tokens");
}

/// A decay that a later token's row should have had shows when only two rows decay.
#[test]
fn the_last_row_of_a_chunk_decays_the_state() {
    let heads = heads(1, 1, HeadMap::Grouped);
    for tokens in [64, 65, 111, 127, 128, 192] {
        let mut inputs = Inputs::seeded(heads, tokens, Family::Base, 5);
        inputs.beta.fill(0.99);
        for (token, g) in inputs.g.iter_mut().enumerate() {
            *g = if matches!(token % 32, 28 | 30) { -0.7 } else { 0.0 };
        }
        assert_right(&inputs, 1e-5, &format!("{tokens} tokens"));
    }
}

#[test]
fn what_is_forgotten_leaves_no_trace() {
    let heads = heads(2, 4, HeadMap::Tiled);
    for gate in [-104.0, -3e38, f32::NEG_INFINITY] {
        let mut inputs = Inputs::seeded(heads, 130, Family::Base, 6);
        inputs.g[5 * 4..][..4].fill(gate);
        let (out, state) = chunked(&inputs);
        inputs.state.iter_mut().for_each(|element| *element = 3.0 - *element);
        let (other_out, other_state) = chunked(&inputs);
        let from = inputs.out_len(5);
        assert_ne!(out[..from], other_out[..from]);
        assert_eq!(out[from..], other_out[from..], "{gate}");
        assert_eq!(state, other_state, "{gate}");
    }
}

#[test]
fn a_write_strength_of_zero_only_decays() {
    let mut inputs = Inputs::seeded(heads(1, 2, HeadMap::Grouped), 70, Family::Base, 7);
    inputs.g.fill(0.0);
    inputs.beta.fill(0.0);
    assert_eq!(chunked(&inputs).1, inputs.state);
}

#[test]
fn agrees_with_the_sequential_path_at_every_length() {
    let heads = heads(1, 2, HeadMap::Grouped);
    let inputs = Inputs::seeded(heads, 200, Family::Base, 8);
    for tokens in 1..=200 {
        let (out, state) = run_first(&inputs, tokens, Path::Recurrent);
        let results = run_first(&inputs, tokens, Path::Chunked);
        assert_close(&results, (&out, &state), &heads, 1e-5, &format!("{tokens} tokens"));
    }
}

#[test]
fn any_number_of_threads_gives_the_same_bits() {
    for (num_k_heads, num_v_heads) in [(1, 1), (1, 3), (2, 6)] {
        let heads = heads(num_k_heads, num_v_heads, HeadMap::Grouped);
        let inputs = Inputs::seeded(heads, 101, Family::Real, 9);
        let [one, three, eight] = [1, 3, 8].map(|threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| chunked(&inputs))
        });
        assert_same_bits(&one, &three, &heads, "three threads");
        assert_same_bits(&one, &eight, &heads, "eight threads");
    }
}

#[test]
fn two_calls_cut_between_chunks_give_the_bits_of_one() {
    let heads = heads(2, 6, HeadMap::Tiled);
    let inputs = Inputs::seeded(heads, 300, Family::Real, 10);
    let whole = chunked(&inputs);
    for at in [1, 63, 64, 65, 128, 130, 160, 299] {
        let (mut out, state) = run_first(&inputs, at, Path::Chunked);
        for path in [Path::Chunked, Path::Recurrent] {
            let after = rest(&inputs, at, &state);
            let (rest, state) = run_first(&after, after.tokens, path);
            out.truncate(inputs.out_len(at));
            out.extend(rest);
            let results = (out, state);
            if at.is_multiple_of(CHUNK) && path == Path::Chunked {
                assert_same_bits(&results, &whole, &heads, &format!("cut at {at}"));
            } else {
                assert_close(&results, (&whole.0, &whole.1), &heads, 1e-5, &format!("cut at {at}, then {path:?}"));
            }
            out = results.0;
        }
    }
}

/// Packed rows of q, k and v, states with key rows outermost, and room between the rows of the output.
#[test]
fn layouts_do_not_change_a_bit() {
    let heads = heads(2, 6, HeadMap::Grouped);
    let inputs = Inputs::seeded(heads, 77, Family::Base, 11);
    let packed = inputs.packed();
    let expected = chunked(&inputs);
    let (token, head) = (6 * (HEAD_DIM + 3) + 1, HEAD_DIM + 3);
    let mut out = vec![f32::NAN; 77 * token];
    let mut state = vec![f32::NAN; packed.state.len()];
    let mut call = packed.call(&mut out, &mut state);
    call.out.strides = crate::Strides { token, head };
    run_by(call, Path::Chunked).unwrap();
    let rows = out.chunks(token).flat_map(|row| row.chunks(head).take(6).flat_map(|row| &row[..HEAD_DIM]));
    let results = (rows.copied().collect(), packed.key_major(&state));
    assert_same_bits(&results, &expected, &heads, "packed");
    let written = out.iter().filter(|element| !element.is_nan()).count();
    assert_eq!(written, expected.0.len(), "something between the rows was written");
}

#[test]
fn without_a_state_it_starts_from_zero() {
    let heads = heads(2, 6, HeadMap::Tiled);
    let mut inputs = Inputs::seeded(heads, 95, Family::Base, 12);
    inputs.state.fill(0.0);
    let (expected, _) = chunked(&inputs);
    let mut out = vec![f32::NAN; expected.len()];
    let mut state = vec![0.0; inputs.state_len()];
    let mut call = inputs.call(&mut out, &mut state);
    call.states = crate::call::States::Apart { initial: None, last: None };
    run_by(call, Path::Chunked).unwrap();
    assert_eq!(first_bit_difference(Tensor::Out, &heads, &out, &expected), None);
}

#[test]
fn the_path_is_chosen_by_tokens_and_heads() {
    for (tokens, num_k_heads, num_v_heads, path) in [
        (0, 16, 48, Path::Recurrent),
        (127, 16, 48, Path::Recurrent),
        (128, 16, 48, Path::Chunked),
        (8192, 16, 32, Path::Chunked),
        (8192, 16, 16, Path::Recurrent),
        (8192, 1, 1, Path::Recurrent),
        (8192, 2, 6, Path::Recurrent),
    ] {
        let heads = heads(num_k_heads, num_v_heads, HeadMap::Grouped);
        assert_eq!(Path::choose(tokens, &heads), path, "{tokens} tokens, {num_k_heads}/{num_v_heads}");
    }
    let inputs = Inputs::seeded(heads(8, 16, HeadMap::Tiled), 128, Family::Base, 15);
    let mut out = vec![f32::NAN; inputs.out_len(128)];
    let mut state = vec![f32::NAN; inputs.state_len()];
    run(inputs.call(&mut out, &mut state)).unwrap();
    assert_same_bits(&(out, state), &chunked(&inputs), &inputs.heads, "chosen and forced");
}

/// What is not finite stays in its head, in its column, and after its token.
#[test]
fn infinities_and_nan_do_not_spread() {
    let heads = heads(1, 2, HeadMap::Grouped);
    let inputs = Inputs::seeded(heads, 70, Family::Base, 13);
    let (expected_out, expected_state) = chunked(&inputs);
    let spoiled_column = 7;
    for spoiled in [f32::NAN, f32::INFINITY] {
        let mut inputs = inputs.clone();
        inputs.v[(40 * 2 + 1) * HEAD_DIM + spoiled_column] = spoiled;
        let (out, state) = chunked(&inputs);
        for (index, (actual, expected)) in out.iter().zip(&expected_out).enumerate() {
            let (token, head, column) = (index / HEAD_DIM / 2, index / HEAD_DIM % 2, index % HEAD_DIM);
            let reached = token >= 40 && head == 1 && column == spoiled_column;
            assert!(reached || actual == expected, "out[{token}, {head}, {column}]");
        }
        for (index, (actual, expected)) in state.iter().zip(&expected_state).enumerate() {
            let (head, column) = (index / HEAD_DIM / HEAD_DIM, index % HEAD_DIM);
            let reached = head == 1 && column == spoiled_column;
            assert!(reached || actual == expected, "state {index}");
        }
    }
}

/// Those with fused multiply-add have the same bits, too.
#[cfg(target_arch = "x86_64")]
#[test]
fn every_vector_width_agrees_with_the_definition() {
    let widths = [Some(Arch::Scalar), pulp::x86::V3::try_new().map(Arch::V3), pulp::x86::V4::try_new().map(Arch::V4)];
    let heads = heads(1, 3, HeadMap::Grouped);
    for tokens in [1, 2, 32, 70] {
        let inputs = Inputs::seeded(heads, tokens, Family::Real, 14);
        let expected = reference_f64(&inputs);
        let mut fused: Vec<Results> = Vec::new();
        for arch in widths.into_iter().flatten() {
            let mut results = (vec![f32::NAN; inputs.out_len(tokens)], vec![f32::NAN; inputs.state_len()]);
            run_on(inputs.call(&mut results.0, &mut results.1), Path::Chunked, arch).unwrap();
            assert_close(&results, (&expected.out, &expected.state), &heads, 2e-6, &format!("{arch:?}"));
            if !matches!(arch, Arch::Scalar) {
                fused.push(results);
            }
        }
        for pair in fused.windows(2) {
            assert_same_bits(&pair[0], &pair[1], &heads, &format!("{tokens} tokens"));
        }
    }
}
