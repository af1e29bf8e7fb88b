//! The numbers: heads, element types, strides, normalisation.
use super::batch::{Batch, Form, rounded};
use super::states::bits;
use host::compare::{Tensor, compare};
use host::inputs::Inputs;
use host::{HEAD_DIM, HeadMap, Heads, Kernel};
use kernels_gpu::kernels::decode::NORM_L2;
use kernels_gpu::kernels::elements::{BF16, F16, F32};
use tests::{ORDERS, Output, agrees, bars, heads};

/// What the recurrent kernels make of a sequence.
fn recurrent(inputs: &Inputs) -> Output {
    let mut output = Output::poisoned(inputs);
    host::emulated::run(inputs.call(&mut output.out, &mut output.state), Kernel::RecurrentByColumn, 1).unwrap();
    output
}

/// That every sequence is within the bar of float64; `out` is what the batch gave when it was `before`.
#[track_caller]
pub fn assert_agrees(before: &Batch, after: &Batch, out: &[f32], what: &str) {
    let heads = &before.heads;
    let row = heads.num_v_heads * HEAD_DIM;
    for sequence in 0..before.lengths.len() {
        let tokens = before.tokens(sequence);
        let state = after.initial.as_ref().unwrap().slot(heads, sequence);
        let output = Output { out: out[tokens.start * row..tokens.end * row].to_vec(), state };
        agrees(heads, &before.expected(sequence, Some(sequence)), &output, &bars::SEQUENTIAL)
            .unwrap_or_else(|fails| panic!("{what}, sequence {sequence}: {fails}"));
    }
}

/// One to six value heads for each key head, both maps, every order of threads: float64's bar, and the bits of the
/// recurrent kernels.
#[test]
fn every_ratio_and_map_has_the_bits_of_the_recurrent_kernels() {
    for ratio in 1..=6 {
        for map in [HeadMap::Grouped, HeadMap::Tiled] {
            let before = Batch::seeded(heads(2, 2 * ratio, map), &[3], ratio as u64);
            let inputs = before.inputs(0, Some(0));
            let expected = recurrent(&inputs);
            for order in ORDERS {
                let mut batch = before.clone();
                let out = batch.run(order);
                assert_agrees(&before, &batch, &out, &format!("{ratio} {map:?}"));
                assert_eq!(bits(&out), bits(&expected.out), "{ratio} {map:?}");
                let state = batch.initial.unwrap().slot(&before.heads, 0);
                assert_eq!(bits(&state), bits(&expected.state), "{ratio} {map:?}");
            }
        }
    }
}

fn two_heads() -> Heads {
    heads(1, 2, HeadMap::Grouped)
}

/// Numbers that every element type holds give the same bits in each of them, one tensor at a time (case 21).
#[test]
fn the_same_numbers_in_any_element_type_have_the_same_bits() {
    let mut batch = Batch::seeded(two_heads(), &[2, 3], 4);
    let coarse =
        |values: &mut Vec<f32>| values.iter_mut().for_each(|x| *x = (*x * 64.0).round().clamp(-64.0, 64.0) / 64.0);
    for values in [&mut batch.q, &mut batch.k, &mut batch.v, &mut batch.g, &mut batch.beta] {
        coarse(values);
    }
    let mut first = batch.clone();
    let expected = first.run(0);
    for element in [F16, BF16, F16, F32] {
        for (name, form) in [
            ("q, k, v", Form { element, ..Form::DENSE }),
            ("g", Form { g_element: element, ..Form::DENSE }),
            ("beta", Form { beta_element: element, ..Form::DENSE }),
            ("all", Form { element, g_element: element, beta_element: element, ..Form::DENSE }),
        ] {
            let mut other = Batch { form, ..batch.clone() };
            assert_eq!(bits(&other.run(1)), bits(&expected), "{name} in {element}");
            assert_eq!(bits(&other.initial.unwrap().data), bits(&first.initial.as_ref().unwrap().data), "{name}");
        }
        let mut other = Batch { form: Form { out_element: element, ..Form::DENSE }, ..batch.clone() };
        assert_eq!(bits(&other.run(1)), bits(&rounded(&expected, element)), "out in {element}");
    }
}

/// Numbers that are rounded on their way in, against float64 on the rounded numbers.
#[test]
fn sixteen_bit_inputs() {
    for element in [BF16, F16] {
        let form = Form { element, g_element: element, beta_element: element, ..Form::DENSE };
        let before = Batch { form, ..Batch::seeded(two_heads(), &[5], 8) };
        let mut batch = before.clone();
        let out = batch.run(2);
        assert_agrees(&before, &batch, &out, &format!("element {element}"));
    }
}

/// Views at any strides and addresses have the dense bits, and what lies between rows is neither read nor written (case 10).
#[test]
fn views_have_the_dense_bits() {
    let batch = Batch::seeded(two_heads(), &[2, 2], 5);
    for element in [F32, BF16, F16] {
        let form = Form { element, g_element: element, beta_element: element, ..Form::DENSE };
        let mut dense = Batch { form, ..batch.clone() };
        let expected = dense.run(0);
        for packed in [true, false] {
            for (start, gap) in [(0, 0), (1, 0), (2, 2), (4, 4), (8, 1), (3, 5)] {
                let form = Form { packed, start, gap, ..form };
                let mut other = Batch { form, ..batch.clone() };
                assert_eq!(bits(&other.run(1)), bits(&expected), "{form:?}");
                assert_eq!(bits(&other.initial.unwrap().data), bits(&dense.initial.as_ref().unwrap().data), "{form:?}");
            }
        }
        // 16-bit outputs on odd addresses go one by one, which the emulator's race check, by words, cannot tell from a race.
        for (out_element, out_start, gap) in [(F32, 1, 3), (BF16, 2, 2), (F16, 6, 4)] {
            let form = Form { out_element, out_start, gap, ..form };
            let mut other = Batch { form, ..batch.clone() };
            assert_eq!(bits(&other.run(1)), bits(&rounded(&expected, out_element)), "{form:?}");
        }
    }
}

/// `x / sqrt(sum x^2 + eps)` in float64.
fn normalised(values: &[f32], eps: f32) -> Vec<f32> {
    let mut result = Vec::new();
    for row in values.chunks_exact(HEAD_DIM) {
        let squares: f64 = row.iter().map(|&x| f64::from(x).powi(2)).sum();
        result.extend(row.iter().map(|&x| (f64::from(x) / (squares + f64::from(eps)).sqrt()) as f32));
    }
    result
}

/// The epsilon is added to the sum; small keys stay small, and zero stays zero (case 48).
#[test]
fn keys_and_queries_of_any_length() {
    for factor in [8.0, 1.0, 1e-2, 1e-3, 1e-4, 0.0] {
        for norm_eps in [1e-6, 0.0] {
            let mut batch = Batch::seeded(two_heads(), &[4], 6);
            batch.k.iter_mut().for_each(|k| *k *= factor);
            batch.q.iter_mut().for_each(|q| *q *= 3.0);
            if factor == 0.0 {
                batch.q.fill(0.0);
            }
            let mut before = batch.clone();
            let scaled = if factor == 0.0 { 0.0 } else { norm_eps };
            before.k = normalised(&batch.k, if factor == 0.0 { 1.0 } else { scaled });
            before.q = normalised(&batch.q, if factor == 0.0 { 1.0 } else { scaled });
            batch.norm = NORM_L2;
            batch.norm_eps = norm_eps;
            let out = batch.run(1);
            let what = format!("factor {factor}, eps {norm_eps}");
            if factor == 0.0 {
                assert!(out.iter().all(|&o| o == 0.0), "{what}");
            } else {
                let expected = before.expected(0, Some(0));
                let comparison = compare(Tensor::Out, &before.heads, &expected.out, &out);
                assert!(comparison.relative_by_head <= 2e-6 && comparison.not_finite == 0, "{what}: {comparison:?}");
            }
            let expected = before.expected(0, Some(0));
            let state = batch.initial.unwrap().slot(&before.heads, 0);
            let comparison = compare(Tensor::State, &before.heads, &expected.state, &state);
            assert!(comparison.relative_by_head <= 2e-6 && comparison.not_finite == 0, "{what}: {comparison:?}");
        }
    }
}

/// A state of 1e4 read by a long query: 113,137, which f16 cannot hold (case 23).
#[test]
fn a_readout_above_the_range_of_f16() {
    for (out_element, expected) in [(F32, 113_137.0), (BF16, 113_152.0), (F16, f32::INFINITY)] {
        let mut batch = Batch::seeded(heads(1, 1, HeadMap::Grouped), &[1], 1);
        batch.q.fill(1.0 / (HEAD_DIM as f32).sqrt());
        for values in [&mut batch.k, &mut batch.beta, &mut batch.g] {
            values.fill(0.0);
        }
        batch.scale = 1.0;
        batch.form.out_element = out_element;
        batch.initial.as_mut().unwrap().data.fill(1e4);
        let before = batch.initial.clone().unwrap();
        let out = batch.run(1);
        assert!(out.iter().all(|&o| o == expected || (o - expected).abs() < 0.5), "{expected}: {}", out[0]);
        assert_eq!(bits(&batch.initial.unwrap().data), bits(&before.data), "the state changed");
    }
}
