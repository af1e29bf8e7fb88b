//! `float::exp` against the exponential in `f64`.
use cuda_std::float::exp;

/// How far `exp(x)` is from the exact value, in units in the last place of an `f32` of that size.
fn error(x: f32) -> f64 {
    let exact = f64::from(x).exp();
    // The exponent of the exact value, or of the smallest normal number: below it all units are 2^-149.
    let exponent = exact.log2().floor().max(-126.0) as i32;
    let unit = 2.0_f64.powi(exponent - 23);
    (f64::from(exp(x)) - exact).abs() / unit
}

/// The largest error over floats, and where it is.
fn worst(values: impl Iterator<Item = f32>) -> (f64, f32) {
    values.map(|x| (error(x), x)).fold((0.0, 0.0), |worst, here| if here.0 > worst.0 { here } else { worst })
}

/// Every 997th float from zero to `limit`, with the sign of `limit`.
fn bit_patterns(limit: f32) -> impl Iterator<Item = f32> {
    let sign = limit.to_bits() & 1 << 31;
    (0..=limit.abs().to_bits()).step_by(997).map(move |bits| f32::from_bits(sign | bits))
}

/// Two million floats from zero to `limit`, evenly spaced.
fn even_steps(limit: f32) -> impl Iterator<Item = f32> {
    (0..=2_000_000).map(move |step| limit * (step as f32 / 2e6))
}

#[test]
fn within_two_units_below_zero() {
    for (error, x) in [worst(bit_patterns(-104.0)), worst(even_steps(-104.0))] {
        println!("largest error {error:.3} units at {x:e}");
        assert!(error <= 2.0, "{error} units at {x:e}");
    }
}

#[test]
fn within_two_units_above_zero() {
    for (error, x) in [worst(bit_patterns(88.7)), worst(even_steps(88.7))] {
        println!("largest error {error:.3} units at {x:e}");
        assert!(error <= 2.0, "{error} units at {x:e}");
    }
}

#[test]
fn ends_of_the_range() {
    for x in [-104.000_01, -104.5, -105.0, -105.5, -1e4, f32::MIN, f32::NEG_INFINITY] {
        assert_eq!(exp(x).to_bits(), 0, "{x}");
    }
    assert_eq!((exp(0.0), exp(-0.0)), (1.0, 1.0));
    assert_eq!(exp(-103.0).to_bits(), 1 + u32::from(f64::from(-103.0_f32).exp() > 1.5 * 2.0_f64.powi(-149)));
    for x in [89.0, 90.0, 1e4, f32::MAX, f32::INFINITY] {
        assert_eq!(exp(x), f32::INFINITY, "{x}");
    }
    assert!(exp(f32::NAN).is_nan());
    assert!(exp(-f32::NAN).is_nan());
}
