//! Arithmetic whose bits must be the same on the GPU and in the emulator.
use crate::imp;

/// `a * b + c`, rounded once. PTX `fma.rn.f32`. Rust never contracts `a * b + c` by itself.
#[inline(always)]
pub fn fma(a: f32, b: f32, c: f32) -> f32 {
    imp::fma(a, b, c)
}

/// Two 16-bit floats, each rounded to the nearest (even), in one register: `low` in its low half. PTX
/// `cvt.rn.f16x2.f32` (sm_80 and newer).
#[inline(always)]
pub fn pack_f16x2(low: f32, high: f32) -> u32 {
    imp::pack_f16x2(low, high)
}

/// The low and the high half of a register as 32-bit floats. PTX `cvt.f32.f16`.
#[inline(always)]
pub fn unpack_f16x2(pair: u32) -> (f32, f32) {
    imp::unpack_f16x2(pair)
}

/// The 16-bit float nearest to `value` (ties to even), as its bits: infinite from 65,520 on. PTX `cvt.rn.f16.f32`.
#[inline(always)]
pub fn to_f16(value: f32) -> u16 {
    imp::to_f16(value)
}

/// The bfloat16 nearest to `value` (ties to even), as its bits: the upper half of a 32-bit float. NaN stays NaN.
#[inline(always)]
pub fn to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    if value.is_nan() {
        // Rounding could carry a NaN's last bits into infinity.
        return (bits >> 16) as u16 | 0x40;
    }
    ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
}

/// The low and the high half of a register, each a bfloat16, as 32-bit floats: exact.
#[inline(always)]
#[must_use]
pub fn unpack_bf16x2(pair: u32) -> (f32, f32) {
    (f32::from_bits(pair << 16), f32::from_bits(pair & 0xffff_0000))
}

/// The square root, rounded to nearest. PTX `sqrt.rn.f32`.
#[inline(always)]
pub fn sqrt(x: f32) -> f32 {
    imp::sqrt(x)
}

/// `low` and `high` as the sum of two 16-bit floats each: both pairs of first parts, and of what those leave. The sum has
/// 22 bits where it is not too small for them: below 2^-3, its last bit is 2^-25.
#[inline(always)]
pub fn split_f16x2(low: f32, high: f32) -> (u32, u32) {
    let first = pack_f16x2(low, high);
    let (first_low, first_high) = unpack_f16x2(first);
    (first, pack_f16x2(low - first_low, high - first_high))
}

/// The larger magnitude of each of two pairs of 16-bit floats; what is not a number is left out. PTX `max.f16x2` of
/// `abs.f16x2` (sm_80 and newer).
#[inline(always)]
pub fn larger_magnitudes_f16x2(a: u32, b: u32) -> u32 {
    imp::larger_magnitudes_f16x2(a, b)
}

/// `e^x` within 2 units in the last place of the exact value for every `x`, subnormal results included: 1 at 0, 0 below
/// -104, infinite above 88.73, NaN for NaN. Only additions, multiplications and [`fma`], so that the emulator gives the
/// GPU's bits; `ex2.approx` alone would lose 2 units and subnormals.
///
/// Range reduction x = n ln 2 + r with ln 2 in two parts (Cody and Waite), then the polynomial of Cephes' `expf` on
/// |r| <= ln 2 / 2, and two exact steps of scaling by a power of two.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    /// 1.5 * 2^23: adding and subtracting it rounds to the nearest integer.
    const ROUND: f32 = 12_582_912.0;
    /// Nine bits, so that its product with any n here is exact.
    const LN_2_HIGH: f32 = 355.0 / 512.0;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    const POLYNOMIAL: [f32; 6] = [1.987_569_1e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5];
    // Beyond these the result is 0 or infinite; the clamp keeps n inside what two scalings carry. NaN passes through.
    let clamped = x.clamp(-105.0, 90.0);
    let n = fma(clamped, core::f32::consts::LOG2_E, ROUND) - ROUND;
    let r = fma(n, -LN_2_LOW, fma(n, -LN_2_HIGH, clamped));
    let mut p = POLYNOMIAL[0];
    let mut i = 1;
    while i < POLYNOMIAL.len() {
        p = fma(p, r, POLYNOMIAL[i]);
        i += 1;
    }
    let p = fma(p, r * r, r) + 1.0;
    let n = n as i32;
    let half = n >> 1;
    p * power_of_two(half) * power_of_two(n - half)
}

/// `2^n` for -126 <= n <= 127.
#[inline(always)]
#[must_use]
pub fn power_of_two(n: i32) -> f32 {
    f32::from_bits(((n + 127) << 23) as u32)
}
