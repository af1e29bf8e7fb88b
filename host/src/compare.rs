//! Error measures, the bars they are held to, and the worst element by name.
#![forbid(unsafe_code)]
pub mod bars;

pub use bars::Bar;

use std::fmt;

use rayon::prelude::*;
use serde::Serialize;

use crate::heads::Heads;

/// Which tensor is compared: its first axis and how a head's elements lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tensor {
    /// `[tokens, HV, V]`.
    Out,
    /// `[HV][K][V]`.
    State,
}

/// An element by its place: `out[token, head, column]` or `state[head, row, column]` in reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Place {
    /// Of an output.
    Out {
        /// From 0.
        token: usize,
        /// Value head.
        head: usize,
        /// Value column.
        column: usize,
    },
    /// Of a state.
    State {
        /// Value head.
        head: usize,
        /// Key row.
        row: usize,
        /// Value column.
        column: usize,
    },
}

impl Place {
    fn of(tensor: Tensor, heads: &Heads, index: usize) -> Self {
        let (row, column) = (index / heads.head_v_dim, index % heads.head_v_dim);
        match tensor {
            Tensor::Out => Self::Out { token: row / heads.num_v_heads, head: row % heads.num_v_heads, column },
            Tensor::State => Self::State { head: row / heads.head_k_dim, row: row % heads.head_k_dim, column },
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Out { token, head, column } => write!(formatter, "out[{token}, {head}, {column}]"),
            Self::State { head, row, column } => write!(formatter, "state[{head}, {row}, {column}]"),
        }
    }
}

/// How far a tensor is from what it should be.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// Largest |difference| over largest |expected|; infinite where something differs from an expected tensor of zeros.
    /// A largest value above zero counts as at least the smallest normal float32: below that, float32 cannot keep a
    /// relative error.
    pub relative: f64,
    /// The same of each value head by itself: the worst of them. In an output, a head's largest value counts as at least
    /// an eighth of the tensor's: q.k may all but cancel in each of a head's few tokens, and what is left is rounding.
    pub relative_by_head: f64,
    /// sqrt(sum of squared differences / sum of squared expected values).
    pub rms_ratio: f64,
    /// Where the largest difference of the worst head is, or the first element that is not finite and should be. None
    /// for empty tensors.
    pub worst: Option<Place>,
    /// Elements that are not finite where finite ones are expected, or the reverse. Such elements enter no other measure.
    pub not_finite: usize,
}

impl Comparison {
    /// Whether the bar is met. Anything that is not finite and should be, fails.
    #[must_use]
    pub fn meets(&self, bar: &Bar) -> bool {
        self.not_finite == 0 && self.relative <= bar.relative && self.relative_by_head <= bar.relative
    }
}

/// Sums and maxima of one value head.
#[derive(Clone, Copy, Default)]
struct Head {
    difference: f64,
    at: usize,
    value: f64,
    difference_squares: f64,
    value_squares: f64,
    not_finite: usize,
    first_not_finite: Option<usize>,
}

impl Head {
    fn add(&mut self, index: usize, expected: f64, actual: f64) {
        if expected.is_finite() != actual.is_finite() {
            self.not_finite += 1;
            self.first_not_finite.get_or_insert(index);
            return;
        }
        if !expected.is_finite() {
            return;
        }
        let difference = (expected - actual).abs();
        if difference > self.difference {
            (self.difference, self.at) = (difference, index);
        }
        self.value = self.value.max(expected.abs());
        self.difference_squares += difference * difference;
        self.value_squares += expected * expected;
    }

    /// By the head's own measure, its largest value being at least `floor` unless it is zero.
    fn relative(&self, floor: f64) -> f64 {
        relative(self.difference, if self.value == 0.0 { 0.0 } else { self.value.max(floor) })
    }
}

/// Compares `actual` with `expected`.
///
/// # Panics
/// If the lengths differ or are no multiple of a row of `tensor`: that is a mistake of the caller, not of a path.
#[must_use]
pub fn compare<E, A>(tensor: Tensor, heads: &Heads, expected: &[E], actual: &[A]) -> Comparison
where
    E: Copy + Into<f64> + Sync,
    A: Copy + Into<f64> + Sync,
{
    assert_eq!(expected.len(), actual.len(), "elements to compare");
    let (dim, v_heads) = (heads.head_v_dim, heads.num_v_heads);
    let rows = expected.len() / dim;
    assert!(rows * dim == expected.len() && rows.is_multiple_of(v_heads), "rows of {dim} for {v_heads} heads");
    let measure = |head: usize| {
        let mut measures = Head::default();
        let mut add_row = |row: usize| {
            for index in row * dim..(row + 1) * dim {
                measures.add(index, expected[index].into(), actual[index].into());
            }
        };
        match tensor {
            Tensor::Out => (head..rows).step_by(v_heads).for_each(&mut add_row),
            Tensor::State => (head * rows / v_heads..(head + 1) * rows / v_heads).for_each(&mut add_row),
        }
        measures
    };
    let by_head: Vec<Head> = (0..v_heads).into_par_iter().map(measure).collect();
    summarise(tensor, heads, &by_head, expected.is_empty())
}

fn summarise(tensor: Tensor, heads: &Heads, by_head: &[Head], empty: bool) -> Comparison {
    let sum = |of: fn(&Head) -> f64| by_head.iter().map(of).sum::<f64>();
    let largest = |of: fn(&Head) -> f64| by_head.iter().map(of).fold(0.0, f64::max);
    let (difference, value) = (largest(|head| head.difference), largest(|head| head.value));
    let floor = match tensor {
        Tensor::Out => value / 8.0,
        Tensor::State => 0.0,
    };
    let worst_head = by_head.iter().max_by(|a, b| a.relative(floor).total_cmp(&b.relative(floor)));
    let first_not_finite = by_head.iter().filter_map(|head| head.first_not_finite).min();
    let worst = first_not_finite.or(worst_head.map(|head| head.at)).filter(|_| !empty);
    Comparison {
        relative: relative(difference, value),
        relative_by_head: worst_head.map_or(0.0, |head| head.relative(floor)),
        rms_ratio: ratio(sum(|head| head.difference_squares), sum(|head| head.value_squares)).sqrt(),
        worst: worst.map(|index| Place::of(tensor, heads, index)),
        not_finite: by_head.iter().map(|head| head.not_finite).sum(),
    }
}

fn relative(difference: f64, value: f64) -> f64 {
    ratio(difference, if value == 0.0 { 0.0 } else { value.max(f64::from(f32::MIN_POSITIVE)) })
}

/// 0 / 0 is 0: nothing differs.
fn ratio(difference: f64, value: f64) -> f64 {
    if difference == 0.0 { 0.0 } else { difference / value }
}

/// The first element whose bits differ, or None if there is none. NaNs with the same bits are equal here.
///
/// # Panics
/// If the lengths differ.
#[must_use]
pub fn first_bit_difference(tensor: Tensor, heads: &Heads, a: &[f32], b: &[f32]) -> Option<Place> {
    assert_eq!(a.len(), b.len(), "elements to compare");
    let index = a.par_iter().zip(b).position_first(|(a, b)| a.to_bits() != b.to_bits())?;
    Some(Place::of(tensor, heads, index))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::heads::HeadMap;

    /// Two value heads of 3 x 2: a row of out is [head 0: 2, head 1: 2], a head's state is 3 rows of 2.
    fn heads() -> Heads {
        Heads::new(1, 2, HeadMap::Grouped).unwrap().with_dims(3, 2)
    }

    #[test]
    fn the_worst_element_and_the_ratios() {
        let expected = [1.0_f64, -4.0, 0.5, 0.25, 2.0, 1.0, 0.125, 0.5];
        let mut actual = expected;
        actual[1] = -4.5;
        actual[6] = 0.15625;
        let comparison = compare(Tensor::Out, &heads(), &expected, &actual);
        assert_eq!(comparison.relative, 0.5 / 4.0);
        assert_eq!(comparison.relative_by_head, 0.5 / 4.0);
        assert_eq!(comparison.worst, Some(Place::Out { token: 0, head: 0, column: 1 }));
        let squares: f64 = expected.iter().map(|value| value * value).sum();
        assert_eq!(comparison.rms_ratio, ((0.25 + 0.03125 * 0.03125) / squares).sqrt());

        // A smaller difference, larger than the other by the measure of its own head, which is at least 100 / 8.
        let (expected, actual) = ([100.0_f64, 0.0, 1.0, 0.0], [101.0_f32, 0.0, 1.0, 0.5]);
        let comparison = compare(Tensor::Out, &heads(), &expected, &actual);
        assert_eq!((comparison.relative, comparison.relative_by_head), (0.01, 0.5 / 12.5));
        assert_eq!(comparison.worst, Some(Place::Out { token: 0, head: 1, column: 1 }));

        let mut state = [1.0_f32; 12];
        state[9] = 3.0;
        let comparison = compare(Tensor::State, &heads(), &[1.0_f64; 12], &state);
        assert_eq!(comparison.worst, Some(Place::State { head: 1, row: 1, column: 1 }));
        assert_eq!(comparison.worst.unwrap().to_string(), "state[1, 1, 1]");
    }

    #[test]
    fn what_is_not_finite_fails_and_is_named() {
        for bad in [f32::NAN, f32::INFINITY] {
            let mut actual = [1.0_f32; 8];
            actual[3] = bad;
            let comparison = compare(Tensor::Out, &heads(), &[1.0_f64; 8], &actual);
            assert_eq!(comparison.not_finite, 1);
            assert_eq!(comparison.worst, Some(Place::Out { token: 0, head: 1, column: 1 }));
            assert_eq!(comparison.relative, 0.0, "the others agree");
            assert!(!comparison.meets(&bars::GENERAL));
        }
        let all = compare(Tensor::Out, &heads(), &[1.0_f64; 8], &[f32::NAN; 8]);
        assert_eq!(all.not_finite, 8);
        assert!(!all.meets(&bars::STORED_BF16));
    }

    #[test]
    fn zeros_must_be_zeros() {
        let zeros = [0.0_f64; 8];
        let same = compare(Tensor::Out, &heads(), &zeros, &[-0.0_f32; 8]);
        assert_eq!((same.relative, same.relative_by_head, same.rms_ratio), (0.0, 0.0, 0.0));
        assert!(same.meets(&bars::SEQUENTIAL));
        let mut actual = [0.0_f32; 8];
        actual[7] = 1e-45;
        assert!(!compare(Tensor::Out, &heads(), &zeros, &actual).meets(&bars::STORED_BF16));
        // One head of zeros beside another that is not.
        let expected = [1.0_f64, 1.0, 0.0, 0.0];
        let comparison = compare(Tensor::Out, &heads(), &expected, &[1.0_f32, 1.0, 0.0, 1e-30]);
        assert!(comparison.relative < 1e-29 && comparison.relative_by_head.is_infinite());
    }

    /// A state that decayed below what float32 holds is 0 there, and no error.
    #[test]
    fn what_underflows_is_no_error() {
        for head in [[1e-200, 0.0], [1.0, 1.0]] {
            let expected = [head[0], head[1], 1e-200, 0.0];
            let actual = expected.map(|value| value as f32);
            assert!(compare(Tensor::Out, &heads(), &expected, &actual).meets(&bars::SEQUENTIAL));
        }
    }

    #[test]
    fn empty_tensors_agree() {
        let comparison = compare::<f64, f32>(Tensor::Out, &heads(), &[], &[]);
        assert_eq!(comparison.worst, None);
        assert!(comparison.meets(&bars::SEQUENTIAL));
    }

    #[test]
    fn bits_are_compared_as_bits() {
        let a = [0.0, f32::NAN, 1.0, 2.0];
        assert_eq!(first_bit_difference(Tensor::Out, &heads(), &a, &a), None);
        let (b, c) = ([0.0, f32::NAN, -0.0, 2.0], [0.0, f32::NAN, 0.0, 2.0]);
        let place = Place::Out { token: 0, head: 1, column: 0 };
        assert_eq!(first_bit_difference(Tensor::Out, &heads(), &b, &c), Some(place));
    }
}
