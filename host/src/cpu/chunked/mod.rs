//! Chunks of tokens as matrix products: the WY form.
//!
//! Token by token, an element of the state takes four operations. With the state S0 before a chunk and `decay(t, i)` the
//! product of the forget gates after token i up to token t, the corrections d of a chunk solve a triangular system:
//!
//! ```text
//! d_t = beta_t (v_t - decay(t, start) S0^T k_t) - sum over i < t of beta_t decay(t, i) k_t.k_i d_i
//! o_t = scale (decay(t, start) S0^T q_t + sum over i <= t of decay(t, i) q_t.k_i d_i)
//! S   = decay(end, start) S0 + sum over t of decay(end, t) k_t d_t^T
//! ```
//!
//! That is three operations an element and token, and a tenth of that for the triangles; k.k and q.k serve every value
//! head of their key head. Both forms keep the multipliers busy, so the operations are what can be saved, and what waiting
//! for the caller's rows takes is the same.
//!
//! Chunks of 16, 32 and 64 tokens take the same time within 2 %: what longer chunks add to the triangles they save on
//! loads and stores of the state. 32 is also the kernels' chunk.
//!
//! # Gates
//! Decays are products of e^g in float64, each rounded to float32 once. No exponent is ever the difference of two sums,
//! so gates of -inf, of -1e38 and above 0 need no care: see `head`.
//!
//! # Bits
//! Every sum runs over its rows or tokens in order, whatever the vectors, the blocks and the cut into parts. So the bits do
//! not depend on the number of threads, and a call that is split at a multiple of [`CHUNK`] tokens has those of the whole.
//! A chunk that is not full is computed as such: nothing is padded, so that an infinite state spreads no further than
//! token by token.
#![forbid(unsafe_code)]

mod advance;
mod head;
mod keys;
mod products;
#[cfg(test)]
mod tests;

use super::part::{Inputs, Part};
use super::tile::{self, Tile};
use super::transfer::{Load, Store};
use advance::Advance;
use head::Head;
use keys::Keys;
use pulp::Arch;

/// Tokens of a chunk.
pub(super) const CHUNK: usize = 32;

/// A number for every pair of tokens of a chunk, `[token][earlier token]`. Above the diagonal it is never read.
type Pairs = [[f32; CHUNK]; CHUNK];

/// What a thread computes in, kept from part to part.
#[derive(Default)]
pub(super) struct Scratch {
    /// Of every piece, one piece after the other.
    tiles: Vec<Tile>,
    /// One of each, on the heap.
    keys: Vec<Keys>,
    head: Vec<Head>,
}

/// Carries the states of `part` through every token.
pub(super) fn run(mut part: Part<'_>, inputs: &Inputs<'_>, scratch: &mut Scratch, arch: Arch) {
    let Scratch { tiles, keys, head } = scratch;
    let tiles_per_piece = part.pieces[0].out.rows.ncols() / tile::COLUMNS;
    tiles.resize(part.pieces.len() * tiles_per_piece, Tile::ZERO);
    keys.resize(1, Keys::BLANK);
    head.resize(1, Head::BLANK);
    let (keys, head) = (&mut keys[0], &mut head[0]);
    for (piece, tiles) in part.pieces.iter().zip(tiles.chunks_mut(tiles_per_piece)) {
        match &piece.state {
            Some(state) => arch.dispatch(Load { rows: state.rows.view(), tiles }),
            None => tiles.fill(Tile::ZERO),
        }
    }
    for first in (0..inputs.tokens).step_by(CHUNK) {
        let count = CHUNK.min(inputs.tokens - first);
        arch.dispatch(keys::Read { keys, inputs, first, count, head: part.k_head });
        for (piece, tiles) in part.pieces.iter_mut().zip(tiles.chunks_mut(tiles_per_piece)) {
            arch.dispatch(head::Read { head, keys, inputs, first, count, index: piece.out.head });
            for (index, tile) in tiles.iter_mut().enumerate() {
                let (out, column) = (&mut piece.out, index * tile::COLUMNS);
                arch.dispatch(Advance { tile, keys, head, out, token: first, count, column });
            }
        }
    }
    for (piece, tiles) in part.pieces.into_iter().zip(tiles.chunks(tiles_per_piece)) {
        if let Some(state) = piece.state {
            arch.dispatch(Store { rows: state.rows, tiles });
        }
    }
}
