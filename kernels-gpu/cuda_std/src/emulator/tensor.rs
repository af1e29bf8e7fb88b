//! The tensor cores: products of matrices that a warp's lanes hold together, and the loads that deal matrices to lanes.
//!
//! A product is rounded as Hopper's units do it (arXiv 2511.10909): exact products, all of them and the addend aligned to
//! the largest exponent and cut off after [`FRACTION_BITS`], an exact sum, rounded toward zero.
use std::panic::Location;

use half::f16;

use super::collective::exchange;
use super::fault::Collective;
use super::shared::{check_row, shared_read};

/// Bits below the largest exponent that take part.
const FRACTION_BITS: i32 = 25;
/// Terms of a sum.
const DEPTH: usize = 16;
/// Fraction bits of an `f16`.
const HALF_FRACTION: i32 = 10;
/// An exponent below that of every term.
const NO_EXPONENT: i32 = i32::MIN / 2;

/// A 16-bit float as `mantissa * 2^(exponent - HALF_FRACTION)`.
#[derive(Clone, Copy, Debug, Default)]
struct Half {
    mantissa: i32,
    exponent: i32,
    /// For sums with what is not finite.
    value: f32,
}

impl Half {
    fn of(bits: u16) -> Self {
        let (field, fraction) = (i32::from(bits >> HALF_FRACTION & 0x1f), i32::from(bits & 0x3ff));
        // Subnormal numbers have the least exponent and no leading bit.
        let magnitude = if field == 0 { fraction } else { fraction | 0x400 };
        let mantissa = if bits >> 15 == 1 { -magnitude } else { magnitude };
        let value = if field == 0x1f { f16::from_bits(bits).to_f32() } else { 0.0 };
        Self { mantissa, exponent: field.max(1) - 15, value }
    }

    fn pair(register: u32) -> [Self; 2] {
        [Self::of(register as u16), Self::of((register >> 16) as u16)]
    }
}

/// `mantissa * 2^exponent` of a finite number.
fn parts(value: f32) -> (i64, i32) {
    let bits = value.to_bits();
    let (field, fraction) = ((bits >> 23 & 0xff) as i32, i64::from(bits & 0x7f_ffff));
    let magnitude = if field == 0 { fraction } else { fraction | 0x80_0000 };
    (if value.is_sign_negative() { -magnitude } else { magnitude }, field.max(1) - 150)
}

/// A term in units of the sum's last bit, `left` bits below its own, without what falls below.
fn aligned(mantissa: i64, left: i32) -> i64 {
    if mantissa == 0 {
        0
    } else if left >= 0 {
        mantissa << left
    } else if left > -63 {
        // Toward zero, whatever the sign.
        (mantissa.abs() >> -left) * mantissa.signum()
    } else {
        0
    }
}

/// `c + sum of a[k] b[k]`.
fn dot(c: f32, a: &[Half; DEPTH], b: &[Half; DEPTH]) -> f32 {
    let not_finite = |half: &Half| half.value != 0.0 || half.value.is_nan();
    if !c.is_finite() || a.iter().chain(b).any(not_finite) {
        let full = |half: &Half| {
            if not_finite(half) { half.value } else { half.mantissa as f32 * 2f32.powi(half.exponent - HALF_FRACTION) }
        };
        return c + a.iter().zip(b).map(|(a, b)| full(a) * full(b)).sum::<f32>();
    }
    let (c_mantissa, c_exponent) = parts(c);
    let mut largest = NO_EXPONENT;
    if c_mantissa != 0 {
        // Of its leading bit.
        largest = c_exponent + 63 - c_mantissa.abs().leading_zeros() as i32;
    }
    let (mut products, mut exponents) = ([0i64; DEPTH], [0i32; DEPTH]);
    for k in 0..DEPTH {
        products[k] = i64::from(a[k].mantissa * b[k].mantissa);
        exponents[k] = a[k].exponent + b[k].exponent;
        if products[k] != 0 {
            largest = largest.max(exponents[k]);
        }
    }
    if largest == NO_EXPONENT {
        return 0.0;
    }
    let last_bit = largest - FRACTION_BITS;
    let mut sum = aligned(c_mantissa, c_exponent - last_bit);
    for k in 0..DEPTH {
        sum += aligned(products[k], exponents[k] - 2 * HALF_FRACTION - last_bit);
    }
    toward_zero(sum, last_bit)
}

/// `mantissa * 2^exponent`, without what an `f32` cannot hold.
fn toward_zero(mantissa: i64, exponent: i32) -> f32 {
    let bits = 64 - mantissa.unsigned_abs().leading_zeros() as i32;
    // Subnormal numbers have fewer bits.
    let dropped = (bits - 24).max(-149 - exponent).clamp(0, 63);
    let kept = (mantissa.abs() >> dropped) * mantissa.signum();
    // 24 bits at most: exact. A power below the range of f64's normal numbers does not occur.
    (kept as f64 * 2f64.powi(exponent + dropped)) as f32
}

#[inline(never)]
pub(crate) fn mma_16x8x16(c: [f32; 4], a: [u32; 4], b: [u32; 2], location: &'static Location<'static>) -> [f32; 4] {
    let (operands, lane) = exchange(Collective::Mma, [a[0], a[1], a[2], a[3], b[0], b[1]], location);
    // SAFETY: owner: the running thread alone until it comes to the next operation.
    let operands = unsafe { &*operands };
    let (row, pair) = (lane / 4, lane % 4);
    // Elements 2 pair .. and 2 pair + 8 .. of a row of a, or a column of b, are with the lane of that pair.
    let gather = |owner: usize, registers: [usize; 2]| {
        let mut terms = [Half::default(); DEPTH];
        for pair in 0..4 {
            for (half, register) in registers.into_iter().enumerate() {
                let two = Half::pair(operands[4 * owner + pair][register]);
                terms[8 * half + 2 * pair..][..2].copy_from_slice(&two);
            }
        }
        terms
    };
    let rows = [gather(row, [0, 2]), gather(row, [1, 3])];
    let columns = [gather(2 * pair, [4, 5]), gather(2 * pair + 1, [4, 5])];
    std::array::from_fn(|index| dot(c[index], &rows[index / 2], &columns[index % 2]))
}

/// Brings the running lane's row; gives those of all lanes, and the lane.
fn exchange_rows(
    collective: Collective,
    row: *mut f32,
    location: &'static Location<'static>,
) -> ([*const f32; 32], usize) {
    check_row(row, location);
    let address = row.expose_provenance() as u64;
    let (operands, lane) = exchange(collective, [address as u32, (address >> 32) as u32, 0, 0, 0, 0], location);
    // SAFETY: owner: the running thread alone until it comes to the next operation.
    let operands = unsafe { &*operands };
    let address = |operands: &[u32; 6]| u64::from(operands[0]) | u64::from(operands[1]) << 32;
    (std::array::from_fn(|lane| std::ptr::with_exposed_provenance(address(&operands[lane]) as usize)), lane)
}

#[inline(never)]
pub(crate) fn load_matrix_x4(row: *mut f32, location: &'static Location<'static>) -> [u32; 4] {
    let (rows, lane) = exchange_rows(Collective::LoadMatrix, row, location);
    std::array::from_fn(|matrix| shared_read(rows[8 * matrix + lane / 4].wrapping_add(lane % 4), location).to_bits())
}

#[inline(never)]
pub(crate) fn load_matrix_x4_transposed(row: *mut f32, location: &'static Location<'static>) -> [u32; 4] {
    let (rows, lane) = exchange_rows(Collective::LoadMatrixTransposed, row, location);
    let (column, pair) = (lane / 4, lane % 4);
    std::array::from_fn(|matrix| {
        let [low, high] = [0, 1].map(|row| {
            let word = shared_read(rows[8 * matrix + 2 * pair + row].wrapping_add(column / 2), location).to_bits();
            word >> (16 * (column % 2)) & 0xffff
        });
        low | high << 16
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn halves(values: [f32; DEPTH]) -> [Half; DEPTH] {
        values.map(|value| Half::of(f16::from_f32(value).to_bits()))
    }

    #[test]
    fn a_sum_keeps_25_bits_below_its_largest_term_and_is_cut_off() {
        let one = |first: f32, rest: f32| {
            let mut values = [0.0; DEPTH];
            (values[0], values[1]) = (first, rest);
            halves(values)
        };
        let unit = one(1.0, 1.0);
        // 1 + 2^-24: below the last bit of the result, toward zero.
        assert_eq!(dot(0.0, &one(1.0, 2f32.powi(-24)), &unit), 1.0);
        assert_eq!(dot(-1.0, &one(0.0, -2f32.powi(-24)), &unit), -1.0);
        // 1 - 2^-24 is exact; 1 - 2^-24 + ..: what is 26 bits below 1 is not seen.
        assert_eq!(dot(1.0, &one(0.0, -2f32.powi(-24)), &unit), 1.0 - 2f32.powi(-24));
        assert_eq!(dot(1.0, &one(0.0, -(2f32.powi(-14))), &one(0.0, 2f32.powi(-12))), 1.0);
        // An addend that is much smaller than the products.
        assert_eq!(dot(2f32.powi(-30), &one(1.0, 0.0), &unit), 1.0);
        assert_eq!(dot(2f32.powi(-30), &one(0.0, 0.0), &unit), 2f32.powi(-30));
        // Subnormal halves are exact.
        assert_eq!(dot(0.0, &one(2f32.powi(-24), 0.0), &unit), 2f32.powi(-24));
        assert_eq!(dot(0.0, &one(2f32.powi(-24), 0.0), &one(2f32.powi(-24), 0.0)), 2f32.powi(-48));
        assert_eq!(dot(0.0, &halves([0.0; DEPTH]), &unit), 0.0);
        assert_eq!(dot(f32::MIN_POSITIVE / 4.0, &halves([0.0; DEPTH]), &unit), f32::MIN_POSITIVE / 4.0);
    }

    #[test]
    fn what_is_not_finite_spreads() {
        let unit = halves([1.0; DEPTH]);
        let mut values = [1.0; DEPTH];
        values[3] = f32::INFINITY;
        assert_eq!(dot(0.0, &halves(values), &unit), f32::INFINITY);
        values[4] = f32::NEG_INFINITY;
        assert!(dot(0.0, &halves(values), &unit).is_nan() && dot(f32::NAN, &unit, &unit).is_nan());
        assert_eq!(dot(0.0, &unit, &unit), 16.0);
    }

    #[test]
    fn random_sums_are_those_of_exact_arithmetic_within_what_is_cut_off() {
        let mut state = 1u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / 2f32.powi(23) - 1.0
        };
        for _ in 0..1000 {
            let (a, b): ([f32; DEPTH], [f32; DEPTH]) =
                (std::array::from_fn(|_| random()), std::array::from_fn(|_| random()));
            let c = random();
            let rounded = |value: f32| f64::from(f16::from_f32(value).to_f32());
            let terms: Vec<f64> = a.iter().zip(&b).map(|(&a, &b)| rounded(a) * rounded(b)).collect();
            let exact = terms.iter().sum::<f64>() + f64::from(c);
            let largest = terms.iter().fold(f64::from(c.abs()), |largest, term| largest.max(term.abs()));
            let error = f64::from(dot(c, &halves(a), &halves(b))) - exact;
            assert!(error.abs() <= 18.0 * largest * 2f64.powi(-25) + exact.abs() * 2f64.powi(-23), "{error:e}");
        }
    }
}
