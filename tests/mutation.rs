//! The suite's own checks go red (case 55): mistakes that implementations have made, each of which the checks that all
//! cases use must catch.
#![forbid(unsafe_code)]
use host::inputs::{Family, Inputs};
use host::{HeadMap, Heads};
use tests::{Output, Path, agrees, bars, close, expected_of, heads, run, same_bits, same_numbers, untouched};

const DIM: usize = 128;
const TOKENS: usize = 33;
const VALUE_HEADS: usize = 6;
const CPU: Path = Path::Cpu(host::cpu::Path::Recurrent);

fn inputs() -> Inputs {
    Inputs::seeded(heads(2, VALUE_HEADS, HeadMap::Grouped), TOKENS, Family::Base, 1)
}

/// That the check which every case uses tells `output` from what `inputs` give.
#[track_caller]
fn assert_caught(what: &str, inputs: &Inputs, output: &Output) {
    let verdict = agrees(&inputs.heads, &expected_of(inputs), output, &bars::SEQUENTIAL);
    assert!(verdict.is_err(), "{what} passes for right");
    let right = run(CPU, inputs);
    assert!(same_bits(&inputs.heads, &right, output).is_err(), "{what} has the right bits");
    let near = close(&inputs.heads, &right, output, &bars::CUT_ON_TENSOR_CORES);
    assert!(near.is_err(), "{what} passes for a cut prompt");
}

/// Swaps two rows of every token.
fn swap(tensor: &mut [f32], count: usize, dim: usize, a: usize, b: usize) {
    for token in tensor.chunks_exact_mut(count * dim) {
        for i in 0..dim {
            token.swap(a * dim + i, b * dim + i);
        }
    }
}

fn transpose(state: &mut [f32]) {
    for s in state.chunks_exact_mut(DIM * DIM) {
        for row in 0..DIM {
            for column in 0..row {
                s.swap(row * DIM + column, column * DIM + row);
            }
        }
    }
}

/// A path that computes something else: the right computation on spoiled inputs.
#[test]
fn spoiled_inputs_are_caught() {
    type Spoil = fn(&mut Inputs);
    let spoils: [(&str, Spoil); 16] = [
        ("a scale off by one percent", |inputs| inputs.scale *= 1.01),
        ("a scale off by one in ten thousand", |inputs| inputs.scale *= 1.0001),
        ("no scale", |inputs| inputs.scale = 1.0),
        ("two key heads swapped", |inputs| {
            swap(&mut inputs.k, 2, DIM, 0, 1);
            swap(&mut inputs.q, 2, DIM, 0, 1);
        }),
        ("the other head map", |inputs| inputs.heads = heads(2, VALUE_HEADS, HeadMap::Tiled)),
        ("the gate of the next token", |inputs| inputs.g.rotate_left(VALUE_HEADS)),
        ("the gate of the token before", |inputs| inputs.g.rotate_right(VALUE_HEADS)),
        ("the gate of the next head", |inputs| inputs.g.rotate_left(1)),
        ("the strength of the next token", |inputs| inputs.beta.rotate_left(VALUE_HEADS)),
        ("no strengths", |inputs| inputs.beta.fill(1.0)),
        ("no gates", |inputs| inputs.g.fill(0.0)),
        ("a forget gate in place of its log", |inputs| inputs.g.iter_mut().for_each(|g| *g = g.exp())),
        ("q and k swapped", |inputs| std::mem::swap(&mut inputs.q, &mut inputs.k)),
        ("a state that is ignored", |inputs| inputs.state.fill(0.0)),
        ("a state that is transposed", |inputs| transpose(&mut inputs.state)),
        ("one value of one token", |inputs| inputs.v[20 * VALUE_HEADS * DIM + 77] += 1e-2),
    ];
    let right = inputs();
    for (what, spoil) in spoils {
        let mut spoiled = right.clone();
        spoil(&mut spoiled);
        assert_caught(what, &right, &run(CPU, &spoiled));
    }
}

/// A path that writes something else: the right result, spoiled.
#[test]
fn spoiled_outputs_are_caught() {
    type Spoil = fn(&mut Output);
    const LAST: usize = (TOKENS - 1) * VALUE_HEADS * DIM;
    let spoils: [(&str, Spoil); 16] = [
        ("an output off by one percent", |output| output.out.iter_mut().for_each(|o| *o *= 1.01)),
        ("a state off by one percent", |output| output.state.iter_mut().for_each(|s| *s *= 1.01)),
        ("a last token that is not written", |output| output.out[LAST..].fill(f32::NAN)),
        ("a last token of zeros", |output| output.out[LAST..].fill(0.0)),
        ("a missing last token", |output| output.out.truncate(LAST)),
        ("two heads of the output swapped", |output| swap(&mut output.out, VALUE_HEADS, DIM, 1, 4)),
        ("two heads of the state swapped", |output| swap(&mut output.state, VALUE_HEADS, DIM * DIM, 1, 4)),
        ("a transposed state", |output| transpose(&mut output.state)),
        ("outputs one token late", |output| output.out.rotate_right(VALUE_HEADS * DIM)),
        ("a column of NaN", |output| output.out.iter_mut().skip(5).step_by(DIM).for_each(|o| *o = f32::NAN)),
        ("a column of a state that is NaN", |output| {
            output.state.iter_mut().skip(127).step_by(DIM).for_each(|s| *s = f32::NAN);
        }),
        ("one infinite element", |output| output.state[DIM * DIM * VALUE_HEADS - 1] = f32::INFINITY),
        ("one element of the output", |output| output.out[12_345] += 1e-3),
        ("one element of the state", |output| output.state[54_321] += 1e-3),
        ("a negative output", |output| output.out.iter_mut().for_each(|o| *o = -*o)),
        ("nothing but zeros", |output| {
            output.out.fill(0.0);
            output.state.fill(0.0);
        }),
    ];
    let inputs = inputs();
    for (what, spoil) in spoils {
        let mut output = run(CPU, &inputs);
        spoil(&mut output);
        assert_caught(what, &inputs, &output);
    }
}

/// A mistake in the mathematics, for [`model`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mistake {
    None,
    /// The correction looks at the state before its decay.
    DecayAfterError,
    /// The state never decays.
    DecayOfCorrectionOnly,
    /// The output is read before the token is written.
    OutputBeforeWrite,
    /// The state's part at the key is not taken off.
    NoCorrection,
    /// The strength weighs the value alone.
    StrengthOfValueOnly,
    /// The last row of the state is left out of the sums.
    ShortSums,
    /// The state is kept in 16 bits, as brain floats, between tokens.
    StateIn16Bits,
    /// The last token does not reach the state.
    LastTokenNotWritten,
}

/// The recurrence in float64, with one mistake.
fn model(inputs: &Inputs, mistake: Mistake) -> Output {
    let Heads { num_k_heads, num_v_heads, .. } = inputs.heads;
    let mut output = Output::poisoned(inputs);
    for head in 0..num_v_heads {
        let key_head = inputs.heads.k_head(head);
        let mut s: Vec<f64> = inputs.state[head * DIM * DIM..][..DIM * DIM].iter().map(|&s| f64::from(s)).collect();
        let rows = if mistake == Mistake::ShortSums { DIM - 1 } else { DIM };
        let dot = |s: &[f64], x: &[f32], column: usize| -> f64 {
            (0..rows).map(|row| s[row * DIM + column] * f64::from(x[row])).sum()
        };
        for token in 0..inputs.tokens {
            let q = &inputs.q[(token * num_k_heads + key_head) * DIM..][..DIM];
            let k = &inputs.k[(token * num_k_heads + key_head) * DIM..][..DIM];
            let v = &inputs.v[(token * num_v_heads + head) * DIM..][..DIM];
            let decay = f64::from(inputs.g[token * num_v_heads + head]).exp();
            let beta = f64::from(inputs.beta[token * num_v_heads + head]);
            for column in 0..DIM {
                let v = f64::from(v[column]);
                let at_key = dot(&s, k, column);
                let d = match mistake {
                    Mistake::DecayAfterError => beta * (v - at_key),
                    Mistake::NoCorrection => beta * v,
                    Mistake::StrengthOfValueOnly => beta * v - decay * at_key,
                    _ => beta * (v - decay * at_key),
                };
                let before = dot(&s, q, column);
                for row in 0..DIM {
                    let kept = if mistake == Mistake::DecayOfCorrectionOnly { 1.0 } else { decay };
                    let written = if mistake == Mistake::LastTokenNotWritten && token + 1 == inputs.tokens {
                        0.0
                    } else {
                        f64::from(k[row]) * d
                    };
                    let s = &mut s[row * DIM + column];
                    *s = kept * *s + written;
                    if mistake == Mistake::StateIn16Bits {
                        *s = f64::from(f32::from_bits((*s as f32).to_bits() & 0xffff_0000));
                    }
                }
                let o = if mistake == Mistake::OutputBeforeWrite { before } else { dot(&s, q, column) };
                output.out[(token * num_v_heads + head) * DIM + column] = (o * f64::from(inputs.scale)) as f32;
            }
        }
        for (to, s) in output.state[head * DIM * DIM..][..DIM * DIM].iter_mut().zip(s) {
            *to = s as f32;
        }
    }
    output
}

/// Mistakes in the mathematics, and that without one the model is right.
#[test]
fn mistaken_mathematics_are_caught() {
    let inputs = Inputs::seeded(heads(1, 2, HeadMap::Grouped), 17, Family::Base, 2);
    let right = model(&inputs, Mistake::None);
    agrees(&inputs.heads, &expected_of(&inputs), &right, &bars::SEQUENTIAL).unwrap();
    for mistake in [
        Mistake::DecayAfterError,
        Mistake::DecayOfCorrectionOnly,
        Mistake::OutputBeforeWrite,
        Mistake::NoCorrection,
        Mistake::StrengthOfValueOnly,
        Mistake::ShortSums,
        Mistake::StateIn16Bits,
        Mistake::LastTokenNotWritten,
    ] {
        assert_caught(&format!("{mistake:?}"), &inputs, &model(&inputs, mistake));
    }
}

/// A head whose numbers are small beside the others' is not lost in the measure of the whole.
#[test]
fn a_quiet_head_is_not_drowned() {
    let mut inputs = Inputs::seeded(heads(1, 2, HeadMap::Grouped), 9, Family::Base, 3);
    for (tensor, row) in [(&mut inputs.v, DIM), (&mut inputs.state, DIM * DIM)] {
        tensor.chunks_exact_mut(row).step_by(2).flatten().for_each(|x| *x *= 1e-3);
    }
    let mut output = run(CPU, &inputs);
    agrees(&inputs.heads, &expected_of(&inputs), &output, &bars::SEQUENTIAL).unwrap();
    output.out.chunks_exact_mut(DIM).step_by(2).flatten().for_each(|o| *o *= 1.1);
    assert_caught("a quiet head off by ten percent", &inputs, &output);
}

/// One bit, one sign of zero, one element outside.
#[test]
fn single_bits_are_caught() {
    let inputs = inputs();
    let right = run(CPU, &inputs);
    for bit in [0, 12, 31] {
        for index in [0, 7_777, right.out.len() - 1] {
            let mut flipped = right.clone();
            flipped.out[index] = f32::from_bits(flipped.out[index].to_bits() ^ 1 << bit);
            assert!(same_bits(&inputs.heads, &right, &flipped).is_err());
            let mut flipped = right.clone();
            flipped.state[index] = f32::from_bits(flipped.state[index].to_bits() ^ 1 << bit);
            assert!(same_bits(&inputs.heads, &right, &flipped).is_err());
        }
    }
    assert!(same_bits(&inputs.heads, &right, &right).is_ok());

    assert!(same_numbers(&[0.0, 1.0], &[-0.0, 1.0]).is_ok());
    for bad in [[0.0, 1.0 + f32::EPSILON], [1e-45, 1.0], [f32::NAN, 1.0]] {
        assert!(same_numbers(&[0.0, 1.0], &bad).is_err(), "{bad:?}");
        assert!(same_numbers(&bad, &[0.0, 1.0]).is_err(), "{bad:?}");
    }
    assert!(same_numbers(&[f32::NAN], &[f32::NAN]).is_err());

    let before = [1.0, f32::NAN, 3.0];
    assert!(untouched(&before, &[1.0, f32::NAN, 4.0], |index| index == 2).is_ok());
    assert!(untouched(&before, &[1.0, f32::NAN, 4.0], |_| false).is_err());
    assert!(untouched(&before, &[1.0, -f32::NAN, 3.0], |_| false).is_err());
    assert!(untouched(&[0.0], &[-0.0], |_| false).is_err());
}
