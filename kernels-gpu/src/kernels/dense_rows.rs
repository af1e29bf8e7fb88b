//! Rows of 128 elements of a `[batch, token, head, 128]` tensor, at strides on one side and dense 32-bit floats on the other:
//! which thread moves what.
//!
//! # Threads: one block per 32 rows; 256 threads = 8 warps x 4 rows
//! ```text
//!   lane = 4 row_group + row of the warp     a thread has 16 elements of a row: 4 (row_group + 8 quad) + i,
//!          ┌────────┬────────┬────┐          quad and i in 0..4
//!   0-3    │ lane 0 │ lane 1 │ .. │
//!   4-7    │ lane 4 │ lane 5 │    │          those that the lanes of `slices` have of a key, so that a sum over a row has the
//!    ..    │   ..   │        │    │          order that decode has
//!   28-31  │ lane 28│        │    │
//!   32-35  │ lane 0 │        │    │
//!          └────────┴────────┴────┘
//! ```
//! # Why it is shaped so
//! Rows are counted token by token, head by head in a token, so that a block's are neighbours where the tensor is dense. The
//! eight lanes of a row move 128 consecutive bytes of 32-bit floats at once, 64 of 16-bit ones.
use super::recurrence::{QUADS, ROW_GROUPS};
use crate::shape::HEAD_DIM;
use cuda_std::thread::thread_idx_below;
use cuda_std::warp::WARP_SIZE;

/// Threads of a block.
pub const THREADS: usize = 256;
/// Rows of a warp.
const ROWS_PER_WARP: usize = WARP_SIZE as usize / ROW_GROUPS;
/// Rows of a block.
pub const ROWS_PER_BLOCK: u32 = (THREADS / WARP_SIZE as usize * ROWS_PER_WARP) as u32;

/// Blocks for so many rows.
#[must_use]
pub const fn blocks(rows: u32) -> u32 {
    rows.div_ceil(ROWS_PER_BLOCK)
}

/// What a thread moves.
#[derive(Clone, Copy, Debug)]
pub struct Role {
    /// The row, counted through all tokens and heads. There may be no such row.
    pub row: u32,
    row_group: usize,
}

impl Role {
    /// The role of thread `thread` of block `block`.
    #[inline(always)]
    #[must_use]
    pub fn of(thread: usize, block: u32) -> Self {
        let lane = thread % WARP_SIZE as usize;
        let row = thread / WARP_SIZE as usize * ROWS_PER_WARP + lane % ROWS_PER_WARP;
        Self { row: block * ROWS_PER_BLOCK + row as u32, row_group: lane / ROWS_PER_WARP }
    }

    /// The role of the thread that asks, in block `block` of those that move a tensor.
    #[inline(always)]
    #[must_use]
    pub fn here(block: u32) -> Self {
        Self::of(thread_idx_below::<THREADS>(), block)
    }

    /// The first element of the thread's quad `quad`.
    #[inline(always)]
    #[must_use]
    pub fn element(self, quad: usize) -> usize {
        4 * self.row_group + QUAD_STEP * quad
    }
}

/// From an element of a thread's quad to that of the next.
pub const QUAD_STEP: usize = 4 * ROW_GROUPS;
const _: () = assert!(QUAD_STEP * QUADS == HEAD_DIM);

/// Where the rows of a tensor lie, in elements.
#[derive(Clone, Copy, Debug)]
pub struct Strided {
    /// From a sequence to the next.
    pub batch: usize,
    /// From a token to the next.
    pub token: usize,
    /// From a head to the next.
    pub head: usize,
}

impl Strided {
    /// Where row `row` of `[batch][tokens][heads]` starts.
    #[inline(always)]
    #[must_use]
    pub fn row(self, row: u32, tokens: u32, heads: u32) -> usize {
        let (place, head) = (row / heads, row % heads);
        let (batch, token) = (place / tokens, place % tokens);
        batch as usize * self.batch + token as usize * self.token + head as usize * self.head
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_of_every_row_has_one_thread() {
        let mut seen = vec![0; 2 * ROWS_PER_BLOCK as usize * HEAD_DIM];
        for block in 0..2 {
            for thread in 0..THREADS {
                let role = Role::of(thread, block);
                for quad in 0..QUADS {
                    for i in 0..4 {
                        seen[role.row as usize * HEAD_DIM + role.element(quad) + i] += 1;
                    }
                }
            }
        }
        assert!(seen.iter().all(|&count| count == 1));
    }

    #[test]
    fn rows_are_counted_head_by_head_and_token_by_token() {
        let (batches, tokens, heads) = (2, 3, 5);
        let strided = Strided { batch: 10_000, token: 100, head: 7 };
        for row in 0..batches * tokens * heads {
            let (batch, token, head) = (row / (tokens * heads), row / heads % tokens, row % heads);
            assert_eq!(strided.row(row, tokens, heads), (batch * 10_000 + token * 100 + head * 7) as usize);
        }
    }
}
