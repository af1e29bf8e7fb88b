//! The powers of two by which a column's state and y are kept, so that 16 bits carry them. Each column has its own, and they
//! are chosen anew in every chunk, so that no column's result depends on another's.
use super::factors::{Columns, ROW_OCTETS, State, Sums, TOKEN_OCTETS, column_of};
use crate::kernels::chunk_tensor::T_SCALE_EXPONENT;
use cuda_std::float::{fma, power_of_two};
use cuda_std::warp::warp_shuffle_xor;

/// Where the largest y of a column is put: between 2^LARGEST and its double, below the largest 16-bit float, 2^16.
const LARGEST: i32 = 14;
/// The same for the bound of a column's state, with room for what rounding adds.
const LARGEST_BOUND: i32 = 13;
/// Ends of the exponents that are chosen: their powers of two, and the inverse ones, are normal numbers.
const LEAST_EXPONENT: i32 = -113;
const MOST_EXPONENT: i32 = 126;

/// The exponent of a number's magnitude; the least for 0, the largest for what is not finite.
#[inline(always)]
fn exponent_of(value: f32) -> i32 {
    (value.to_bits() >> 23 & 0xff) as i32 - 127
}

/// The largest of the lanes' values that share their columns.
///
/// # Safety
/// All lanes of the warp are here.
#[inline(always)]
unsafe fn over_rows(largest: Columns<f32>) -> Columns<f32> {
    // SAFETY: all lanes are here.
    largest.map(|value| unsafe {
        let value = value.max(warp_shuffle_xor(value, 1));
        value.max(warp_shuffle_xor(value, 2))
    })
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
    // SAFETY: all lanes are here.
    unsafe { over_rows([0, 1].map(|column| largest[2 * column].max(largest[2 * column + 1]))) }
}

/// The power of two that a column's state is kept with, and its largest magnitude as it is kept.
#[derive(Clone, Copy)]
pub struct Scale {
    exponent: i32,
    pub largest: f32,
}

/// What a chunk does to a column's scales.
#[derive(Clone, Copy)]
pub struct Change {
    /// y is kept times 2^y_exponent.
    pub y_exponent: i32,
    /// Multiplies the state before the chunk: the decay, and the change of its scale.
    pub decay: f32,
    /// Multiplies what the chunk adds to the state.
    pub gain: f32,
}

impl Scale {
    /// For a state whose largest magnitude is `largest`.
    #[inline(always)]
    pub fn of(largest: f32) -> Self {
        let exponent = (LARGEST_BOUND - exponent_of(largest)).clamp(LEAST_EXPONENT, MOST_EXPONENT);
        Self { exponent, largest: largest * power_of_two(exponent) }
    }

    /// 2^exponent.
    #[inline(always)]
    pub fn factor(&self) -> f32 {
        power_of_two(self.exponent)
    }

    /// Its inverse.
    #[inline(always)]
    pub fn inverse(&self) -> f32 {
        power_of_two(-self.exponent)
    }

    /// Moves on past a chunk whose largest y has the magnitude `y`, whose keys' largest element is at most 1, whose T has
    /// entries of `t_sum` together. The state's new scale holds whatever the chunk may add.
    #[inline(always)]
    pub fn advance(&mut self, y: f32, total_decay: f32, t_sum: f32) -> Change {
        let bound = fma(self.largest * self.inverse(), total_decay, y * t_sum);
        let exponent = (LARGEST_BOUND - exponent_of(bound)).clamp(LEAST_EXPONENT, MOST_EXPONENT);
        let y_exponent = (LARGEST - exponent_of(y)).clamp(LEAST_EXPONENT, MOST_EXPONENT);
        let shift = (exponent - self.exponent).clamp(-126, 126);
        self.exponent += shift;
        Change {
            y_exponent,
            decay: total_decay * power_of_two(shift),
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

/// The same of tokens.
#[inline(always)]
pub fn scale_tokens(y: &mut [Sums; TOKEN_OCTETS], factors: Columns<f32>) {
    for octet in 0..TOKEN_OCTETS {
        for i in 0..4 {
            y[octet][i] *= factors[column_of(i)];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scale_keeps_what_a_chunk_may_leave_below_2_to_the_15() {
        for state in [0.0, 1e-38, 1e-20, 1.0, 3e8, 1e30, 3e38] {
            for y in [0.0, 1e-38, 1e-9, 1.0, 1e30, 3e38] {
                for decay in [0.0, 1e-30, 0.5, 1.0] {
                    for t_sum in [0.0, 1e-6, 1.0, 600.0] {
                        let mut scale = Scale::of(state);
                        let before = scale.factor();
                        assert!(state * before < 32_768.0);
                        let change = scale.advance(y, decay, t_sum);
                        assert!(change.decay.is_finite() && change.gain.is_finite());
                        let left = f64::from(state) * f64::from(before) * f64::from(change.decay);
                        let added = f64::from(y) * f64::from(t_sum) * f64::from(scale.factor());
                        assert!(left + added < 32_768.0, "{state} {y} {decay} {t_sum}: {left} {added}");
                        assert!(f64::from(y) * f64::from(power_of_two(change.y_exponent)) < 32_768.0);
                    }
                }
            }
        }
    }
}
