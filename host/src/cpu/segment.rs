//! The inputs of a few tokens, side by side.
//!
//! A caller's rows may lie pages apart, in few of a cache's sets. Copied once, keys and queries serve every value head of
//! their key head, and every tile of a head, from the cache.
#![forbid(unsafe_code)]
use super::part::{Floats, Inputs};
use super::split::Columns;
use crate::heads::HEAD_DIM;
use ndarray::Axis;

/// Tokens of a segment: enough to pay for bringing a tile to the first-level cache, few enough (100 KB) to stay in the
/// second-level cache with the states of a part.
pub(super) const TOKENS: usize = 64;

/// A row of q, k, v or the output, on cache lines of its own.
#[derive(Clone)]
#[repr(C, align(64))]
pub(super) struct Row(pub [f32; HEAD_DIM]);

impl Row {
    /// Overwritten before it is read.
    pub const BLANK: Self = Self([0.0; HEAD_DIM]);
}

/// What a key head has of a token.
#[derive(Clone)]
pub(super) struct KeyInputs {
    pub q: Row,
    pub k: Row,
}

impl KeyInputs {
    /// Overwritten before it is read.
    pub const BLANK: Self = Self { q: Row::BLANK, k: Row::BLANK };

    /// Copies those of key head `head` in.
    pub fn read(&mut self, inputs: &Inputs<'_>, token: usize, head: usize) {
        self.q.0.copy_from_slice(row(&inputs.q, token, head));
        self.k.0.copy_from_slice(row(&inputs.k, token, head));
    }
}

/// What a value head has of a token.
#[derive(Clone)]
pub(super) struct ValueInputs {
    /// v; the tiles put the output in its place.
    pub value: Row,
    /// e^g.
    pub decay: f32,
    /// Write strength.
    pub beta: f32,
}

impl ValueInputs {
    /// Overwritten before it is read.
    pub const BLANK: Self = Self { value: Row::BLANK, decay: 0.0, beta: 0.0 };

    /// Copies those of value head `head` in.
    pub fn read(&mut self, inputs: &Inputs<'_>, token: usize, head: usize) {
        self.value.0.copy_from_slice(row(&inputs.v, token, head));
        self.decay = scalar(&inputs.g, token, head).exp();
        self.beta = scalar(&inputs.beta, token, head);
    }
}

/// Copies the outputs of tokens from `first` on to the caller's rows.
pub(super) fn write_outputs(values: &[ValueInputs], first: usize, out: &mut Columns<'_>) {
    let columns = out.first..out.first + out.rows.ncols();
    let mut rows = out.rows.slice_axis_mut(Axis(0), (first..).into());
    for (values, mut row) in values.iter().zip(rows.outer_iter_mut()) {
        row.as_slice_mut().expect("contiguous columns").copy_from_slice(&values.value.0[columns.clone()]);
    }
}

/// The row of one token and head.
pub(super) fn row<'a>(view: &Floats<'a>, token: usize, head: usize) -> &'a [f32] {
    let first = token * view.strides.token + head * view.strides.head;
    &view.data[first..first + HEAD_DIM]
}

/// The number of one token and head.
pub(super) fn scalar(view: &Floats<'_>, token: usize, head: usize) -> f32 {
    view.data[token * view.strides.token + head * view.strides.head]
}
