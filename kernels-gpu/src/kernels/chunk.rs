//! What the two kernels of the chunked form share: the mathematics, the layout of their scratch, and of keys and columns
//! in shared memory.
//!
//! # Math
//! For the tokens t and i of a chunk of `CHUNK`, with `G_t = g_0 + .. + g_t` and s the state before the chunk:
//! ```text
//!   A_ti = beta_t e^(G_t - G_i) k_t.k_i    for i < t      W = (I + A)^-1
//!   Q_ti =        e^(G_t - G_i) q_t.k_i    for i <= t
//!   y_t  = v_t - e^(G_t) s^T k_t
//!   d_t  = sum over i <= t of W_ti beta_i y_i                                         what token t writes
//!   o_t  = scale (e^(G_t) s^T q_t + sum over i <= t of Q_ti d_i)
//!   s   <- e^(G_last) s + sum over t of e^(G_last - G_t) k_t d_t^T
//! ```
//! [`super::chunk_prep`] folds everything that does not know the state into two lower triangular matrices and a vector,
//! so that [`super::chunk_scan`], whose chunks wait for each other, multiplies y by both at once:
//! ```text
//!   t_inv_ti = e^(G_last - G_t) W_ti beta_i               s   <- e^(G_last) s + k^T (t_inv y)
//!   p_ti     = scale (Q W)_ti beta_i                      o_t  = scale e^(G_t) s^T q_t + (p y)_t
//! ```
//! No entry of `Q W` is large where W's are not: it is the query after the later tokens' corrections, times a key.
//!
//! # Triangles
//! ```text
//!          i: 0-3 4-7 8-11 ..         A lower triangle lies as its 36 blocks of 4 x 4, row by row of blocks:
//!   t: 0-3    [0]                     entry (t, i) is at 16 (tq (tq + 1) / 2 + iq) + 4 (t % 4) + i % 4 with tq = t / 4,
//!      4-7    [1] [2]                 iq = i / 4, so that four entries of a row are one 16-byte access and the upper
//!      8-11   [3] [4] [5]             half takes neither memory nor time. Above the diagonal inside a block: zeros.
//! ```
//! # Why it is shaped so
//! CHUNK is 32: longer chunks multiply more by triangles, shorter ones meet at more barriers.
use crate::shape::HEAD_DIM;
use cuda_std::warp::{lane_id, warp_shuffle_idx};
use cuda_std::{GlobalMut, Tile};

/// Tokens of a chunk.
pub const CHUNK: usize = 32;
/// Groups of four tokens in a chunk.
pub const TOKEN_QUADS: usize = CHUNK / 4;
/// Groups of four rows of a head's state.
pub const ROW_QUADS: usize = HEAD_DIM / 4;
/// Blocks of a lower triangle.
pub const BLOCKS: usize = TOKEN_QUADS * (TOKEN_QUADS + 1) / 2;
/// Floats of a block.
pub const BLOCK: usize = 16;
/// Floats of a lower triangle.
pub const TRIANGLE: usize = BLOCKS * BLOCK;

/// Scratch of one value head in one chunk, in floats: both triangles, e^(G_t) of each token, e^(G_last), unused.
pub const T_INV: usize = 0;
/// Where p starts.
pub const P: usize = T_INV + TRIANGLE;
/// Where e^(G_t) starts.
pub const DECAY: usize = P + TRIANGLE;
/// Where e^(G_last) is.
pub const TOTAL_DECAY: usize = DECAY + CHUNK;
/// From a value head to the next; a chunk is all its value heads.
pub const SCRATCH_STRIDE: usize = TOTAL_DECAY + 4;

/// Floats of scratch for `tokens` tokens.
#[must_use]
pub const fn scratch_len(tokens: usize, num_value_heads: usize) -> usize {
    tokens.div_ceil(CHUNK) * num_value_heads * SCRATCH_STRIDE
}

cuda_std::arguments! {
    /// What both kernels take. Strides are in elements; dim is contiguous. `chunk_prep` touches neither v, out nor states.
    pub struct Args {
        /// `[tokens, key heads, 128]`, rows on 16 bytes.
        pub q: cuda_std::Global<f32>,
        /// From a token of q to the next.
        pub q_token_stride: usize,
        /// From a head of q to the next.
        pub q_head_stride: usize,
        /// `[tokens, key heads, 128]`, rows on 16 bytes.
        pub k: cuda_std::Global<f32>,
        /// From a token of k to the next.
        pub k_token_stride: usize,
        /// From a head of k to the next.
        pub k_head_stride: usize,
        /// `[tokens, value heads, 128]`, rows on 16 bytes.
        pub v: cuda_std::Global<f32>,
        /// From a token of v to the next.
        pub v_token_stride: usize,
        /// From a head of v to the next.
        pub v_head_stride: usize,
        /// `[tokens, value heads]`, log of the forget gate.
        pub g: cuda_std::Global<f32>,
        /// From a token of g to the next.
        pub g_token_stride: usize,
        /// From a head of g to the next.
        pub g_head_stride: usize,
        /// `[tokens, value heads]`, write strength.
        pub beta: cuda_std::Global<f32>,
        /// From a token of beta to the next.
        pub beta_token_stride: usize,
        /// From a head of beta to the next.
        pub beta_head_stride: usize,
        /// `[tokens, value heads, 128]`, rows on 16 bytes.
        pub out: cuda_std::GlobalMut<f32>,
        /// From a token of out to the next.
        pub out_token_stride: usize,
        /// From a head of out to the next.
        pub out_head_stride: usize,
        /// `[value heads, 128 key rows, 128 columns]`, null for a zero state.
        pub initial_state: cuda_std::Global<f32>,
        /// The same, null to drop it; may be `initial_state`'s memory.
        pub final_state: cuda_std::GlobalMut<f32>,
        /// From a head of a state to the next.
        pub state_head_stride: usize,
        /// From a key row of a state to the next.
        pub state_row_stride: usize,
        /// `scratch_len(tokens, value heads)` floats on 16 bytes, written by `chunk_prep` and read by `chunk_scan`.
        pub scratch: cuda_std::GlobalMut<f32>,
        /// From a batch of q to the next.
        pub q_batch_stride: usize,
        /// From a batch of k to the next.
        pub k_batch_stride: usize,
        /// From a batch of v to the next.
        pub v_batch_stride: usize,
        /// From a batch of g to the next.
        pub g_batch_stride: usize,
        /// From a batch of beta to the next.
        pub beta_batch_stride: usize,
        /// From a batch of out to the next.
        pub out_batch_stride: usize,
        /// From an initial state to the next.
        pub initial_state_stride: usize,
        /// From a final state to the next.
        pub final_state_stride: usize,
        /// States between the segments of a sequence.
        pub kept_states: cuda_std::GlobalMut<f32>,
        /// From one of them to the next.
        pub kept_state_stride: usize,
        /// `chunk_parts::WORDS` words for each of several sequences; null for one.
        pub parts: cuda_std::Global<u32>,
        /// Parts in the table.
        pub num_parts: u32,
        /// Chunks of this launch.
        pub chunks: u32,
        /// Multiplies the output.
        pub scale: f32,
        /// Tokens of this launch, of one sequence.
        pub tokens: u32,
        /// Key heads.
        pub num_key_heads: u32,
        /// Value heads per key head.
        pub values_per_key: u32,
        /// `shape::GROUPED` or `shape::TILED`.
        pub head_map: u32,
    }
    for chunk_kernel
}

impl Args {
    /// The scratch of a value head in a chunk.
    #[inline(always)]
    pub fn scratch_of(&self, chunk: usize, value_head: usize) -> GlobalMut<f32> {
        let value_heads = self.num_key_heads as usize * self.values_per_key as usize;
        self.scratch.offset((chunk * value_heads + value_head) * SCRATCH_STRIDE)
    }

    /// Of a block that has a value head of one of several parts: the part's place, and the head.
    #[inline(always)]
    pub fn part_and_value_head(&self, block: u32) -> (usize, u32) {
        let value_heads = self.num_key_heads * self.values_per_key;
        ((block / value_heads) as usize, block % value_heads)
    }

    /// Tokens of a chunk that exist.
    #[inline(always)]
    pub fn tokens_in(&self, chunk: usize) -> usize {
        (self.tokens as usize).saturating_sub(chunk * CHUNK).min(CHUNK)
    }
}

/// Which block of a triangle holds tokens `4 token_quad ..` and earlier tokens `4 earlier_quad ..`.
#[inline(always)]
#[must_use]
pub const fn block_at(token_quad: usize, earlier_quad: usize) -> usize {
    token_quad * (token_quad + 1) / 2 + earlier_quad
}

/// Where the four entries `4 earlier_quad ..` of row `token` of a triangle start.
#[inline(always)]
#[must_use]
pub const fn triangle_index(token: usize, earlier_quad: usize) -> usize {
    block_at(token / 4, earlier_quad) * BLOCK + token % 4 * 4
}

/// Where rows `4 row_quad ..` of `token`'s key start in shared memory. Quads of odd groups of four tokens are exchanged in
/// pairs four apart, so that lanes which read the same four quads of tokens of neighbouring groups meet no bank twice.
#[inline(always)]
#[must_use]
pub const fn key_index(token: usize, row_quad: usize) -> usize {
    token * HEAD_DIM + 4 * (row_quad ^ (token / 4 % 2 * 4))
}

/// Where columns `4 column_quad ..` of row `row` of a matrix of 16 columns start in shared memory. The four groups of four
/// rows that eight lanes read together lie in different banks: the second and fourth exchange their column quads, the
/// third and fourth their neighbouring rows.
#[inline(always)]
#[must_use]
pub const fn column_index(row: usize, column_quad: usize) -> usize {
    16 * (row ^ (row / 8 % 2)) + 4 * (column_quad ^ (row / 4 % 2 * 2))
}

/// The `M` floats of a tile from `index` on: what a thread reads at distances known when it is compiled lies in one such
/// view and takes one register.
///
/// # Safety
/// `index + M <= N`. The compiler cannot see it where roles exchange bits, and checks in every chunk cost the scan fifteen
/// registers; tests are built with debug assertions, which check it for every thread.
#[inline(always)]
pub unsafe fn view<const N: usize, const M: usize>(tile: *mut Tile<N>, index: usize) -> *mut Tile<M> {
    // SAFETY: by the caller.
    unsafe { core::hint::assert_unchecked(index + M <= N) };
    Tile::address(tile, index, M).cast()
}

/// `value`, by a way that the compiler does not see through: what follows from it is computed again, where else it would
/// be kept in registers.
///
/// # Safety
/// All lanes of the warp make this call together.
#[inline(always)]
pub unsafe fn again(value: u32) -> u32 {
    // SAFETY: all lanes are here.
    unsafe { warp_shuffle_idx(f32::from_bits(value), lane_id()).to_bits() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_entry_of_a_triangle_has_one_place() {
        let mut seen = [0; TRIANGLE];
        for token in 0..CHUNK {
            for earlier_quad in 0..=token / 4 {
                for i in 0..4 {
                    seen[triangle_index(token, earlier_quad) + i] += 1;
                }
            }
        }
        assert!(seen.iter().all(|&count| count == 1));
    }

    #[test]
    fn layouts_in_shared_memory_are_permutations() {
        let mut keys: Vec<usize> =
            (0..CHUNK).flat_map(|token| (0..ROW_QUADS).map(move |quad| key_index(token, quad))).collect();
        let mut columns: Vec<usize> =
            (0..HEAD_DIM).flat_map(|row| (0..4).map(move |quad| column_index(row, quad))).collect();
        for indices in [&mut keys, &mut columns] {
            indices.sort_unstable();
            assert!(indices.iter().enumerate().all(|(place, &index)| index == 4 * place));
        }
    }
}
