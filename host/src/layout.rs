//! Where the rows of tensors and states lie.
#![forbid(unsafe_code)]
use crate::heads::Heads;

/// Where the rows of a `[token, head, dim]` or `[token, head]` tensor lie: element `(t, h, i)` is at
/// `t * token + h * head + i`. In elements. How far sequences are apart is in the view: `batch_stride`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Strides {
    /// From a token to the next.
    pub token: usize,
    /// From a head to the next.
    pub head: usize,
}

impl Strides {
    /// Dense `[token, heads, dim]`.
    #[must_use]
    pub const fn dense(heads: usize, dim: usize) -> Self {
        Self { token: heads * dim, head: dim }
    }

    /// Dense `[head, tokens, dim]`: each head's tokens together.
    #[must_use]
    pub const fn head_major(tokens: usize, dim: usize) -> Self {
        Self { token: dim, head: tokens * dim }
    }
}

/// Which of a head's two axes is contiguous. "K-major" means either in the field, so the orders are spelled out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum StateOrder {
    /// `[key row][value column]`: the columns of a key row are contiguous.
    #[default]
    KeyMajor,
    /// `[value column][key row]`: the transposed matrix.
    ValueMajor,
}

/// Where the states of a pool lie, in elements. With `KeyMajor`, element `(slot, h, row, column)` is at
/// `slot * self.slot + h * self.head + row * self.row + column`; with `ValueMajor` at
/// `slot * self.slot + h * self.head + column * self.row + row`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StateLayout {
    /// Which axis is contiguous.
    pub order: StateOrder,
    /// From a slot to the next. A pool with gaps between its slots has a larger one than its constructor gives.
    pub slot: usize,
    /// From a value head to the next.
    pub head: usize,
    /// From a row to the next: from a key to the next, with `ValueMajor` from a value column to the next.
    pub row: usize,
}

impl StateLayout {
    /// `[slot][HV][K][V]`: flash-linear-attention's default.
    #[must_use]
    pub const fn key_major(heads: &Heads) -> Self {
        Self {
            order: StateOrder::KeyMajor,
            slot: heads.state_len(),
            head: heads.head_k_dim * heads.head_v_dim,
            row: heads.head_v_dim,
        }
    }

    /// `[slot][HV][V][K]`: FlashInfer, llama.cpp, flash-linear-attention's `state_v_first`.
    #[must_use]
    pub const fn value_major(heads: &Heads) -> Self {
        Self {
            order: StateOrder::ValueMajor,
            slot: heads.state_len(),
            head: heads.head_k_dim * heads.head_v_dim,
            row: heads.head_k_dim,
        }
    }

    /// `[slot][K][HV][V]`: key rows outermost.
    #[must_use]
    pub const fn key_rows(heads: &Heads) -> Self {
        Self {
            order: StateOrder::KeyMajor,
            slot: heads.state_len(),
            head: heads.head_v_dim,
            row: heads.num_v_heads * heads.head_v_dim,
        }
    }

    /// The same with slots so many elements apart.
    #[must_use]
    pub const fn slot_stride(self, slot: usize) -> Self {
        Self { slot, ..self }
    }

    /// Elements of a slot from its first to its last, both included.
    pub(crate) fn elements(&self, heads: &Heads) -> usize {
        let [rows, dim] = self.rows(heads);
        (rows - 1) * self.row + (heads.num_v_heads - 1) * self.head + dim
    }

    /// Rows of a head, and elements of a row.
    pub(crate) const fn rows(&self, heads: &Heads) -> [usize; 2] {
        match self.order {
            StateOrder::KeyMajor => [heads.head_k_dim, heads.head_v_dim],
            StateOrder::ValueMajor => [heads.head_v_dim, heads.head_k_dim],
        }
    }
}
