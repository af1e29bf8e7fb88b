//! The shapes that are always there.
#![forbid(unsafe_code)]
use std::ops::Range;

use host::inputs::Inputs;
use host::{HeadMap, Heads};

/// Key and value heads: one to five value heads for each key head.
pub const HEADS: [(usize, usize); 6] = [(1, 1), (2, 2), (2, 4), (2, 6), (1, 4), (1, 5)];

/// Tokens: none, few, around the by-key-head kernel's stages of 8, its ring of 24, and a chunk of 32.
pub const TOKENS: [usize; 14] = [0, 1, 2, 7, 8, 9, 16, 17, 24, 25, 31, 32, 33, 103];

/// Tokens that the chunked paths take at once.
pub const CHUNK: usize = 32;

/// So many heads of 128 x 128.
///
/// # Panics
/// If there are no such heads.
#[must_use]
pub fn heads(num_k_heads: usize, num_v_heads: usize, map: HeadMap) -> Heads {
    Heads::new(num_k_heads, num_v_heads, map).expect("legal heads")
}

/// [`HEADS`] in both maps.
pub fn every_heads() -> impl Iterator<Item = Heads> {
    let both = [HeadMap::Grouped, HeadMap::Tiled];
    HEADS.into_iter().flat_map(move |(keys, values)| both.map(|map| heads(keys, values, map)))
}

/// Some of the tokens of `inputs`, from the state `state`.
#[must_use]
pub fn tokens_of(inputs: &Inputs, tokens: Range<usize>, state: &[f32]) -> Inputs {
    let part = |tensor: &[f32]| {
        let row = tensor.len() / inputs.tokens.max(1);
        tensor[tokens.start * row..tokens.end * row].to_vec()
    };
    Inputs {
        tokens: tokens.len(),
        q: part(&inputs.q),
        k: part(&inputs.k),
        v: part(&inputs.v),
        g: part(&inputs.g),
        beta: part(&inputs.beta),
        state: state.to_vec(),
        ..*inputs
    }
}
