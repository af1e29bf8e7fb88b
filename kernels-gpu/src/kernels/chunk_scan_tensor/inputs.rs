//! What the scan reads, on its way to shared memory.
use super::{HeadTile, KeyTile, Shared, THREADS, V_STRIDE, VTile};
use crate::kernels::chunk::{Args, CHUNK};
use crate::kernels::chunk_parts::Part;
use crate::kernels::chunk_tensor::{KEY_MATRIX, Scratch};
use cuda_std::async_copy::{commit, copy_16};
use cuda_std::{Global, Tile};

/// Where the tiles are: the first of each kind.
#[derive(Clone, Copy)]
pub struct Tiles {
    pub keys: *mut KeyTile,
    pub v: *mut VTile,
    pub queries: *mut KeyTile,
    pub head: *mut HeadTile,
}

impl Tiles {
    /// # Safety
    /// `shared` is the block's shared memory.
    #[inline(always)]
    pub unsafe fn of<const AHEAD: usize, const AHEAD_AND_ONE: usize>(
        shared: *mut Shared<AHEAD, AHEAD_AND_ONE>,
    ) -> Self {
        // SAFETY: fields.
        unsafe {
            Self {
                keys: (&raw mut (*shared).keys).cast(),
                v: (&raw mut (*shared).v).cast(),
                queries: (&raw mut (*shared).queries).cast(),
                head: (&raw mut (*shared).head).cast(),
            }
        }
    }
}

/// The place after `place` of `COUNT`.
#[inline(always)]
pub fn next_place<const COUNT: usize>(place: u32) -> u32 {
    if place + 1 < COUNT as u32 { place + 1 } else { 0 }
}

/// What a block reads, from the next chunk to be copied on.
pub struct Inputs<'a> {
    args: &'a Args,
    thread: usize,
    tiles: Tiles,
    /// Where in the scratch, which is short enough, the key head's keys, its queries and the value head's part are.
    keys: u32,
    queries: u32,
    head: u32,
    /// Four columns of the thread's first token.
    v: Global<f32>,
    /// Tokens from the chunk on, of which keys and v, and of which queries are next.
    tokens_of_keys: u32,
    tokens_of_queries: u32,
    /// Their places among the tiles.
    of_keys: u32,
    of_v: u32,
    of_queries: u32,
}

impl<'a> Inputs<'a> {
    /// From the part's first chunk on.
    #[inline(always)]
    pub fn of(
        args: &'a Args,
        part: &Part,
        thread: usize,
        tiles: Tiles,
        key_head: usize,
        value_head: usize,
        column: usize,
    ) -> Self {
        let scratch = Scratch::of(args);
        let keys = scratch.keys_index(part.first_chunk, key_head);
        let v = value_head * args.v_head_stride + thread / 16 * args.v_token_stride + column + 4 * (thread % 16);
        Self {
            args,
            thread,
            tiles,
            keys: keys as u32,
            queries: (keys + 2 * KEY_MATRIX) as u32,
            head: scratch.head_index(part.first_chunk, value_head) as u32,
            v: part.v(args).offset(v),
            tokens_of_keys: part.tokens,
            tokens_of_queries: part.tokens,
            of_keys: 0,
            of_v: 0,
            of_queries: 0,
        }
    }

    /// Copies consecutive floats.
    ///
    /// # Safety
    /// As [`Inputs::stage_keys`]; the source has `N` floats.
    #[inline(always)]
    unsafe fn copy<const N: usize>(&self, tile: *mut Tile<N>, source: u32) {
        let source = Global::new(self.args.scratch.as_ptr().cast_const()).offset(source as usize);
        for turn in 0..(N / 4).div_ceil(THREADS) {
            let quad = self.thread + turn * THREADS;
            if quad < N / 4 {
                // SAFETY: bounds: by the caller. Owner: one quad a thread. Barrier: by the caller.
                unsafe { copy_16(tile, 4 * quad, source, 4 * quad) };
            }
        }
    }

    /// Starts the copies of the next chunk's keys and v, if there is one, as a group.
    ///
    /// # Safety
    /// Nobody reads them before a wait and a barrier; the last reads of the keys `AHEAD_AND_ONE` chunks before, and of v
    /// `AHEAD` chunks before, lie before a barrier that has passed.
    #[inline(always)]
    pub unsafe fn stage_keys<const AHEAD: usize, const AHEAD_AND_ONE: usize>(&mut self) {
        let args = self.args;
        if self.tokens_of_keys > 0 {
            let v = self.tiles.v.wrapping_add(self.of_v as usize);
            // SAFETY: bounds: the key head's part of a chunk that exists.
            unsafe { self.copy(self.tiles.keys.wrapping_add(self.of_keys as usize), self.keys) };
            let (first, column) = (self.thread / 16, 4 * (self.thread % 16));
            for turn in 0..CHUNK / (THREADS / 16) {
                let token = first + turn * (THREADS / 16);
                let index = token * V_STRIDE + column;
                // SAFETY: bounds: the token exists, columns are the head's. Owner: one quad a thread. Barrier: by the
                // caller.
                unsafe {
                    if token < self.tokens_of_keys as usize {
                        copy_16(v, index, self.v, turn * (THREADS / 16) * args.v_token_stride);
                    } else {
                        Tile::put_quad(v, index, [0.0; 4]);
                    }
                }
            }
            self.keys += Scratch::of(args).keys_stride() as u32;
            self.v = self.v.offset(CHUNK * args.v_token_stride);
            self.tokens_of_keys = self.tokens_of_keys.saturating_sub(CHUNK as u32);
            self.of_keys = next_place::<AHEAD_AND_ONE>(self.of_keys);
            self.of_v = next_place::<AHEAD>(self.of_v);
        }
        commit();
    }

    /// Starts the copies of the next chunk's queries and the value head's part, if there is one, as a group.
    ///
    /// # Safety
    /// As [`Inputs::stage_keys`].
    #[inline(always)]
    pub unsafe fn stage_queries<const AHEAD: usize>(&mut self) {
        if self.tokens_of_queries > 0 {
            // SAFETY: bounds: the key head's and the value head's parts of a chunk that exists.
            unsafe {
                self.copy(self.tiles.queries.wrapping_add(self.of_queries as usize), self.queries);
                self.copy(self.tiles.head.wrapping_add(self.of_queries as usize), self.head);
            }
            self.queries += Scratch::of(self.args).keys_stride() as u32;
            self.head += Scratch::of(self.args).head_stride() as u32;
            self.tokens_of_queries = self.tokens_of_queries.saturating_sub(CHUNK as u32);
            self.of_queries = next_place::<AHEAD>(self.of_queries);
        }
        commit();
    }
}
