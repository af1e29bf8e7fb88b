//! What a chunk brings to a block of the scan: copies into shared memory, and what a thread reads by itself.
use super::{Args, CHUNK, Head, KeyTile, Part, Role, THREADS_PER_VALUE};
use crate::kernels::chunk::{DECAY, SCRATCH_STRIDE, T_INV, TRIANGLE, key_index, view};
use crate::shape::HEAD_DIM;
use cuda_std::async_copy::copy_16;
use cuda_std::memory::Quad;
use cuda_std::thread::block_idx_y;
use cuda_std::{Global, Tile};

/// What a chunk brings to a thread.
#[derive(Clone, Copy)]
pub(super) struct Token {
    pub(super) v: Quad,
    /// e^(G_t)
    pub(super) decay: f32,
}

/// A chunk's inputs in global memory, as this thread reads or copies them.
pub(super) struct Inputs<const VALUES: usize> {
    /// Four rows of the warp's first token.
    k: Global<f32>,
    q: Global<f32>,
    /// Of the thread's token and columns.
    v: Global<f32>,
    /// Of the value head.
    pub(super) scratch: Global<f32>,
    /// From a chunk's scratch to the next.
    scratch_stride: u32,
    /// Tokens of the chunk and after it.
    pub(super) tokens: u32,
}

impl<const VALUES: usize> Inputs<VALUES> {
    /// Warps that copy keys and queries. More than eight would meet both arrangements of `key_index`.
    const WARPS: usize = if VALUES == 1 { 4 } else { 8 };

    /// Those of the first chunk.
    #[inline(always)]
    pub(super) fn first(part: &Part<'_>) -> Self {
        let Part { args, role, value_head, .. } = part;
        let key_head = block_idx_y() as usize;
        let (warp, lane) = (role.warp(), role.thread % 32);
        let column = part.first_column + role.column_quad * 4;
        Self {
            k: args.k.offset(key_head * args.k_head_stride + warp * args.k_token_stride + 4 * lane),
            q: args.q.offset(key_head * args.q_head_stride + warp * args.q_token_stride + 4 * lane),
            v: args.v.offset(value_head * args.v_head_stride + role.token * args.v_token_stride + column),
            scratch: Global::new(args.scratch_of(0, *value_head).as_ptr().cast_const()),
            scratch_stride: args.num_key_heads * args.values_per_key * SCRATCH_STRIDE as u32,
            tokens: args.tokens,
        }
    }

    /// On to the next chunk, but for keys and queries.
    #[inline(always)]
    pub(super) fn advance(&mut self, args: &Args) {
        self.v = self.v.offset(CHUNK * args.v_token_stride);
        self.scratch = self.scratch.offset(self.scratch_stride as usize);
        self.tokens = self.tokens.saturating_sub(CHUNK as u32);
    }

    /// Starts the copies of the chunk's keys and queries, and moves them on to the next chunk; rows of tokens past the end
    /// become zero.
    ///
    /// # Safety
    /// Nobody reads the tiles before a wait and a barrier; their last reads lie before a barrier that has passed.
    #[inline(always)]
    pub(super) unsafe fn stage_keys(&mut self, args: &Args, role: Role, k: *mut KeyTile, q: *mut KeyTile) {
        let (warp, lane) = (role.warp(), role.thread % 32);
        if warp < Self::WARPS {
            // SAFETY: by the caller.
            unsafe {
                self.k = self.stage_rows(warp, lane, k, self.k, args.k_token_stride);
                self.q = self.stage_rows(warp, lane, q, self.q, args.q_token_stride);
            }
        }
    }

    /// [`Inputs::stage_keys`], of one of them, whose first row for this thread is `row`. Gives the next chunk's.
    ///
    /// # Safety
    /// As there, and `warp < WARPS`, `lane < 32`.
    #[inline(always)]
    unsafe fn stage_rows(
        &self,
        warp: usize,
        lane: usize,
        tile: *mut KeyTile,
        mut row: Global<f32>,
        stride: usize,
    ) -> Global<f32> {
        // Of the first octet of tokens: with four warps, each has two of it.
        let token = |more| warp % 4 + if VALUES == 1 { more } else { warp / 4 * 4 };
        // SAFETY: bounds: tokens below 8.
        let tiles: [*mut Tile<{ (CHUNK - 8) * HEAD_DIM + 4 }>; 2] =
            [0, 4].map(|more| unsafe { view(tile, key_index(token(more), lane)) });
        for turn in 0..CHUNK / Self::WARPS {
            let (first, tile) = (turn * Self::WARPS, tiles[if VALUES == 1 { turn % 2 } else { 0 }]);
            let index = first / 8 * 8 * HEAD_DIM;
            // SAFETY: bounds: the token exists, lane < 32 quads. Owner: one (token, quad) a thread. Barrier: by the caller.
            unsafe {
                if warp + first < self.tokens as usize {
                    copy_16(tile, index, row, 0);
                } else {
                    Tile::put_quad(tile, index, [0.0; 4]);
                }
            }
            row = row.offset(Self::WARPS * stride);
        }
        row
    }

    /// Starts the copies of the chunk's triangles, if there is such a chunk.
    ///
    /// # Safety
    /// As [`Inputs::stage_keys`], for the head's triangles.
    #[inline(always)]
    pub(super) unsafe fn stage_triangles(&self, role: Role, head: *mut Head) {
        if self.tokens > 0 {
            for turn in 0..(2 * TRIANGLE / 4).div_ceil(THREADS_PER_VALUE) {
                let quad = role.thread + turn * THREADS_PER_VALUE;
                if quad < 2 * TRIANGLE / 4 {
                    let index = 4 * quad;
                    // SAFETY: bounds: both triangles, at the start of the head's scratch. Owner: one quad a thread.
                    // Barrier: by the caller.
                    unsafe { copy_16(&raw mut (*head).triangles, index, self.scratch, T_INV + index) };
                }
            }
        }
    }

    /// What the chunk brings to this thread; tokens past the end have value 0.
    #[inline(always)]
    pub(super) fn token(&self, role: Role) -> Token {
        let mut token = Token { v: [0.0; 4], decay: 0.0 };
        if self.tokens > 0 {
            // SAFETY: bounds: the head's scratch of a chunk that exists. Owner: written by the launch before.
            token.decay = unsafe { self.scratch.at(DECAY + role.token) };
        }
        if role.token < self.tokens as usize {
            // SAFETY: bounds: the token exists, columns are the head's. Read only.
            token.v = unsafe { self.v.quad(0) };
        }
        token
    }
}
