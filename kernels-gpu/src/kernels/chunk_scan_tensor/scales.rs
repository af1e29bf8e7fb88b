//! The powers of two by which a column's state and y are kept, so that 16 bits carry them. Each column has its own, and they
//! are chosen anew in every chunk, so that no column's result depends on another's.
use super::factors::{Columns, ROW_OCTETS, State, Sums, column_of};
use crate::kernels::chunk_tensor::T_SCALE_EXPONENT;
use cuda_std::float::{fma, power_of_two};
use cuda_std::warp::warp_shuffle_xor;

/// Where a column's bound is put: between 2^LARGEST and its double, below the largest 16-bit float, 2^16, with room for what
/// rounding adds. A bound may be so far above the numbers as these are above 2^-25, the last bit of a second part, and 24
/// bits more.
const LARGEST: i32 = 13;
/// Ends of the exponents that are chosen: their powers of two, and the inverse ones, are normal numbers.
const LEAST_EXPONENT: i32 = -113;
const MOST_EXPONENT: i32 = 126;
/// By how many powers of two y's scale may grow from a chunk to the next. Halves end 2^36 below y's bound, T's entries 2^37
/// below 1, and what that rounds off goes into the state.
const MOST_GROWTH: i32 = 12;
/// By how much the magnitude of s^T k may be above s's largest: sqrt(128) times the longest key that prep lets through, and
/// a little more.
const LONGEST_SUM: f32 = 20.0;

/// How many times as large as the longest sum v may be before y's scale depends on it. It takes three of the bits of numbers
/// that are far below.
const ROOM_FOR_V: f32 = 7.0;

/// The exponent of a number's magnitude; the least for 0, the largest for what is not finite.
#[inline(always)]
fn exponent_of(value: f32) -> i32 {
    (value.to_bits() >> 23 & 0xff) as i32 - 127
}

/// The exponent of the power of two that brings `bound` to its place.
#[inline(always)]
fn exponent_for(bound: f32) -> i32 {
    (LARGEST - exponent_of(bound)).clamp(LEAST_EXPONENT, MOST_EXPONENT)
}

/// The largest magnitude in each of the lane's columns over the rows or tokens of the warp. What is not a number is left out.
///
/// # Safety
/// All lanes of the warp are here.
#[inline(always)]
pub unsafe fn largest_of<const OCTETS: usize>(octets: &[Sums; OCTETS]) -> Columns<f32> {
    let mut largest: Sums = [0.0; 4];
    for octet in 0..OCTETS {
        for i in 0..4 {
            largest[i] = largest[i].max(octets[octet][i].abs());
        }
    }
    [0, 1].map(|column| {
        let largest = largest[2 * column].max(largest[2 * column + 1]);
        // SAFETY: all lanes are here. Four lanes share their columns.
        unsafe {
            let largest = largest.max(warp_shuffle_xor(largest, 1));
            largest.max(warp_shuffle_xor(largest, 2))
        }
    })
}

/// The same of the finite values alone: an infinite v is not to make the column's others too small for 16 bits.
///
/// # Safety
/// All lanes of the warp are here.
#[inline(always)]
pub unsafe fn largest_finite_of<const OCTETS: usize>(octets: &[Sums; OCTETS]) -> Columns<f32> {
    let mut finite = *octets;
    for octet in 0..OCTETS {
        for i in 0..4 {
            finite[octet][i] = if finite[octet][i].abs() < f32::INFINITY { finite[octet][i] } else { 0.0 };
        }
    }
    // SAFETY: all lanes are here.
    unsafe { largest_of(&finite) }
}

/// The power of two that a column's state is kept with.
#[derive(Clone, Copy)]
pub struct Scale {
    exponent: i32,
    /// That of the last chunk's y; before the first chunk the largest there is; [`LOST`] once the state has lost bits that
    /// mattered.
    y_exponent: i32,
}

/// So low that every power of two is for something far below.
const LOST: i32 = -4096;

/// A column's factors in a chunk.
#[derive(Clone, Copy)]
pub struct Factors {
    /// y is kept so much larger: a power of two.
    pub y: f32,
    /// From what is kept with the state's scale to y's.
    pub s_to_y: f32,
    /// Multiplies the state before the chunk: the decay, and the change of its scale.
    pub decay: f32,
    /// Multiplies T's products with y: what the chunk adds to the state.
    pub gain: f32,
}

impl Factors {
    /// From y's scale to none. A power of two's inverse has the opposite exponent.
    #[inline(always)]
    pub fn y_inverse(&self) -> f32 {
        f32::from_bits((254 << 23) - self.y.to_bits())
    }
}

impl Scale {
    /// For a state whose largest magnitude is `largest`.
    #[inline(always)]
    pub fn of(largest: f32) -> Self {
        Self { exponent: exponent_for(largest), y_exponent: MOST_EXPONENT }
    }

    /// The power of two.
    #[inline(always)]
    pub fn factor(self) -> f32 {
        power_of_two(self.exponent)
    }

    /// Its inverse.
    #[inline(always)]
    pub fn inverse(self) -> f32 {
        power_of_two(-self.exponent)
    }

    /// Whether a power of two is for something so far below the last chunk's y that the state has lost bits of it.
    #[inline(always)]
    fn is_outgrown(self, exponent: i32) -> bool {
        exponent - self.y_exponent > MOST_GROWTH
    }

    /// Moves on past a chunk whose largest v is `v`, where the largest element of the column as it is kept is `s`; whose T has
    /// entries of `t_sum` together, and whose scaled keys' elements are at most 1. y fits its scale, and the state its new
    /// one, whatever the chunk adds.
    #[inline(always)]
    pub fn advance(&mut self, s: f32, v: f32, total_decay: f32, t_sum: f32) -> Factors {
        let s_inverse = self.inverse();
        let largest_sum = LONGEST_SUM * (s * s_inverse);
        let largest_y = largest_sum + v;
        // Where v is not far above s, y's scale does not depend on it: no token is rounded by what comes after it.
        let y_exponent = exponent_for(largest_sum + v.max(ROOM_FOR_V * largest_sum));
        let exponent = exponent_for(fma(s * s_inverse, total_decay, largest_y * t_sum));
        let s_to_y = power_of_two((y_exponent - self.exponent).clamp(-126, 127));
        // Down it may go further than a factor does: only a state that is as good as zero beside the chunk does.
        let shift = (exponent - self.exponent).min(126);
        self.exponent += shift;
        // Once lost, for good.
        self.y_exponent = if self.is_outgrown(y_exponent) { LOST } else { y_exponent };
        Factors {
            y: power_of_two(y_exponent),
            s_to_y,
            decay: total_decay * power_of_two(shift.max(-126)),
            gain: power_of_two((self.exponent - y_exponent - T_SCALE_EXPONENT).clamp(-126, 127)),
        }
    }
}

/// Whether the state has lost bits, in a chunk, or at the end beside what the last chunk's y was: there in the warp's columns
/// together, since a column alone may well be small there, when the last tokens write little to it.
///
/// # Safety
/// All lanes of the warp are here.
#[inline(always)]
pub unsafe fn have_lost(scales: &Columns<Scale>, s_largest: Columns<f32>) -> bool {
    let mut largest = (s_largest[0] * scales[0].inverse()).max(s_largest[1] * scales[1].inverse());
    for bit in 2..5 {
        // SAFETY: all lanes are here. Lanes four apart have the warp's columns.
        largest = largest.max(unsafe { warp_shuffle_xor(largest, 1 << bit) });
    }
    let exponent = exponent_for((1.0 + ROOM_FOR_V) * LONGEST_SUM * largest);
    scales[0].is_outgrown(exponent) | scales[1].is_outgrown(exponent)
}

/// Scales each column by its power of two.
#[inline(always)]
pub fn scale_state(s: &mut State, factors: Columns<f32>) {
    for octet in 0..ROW_OCTETS {
        for i in 0..4 {
            s[octet][i] *= factors[column_of(i)];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_keep_y_and_state_below_2_to_the_15() {
        for state in [0.0, 1e-38, 1e-20, 1.0, 3e8, 1e30, 3e36] {
            for v in [0.0, 1e-38, 1e-9, 1.0, 1e30, 3e36] {
                for decay in [0.0, 1e-30, 0.5, 1.0] {
                    for t_sum in [0.0, 1e-6, 1.0, 600.0] {
                        let mut scale = Scale::of(state);
                        let before = scale.factor();
                        assert!(state * before < 32_768.0);
                        let factors = scale.advance(state * before, v, decay, t_sum);
                        assert!(factors.decay.is_finite() && factors.gain.is_finite());
                        let y = f64::from(v) + 19.6 * f64::from(state);
                        assert!(y * f64::from(factors.y) < 32_768.0, "{state} {v}: {y}");
                        let left = f64::from(state) * f64::from(before) * f64::from(factors.decay);
                        let added = y * f64::from(t_sum) * f64::from(scale.factor());
                        let finite = y * f64::from(t_sum) < f64::from(f32::MAX);
                        assert!(!finite || left + added < 32_768.0, "{state} {v} {decay} {t_sum}: {left} {added}");
                    }
                }
            }
        }
    }
}
