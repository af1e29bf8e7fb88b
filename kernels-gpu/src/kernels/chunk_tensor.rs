//! What the kernels of the chunked form on tensor cores share: the layout of their scratch, and the ranges they are for.
//!
//! # Math
//! [`super::chunk`], every factor as the sum of two 16-bit floats, `a b` as `a_low b_high + a_high b_low + a_high b_high`.
//! A 16-bit float has a range of its own, so each token's key and query is scaled by a power of two, which is exact, and what
//! it meets carries the inverse. With k = 2^m k' and q = 2^n q', largest elements of k' and q' between 1/2 and 1:
//! ```text
//!   y_t    = v_t - h_t s^T k'_t          h_t     = e^(G_t) 2^m_t
//!   d'     = T y                         T_ti    = 2^m_t t_inv_ti              s <- e^(G_last) s + k'^T d'
//!   o_t    = c_t (f_t s^T q'_t + P y)    f_t     = 2^10 e^(G_t)                c_t = scale 2^(n_t - 10)
//!                                        P_ti    = 2^(10 - n_t) (Q W)_ti beta_i
//! ```
//! T is stored as 2^12 T. v and s, and with them y and d', are scaled by the scan.
//!
//! # What does not fit
//! Keys longer than 1.7, `beta k.k` above 2, growing gates, gates below -103, what is not a number: there the state may grow
//! without bound, or a matrix's entries do. Chunk prep marks the value head and the scan leaves it alone. Where a chunk forgets
//! most of a large state, the scan may find that it lost bits, and marks its half of the columns.
//! [`super::chunk_fallback`], launched after it, takes what is marked token by token; Hopper's scan takes its columns itself.
use super::chunk::{Args, CHUNK};
use super::chunk_parts::Part;
use crate::shape::HEAD_DIM;
use cuda_std::warp::warp_max;
use cuda_std::{Global, GlobalMut};

/// Writes a loop out, since what it indexes is in registers.
macro_rules! for_each {
    ($index:ident in [$($value:literal)*] $body:block) => { $( { const $index: usize = $value; $body } )* };
}

pub(crate) use for_each;

/// Floats of a matrix of a chunk's keys or queries in 16 bits.
pub const KEY_MATRIX: usize = CHUNK * HEAD_DIM / 2;
/// Floats of 64 elements in 16 bits, and of those of a chunk's tokens.
pub const ROW: usize = 32;
/// From the first 64 elements of keys to the others.
pub const KEY_PANEL: usize = CHUNK * ROW;
/// Floats of a chunk's keys and queries: high and low parts of keys, then of queries.
pub const KEY_FLOATS: usize = 4 * KEY_MATRIX;

/// Floats of T, or of P: a row of 32 for each token, high parts, then low parts.
pub const TOKEN_MATRIX: usize = CHUNK * CHUNK;
/// Where, in a value head's part, h and f of tokens 2 n and 2 n + 1 are: after T and P.
pub const FACTORS: usize = 2 * TOKEN_MATRIX;
/// Where c is.
pub const OUT_FACTORS: usize = FACTORS + 2 * CHUNK;
/// Where e^(G_last) is, and after it the sums of the magnitudes of T's entries, of its first and of its last 16 tokens.
pub const TOTAL_DECAY: usize = OUT_FACTORS + CHUNK;
/// Floats of a value head's part.
pub const HEAD_FLOATS: usize = TOTAL_DECAY + 4;

/// T is stored 2^12 times as large.
pub const T_SCALE_EXPONENT: i32 = 12;
/// That as a number.
pub const T_SCALE: f32 = (1 << T_SCALE_EXPONENT) as f32;
/// P is so much larger than of the scaled queries, and so is f.
pub const P_SCALE: f32 = (1 << 10) as f32;
/// What an entry of T or P may be as it is stored.
pub const LARGEST_ENTRY: f32 = (1 << 15) as f32;

/// Where eight elements from `8 piece` on of a token's key or query are, in floats: the first 64 elements of all tokens, 128
/// bytes each, then the others. Pieces are exchanged so that those of eight tokens, which a tensor core's load takes
/// together, lie in different banks; it is the order that [`cuda_std::warpgroup::Matrix`] has.
#[inline(always)]
#[must_use]
pub const fn key_piece(token: usize, piece: usize) -> usize {
    piece / 8 * KEY_PANEL + token * ROW + 4 * (piece % 8 ^ (token % 8))
}

/// Where eight entries from `8 piece` on of a row of T or P are, in floats: `piece` below 4 of their high parts, from 4 on of
/// their low parts. The same order.
#[inline(always)]
#[must_use]
pub const fn token_piece(token: usize, piece: usize) -> usize {
    token * ROW + 4 * (piece ^ (token % 8))
}

/// Floats of marks, two for each value head and chunk: chunk prep's before the keys, the scan's after all.
const fn marks_len(chunks: usize, num_value_heads: usize) -> usize {
    (2 * chunks * num_value_heads).next_multiple_of(4)
}

/// Floats of scratch for `tokens` tokens.
#[must_use]
pub const fn scratch_len(tokens: usize, num_key_heads: usize, num_value_heads: usize) -> usize {
    let chunks = tokens.div_ceil(CHUNK);
    2 * marks_len(chunks, num_value_heads) + chunks * (num_key_heads * KEY_FLOATS + num_value_heads * HEAD_FLOATS)
}

/// The scratch of a launch.
#[derive(Clone, Copy, Debug)]
pub struct Scratch {
    start: GlobalMut<f32>,
    chunks: usize,
    key_heads: usize,
    value_heads: usize,
}

impl Scratch {
    /// That of these arguments.
    #[inline(always)]
    #[must_use]
    pub fn of(args: &Args) -> Self {
        let key_heads = args.num_key_heads as usize;
        Self {
            start: args.scratch,
            chunks: args.chunks as usize,
            key_heads,
            value_heads: key_heads * args.values_per_key as usize,
        }
    }

    /// The two marks that chunk prep leaves for a value head's chunk.
    #[inline(always)]
    #[must_use]
    pub fn marks(self, chunk: usize, value_head: usize) -> GlobalMut<f32> {
        self.start.offset(2 * (value_head * self.chunks + chunk))
    }

    /// The two marks that the scan leaves for the halves of a value head's columns, in a part that has its first chunk here.
    #[inline(always)]
    #[must_use]
    pub fn scan_marks(self, first_chunk: usize, value_head: usize) -> GlobalMut<f32> {
        self.start.offset(self.head_index(self.chunks, 0) + 2 * (value_head * self.chunks + first_chunk))
    }

    /// A chunk's keys and queries.
    #[inline(always)]
    #[must_use]
    pub fn keys(self, chunk: usize, key_head: usize) -> GlobalMut<f32> {
        self.start.offset(self.keys_index(chunk, key_head))
    }

    /// Where they are.
    #[inline(always)]
    #[must_use]
    pub fn keys_index(self, chunk: usize, key_head: usize) -> usize {
        marks_len(self.chunks, self.value_heads) + (chunk * self.key_heads + key_head) * KEY_FLOATS
    }

    /// From a chunk's keys to the next chunk's.
    #[inline(always)]
    #[must_use]
    pub fn keys_stride(self) -> usize {
        self.key_heads * KEY_FLOATS
    }

    /// A value head's part of a chunk.
    #[inline(always)]
    #[must_use]
    pub fn head(self, chunk: usize, value_head: usize) -> GlobalMut<f32> {
        self.start.offset(self.head_index(chunk, value_head))
    }

    /// Where it is.
    #[inline(always)]
    #[must_use]
    pub fn head_index(self, chunk: usize, value_head: usize) -> usize {
        self.keys_index(self.chunks, 0) + (chunk * self.value_heads + value_head) * HEAD_FLOATS
    }

    /// From a value head's part of a chunk to that of the next chunk.
    #[inline(always)]
    #[must_use]
    pub fn head_stride(self) -> usize {
        self.value_heads * HEAD_FLOATS
    }

    /// Whether chunk prep has marked a chunk of the value head, of a part's.
    ///
    /// # Safety
    /// All lanes of the warp make this call together, after the launch that wrote the marks.
    #[inline(always)]
    #[must_use]
    pub unsafe fn is_marked(self, part: &Part, value_head: usize, lane: usize) -> bool {
        let marks = Global::new(self.marks(part.first_chunk, value_head).as_ptr().cast_const());
        let (mut marked, mut index) = (0, lane);
        while index < 2 * part.chunks() {
            // SAFETY: bounds: the part's marks of the head. Read only.
            if unsafe { marks.at(index) } != 0.0 {
                marked = 1;
            }
            index += 32;
        }
        // SAFETY: all lanes are here.
        unsafe { warp_max(marked) != 0 }
    }

    /// Whether chunk prep or the scan has marked a half of the value head's columns.
    ///
    /// # Safety
    /// As [`Scratch::is_marked`], after the scan.
    #[inline(always)]
    #[must_use]
    pub unsafe fn is_half_marked(self, part: &Part, value_head: usize, half: usize, lane: usize) -> bool {
        // SAFETY: by the caller.
        if unsafe { self.is_marked(part, value_head, lane) } {
            return true;
        }
        let marks = Global::new(self.scan_marks(part.first_chunk, value_head).as_ptr().cast_const());
        // SAFETY: bounds: a part with tokens has its chunks in the scratch. Read only.
        part.tokens > 0 && unsafe { marks.at(half) } != 0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_are_permutations_without_bank_conflicts() {
        let mut keys: Vec<usize> =
            (0..CHUNK).flat_map(|token| (0..HEAD_DIM / 8).map(move |piece| key_piece(token, piece))).collect();
        let mut tokens: Vec<usize> =
            (0..CHUNK).flat_map(|token| (0..8).map(move |piece| token_piece(token, piece))).collect();
        for indices in [&mut keys, &mut tokens] {
            indices.sort_unstable();
            assert!(indices.iter().enumerate().all(|(place, &index)| index == 4 * place));
        }
        for octet in 0..CHUNK / 8 {
            for of in [key_piece, token_piece] {
                let mut banks: Vec<usize> = (0..8).map(|token| of(8 * octet + token, 1) % 32).collect();
                banks.sort_unstable();
                assert_eq!(banks, [0, 4, 8, 12, 16, 20, 24, 28]);
            }
        }
    }
}
