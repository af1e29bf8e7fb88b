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

/// Tokens of a stage that a warp copies; a lane has four of the 128 rows.
const TOKENS_PER_WARP: usize = STAGE_TOKENS / (THREADS / 32);
/// Groups of four in a block's part of a value.
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

/// What this thread copies of a stage. Each warp stages two tokens, so that none is late at the barrier.
#[derive(Clone, Copy)]
struct Copies<const VALUES: usize> {
    /// The first of the warp's tokens in the stage.
    token: usize,
    /// Four rows of k and q of both tokens.
    row: usize,
    k: Global<f32>,
    q: Global<f32>,
    /// Four columns of one value head of one token; `VALUE_COPIES` lanes have some.
    value: (usize, usize),
    v: Global<f32>,
    /// The gates of one value head of one token; `GATES` lanes have some.
    gate: (usize, usize),
    g: Global<f32>,
    beta: Global<f32>,
}

impl<const VALUES: usize> Copies<VALUES> {
    const VALUE_COPIES: usize = TOKENS_PER_WARP * VALUES * COLUMN_QUADS;
    const GATES: usize = TOKENS_PER_WARP * VALUES;

    /// Those of the first stage.
    #[inline(always)]
    fn first(block: &Block<'_, VALUES>) -> Self {
        let args = block.args;
        let lane = block.role.lane();
        let token = block.role.warp * TOKENS_PER_WARP;
        let row = lane * 4;
        let value = (lane / (VALUES * COLUMN_QUADS), lane / COLUMN_QUADS % VALUES);
        let column = block.first_column + lane % COLUMN_QUADS * 4;
        let gate = (lane / VALUES, lane % VALUES);
        let (value_token, gate_token) = (token + value.0, token + gate.0);
        let (value_head, gate_head) = (block.value_head(value.1), block.value_head(gate.1));
        Self {
            token,
            row,
            k: args.k.offset(block.key_head * args.k_head_stride + token * args.k_token_stride + row),
            q: args.q.offset(block.key_head * args.q_head_stride + token * args.q_token_stride + row),
            value,
            v: args.v.offset(value_head * args.v_head_stride + value_token * args.v_token_stride + column),
            gate,
            g: args.g.offset(gate_head * args.g_head_stride + gate_token * args.g_token_stride),
            beta: args.beta.offset(gate_head * args.beta_head_stride + gate_token * args.beta_token_stride),
        }
    }

    /// Starts the copies of a stage of `tokens` tokens into `stage`, and gives this thread's gate of it (0 where it has
    /// none). The next call is for the next stage. Tokens past the end are neither read nor written.
    ///
    /// # Safety
    /// `stage` has STAGE_TOKENS tokens, and no thread touches them until the copies have been waited for and a barrier
    /// has passed, but for [`Copies::put_decay`]; the inputs have `tokens` more tokens.
    #[inline(always)]
    unsafe fn start(&mut self, args: &Args, lane: usize, stage: *mut Staged, tokens: usize) -> f32 {
        for token in 0..TOKENS_PER_WARP {
            if self.token + token < tokens {
                let staged = stage.wrapping_add(self.token + token);
                // SAFETY: bounds: row + 4 <= 128, the token exists. Owner: one (token, row quad) a lane. Barrier: the
                // stage's, by the caller.
                unsafe {
                    copy_16(&raw mut (*staged).k, self.row, self.k, token * args.k_token_stride);
                    copy_16(&raw mut (*staged).q, self.row, self.q, token * args.q_token_stride);
                }
            }
        }
        let (token, n) = (self.token + self.value.0, self.value.1);
        if lane < Self::VALUE_COPIES && token < tokens {
            let staged = stage.wrapping_add(token);
            let index = n * COLUMNS_PER_BLOCK + lane % COLUMN_QUADS * 4;
            // SAFETY: bounds: n < VALUES, column + 4 <= 16, the token exists. Owner: one (token, n, column quad) a lane.
            // Barrier: the stage's, by the caller.
            unsafe { copy_16(&raw mut (*staged).v, index, self.v, 0) };
        }
        let (token, n) = (self.token + self.gate.0, self.gate.1);
        let mut gate = 0.0;
        if lane < Self::GATES && token < tokens {
            let staged = stage.wrapping_add(token);
            // SAFETY: bounds: n < VALUES, the token exists. Owner: one (token, n) a lane. Barrier: the stage's, by the
            // caller.
            unsafe {
                copy_4(&raw mut (*staged).beta, n, self.beta, 0);
                gate = self.g.at(0);
            }
        }
        commit();
        self.k = self.k.offset(STAGE_TOKENS * args.k_token_stride);
        self.q = self.q.offset(STAGE_TOKENS * args.q_token_stride);
        self.v = self.v.offset(STAGE_TOKENS * args.v_token_stride);
        self.g = self.g.offset(STAGE_TOKENS * args.g_token_stride);
        self.beta = self.beta.offset(STAGE_TOKENS * args.beta_token_stride);
        gate
    }

    /// Writes the decay of this thread's gate.
    ///
    /// # Safety
    /// `stage` has STAGE_TOKENS tokens; a barrier stands between this and what reads them before and after.
    #[inline(always)]
    unsafe fn put_decay(&self, lane: usize, stage: *mut Staged, gate: f32) {
        if lane < Self::GATES {
            let staged = stage.wrapping_add(self.token + self.gate.0);
            // SAFETY: bounds: n < VALUES. Owner: one (token, n) a lane. Barrier: by the caller.
            unsafe { Tile::put(&raw mut (*staged).decay, self.gate.1, exp(gate)) };
        }
    }
}

/// The block's part of the problem, and where this thread stands in it.
struct Block<'a, const VALUES: usize> {
    args: &'a Args,
    role: Role,
    key_head: usize,
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
            key_head: key_head as usize,
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
    let lane = block.role.lane();
    let mut copies = Copies::first(&block);
    // SAFETY: nothing has read or written the ring yet.
    unsafe {
        let gate = copies.start(&args, lane, ring, tokens);
        copies.put_decay(lane, ring, gate);
    }
    wait::<0>();
    // SAFETY: all threads are here. The first stage is complete and all may read it.
    unsafe { sync_threads() };
    // SAFETY: nothing has read or written the second stage yet, and it is read after the next barrier.
    let mut next_gate =
        unsafe { copies.start(&args, lane, ring.wrapping_add(STAGE_TOKENS), tokens.saturating_sub(STAGE_TOKENS)) };

    // SAFETY: the first stage has arrived (without tokens it is undefined, and nothing comes of it).
    let mut next = unsafe { Token::read(&block, ring) };
    // SAFETY: all lanes are here.
    let mut state_at_key = unsafe { dot(&s, &next.k) };
    let mut stage = 0;
    let mut first_token = 0;
    while first_token < tokens {
        let staged = ring.wrapping_add(stage * STAGE_TOKENS);
        let last = STAGE_TOKENS.min(tokens - first_token) - 1;
        for token in 0..last {
            let current = next;
            // SAFETY: both tokens are of the stage, which has arrived. All lanes run every token.
            unsafe {
                next = Token::read(&block, staged.wrapping_add(token + 1));
                state_at_key = step(&block, &mut s, staged.wrapping_add(token), &current, &state_at_key, &next, out);
            }
            out = out.offset(args.out_token_stride);
        }
        first_token += STAGE_TOKENS;
        stage = if stage == 2 { 0 } else { stage + 1 };
        let next_staged = ring.wrapping_add(stage * STAGE_TOKENS);
        wait::<0>();
        // SAFETY: the stage is read after the barrier below, and was last read two stages ago.
        unsafe { copies.put_decay(lane, next_staged, next_gate) };
        // SAFETY: all threads run the same stages. The next stage is complete and all may read it; all have left the one
        // before this, whose memory the next copies go to.
        unsafe { sync_threads() };
        let after = ring.wrapping_add(if stage == 2 { 0 } else { stage + 1 } * STAGE_TOKENS);
        // SAFETY: the stage after the next is read after the next turn's barrier.
        next_gate = unsafe { copies.start(&args, lane, after, tokens.saturating_sub(first_token + STAGE_TOKENS)) };
        let current = next;
        // SAFETY: this stage and the next have arrived; where there is no next, its memory is undefined and nothing comes
        // of it. All lanes run every token.
        unsafe {
            next = Token::read(&block, next_staged);
            state_at_key = step(&block, &mut s, staged.wrapping_add(last), &current, &state_at_key, &next, out);
        }
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

const _: () = assert!(HEAD_DIM == 4 * 32 && TOKENS_PER_WARP * MOST_VALUES_PER_KEY * COLUMN_QUADS <= 32);
const _: () = assert!(MOST_VALUES_PER_KEY <= ROW_GROUPS);
