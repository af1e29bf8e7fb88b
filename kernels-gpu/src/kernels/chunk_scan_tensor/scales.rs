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
/// What the largest element of a column of the state has to be as it is kept. Its bound, which is what it was made of, is
/// 2^15 times as large: y, whose bound is at most that, and T carry it to 2^-37 of their bounds.
const LEAST_KEPT: f32 = 0.25;
/// By how much the magnitude of s^T k may be above s's largest: sqrt(128) times the longest key that prep lets through, and
/// a little more.
const LONGEST_SUM: f32 = 20.0;

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
}

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
        Self { exponent: exponent_for(largest) }
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

    /// Whether a column that comes out of a chunk with `s` as its largest element, as it is kept, has lost bits beside what was
    /// forgotten in the chunk. Where nothing was, as between zeros, it has its scale by no bound.
    #[inline(always)]
    pub fn has_lost(self, s: f32) -> bool {
        s < LEAST_KEPT && self.exponent < MOST_EXPONENT
    }

    /// Moves on past a chunk whose largest v is `v`, where the largest element of the column as it is kept is `s`; whose T has
    /// entries of `t_sum` together, and whose scaled keys' elements are at most 1. y fits its scale, and the state its new
    /// one, whatever the chunk adds.
    #[inline(always)]
    pub fn advance(&mut self, s: f32, v: f32, total_decay: f32, t_sum: f32) -> Factors {
        let s_inverse = self.inverse();
        let largest_y = fma(LONGEST_SUM, s * s_inverse, v);
        // What rounds T's small entries does not become smaller with them, so that a state that only they made is to be seen
        // as one that lost bits.
        let t_sum = if t_sum > 0.0 { t_sum.max(1.0) } else { 0.0 };
        let y_exponent = exponent_for(largest_y);
        let exponent = exponent_for(fma(s * s_inverse, total_decay, largest_y * t_sum));
        let s_to_y = power_of_two((y_exponent - self.exponent).clamp(-126, 127));
        // Down it may go further than a factor does: only a state that is as good as zero beside the chunk does.
        let shift = (exponent - self.exponent).min(126);
        self.exponent += shift;
        Factors {
            y: power_of_two(y_exponent),
            s_to_y,
            decay: total_decay * power_of_two(shift.max(-126)),
            gain: power_of_two((self.exponent - y_exponent - T_SCALE_EXPONENT).clamp(-126, 127)),
        }
    }
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
