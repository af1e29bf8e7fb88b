//! What a token's gates do to the state: from g, or its exponential, and beta as they are, or from a and b. Shared with
//! [`super::super::widen`], so that the chunked kernels are given the numbers that decode computes with.
//!
//! Everything here is additions, multiplications, [`fma`], divisions and [`exp`], so that the emulator gives the GPU's bits.
//! No token overflows, since exponentials of its numbers are of negative ones alone.
use super::super::elements::{Raw, widen};
use super::{GATES_A_LOG, GATES_LINEAR, GATES_LOG, GATES_NEGATIVE_EXP};
use cuda_std::Global;
use cuda_std::float::{exp, fma};

/// What the gates of a call are, as a kernel's arguments say.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// `GATES_LOG` and its like.
    pub gates: u32,
    /// Element type of g or a.
    pub g_element: u32,
    /// Element type of beta or b.
    pub beta_element: u32,
    /// `[value heads]`, read where gates are raw.
    pub a_log: Global<f32>,
    /// `[value heads]`, read where gates are raw.
    pub dt_bias: Global<f32>,
    /// Multiplies the sigmoid of raw gates.
    pub beta_factor: f32,
}

/// The gates of one value head.
#[derive(Clone, Copy, Debug)]
pub struct Gates {
    kind: Kind,
    a_log: f32,
    bias: f32,
}

impl Gates {
    /// Those of `value_head`.
    ///
    /// # Safety
    /// Where gates are raw, `a_log` and `dt_bias` have the head.
    #[inline(always)]
    pub unsafe fn of(kind: Kind, value_head: usize) -> Self {
        let (mut a_log, mut bias) = (0.0, 0.0);
        if matches!(kind.gates, GATES_A_LOG | GATES_NEGATIVE_EXP) {
            // SAFETY: bounds: one number a value head, by the caller; read only.
            (a_log, bias) = unsafe { (kind.a_log.at(value_head), kind.dt_bias.at(value_head)) };
        }
        Self { kind, a_log, bias }
    }

    /// A token's `e^g` and beta.
    #[inline(always)]
    pub fn decay_and_beta(&self, g: Raw, beta: Raw) -> (f32, f32) {
        if self.kind.gates == GATES_LINEAR {
            return (widen(self.kind.g_element, g), widen(self.kind.beta_element, beta));
        }
        let (g, beta) = self.log_and_beta(g, beta);
        (exp(g), beta)
    }

    /// A token's g and beta.
    #[inline(always)]
    pub fn log_and_beta(&self, g: Raw, beta: Raw) -> (f32, f32) {
        let Kind { gates, g_element, beta_element, beta_factor, .. } = self.kind;
        let (g, beta) = (widen(g_element, g), widen(beta_element, beta));
        if gates == GATES_LOG {
            (g, beta)
        } else if gates == GATES_LINEAR {
            (ln(g), beta)
        } else {
            let rate = if gates == GATES_A_LOG { -exp(self.a_log) } else { self.a_log };
            (rate * softplus(g + self.bias), beta_factor * sigmoid(beta))
        }
    }
}

/// `ln(1 + e^x)` within 3e-7 of its value, `x` itself above 20: `max(x, 0) + ln(1 + y)` with `y = e^-|x|`, and for the second
/// term the series of `2 artanh(y / (2 + y))`, whose argument is at most a third.
#[inline(always)]
fn softplus(x: f32) -> f32 {
    /// 1 / (2 n + 1), from the last term on.
    const SERIES: [f32; 8] = [1.0 / 15.0, 1.0 / 13.0, 1.0 / 11.0, 1.0 / 9.0, 1.0 / 7.0, 1.0 / 5.0, 1.0 / 3.0, 1.0];
    let y = exp(-x.abs());
    let reciprocal = 1.0 / (2.0 + y);
    let argument = y * reciprocal;
    let square = argument * argument;
    let mut series = SERIES[0];
    let mut i = 1;
    while i < SERIES.len() {
        series = fma(series, square, SERIES[i]);
        i += 1;
    }
    // y times twice the reciprocal: the argument itself loses bits where y is subnormal.
    let logarithm = y * (2.0 * reciprocal) * series;
    if x > 0.0 { x + logarithm } else { logarithm }
}

/// The natural logarithm within 3e-7 of its value, -inf of 0. With `x = m 2^n` and m from 0.7 to 1.4 on: `n ln 2`, and the series
/// of `2 artanh((m - 1) / (m + 1))`, whose argument is below 0.172, so that next to 1 no bit is lost.
#[inline(always)]
fn ln(x: f32) -> f32 {
    /// 1 / (2 n + 1), from the last term on.
    const SERIES: [f32; 6] = [1.0 / 11.0, 1.0 / 9.0, 1.0 / 7.0, 1.0 / 5.0, 1.0 / 3.0, 1.0];
    /// The bits of the square root of a half.
    const LEAST: u32 = core::f32::consts::FRAC_1_SQRT_2.to_bits();
    if !(x > 0.0 && x < f32::INFINITY) {
        return if x == 0.0 {
            f32::NEG_INFINITY
        } else if x > 0.0 {
            x
        } else {
            f32::NAN
        };
    }
    // Subnormal numbers get an exponent of their own.
    let (scaled, shift) = if x < f32::MIN_POSITIVE { (x * 16_777_216.0, 24) } else { (x, 0) };
    let n = scaled.to_bits().wrapping_sub(LEAST) as i32 >> 23;
    let m = f32::from_bits(scaled.to_bits().wrapping_sub((n << 23) as u32));
    let argument = (m - 1.0) / (m + 1.0);
    let square = argument * argument;
    let mut series = SERIES[0];
    let mut i = 1;
    while i < SERIES.len() {
        series = fma(series, square, SERIES[i]);
        i += 1;
    }
    fma((n - shift) as f32, core::f32::consts::LN_2, 2.0 * argument * series)
}

/// `1 / (1 + e^-x)`.
#[inline(always)]
fn sigmoid(x: f32) -> f32 {
    let y = exp(-x.abs());
    let at_positive = 1.0 / (1.0 + y);
    if x >= 0.0 { at_positive } else { y * at_positive }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers of every size from -110 to 110.
    fn numbers() -> impl Iterator<Item = f32> {
        let sizes = (1e-6f32.to_bits()..=110f32.to_bits()).step_by(9973).map(f32::from_bits);
        sizes.flat_map(|x| [x, -x]).chain([0.0, -0.0])
    }

    #[track_caller]
    fn assert_near(x: f32, value: f32, exact: f64, bar: f64) {
        // Below the normal numbers, units are of one size.
        let error = (f64::from(value) - exact).abs() / exact.max(f64::from(f32::MIN_POSITIVE));
        assert!(error <= bar, "{x}: {value} is not {exact} ({error:.1e})");
    }

    #[test]
    fn softplus_is_exact_to_a_few_units() {
        for x in numbers() {
            let exact = f64::from(x).exp().ln_1p();
            assert_near(x, softplus(x), exact, 3e-7);
            if x > 20.0 {
                assert_eq!(softplus(x), x);
            }
        }
        for (x, value) in [(f32::INFINITY, f32::INFINITY), (f32::MAX, f32::MAX), (f32::NEG_INFINITY, 0.0), (-3e38, 0.0)]
        {
            assert_eq!(softplus(x), value, "{x}");
        }
        assert!(softplus(f32::NAN).is_nan());
    }

    #[test]
    fn ln_is_exact_to_a_few_units() {
        let sizes = (1..f32::MAX.to_bits()).step_by(9973).map(f32::from_bits);
        let next_to_one = (-2000..2000).map(|units| f32::from_bits(1f32.to_bits().wrapping_add_signed(units)));
        for x in sizes.chain(next_to_one) {
            let exact = f64::from(x).ln();
            let error = (f64::from(ln(x)) - exact).abs();
            assert!(error <= 3e-7 * exact.abs(), "{x:e}: {} is not {exact} ({error:.1e})", ln(x));
        }
        for (x, value) in
            [(0.0, f32::NEG_INFINITY), (-0.0, f32::NEG_INFINITY), (1.0, 0.0), (f32::INFINITY, f32::INFINITY)]
        {
            assert_eq!(ln(x), value, "{x}");
        }
        for x in [-1.0, f32::NEG_INFINITY, f32::NAN, -1e-45] {
            assert!(ln(x).is_nan(), "{x}");
        }
    }

    #[test]
    fn sigmoid_is_exact_to_a_few_units() {
        for x in numbers() {
            let y = (-f64::from(x).abs()).exp();
            assert_near(x, sigmoid(x), if x >= 0.0 { 1.0 / (1.0 + y) } else { y / (1.0 + y) }, 3e-7);
        }
        for (x, value) in [(f32::INFINITY, 1.0), (f32::NEG_INFINITY, 0.0), (0.0, 0.5)] {
            assert_eq!(sigmoid(x), value, "{x}");
        }
        assert!(sigmoid(f32::NAN).is_nan());
    }
}
