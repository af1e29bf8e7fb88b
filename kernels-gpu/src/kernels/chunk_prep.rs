//! Chunked Gated DeltaNet, first kernel: all that a chunk's tokens have to do with each other, before the state is known.
//!
//! # Math
//! [`super::chunk`], for every chunk and value head by itself. With A and Q as there, both matrices solve a triangular
//! system from the right, a row at a time, which needs no inverse and loses nothing where keys repeat:
//! ```text
//!   W (I + A) = I       x_i = e_ti - sum over j > i of x_j A_ji        for i from t down to 0
//!   X (I + A) = Q       x_i = Q_ti - sum over j > i of x_j A_ji        X = Q W
//! ```
//! # Threads: one block per (chunk, key head); 288 threads = 36 blocks of a triangle x 8
//! ```text
//!   products   a block of 4 x 4 of k.k and q.k: eight lanes take a part of the 128 rows each, then exchange
//!   weigh      two teams of 144, one 4 entries wide row of a block a thread, alternating value heads
//!   solve      a warp for each of the two systems of a value head, a lane for each row of the unknown, in registers
//! ```
//! # Why it is shaped so
//! A launch has few blocks a multiprocessor, so what counts is how long a block waits for itself: there are three barriers,
//! and the substitution, a chain of 31 steps, takes all of a row's sums along at once.
mod products;

use super::chunk::{
    Args, BLOCKS, CHUNK, DECAY, P, T_INV, TOKEN_QUADS, TOTAL_DECAY, TRIANGLE, again, chunk_kernel, key_index,
    triangle_index,
};
use super::chunk_head::{Head, decay_to_end, gates, solved_row, sum_gates};
use crate::shape::{HEAD_DIM, MOST_VALUES_PER_KEY, value_head};
use cuda_std::Tile;
use cuda_std::async_copy::{commit, copy_16, wait};
use cuda_std::float::exp;
use cuda_std::shared::dynamic_shared_mem;
use cuda_std::thread::{block_idx_x, block_idx_y, sync_threads, thread_idx_below};
use cuda_std::warp::warp_shuffle_idx;

/// Threads of a block.
pub const THREADS: usize = BLOCKS * PARTS;
/// Lanes that share a block of the products.
const PARTS: usize = 8;
/// Teams that weigh, a quad a thread.
const TEAMS: usize = THREADS / (TRIANGLE / 4);

/// Blocks of a launch: chunks, key heads.
#[must_use]
pub const fn grid(tokens: usize, num_key_heads: u32) -> [u32; 2] {
    [tokens.div_ceil(CHUNK) as u32, num_key_heads]
}

/// What the value heads share.                            written by          read by
#[repr(C, align(16))]
struct Keys {
    /// `key_index`: keys, queries                         copies of all       products
    rows: [Tile<{ CHUNK * HEAD_DIM }>; 2],
    /// `triangle_index`: k.k, q.k                         products            weigh
    products: [Tile<TRIANGLE>; 2],
}

/// Shared memory of a block of `values` value heads.
pub const fn shared_bytes(values: usize) -> usize {
    size_of::<Keys>() + values * size_of::<Head>()
}

chunk_kernel! {
    kernel "chunk_prep", capability 80, blocks 2;
    entry gdn_chunk_prep_r1 = run::<1>, threads THREADS, shared shared_bytes(1);
    entry gdn_chunk_prep_r2 = run::<2>, threads THREADS, shared shared_bytes(2);
    entry gdn_chunk_prep_r3 = run::<3>, threads THREADS, shared shared_bytes(3);
    entry gdn_chunk_prep_r4 = run::<4>, threads THREADS, shared shared_bytes(4);
}

/// The group of tokens and of earlier tokens of a triangle's block.
#[inline(always)]
fn place_of(block: usize) -> (usize, usize) {
    let (block, mut token_quad) = (block as u32, 0);
    for quad in 1..TOKEN_QUADS as u32 {
        if block >= quad * (quad + 1) / 2 {
            token_quad = quad;
        }
    }
    let earlier_quad = block - token_quad * (token_quad + 1) / 2;
    (token_quad as usize, earlier_quad as usize % TOKEN_QUADS)
}

/// The thread's part of the problem.
struct Part<'a> {
    args: &'a Args,
    thread: usize,
    warp: usize,
    lane: usize,
    chunk: usize,
    /// Tokens of the chunk that exist.
    tokens: usize,
    key_head: usize,
    keys: *mut Keys,
}

impl<'a> Part<'a> {
    #[inline(always)]
    fn of(args: &'a Args, thread: usize) -> Self {
        let chunk = block_idx_x() as usize;
        Self {
            args,
            thread,
            warp: thread / 32,
            lane: thread % 32,
            chunk,
            tokens: args.tokens_in(chunk),
            key_head: block_idx_y() as usize,
            keys: dynamic_shared_mem::<Keys>(),
        }
    }

    #[inline(always)]
    fn value_head(&self, value: usize) -> usize {
        let Args { values_per_key, num_key_heads, head_map, .. } = *self.args;
        value_head(self.key_head as u32, value as u32, values_per_key, num_key_heads, head_map) as usize
    }

    #[inline(always)]
    fn head(&self, value: usize) -> *mut Head {
        self.keys.wrapping_add(1).cast::<Head>().wrapping_add(value)
    }

    /// Starts the copies of keys and queries; rows of tokens past the end become zero.
    ///
    /// # Safety
    /// Nobody reads them before a wait and a barrier.
    #[inline(always)]
    unsafe fn stage_keys(&self) {
        let Args { k, q, .. } = *self.args;
        let first = self.chunk * CHUNK;
        let sources = [
            (k.offset(self.key_head * self.args.k_head_stride), self.args.k_token_stride),
            (q.offset(self.key_head * self.args.q_head_stride), self.args.q_token_stride),
        ];
        for (of, (source, stride)) in sources.into_iter().enumerate() {
            // SAFETY: of two tiles.
            let tile = unsafe { &raw mut (*self.keys).rows[of] };
            for turn in 0..CHUNK.div_ceil(THREADS / 32) {
                let token = self.warp + turn * (THREADS / 32);
                let index = key_index(token, self.lane);
                if token < self.tokens {
                    // SAFETY: bounds: the token exists, lane < 32 quads. Owner: one (token, quad) a thread. Barrier: by
                    // the caller.
                    unsafe { copy_16(tile, index, source, (first + token) * stride + 4 * self.lane) };
                } else if token < CHUNK {
                    // SAFETY: as above.
                    unsafe { Tile::put_quad(tile, index, [0.0; 4]) };
                }
            }
        }
        commit();
    }

    /// A value head's decays, a token a lane, into the scratch.
    ///
    /// # Safety
    /// All lanes of the warp are here, and no other warp for this head; `gate_sum` is from `sum_gates`.
    #[inline(always)]
    unsafe fn store_decays(&self, value: usize, gate_sum: f32) {
        let token = self.lane;
        // SAFETY: all lanes are here.
        let total = unsafe { warp_shuffle_idx(gate_sum, CHUNK as u32 - 1) };
        let scratch = self.args.scratch_of(self.chunk, self.value_head(value));
        // SAFETY: bounds: a token a lane. Owner: this lane alone has (value head, token), lane 0 the total.
        unsafe {
            scratch.put(DECAY + token, exp(gate_sum));
            if token == 0 {
                scratch.put(TOTAL_DECAY, exp(total));
            }
        }
    }

    /// Four entries of a row of A and of Q, for every value head of the thread's team.
    ///
    /// # Safety
    /// Products and sums are complete; nobody reads A and Q before a barrier.
    #[inline(always)]
    unsafe fn weigh<const VALUES: usize>(&self) {
        let (team, quad) = (self.thread / (TRIANGLE / 4), self.thread % (TRIANGLE / 4));
        let (token_quad, earlier_quad) = place_of(quad / 4);
        let token = token_quad * 4 + quad % 4;
        let index = 4 * quad;
        // SAFETY: bounds: quad < 144. Barrier: "products complete".
        let [k_k, q_k] = [0, 1].map(|of| unsafe { Tile::quad(&raw mut (*self.keys).products[of], index) });
        for turn in 0..VALUES.div_ceil(TEAMS) {
            let value = team + TEAMS * turn;
            if value < VALUES {
                let head = self.head(value);
                // SAFETY: bounds: token < 32, earlier_quad < 8. Barrier: "products complete".
                let (high, low, beta, highs, lows) = unsafe {
                    (
                        Tile::at(&raw mut (*head).high, token),
                        Tile::at(&raw mut (*head).low, token),
                        Tile::at(&raw mut (*head).beta, token),
                        Tile::quad(&raw mut (*head).high, 4 * earlier_quad),
                        Tile::quad(&raw mut (*head).low, 4 * earlier_quad),
                    )
                };
                let (mut minus_a, mut q) = ([0.0; 4], [0.0; 4]);
                for i in 0..4 {
                    let earlier = 4 * earlier_quad + i;
                    // Later tokens are left out before the exponential: theirs would be infinite.
                    let decay = exp(if earlier <= token { (high - highs[i]) + (low - lows[i]) } else { 0.0 });
                    minus_a[i] = if earlier < token { -(beta * (decay * k_k[i])) } else { 0.0 };
                    q[i] = if earlier <= token { decay * q_k[i] } else { 0.0 };
                }
                // SAFETY: bounds: quad < 144. Owner: this thread alone has (value head, quad). Barrier: by the caller.
                unsafe {
                    Tile::put_quad(&raw mut (*head).minus_a, index, minus_a);
                    Tile::put_quad(&raw mut (*head).q, index, q);
                }
            }
        }
    }

    /// A row of t_inv or of p, into the scratch.
    ///
    /// # Safety
    /// A and Q are complete.
    #[inline(always)]
    unsafe fn solve(&self, value: usize, is_p: bool) {
        let (token, head) = (self.lane, self.head(value));
        // SAFETY: by the caller.
        let (x, row) =
            unsafe { (solved_row(head, token, is_p), if is_p { self.args.scale } else { decay_to_end(head, token) }) };
        let scratch = self.args.scratch_of(self.chunk, self.value_head(value)).offset(if is_p { P } else { T_INV });
        for quad in 0..TOKEN_QUADS {
            if quad <= token / 4 {
                // SAFETY: bounds: quad < 8. Barrier: "products complete".
                let beta = unsafe { Tile::quad(&raw mut (*head).beta, 4 * quad) };
                let mut values = [0.0; 4];
                for i in 0..4 {
                    values[i] = x[quad][i] * beta[i] * row;
                }
                // SAFETY: bounds: quad <= token / 4. Owner: this lane alone has the matrix's row.
                unsafe { scratch.put_quad(triangle_index(token, quad), values) };
            }
        }
    }
}

/// The kernel.
///
/// # Safety
/// Called once by each of `THREADS` threads of each block of `grid()`, with `shared_bytes(VALUES)` of shared memory; every
/// tensor holds what its shape and strides describe; q and k have 16-byte aligned rows.
#[inline(always)]
pub unsafe fn run<const VALUES: usize>(args: Args) {
    let part = Part::of(&args, thread_idx_below::<THREADS>());
    // SAFETY: nobody has read anything yet. A warp has a value head or none.
    unsafe {
        part.stage_keys();
        if part.warp < VALUES {
            let token = part.chunk * CHUNK + part.lane;
            let gates = gates(&args, part.value_head(part.warp), token, part.lane < part.tokens);
            let gate_sum = sum_gates(part.head(part.warp), part.lane, gates);
            part.store_decays(part.warp, gate_sum);
        }
    }
    wait::<0>();
    // SAFETY: all threads are here. Keys complete, for products.
    unsafe { sync_threads() };
    // SAFETY: complete by the barrier; all lanes are here.
    unsafe { part.products() };
    // SAFETY: all threads are here. Products complete, for weigh; sums of gates too, also for solve.
    unsafe { sync_threads() };
    // SAFETY: all lanes are here.
    let part = Part::of(&args, unsafe { again(part.thread as u32) } as usize % THREADS);
    // SAFETY: complete by the barrier.
    unsafe { part.weigh::<VALUES>() };
    // SAFETY: all threads are here. A and Q complete, for solve.
    unsafe { sync_threads() };
    if part.warp < 2 * VALUES {
        // SAFETY: complete by the barrier. A warp has one matrix of one value head.
        unsafe { part.solve(part.warp / 2, part.warp % 2 == 1) };
    }
}

const _: () = assert!(HEAD_DIM == 4 * 32 && 2 * MOST_VALUES_PER_KEY * 32 <= THREADS && TEAMS * TRIANGLE / 4 == THREADS);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::chunk::block_at;

    #[test]
    fn places_are_those_of_the_blocks() {
        for token_quad in 0..TOKEN_QUADS {
            for earlier_quad in 0..=token_quad {
                assert_eq!(place_of(block_at(token_quad, earlier_quad)), (token_quad, earlier_quad));
            }
        }
    }
}
