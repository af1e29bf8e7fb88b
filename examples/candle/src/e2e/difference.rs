//! How far two runs of a model are apart.
#![forbid(unsafe_code)]
use serde::Serialize;

/// What a run of a model gives.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// After each of the prompt's last tokens.
    pub logits: Vec<Vec<f32>>,
    /// The most likely tokens after it, one after the other.
    pub generated: Vec<u32>,
}

/// One run against another. Divergences are Kullback and Leibler's, in nats, from the distribution of the one compared with.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Difference {
    /// Of the first token that is generated.
    pub first_divergence: f64,
    /// Over the prompt's positions.
    pub mean_divergence: f64,
    /// Of the prompt's positions.
    pub largest_divergence: f64,
    /// Positions with the same most likely token.
    pub same_top: usize,
    /// Positions.
    pub positions: usize,
    /// Generated tokens up to the first that differs.
    pub same_generated: usize,
    /// Generated tokens.
    pub generated: usize,
}

impl Difference {
    /// That of `other` against `base`, which has as many positions.
    #[must_use]
    pub fn of(base: &Outcome, other: &Outcome) -> Self {
        let pairs = || base.logits.iter().zip(&other.logits);
        let divergences: Vec<f64> = pairs().map(|(base, other)| divergence(base, other)).collect();
        let generated = base.generated.iter().zip(&other.generated);
        Self {
            first_divergence: divergences.last().copied().unwrap_or_default(),
            mean_divergence: divergences.iter().sum::<f64>() / divergences.len() as f64,
            largest_divergence: divergences.iter().copied().fold(0.0, f64::max),
            same_top: pairs().filter(|(base, other)| top(base) == top(other)).count(),
            positions: divergences.len(),
            same_generated: generated.take_while(|(base, other)| base == other).count(),
            generated: base.generated.len(),
        }
    }
}

/// sum p (log p - log p'). Rounding may leave less than nothing where they are all but the same.
fn divergence(base: &[f32], other: &[f32]) -> f64 {
    let (base, other) = (log_softmax(base), log_softmax(other));
    base.iter().zip(&other).map(|(base, other)| base.exp() * (base - other)).sum()
}

fn log_softmax(logits: &[f32]) -> Vec<f64> {
    let logits: Vec<f64> = logits.iter().copied().map(f64::from).collect();
    let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let offset = largest + logits.iter().map(|logit| (logit - largest).exp()).sum::<f64>().ln();
    logits.iter().map(|logit| logit - offset).collect()
}

fn top(logits: &[f32]) -> Option<usize> {
    (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divergence_of_two_coins() {
        // 1/2, 1/2 from 3/4, 1/4: log(2/3)/2 + log(2)/2.
        let found = divergence(&[1.0, 1.0], &[3.0f32.ln() + 5.0, 5.0]);
        assert!((found - (4.0f64 / 3.0).ln() / 2.0).abs() < 1e-6, "{found}");
        assert_eq!(divergence(&[1.0, -2.0, 80.0], &[1.0, -2.0, 80.0]), 0.0);
    }

    #[test]
    fn what_is_counted() {
        let base = Outcome { logits: vec![vec![1.0, 0.0], vec![0.0, 2.0]], generated: vec![1, 0, 1] };
        let other = Outcome { logits: vec![vec![0.0, 1.0], vec![0.0, 2.0]], generated: vec![1, 1, 1] };
        let difference = Difference::of(&base, &other);
        assert_eq!((difference.same_top, difference.positions), (1, 2));
        assert_eq!((difference.same_generated, difference.generated), (1, 3));
        assert_eq!(difference.first_divergence, 0.0);
        assert!(difference.largest_divergence > 0.4);
        assert_eq!(difference.mean_divergence, difference.largest_divergence / 2.0);
    }
}
