//! A warp's sixteen columns of a head's state, in the registers of its lanes: how they are read from a pool in any order
//! of its axes, summed over rows, and written back.
//!
//! # Threads: one block per (state, value head, 32 columns); 64 threads = 2 warps x 16 columns
//! ```text
//!   lane = 4 row_group + column_lane       a thread holds 16 rows x 4 columns:
//!          ┌────────┬────────┬────┐        row = 4 (row_group + 8 quad) + i,  quad and i in 0..4
//!   rows   │ lane 0 │ lane 1 │ .. │        column = 4 column_lane + n,  n in 0..4
//!   0-3    ├────────┼────────┼────┤
//!   4-7    │ lane 4 │ lane 5 │    │        the rows of a lane, and so the order of a sum, are those of
//!    ..    │   ..   │        │    │        the recurrent kernels
//!   28-31  │ lane 28│        │    │
//!   32-35  │ lane 0 │        │    │
//!    ..    └────────┴────────┴────┘
//! ```
//! # Why it is shaped so
//! A lane's part is 4 x 4 squares. Where columns are contiguous it moves a row of a square at once, where rows are, a
//! column of it: 16 bytes either way, and the lanes beside it fill the 32 bytes that memory is read by. One layout of
//! registers serves both orders, so that the sums do not know where the state came from.
use super::recurrence::{QUADS, ROW_GROUPS, Rows, partial_dot};
use super::slots::Pool;
use crate::shape::HEAD_DIM;
use cuda_std::float::sqrt;
use cuda_std::memory::Quad;
use cuda_std::thread::{block_idx_x, thread_idx_below};
use cuda_std::warp::{WARP_SIZE, warp_shuffle_xor};
use cuda_std::{Global, GlobalMut};

/// Columns that a thread holds.
pub const COLUMNS_PER_THREAD: usize = 4;
/// Lanes side by side.
const COLUMN_LANES: usize = WARP_SIZE as usize / ROW_GROUPS;
/// Columns that a warp holds.
const COLUMNS_PER_WARP: usize = COLUMN_LANES * COLUMNS_PER_THREAD;

/// Threads of a block: two warps, so that a batch of one sequence has blocks for all multiprocessors.
pub const THREADS: usize = 64;
/// Columns that a block holds.
const COLUMNS_PER_BLOCK: usize = THREADS / WARP_SIZE as usize * COLUMNS_PER_WARP;
/// Blocks of a head.
const COLUMN_TILES: u32 = (HEAD_DIM / COLUMNS_PER_BLOCK) as u32;

/// Blocks of a launch over so many states; their product must fit in 31 bits. All in one dimension: the second one ends
/// at 65,535.
#[must_use]
pub const fn grid(states: u32, num_value_heads: u32) -> [u32; 2] {
    [COLUMN_TILES * num_value_heads * states, 1]
}

/// A thread's part of a state, by column.
pub type Slice = [Rows; COLUMNS_PER_THREAD];

/// Where a thread stands in the launch.
#[derive(Clone, Copy, Debug)]
pub struct Role {
    /// Which state.
    pub state: usize,
    /// Which head of it.
    pub value_head: u32,
    /// The first of the thread's columns.
    pub column: usize,
    /// Which rows of them.
    pub row_group: usize,
}

impl Role {
    /// The role of thread `thread` of block `block`.
    #[inline(always)]
    #[must_use]
    pub fn of(thread: usize, block: u32, num_value_heads: u32) -> Self {
        let lane = thread % WARP_SIZE as usize;
        let warp = thread / WARP_SIZE as usize;
        let (tile, head) = ((block % COLUMN_TILES) as usize, block / COLUMN_TILES);
        let column_in_warp = lane % COLUMN_LANES * COLUMNS_PER_THREAD;
        Self {
            state: (head / num_value_heads) as usize,
            value_head: head % num_value_heads,
            column: tile * COLUMNS_PER_BLOCK + warp * COLUMNS_PER_WARP + column_in_warp,
            row_group: lane / COLUMN_LANES,
        }
    }

    /// The role of the thread that asks.
    #[inline(always)]
    #[must_use]
    pub fn here(num_value_heads: u32) -> Self {
        Self::of(thread_idx_below::<THREADS>(), block_idx_x(), num_value_heads)
    }

    /// The first row of the thread's quad `quad`.
    #[inline(always)]
    #[must_use]
    pub fn row(self, quad: usize) -> usize {
        4 * (self.row_group + ROW_GROUPS * quad)
    }
}

/// How a thread moves its 4 x 4 squares.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Moves {
    /// A row of four columns at once.
    RowByRow,
    /// A column of four rows at once.
    ColumnByColumn,
    /// Element by element.
    Single,
}

impl Moves {
    /// The widest that the strides and the address of a head's part allow.
    #[inline(always)]
    fn of(address: usize, pool: &Pool) -> Self {
        let aligned = address.is_multiple_of(size_of::<Quad>());
        if aligned && pool.column_stride == 1 && pool.row_stride.is_multiple_of(4) {
            Self::RowByRow
        } else if aligned && pool.row_stride == 1 && pool.column_stride.is_multiple_of(4) {
            Self::ColumnByColumn
        } else {
            Self::Single
        }
    }
}

/// The rows of quad `quad`, from the thread's first row.
const fn row_offset(quad: usize) -> usize {
    4 * ROW_GROUPS * quad
}

/// The thread's part of the state of a head, which starts at `head`.
///
/// # Safety
/// The head has 128 rows and columns at the pool's strides, and no other thread writes this thread's part.
#[inline(always)]
#[must_use]
pub unsafe fn load(head: Global<f32>, pool: &Pool, role: Role) -> Slice {
    let corner = head.offset(role.row(0) * pool.row_stride + role.column * pool.column_stride);
    let mut s = [[[0.0; 4]; QUADS]; COLUMNS_PER_THREAD];
    // SAFETY: bounds: rows and columns below 128 by `Role`. The wide reads are aligned by `Moves::of`.
    unsafe {
        match Moves::of(corner.as_ptr().addr(), pool) {
            Moves::RowByRow => {
                for quad in 0..QUADS {
                    for i in 0..4 {
                        let row = corner.quad((row_offset(quad) + i) * pool.row_stride);
                        for n in 0..COLUMNS_PER_THREAD {
                            s[n][quad][i] = row[n];
                        }
                    }
                }
            }
            Moves::ColumnByColumn => {
                for n in 0..COLUMNS_PER_THREAD {
                    for quad in 0..QUADS {
                        s[n][quad] = corner.quad(n * pool.column_stride + row_offset(quad));
                    }
                }
            }
            Moves::Single => {
                for quad in 0..QUADS {
                    for i in 0..4 {
                        for n in 0..COLUMNS_PER_THREAD {
                            let place = (row_offset(quad) + i) * pool.row_stride + n * pool.column_stride;
                            s[n][quad][i] = corner.at(place);
                        }
                    }
                }
            }
        }
    }
    s
}

/// Writes the thread's part of the state of a head.
///
/// # Safety
/// As [`load`]; the thread that has these rows and columns alone touches them.
#[inline(always)]
pub unsafe fn store(head: GlobalMut<f32>, pool: &Pool, role: Role, s: &Slice) {
    let corner = head.offset(role.row(0) * pool.row_stride + role.column * pool.column_stride);
    // SAFETY: bounds, alignment: as in `load`. Owner: this thread alone has these rows and columns.
    unsafe {
        match Moves::of(corner.as_ptr().addr(), pool) {
            Moves::RowByRow => {
                for quad in 0..QUADS {
                    for i in 0..4 {
                        let row = [s[0][quad][i], s[1][quad][i], s[2][quad][i], s[3][quad][i]];
                        corner.put_quad((row_offset(quad) + i) * pool.row_stride, row);
                    }
                }
            }
            Moves::ColumnByColumn => {
                for n in 0..COLUMNS_PER_THREAD {
                    for quad in 0..QUADS {
                        corner.put_quad(n * pool.column_stride + row_offset(quad), s[n][quad]);
                    }
                }
            }
            Moves::Single => {
                for quad in 0..QUADS {
                    for i in 0..4 {
                        for n in 0..COLUMNS_PER_THREAD {
                            let place = (row_offset(quad) + i) * pool.row_stride + n * pool.column_stride;
                            corner.put(place, s[n][quad][i]);
                        }
                    }
                }
            }
        }
    }
}

/// Adds up what the lanes of the same columns have; all of them get the sum. The order is that of the recurrent kernels.
///
/// # Safety
/// All lanes of the warp make this call together.
#[inline(always)]
#[must_use]
pub unsafe fn sum_over_rows<const N: usize>(mut parts: [f32; N]) -> [f32; N] {
    let mut lane_mask = COLUMN_LANES as u32;
    while lane_mask < WARP_SIZE {
        for n in 0..N {
            // SAFETY: all lanes are here, by the caller. Both partners add the same two numbers.
            parts[n] += unsafe { warp_shuffle_xor(parts[n], lane_mask) };
        }
        lane_mask *= 2;
    }
    parts
}

/// `s^T x` for the thread's columns.
///
/// # Safety
/// As [`sum_over_rows`].
#[inline(always)]
#[must_use]
pub unsafe fn dot(s: &Slice, x: &Rows) -> Quad {
    let mut parts = [0.0; COLUMNS_PER_THREAD];
    for n in 0..COLUMNS_PER_THREAD {
        parts[n] = partial_dot(&s[n], x);
    }
    // SAFETY: the caller's contract.
    unsafe { sum_over_rows(parts) }
}

/// `x / sqrt(sum x^2 + eps)`, where `x` is the thread's rows of a vector that the lanes of its columns have together.
///
/// # Safety
/// As [`sum_over_rows`].
#[inline(always)]
#[must_use]
pub unsafe fn normalised(x: &Rows, eps: f32) -> Rows {
    // SAFETY: the caller's contract.
    let [squares] = unsafe { sum_over_rows([partial_dot(x, x)]) };
    // Without an epsilon, zero stays zero too.
    let factor = if squares == 0.0 { 0.0 } else { 1.0 / sqrt(squares + eps) };
    let mut x = *x;
    for quad in 0..QUADS {
        for i in 0..4 {
            x[quad][i] *= factor;
        }
    }
    x
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_of_every_column_has_one_thread() {
        const HEADS: u32 = 3;
        let mut seen = vec![0; 2 * HEADS as usize * HEAD_DIM * HEAD_DIM];
        for block in 0..grid(2, HEADS)[0] {
            for thread in 0..THREADS {
                let role = Role::of(thread, block, HEADS);
                for quad in 0..QUADS {
                    assert_eq!(role.row(quad), role.row(0) + row_offset(quad));
                    for i in 0..4 {
                        for n in 0..COLUMNS_PER_THREAD {
                            let head = role.state * HEADS as usize + role.value_head as usize;
                            seen[(head * HEAD_DIM + role.row(quad) + i) * HEAD_DIM + role.column + n] += 1;
                        }
                    }
                }
            }
        }
        assert!(seen.iter().all(|&count| count == 1));
    }
}
