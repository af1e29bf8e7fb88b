//! Chunked Gated DeltaNet on tensor cores, first kernel: all that a chunk's tokens have to do with each other, before the
//! state is known, as pairs of 16-bit floats; and the keys and queries as such pairs, as [`super::chunk_scan_tensor`] copies
//! them.
//!
//! # Math
//! [`super::chunk_tensor`]; both systems are solved as in [`super::chunk_prep`].
//! # Threads: one block per (key head, chunk); 256 threads
//! ```text
//!   split      half a warp a row of keys or queries, eight elements a lane, from memory to shared memory and the scratch
//!   gates      a warp a value head, a lane a token
//!   products   six warps a tile of 16 x 8 of k.k and of q.k each, and what they give A and Q of every value head
//!   solve      two warps a value head, for the last and the first 16 tokens, whose rows are half as long: a lane for each
//!              row of T or of P, in registers
//! ```
mod products;

use super::chunk::{Args, CHUNK, TOKEN_QUADS, again, chunk_kernel};
use super::chunk_head::{Head, decay_to_end, gates, solved_early_row, solved_row, sum_gates};
use super::chunk_parts;
use super::chunk_tensor::{
    FACTORS, KEY_MATRIX, LARGEST_ENTRY, OUT_FACTORS, P_SCALE, ROW, Scratch, T_SCALE, TOKEN_MATRIX, TOTAL_DECAY,
    key_piece, token_piece,
};
use crate::shape::{HEAD_DIM, MOST_VALUES_PER_KEY, value_head};
use cuda_std::Tile;
use cuda_std::float::{exp, split_f16x2};
use cuda_std::memory::Quad;
use cuda_std::shared::dynamic_shared_mem;
use cuda_std::thread::{block_idx_x, block_idx_y, sync_threads, thread_idx_below};
use cuda_std::warp::{sync_warp, warp_max, warp_shuffle_xor};
use products::{TILES, TilePlace};

/// Threads of a block.
pub const THREADS: usize = 256;
const WARPS: usize = THREADS / 32;

/// Blocks of a launch: key heads, chunks.
#[must_use]
pub const fn grid(tokens: usize, num_key_heads: u32) -> [u32; 2] {
    [num_key_heads, tokens.div_ceil(CHUNK) as u32]
}

/// Floats of a chunk's keys and queries.
const KEYS: usize = 4 * KEY_MATRIX;

/// What the value heads share.                             written by          read by
#[repr(C, align(16))]
struct Shared {
    /// `key_piece`: high, low parts of keys, of queries      split               products
    keys: Tile<KEYS>,
    /// [keys, queries][token]: 2^m, 2^n; NaN where a row     split               weigh, store
    /// does not fit
    scales: Tile<{ 2 * CHUNK }>,
    /// [token]: k.k                                          weigh               store
    squares: Tile<CHUNK>,
}

/// Shared memory of a block of `values` value heads.
pub const fn shared_bytes(values: usize) -> usize {
    size_of::<Shared>() + values * size_of::<Head>()
}

chunk_kernel! {
    kernel "chunk_prep_tensor", capability 80, blocks 2;
    entry gdn_chunk_prep_tensor_r1 = run::<1>, threads THREADS, shared shared_bytes(1);
    entry gdn_chunk_prep_tensor_r2 = run::<2>, threads THREADS, shared shared_bytes(2);
    entry gdn_chunk_prep_tensor_r3 = run::<3>, threads THREADS, shared shared_bytes(3);
    entry gdn_chunk_prep_tensor_r4 = run::<4>, threads THREADS, shared shared_bytes(4);
}

/// The longest a key may be, squared; the strongest a token may write; and the least: a little below 0.
const LONGEST_KEY: f32 = 3.0;
const STRONGEST: f32 = 2.001;
const WEAKEST: f32 = -0.01;
/// What a gate may be above 0.
const LARGEST_GATE: f32 = 1e-4;

/// What a gate may be below 0. Below it the state before is forgotten altogether, and not even the last bits of what comes after
/// may depend on it, as y's scale does.
const LEAST_GATE: f32 = -103.5;
/// The most that a row of W diag(beta) may be together. Identical keys, which nothing damps, reach 2 beta / (2 - beta), for beta
/// above 1: each token turns the state round, and what tensor cores round off stays. At 1.7 they reach 11, and errors stay
/// within the bars; at 1.8, 18, they were 3.8e-6 and 3.9e-6 after 130 tokens, at 1.9, 38, 9e-6 and 1.2e-5.
const MOST_ROW: f32 = 16.0;

/// 2^e of a row's scale and its inverse, from the bits of its largest magnitude, which brings that between 1/2 and 1. NaN
/// where a row has no such scale, or one that leads too far: keys below 2^-20.
#[inline(always)]
fn row_scale(largest: u32, is_query: bool) -> (f32, f32) {
    let exponent = largest >> 23;
    let (least, most) = if is_query { (27, 227) } else { (107, 147) };
    if largest == 0 {
        (1.0, 1.0)
    } else if exponent < least || exponent > most {
        (f32::NAN, f32::NAN)
    } else {
        (f32::from_bits((exponent + 1) << 23), f32::from_bits((253 - exponent) << 23))
    }
}

/// Eight values as two pieces.
#[inline(always)]
fn split_piece(values: &[f32; 8]) -> (Quad, Quad) {
    let (mut high, mut low) = ([0.0; 4], [0.0; 4]);
    for pair in 0..4 {
        let (first, second) = split_f16x2(values[2 * pair], values[2 * pair + 1]);
        (high[pair], low[pair]) = (f32::from_bits(first), f32::from_bits(second));
    }
    (high, low)
}

/// The thread's part of the problem.
struct Part<'a> {
    args: &'a Args,
    thread: usize,
    warp: usize,
    lane: usize,
    /// In the scratch, and among those of its sequence.
    chunk: usize,
    own_chunk: usize,
    /// Tokens of the chunk that exist.
    tokens: usize,
    key_head: usize,
    shared: *mut Shared,
}

/// Rows of keys and queries that half a warp takes.
const TURNS: usize = 2 * CHUNK / (THREADS / 16);

impl<'a> Part<'a> {
    #[inline(always)]
    fn of(args: &'a Args, first_chunk: usize, thread: usize) -> Self {
        let chunk = block_idx_y() as usize;
        let own_chunk = chunk - first_chunk;
        Self {
            args,
            thread,
            warp: thread / 32,
            lane: thread % 32,
            chunk,
            own_chunk,
            tokens: args.tokens_in(own_chunk),
            key_head: block_idx_x() as usize,
            shared: dynamic_shared_mem::<Shared>(),
        }
    }

    #[inline(always)]
    fn value_head(&self, value: usize) -> usize {
        let Args { values_per_key, num_key_heads, head_map, .. } = *self.args;
        value_head(self.key_head as u32, value as u32, values_per_key, num_key_heads, head_map) as usize
    }

    #[inline(always)]
    fn head(&self, value: usize) -> *mut Head {
        self.shared.wrapping_add(1).cast::<Head>().wrapping_add(value)
    }

    /// The token of keys or queries that half a warp has at `turn`, and whether it is a query.
    #[inline(always)]
    fn row(&self, turn: usize) -> (usize, bool) {
        (self.thread / 16 + turn % (TURNS / 2) * (THREADS / 16), turn >= TURNS / 2)
    }

    /// The lane's eight elements of a row; 0 past the end.
    ///
    /// # Safety
    /// `turn < TURNS`.
    #[inline(always)]
    unsafe fn load_row(&self, turn: usize) -> [Quad; 2] {
        let (token, is_query) = self.row(turn);
        let Args { q, q_token_stride, q_head_stride, k, k_token_stride, k_head_stride, .. } = *self.args;
        let (source, token_stride, head_stride) =
            if is_query { (q, q_token_stride, q_head_stride) } else { (k, k_token_stride, k_head_stride) };
        if token >= self.tokens {
            return [[0.0; 4]; 2];
        }
        let index = self.key_head * head_stride + (self.own_chunk * CHUNK + token) * token_stride + self.lane % 16 * 8;
        // SAFETY: bounds: the token exists, sixteen lanes have its row. Read only.
        unsafe { [source.quad(index), source.quad(index + 4)] }
    }

    /// Scales and splits a row, into shared memory and the scratch.
    ///
    /// # Safety
    /// All lanes of the warp are here; nobody reads keys and scales before a barrier; `turn < TURNS`.
    #[inline(always)]
    unsafe fn split_row(&self, turn: usize, row: &[Quad; 2]) {
        let (token, is_query) = self.row(turn);
        let (of, piece) = (usize::from(is_query), self.lane % 16);
        let mut values = [0.0; 8];
        // By their bits, so that what is not a number is the largest.
        let mut largest = 0;
        for i in 0..8 {
            values[i] = row[i / 4][i % 4];
            largest = largest.max(values[i].to_bits() & 0x7fff_ffff);
        }
        for bit in 0..4 {
            // SAFETY: all lanes are here.
            largest = largest.max(unsafe { warp_shuffle_xor(f32::from_bits(largest), 1 << bit) }.to_bits());
        }
        let (scale, inverse) = row_scale(largest, is_query);
        for i in 0..8 {
            values[i] *= inverse;
        }
        let (high, low) = split_piece(&values);
        let index = 2 * of * KEY_MATRIX + key_piece(token, piece);
        let scratch = Scratch::of(self.args).keys(self.chunk, self.key_head);
        // SAFETY: bounds: token < 32, piece < 16. Owner: this thread alone has (row, piece), lane 0 or 16 the row.
        // Barrier: by the caller.
        unsafe {
            let keys = &raw mut (*self.shared).keys;
            Tile::put_quad(keys, index, high);
            Tile::put_quad(keys, index + KEY_MATRIX, low);
            scratch.put_quad(index, high);
            scratch.put_quad(index + KEY_MATRIX, low);
            if piece == 0 {
                Tile::put(&raw mut (*self.shared).scales, of * CHUNK + token, scale);
            }
        }
    }

    /// Whether the state stays bounded by what a token does to it.
    ///
    /// # Safety
    /// Squares and sums are complete; `token < 32`.
    #[inline(always)]
    unsafe fn fits(&self, head: *mut Head, token: usize) -> bool {
        // SAFETY: bounds: a token a lane. Barrier: by the caller.
        unsafe {
            let k_k = Tile::at(&raw mut (*self.shared).squares, token);
            let beta = Tile::at(&raw mut (*head).beta, token);
            let mut gate = Tile::at(&raw mut (*head).high, token);
            if token > 0 {
                gate -= Tile::at(&raw mut (*head).high, token - 1);
            }
            // So that what is not a number does not fit.
            k_k <= LONGEST_KEY
                && beta <= STRONGEST
                && beta * k_k <= STRONGEST
                && beta >= WEAKEST
                && gate <= LARGEST_GATE
                && gate >= LEAST_GATE
        }
    }

    /// Solves for a row of T or P of one of 16 tokens a lane and writes it, with its token's factors and the warp's mark.
    ///
    /// # Safety
    /// A and Q are complete; all lanes of the warp are here.
    #[inline(always)]
    unsafe fn solve(&self, value: usize, is_late: bool) {
        let (is_p, head) = (self.lane / 16 == 1, self.head(value));
        let token = self.lane % 16 + if is_late { 16 } else { 0 };
        let row = Row { token, is_p, value_head: self.value_head(value), head };
        // SAFETY: by the caller.
        unsafe {
            if is_late {
                self.store(&row, &solved_row(head, token, is_p));
            } else {
                self.store(&row, &solved_early_row(head, token, is_p));
            }
        }
    }

    /// A row of T or of P, its token's factors, and the warp's mark, into the scratch.
    ///
    /// # Safety
    /// As [`Part::solve`].
    #[inline(always)]
    unsafe fn store<const QUADS: usize>(&self, row: &Row, x: &[Quad; QUADS]) {
        let &Row { token, is_p, value_head, head } = row;
        let scratch = Scratch::of(self.args);
        let out = scratch.head(self.chunk, value_head);
        // SAFETY: bounds: a token a lane, of two. Barrier: "A and Q complete".
        let (scale, decay) = unsafe {
            let scales = &raw mut (*self.shared).scales;
            (Tile::at(scales, usize::from(is_p) * CHUNK + token), exp(Tile::at(&raw mut (*head).high, token)))
        };
        // A power of two, whose inverse has the opposite exponent; what is not a number is marked.
        let inverse = f32::from_bits((254u32 << 23).wrapping_sub(scale.to_bits() & (0xff << 23)));
        // SAFETY: sums are complete.
        let to_end = unsafe { decay_to_end(head, token) };
        let factor = if is_p { P_SCALE * inverse } else { to_end * scale * T_SCALE };
        // SAFETY: squares and sums are complete.
        let mut fits = unsafe { self.fits(head, token) } && scale > 0.0;
        // Rows go to the scratch by way of where the keys were, so that a warp writes whole lines.
        // SAFETY: a field; bounds: a tile for each of eight warps.
        let rows: *mut Tile<ROWS_TILE> =
            unsafe { (&raw mut (*self.shared).keys).cast::<Tile<ROWS_TILE>>().wrapping_add(self.warp) };
        let row_in_tile = token % 16 + usize::from(is_p) * 16;
        let (mut sum, mut largest) = (0.0, 0.0f32);
        for piece in 0..QUADS / 2 {
            let mut values = [0.0; 8];
            for quad in 0..2 {
                // SAFETY: bounds: eight quads. Barrier: "A and Q complete".
                let beta = unsafe { Tile::quad(&raw mut (*head).beta, 8 * piece + 4 * quad) };
                for i in 0..4 {
                    let entry = x[2 * piece + quad][i] * beta[i] * factor;
                    largest = largest.max(entry.abs());
                    sum += entry.abs();
                    values[4 * quad + i] = entry;
                }
            }
            let (high, low) = split_piece(&values);
            // SAFETY: bounds: token < 32, piece < 4. Owner: this lane alone has the row. Barrier: below.
            unsafe {
                Tile::put_quad(rows, token_piece(row_in_tile, piece), high);
                Tile::put_quad(rows, token_piece(row_in_tile, 4 + piece), low);
            }
        }
        for piece in QUADS / 2..TOKEN_QUADS / 2 {
            // The first tokens have nothing of the last ones.
            // SAFETY: as above.
            unsafe {
                Tile::put_quad(rows, token_piece(row_in_tile, piece), [0.0; 4]);
                Tile::put_quad(rows, token_piece(row_in_tile, 4 + piece), [0.0; 4]);
            }
        }
        // SAFETY: all lanes are here.
        unsafe { sync_warp() };
        let first = token / 16 * (16 * ROW);
        for turn in 0..ROWS_TILE / 4 / 32 {
            let index = 4 * (32 * turn + self.lane);
            let matrix = index / (16 * ROW) * TOKEN_MATRIX;
            // SAFETY: bounds: sixteen rows of two matrices. Owner: this warp alone has them. Barrier: the warp's.
            unsafe { out.put_quad(matrix + first + index % (16 * ROW), Tile::quad(rows, index)) };
        }
        // The sum is not a number where an entry is not, though the largest may be.
        fits = fits && largest <= LARGEST_ENTRY && sum <= f32::MAX && (is_p || sum <= MOST_ROW * factor);
        for bit in 0..4 {
            // SAFETY: all lanes are here.
            sum += unsafe { warp_shuffle_xor(sum, 1 << bit) };
        }
        let is_late = usize::from(token >= CHUNK / 2);
        // SAFETY: bounds: a token a lane. Owner: this lane alone has (value head, matrix, token), the first one of a matrix
        // what there is one of. All lanes are here.
        unsafe {
            let factors = FACTORS + token / 2 * 4 + token % 2;
            if is_p {
                out.put(factors + 2, P_SCALE * decay);
                out.put(OUT_FACTORS + token, self.args.scale * (scale * (1.0 / P_SCALE)));
            } else {
                out.put(factors, decay * scale);
                if token == 0 {
                    // The whole quad, since the scan copies quads.
                    let total = exp(Tile::at(&raw mut (*head).high, CHUNK - 1));
                    out.put(TOTAL_DECAY, total);
                    out.put(TOTAL_DECAY + 3, 0.0);
                }
                if token % 16 == 0 {
                    out.put(TOTAL_DECAY + 1 + is_late, sum * (1.0 / T_SCALE));
                }
            }
            let marked = warp_max(u32::from(!fits));
            if self.lane == 0 {
                scratch.marks(self.chunk, value_head).put(is_late, marked as f32);
            }
        }
    }
}

/// Floats of sixteen rows of T and of P.
const ROWS_TILE: usize = 2 * 16 * ROW;
const _: () = assert!(WARPS * ROWS_TILE <= KEYS);

/// A row of T or P.
struct Row {
    token: usize,
    is_p: bool,
    value_head: usize,
    head: *mut Head,
}

/// The kernel.
///
/// # Safety
/// Called once by each of `THREADS` threads of each block of `grid()`, with `shared_bytes(VALUES)` of shared memory and
/// `chunk_tensor::scratch_len` floats of scratch; every tensor holds what its shape and strides describe; q and k have
/// 16-byte aligned rows.
#[inline(always)]
pub unsafe fn run<const VALUES: usize>(args: Args) {
    let thread = thread_idx_below::<THREADS>();
    // SAFETY: the grid has so many chunks; all lanes are here.
    let sequence = unsafe { chunk_parts::Part::of_chunk(&args, block_idx_y() as usize, thread % 32) };
    let (args, first_chunk) = (sequence.inputs(&args), sequence.first_chunk);
    let part = Part::of(&args, first_chunk, thread);
    // The last warps have no tile of the products.
    let value = WARPS - 1 - part.warp;
    // SAFETY: four turns. Nobody has read anything yet; all lanes are here. A warp has a value head or none.
    unsafe {
        // All loads are under way before the first is waited for.
        let token = part.own_chunk * CHUNK + part.lane;
        let gates = gates(&args, part.value_head(value), token, value < VALUES && part.lane < part.tokens);
        let keys = [0, 1].map(|turn| part.load_row(turn));
        let queries = [2, 3].map(|turn| part.load_row(turn));
        if value < VALUES {
            sum_gates(part.head(value), part.lane, gates);
        }
        for turn in 0..2 {
            part.split_row(turn, &keys[turn]);
        }
        for turn in 0..2 {
            part.split_row(2 + turn, &queries[turn]);
        }
    }
    // SAFETY: all threads are here. Keys, scales and sums of gates complete.
    unsafe { sync_threads() };
    // SAFETY: all lanes are here.
    let part = Part::of(&args, first_chunk, unsafe { again(part.thread as u32) } as usize % THREADS);
    if part.warp < TILES {
        let place = TilePlace::of(part.warp);
        // SAFETY: complete by the barrier; all lanes are here.
        unsafe {
            let products = part.products(place);
            part.weigh::<VALUES>(place, &products);
        }
    }
    // SAFETY: all threads are here. A, Q and squares complete, for store.
    unsafe { sync_threads() };
    // SAFETY: all lanes are here.
    let part = Part::of(&args, first_chunk, unsafe { again(part.thread as u32) } as usize % THREADS);
    if part.warp < 2 * VALUES {
        // SAFETY: complete by the barrier; all lanes are here. The last tokens' warps, which take longest, are apart.
        unsafe { part.solve(part.warp % VALUES, part.warp < VALUES) };
    }
}

const _: () = assert!(HEAD_DIM == 8 * 16 && 2 * MOST_VALUES_PER_KEY <= WARPS && TILES <= WARPS && TURNS == 4);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_scaled_to_about_1_or_does_not_fit() {
        for value in [1e-20f32, 2e-6, 0.09, 0.999, 1.0, 3.0, 1e5] {
            let (scale, inverse) = row_scale(value.to_bits(), true);
            assert!((0.5..1.0).contains(&(value * inverse)) && scale * inverse == 1.0, "{value}");
        }
        assert_eq!(row_scale(0, false), (1.0, 1.0));
        for value in [1e-7f32, 1e7, f32::INFINITY, f32::NAN] {
            assert!(row_scale(value.to_bits(), false).0.is_nan());
        }
    }
}
