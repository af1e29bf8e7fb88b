//! A call cut into windows, one after the other: what of it stands in the scratch at a time.
#![forbid(unsafe_code)]
use crate::plain::{Held, Piece};
use crate::sequences::Sequences;
use std::ops::Range;

/// Whole sequences, or a piece of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    /// Which.
    pub sequences: Range<usize>,
    /// Of a single sequence: which of its tokens.
    piece: Range<usize>,
    /// Whether that is the beginning, and the end.
    pub starts: bool,
    pub ends: bool,
    shape: Shape,
}

/// The sequences of a window, by themselves.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Shape {
    Uniform { batch: usize, tokens: usize },
    Varlen { cu_seqlens: Vec<u32> },
}

impl Window {
    /// All of `sequences`.
    pub fn whole(sequences: &Sequences<'_>) -> Self {
        Self::of(sequences, 0..sequences.count())
    }

    /// Some of them, to their ends.
    fn of(sequences: &Sequences<'_>, range: Range<usize>) -> Self {
        let shape = match sequences {
            Sequences::Uniform { tokens, .. } => Shape::Uniform { batch: range.len(), tokens: *tokens },
            Sequences::Varlen { .. } if range.len() == 1 => {
                Shape::Uniform { batch: 1, tokens: sequences.tokens(range.start) }
            }
            Sequences::Varlen { cu_seqlens } => {
                let offsets = cu_seqlens.get(range.start..=range.end).unwrap_or_default();
                Shape::Varlen { cu_seqlens: offsets.iter().map(|offset| offset - offsets[0]).collect() }
            }
        };
        Self { sequences: range, piece: 0..0, starts: true, ends: true, shape }
    }

    /// Its sequences, as those of a call.
    pub fn sequences(&self) -> Sequences<'_> {
        match &self.shape {
            Shape::Uniform { batch, tokens } => Sequences::Uniform { batch: *batch, tokens: *tokens },
            Shape::Varlen { cu_seqlens } => Sequences::Varlen { cu_seqlens },
        }
    }

    /// Where it starts in the call.
    pub fn first(&self) -> Piece {
        let (sequence, first) = (self.sequences.start, self.piece.start);
        Piece { sequence, first, tokens: self.piece.len(), from: Held::Caller, to: Held::Caller }
    }

    /// Whether it is less than a sequence.
    pub fn is_cut(&self) -> bool {
        !(self.starts && self.ends)
    }

    /// The offsets of its sequences, where they have a token axis in common.
    pub fn cu_seqlens(&self) -> Option<&[u32]> {
        match &self.shape {
            Shape::Uniform { .. } => None,
            Shape::Varlen { cu_seqlens } => Some(cu_seqlens),
        }
    }
}

/// The windows of a call in order, each of at most so many sequences and tokens. A sequence of more tokens has windows of its own,
/// so that where it is cut does not depend on its neighbours.
pub(crate) fn windows(sequences: &Sequences<'_>, most_tokens: usize, most_sequences: usize) -> Vec<Window> {
    let mut all = Vec::new();
    let (mut start, mut tokens) = (0, 0);
    for index in 0..sequences.count() {
        let more = sequences.tokens(index);
        if index > start && (tokens + more > most_tokens || index - start == most_sequences) {
            all.push(Window::of(sequences, start..index));
            (start, tokens) = (index, 0);
        }
        tokens += more;
        if more > most_tokens {
            all.extend((0..more).step_by(most_tokens).map(|first| {
                let piece = first..more.min(first + most_tokens);
                let shape = Shape::Uniform { batch: 1, tokens: piece.len() };
                let (starts, ends) = (first == 0, piece.end == more);
                Window { sequences: index..index + 1, piece, starts, ends, shape }
            }));
            (start, tokens) = (index + 1, 0);
        }
    }
    if start < sequences.count() {
        all.push(Window::of(sequences, start..sequences.count()));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Which sequences, and which tokens of a piece of one.
    fn cut(sequences: Sequences<'_>, tokens: usize, count: usize) -> Vec<(Range<usize>, usize)> {
        let of = |window: &Window| {
            let first = window.first();
            if window.is_cut() {
                assert_eq!(window.sequences(), Sequences::from(first.tokens));
            }
            (window.sequences.clone(), first.first)
        };
        windows(&sequences, tokens, count).iter().map(of).collect()
    }

    #[test]
    fn short_sequences_share_a_window_and_long_ones_are_cut_for_themselves() {
        let offsets = [0, 10, 20, 20, 52, 152, 153];
        let packed = Sequences::Varlen { cu_seqlens: &offsets };
        assert_eq!(cut(packed, 64, 9), [(0..4, 0), (4..5, 0), (4..5, 64), (5..6, 0)]);
        assert_eq!(
            cut(packed, 32, 2),
            [(0..2, 0), (2..4, 0), (4..5, 0), (4..5, 32), (4..5, 64), (4..5, 96), (5..6, 0)]
        );
        let all = windows(&packed, 64, 9);
        assert_eq!(all[0].sequences(), Sequences::Varlen { cu_seqlens: &[0, 10, 20, 20, 52] });
        assert_eq!(windows(&packed, 1000, 9), [Window::whole(&packed)]);
        let ends: Vec<_> = all.iter().map(|window| (window.starts, window.ends)).collect();
        assert_eq!(ends, [(true, true), (true, false), (false, true), (true, true)]);
        let batch = Sequences::Uniform { batch: 5, tokens: 20 };
        assert_eq!(cut(batch, 64, 9), [(0..3, 0), (3..5, 0)]);
        assert_eq!(windows(&batch, 64, 9)[1].sequences(), Sequences::Uniform { batch: 2, tokens: 20 });
        assert_eq!(cut(Sequences::Uniform { batch: 2, tokens: 70 }, 64, 9).len(), 4);
        assert!(windows(&Sequences::Uniform { batch: 0, tokens: 70 }, 64, 9).is_empty());
        assert!(windows(&Sequences::Varlen { cu_seqlens: &[0] }, 64, 9).is_empty());
    }
}
