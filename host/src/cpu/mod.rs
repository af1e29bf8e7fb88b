//! The recurrence on the CPU in FP32: token by token, or in chunks of tokens.
//!
//! Columns of a head's state never meet, so the work is cut by value head and, where there are more threads than heads,
//! by column. Each column's sums run over its key rows in order whatever the cut is: outputs have the same bits for any
//! number of threads.
//!
//! ```text
//! run          checks
//! uses         which slots each sequence reads and writes
//! batch        sequences as jobs: where the state stands, when it is stored, how far to convert
//!   prepare    a piece of a sequence as f32 rows, normalised, gates worked out
//!   rows       its output, in its own type
//! advance      cuts a piece into parts, spreads them over the threads
//!   part       heads that read one key head, or columns of a head: state to tiles, tokens, tiles to state
//!     segment  the inputs of some tokens, side by side
//!     tile     tokens in sequence, on columns that stay in the first-level cache
//!     transfer state to tiles and back
//!     single   one of few tokens, on the state as it lies
//!     sums     what both sum, in vectors of whatever this processor has
//!   chunked    the same part, in chunks of tokens as matrix products
//!   split      disjoint parts of the output and the state
//! states       zeros and copies
//! ```
//!
//! # Bits
//! [`Path::Recurrent`] gives the same bits for one call or several that hand the state on, wherever the tokens are cut;
//! [`Path::Chunked`] does where every cut lies at a multiple of 32 tokens. The paths agree to about 1e-6 of the largest
//! value, not in bits, and [`run`] chooses by tokens and heads: whoever needs the bits of a split prompt forces a path with
//! [`run_by`].
#![forbid(unsafe_code)]

mod batch;
mod chunked;
mod part;
mod prepare;
mod rows;
mod segment;
mod single;
mod split;
mod states;
mod sums;
#[cfg(test)]
mod tests;
mod tile;
mod transfer;
mod uses;

pub use states::{copy_states, copy_states_within, zero_states};

use crate::call::Call;
use crate::error::{Error, Result};
use crate::heads::{HEAD_DIM, Heads};
use crate::request::DECODE_TOKENS;
use ndarray::ArrayViewMut3;
use part::{Inputs, Part, Piece, Scratch};
use pulp::Arch;
use rayon::prelude::*;

/// Parts for each thread: with fewer, threads that finish early would wait for the others.
const PARTS_PER_THREAD: usize = 3;
/// Value heads that share the copies of their keys: their states take 256 KB of a second-level cache.
const MOST_HEADS: usize = 4;
/// Heads times tokens worth fetching a thread for; less stays together.
const LEAST_WORK: usize = 4;
/// Chunks pay from so many tokens on, where so many value heads share a key head and there are so many in all: see
/// [`Path::choose`].
const CHUNKED_TOKENS: usize = 128;
const CHUNKED_VALUES_PER_KEY: usize = 2;
const CHUNKED_HEADS: usize = 16;

/// How a state is carried through a call's tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Path {
    /// Token by token: one sweep over the state for each.
    Recurrent,
    /// 32 tokens at a time, as matrix products.
    Chunked,
}

impl Path {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Recurrent, Self::Chunked];

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Recurrent => "recurrent",
            Self::Chunked => "chunked",
        }
    }

    /// What [`run`] takes. Neither the processor nor the number of threads matters, so that a call keeps its bits when
    /// they change.
    ///
    /// Measured with AVX-512 (Zen 4): with two or three value heads for each key head, chunks take 0.90 to 0.93 of the
    /// sequential time from 128 tokens on, and are level with it a little above 64, where the last, short chunk weighs
    /// most. With one value head they only save 0 to 4 %: nobody shares the products of keys. With few heads, threads
    /// share heads by column, and each of them has to multiply the keys.
    #[must_use]
    pub fn choose(tokens: usize, heads: &Heads) -> Self {
        let shared = heads.values_per_key() >= CHUNKED_VALUES_PER_KEY && heads.num_v_heads >= CHUNKED_HEADS;
        if shared && tokens >= CHUNKED_TOKENS { Self::Chunked } else { Self::Recurrent }
    }
}

/// Runs `call` on the threads of the current rayon pool, by the path that [`Path::choose`] names.
///
/// Everything is FP32: S = e^g S, d = beta (v - S^T k), S += k d^T, o = scale * S^T q. A gate of -inf forgets the state;
/// NaN and infinities spread as IEEE 754 says, so a state that holds one is not forgotten: 0 times it is NaN. With no
/// tokens the state keeps its bits.
///
/// # Errors
/// Those of [`Call::validate`]; nothing has been written then.
pub fn run(call: Call<'_>) -> Result<()> {
    call.validate()?;
    batch::run(call, None, Arch::new())
}

/// [`run`] for sequences of up to [`DECODE_TOKENS`] tokens, token by token.
///
/// # Errors
/// Those of [`run`]; [`Error::DecodeTokens`] for longer sequences.
pub fn decode(call: Call<'_>) -> Result<()> {
    call.validate()?;
    let tokens = call.sequences.longest();
    if tokens > DECODE_TOKENS {
        return Err(Error::DecodeTokens { tokens, most: DECODE_TOKENS });
    }
    run_by(call, Path::Recurrent)
}

/// [`run`] by this path, faster or not.
///
/// # Errors
/// Those of [`run`].
pub fn run_by(call: Call<'_>, path: Path) -> Result<()> {
    run_on(call, path, Arch::new())
}

/// [`run_by`] with these vectors.
fn run_on(call: Call<'_>, path: Path, arch: Arch) -> Result<()> {
    call.validate()?;
    batch::run(call, Some(path), arch)
}

/// Carries `state`, `[head, key row, value column]` with contiguous columns, through a piece of a sequence; from zero and
/// dropped if there is none. `out` is `[head, token, column]`.
fn advance(
    inputs: &Inputs<'_>,
    heads: &Heads,
    path: Path,
    size: &PartSize,
    out: ArrayViewMut3<'_, f32>,
    state: Option<ArrayViewMut3<'_, f32>>,
    arch: Arch,
) {
    let outs = split::columns(out, size.columns);
    let pieces: Vec<Piece<'_>> = match state {
        Some(state) => {
            let states = split::columns(state, size.columns);
            outs.into_iter().zip(states).map(|(out, state)| Piece { out, state: Some(state) }).collect()
        }
        None => outs.into_iter().map(|out| Piece { out, state: None }).collect(),
    };
    let parts = gather(pieces, heads, size.heads);
    let together = LEAST_WORK.div_ceil(inputs.tokens * size.heads);
    let parts = parts.into_par_iter().with_min_len(together);
    match path {
        Path::Recurrent => parts.for_each_init(Scratch::default, |scratch, part| part.run(inputs, scratch, arch)),
        Path::Chunked => parts.for_each_init(chunked::Scratch::default, |scratch, part| {
            chunked::run(part, inputs, scratch, arch);
        }),
    }
}

/// How the work is cut.
struct PartSize {
    /// Value heads of a part, at most.
    heads: usize,
    /// Columns of each.
    columns: usize,
}

impl PartSize {
    /// Heads with a key head in common where enough parts remain, single heads, or a half or a quarter of one.
    fn new(heads: &Heads, path: Path, threads: usize) -> Self {
        let wanted = match path {
            _ if threads == 1 => 1,
            Path::Recurrent => threads * PARTS_PER_THREAD,
            // Every part multiplies its keys, so fewer of them.
            Path::Chunked => threads,
        };
        let cuts = wanted.div_ceil(heads.num_v_heads).next_power_of_two();
        Self {
            heads: (heads.num_v_heads / wanted).clamp(1, heads.values_per_key().min(MOST_HEADS)),
            columns: (HEAD_DIM / cuts).max(tile::COLUMNS),
        }
    }
}

/// Parts of up to `most` pieces that read the same key head.
fn gather<'a>(mut pieces: Vec<Piece<'a>>, heads: &Heads, most: usize) -> Vec<Part<'a>> {
    pieces.sort_by_key(|piece| heads.k_head(piece.out.head));
    let mut parts: Vec<Part<'a>> = Vec::with_capacity(pieces.len().div_ceil(most));
    for piece in pieces {
        let k_head = heads.k_head(piece.out.head);
        match parts.last_mut() {
            Some(part) if part.k_head == k_head && part.pieces.len() < most => part.pieces.push(piece),
            _ => parts.push(Part { k_head, pieces: vec![piece] }),
        }
    }
    parts
}
