//! Forget gates at their limits: strong, saturated, exactly 0 of either sign, above 0, in patterns (cases 1, 4, 5, 6, 13).
#![forbid(unsafe_code)]
use host::HeadMap;
use host::inputs::{Family, Inputs};
use tests::{Output, bars, every_path, heads, holds_on_every_path, on_every_path, run, same_bits, same_numbers};

/// -2, -20 and -100 throughout, and A_log = 4.9, whose sums over 64 tokens reach -5,000 (case 1): one by head.
#[test]
fn strong_decay_stays_finite_and_exact() {
    for tokens in [1, 63, 64, 65, 127, 128, 130, 200] {
        let inputs = Inputs::seeded(heads(5, 5, HeadMap::Grouped), tokens, Family::Strong, 1);
        holds_on_every_path("case 1", &inputs, &bars::SEQUENTIAL);
    }
}

/// Decay at few tokens, which a wrong row's gate would miss (case 4).
#[test]
fn the_decay_of_every_row_counts() {
    for tokens in [64, 65, 111, 127, 128, 192] {
        let mut inputs = Inputs::seeded(heads(1, 1, HeadMap::Grouped), tokens, Family::Base, 2);
        inputs.beta.fill(0.99);
        for (token, g) in inputs.g.iter_mut().enumerate() {
            *g = if matches!(token % 64, 60 | 62) { -0.7 } else { 0.0 };
        }
        holds_on_every_path("case 4", &inputs, &bars::SEQUENTIAL);
    }
    // Uniform forget gates, near 1 and anywhere; beta of `Bench` is uniform in 0..1.
    for (low, seed) in [(0.99, 3), (0.0, 4)] {
        let mut inputs = Inputs::seeded(heads(1, 2, HeadMap::Grouped), 130, Family::Base, seed);
        let uniform = Inputs::seeded(inputs.heads, 130, Family::Bench, seed + 10).beta;
        for (g, u) in inputs.g.iter_mut().zip(uniform) {
            *g = (low + (1.0 - low) * u).ln();
        }
        holds_on_every_path("case 4, uniform forget gates", &inputs, &bars::SEQUENTIAL);
    }
}

/// Zeros of either sign are the same number, and g = 0 keeps the state as it is (case 5).
#[test]
fn negative_zeros_are_zeros() {
    let mut positive = Inputs::seeded(heads(2, 4, HeadMap::Tiled), 19, Family::Base, 5);
    // A head without decay, one without writes, and zeros here and there in every tensor.
    for token in 0..19 {
        positive.g[token * 4] = 0.0;
        positive.beta[token * 4 + 1] = 0.0;
    }
    let mut negative = positive.clone();
    for (to_positive, to_negative) in [
        (&mut positive.q, &mut negative.q),
        (&mut positive.k, &mut negative.k),
        (&mut positive.v, &mut negative.v),
        (&mut positive.state, &mut negative.state),
    ] {
        to_positive.iter_mut().step_by(3).for_each(|x| *x = 0.0);
        to_negative.iter_mut().step_by(3).for_each(|x| *x = -0.0);
    }
    for x in [&mut negative.g, &mut negative.beta] {
        x.iter_mut().filter(|x| **x == 0.0).for_each(|x| *x = -0.0);
    }
    let positive = holds_on_every_path("case 5, +0", &positive, &bars::SEQUENTIAL);
    let negative = holds_on_every_path("case 5, -0", &negative, &bars::SEQUENTIAL);
    for ((path, a), (_, b)) in positive.iter().zip(&negative) {
        same_numbers(&a.out, &b.out).unwrap_or_else(|e| panic!("{path:?}, out: {e}"));
        same_numbers(&a.state, &b.state).unwrap_or_else(|e| panic!("{path:?}, state: {e}"));
    }
}

/// A gate of 0 of either sign is a decay of exactly 1: without writes the state keeps its bits.
#[test]
fn a_gate_of_zero_decays_by_exactly_one() {
    for zero in [0.0, -0.0] {
        let mut inputs = Inputs::seeded(heads(1, 2, HeadMap::Grouped), 33, Family::Base, 6);
        inputs.g.fill(zero);
        inputs.beta.fill(0.0);
        for (path, output) in on_every_path(&inputs) {
            assert!(
                output.state.iter().zip(&inputs.state).all(|(a, b)| a.to_bits() == b.to_bits()),
                "{path:?}, gate {zero}"
            );
        }
    }
}

/// One saturated gate among weak ones: finite, within the bar, and from -104 on nothing of the state before it is left,
/// since e^-104 rounds to 0 in float32 (case 6).
#[test]
fn a_saturated_gate_forgets_and_leaves_no_nan() {
    let heads = heads(1, 2, HeadMap::Grouped);
    for gate in [-20.0, -88.0, -104.0, -200.0, -1e3, -1e4, -1e6, -3e38, f32::NEG_INFINITY] {
        let mut inputs = Inputs::seeded(heads, 130, Family::Base, 7);
        for (g, u) in inputs.g.iter_mut().zip(Inputs::seeded(heads, 130, Family::Bench, 8).beta) {
            *g = -0.01 * u;
        }
        for token in [5, 70] {
            inputs.g[token * 2..][..2].fill(gate);
        }
        let outputs = holds_on_every_path(&format!("case 6, {gate}"), &inputs, &bars::SEQUENTIAL);
        if gate <= -104.0 {
            let other = Inputs { state: inputs.state.iter().map(|s| 7.0 - 3.0 * s).collect(), ..inputs.clone() };
            let first_row = 5 * 2 * 128;
            for (path, a) in outputs {
                let b = run(path, &other);
                same_numbers(&a.out[first_row..], &b.out[first_row..])
                    .and_then(|()| same_numbers(&a.state, &b.state))
                    .unwrap_or_else(|e| panic!("{path:?}, gate {gate}: {e}"));
                assert_ne!(a.out[..first_row], b.out[..first_row], "the outputs before depend on the state");
            }
        }
    }
}

/// A gate that is no number spoils its own value head and no other (case 6).
#[test]
fn a_gate_of_nan_stays_in_its_head() {
    let mut inputs = Inputs::seeded(heads(1, 3, HeadMap::Grouped), 12, Family::Base, 9);
    let good = on_every_path(&inputs);
    inputs.g[5 * 3 + 1] = f32::NAN;
    for ((path, good), bad) in good.iter().zip(every_path().into_iter().map(|path| run(path, &inputs))) {
        for head in [0, 2] {
            let one = |output: &Output| -> Vec<u32> {
                let rows = output.out.chunks_exact(128).skip(head).step_by(3).flatten();
                rows.chain(&output.state[head * 128 * 128..][..128 * 128]).map(|x| x.to_bits()).collect()
            };
            assert_eq!(one(good), one(&bad), "{path:?}, head {head}");
        }
        assert!(bad.state[128 * 128..2 * 128 * 128].iter().all(|s| s.is_nan()), "{path:?}");
    }
}

/// Gates above 0 are computed as any other (case 13). That they are logs is in the type: `Gates::Log`.
#[test]
fn gates_above_zero_agree() {
    let inputs = Inputs::seeded(heads(2, 4, HeadMap::Grouped), 60, Family::Positive, 10);
    assert!(inputs.g.iter().any(|&g| g > 0.5));
    holds_on_every_path("case 13", &inputs, &bars::SEQUENTIAL);
}

/// Memory over thousands of tokens, where errors could add up. Only the CPU is fast enough without a GPU.
#[test]
fn a_long_memory_does_not_drift() {
    let inputs = Inputs::seeded(heads(2, 4, HeadMap::Grouped), 4099, Family::Slow, 11);
    let expected = tests::expected_of(&inputs);
    let mut kernels: Option<Output> = None;
    for path in every_path().into_iter().filter(|path| !matches!(path, tests::Path::Emulated(_))) {
        let output = run(path, &inputs);
        tests::agrees(&inputs.heads, &expected, &output, &bars::SEQUENTIAL).unwrap_or_else(|e| panic!("{path:?}: {e}"));
        if path.is_recurrent_kernel() {
            let first = kernels.get_or_insert_with(|| output.clone());
            same_bits(&inputs.heads, first, &output).unwrap_or_else(|e| panic!("{path:?}: {e}"));
        }
    }
}
