//! The power of two by which v and the state are kept, so that 16 bits carry them.
use super::V_STRIDE;
use super::factors::{State, TOKEN_OCTETS};
use crate::kernels::chunk::CHUNK;
use cuda_std::Tile;
use cuda_std::float::power_of_two;
use cuda_std::warp::warp_max;

/// The exponent of a finite number's magnitude; the least for 0.
#[inline(always)]
pub fn exponent_of(magnitude: u32) -> i32 {
    (magnitude >> 23) as i32 - 127
}

pub const MAGNITUDE: u32 = 0x7fff_ffff;
pub const INFINITE: u32 = 0x7f80_0000;

/// The bits of a value's magnitude, 0 for what is not finite: it is not to decide the others' scale.
#[inline(always)]
pub fn finite_magnitude(value: f32) -> u32 {
    let magnitude = value.to_bits() & MAGNITUDE;
    if magnitude < INFINITE { magnitude } else { 0 }
}

/// The bits of the largest finite magnitude among the warp's values.
///
/// # Safety
/// All lanes of the warp are here.
#[inline(always)]
pub unsafe fn largest_finite(values: &[f32]) -> u32 {
    let mut largest = 0;
    for value in values {
        largest = largest.max(finite_magnitude(*value));
    }
    // SAFETY: all lanes are here.
    unsafe { warp_max(largest) }
}

/// Chunks from one measure of the state to the next.
pub const MEASURE_EVERY: u32 = 8;
/// Where a new scale puts the largest of v and s: at 2^LARGEST and below its double.
pub const LARGEST: i32 = 4;
/// The exponents that v and s may have; the largest has at least `LEAST`.
pub const LARGEST_V: i32 = 6;
pub const LARGEST_S: i32 = 9;
pub const LEAST: i32 = 2;
/// What the norm of a column may be.
pub const LARGEST_BOUND: f32 = 16_384.0;
/// Below this the largest of v and s is below 2^LEAST.
pub const LEAST_BOUND: f32 = 512.0;
/// By how much more than the largest v a chunk can make a column of the state longer: 32 tokens, each by `beta |k|`.
pub const GROWTH: f32 = 68.0;
/// How much longer a column is than its largest element, at most, and a little more.
pub const NORM: f32 = 12.0;

/// What a chunk whose largest v has this exponent may add to a column's norm.
#[inline(always)]
pub fn v_bound(exponent: i32) -> f32 {
    GROWTH * power_of_two((exponent + 1).clamp(-126, 126))
}

/// The power of two by which v and s are kept, and how long the columns of s may be with it.
#[derive(Clone, Copy)]
pub struct Range {
    pub exponent: i32,
    pub bound: f32,
}

impl Range {
    /// Makes room for a chunk whose largest v has the magnitude `v`. Gives by which power of two s, and whatever else is kept
    /// as it is, has been multiplied, as two factors.
    ///
    /// # Safety
    /// All lanes of the warp are here.
    #[inline(always)]
    pub unsafe fn rescale(&mut self, s: &mut State, v: u32, is_first: bool) -> [f32; 2] {
        // SAFETY: all lanes are here.
        let largest = unsafe { largest_finite(s.as_flattened()) };
        let (mut s_exponent, v_exponent) = (exponent_of(largest), exponent_of(v) + self.exponent);
        let top = if v == 0 {
            s_exponent
        } else if largest == 0 {
            v_exponent
        } else {
            s_exponent.max(v_exponent)
        };
        let mut factors = [1.0; 2];
        if (is_first || v_exponent > LARGEST_V || s_exponent > LARGEST_S || top < LEAST) && (v | largest) != 0 {
            let exponent = (self.exponent + LARGEST - top).clamp(-126, 126);
            let shift = exponent - self.exponent;
            factors = [power_of_two(shift >> 1), power_of_two(shift - (shift >> 1))];
            for value in s.as_flattened_mut() {
                *value = *value * factors[0] * factors[1];
            }
            self.exponent = exponent;
            s_exponent += shift;
        }
        self.bound = NORM * power_of_two((s_exponent + 1).clamp(-126, 126));
        factors
    }
}

/// A lane's part of the largest magnitude of the warp's v, infinite where one is; what is not a number is left out.
///
/// # Safety
/// v is complete.
#[inline(always)]
pub unsafe fn largest_v(v: *mut Tile<{ CHUNK * V_STRIDE }>, index: usize) -> f32 {
    let mut largest = [0.0f32; TOKEN_OCTETS];
    for octet in 0..TOKEN_OCTETS {
        for i in 0..4 {
            // SAFETY: by the caller.
            largest[octet] = unsafe { Tile::at(v, index + v_offset(octet, i)) }.abs().max(largest[octet]);
        }
    }
    largest[0].max(largest[1]).max(largest[2].max(largest[3]))
}

/// The bits of the largest finite magnitude of the warp's v.
///
/// # Safety
/// v is complete; all lanes of the warp are here.
#[inline(always)]
pub unsafe fn largest_finite_v(v: *mut Tile<{ CHUNK * V_STRIDE }>, index: usize) -> u32 {
    let mut largest = 0;
    for octet in 0..TOKEN_OCTETS {
        for i in 0..4 {
            // SAFETY: by the caller.
            largest = largest.max(finite_magnitude(unsafe { Tile::at(v, index + v_offset(octet, i)) }));
        }
    }
    // SAFETY: all lanes are here.
    unsafe { warp_max(largest) }
}

/// From a lane's first v to the one where `Sums` of an octet of tokens have theirs.
#[inline(always)]
pub const fn v_offset(octet: usize, i: usize) -> usize {
    (8 * octet + i % 2) * V_STRIDE + 8 * (i / 2)
}
