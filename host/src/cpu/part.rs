//! One part of a call: value heads that read the same key head, or a few columns of one, over all tokens.
#![forbid(unsafe_code)]
use super::segment::{self, KeyInputs, ValueInputs};
use super::single::Single;
use super::split::Columns;
use super::tile::{self, Advance, Tile};
use super::transfer::{Load, Store};
use crate::layout::Strides;
use pulp::Arch;

/// Tokens for which a state stays where it is. One of them takes half as long again as in a sequence, but copying a state to
/// tiles and back takes as long as three.
const FEW: usize = 4;

/// Rows of f32.
#[derive(Clone, Copy)]
pub(super) struct Floats<'a> {
    pub data: &'a [f32],
    pub strides: Strides,
}

/// What every part reads: one sequence, or a piece of it.
pub(super) struct Inputs<'a> {
    pub tokens: usize,
    pub q: Floats<'a>,
    pub k: Floats<'a>,
    pub v: Floats<'a>,
    pub g: Floats<'a>,
    pub beta: Floats<'a>,
    pub scale: f32,
}

/// Columns of one value head, and where their results go.
pub(super) struct Piece<'a> {
    /// `[token, column]`.
    pub out: Columns<'a>,
    /// `[key row, column]` of the same columns; from zero and dropped if there is none.
    pub state: Option<Columns<'a>>,
}

/// Pieces with one key head.
pub(super) struct Part<'a> {
    pub k_head: usize,
    pub pieces: Vec<Piece<'a>>,
}

/// What a thread computes in, kept from part to part.
#[derive(Default)]
pub(super) struct Scratch {
    /// Of every piece, one piece after the other.
    tiles: Vec<Tile>,
    keys: Vec<KeyInputs>,
    values: Vec<ValueInputs>,
}

impl Part<'_> {
    /// Carries the states through every token.
    pub fn run(mut self, inputs: &Inputs<'_>, scratch: &mut Scratch, arch: Arch) {
        let most = inputs.tokens.min(segment::TOKENS);
        scratch.keys.resize(most, KeyInputs::BLANK);
        scratch.values.resize(most, ValueInputs::BLANK);
        if inputs.tokens <= FEW && self.pieces.iter().all(|piece| piece.state.is_some()) {
            self.in_place(inputs, scratch, arch);
        } else {
            self.sequence(inputs, scratch, arch);
        }
    }

    fn in_place(&mut self, inputs: &Inputs<'_>, scratch: &mut Scratch, arch: Arch) {
        let Scratch { keys, values, .. } = scratch;
        for (token, keys) in keys.iter_mut().enumerate() {
            keys.read(inputs, token, self.k_head);
        }
        for Piece { out, state } in &mut self.pieces {
            let Some(state) = state else { continue };
            for (token, (key, values)) in keys.iter().zip(values.iter_mut()).enumerate() {
                values.read(inputs, token, out.head);
                arch.dispatch(Single { state, key, values, scale: inputs.scale });
            }
            segment::write_outputs(values, 0, out);
        }
    }

    fn sequence(mut self, inputs: &Inputs<'_>, scratch: &mut Scratch, arch: Arch) {
        let Scratch { tiles, keys, values } = scratch;
        let tiles_per_piece = self.pieces[0].out.rows.ncols() / tile::COLUMNS;
        tiles.resize(self.pieces.len() * tiles_per_piece, Tile::ZERO);
        for (piece, tiles) in self.pieces.iter().zip(tiles.chunks_mut(tiles_per_piece)) {
            match &piece.state {
                Some(state) => arch.dispatch(Load { rows: state.rows.view(), tiles }),
                None => tiles.fill(Tile::ZERO),
            }
        }
        for first in (0..inputs.tokens).step_by(segment::TOKENS) {
            let count = keys.len().min(inputs.tokens - first);
            let (keys, values) = (&mut keys[..count], &mut values[..count]);
            for (token, keys) in keys.iter_mut().enumerate() {
                keys.read(inputs, first + token, self.k_head);
            }
            for (piece, tiles) in self.pieces.iter_mut().zip(tiles.chunks_mut(tiles_per_piece)) {
                for (token, values) in values.iter_mut().enumerate() {
                    values.read(inputs, first + token, piece.out.head);
                }
                for (index, tile) in tiles.iter_mut().enumerate() {
                    let column = piece.out.first + index * tile::COLUMNS;
                    arch.dispatch(Advance { tile, keys, values, column, scale: inputs.scale });
                }
                segment::write_outputs(values, first, &mut piece.out);
            }
        }
        for (piece, tiles) in self.pieces.into_iter().zip(tiles.chunks(tiles_per_piece)) {
            if let Some(state) = piece.state {
                arch.dispatch(Store { rows: state.rows, tiles });
            }
        }
    }
}
