//! Gated DeltaNet token by token, for sm_80 and newer: a block carries 16 columns of all value heads of one key head.
//!
//! # Math
//! [`super::recurrence`], for every token in order.
//!
//! # Threads: one block per (16 columns, key head); 128 threads = 4 warps x 4 columns
//! A thread holds 16 rows of one column of each of the `VALUES` value heads, so that every key and query it loads feeds
//! all of them. 16 key heads make 128 blocks: one for each multiprocessor of the cards that this kernel is for.
//!
//! # Memory
//! Tokens are staged `STAGE_TOKENS` at a time: while one stage is computed the next is on its way by cp.async. Threads
//! meet once a stage; all sums are inside a warp.
use super::recurrence::{
    Args, COLUMNS_PER_WARP, QUADS, ROW_GROUPS, Role, Rows, correction, dot, load_column, recurrence_kernel,
    store_column, update,
};
use crate::shape::{HEAD_DIM, MOST_VALUES_PER_KEY, value_head};
use cuda_std::async_copy::{commit, copy_4, copy_16, wait};
use cuda_std::float::exp;
use cuda_std::shared::dynamic_shared_mem;
use cuda_std::thread::{block_idx_x, block_idx_y, sync_threads};
use cuda_std::{Global, GlobalMut, Tile};

/// Threads of a block.
pub const THREADS: usize = 128;
/// Columns that a block carries.
pub const COLUMNS_PER_BLOCK: usize = THREADS / 32 * COLUMNS_PER_WARP;
/// Tokens of a stage.
pub const STAGE_TOKENS: usize = 8;

/// Groups of four in a key or a query, and in a block's part of a value.
const HEAD_QUADS: usize = HEAD_DIM / 4;
const COLUMN_QUADS: usize = COLUMNS_PER_BLOCK / 4;

/// Blocks of a launch: column tiles, key heads.
#[must_use]
pub const fn grid(num_key_heads: u32) -> [u32; 2] {
    [(HEAD_DIM / COLUMNS_PER_BLOCK) as u32, num_key_heads]
}

/// What a stage of tokens brings.                          written by              read by
#[repr(C, align(16))]
struct Stage {
    /// [token][row]                                        copies of all threads   all threads
    k: Tile<{ STAGE_TOKENS * HEAD_DIM }>,
    q: Tile<{ STAGE_TOKENS * HEAD_DIM }>,
    /// [token][value head of the key head][column]         copies                  the column's lanes
    v: Tile<{ STAGE_TOKENS * MOST_VALUES_PER_KEY * COLUMNS_PER_BLOCK }>,
    /// [token][value head of the key head]: e^g, beta      copies and `put_decay`  all threads
    decay: Tile<{ STAGE_TOKENS * MOST_VALUES_PER_KEY }>,
    beta: Tile<{ STAGE_TOKENS * MOST_VALUES_PER_KEY }>,
}

/// Shared memory of a block: the stage that is computed and the one that arrives.
type Shared = [Stage; 2];
/// Its size.
pub const SHARED_BYTES: usize = size_of::<Shared>();

recurrence_kernel! {
    kernel "recurrent_by_key_head", capability 80, blocks 1;
    entry gdn_recurrent_by_key_head_r1 = run::<1>, threads THREADS, shared SHARED_BYTES;
    entry gdn_recurrent_by_key_head_r2 = run::<2>, threads THREADS, shared SHARED_BYTES;
    entry gdn_recurrent_by_key_head_r3 = run::<3>, threads THREADS, shared SHARED_BYTES;
    entry gdn_recurrent_by_key_head_r4 = run::<4>, threads THREADS, shared SHARED_BYTES;
}

/// The block's part of the problem, and where this thread stands in it.
struct Block<'a, const VALUES: usize> {
    args: &'a Args,
    role: Role,
    /// Inputs of the block's heads, from token 0 on.
    q: Global<f32>,
    k: Global<f32>,
    /// First column of the block.
    first_column: usize,
    /// Value head number `n` of the key head is `first_value_head + n * value_head_step`.
    first_value_head: usize,
    value_head_step: usize,
}

impl<'a, const VALUES: usize> Block<'a, VALUES> {
    #[inline(always)]
    fn here(args: &'a Args) -> Self {
        let key_head = block_idx_y();
        let head = |n| value_head(key_head, n, VALUES as u32, args.num_key_heads, args.head_map) as usize;
        Self {
            args,
            role: Role::here::<THREADS>(),
            q: args.q.offset(key_head as usize * args.q_head_stride),
            k: args.k.offset(key_head as usize * args.k_head_stride),
            first_column: block_idx_x() as usize * COLUMNS_PER_BLOCK,
            first_value_head: head(0),
            value_head_step: head(1) - head(0),
        }
    }

    #[inline(always)]
    fn value_head(&self, n: usize) -> usize {
        self.first_value_head + n * self.value_head_step
    }

    /// The thread's column in the block.
    #[inline(always)]
    fn column(&self) -> usize {
        self.role.warp * COLUMNS_PER_WARP + self.role.column
    }

    /// Starts the copies of the stage from `first_token` on. Tokens past the end are neither read nor written.
    ///
    /// # Safety
    /// No thread reads or writes `stage` until the copies have been waited for and a barrier has passed, but for
    /// [`Block::put_decay`].
    #[inline(always)]
    unsafe fn stage(&self, stage: *mut Stage, first_token: usize) {
        let thread = self.role.thread;
        let args = self.args;
        for copy in 0..STAGE_TOKENS * HEAD_QUADS / THREADS {
            let token = copy * (THREADS / HEAD_QUADS) + thread / HEAD_QUADS;
            let row = thread % HEAD_QUADS * 4;
            if first_token + token < args.tokens as usize {
                // SAFETY: bounds: token < STAGE_TOKENS, row < 128, the token exists. Owner: one (token, row quad) a
                // thread and turn. Barrier: the stage's, by the caller.
                unsafe {
                    let stage_index = token * HEAD_DIM + row;
                    copy_16(
                        &raw mut (*stage).k,
                        stage_index,
                        self.k,
                        (first_token + token) * args.k_token_stride + row,
                    );
                    copy_16(
                        &raw mut (*stage).q,
                        stage_index,
                        self.q,
                        (first_token + token) * args.q_token_stride + row,
                    );
                }
            }
        }
        let (token, n) = (thread / (VALUES * COLUMN_QUADS), thread / COLUMN_QUADS % VALUES);
        let column = thread % COLUMN_QUADS * 4;
        if token < STAGE_TOKENS && first_token + token < args.tokens as usize {
            let source = self.value_head(n) * args.v_head_stride
                + (first_token + token) * args.v_token_stride
                + self.first_column
                + column;
            // SAFETY: bounds: token < STAGE_TOKENS, n < VALUES, column < 16, the token exists. Owner: one (token, n,
            // column quad) a thread. Barrier: the stage's, by the caller.
            unsafe {
                copy_16(
                    &raw mut (*stage).v,
                    (token * MOST_VALUES_PER_KEY + n) * COLUMNS_PER_BLOCK + column,
                    args.v,
                    source,
                );
            }
        }
        let (token, n) = (thread / VALUES, thread % VALUES);
        if token < STAGE_TOKENS && first_token + token < args.tokens as usize {
            let source = self.value_head(n) * args.beta_head_stride + (first_token + token) * args.beta_token_stride;
            // SAFETY: bounds: token < STAGE_TOKENS, n < VALUES, the token exists. Owner: one (token, n) a thread.
            // Barrier: the stage's, by the caller.
            unsafe { copy_4(&raw mut (*stage).beta, token * MOST_VALUES_PER_KEY + n, args.beta, source) };
        }
        commit();
    }

    /// The gate that this thread turns into a decay for the stage from `first_token` on; 0 where it has none.
    #[inline(always)]
    fn gate(&self, first_token: usize) -> f32 {
        let args = self.args;
        let (token, n) = (self.role.thread / VALUES, self.role.thread % VALUES);
        if token < STAGE_TOKENS && first_token + token < args.tokens as usize {
            let source = self.value_head(n) * args.g_head_stride + (first_token + token) * args.g_token_stride;
            // SAFETY: bounds: the token exists, n < VALUES. Owner: inputs are read only.
            unsafe { args.g.at(source) }
        } else {
            0.0
        }
    }

    /// Writes the decay of this thread's gate.
    ///
    /// # Safety
    /// A barrier stands between this and what reads the stage before and after.
    #[inline(always)]
    unsafe fn put_decay(&self, stage: *mut Stage, gate: f32) {
        let (token, n) = (self.role.thread / VALUES, self.role.thread % VALUES);
        if token < STAGE_TOKENS {
            // SAFETY: bounds: token < STAGE_TOKENS, n < VALUES. Owner: one (token, n) a thread. Barrier: by the caller.
            unsafe { Tile::put(&raw mut (*stage).decay, token * MOST_VALUES_PER_KEY + n, exp(gate)) };
        }
    }

    /// This thread's rows of token `token` of a staged key or query.
    ///
    /// # Safety
    /// The stage has arrived.
    #[inline(always)]
    unsafe fn rows(&self, tile: *mut Tile<{ STAGE_TOKENS * HEAD_DIM }>, token: usize) -> Rows {
        let mut rows = [[0.0; 4]; QUADS];
        for (quad, values) in rows.iter_mut().enumerate() {
            // SAFETY: bounds: token < STAGE_TOKENS, row < 128. Barrier: the stage's.
            *values = unsafe { Tile::quad(tile, token * HEAD_DIM + self.role.row(quad)) };
        }
        rows
    }
}

/// Runs the `tokens` first tokens of a stage; `out` is this thread's output of the first.
///
/// # Safety
/// The stage has arrived; all threads of the warp are here; `1 <= tokens <= STAGE_TOKENS`.
#[inline(always)]
unsafe fn run_stage<const VALUES: usize>(
    block: &Block<'_, VALUES>,
    s: &mut [Rows; VALUES],
    stage: *mut Stage,
    tokens: usize,
    mut out: GlobalMut<f32>,
) {
    // SAFETY: by the caller.
    unsafe { core::hint::assert_unchecked(tokens <= STAGE_TOKENS) };
    // The next key is read while this token is computed: it is what the chain of sums starts with.
    // SAFETY: bounds: `stage` has STAGE_TOKENS tokens, `tokens` is at least 1. Barrier: the stage's.
    let mut next_k = unsafe { block.rows(&raw mut (*stage).k, 0) };
    for token in 0..tokens {
        let k = next_k;
        // SAFETY: bounds: token < tokens <= STAGE_TOKENS, column < 16, VALUES <= MOST_VALUES_PER_KEY. Barrier: the
        // stage's. All lanes of the warp run every token.
        unsafe {
            let state_at_key = dot(s, &k);
            let decay = Tile::quad(&raw mut (*stage).decay, token * MOST_VALUES_PER_KEY);
            let beta = Tile::quad(&raw mut (*stage).beta, token * MOST_VALUES_PER_KEY);
            let q = block.rows(&raw mut (*stage).q, token);
            next_k = block.rows(&raw mut (*stage).k, (token + 1).min(tokens - 1));
            for n in 0..VALUES {
                let index = (token * MOST_VALUES_PER_KEY + n) * COLUMNS_PER_BLOCK + block.column();
                let v = Tile::at(&raw mut (*stage).v, index);
                let d = correction(beta[n], v, decay[n], state_at_key[n]);
                update(&mut s[n], decay[n], &k, d);
            }
            let o = dot(s, &q);
            let mut mine = o[0];
            for n in 1..VALUES {
                if block.role.row_group == n {
                    mine = o[n];
                }
            }
            if block.role.row_group < VALUES {
                // Owner: row group n alone writes value head n of the column.
                out.put(0, mine * block.args.scale);
            }
        }
        out = out.offset(block.args.out_token_stride);
    }
}

/// The kernel.
///
/// # Safety
/// Called once by each of `THREADS` threads of each block of `grid()`, with `SHARED_BYTES` of shared memory; every
/// tensor holds what its shape and strides describe; q, k and v have 16-byte aligned rows; out and the final state
/// overlap no input but the initial state.
#[inline(always)]
pub unsafe fn run<const VALUES: usize>(args: Args) {
    let block = Block::<VALUES>::here(&args);
    let stages = dynamic_shared_mem::<Shared>().cast::<Stage>();
    let column = block.first_column + block.column();

    let mut s = [[[0.0; 4]; QUADS]; VALUES];
    for (n, s) in s.iter_mut().enumerate() {
        // SAFETY: the head's state has 128 rows and columns, or is null.
        *s = unsafe {
            load_column(args.initial_state_of(block.value_head(n)), args.state_row_stride, column, block.role)
        };
    }

    let my_head = block.value_head(block.role.row_group.min(VALUES - 1));
    let mut out = args.out.offset(my_head * args.out_head_stride + column);
    let tokens = args.tokens as usize;
    // SAFETY: nothing has read or written the stages yet.
    unsafe {
        block.stage(stages, 0);
        block.put_decay(stages, block.gate(0));
    }
    let mut first_token = 0;
    let mut parity = 0;
    while first_token < tokens {
        let stage = stages.wrapping_add(parity);
        let next_stage = stages.wrapping_add(1 - parity);
        let next_token = first_token + STAGE_TOKENS;
        wait::<0>();
        // SAFETY: all threads run the same stages. This stage is complete and all may read it; all have left the last
        // one, whose memory the next copies go to.
        unsafe { sync_threads() };
        // SAFETY: the stage is read after the next turn's barrier.
        unsafe { block.stage(next_stage, next_token) };
        let next_gate = block.gate(next_token);
        // SAFETY: `stage` has arrived, see the barrier.
        unsafe { run_stage(&block, &mut s, stage, STAGE_TOKENS.min(tokens - first_token), out) };
        // SAFETY: the last readers of `next_stage` have passed this turn's barrier, the next ones wait for the next.
        unsafe { block.put_decay(next_stage, next_gate) };
        out = out.offset(STAGE_TOKENS * args.out_token_stride);
        first_token = next_token;
        parity = 1 - parity;
    }
    wait::<0>();

    for (n, s) in s.iter().enumerate() {
        // SAFETY: the head's state has 128 rows and columns, or is null; this thread has read its part of it.
        unsafe {
            store_column(args.final_state_of(block.value_head(n)), args.state_row_stride, column, block.role, s);
        }
    }
}

const _: () =
    assert!(STAGE_TOKENS * MOST_VALUES_PER_KEY * COLUMN_QUADS <= THREADS && MOST_VALUES_PER_KEY <= ROW_GROUPS);
