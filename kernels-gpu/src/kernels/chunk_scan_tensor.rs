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
//! What a product leaves in a lane's registers is what the next one takes from them: s, y and d' never leave the warp. Only
//! the two halves' sums over rows are exchanged: at keys, whole, since both need y; at queries by octets of tokens, of which
//! each half writes two. Two warps a scheduler, each of whose products wait for the ones before, fill each other's waits.
//! ```text
//!   lane = 4 column + pair      s[n][..] columns `column` and `column + 8` of rows 8 n + 2 pair and the next
//! ```
//! # Barriers and memory
//! Two barriers a chunk. Tiles are copied `AHEAD` chunks before their own, so that there are one more of those that the
//! chunk before already reads:
//! ```text
//!   A  sums at keys, queries, T, P of this chunk are complete;   keys and v of the chunk `AHEAD` after it start
//!      y, queries, d', outputs' sums
//!   B  the next chunk's keys and v are complete;                 queries, T, P of the chunk `AHEAD` after this start
//!      outputs, state, its sums at the next chunk's keys
//! ```
//! A copy takes about as long as a chunk, so two chunks ahead are faster where a block may have that much shared memory.
//! # Range
//! Each column of s and of y is kept times a power of two of its own, exact, which brings its largest element near the upper
//! end of a 16-bit float's range: y's from its elements, s's from its largest element before the chunk and what the chunk
//! can add at most.
//!
//! # Rounding
//! Tensor cores round toward zero, so the small products are added up apart from the large ones, and the state itself is
//! not accumulated there: each chunk's part starts from zero.
mod factors;
mod inputs;
mod products;
mod scales;

use super::chunk::{Args, CHUNK, chunk_kernel};
use super::chunk_tensor::{FACTORS, HEAD_FLOATS, KEY_MATRIX, OUT_FACTORS, Scratch, TOTAL_DECAY};
use crate::shape::{HEAD_DIM, key_head};
use cuda_std::async_copy::wait;
use cuda_std::float::{fma, power_of_two};
use cuda_std::memory::Quad;
use cuda_std::shared::dynamic_shared_mem;
use cuda_std::thread::{block_idx_x, block_idx_y, sync_threads, thread_idx_below};
use cuda_std::{GlobalMut, Tile};
use factors::{Columns, Halves, ROW_OCTETS, State, Sums, TOKEN_OCTETS, column_of, totals};
use inputs::{Inputs, Tiles, next_place};
use products::{Rows, own_outputs, project, solve, update};
use scales::{Scale, largest_of, scale_state, scale_tokens};

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

/// Blocks of a launch: parts of the columns, value heads.
#[must_use]
pub const fn grid(num_value_heads: u32) -> [u32; 2] {
    [(HEAD_DIM / COLUMNS_PER_BLOCK) as u32, num_value_heads]
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
    /// [chunk % (AHEAD + 1)][token][column]                  copies of all       y
    v: [VTile; AHEAD_AND_ONE],
    /// [chunk % AHEAD] `key_piece`                           copies of all       project
    queries: [KeyTile; AHEAD],
    /// [chunk % AHEAD] `token_piece`: T, P; factors          copies of all       solve, factors
    head: [HeadTile; AHEAD],
    exchange: Exchange,
}

/// What warps leave their partners.                         written by          read by
#[repr(C, align(16))]
struct Exchange {
    /// [warp][octet of tokens][lane]: sums at keys           each warp           its partner
    at_keys: [Tile<{ TOKEN_OCTETS * 32 * 4 }>; WARPS],
    /// [warp][partner's octet of tokens][lane]: at queries   each warp           its partner
    at_queries: [Tile<{ 2 * 32 * 4 }>; WARPS],
    /// [warp][lane / 4][2]: largest elements of columns      each warp           its partner
    largest: [Tile<COLUMNS_PER_WARP>; WARPS],
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
struct Part<'a> {
    args: &'a Args,
    lane: usize,
    warp: usize,
    partner: usize,
    half: usize,
    exchange: *mut Exchange,
}

impl Part<'_> {
    /// The lane's element `i` of an octet of rows of the state, in its memory.
    #[inline(always)]
    fn state_index(&self, first_column: usize, octet: usize, i: usize) -> usize {
        let row = self.half * ROWS_PER_WARP + 8 * octet + 2 * (self.lane % 4) + i % 2;
        row * self.args.state_row_stride + first_column + self.lane / 4 + 8 * column_of(i)
    }

    /// Leaves the partner the largest elements of the warp's columns.
    ///
    /// # Safety
    /// A barrier follows before the partner reads, one has passed since it did.
    #[inline(always)]
    unsafe fn give_largest(&self, largest: Columns<f32>) {
        if self.lane % 4 == 0 {
            // SAFETY: bounds: of eight warps. Owner: this lane alone has the columns. Barrier: by the caller.
            unsafe {
                let tile = &raw mut (*self.exchange).largest[self.warp];
                Tile::put(tile, self.lane / 4 * 2, largest[0]);
                Tile::put(tile, self.lane / 4 * 2 + 1, largest[1]);
            }
        }
    }

    /// The largest elements of the whole columns.
    ///
    /// # Safety
    /// A barrier has passed since the partner gave its part.
    #[inline(always)]
    unsafe fn whole_largest(&self, own: Columns<f32>) -> Columns<f32> {
        // SAFETY: bounds: of eight warps. Barrier: by the caller.
        unsafe {
            let tile = &raw mut (*self.exchange).largest[self.partner];
            [0, 1].map(|column| own[column].max(Tile::at(tile, self.lane / 4 * 2 + column)))
        }
    }

    /// Leaves the partner the sums at keys over the warp's rows.
    ///
    /// # Safety
    /// As [`Part::give_largest`].
    #[inline(always)]
    unsafe fn give_at_keys(&self, sums: &[Sums; TOKEN_OCTETS]) {
        for octet in 0..TOKEN_OCTETS {
            // SAFETY: as there; a quad a lane and octet.
            unsafe {
                let tile = &raw mut (*self.exchange).at_keys[self.warp];
                Tile::put_quad(tile, 4 * (32 * octet + self.lane), sums[octet]);
            }
        }
    }

    /// y: v less what the state gives at keys.
    ///
    /// # Safety
    /// v and the value head's part are complete, and the partner's sums.
    #[inline(always)]
    unsafe fn y(
        &self,
        v: *mut VTile,
        head: *mut HeadTile,
        own: &[Sums; TOKEN_OCTETS],
        inverse: Columns<f32>,
    ) -> [Sums; TOKEN_OCTETS] {
        let (column, pair) = (self.lane / 4, self.lane % 4);
        let first = 2 * pair * V_STRIDE + self.warp % BANDS * COLUMNS_PER_WARP + column;
        let mut y = [[0.0; 4]; TOKEN_OCTETS];
        for octet in 0..TOKEN_OCTETS {
            // SAFETY: bounds: four octets of four pairs, of eight warps. Barrier: by the caller.
            let (factors, other): (Quad, Quad) = unsafe {
                let other = &raw mut (*self.exchange).at_keys[self.partner];
                (Tile::quad(head, FACTORS + 4 * (4 * octet + pair)), Tile::quad(other, 4 * (32 * octet + self.lane)))
            };
            for i in 0..4 {
                let at_key = (own[octet][i] + other[i]) * inverse[column_of(i)];
                // SAFETY: bounds: token < 32, columns below 64. Barrier: by the caller.
                let v = unsafe { Tile::at(v, first + (8 * octet + i % 2) * V_STRIDE + 8 * column_of(i)) };
                y[octet][i] = fma(-factors[i % 2], at_key, v);
            }
        }
        y
    }

    /// Leaves the partner the sums at those queries whose output it writes.
    ///
    /// # Safety
    /// As [`Part::give_largest`].
    #[inline(always)]
    unsafe fn give_at_queries(&self, sums: [Sums; 2]) {
        for index in 0..2 {
            // SAFETY: as there; a quad a lane and octet.
            unsafe {
                let tile = &raw mut (*self.exchange).at_queries[self.warp];
                Tile::put_quad(tile, 4 * (32 * index + self.lane), sums[index]);
            }
        }
    }

    /// f and c of the tokens of the warp's own octet `index` that the lane has.
    ///
    /// # Safety
    /// The value head's part is complete.
    #[inline(always)]
    unsafe fn out_factors(&self, head: *mut HeadTile, index: usize) -> Quad {
        let (octet, pair) = (Rows::octet(self.half, index), self.lane % 4);
        // SAFETY: bounds: four octets of four pairs. Barrier: by the caller.
        unsafe {
            let factors = Tile::quad(head, FACTORS + 4 * (4 * octet + pair));
            let at = OUT_FACTORS + 8 * octet + 2 * pair;
            [factors[2], factors[3], Tile::at(head, at), Tile::at(head, at + 1)]
        }
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
    let value_head = block_idx_y();
    let key_head = key_head(value_head, args.values_per_key, args.num_key_heads, args.head_map) as usize;
    let value_head = value_head as usize;
    let block_column = block_idx_x() as usize * COLUMNS_PER_BLOCK;
    let first_column = block_column + warp % BANDS * COLUMNS_PER_WARP;
    // SAFETY: all lanes are here, and all warps come to the same end.
    if unsafe { Scratch::of(&args).is_marked(value_head, lane) } {
        return;
    }
    let shared = dynamic_shared_mem::<Shared<AHEAD, AHEAD_AND_ONE>>();
    // SAFETY: fields.
    let (tiles, exchange) = unsafe { (Tiles::of(shared), &raw mut (*shared).exchange) };
    let part = Part { args: &args, lane, warp, partner: (warp + BANDS) % WARPS, half, exchange };
    let mut inputs = Inputs::of(&args, thread, tiles, key_head, value_head, block_column);
    for _ in 0..AHEAD {
        // SAFETY: nothing has been read yet.
        unsafe {
            inputs.stage_keys::<AHEAD_AND_ONE>();
            inputs.stage_queries::<AHEAD>();
        }
    }

    let mut s: State = [[0.0; 4]; ROW_OCTETS];
    if !args.initial_state.as_ptr().is_null() {
        let state = args.initial_state.offset(value_head * args.state_head_stride);
        for octet in 0..ROW_OCTETS {
            for i in 0..4 {
                // SAFETY: bounds: row and column are the head's. Owner: this thread alone, to the end.
                s[octet][i] = unsafe { state.at(part.state_index(first_column, octet, i)) };
            }
        }
    }
    // SAFETY: all lanes are here; the barrier follows.
    let own_largest = unsafe { largest_of(&s) };
    // SAFETY: nobody has read anything yet.
    unsafe { part.give_largest(own_largest) };
    wait_for_all_but::<AHEAD>(1);
    // SAFETY: all threads are here. The first chunk's keys and v, and the largest elements, are complete.
    unsafe { sync_threads() };
    // SAFETY: complete by the barrier.
    let mut scales = unsafe { part.whole_largest(own_largest) }.map(Scale::of);
    scale_state(&mut s, scales.map(|scale| scale.factor()));
    let mut halves = Halves::of(&s);
    let rows = Rows::of(lane, half);
    let mut own_largest = scales.map(|scale| scale.largest);
    let mut at_keys = [[0.0; 4]; TOKEN_OCTETS];
    if args.tokens > 0 {
        // SAFETY: complete by the barrier; all lanes are here.
        at_keys = totals(&unsafe { project(tiles.keys, rows.keys, &rows, &halves) });
        // SAFETY: all threads are here. All have read the largest elements.
        unsafe { sync_threads() };
        // SAFETY: the barrier that follows is the first one of the chunk.
        unsafe {
            part.give_at_keys(&at_keys);
            part.give_largest(own_largest);
        }
    }
    let out_index =
        value_head * args.out_head_stride + 2 * (lane % 4) * args.out_token_stride + first_column + lane / 4;
    let mut out: GlobalMut<f32> = args.out.offset(out_index);
    let mut tokens = args.tokens;
    // The chunk's places among the tiles.
    let (mut of_keys, mut of_queries) = (0, 0);
    while tokens > 0 {
        wait_for_all_but::<AHEAD>(0);
        // SAFETY: all threads run all chunks. A: sums at keys, queries and the value head's part are complete.
        unsafe { sync_threads() };
        // SAFETY: the last reads of the tiles lie before this barrier.
        unsafe { inputs.stage_keys::<AHEAD_AND_ONE>() };
        let next_of_keys = next_place::<AHEAD_AND_ONE>(of_keys);
        let (keys, next_keys) = (tiles.keys.wrapping_add(of_keys), tiles.keys.wrapping_add(next_of_keys));
        let (queries, head) = (tiles.queries.wrapping_add(of_queries), tiles.head.wrapping_add(of_queries));

        // SAFETY: complete by barrier A; all lanes are here.
        let (y_halves, y_inverse, s_inverse, decay, gain) = unsafe {
            let largest = part.whole_largest(own_largest);
            (scales[0].largest, scales[1].largest) = (largest[0], largest[1]);
            let s_inverse = scales.map(|scale| scale.inverse());
            let mut y = part.y(tiles.v.wrapping_add(of_keys), head, &at_keys, s_inverse);
            let [total_decay, early_sum, late_sum] = [0, 1, 2].map(|i| Tile::at(head, TOTAL_DECAY + i));
            let largest_y = largest_of(&y);
            let [mut first, mut second] = scales;
            let t_sum = early_sum + late_sum;
            let changes =
                [first.advance(largest_y[0], total_decay, t_sum), second.advance(largest_y[1], total_decay, t_sum)];
            scales = [first, second];
            scale_tokens(&mut y, changes.map(|change| power_of_two(change.y_exponent)));
            let y_inverse = changes.map(|change| power_of_two(-change.y_exponent));
            let (decay, gain) = (changes.map(|change| change.decay), changes.map(|change| change.gain));
            (Halves::of_tokens(&y), y_inverse, s_inverse, decay, gain)
        };
        // SAFETY: as above.
        let (d_halves, at_queries, own, factors) = unsafe {
            let sums = project(queries, rows.queries, &rows, &halves);
            let mut d = totals(&solve(head, &rows, &y_halves));
            scale_tokens(&mut d, gain);
            let own = totals(&own_outputs(head, &rows, &y_halves));
            let at_queries = totals(&sums);
            part.give_at_queries([at_queries[2], at_queries[3]]);
            let factors = [0, 1].map(|index| part.out_factors(head, index));
            (Halves::of_tokens(&d), [at_queries[0], at_queries[1]], own, factors)
        };
        wait_for_all_but::<AHEAD>(0);
        // SAFETY: all threads run all chunks. B: sums at queries, the next chunk's keys and v are complete.
        unsafe { sync_threads() };
        // SAFETY: the last reads of the tiles lie before this barrier.
        unsafe { inputs.stage_queries::<AHEAD>() };

        for index in 0..2 {
            // SAFETY: bounds: of eight warps, a quad a lane and octet. Barrier: B.
            let other: Quad =
                unsafe { Tile::quad(&raw mut (*exchange).at_queries[part.partner], 4 * (32 * index + lane)) };
            let octet = Rows::octet(half, index);
            for i in 0..4 {
                let (column, next) = (column_of(i), i % 2);
                let at_query = (at_queries[index][i] + other[i]) * s_inverse[column];
                let value = fma(factors[index][next], at_query, own[index][i] * y_inverse[column]);
                let token = 8 * octet + next;
                let exists = token + 2 * (lane % 4) < tokens as usize;
                let value = value * factors[index][2 + next];
                // SAFETY: bounds: the token exists. Owner: this thread alone has (token, column).
                unsafe { out.put_if(exists, token * args.out_token_stride + 8 * column, value) };
            }
        }
        // SAFETY: complete by the barriers; all lanes are here. After the last chunk there are no next keys, and what they
        // give is not used.
        unsafe {
            at_keys = totals(&update(keys, next_keys, &rows, decay, &d_halves, &mut s, &mut halves));
            own_largest = largest_of(&s);
            // The partner has read the last ones before barrier B.
            part.give_at_keys(&at_keys);
            part.give_largest(own_largest);
        }
        out = out.offset(CHUNK * args.out_token_stride);
        tokens = tokens.saturating_sub(CHUNK as u32);
        (of_keys, of_queries) = (next_of_keys, next_place::<AHEAD>(of_queries));
    }
    wait::<0>();

    if !args.final_state.as_ptr().is_null() {
        let state = args.final_state.offset(value_head * args.state_head_stride);
        scale_state(&mut s, scales.map(|scale| scale.inverse()));
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
