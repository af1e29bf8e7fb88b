//! The inputs of a few tokens of one head, side by side.
//!
//! A caller's rows may lie a page apart; copied once, they serve every tile of the head from the cache.
#![forbid(unsafe_code)]
use super::part::Inputs;
use super::split::Columns;
use crate::call::View;
use crate::heads::HEAD_DIM;
use ndarray::Axis;

/// Tokens of a segment: with them, a head's state and its inputs stay in a second-level cache of 256 KB.
pub(super) const TOKENS: usize = 32;

/// A row of q, k, v or the output, on cache lines of its own.
#[derive(Clone)]
#[repr(C, align(64))]
pub(super) struct Row(pub [f32; HEAD_DIM]);

/// One token of one value head.
#[derive(Clone)]
pub(super) struct Token {
    /// Its query.
    pub q: Row,
    /// Its key.
    pub k: Row,
    /// Its value; the tiles put the output in its place.
    pub value: Row,
    /// e^g.
    pub decay: f32,
    /// Write strength.
    pub beta: f32,
}

impl Token {
    /// A token that is overwritten before it is read.
    pub fn blank() -> Self {
        let row = Row([0.0; HEAD_DIM]);
        Self { q: row.clone(), k: row.clone(), value: row, decay: 0.0, beta: 0.0 }
    }

    /// Copies token `token` of `head` in.
    pub fn read(&mut self, inputs: &Inputs<'_>, head: usize, token: usize) {
        let k_head = inputs.heads.k_head(head);
        self.q.0.copy_from_slice(row(&inputs.q, token, k_head));
        self.k.0.copy_from_slice(row(&inputs.k, token, k_head));
        self.value.0.copy_from_slice(row(&inputs.v, token, head));
        self.decay = scalar(&inputs.g, token, head).exp();
        self.beta = scalar(&inputs.beta, token, head);
    }
}

/// Copies the outputs of `tokens`, the first of which is `first`, to the caller's rows.
pub(super) fn write_outputs(tokens: &[Token], first: usize, out: &mut Columns<'_>) {
    let columns = out.first..out.first + out.rows.ncols();
    for (token, mut row) in tokens.iter().zip(out.rows.slice_axis_mut(Axis(0), (first..).into()).outer_iter_mut()) {
        row.as_slice_mut().expect("contiguous columns").copy_from_slice(&token.value.0[columns.clone()]);
    }
}

fn row<'a>(view: &View<'a>, token: usize, head: usize) -> &'a [f32] {
    let first = token * view.strides.token + head * view.strides.head;
    &view.data[first..first + HEAD_DIM]
}

fn scalar(view: &View<'_>, token: usize, head: usize) -> f32 {
    view.data[token * view.strides.token + head * view.strides.head]
}
