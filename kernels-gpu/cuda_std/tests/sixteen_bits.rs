//! Conversions between 32-bit floats and 16-bit ones against the crate `half`, and the square root.
use cuda_std::float::{sqrt, to_bf16, to_f16, unpack_bf16x2, unpack_f16x2};
use half::{bf16, f16};

/// Floats of every size and both signs, those around halfway between 16-bit ones included.
fn floats() -> impl Iterator<Item = f32> {
    let patterns = (0..=u32::MAX).step_by(65_521).chain((0..=u32::MAX >> 12).map(|bits| bits << 12));
    patterns.flat_map(|bits| [bits, bits | 1, bits.wrapping_sub(1)]).map(f32::from_bits)
}

#[test]
fn rounding_is_to_the_nearest_even() {
    for value in floats() {
        let (ours, theirs) = (bf16::from_bits(to_bf16(value)), bf16::from_f32(value));
        assert!(ours.to_bits() == theirs.to_bits() || ours.is_nan() && theirs.is_nan(), "{value:e}: {ours} {theirs}");
        let (ours, theirs) = (f16::from_bits(to_f16(value)), f16::from_f32(value));
        assert!(ours.to_bits() == theirs.to_bits() || ours.is_nan() && theirs.is_nan(), "{value:e}: {ours} {theirs}");
    }
    for nan in [f32::NAN, f32::from_bits(0x7f80_0001), f32::from_bits(u32::MAX)] {
        assert!(bf16::from_bits(to_bf16(nan)).is_nan() && f16::from_bits(to_f16(nan)).is_nan());
    }
    assert_eq!(to_f16(113_137.0), f16::INFINITY.to_bits());
    assert_eq!(bf16::from_bits(to_bf16(113_137.0)).to_f32(), 113_152.0);
}

#[test]
fn widening_is_exact() {
    for bits in 0..=u16::MAX {
        let pair = u32::from(bits) | u32::from(!bits) << 16;
        let same = |a: f32, b: f32| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
        let (low, high) = unpack_bf16x2(pair);
        assert!(same(low, bf16::from_bits(bits).to_f32()) && same(high, bf16::from_bits(!bits).to_f32()));
        let (low, high) = unpack_f16x2(pair);
        assert!(same(low, f16::from_bits(bits).to_f32()) && same(high, f16::from_bits(!bits).to_f32()));
    }
}

#[test]
fn the_square_root_is_the_processors() {
    assert_eq!(sqrt(2.0).to_bits(), std::f32::consts::SQRT_2.to_bits());
    assert!(sqrt(-1.0).is_nan() && sqrt(0.0) == 0.0 && sqrt(f32::INFINITY) == f32::INFINITY);
}
