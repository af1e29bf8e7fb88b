//! Chunked Gated DeltaNet on tensor cores, second kernel: carries the state through the chunks, for 64 columns of a value
//! head.
//!
//! # Math
//! [`super::chunk_tensor`], for every chunk in order, transposed: the rows of every product are value columns.
//! ```text
//!   project   y^T = v^T - (s^T k'^T) h        s^T q'^T              16 x 32 a warp, sums over 128 rows
//!   solve     d'^T = y^T T^T                  o^T = .. + y^T P^T    16 x 32, sums over 32 tokens
//!   update    s^T <- e^(G_last) s^T + d'^T k'                       16 x 128, sums over 32 tokens
//! ```
//! # Threads: one block per (half of the columns, value head); 4 warps, 16 columns each
//! What a product leaves in a lane's registers is what the next one takes from them: s, y and d' never leave the warp.
//! Warps meet twice a chunk, when the copies of the next one's tiles have arrived and when all have left this one's.
//! ```text
//!   lane = 4 column + pair      s[n][..] columns `column` and `column + 8` of rows 8 n + 2 pair and the next
//! ```
//! # Memory
//! The next chunk's tiles arrive while this one is computed.
//!
//! # Range
//! v and s of a warp's 16 columns are kept times one power of two, 2^exponent, so that the largest of them is far from both
//! ends of a 16-bit float's range. How large the columns of s may have become is bounded from chunk to chunk; where the bound
//! grows too far, or every `MEASURE_EVERY` chunks, s is measured, and where it or v has left the range, scaled anew.
//!
//! # Rounding
//! Tensor cores round toward zero, so the small products are added up apart from the large ones, and the state itself is
//! not accumulated there: each chunk's part starts from zero.
mod factors;
mod products;
mod range;

use super::chunk::{Args, CHUNK, chunk_kernel};
use super::chunk_tensor::{
    FACTORS, HEAD_FLOATS, KEY_FLOATS, KEY_MATRIX, OUT_FACTORS, Scratch, T_SCALE, TOKEN_MATRIX, TOTAL_DECAY,
};
use crate::shape::{HEAD_DIM, key_head};
use cuda_std::async_copy::{commit, copy_16, wait};
use cuda_std::float::{fma, power_of_two};
use cuda_std::shared::dynamic_shared_mem;
use cuda_std::thread::{block_idx_x, block_idx_y, sync_threads, thread_idx_below};
use cuda_std::warp::warp_max;
use cuda_std::{Global, GlobalMut, Tile};
use factors::{Halves, ROW_OCTETS, ROW_STEPS, State, TOKEN_OCTETS, TOKEN_STEPS, for_each, split};
use products::{Rows, project, solve, update};
use range::{
    INFINITE, LARGEST_BOUND, LARGEST_V, LEAST_BOUND, MEASURE_EVERY, Range, exponent_of, largest_finite_v, largest_v,
    v_bound, v_offset,
};

/// Threads of a block.
pub const THREADS: usize = 128;
/// Columns of a value head that a block carries.
pub const COLUMNS_PER_BLOCK: usize = 64;
/// Columns that a warp carries.
const COLUMNS_PER_WARP: usize = COLUMNS_PER_BLOCK / (THREADS / 32);

/// Blocks of a launch: parts of the columns, value heads.
#[must_use]
pub const fn grid(num_value_heads: u32) -> [u32; 2] {
    [(HEAD_DIM / COLUMNS_PER_BLOCK) as u32, num_value_heads]
}

/// From a token of v to the next in shared memory: what a warp reads together lies in different banks.
const V_STRIDE: usize = COLUMNS_PER_BLOCK + 4;

/// What a chunk brings.                                  written by          read by
#[repr(C, align(16))]
struct Stage {
    /// `key_piece`: keys, queries, as in the scratch       copies of all       project, update
    keys: Tile<KEY_FLOATS>,
    /// `token_piece`: T, P; factors, as in the scratch     copies of all       all phases
    head: Tile<HEAD_FLOATS>,
    /// [token][column]                                     copies of all       project
    v: Tile<{ CHUNK * V_STRIDE }>,
}

/// Shared memory of a block.
pub const SHARED_BYTES: usize = 2 * size_of::<Stage>();
const _: () = assert!(SHARED_BYTES <= 99 * 1024, "more than the smallest cards of sm_86 have");

chunk_kernel! {
    kernel "chunk_scan_tensor", capability 80, blocks 1;
    entry gdn_chunk_scan_tensor = run, threads THREADS, shared SHARED_BYTES;
}

/// What a block reads, from the next chunk to be copied on.
struct Inputs {
    /// Where in the scratch, which is short enough, the key head's and the value head's parts are.
    keys: u32,
    head: u32,
    /// Four columns of the thread's first token.
    v: Global<f32>,
}

impl Inputs {
    /// Starts the copies of a chunk, with so many tokens in it and after it, and moves on to the next.
    ///
    /// # Safety
    /// Nobody reads the stage before a wait and a barrier; its last reads lie before a barrier that has passed.
    #[inline(always)]
    unsafe fn stage(&mut self, args: &Args, thread: usize, tokens: u32, stage: *mut Stage) {
        // SAFETY: fields.
        let (keys, head, v) = unsafe { (&raw mut (*stage).keys, &raw mut (*stage).head, &raw mut (*stage).v) };
        let scratch = Global::new(args.scratch.as_ptr().cast_const());
        let (key_source, head_source) = (scratch.offset(self.keys as usize), scratch.offset(self.head as usize));
        for turn in 0..KEY_FLOATS / 4 / THREADS {
            let index = 4 * (thread + turn * THREADS);
            // SAFETY: bounds: the key head's part of a chunk that exists. Owner: one quad a thread. Barrier: by the caller.
            unsafe { copy_16(keys, index, key_source, index) };
        }
        for turn in 0..(HEAD_FLOATS / 4).div_ceil(THREADS) {
            let quad = thread + turn * THREADS;
            if quad < HEAD_FLOATS / 4 {
                // SAFETY: as above, of the value head.
                unsafe { copy_16(head, 4 * quad, head_source, 4 * quad) };
            }
        }
        let (first, column) = (thread / 16, 4 * (thread % 16));
        let mut row = self.v;
        for turn in 0..CHUNK / (THREADS / 16) {
            let token = first + turn * (THREADS / 16);
            let index = token * V_STRIDE + column;
            // SAFETY: bounds: the token exists, columns are the head's. Owner: one quad a thread. Barrier: by the caller.
            unsafe {
                if token < tokens as usize {
                    copy_16(v, index, row, 0);
                } else {
                    Tile::put_quad(v, index, [0.0; 4]);
                }
            }
            row = row.offset(THREADS / 16 * args.v_token_stride);
        }
        self.keys += Scratch::of(args).keys_stride() as u32;
        self.head += Scratch::of(args).head_stride() as u32;
        self.v = self.v.offset(CHUNK * args.v_token_stride);
    }
}

/// The index of a lane's element of the state in its memory.
#[inline(always)]
fn state_index(args: &Args, first_column: usize, lane: usize, octet: usize, i: usize) -> usize {
    let (row, column) = (8 * octet + 2 * (lane % 4) + i % 2, first_column + lane / 4 + 8 * (i / 2));
    row * args.state_row_stride + column
}

/// The kernel.
///
/// # Safety
/// Called once by each of `THREADS` threads of each block of `grid()`, with `SHARED_BYTES` of shared memory, after
/// `chunk_prep_tensor` with the same arguments; every tensor holds what its shape and strides describe; v has 16-byte
/// aligned rows; out and the final state overlap no input but the initial state.
#[inline(always)]
pub unsafe fn run(args: Args) {
    let thread = thread_idx_below::<THREADS>();
    let (warp, lane) = (thread / 32, thread % 32);
    let (column, pair) = (lane / 4, lane % 4);
    let value_head = block_idx_y();
    let key_head = key_head(value_head, args.values_per_key, args.num_key_heads, args.head_map) as usize;
    let value_head = value_head as usize;
    let block_column = block_idx_x() as usize * COLUMNS_PER_BLOCK;
    let first_column = block_column + warp * COLUMNS_PER_WARP;
    let scratch = Scratch::of(&args);
    // SAFETY: all lanes are here, and all warps come to the same end.
    if unsafe { scratch.is_marked(value_head, lane) } {
        return;
    }

    let stages = dynamic_shared_mem::<[Stage; 2]>().cast::<Stage>();
    let mut inputs = Inputs {
        keys: scratch.keys_index(0, key_head) as u32,
        head: scratch.head_index(0, value_head) as u32,
        v: args.v.offset(
            value_head * args.v_head_stride + thread / 16 * args.v_token_stride + block_column + 4 * (thread % 16),
        ),
    };
    for stage in 0..2 {
        let tokens = args.tokens.saturating_sub((stage * CHUNK) as u32);
        if tokens > 0 {
            // SAFETY: nothing has been read yet.
            unsafe { inputs.stage(&args, thread, tokens, stages.wrapping_add(stage)) };
        }
        commit();
    }

    let mut s: State = [[0.0; 4]; ROW_OCTETS];
    if !args.initial_state.as_ptr().is_null() {
        let state = args.initial_state.offset(value_head * args.state_head_stride);
        for octet in 0..ROW_OCTETS {
            for i in 0..4 {
                // SAFETY: bounds: row and column are the head's. Owner: this thread alone, to the end.
                s[octet][i] = unsafe { state.at(state_index(&args, first_column, lane, octet, i)) };
            }
        }
    }
    let rows = Rows::of(lane);
    let mut range = Range { exponent: 0, bound: 0.0 };
    // SAFETY: all lanes are here.
    unsafe { range.rescale(&mut s, 0, true) };
    let mut halves = Halves::of(&s);
    let mut out: GlobalMut<f32> =
        args.out.offset(value_head * args.out_head_stride + 2 * pair * args.out_token_stride + first_column + column);

    let v_index = 2 * pair * V_STRIDE + warp * COLUMNS_PER_WARP + column;
    let (mut chunk, mut tokens) = (0u32, args.tokens);
    let (mut state_at_k, mut largest) = ([[0.0; 4]; TOKEN_OCTETS], 0.0);
    wait::<1>();
    // SAFETY: all threads are here. The first chunk's tiles are complete.
    unsafe { sync_threads() };
    if tokens > 0 {
        // SAFETY: complete by the barrier; all lanes are here. Fields.
        unsafe {
            state_at_k = project(&raw mut (*stages).keys, &rows, 0, &halves);
            largest = largest_v(&raw mut (*stages).v, v_index);
        }
    }
    while tokens > 0 {
        let (stage, next_stage) =
            (stages.wrapping_add(chunk as usize % 2), stages.wrapping_add((chunk as usize + 1) % 2));
        // SAFETY: fields.
        let (keys, head, v_tile) = unsafe { (&raw mut (*stage).keys, &raw mut (*stage).head, &raw mut (*stage).v) };
        // The state fits as it was left; what it gives at keys does not depend on what v asks for.
        // SAFETY: all lanes are here.
        let mut largest_bits = unsafe { warp_max(largest.to_bits()) };
        if largest_bits >= INFINITE {
            // SAFETY: the condition is the warp's, so that all lanes are here.
            largest_bits = unsafe { largest_finite_v(v_tile, v_index) };
        }
        let v_exponent = exponent_of(largest_bits) + range.exponent;
        let bound = range.bound + v_bound(v_exponent);
        let is_out = v_exponent > LARGEST_V || !(LEAST_BOUND..=LARGEST_BOUND).contains(&bound);
        if chunk % MEASURE_EVERY == 0 || is_out {
            // SAFETY: the condition is the warp's, so that all lanes are here.
            let factors = unsafe { range.rescale(&mut s, largest_bits, chunk == 0) };
            for_each!(OCTET in [0 1 2 3] {
                for i in 0..4 {
                    state_at_k[OCTET][i] = state_at_k[OCTET][i] * factors[0] * factors[1];
                }
            });
            halves = Halves::of(&s);
        }
        // SAFETY: bounds: in the tile. Barrier: the one before `update`, or the first.
        let total_decay = unsafe { Tile::at(head, TOTAL_DECAY) };
        range.bound = fma(range.bound, total_decay, v_bound(exponent_of(largest_bits) + range.exponent));
        if chunk > 0 && tokens > CHUNK as u32 {
            // SAFETY: the other stage's last reads lie before the last barrier, the next after the next one.
            unsafe { inputs.stage(&args, thread, tokens - CHUNK as u32, next_stage) };
        }
        commit();
        let scale = power_of_two(range.exponent);

        let mut y = [[0.0; 4]; TOKEN_OCTETS];
        for octet in 0..TOKEN_OCTETS {
            // SAFETY: bounds: four octets of four pairs. Barrier: the one before `update`, or the first.
            let factors = unsafe { Tile::quad(head, FACTORS + 4 * (4 * octet + pair)) };
            for i in 0..4 {
                // SAFETY: bounds: token < 32, columns below 64. Barrier: as for the factors.
                let v = unsafe { Tile::at(v_tile, v_index + v_offset(octet, i)) };
                y[octet][i] = fma(-factors[i % 2], state_at_k[octet][i], v * scale);
            }
        }
        let ((y_high_0, y_low_0), (y_high_1, y_low_1)) = (split([y[0], y[1]]), split([y[2], y[3]]));
        let (y_high, y_low) = ([y_high_0, y_high_1], [y_low_0, y_low_1]);
        // SAFETY: complete by the barrier; all lanes are here.
        let state_at_q = unsafe { project(keys, &rows, 2 * KEY_MATRIX, &halves) };
        // SAFETY: as above.
        let mut d = unsafe { solve(head, &rows, 0, &y_high, &y_low, [[0.0; 4]; TOKEN_OCTETS]) };
        for value in d.as_flattened_mut() {
            *value *= 1.0 / T_SCALE;
        }
        let ((d_high_0, d_low_0), (d_high_1, d_low_1)) = (split([d[0], d[1]]), split([d[2], d[3]]));
        let mut o = [[0.0; 4]; TOKEN_OCTETS];
        for octet in 0..TOKEN_OCTETS {
            // SAFETY: as for y.
            let factors = unsafe { Tile::quad(head, FACTORS + 4 * (4 * octet + pair)) };
            for i in 0..4 {
                o[octet][i] = factors[2 + i % 2] * state_at_q[octet][i];
            }
        }
        // SAFETY: complete by the barrier; all lanes are here.
        let o = unsafe { solve(head, &rows, 2 * TOKEN_MATRIX, &y_high, &y_low, o) };
        let inverse = power_of_two(-range.exponent);
        for octet in 0..TOKEN_OCTETS {
            for next in 0..2 {
                let token = 8 * octet + next;
                // SAFETY: bounds: token + 2 pair < 32. Barrier: the one before `update`, or the first.
                let factor = unsafe { Tile::at(head, OUT_FACTORS + 2 * pair + token) };
                let exists = token + 2 * pair < tokens as usize;
                for half in 0..2 {
                    let value = o[octet][next + 2 * half] * factor * inverse;
                    // SAFETY: bounds: the token exists. Owner: this thread alone has (token, column).
                    unsafe { out.put_if(exists, token * args.out_token_stride + 8 * half, value) };
                }
            }
        }
        // Again: a register less in between.
        // SAFETY: as above.
        let total_decay = unsafe { Tile::at(head, TOTAL_DECAY) };
        wait::<0>();
        // SAFETY: all threads run all chunks. The next chunk's tiles are complete.
        unsafe { sync_threads() };
        // SAFETY: complete by the barriers; all lanes are here. Fields. After the last chunk there is no next one, and what
        // it gives is not used.
        unsafe {
            let (d_high, d_low) = ([d_high_0, d_high_1], [d_low_0, d_low_1]);
            let next_keys = &raw mut (*next_stage).keys;
            state_at_k = update(keys, next_keys, &rows, total_decay, &d_high, &d_low, &mut s, &mut halves);
            largest = largest_v(&raw mut (*next_stage).v, v_index);
        }
        // SAFETY: all threads run all chunks. All have left this chunk's stage.
        unsafe { sync_threads() };
        out = out.offset(CHUNK * args.out_token_stride);
        tokens = tokens.saturating_sub(CHUNK as u32);
        chunk += 1;
    }
    wait::<0>();

    if !args.final_state.as_ptr().is_null() {
        let state = args.final_state.offset(value_head * args.state_head_stride);
        let inverse = power_of_two(-range.exponent);
        for octet in 0..ROW_OCTETS {
            for i in 0..4 {
                // SAFETY: bounds: row and column are the head's. Owner: this thread alone has them.
                unsafe { state.put(state_index(&args, first_column, lane, octet, i), s[octet][i] * inverse) };
            }
        }
    }
}

const _: () = assert!(COLUMNS_PER_WARP == 16 && ROW_STEPS == 8 && TOKEN_OCTETS == 4 && TOKEN_STEPS == 2);
