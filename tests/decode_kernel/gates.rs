//! Raw gates: `g = -exp(a_log) softplus(a + dt_bias)`, `beta = factor sigmoid(b)`, at their limits (case 6); gates that are
//! not logs (case 13).
use super::batch::Batch;
use super::batch::rounded;
use super::numbers::assert_agrees;
use super::states::bits;
use host::HeadMap;
use kernels_gpu::kernels::decode::{GATES_A_LOG, GATES_LINEAR, GATES_NEGATIVE_EXP};
use kernels_gpu::kernels::elements::{BF16, F16, F32};
use tests::heads;

/// A batch with these a and b, and the same with the gates that float64 makes of them.
fn raw(a: f32, b: f32, beta_factor: f32, element: u32) -> (Batch, Batch) {
    let mut batch = Batch::seeded(heads(1, 3, HeadMap::Tiled), &[3], 7);
    let tokens = batch.g.len();
    // One ordinary token between those that are asked for.
    let ordinary = |index: usize| (tokens / 3..2 * tokens / 3).contains(&index);
    batch.g = (0..tokens).map(|i| if ordinary(i) { 0.3 } else { a }).collect();
    batch.beta = (0..tokens).map(|i| if ordinary(i) { -0.2 } else { b }).collect();
    batch.a_log = vec![-1.0, 0.5, 1.2];
    batch.dt_bias = vec![0.25, -0.5, 0.0];
    batch.gates = GATES_A_LOG;
    batch.beta_factor = beta_factor;
    (batch.form.g_element, batch.form.beta_element) = (element, element);

    let mut plain = batch.clone();
    (plain.form.g_element, plain.form.beta_element) = (F32, F32);
    for (index, (g, beta)) in plain.g.iter_mut().zip(&mut plain.beta).enumerate() {
        let head = index % 3;
        let [a, b] = [rounded(&[*g], element)[0], rounded(&[*beta], element)[0]].map(f64::from);
        let x = a + f64::from(batch.dt_bias[head]);
        let softplus = if x > 20.0 { x } else { x.exp().ln_1p() };
        *g = (-f64::from(batch.a_log[head]).exp() * softplus) as f32;
        *beta = (f64::from(beta_factor) / (1.0 + (-b).exp())) as f32;
    }
    (batch, plain)
}

#[test]
fn softplus_and_sigmoid_at_any_argument() {
    for a in [-3e38, -100.0, -20.0, -1.0, 0.0, 1.0, 19.0, 21.0, 100.0, 3e38] {
        let (before, plain) = raw(a, 0.5, 1.0, F32);
        let mut batch = before.clone();
        let out = batch.run(1);
        assert_agrees(&plain, &batch, &out, &format!("a = {a}"));
    }
    for b in [-3e38, -100.0, -3.0, 0.0, 3.0, 100.0, 3e38] {
        for beta_factor in [1.0, 2.0] {
            let (before, plain) = raw(-2.0, b, beta_factor, F32);
            let mut batch = before.clone();
            let out = batch.run(1);
            assert_agrees(&plain, &batch, &out, &format!("b = {b}, {beta_factor}"));
        }
    }
}

/// What 16 bits cannot hold arrives as an infinity.
#[test]
fn infinite_and_sixteen_bit_arguments() {
    for (a, b, element) in [
        (f32::INFINITY, f32::INFINITY, F32),
        (f32::NEG_INFINITY, f32::NEG_INFINITY, F32),
        (1e5, -1e5, F16),
        (-1e5, 1e5, F16),
        (0.7, -0.3, BF16),
        (0.7, -0.3, F16),
    ] {
        let (before, plain) = raw(a, b, 1.0, element);
        let mut batch = before.clone();
        let out = batch.run(1);
        assert_agrees(&plain, &batch, &out, &format!("{a}, {b} in {element}"));
    }
}

/// Files that hold `-exp(a_log)` need no conversion.
#[test]
fn the_rate_may_be_given_itself() {
    let (mut batch, plain) = raw(0.5, 0.5, 1.0, F32);
    let before = batch.clone();
    let out = batch.run(1);
    let mut other = before.clone();
    other.gates = GATES_NEGATIVE_EXP;
    for rate in &mut other.a_log {
        *rate = -cuda_std::float::exp(*rate);
    }
    assert_eq!(bits(&other.run(1)), bits(&out));
    assert_agrees(&plain, &other, &out, "the rate itself");
}

/// The forget gate itself instead of its log.
#[test]
fn linear_gates_have_the_bits_of_their_logs() {
    let mut batch = Batch::seeded(heads(1, 3, HeadMap::Tiled), &[4, 1], 7);
    batch.g[2] = f32::NEG_INFINITY;
    let mut linear = batch.clone();
    linear.gates = GATES_LINEAR;
    linear.g.iter_mut().for_each(|g| *g = cuda_std::float::exp(*g));
    assert_eq!(bits(&linear.run(1)), bits(&batch.run(1)));
    assert_eq!(bits(&linear.initial.unwrap().data), bits(&batch.initial.unwrap().data));
}
