//! What the scan reads, on its way to shared memory.
use super::{KeyTile, Shared, THREADS, V_STRIDE, VTile};
use crate::kernels::chunk::{Args, CHUNK};
use crate::kernels::chunk_tensor::{HEAD_FLOATS, KEY_MATRIX, Scratch};
use cuda_std::async_copy::{commit, copy_16};
use cuda_std::{Global, Tile};

/// What a block reads, from the next chunk to be copied on.
pub struct Inputs<'a> {
    args: &'a Args,
    thread: usize,
    shared: *mut Shared,
    /// Where in the scratch, which is short enough, the key head's keys, its queries and the value head's part are.
    keys: u32,
    queries: u32,
    head: u32,
    /// Four columns of the thread's first token.
    v: Global<f32>,
    /// Which chunk's keys, and tokens from it on.
    chunk: u32,
    tokens: u32,
}

impl<'a> Inputs<'a> {
    /// From the first chunk on.
    #[inline(always)]
    pub fn of(
        args: &'a Args,
        thread: usize,
        shared: *mut Shared,
        key_head: usize,
        value_head: usize,
        column: usize,
    ) -> Self {
        let scratch = Scratch::of(args);
        let keys = scratch.keys_index(0, key_head);
        let v = value_head * args.v_head_stride + thread / 16 * args.v_token_stride + column + 4 * (thread % 16);
        Self {
            args,
            thread,
            shared,
            keys: keys as u32,
            queries: (keys + 2 * KEY_MATRIX) as u32,
            head: scratch.head_index(0, value_head) as u32,
            v: args.v.offset(v),
            chunk: 0,
            tokens: args.tokens,
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
    /// Nobody reads them before a wait and a barrier; the last reads of the keys and v two chunks before lie before a
    /// barrier that has passed.
    #[inline(always)]
    pub unsafe fn stage_keys(&mut self) {
        let (args, place) = (self.args, self.chunk as usize % 2);
        if self.tokens > 0 {
            // SAFETY: fields, of two.
            let (keys, v): (*mut KeyTile, *mut VTile) = unsafe {
                let (keys, v) = (&raw mut (*self.shared).keys, &raw mut (*self.shared).v);
                (keys.cast::<KeyTile>().wrapping_add(place), v.cast::<VTile>().wrapping_add(place))
            };
            // SAFETY: bounds: the key head's part of a chunk that exists.
            unsafe { self.copy(keys, self.keys) };
            let (first, column) = (self.thread / 16, 4 * (self.thread % 16));
            for turn in 0..CHUNK / (THREADS / 16) {
                let token = first + turn * (THREADS / 16);
                let index = token * V_STRIDE + column;
                // SAFETY: bounds: the token exists, columns are the head's. Owner: one quad a thread. Barrier: by the
                // caller.
                unsafe {
                    if token < self.tokens as usize {
                        copy_16(v, index, self.v, turn * (THREADS / 16) * args.v_token_stride);
                    } else {
                        Tile::put_quad(v, index, [0.0; 4]);
                    }
                }
            }
            self.keys += Scratch::of(args).keys_stride() as u32;
            self.v = self.v.offset(CHUNK * args.v_token_stride);
            self.tokens = self.tokens.saturating_sub(CHUNK as u32);
            self.chunk += 1;
        }
        commit();
    }

    /// Starts the copies of the next chunk's queries and the value head's part, if there is one, as a group. Its keys are
    /// staged before.
    ///
    /// # Safety
    /// As [`Inputs::stage_keys`], of the chunk before.
    #[inline(always)]
    pub unsafe fn stage_queries(&mut self, exists: bool) {
        if exists {
            // SAFETY: fields.
            let (queries, head): (*mut KeyTile, *mut Tile<HEAD_FLOATS>) =
                unsafe { (&raw mut (*self.shared).queries, &raw mut (*self.shared).head) };
            // SAFETY: bounds: the key head's and the value head's parts of a chunk that exists.
            unsafe {
                self.copy(queries, self.queries);
                self.copy(head, self.head);
            }
            self.queries += Scratch::of(self.args).keys_stride() as u32;
            self.head += Scratch::of(self.args).head_stride() as u32;
        }
        commit();
    }
}
