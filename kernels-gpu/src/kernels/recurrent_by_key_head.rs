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
//! meet once a stage; all sums are inside a warp. A token's key is read while the token before it is computed.
use super::recurrence::{
    Args, COLUMNS_PER_WARP, QUADS, ROW_GROUPS, Role, Rows, correction, dot, dot_pair, load_column, recurrence_kernel,
    store_column, update,
};
use crate::shape::{HEAD_DIM, MOST_VALUES_PER_KEY, value_head};
use cuda_std::async_copy::{commit, copy_4, copy_16, wait};
use cuda_std::float::exp;
use cuda_std::memory::Quad;
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

/// What a token brings to the block.                      written by              read by
#[repr(C, align(16))]
struct Staged {
    /// [row]                                               copies of all threads   all threads
    k: Tile<HEAD_DIM>,
    q: Tile<HEAD_DIM>,
    /// [value head of the key head][column]                copies                  the column's lanes
    v: Tile<{ MOST_VALUES_PER_KEY * COLUMNS_PER_BLOCK }>,
    /// [value head of the key head]: e^g, beta             `put_decay` and copies  all threads
    decay: Tile<MOST_VALUES_PER_KEY>,
    beta: Tile<MOST_VALUES_PER_KEY>,
}

/// Shared memory of a block: a ring of three stages, the one before, the one that is computed and the one that arrives. With
/// the one before still there, the key after a stage's last token can be read before all threads have left the stage.
type Shared = [Staged; RING_TOKENS];
const RING_TOKENS: usize = 3 * STAGE_TOKENS;
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

    /// Which token of a stage, and which value head of the key head, this thread's gate and strength are of.
    #[inline(always)]
    fn gate_role(&self) -> (usize, usize) {
        (self.role.thread / VALUES, self.role.thread % VALUES)
    }

    /// Whether the stage from `first_token` on has a token `token`.
    #[inline(always)]
    fn has(&self, first_token: usize, token: usize) -> bool {
        token < STAGE_TOKENS && first_token + token < self.args.tokens as usize
    }

    /// Starts the copies of the stage from `first_token` on. Tokens past the end are neither read nor written.
    ///
    /// # Safety
    /// `stage` has STAGE_TOKENS tokens, and no thread touches them until the copies have been waited for and a barrier
    /// has passed, but for [`Block::put_decay`].
    #[inline(always)]
    unsafe fn stage(&self, stage: *mut Staged, first_token: usize) {
        let thread = self.role.thread;
        let args = self.args;
        for copy in 0..STAGE_TOKENS * HEAD_QUADS / THREADS {
            let token = copy * (THREADS / HEAD_QUADS) + thread / HEAD_QUADS;
            let row = thread % HEAD_QUADS * 4;
            if self.has(first_token, token) {
                let staged = stage.wrapping_add(token);
                // SAFETY: bounds: row + 4 <= 128, the token exists. Owner: one (token, row quad) a thread and turn.
                // Barrier: the stage's, by the caller.
                unsafe {
                    copy_16(&raw mut (*staged).k, row, self.k, (first_token + token) * args.k_token_stride + row);
                    copy_16(&raw mut (*staged).q, row, self.q, (first_token + token) * args.q_token_stride + row);
                }
            }
        }
        let (token, n) = (thread / (VALUES * COLUMN_QUADS), thread / COLUMN_QUADS % VALUES);
        let column = thread % COLUMN_QUADS * 4;
        if self.has(first_token, token) {
            let staged = stage.wrapping_add(token);
            let source = self.value_head(n) * args.v_head_stride
                + (first_token + token) * args.v_token_stride
                + self.first_column
                + column;
            // SAFETY: bounds: n < VALUES, column + 4 <= 16, the token exists. Owner: one (token, n, column quad) a thread.
            // Barrier: the stage's, by the caller.
            unsafe { copy_16(&raw mut (*staged).v, n * COLUMNS_PER_BLOCK + column, args.v, source) };
        }
        let (token, n) = self.gate_role();
        if self.has(first_token, token) {
            let staged = stage.wrapping_add(token);
            let source = self.value_head(n) * args.beta_head_stride + (first_token + token) * args.beta_token_stride;
            // SAFETY: bounds: n < VALUES, the token exists. Owner: one (token, n) a thread. Barrier: the stage's, by the
            // caller.
            unsafe { copy_4(&raw mut (*staged).beta, n, args.beta, source) };
        }
        commit();
    }

    /// The gate that this thread turns into a decay for the stage from `first_token` on; 0 where it has none.
    #[inline(always)]
    fn gate(&self, first_token: usize) -> f32 {
        let args = self.args;
        let (token, n) = self.gate_role();
        if self.has(first_token, token) {
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
    /// `stage` has STAGE_TOKENS tokens; a barrier stands between this and what reads them before and after.
    #[inline(always)]
    unsafe fn put_decay(&self, stage: *mut Staged, gate: f32) {
        let (token, n) = self.gate_role();
        if token < STAGE_TOKENS {
            let staged = stage.wrapping_add(token);
            // SAFETY: bounds: n < VALUES. Owner: one (token, n) a thread. Barrier: by the caller.
            unsafe { Tile::put(&raw mut (*staged).decay, n, exp(gate)) };
        }
    }

    /// This thread's rows of a staged key or query.
    ///
    /// # Safety
    /// The stage has arrived.
    #[inline(always)]
    unsafe fn rows(&self, tile: *mut Tile<HEAD_DIM>) -> Rows {
        let mut rows = [[0.0; 4]; QUADS];
        for (quad, values) in rows.iter_mut().enumerate() {
            // SAFETY: bounds: row + 4 <= 128. Barrier: the stage's.
            *values = unsafe { Tile::quad(tile, self.role.row(quad)) };
        }
        rows
    }
}

/// What a token brings to a thread, but for its query.
#[derive(Clone, Copy)]
struct Token<const VALUES: usize> {
    k: Rows,
    v: [f32; VALUES],
    decay: Quad,
    beta: Quad,
}

impl<const VALUES: usize> Token<VALUES> {
    /// A staged token.
    ///
    /// # Safety
    /// It has arrived.
    #[inline(always)]
    unsafe fn read(block: &Block<'_, VALUES>, staged: *mut Staged) -> Self {
        let mut v = [0.0; VALUES];
        for (n, v) in v.iter_mut().enumerate() {
            // SAFETY: bounds: n < MOST_VALUES_PER_KEY, column < 16. Barrier: the stage's.
            *v = unsafe { Tile::at(&raw mut (*staged).v, n * COLUMNS_PER_BLOCK + block.column()) };
        }
        // SAFETY: bounds: the tiles have four. Barrier: the stage's.
        unsafe {
            Self {
                k: block.rows(&raw mut (*staged).k),
                v,
                decay: Tile::quad(&raw mut (*staged).decay, 0),
                beta: Tile::quad(&raw mut (*staged).beta, 0),
            }
        }
    }
}

/// One token: `current` is its key, value and gates, `state_at_key` what the state holds at its key. Gives the same of the
/// token after it, `next`.
///
/// # Safety
/// `staged`, the token, has arrived; all lanes of the warp are here; `out` is this thread's output of the token.
#[inline(always)]
unsafe fn step<const VALUES: usize>(
    block: &Block<'_, VALUES>,
    s: &mut [Rows; VALUES],
    staged: *mut Staged,
    current: &Token<VALUES>,
    state_at_key: &[f32; VALUES],
    next: &Token<VALUES>,
    out: GlobalMut<f32>,
) -> [f32; VALUES] {
    // SAFETY: by the caller.
    let q = unsafe { block.rows(&raw mut (*staged).q) };
    for n in 0..VALUES {
        let d = correction(current.beta[n], current.v[n], current.decay[n], state_at_key[n]);
        update(&mut s[n], current.decay[n], &current.k, d);
    }
    // SAFETY: all lanes are here.
    let (o, state_at_next_key) = unsafe { dot_pair(s, &q, &next.k) };
    let mut mine = o[0];
    for n in 1..VALUES {
        if block.role.row_group == n {
            mine = o[n];
        }
    }
    if block.role.row_group < VALUES {
        // SAFETY: bounds: `out` is the token's. Owner: row group n alone writes value head n of the column.
        unsafe { out.put(0, mine * block.args.scale) };
    }
    state_at_next_key
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
    let ring = dynamic_shared_mem::<Shared>().cast::<Staged>();
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
    // SAFETY: nothing has read or written the ring yet.
    unsafe {
        block.stage(ring, 0);
        block.put_decay(ring, block.gate(0));
    }
    let mut next_gate = block.gate(STAGE_TOKENS);
    wait::<0>();
    // SAFETY: all threads are here. The first stage is complete and all may read it.
    unsafe { sync_threads() };
    // SAFETY: nothing has read or written the second stage yet, and it is read after the next barrier.
    unsafe { block.stage(ring.wrapping_add(STAGE_TOKENS), STAGE_TOKENS) };

    // SAFETY: the first stage has arrived (without tokens it is undefined, and nothing comes of it).
    let mut next = unsafe { Token::read(&block, ring) };
    // SAFETY: all lanes are here.
    let mut state_at_key = unsafe { dot(&s, &next.k) };
    let mut slot = 0;
    for token in 0..tokens {
        let current = next;
        let mut next_slot = slot + 1;
        if next_slot == RING_TOKENS {
            next_slot = 0;
        }
        if next_slot % STAGE_TOKENS == 0 {
            // The next token is the first of a stage.
            let stage = ring.wrapping_add(next_slot);
            wait::<0>();
            // SAFETY: the stage is read after the barrier below, and was last read two stages ago.
            unsafe { block.put_decay(stage, next_gate) };
            // SAFETY: all threads run the same tokens. The next stage is complete and all may read it; all have left the
            // one before this, whose memory the next copies go to.
            unsafe { sync_threads() };
            let after = if next_slot + STAGE_TOKENS == RING_TOKENS { 0 } else { next_slot + STAGE_TOKENS };
            // SAFETY: the stage after the next is read after the next turn's barrier.
            unsafe { block.stage(ring.wrapping_add(after), token + 1 + STAGE_TOKENS) };
            next_gate = block.gate(token + 1 + STAGE_TOKENS);
        }
        // SAFETY: both tokens have arrived; past the last one there is whatever the slot held, and nothing comes of it. All
        // lanes run every token.
        unsafe {
            next = Token::read(&block, ring.wrapping_add(next_slot));
            state_at_key = step(&block, &mut s, ring.wrapping_add(slot), &current, &state_at_key, &next, out);
        }
        slot = next_slot;
        out = out.offset(args.out_token_stride);
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
