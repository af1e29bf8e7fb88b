//! The sequences of a call: so many of one length, or packed one after the other.
#![forbid(unsafe_code)]
use crate::error::{Error, Result};

/// Which tokens belong to which sequence. From a number: one sequence of so many tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Sequences<'a> {
    /// `batch` sequences of `tokens` tokens, each tensor's batch stride apart. Decode is `tokens: 1`. Either may be 0.
    Uniform {
        /// How many.
        batch: usize,
        /// Tokens of each.
        tokens: usize,
    },
    /// Packed along the token axis: sequence n has the tokens from `cu_seqlens[n]` up to `cu_seqlens[n + 1]`.
    Varlen {
        /// One more number than sequences, from 0 on, never falling. In host memory; empty sequences are legal.
        cu_seqlens: &'a [u32],
    },
}

impl From<usize> for Sequences<'_> {
    fn from(tokens: usize) -> Self {
        Self::Uniform { batch: 1, tokens }
    }
}

impl Sequences<'_> {
    /// How many there are.
    #[must_use]
    pub const fn count(&self) -> usize {
        match self {
            Self::Uniform { batch, .. } => *batch,
            Self::Varlen { cu_seqlens } => cu_seqlens.len().saturating_sub(1),
        }
    }

    /// Tokens of sequence `index`.
    ///
    /// # Panics
    /// If there is no such sequence in a packed batch.
    #[must_use]
    pub fn tokens(&self, index: usize) -> usize {
        match self {
            Self::Uniform { tokens, .. } => *tokens,
            Self::Varlen { cu_seqlens } => (cu_seqlens[index + 1] - cu_seqlens[index]) as usize,
        }
    }

    /// Tokens of the longest, 0 without any.
    #[must_use]
    pub fn longest(&self) -> usize {
        match self {
            Self::Uniform { batch: 0, .. } => 0,
            Self::Uniform { tokens, .. } => *tokens,
            Self::Varlen { .. } => (0..self.count()).map(|index| self.tokens(index)).max().unwrap_or(0),
        }
    }

    /// Tokens of all together.
    #[must_use]
    pub fn total(&self) -> usize {
        match self {
            Self::Uniform { batch, tokens } => batch.saturating_mul(*tokens),
            Self::Varlen { cu_seqlens } => cu_seqlens.last().map_or(0, |&end| end as usize),
        }
    }

    /// How many states `Call::checkpoint_every(interval, ..)` writes: for each sequence one after every `interval` tokens,
    /// as often as they are complete.
    ///
    /// # Panics
    /// If `interval` is 0.
    #[must_use]
    pub fn checkpoints(&self, interval: usize) -> usize {
        (0..self.count()).map(|index| self.tokens(index) / interval).sum()
    }

    /// Batches and tokens along the axes of a tensor.
    pub(crate) fn axes(&self) -> [usize; 2] {
        match self {
            Self::Uniform { batch, tokens } => [*batch, *tokens],
            Self::Varlen { .. } => [1, self.total()],
        }
    }

    /// Where sequence `index` starts: its place on the batch axis, and its first token on the token axis.
    pub(crate) fn start(&self, index: usize) -> [usize; 2] {
        match self {
            Self::Uniform { .. } => [index, 0],
            Self::Varlen { cu_seqlens } => [0, cu_seqlens[index] as usize],
        }
    }

    /// The tokens of every sequence, where all have as many.
    pub(crate) fn uniform(&self) -> Option<usize> {
        match self {
            Self::Uniform { tokens, .. } => Some(*tokens),
            Self::Varlen { .. } => {
                let first = if self.count() == 0 { 0 } else { self.tokens(0) };
                (0..self.count()).all(|index| self.tokens(index) == first).then_some(first)
            }
        }
    }

    /// # Errors
    /// [`Error::Shape`] for `cu_seqlens` or for 2^32 tokens or sequences.
    pub(crate) fn validate(&self) -> Result<()> {
        match self {
            Self::Uniform { batch, tokens } => {
                for (argument, count) in [("tokens", *tokens), ("batch", *batch)] {
                    if u32::try_from(count).is_err() {
                        return Err(Error::shape(argument, format!("at most {}", u32::MAX), count));
                    }
                }
            }
            Self::Varlen { cu_seqlens } => {
                let Some(&first) = cu_seqlens.first() else {
                    return Err(Error::shape("cu_seqlens", "one more number than sequences", "none"));
                };
                if first != 0 {
                    return Err(Error::shape("cu_seqlens", "0 as the first number", first));
                }
                if let Some(index) = (1..cu_seqlens.len()).find(|&index| cu_seqlens[index] < cu_seqlens[index - 1]) {
                    let (before, after) = (cu_seqlens[index - 1], cu_seqlens[index]);
                    return Err(Error::shape(
                        "cu_seqlens",
                        format!("at least {before} as number {index}, since it may not fall"),
                        after,
                    ));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_sequences_are_counted_from_their_offsets() {
        let packed = Sequences::Varlen { cu_seqlens: &[0, 0, 5, 5, 5, 69, 69] };
        packed.validate().unwrap();
        let tokens: Vec<usize> = (0..packed.count()).map(|index| packed.tokens(index)).collect();
        assert_eq!(tokens, [0, 5, 0, 0, 64, 0]);
        assert_eq!((packed.longest(), packed.total(), packed.checkpoints(32), packed.start(4)), (64, 69, 2, [0, 5]));
        assert_eq!(packed.uniform(), None);
        assert_eq!(Sequences::Varlen { cu_seqlens: &[0, 3, 6] }.uniform(), Some(3));
        assert_eq!(Sequences::Varlen { cu_seqlens: &[0] }.uniform(), Some(0));
    }

    #[test]
    fn offsets_that_fall_or_start_elsewhere_are_refused() {
        for bad in [&[][..], &[1], &[1, 2], &[0, 5, 4]] {
            let error = Sequences::Varlen { cu_seqlens: bad }.validate().unwrap_err();
            assert!(matches!(error, Error::Shape { argument: "cu_seqlens", .. }), "{bad:?}: {error}");
        }
        Sequences::Varlen { cu_seqlens: &[0] }.validate().unwrap();
    }
}
