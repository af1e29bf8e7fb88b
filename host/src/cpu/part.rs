//! One part of a call: a few columns of one value head, over all tokens.
#![forbid(unsafe_code)]
use super::segment::{self, Token};
use super::split::Columns;
use super::tile::{self, Advance, Tile};
use crate::call::View;
use crate::heads::{HEAD_DIM, Heads};
use pulp::Arch;

/// What every part reads.
pub(super) struct Inputs<'a> {
    pub heads: Heads,
    pub tokens: usize,
    pub q: View<'a>,
    pub k: View<'a>,
    pub v: View<'a>,
    pub g: View<'a>,
    pub beta: View<'a>,
    pub scale: f32,
}

/// Columns of one head, and where their results go.
pub(super) struct Part<'a> {
    /// `[token, column]`.
    pub out: Columns<'a>,
    /// `[key row, column]` of the same columns; from zero and dropped if there is none.
    pub state: Option<Columns<'a>>,
}

/// What a thread computes in, kept from part to part.
pub(super) struct Scratch {
    tiles: Vec<Tile>,
    tokens: Vec<Token>,
}

impl Scratch {
    /// For parts of `width` columns over `tokens` tokens.
    pub fn new(width: usize, tokens: usize) -> Self {
        Self {
            tiles: vec![Tile::zero(); width / tile::COLUMNS],
            tokens: vec![Token::blank(); tokens.min(segment::TOKENS)],
        }
    }
}

impl Part<'_> {
    /// Carries the state through every token.
    pub fn run(mut self, inputs: &Inputs<'_>, scratch: &mut Scratch, arch: Arch) {
        let Scratch { tiles, tokens } = scratch;
        self.load(tiles);
        for first in (0..inputs.tokens).step_by(segment::TOKENS) {
            let count = segment::TOKENS.min(inputs.tokens - first);
            let tokens = &mut tokens[..count];
            for (index, token) in tokens.iter_mut().enumerate() {
                token.read(inputs, self.out.head, first + index);
            }
            for (index, tile) in tiles.iter_mut().enumerate() {
                let column = self.out.first + index * tile::COLUMNS;
                arch.dispatch(Advance { tile, tokens, column, scale: inputs.scale });
            }
            segment::write_outputs(tokens, first, &mut self.out);
        }
        self.store(tiles);
    }

    fn load(&self, tiles: &mut [Tile]) {
        let Some(state) = &self.state else {
            tiles.fill(Tile::zero());
            return;
        };
        for (index, row) in state.rows.outer_iter().enumerate() {
            let columns = row.to_slice().expect("contiguous columns");
            for (tile, columns) in tiles.iter_mut().zip(columns.as_chunks().0) {
                tile.0[index] = *columns;
            }
        }
    }

    fn store(self, tiles: &[Tile]) {
        let Some(mut state) = self.state else { return };
        for (index, row) in state.rows.outer_iter_mut().enumerate() {
            let columns = row.into_slice().expect("contiguous columns");
            for (tile, columns) in tiles.iter().zip(columns.as_chunks_mut().0) {
                *columns = tile.0[index];
            }
        }
    }
}

const _: () = assert!(HEAD_DIM.is_multiple_of(tile::COLUMNS));
