//! The recurrence on the CPU, token by token in FP32.
//!
//! Columns of a head's state never meet, so the work is cut by value head and, where there are more threads than heads,
//! by column. Each column's sums run over its key rows in order whatever the cut is: outputs have the same bits for any
//! number of threads, and for one call or several that hand the state on.
//!
//! ```text
//! run          checks, cuts into parts, spreads them over the threads
//!   part       heads that read one key head, or columns of a head: state to tiles, tokens, tiles to state
//!     segment  the inputs of some tokens, side by side
//!     tile     tokens in sequence, on columns that stay in the first-level cache
//!     transfer state to tiles and back
//!     single   one of few tokens, on the state as it lies
//!     sums     what both sum, in vectors of whatever this processor has
//!   split      disjoint columns of the output and the state
//! ```
#![forbid(unsafe_code)]

mod part;
mod segment;
mod single;
mod split;
mod sums;
#[cfg(test)]
mod tests;
mod tile;
mod transfer;

use crate::call::{Call, Gates, State, Strides};
use crate::error::Result;
use crate::heads::{HEAD_DIM, Heads};
use part::{Inputs, Part, Piece, Scratch};
use pulp::Arch;
use rayon::prelude::*;

/// Parts for each thread: with fewer, threads that finish early would wait for the others.
const PARTS_PER_THREAD: usize = 3;
/// Value heads that share the copies of their keys: their states take 256 KB of a second-level cache.
const MOST_HEADS: usize = 4;
/// Heads times tokens worth fetching a thread for; less stays together.
const LEAST_WORK: usize = 4;

/// Runs `call` on the threads of the current rayon pool.
///
/// Everything is FP32: S = e^g S, d = beta (v - S^T k), S += k d^T, o = scale * S^T q. A gate of -inf forgets the state;
/// NaN and infinities spread as IEEE 754 says, so a state that holds one is not forgotten: 0 times it is NaN. With no
/// tokens the state keeps its bits.
///
/// # Errors
/// Those of [`Call::validate`]; nothing has been written then.
pub fn run(call: Call<'_>) -> Result<()> {
    run_on(call, Arch::new())
}

/// [`run`] with these vectors.
fn run_on(call: Call<'_>, arch: Arch) -> Result<()> {
    call.validate()?;
    if call.tokens == 0 {
        return Ok(());
    }
    let Call { heads, tokens, q, k, v, gates: Gates::Log { g, beta }, out, state, scale } = call;
    let inputs = Inputs { tokens, q, k, v, g, beta, scale };
    let size = PartSize::new(&heads, rayon::current_num_threads());
    let outs = split::columns(out.data, tokens, heads.num_v_heads, out.strides, size.columns);
    let pieces: Vec<Piece<'_>> = match state {
        Some(State { data, layout }) => {
            let strides = Strides { token: layout.row, head: layout.head };
            let states = split::columns(data, HEAD_DIM, heads.num_v_heads, strides, size.columns);
            outs.into_iter().zip(states).map(|(out, state)| Piece { out, state: Some(state) }).collect()
        }
        None => outs.into_iter().map(|out| Piece { out, state: None }).collect(),
    };
    let parts = gather(pieces, &heads, size.heads);
    let together = LEAST_WORK.div_ceil(tokens * size.heads);
    parts
        .into_par_iter()
        .with_min_len(together)
        .for_each_init(Scratch::default, |scratch, part| part.run(&inputs, scratch, arch));
    Ok(())
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
    fn new(heads: &Heads, threads: usize) -> Self {
        let wanted = if threads == 1 { 1 } else { threads * PARTS_PER_THREAD };
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
