//! Times of two ways, taken in turn in both orders, so that a machine that slows down or warms up meets both alike.
#![forbid(unsafe_code)]
use serde::Serialize;
use std::time::{Duration, Instant};

/// No more rounds after so long.
const ENOUGH: Duration = Duration::from_secs(5);

/// One prompt's times, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Times {
    /// All calls of the recurrence.
    pub recurrence: f64,
    /// The whole prompt.
    pub prompt: f64,
}

/// The medians of both.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Pair {
    /// Of the one compared with.
    pub base: Times,
    /// Of the other.
    pub other: Times,
    /// Samples of each.
    pub samples: usize,
}

/// Runs base, other, other, base up to `rounds` times; `run` is told whether it is the other's turn.
///
/// # Errors
/// Those of `run`.
pub fn interleaved<E>(rounds: usize, mut run: impl FnMut(bool) -> Result<Times, E>) -> Result<Pair, E> {
    let (mut base, mut other) = (Vec::new(), Vec::new());
    let start = Instant::now();
    for round in 0..rounds.max(1) {
        if round > 0 && start.elapsed() > ENOUGH {
            break;
        }
        base.push(run(false)?);
        other.push(run(true)?);
        other.push(run(true)?);
        base.push(run(false)?);
    }
    Ok(Pair { base: medians(&base), other: medians(&other), samples: base.len() })
}

fn medians(times: &[Times]) -> Times {
    let of = |part: fn(&Times) -> f64| median(times.iter().map(part).collect());
    Times { recurrence: of(|times| times.recurrence), prompt: of(|times| times.prompt) }
}

/// The middle one, or the mean of the middle two.
fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_unstable_by(f64::total_cmp);
    let middle = samples.len() / 2;
    f64::midpoint(samples[(samples.len() - 1) / 2], samples[middle])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_orders_and_medians() {
        let (mut order, mut count) = (String::new(), 0.0);
        let pair = interleaved(2, |is_other| {
            order.push(if is_other { 'B' } else { 'A' });
            count += 1.0;
            Ok::<_, ()>(Times { recurrence: count, prompt: 10.0 * count })
        });
        assert_eq!(order, "ABBAABBA");
        let pair = pair.unwrap();
        assert_eq!(pair.samples, 4);
        assert_eq!(pair.base, Times { recurrence: 4.5, prompt: 45.0 });
        assert_eq!(pair.other, Times { recurrence: 4.5, prompt: 45.0 });
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
    }
}
