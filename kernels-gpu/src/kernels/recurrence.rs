//! One token of the recurrence for one column of a state, as the eight lanes that share the column compute it.
//!
//! # Math
//!   d = beta (v - e^g s^T k)
//!   s <- e^g s + k d
//!   o = s^T q
//!
//! # Lanes
//! ```text
//!   lane = 8 column + row_group            a thread holds 16 rows of its column:
//!          ┌────────┬────────┬────┐        row = 4 (row_group + 8 quad) + i,  quad and i in 0..4
//!   rows   │ lane 0 │ lane 8 │ .. │
//!   0-3    ├────────┼────────┼────┤        so that the eight lanes of a column read 128 consecutive
//!   4-7    │ lane 1 │ lane 9 │    │        bytes of k or q at once, without bank conflicts
//!    ..    │   ..   │        │    │
//!   28-31  │ lane 7 │        │    │
//!   32-35  │ lane 0 │        │    │
//!    ..    └────────┴────────┴────┘
//! ```
//! # Why it is shaped so
//! The sums over rows stay inside a warp, as three shuffles; a layout whose threads hold whole column parts of several
//! warps needs two block barriers a token, and waits at them for longer than it computes. Each sum has one order, written
//! here alone: every kernel that calls this gives the same bits. A token's output and what the next token's key finds
//! in the state are sums over the same state, so they are taken together ([`dot_pair`]) and wait for the shuffles once.
use crate::shape::HEAD_DIM;
use cuda_std::float::fma;
use cuda_std::memory::Quad;
use cuda_std::thread::thread_idx_below;
use cuda_std::warp::{WARP_SIZE, warp_shuffle_xor};
use cuda_std::{Global, GlobalMut};

/// Lanes that share a column.
pub const ROW_GROUPS: usize = 8;
/// Columns that the lanes of a warp stand for.
pub const COLUMNS_PER_WARP: usize = WARP_SIZE as usize / ROW_GROUPS;
/// Groups of four rows that a thread holds of a column.
pub const QUADS: usize = HEAD_DIM / ROW_GROUPS / 4;

/// A thread's sixteen rows of a column, a key or a query.
pub type Rows = [Quad; QUADS];

cuda_std::arguments! {
    /// What the recurrent kernels take. Strides are in elements; dim is contiguous.
    pub struct Args {
        /// `[tokens, key heads, 128]`.
        pub q: Global<f32>,
        /// From a token of q to the next.
        pub q_token_stride: usize,
        /// From a head of q to the next.
        pub q_head_stride: usize,
        /// `[tokens, key heads, 128]`.
        pub k: Global<f32>,
        /// From a token of k to the next.
        pub k_token_stride: usize,
        /// From a head of k to the next.
        pub k_head_stride: usize,
        /// `[tokens, value heads, 128]`.
        pub v: Global<f32>,
        /// From a token of v to the next.
        pub v_token_stride: usize,
        /// From a head of v to the next.
        pub v_head_stride: usize,
        /// `[tokens, value heads]`, log of the forget gate.
        pub g: Global<f32>,
        /// From a token of g to the next.
        pub g_token_stride: usize,
        /// From a head of g to the next.
        pub g_head_stride: usize,
        /// `[tokens, value heads]`, write strength.
        pub beta: Global<f32>,
        /// From a token of beta to the next.
        pub beta_token_stride: usize,
        /// From a head of beta to the next.
        pub beta_head_stride: usize,
        /// `[tokens, value heads, 128]`.
        pub out: GlobalMut<f32>,
        /// From a token of out to the next.
        pub out_token_stride: usize,
        /// From a head of out to the next.
        pub out_head_stride: usize,
        /// `[value heads, 128 key rows, 128 columns]`, null for a zero state.
        pub initial_state: Global<f32>,
        /// The same, null to drop it; may be `initial_state`'s memory.
        pub final_state: GlobalMut<f32>,
        /// From a head of a state to the next.
        pub state_head_stride: usize,
        /// From a key row of a state to the next.
        pub state_row_stride: usize,
        /// Multiplies the output.
        pub scale: f32,
        /// Tokens.
        pub tokens: u32,
        /// Key heads.
        pub num_key_heads: u32,
        /// Value heads per key head.
        pub values_per_key: u32,
        /// `shape::GROUPED` or `shape::TILED`.
        pub head_map: u32,
    }
    for recurrence_kernel
}

impl Args {
    /// Where the state of `value_head` starts, null where there is none.
    #[inline(always)]
    pub fn initial_state_of(&self, value_head: usize) -> Global<f32> {
        if self.initial_state.as_ptr().is_null() {
            self.initial_state
        } else {
            self.initial_state.offset(value_head * self.state_head_stride)
        }
    }

    /// Where the final state of `value_head` goes, null where it is dropped.
    #[inline(always)]
    pub fn final_state_of(&self, value_head: usize) -> GlobalMut<f32> {
        if self.final_state.as_ptr().is_null() {
            self.final_state
        } else {
            self.final_state.offset(value_head * self.state_head_stride)
        }
    }
}

/// Where a thread stands in its block.
#[derive(Clone, Copy, Debug)]
pub struct Role {
    /// Index in the block.
    pub thread: usize,
    /// Which warp of the block.
    pub warp: usize,
    /// Which of the warp's columns.
    pub column: usize,
    /// Which rows of the column.
    pub row_group: usize,
}

impl Role {
    /// The role of thread `thread`.
    #[inline(always)]
    pub fn of(thread: usize) -> Self {
        let lane = thread % WARP_SIZE as usize;
        Self { thread, warp: thread / WARP_SIZE as usize, column: lane / ROW_GROUPS, row_group: lane % ROW_GROUPS }
    }

    /// The role of the thread that asks, in a block of `THREADS`.
    #[inline(always)]
    pub fn here<const THREADS: usize>() -> Self {
        Self::of(thread_idx_below::<THREADS>())
    }

    /// Index in the warp.
    #[inline(always)]
    pub fn lane(self) -> usize {
        self.column * ROW_GROUPS + self.row_group
    }

    /// The first row of the thread's quad `quad`.
    #[inline(always)]
    pub fn row(self, quad: usize) -> usize {
        4 * (self.row_group + ROW_GROUPS * quad)
    }
}

/// A thread's rows of a state column at `column`, zero where there is no state to start from.
///
/// # Safety
/// `state` is null or holds 128 rows of `row_stride`, from the head's first element on.
#[inline(always)]
pub unsafe fn load_column(state: Global<f32>, row_stride: usize, column: usize, role: Role) -> Rows {
    let mut s = [[0.0; 4]; QUADS];
    if !state.as_ptr().is_null() {
        for quad in 0..QUADS {
            for i in 0..4 {
                // SAFETY: bounds: row < 128 by `Role::row`. Owner: nobody writes it before this thread's `store_column`.
                s[quad][i] = unsafe { state.at((role.row(quad) + i) * row_stride + column) };
            }
        }
    }
    s
}

/// Writes a thread's rows of a state column, unless the state is to be dropped (null).
///
/// # Safety
/// As [`load_column`].
#[inline(always)]
pub unsafe fn store_column(state: GlobalMut<f32>, row_stride: usize, column: usize, role: Role, s: &Rows) {
    if !state.as_ptr().is_null() {
        for quad in 0..QUADS {
            for i in 0..4 {
                // SAFETY: bounds: row < 128 by `Role::row`. Owner: this thread alone has (row, column).
                unsafe { state.put((role.row(quad) + i) * row_stride + column, s[quad][i]) };
            }
        }
    }
}

/// This thread's part of `s^T x`: four sums side by side, so that no multiplication waits for the one before it.
#[inline(always)]
pub fn partial_dot(s: &Rows, x: &Rows) -> f32 {
    let mut sums = [0.0f32; 4];
    for quad in 0..QUADS {
        for i in 0..4 {
            sums[i] = fma(s[quad][i], x[quad][i], sums[i]);
        }
    }
    (sums[0] + sums[1]) + (sums[2] + sums[3])
}

/// `s^T x` for `N` columns, the same value in all eight lanes of a column.
///
/// # Safety
/// All lanes of the warp make this call together.
#[inline(always)]
pub unsafe fn dot<const N: usize>(s: &[Rows; N], x: &Rows) -> [f32; N] {
    let mut sums = [0.0; N];
    for n in 0..N {
        sums[n] = partial_dot(&s[n], x);
    }
    let mut lane_mask = 1;
    while lane_mask < ROW_GROUPS as u32 {
        for n in 0..N {
            // SAFETY: all lanes are here, by the caller. Both partners add the same two numbers.
            sums[n] += unsafe { warp_shuffle_xor(sums[n], lane_mask) };
        }
        lane_mask *= 2;
    }
    sums
}

/// `(s^T x, s^T y)`, each as [`dot`]: the shuffles of one wait while those of the other are under way.
///
/// # Safety
/// As [`dot`].
#[inline(always)]
pub unsafe fn dot_pair<const N: usize>(s: &[Rows; N], x: &Rows, y: &Rows) -> ([f32; N], [f32; N]) {
    let (mut x_sums, mut y_sums) = ([0.0; N], [0.0; N]);
    for n in 0..N {
        x_sums[n] = partial_dot(&s[n], x);
        y_sums[n] = partial_dot(&s[n], y);
    }
    let mut lane_mask = 1;
    while lane_mask < ROW_GROUPS as u32 {
        for n in 0..N {
            // SAFETY: as in `dot`.
            unsafe {
                x_sums[n] += warp_shuffle_xor(x_sums[n], lane_mask);
                y_sums[n] += warp_shuffle_xor(y_sums[n], lane_mask);
            }
        }
        lane_mask *= 2;
    }
    (x_sums, y_sums)
}

/// What a token writes with strength `beta`: the value less what the decayed state already holds at the key.
#[inline(always)]
pub fn correction(beta: f32, v: f32, decay: f32, state_at_key: f32) -> f32 {
    beta * fma(-decay, state_at_key, v)
}

/// `s <- e^g s + k d`.
#[inline(always)]
pub fn update(s: &mut Rows, decay: f32, k: &Rows, d: f32) {
    for quad in 0..QUADS {
        for i in 0..4 {
            s[quad][i] = fma(k[quad][i], d, decay * s[quad][i]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_of_every_column_has_one_thread() {
        let mut seen = [[0; COLUMNS_PER_WARP]; HEAD_DIM];
        for thread in 0..32 {
            let role = Role::of(thread);
            for quad in 0..QUADS {
                for i in 0..4 {
                    seen[role.row(quad) + i][role.column] += 1;
                }
            }
        }
        assert!(seen.iter().flatten().all(|&count| count == 1));
    }
}
