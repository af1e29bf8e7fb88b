//! What is said of a list of samples, and in which order they are taken.
#![forbid(unsafe_code)]
use serde::Serialize;

/// One measured call.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Sample {
    /// In which round: every path has one sample a round.
    pub round: usize,
    /// Its place in the round.
    pub position: usize,
    pub microseconds: f64,
}

/// Microseconds a call.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Statistics {
    pub samples: usize,
    pub median: f64,
    pub minimum: f64,
    pub lower_quartile: f64,
    pub upper_quartile: f64,
    pub maximum: f64,
}

impl Statistics {
    /// Those of `samples`; None of no samples.
    pub fn of(samples: &[Sample]) -> Option<Self> {
        let mut sorted: Vec<f64> = samples.iter().map(|sample| sample.microseconds).collect();
        sorted.sort_unstable_by(f64::total_cmp);
        Some(Self {
            samples: sorted.len(),
            median: quantile(&sorted, 0.5)?,
            minimum: *sorted.first()?,
            lower_quartile: quantile(&sorted, 0.25)?,
            upper_quartile: quantile(&sorted, 0.75)?,
            maximum: *sorted.last()?,
        })
    }
}

/// Between the two nearest where it falls between them.
fn quantile(sorted: &[f64], share: f64) -> Option<f64> {
    let place = share * sorted.len().checked_sub(1)? as f64;
    let (below, above) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
    Some(below + (above - below) * place.fract())
}

/// The order of `paths` paths in a round: forwards and backwards in turn, so that a drift of the clocks, or whatever a
/// path leaves behind for the next, meets every path alike.
pub fn order(round: usize, paths: usize) -> Vec<usize> {
    if round.is_multiple_of(2) { (0..paths).collect() } else { (0..paths).rev().collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: &[f64]) -> Option<Statistics> {
        let sample = |(round, &microseconds)| Sample { round, position: 0, microseconds };
        Statistics::of(&values.iter().enumerate().map(sample).collect::<Vec<_>>())
    }

    #[test]
    fn medians_and_quartiles() {
        assert_eq!(of(&[]), None);
        let one = of(&[7.0]).unwrap();
        assert_eq!(
            (one.minimum, one.lower_quartile, one.median, one.upper_quartile, one.maximum),
            (7.0, 7.0, 7.0, 7.0, 7.0)
        );
        let odd = of(&[5.0, 1.0, 4.0, 2.0, 3.0]).unwrap();
        assert_eq!(
            (odd.minimum, odd.lower_quartile, odd.median, odd.upper_quartile, odd.maximum),
            (1.0, 2.0, 3.0, 4.0, 5.0)
        );
        let even = of(&[4.0, 1.0, 3.0, 2.0]).unwrap();
        assert_eq!((even.samples, even.lower_quartile, even.median, even.upper_quartile), (4, 1.75, 2.5, 3.25));
    }

    #[test]
    fn rounds_go_both_ways() {
        assert_eq!(order(0, 3), [0, 1, 2]);
        assert_eq!(order(1, 3), [2, 1, 0]);
        assert_eq!(order(2, 3), [0, 1, 2]);
        assert_eq!(order(3, 1), [0]);
    }
}
