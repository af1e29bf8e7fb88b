//! Chunked Gated DeltaNet on tensor cores, second kernel: carries the state through the chunks, for 64 columns of a value
//! head.
//!
//! # Math
//! [`super::chunk_tensor`], for every chunk in order, transposed: the rows of every product are value columns.
//! ```text
//!   project   y^T = v^T - (s^T k'^T) h        s^T q'^T              16 x 32 a warp, sums over 64 of the 128 rows
//!   solve     d'^T = y^T T^T                  o^T = .. + y^T P^T    16 x 32, sums over 32 tokens
//!   update    s^T <- e^(G_last) s^T + d'^T k'                       16 x 64 a warp, sums over 32 tokens
//! ```
//! # Threads: one block per (half of the columns, value head); 8 warps = 4 times 16 columns x 2 halves of the rows
//! What a product leaves in a lane's registers is what the next one takes from them. A warp keeps its rows of s, and makes y
//! and d' of half of the tokens; with its partner, which has the other rows of the same columns, it exchanges sums over rows
//! at the partner's tokens, and y and d' in 16 bits.
//! ```text
//!   lane = 4 column + pair      s[n][..] columns `column` and `column + 8` of rows 8 n + 2 pair and the next
//! ```
//! # Barriers and memory
//! Tiles are copied `AHEAD` chunks before their own, so that there is one more of the keys, which the chunk before already
//! reads:
//! ```text
//!   A  sums at keys, queries, T, P of this chunk are complete;   keys and v of the chunk `AHEAD` after it start
//!      own y, sums at queries
//!   Y  y is complete
//!      own d', outputs' sums
//!   B  d', sums at queries, the next chunk's keys and v          queries, T, P of the chunk `AHEAD` after this start
//!      are complete;
//!      outputs, state, its sums at the next chunk's keys
//! ```
//! # Range
//! Each column of s and of y is kept times a power of two of its own, exact, which puts a bound of it near the upper end of a
//! 16-bit float's range: y's from the largest v and the largest s, s's from its largest element and what the chunk can add.
//! Where y falls far below what it was, the state has lost bits that now matter, and the block gives up: see `lost`.
//!
//! # Rounding
//! Tensor cores round toward zero, so the small products come before the large ones, and the state itself is not
//! accumulated there: each chunk's part starts from zero.
pub(super) mod factors;
mod inputs;
pub(super) mod lost;
mod products;
pub(super) mod scales;

use super::chunk::{Args, CHUNK, again, chunk_kernel};
use super::chunk_parts::{Part, final_state, initial_state};
use super::chunk_tensor::{FACTORS, HEAD_FLOATS, KEY_MATRIX, OUT_FACTORS, Scratch, TOTAL_DECAY, for_each};
use crate::shape::{HEAD_DIM, key_head};
use cuda_std::async_copy::wait;
use cuda_std::float::fma;
use cuda_std::memory::Quad;
use cuda_std::shared::dynamic_shared_mem;
use cuda_std::thread::{block_idx_x, block_idx_y, sync_threads, thread_idx_below};
use cuda_std::{GlobalMut, Tile};
use factors::{Columns, Factor, Halves, Own, Pair, ROW_OCTETS, ROW_STEPS, State, TOKEN_STEPS, column_of, scaled};
use inputs::{Inputs, Tiles, next_place};
use products::{Rows, octet, own_d, own_outputs, project, update};
use scales::{Scale, have_lost, largest_finite_of, largest_of, scale_state};

/// Threads of a block.
pub const THREADS: usize = 256;
/// Columns of a value head that a block carries.
pub const COLUMNS_PER_BLOCK: usize = 64;
/// Columns that a warp carries, and rows.
const COLUMNS_PER_WARP: usize = 16;
const ROWS_PER_WARP: usize = HEAD_DIM / 2;
const WARPS: usize = THREADS / 32;
/// Groups of columns of a block: a warp's partner, which has the other rows, is so many warps away.
const BANDS: usize = COLUMNS_PER_BLOCK / COLUMNS_PER_WARP;

/// Blocks of a launch: parts of the columns, value heads of each of `parts` parts.
#[must_use]
pub const fn grid(num_value_heads: u32, parts: u32) -> [u32; 2] {
    [(HEAD_DIM / COLUMNS_PER_BLOCK) as u32, parts * num_value_heads]
}

/// From a token of v to the next in shared memory: what a warp reads together lies in different banks.
const V_STRIDE: usize = COLUMNS_PER_BLOCK + 4;

/// High and low parts of a chunk's keys, or of its queries.
type KeyTile = Tile<{ 2 * KEY_MATRIX }>;
type VTile = Tile<{ CHUNK * V_STRIDE }>;
/// A value head's part.
type HeadTile = Tile<HEAD_FLOATS>;

/// Shared memory of a block.                               written by          read by
#[repr(C, align(16))]
struct Shared<const AHEAD: usize, const AHEAD_AND_ONE: usize> {
    /// [chunk % (AHEAD + 1)] `key_piece`                     copies of all       project, update
    keys: [KeyTile; AHEAD_AND_ONE],
    /// [chunk % AHEAD][token][column]                        copies of all       y
    v: [VTile; AHEAD],
    /// [chunk % AHEAD] `key_piece`                           copies of all       project
    queries: [KeyTile; AHEAD],
    /// [chunk % AHEAD] `token_piece`: T, P; factors          copies of all       solve, factors
    head: [HeadTile; AHEAD],
    exchange: Exchange,
}

/// Two quads a lane: [index][lane].
type PairTile = Tile<{ 2 * 32 * 4 }>;

/// A band's chunk in 16 bits: [16 tokens][high, low part][lane]. What tensor cores take in four registers is read as a quad,
/// since a factor that is put together from parts is moved again and again.
type FactorTile = Tile<{ TOKEN_STEPS * 2 * 32 * 4 }>;

/// What warps leave their partners.                         written by          read by
#[repr(C, align(16))]
struct Exchange {
    /// [warp]: sums at keys, at queries, of the partner's     each warp           its partner
    /// octets
    at_keys: [PairTile; WARPS],
    at_queries: [PairTile; WARPS],
    /// [band]: y and d' in 16 bits, as factors               both its warps      both its warps
    y: [FactorTile; BANDS],
    d: [FactorTile; BANDS],
    /// [warp][lane / 4]: largest of two columns' s, v         each warp           its partner
    largest: [Tile<{ 8 * 4 }>; WARPS],
    /// [thread]: see `lost`                                  each thread         all
    lost: Tile<THREADS>,
}

/// Bytes of shared memory with tiles copied one chunk ahead, and two.
pub const SHARED_BYTES: [usize; 2] = [size_of::<Shared<1, 2>>(), size_of::<Shared<2, 3>>()];
const _: () = assert!(SHARED_BYTES[0] <= 99 * 1024, "more than the smallest cards of sm_86 have");

chunk_kernel! {
    kernel "chunk_scan_tensor", capability 80, blocks 1;
    entry gdn_chunk_scan_tensor = run::<1, 2>, threads THREADS, shared SHARED_BYTES[0];
    entry gdn_chunk_scan_tensor_ahead = run::<2, 3>, threads THREADS, shared SHARED_BYTES[1];
}

/// The thread's part of the problem.
struct Lane<'a> {
    args: &'a Args,
    lane: usize,
    warp: usize,
    partner: usize,
    half: usize,
    exchange: *mut Exchange,
}

impl Lane<'_> {
    /// The lane's element `i` of an octet of rows of the state, in its memory.
    #[inline(always)]
    fn state_index(&self, first_column: usize, octet: usize, i: usize) -> usize {
        let row = self.half * ROWS_PER_WARP + 8 * octet + 2 * (self.lane % 4) + i % 2;
        row * self.args.state_row_stride + first_column + self.lane / 4 + 8 * column_of(i)
    }

    /// Leaves the partner two quads.
    ///
    /// # Safety
    /// A barrier follows before the partner reads, one has passed since it did.
    #[inline(always)]
    unsafe fn give(&self, tiles: *mut [PairTile; WARPS], quads: [Quad; 2]) {
        let tile = tiles.cast::<PairTile>().wrapping_add(self.warp);
        // SAFETY: bounds: of eight warps, a quad a lane and index. Owner: this lane alone has them. Barrier: by the caller.
        unsafe {
            Tile::put_quad(tile, 4 * self.lane, quads[0]);
            Tile::put_quad(tile, 4 * (32 + self.lane), quads[1]);
        }
    }

    /// What the partner has given.
    ///
    /// # Safety
    /// A barrier has passed since.
    #[inline(always)]
    unsafe fn take(&self, tiles: *mut [PairTile; WARPS]) -> [Quad; 2] {
        let tile = tiles.cast::<PairTile>().wrapping_add(self.partner);
        // SAFETY: bounds: of eight warps, a quad a lane and index. Barrier: by the caller.
        [0, 1].map(|index| unsafe { Tile::quad(tile, 4 * (32 * index + self.lane)) })
    }

    /// Leaves the band the own octets of y or d'.
    ///
    /// # Safety
    /// As [`Lane::give`].
    #[inline(always)]
    unsafe fn give_factor(&self, tiles: *mut [FactorTile; BANDS], own: &Pair) {
        let tile = tiles.cast::<FactorTile>().wrapping_add(self.warp % BANDS);
        for_each!(STEP in [0 1] {
            let index = 4 * (64 * STEP + self.lane) + octet(self.half, STEP) % 2 * 2;
            let halves = |factor: &Factor| [f32::from_bits(factor[2 * STEP]), f32::from_bits(factor[2 * STEP + 1])];
            // SAFETY: bounds: of four bands. Owner: this lane alone has its columns of the octet. Barrier: by the caller.
            unsafe {
                Tile::put_pair(tile, index, halves(&own.high));
                Tile::put_pair(tile, index + 128, halves(&own.low));
            }
        });
    }

    /// y or d' of the band.
    ///
    /// # Safety
    /// As [`Lane::take`].
    #[inline(always)]
    unsafe fn take_factor(&self, tiles: *mut [FactorTile; BANDS]) -> Halves<TOKEN_STEPS> {
        let tile = tiles.cast::<FactorTile>().wrapping_add(self.warp % BANDS);
        let part = |part: usize| {
            [0, 1].map(|step| {
                // SAFETY: bounds: of four bands. Barrier: by the caller.
                unsafe { Tile::quad(tile, 4 * (32 * (2 * step + part) + self.lane)) }.map(f32::to_bits)
            })
        };
        Halves { high: part(0), low: part(1) }
    }

    /// Leaves the partner the largest elements of the warp's part of s, and of its own tokens' v.
    ///
    /// # Safety
    /// As [`Lane::give`].
    #[inline(always)]
    unsafe fn give_largest(&self, s: Columns<f32>, v: Columns<f32>) {
        if self.lane % 4 == 0 {
            // SAFETY: bounds: of eight warps. Owner: this lane alone has the columns. Barrier: by the caller.
            unsafe {
                let tile = &raw mut (*self.exchange).largest[self.warp];
                Tile::put_quad(tile, self.lane, [s[0], s[1], v[0], v[1]]);
            }
        }
    }

    /// The largest elements of the whole columns of s and v.
    ///
    /// # Safety
    /// A barrier has passed since the partner gave its part.
    #[inline(always)]
    unsafe fn whole_largest(&self, s: Columns<f32>, v: Columns<f32>) -> [Columns<f32>; 2] {
        // SAFETY: bounds: of eight warps. Barrier: by the caller.
        let other = unsafe { Tile::quad(&raw mut (*self.exchange).largest[self.partner], self.lane / 4 * 4) };
        [[s[0].max(other[0]), s[1].max(other[1])], [v[0].max(other[2]), v[1].max(other[3])]]
    }

    /// v of the own octets.
    ///
    /// # Safety
    /// v is complete.
    #[inline(always)]
    unsafe fn own_v(&self, v: *mut VTile) -> Own {
        let (column, pair) = (self.lane / 4, self.lane % 4);
        let first = 2 * pair * V_STRIDE + self.warp % BANDS * COLUMNS_PER_WARP + column;
        [0, 1].map(|index| {
            let first = first + 8 * octet(self.half, index) * V_STRIDE;
            // SAFETY: bounds: token < 32, columns below 64. Barrier: by the caller.
            [0, 1, 2, 3].map(|i| unsafe { Tile::at(v, first + i % 2 * V_STRIDE + 8 * column_of(i)) })
        })
    }

    /// h and f of the tokens of an own octet that the lane has.
    ///
    /// # Safety
    /// The value head's part is complete.
    #[inline(always)]
    unsafe fn factors(&self, head: *mut HeadTile, index: usize) -> Quad {
        // SAFETY: bounds: four octets of four pairs. Barrier: by the caller.
        unsafe { Tile::quad(head, FACTORS + 4 * (4 * octet(self.half, index) + self.lane % 4)) }
    }

    /// c of the same.
    ///
    /// # Safety
    /// As [`Lane::factors`].
    #[inline(always)]
    unsafe fn out_factors(&self, head: *mut HeadTile, index: usize) -> [f32; 2] {
        let at = OUT_FACTORS + 8 * octet(self.half, index) + 2 * (self.lane % 4);
        // SAFETY: bounds: four octets of four pairs. Barrier: by the caller.
        unsafe { [Tile::at(head, at), Tile::at(head, at + 1)] }
    }
}

/// The kernel.
///
/// # Safety
/// Called once by each of `THREADS` threads of each block of `grid()`, with `SHARED_BYTES[AHEAD - 1]` of shared memory, after
/// `chunk_prep_tensor` with the same arguments; every tensor holds what its shape and strides describe; v has 16-byte
/// aligned rows; out and the final state overlap no input but the initial state.
#[inline(always)]
pub unsafe fn run<const AHEAD: usize, const AHEAD_AND_ONE: usize>(args: Args) {
    let thread = thread_idx_below::<THREADS>();
    let (warp, lane) = (thread / 32, thread % 32);
    let half = warp / BANDS;
    let (place, value_head) = args.part_and_value_head(block_idx_y());
    let key_head = key_head(value_head, args.values_per_key, args.num_key_heads, args.head_map) as usize;
    let value_head = value_head as usize;
    let block_column = block_idx_x() as usize * COLUMNS_PER_BLOCK;
    let first_column = block_column + warp % BANDS * COLUMNS_PER_WARP;
    // SAFETY: the grid has so many parts.
    let sequence = unsafe { Part::at(&args, place) };
    // SAFETY: all lanes are here, and all warps come to the same end.
    if unsafe { Scratch::of(&args).is_marked(&sequence, value_head, lane) } {
        return;
    }
    let shared = dynamic_shared_mem::<Shared<AHEAD, AHEAD_AND_ONE>>();
    // SAFETY: fields.
    let (tiles, exchange) = unsafe { (Tiles::of(shared), &raw mut (*shared).exchange) };
    // SAFETY: fields.
    let ((to_keys, to_queries), (to_y, to_d)) = unsafe {
        let sums = (&raw mut (*exchange).at_keys, &raw mut (*exchange).at_queries);
        (sums, (&raw mut (*exchange).y, &raw mut (*exchange).d))
    };
    let part = Lane { args: &args, lane, warp, partner: (warp + BANDS) % WARPS, half, exchange };
    let mut inputs = Inputs::of(&args, &sequence, thread, tiles, key_head, value_head, block_column);
    for _ in 0..AHEAD {
        // SAFETY: nothing has been read yet.
        unsafe {
            inputs.stage_keys::<AHEAD, AHEAD_AND_ONE>();
            inputs.stage_queries::<AHEAD>();
        }
    }

    let mut s: State = [[0.0; 4]; ROW_OCTETS];
    // SAFETY: there is such a part.
    let initial_state = unsafe { initial_state(&args, place) };
    if !initial_state.as_ptr().is_null() {
        let state = initial_state.offset(value_head * args.state_head_stride);
        for octet in 0..ROW_OCTETS {
            for i in 0..4 {
                // SAFETY: bounds: row and column are the head's. Owner: this thread alone, to the end.
                s[octet][i] = unsafe { state.at(part.state_index(first_column, octet, i)) };
            }
        }
    }
    let mut tokens = sequence.tokens;
    if tokens > 0 {
        let rows = Rows::of(lane, half);
        // SAFETY: all lanes are here.
        let mut s_largest = unsafe { largest_of(&s) };
        // SAFETY: nobody has read anything yet. A field. Owner: a place a thread.
        unsafe {
            part.give_largest(s_largest, [0.0; 2]);
            Tile::put(&raw mut (*exchange).lost, thread, 0.0);
        }
        wait_for_all_but::<AHEAD>(1);
        // SAFETY: all threads are here. The first chunk's keys and v, and the largest elements, are complete.
        unsafe { sync_threads() };
        // SAFETY: complete by the barrier; all lanes are here.
        let (mut scales, mut v) = unsafe {
            let [whole, _] = part.whole_largest(s_largest, [0.0; 2]);
            s_largest = whole;
            (whole.map(Scale::of), part.own_v(tiles.v))
        };
        scale_state(&mut s, scales.map(Scale::factor));
        s_largest = [0, 1].map(|column| s_largest[column] * scales[column].factor());
        let mut halves = Halves::<ROW_STEPS>::of(&s);
        // SAFETY: complete by the barrier; all lanes are here.
        let (mut at_keys, mut v_largest) = unsafe { (project(tiles.keys, &rows, &halves), largest_finite_of(&v)) };
        // SAFETY: all threads are here. All have read the largest elements.
        unsafe { sync_threads() };
        // SAFETY: the barrier that follows is the first one of the chunk.
        unsafe {
            part.give(to_keys, [at_keys[2], at_keys[3]]);
            part.give_largest(s_largest, v_largest);
        }
        let out_index =
            value_head * args.out_head_stride + 2 * (lane % 4) * args.out_token_stride + first_column + lane / 4;
        let mut out: GlobalMut<f32> = sequence.out(&args).offset(out_index);
        // The chunk's places among the tiles.
        let (mut of_keys, mut of_queries) = (0u32, 0u32);
        while tokens > 0 {
            wait_for_all_but::<AHEAD>(0);
            // SAFETY: all threads run all chunks. A: sums at keys, queries and the value head's part are complete.
            unsafe { sync_threads() };
            // SAFETY: the last reads of the tiles lie before this barrier.
            unsafe { inputs.stage_keys::<AHEAD, AHEAD_AND_ONE>() };
            let (next_of_keys, next_of_queries) =
                (next_place::<AHEAD_AND_ONE>(of_keys), next_place::<AHEAD>(of_queries));
            let (keys, next_keys) =
                (tiles.keys.wrapping_add(of_keys as usize), tiles.keys.wrapping_add(next_of_keys as usize));
            let (queries, head) =
                (tiles.queries.wrapping_add(of_queries as usize), tiles.head.wrapping_add(of_queries as usize));

            // SAFETY: complete by barrier A; all lanes are here.
            let (columns, h_f, at_queries) = unsafe {
                let [s_largest, v_largest] = part.whole_largest(s_largest, v_largest);
                let [total_decay, early_sum, late_sum, _] = Tile::quad(head, TOTAL_DECAY);
                let [mut first, mut second] = scales;
                let t_sum = early_sum + late_sum;
                let columns = [
                    first.advance(s_largest[0], v_largest[0], total_decay, t_sum),
                    second.advance(s_largest[1], v_largest[1], total_decay, t_sum),
                ];
                scales = [first, second];
                let others = part.take(to_keys);
                let h_f = [0, 1].map(|index| part.factors(head, index));
                let mut y = scaled(v, columns.map(|column| column.y));
                for index in 0..2 {
                    for i in 0..4 {
                        let at_key = (at_keys[index][i] + others[index][i]) * columns[column_of(i)].s_to_y;
                        y[index][i] = fma(-h_f[index][i % 2], at_key, y[index][i]);
                    }
                }
                part.give_factor(to_y, &Pair::of(y));
                let at_queries = project(queries, &rows, &halves);
                part.give(to_queries, [at_queries[2], at_queries[3]]);
                (columns, h_f, [at_queries[0], at_queries[1]])
            };
            // SAFETY: all threads run all chunks. Y: y is complete.
            unsafe { sync_threads() };
            // SAFETY: complete by barriers A and Y; all lanes are here.
            let (own, c) = unsafe {
                let y = part.take_factor(to_y);
                part.give_factor(to_d, &Pair::of(scaled(own_d(head, &rows, &y), columns.map(|column| column.gain))));
                (own_outputs(head, &rows, &y), [0, 1].map(|index| part.out_factors(head, index)))
            };
            wait_for_all_but::<AHEAD>(0);
            // SAFETY: all threads run all chunks. B: d', sums at queries, the next chunk's keys and v are complete.
            unsafe { sync_threads() };
            // SAFETY: the last reads of the tiles lie before this barrier.
            unsafe { inputs.stage_queries::<AHEAD>() };

            // SAFETY: complete by the barriers; all lanes are here. After the last chunk there are no next keys, nor v, and
            // what they give is not used.
            unsafe {
                let d = part.take_factor(to_d);
                at_keys = update(keys, next_keys, &rows, columns.map(|column| column.decay), &d, &mut s, &mut halves);
                v = part.own_v(tiles.v.wrapping_add(next_of_queries as usize));
                (s_largest, v_largest) = (largest_of(&s), largest_finite_of(&v));
                // The partner has read the last ones before barriers Y and B.
                part.give(to_keys, [at_keys[2], at_keys[3]]);
                part.give_largest(s_largest, v_largest);
            }
            // SAFETY: complete by barrier B.
            let others = unsafe { part.take(to_queries) };
            for index in 0..2 {
                for i in 0..4 {
                    let (column, next) = (column_of(i), i % 2);
                    let at_query = (at_queries[index][i] + others[index][i]) * columns[column].s_to_y;
                    let value = fma(h_f[index][2 + next], at_query, own[index][i]) * columns[column].y_inverse();
                    let token = 8 * octet(half, index) + next;
                    let exists = token + 2 * (lane % 4) < tokens as usize;
                    // SAFETY: bounds: the token exists. Owner: this thread alone has (token, column).
                    unsafe {
                        out.put_if(exists, token * args.out_token_stride + 8 * column, value * c[index][next]);
                    }
                }
            }
            out = out.offset(CHUNK * args.out_token_stride);
            tokens = tokens.saturating_sub(CHUNK as u32);
            (of_keys, of_queries) = (next_of_keys, next_of_queries);
        }
        wait::<0>();
        // SAFETY: all threads are here. The last chunk's largest elements, then all notes, are complete. A field. The grid has
        // so many parts; all lanes are here.
        unsafe {
            sync_threads();
            let [s_largest, _] = part.whole_largest(s_largest, v_largest);
            lost::note(&raw mut (*exchange).lost, thread, have_lost(&scales, s_largest));
            sync_threads();
            let (place, value_head) = args.part_and_value_head(again(block_idx_y()));
            let (sequence, scratch) = (Part::at(&args, place), Scratch::of(&args));
            let half = block_idx_x() as usize;
            if lost::mark(&raw mut (*exchange).lost, thread, scratch, &sequence, value_head as usize, half) {
                return;
            }
        }
        scale_state(&mut s, scales.map(Scale::inverse));
    }

    // SAFETY: all lanes are here. There is such a part.
    let (final_state, value_head) = unsafe {
        // Computed again, since neither is to take a register all the way.
        let (place, value_head) = args.part_and_value_head(again(block_idx_y()));
        (final_state(&args, place), value_head as usize)
    };
    if !final_state.as_ptr().is_null() {
        let state = final_state.offset(value_head * args.state_head_stride);
        for octet in 0..ROW_OCTETS {
            for i in 0..4 {
                // SAFETY: bounds: row and column are the head's. Owner: this thread alone has them.
                unsafe { state.put(part.state_index(first_column, octet, i), s[octet][i]) };
            }
        }
    }
}

/// Waits for the groups of copies but for those of chunks further ahead, and `more`, which is 0 or 1.
#[inline(always)]
fn wait_for_all_but<const AHEAD: usize>(more: usize) {
    match 2 * (AHEAD - 1) + more {
        0 => wait::<0>(),
        1 => wait::<1>(),
        2 => wait::<2>(),
        _ => wait::<3>(),
    }
}

const _: () = assert!(2 * SHARED_BYTES.len() - 1 == 3, "every number of groups has a wait");
