//! Chunked Gated DeltaNet on Hopper's tensor cores, second kernel: [`super::chunk_scan_tensor`] by a warpgroup, whose products
//! run in the background and read keys, T and P from shared memory themselves.
//!
//! # Math
//! [`super::chunk_tensor`], for every chunk in order, transposed: the rows of every product are value columns.
//! ```text
//!   project   y^T = v^T - (s^T k'^T) h        s^T q'^T              64 x 32, sums over 128 rows
//!   solve     d'^T = y^T T^T                  o^T = .. + y^T P^T    64 x 32, sums over 32 tokens
//!   update    s^T <- e^(G_last) s^T + d'^T k'                       64 x 128, sums over 32 tokens
//! ```
//! # Threads: one block per (half of the columns, value head); 4 warps, 16 columns each, and 4 warps that copy
//! What a product leaves in a lane's registers is what the next one takes from them: s, y and d' never leave the warp.
//! ```text
//!   lane = 4 column + pair      s[n][..] columns 2 `column` and the next, of rows 8 n + 2 pair and the next
//! ```
//! # Order
//! Half of the queries' products run while y is made, the other half while d' is, and the new state's products with the next
//! chunk's keys as soon as its rows are new.
//!
//! # Barriers and memory
//! One barrier a chunk: before it, the next chunk's tiles have arrived and the chunk before it has been left. Tiles are copied
//! two chunks ahead.
//!
//! # What does not fit
//! A head that chunk prep marked, and columns of which the scan loses bits, the block takes itself, token by token, as
//! [`super::chunk_fallback`] does after the other scan.
//!
//! # Range and rounding
//! As in [`super::chunk_scan_tensor`].
mod inputs;
mod lane;
mod products;

use super::chunk::{Args, CHUNK, again, chunk_kernel};
use super::chunk_fallback::{self, TILES_PER_HALF, run_tile};
use super::chunk_parts::{Part, final_state, initial_state};
use super::chunk_scan_tensor::factors::{Halves as AnyHalves, column_of};
use super::chunk_scan_tensor::lost;
use super::chunk_tensor::{HEAD_FLOATS, KEY_MATRIX, Scratch};
use crate::shape::{HEAD_DIM, key_head};
use cuda_std::Tile;
use cuda_std::async_copy::{prefetch, wait as wait_for_copies};
use cuda_std::shared::dynamic_shared_mem;
use cuda_std::thread::{
    block_idx_x, block_idx_y, let_next_launch_start, sleep, sync_roles, thread_idx_below, thread_idx_x,
    wait_for_last_launch,
};
use cuda_std::warp::warp_shuffle_idx;
use cuda_std::warpgroup::fence_shared;
use inputs::Inputs;
use lane::{Carried, Lane, first_column};

pub use super::chunk_tensor::KEY_FLOATS;

/// Threads of a block: a warpgroup that computes, and loaders.
pub const THREADS: usize = MATH + LOADERS;
const MATH: usize = 128;
const LOADERS: usize = 128;
/// All of them, where the roles meet.
const ALL: u32 = THREADS as u32;
/// Columns of a value head that a block carries.
pub const COLUMNS_PER_BLOCK: usize = 64;
/// Columns that a warp carries.
const COLUMNS_PER_WARP: usize = 16;
/// Groups of eight rows of the state, of eight tokens; steps of sixteen.
const ROW_OCTETS: usize = HEAD_DIM / 8;
const TOKEN_OCTETS: usize = CHUNK / 8;
const ROW_STEPS: usize = HEAD_DIM / 16;
const TOKEN_STEPS: usize = CHUNK / 16;
/// Chunks whose tiles are in shared memory: the chunk, the next one, whose keys it takes, and two on their way.
const STAGES: usize = 4;

/// Blocks of a launch: parts of the columns, value heads of each of `parts` parts.
#[must_use]
pub const fn grid(num_value_heads: u32, parts: u32) -> [u32; 2] {
    [(HEAD_DIM / COLUMNS_PER_BLOCK) as u32, parts * num_value_heads]
}

/// From a token of v to the next in shared memory: what a warp reads together lies in different banks.
const V_STRIDE: usize = COLUMNS_PER_BLOCK + 4;

/// High and low parts of a chunk's keys, or of its queries.
type KeyTile = Tile<{ 2 * KEY_MATRIX }>;
type HeadTile = Tile<HEAD_FLOATS>;

/// What a chunk brings.                                    written by          read by
#[repr(C, align(16))]
struct Stage {
    /// `key_piece`: keys, queries, as in the scratch         loaders             project, update
    keys: [KeyTile; 2],
    /// `token_piece`: T, P; factors, as in the scratch       loaders             solve, factors
    head: HeadTile,
    /// [token][column]                                       loaders             y
    v: Tile<{ CHUNK * V_STRIDE }>,
    /// [half of the tokens][column]: its largest v           loaders             scales
    v_largest: Tile<{ 2 * COLUMNS_PER_BLOCK }>,
    /// Matrices lie on 1,024 bytes.
    unused: Tile<UNUSED>,
}

const USED: usize = KEY_FLOATS + HEAD_FLOATS + CHUNK * V_STRIDE + 2 * COLUMNS_PER_BLOCK;
const UNUSED: usize = USED.next_multiple_of(256) - USED;

/// Shared memory of a block.                               written by          read by
#[repr(C, align(16))]
struct Shared {
    stages: [Stage; STAGES],
    /// [thread that computes]: see `lost`                     math warps          math warps
    lost: Tile<MATH>,
}

/// Bytes of it.
pub const SHARED_BYTES: usize = size_of::<Shared>();
const _: () = assert!(SHARED_BYTES <= 227 * 1024 && size_of::<Stage>() % 1024 == 0);

chunk_kernel! {
    kernel "chunk_scan_warpgroup", capability 90 alone, blocks 1;
    entry gdn_chunk_scan_warpgroup = run, threads THREADS, shared SHARED_BYTES;
}

/// The lane's part of the state, by octets, and of it and of tokens as factors.
type State = [[f32; 4]; ROW_OCTETS];
type Halves = AnyHalves<ROW_STEPS>;
type TokenHalves = AnyHalves<TOKEN_STEPS>;

/// Where, in the head's state, element `i` of an octet of rows of the thread's part is.
#[inline(always)]
fn state_index(args: &Args, thread: usize, octet: usize, i: usize) -> usize {
    let row = 8 * octet + 2 * (thread % 4) + i % 2;
    let column = block_idx_x() as usize * COLUMNS_PER_BLOCK + first_column(thread / 32, thread % 32) + column_of(i);
    row * args.state_row_stride + column
}

/// What a thread knows of its block's work.
#[derive(Clone, Copy)]
struct Work<'a> {
    args: &'a Args,
    /// Of the part in the launch's table.
    place: usize,
    part: Part,
    value_head: usize,
    thread: usize,
    warp: usize,
    shared: *mut Shared,
}

impl Work<'_> {
    /// The thread's place in its warp.
    #[inline(always)]
    fn lane(&self) -> usize {
        self.thread % 32
    }

    /// Waits for chunk prep, and for the scan before it.
    #[inline(always)]
    fn wait_for_prep(&self) {
        wait_for_last_launch();
        // What is launched next may write where the launch before this one has read: not before that has ended.
        let_next_launch_start();
    }

    /// Whether chunk prep has marked the head.
    ///
    /// # Safety
    /// All lanes are here, after [`Work::wait_for_prep`].
    #[inline(always)]
    unsafe fn is_marked(&self) -> bool {
        // SAFETY: by the caller.
        unsafe { Scratch::of(self.args).is_marked(&self.part, self.value_head, self.lane()) }
    }

    /// What the loaders do. Gives whether the part is left to the fallback.
    ///
    /// # Safety
    /// As [`run`], by all loaders.
    #[inline(always)]
    unsafe fn load(&self) -> bool {
        let args = self.args;
        let loader = self.thread % LOADERS;
        let block_column = block_idx_x() as usize * COLUMNS_PER_BLOCK;
        // SAFETY: there is such a part.
        let initial_state = unsafe { initial_state(args, self.place) };
        if !initial_state.as_ptr().is_null() {
            // The launch before may still write it, so that it cannot be read yet, but it can come near.
            let row = self.value_head * args.state_head_stride + loader * args.state_row_stride + block_column;
            for line in 0..COLUMNS_PER_BLOCK / 32 {
                // SAFETY: bounds: a row a loader.
                unsafe { prefetch(initial_state, row + 32 * line) };
            }
        }
        self.wait_for_prep();
        let chunks = self.part.chunks() as u32;
        if chunks == 0 {
            return false;
        }
        let key_head =
            key_head(self.value_head as u32, args.values_per_key, args.num_key_heads, args.head_map) as usize;
        let stages = self.shared.cast::<Stage>();
        let mut inputs = Inputs::of(args, &self.part, loader, stages, key_head, self.value_head, block_column);
        // SAFETY: nothing has been read yet.
        unsafe {
            inputs.stage();
            inputs.stage();
        }
        // SAFETY: all lanes are here, and all warps come to the same end.
        if unsafe { self.is_marked() } {
            wait_for_copies::<0>();
            return true;
        }
        for arriving in 0..=chunks {
            wait_for_copies::<1>();
            fence_shared();
            // SAFETY: both roles come as often. The tiles of the chunk two before the arriving one are left.
            unsafe {
                sync_roles::<ALL>();
                // First the warps that compute have the way to shared memory for themselves.
                sleep::<100>();
                inputs.stage();
                inputs.measure_v(arriving);
            }
        }
        wait_for_copies::<0>();
        // SAFETY: both roles come as often; after it all has been noted.
        unsafe {
            sync_roles::<ALL>();
            lost::is_noted(&raw mut (*self.shared).lost, self.lane())
        }
    }

    /// What the warpgroup that computes does. Gives whether the part is left to the fallback: then it has stored no state.
    ///
    /// # Safety
    /// As [`run`], by the whole warpgroup.
    #[inline(always)]
    unsafe fn compute(&self) -> bool {
        let (args, lane) = (self.args, self.lane());
        self.wait_for_prep();
        let mut s = [[0.0; 4]; ROW_OCTETS];
        // SAFETY: there is such a part.
        let initial_state = unsafe { initial_state(args, self.place) };
        if !initial_state.as_ptr().is_null() {
            let state = initial_state.offset(self.value_head * args.state_head_stride);
            for octet in 0..ROW_OCTETS {
                for i in 0..4 {
                    // SAFETY: bounds: row and column are the head's. Owner: this thread alone, to the end.
                    s[octet][i] = unsafe { state.at(state_index(args, self.thread, octet, i)) };
                }
            }
        }
        // SAFETY: all lanes are here, and all warps come to the same end.
        if unsafe { self.is_marked() } {
            return true;
        }
        let mut carried = Carried::of(s);
        if self.part.tokens > 0 {
            let column = block_idx_x() as usize * COLUMNS_PER_BLOCK + first_column(self.warp, lane);
            let out = self.value_head * args.out_head_stride + 2 * (lane % 4) * args.out_token_stride + column;
            let own = Lane { args, lane, warp: self.warp, shared: self.shared, out: self.part.out(args).offset(out) };
            // SAFETY: a field. Owner: a place a thread. Both roles come as often. The first chunk's tiles are complete.
            unsafe {
                // Below MATH for the compiler too: a branch to a trap, in front of products, has older assemblers serialise
                // them all.
                Tile::put(&raw mut (*self.shared).lost, self.thread % MATH, 0.0);
                sync_roles::<ALL>();
                own.start(&mut carried);
            }
            let (mut chunk, mut tokens) = (0, self.part.tokens);
            while tokens > 0 {
                // SAFETY: as above. The next chunk's tiles are complete.
                unsafe {
                    sync_roles::<ALL>();
                    own.chunk(chunk, tokens, &mut carried);
                }
                chunk += 1;
                tokens = tokens.saturating_sub(CHUNK as u32);
            }
            // SAFETY: both roles come as often; after it all has been noted. All lanes are here.
            unsafe {
                own.note_end(&carried);
                sync_roles::<ALL>();
                if lost::is_noted(&raw mut (*self.shared).lost, again(thread_idx_x()) as usize % 32) {
                    return true;
                }
            }
            carried.rescale();
        }
        // SAFETY: all lanes are here. There is such a part.
        let (final_state, value_head, thread) = unsafe {
            // Computed again, since none of them is to take a register all the way.
            let (place, value_head) = args.part_and_value_head(again(block_idx_y()));
            (final_state(args, place), value_head as usize, again(thread_idx_x()) as usize % MATH)
        };
        if !final_state.as_ptr().is_null() {
            let state = final_state.offset(value_head * args.state_head_stride);
            for octet in 0..ROW_OCTETS {
                for i in 0..4 {
                    // SAFETY: bounds: row and column are the head's. Owner: this thread alone has them.
                    unsafe { state.put(state_index(args, thread, octet, i), carried.s[octet][i]) };
                }
            }
        }
        false
    }
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
    // From the warp's first lane, so that the assembler knows it to be the same in all: products may not diverge.
    // SAFETY: all lanes are here.
    let warp = unsafe { warp_shuffle_idx(f32::from_bits((thread / 32) as u32), 0) }.to_bits() as usize % (THREADS / 32);
    let (place, value_head) = args.part_and_value_head(block_idx_y());
    // SAFETY: the grid has so many parts.
    let part = unsafe { Part::at(&args, place) };
    let shared = dynamic_shared_mem::<Shared>();
    let work = Work { args: &args, place, part, value_head: value_head as usize, thread, warp, shared };
    // SAFETY: by the caller; a warpgroup each.
    let is_left = unsafe { if warp >= MATH / 32 { work.load() } else { work.compute() } };
    if is_left {
        // SAFETY: by the caller; all threads are here, by 128 a tile of the block's columns. All lanes are here.
        unsafe {
            // Others may have read the state, which the final one may replace.
            sync_roles::<ALL>();
            let (place, value_head) = args.part_and_value_head(again(block_idx_y()));
            let thread = again(thread_idx_x()) as usize % THREADS;
            let tile = block_idx_x() as usize * TILES_PER_HALF + thread / chunk_fallback::THREADS;
            run_tile(&args, place, value_head, tile, thread % chunk_fallback::THREADS);
        }
    }
}

const _: () = assert!(ROW_STEPS == 8 && TOKEN_STEPS == 2 && TOKEN_OCTETS == 4 && LOADERS == HEAD_DIM);
const _: () = assert!(THREADS == TILES_PER_HALF * chunk_fallback::THREADS);
