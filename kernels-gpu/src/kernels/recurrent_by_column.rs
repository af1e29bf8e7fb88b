//! Gated DeltaNet token by token, for any card: a block carries 32 columns of one value head.
//!
//! # Math
//! [`super::recurrence`], for every token in order.
//!
//! # Threads: one block per (32 columns, value head); 128 threads = 4 warps x 8 columns
//! A thread holds 16 rows of two columns: `column` and `column + 4` of its warp's eight.
//!
//! # Memory
//! No shared memory: what a token brings is read from global memory two tokens ahead, four bytes at a time, so that neither
//! the instruction set of sm_80 nor any alignment is asked for. Warps of a block read the same keys and queries, which
//! the first-level cache holds.
use super::recurrence::{
    Args, COLUMNS_PER_WARP, QUADS, Role, Rows, correction, dot, dot_pair, load_column, recurrence_kernel, store_column,
    update,
};
use crate::shape::{HEAD_DIM, key_head};
use cuda_std::float::exp;
use cuda_std::thread::{block_idx_x, block_idx_y};
use cuda_std::{Global, GlobalMut};

/// Threads of a block.
pub const THREADS: usize = 128;
/// Columns that a thread carries.
const COLUMNS_PER_THREAD: usize = 2;
/// Columns that a block carries.
pub const COLUMNS_PER_BLOCK: usize = THREADS / 32 * COLUMNS_PER_WARP * COLUMNS_PER_THREAD;

/// Blocks of a launch: column tiles, value heads.
#[must_use]
pub const fn grid(num_value_heads: u32) -> [u32; 2] {
    [(HEAD_DIM / COLUMNS_PER_BLOCK) as u32, num_value_heads]
}

recurrence_kernel! {
    kernel "recurrent_by_column", capability 75, blocks 2;
    entry gdn_recurrent_by_column = run, threads THREADS, shared 0;
}

/// What one token brings to a thread.
#[derive(Clone, Copy)]
struct Token {
    q: Rows,
    k: Rows,
    v: [f32; COLUMNS_PER_THREAD],
    decay: f32,
    beta: f32,
}

/// The block's inputs from the next token on, as this thread reads them.
struct Inputs {
    q: Global<f32>,
    k: Global<f32>,
    v: Global<f32>,
    g: Global<f32>,
    beta: Global<f32>,
}

impl Inputs {
    /// Those of the first token.
    #[inline(always)]
    fn first(args: &Args, key_head: usize, value_head: usize, column: usize) -> Self {
        Self {
            q: args.q.offset(key_head * args.q_head_stride),
            k: args.k.offset(key_head * args.k_head_stride),
            v: args.v.offset(value_head * args.v_head_stride + column),
            g: args.g.offset(value_head * args.g_head_stride),
            beta: args.beta.offset(value_head * args.beta_head_stride),
        }
    }

    /// Reads the token and moves on to the next.
    ///
    /// # Safety
    /// There is such a token.
    #[inline(always)]
    unsafe fn read(&mut self, args: &Args, role: Role) -> Token {
        let (mut q, mut k) = ([[0.0; 4]; QUADS], [[0.0; 4]; QUADS]);
        for quad in 0..QUADS {
            for i in 0..4 {
                // SAFETY: bounds: row < 128 by `Role::row`, the token exists by the caller. Owner: inputs are read only.
                unsafe {
                    k[quad][i] = self.k.at(role.row(quad) + i);
                    q[quad][i] = self.q.at(role.row(quad) + i);
                }
            }
        }
        let mut v = [0.0; COLUMNS_PER_THREAD];
        for (n, v) in v.iter_mut().enumerate() {
            // SAFETY: bounds: column + 4 < 128 by `column_of`; read only.
            *v = unsafe { self.v.at(n * COLUMNS_PER_WARP) };
        }
        // SAFETY: bounds: one gate and one strength a token and head; read only.
        let (decay, beta) = unsafe { (exp(self.g.at(0)), self.beta.at(0)) };
        self.q = self.q.offset(args.q_token_stride);
        self.k = self.k.offset(args.k_token_stride);
        self.v = self.v.offset(args.v_token_stride);
        self.g = self.g.offset(args.g_token_stride);
        self.beta = self.beta.offset(args.beta_token_stride);
        Token { q, k, v, decay, beta }
    }
}

/// The first of this thread's two columns; the second is `COLUMNS_PER_WARP` further.
#[inline(always)]
fn column_of(role: Role, column_tile: usize) -> usize {
    column_tile * COLUMNS_PER_BLOCK + role.warp * COLUMNS_PER_WARP * COLUMNS_PER_THREAD + role.column
}

/// The kernel.
///
/// # Safety
/// Called once by each of `THREADS` threads of each block of `grid()`; every tensor holds what its shape and strides
/// describe; out and the final state overlap no input but the initial state.
#[inline(always)]
pub unsafe fn run(args: Args) {
    // SAFETY: by the caller.
    unsafe { run_head(args, block_idx_y(), block_idx_x() as usize, Role::here::<THREADS>()) };
}

/// The kernel in a block of columns of `value_head`.
///
/// # Safety
/// As [`run`], by [`THREADS`] threads of a block; there are such a head and such columns.
#[inline(always)]
pub unsafe fn run_head(args: Args, value_head: u32, column_tile: usize, role: Role) {
    let key_head = key_head(value_head, args.values_per_key, args.num_key_heads, args.head_map) as usize;
    let value_head = value_head as usize;
    let column = column_of(role, column_tile);

    let initial_state = args.initial_state_of(value_head);
    let mut s = [[[0.0; 4]; QUADS]; COLUMNS_PER_THREAD];
    for (n, s) in s.iter_mut().enumerate() {
        // SAFETY: the head's state has 128 rows and columns, or is null.
        *s = unsafe { load_column(initial_state, args.state_row_stride, column + n * COLUMNS_PER_WARP, role) };
    }

    let mut inputs = Inputs::first(&args, key_head, value_head, column);
    let mut out: GlobalMut<f32> = args.out.offset(value_head * args.out_head_stride + column);
    let tokens = args.tokens;
    if tokens > 0 {
        // What a token brings is asked for two tokens ahead: its key meets the state one token ahead.
        // SAFETY: the tokens exist; every lane runs every token.
        let (mut next, mut after, mut state_at_key) = unsafe {
            let first = inputs.read(&args, role);
            let second = if tokens > 1 { inputs.read(&args, role) } else { first };
            (first, second, dot(&s, &first.k))
        };
        for token in 0..tokens {
            let current = next;
            next = after;
            if tokens - token > 2 {
                // SAFETY: the token exists.
                after = unsafe { inputs.read(&args, role) };
            }
            for n in 0..COLUMNS_PER_THREAD {
                let d = correction(current.beta, current.v[n], current.decay, state_at_key[n]);
                update(&mut s[n], current.decay, &current.k, d);
            }
            // SAFETY: every lane runs every token. After the last one, `next` is the same token and its sum not used.
            let (o, at_next_key) = unsafe { dot_pair(&s, &current.q, &next.k) };
            state_at_key = at_next_key;
            for (n, o) in o.iter().enumerate() {
                if role.row_group == n {
                    // SAFETY: bounds: column + 4 < 128. Owner: row group n alone writes the thread's column n.
                    unsafe { out.put(n * COLUMNS_PER_WARP, o * args.scale) };
                }
            }
            out = out.offset(args.out_token_stride);
        }
    }

    let final_state = args.final_state_of(value_head);
    for (n, s) in s.iter().enumerate() {
        // SAFETY: the head's state has 128 rows and columns, or is null; this thread has read its part of it.
        unsafe { store_column(final_state, args.state_row_stride, column + n * COLUMNS_PER_WARP, role, s) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_column_of_a_head_has_eight_threads() {
        let mut seen = [0; HEAD_DIM];
        for tile in 0..grid(1)[0] as usize {
            for thread in 0..THREADS {
                for n in 0..COLUMNS_PER_THREAD {
                    seen[column_of(Role::of(thread), tile) + n * COLUMNS_PER_WARP] += 1;
                }
            }
        }
        assert!(seen.iter().all(|&count| count == 8));
    }
}
