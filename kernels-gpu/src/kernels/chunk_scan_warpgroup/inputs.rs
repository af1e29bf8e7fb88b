//! What the scan reads, on its way to shared memory: by four warps that do nothing else.
use super::{COLUMNS_PER_BLOCK, LOADERS, STAGES, Stage, V_STRIDE};
use crate::kernels::chunk::{Args, CHUNK};
use crate::kernels::chunk_parts::Part;
use crate::kernels::chunk_tensor::Scratch;
use cuda_std::async_copy::{commit, copy_16};
use cuda_std::{Global, Tile};

/// What the loaders read, from the next chunk on.
pub struct Inputs<'a> {
    args: &'a Args,
    /// Among the loaders.
    thread: usize,
    stages: *mut Stage,
    /// Where in the scratch, which is short enough, the key head's and the value head's parts are.
    keys: u32,
    head: u32,
    /// Four columns of the thread's first token.
    v: Global<f32>,
    tokens: u32,
    stage: u32,
}

impl<'a> Inputs<'a> {
    /// From the part's first chunk on.
    #[inline(always)]
    pub fn of(
        args: &'a Args,
        part: &Part,
        thread: usize,
        stages: *mut Stage,
        key_head: usize,
        value_head: usize,
        column: usize,
    ) -> Self {
        let scratch = Scratch::of(args);
        let v = value_head * args.v_head_stride + thread / 16 * args.v_token_stride + column + 4 * (thread % 16);
        Self {
            args,
            thread,
            stages,
            keys: scratch.keys_index(part.first_chunk, key_head) as u32,
            head: scratch.head_index(part.first_chunk, value_head) as u32,
            v: part.v(args).offset(v),
            tokens: part.tokens,
            stage: 0,
        }
    }

    /// Copies consecutive floats.
    ///
    /// # Safety
    /// As [`Inputs::stage`]; the source has `N` floats.
    #[inline(always)]
    unsafe fn copy<const N: usize>(&self, tile: *mut Tile<N>, source: u32) {
        let source = Global::new(self.args.scratch.as_ptr().cast_const()).offset(source as usize);
        for turn in 0..(N / 4).div_ceil(LOADERS) {
            let quad = self.thread + turn * LOADERS;
            if quad < N / 4 {
                // SAFETY: bounds: by the caller. Owner: one quad a thread. Barrier: by the caller.
                unsafe { copy_16(tile, 4 * quad, source, 4 * quad) };
            }
        }
    }

    /// Starts the copies of the next chunk, if there is one, as a group.
    ///
    /// # Safety
    /// Nobody reads the stage before a wait and a barrier; the last reads of the chunk `STAGES` before lie before a barrier
    /// that has passed.
    #[inline(always)]
    pub unsafe fn stage(&mut self) {
        let args = self.args;
        if self.tokens > 0 {
            let stage = self.stages.wrapping_add(self.stage as usize);
            // SAFETY: fields.
            let (keys, head, v) = unsafe { (&raw mut (*stage).keys, &raw mut (*stage).head, &raw mut (*stage).v) };
            // SAFETY: bounds: the key head's and the value head's parts of a chunk that exists.
            unsafe {
                self.copy(keys.cast::<Tile<{ super::KEY_FLOATS }>>(), self.keys);
                self.copy(head, self.head);
            }
            let (first, column) = (self.thread / 16, 4 * (self.thread % 16));
            for turn in 0..CHUNK / (LOADERS / 16) {
                let token = first + turn * (LOADERS / 16);
                let index = token * V_STRIDE + column;
                // SAFETY: bounds: the token exists, columns are the head's. Owner: one quad a thread. Barrier: by the
                // caller.
                unsafe {
                    if token < self.tokens as usize {
                        copy_16(v, index, self.v, turn * (LOADERS / 16) * args.v_token_stride);
                    } else {
                        Tile::put_quad(v, index, [0.0; 4]);
                    }
                }
            }
            self.keys += Scratch::of(args).keys_stride() as u32;
            self.head += Scratch::of(args).head_stride() as u32;
            self.v = self.v.offset(CHUNK * args.v_token_stride);
            self.tokens = self.tokens.saturating_sub(CHUNK as u32);
            self.stage = (self.stage + 1) % STAGES as u32;
        }
        commit();
    }

    /// Leaves the largest finite magnitude of each column of a chunk's v, in halves of its tokens.
    ///
    /// # Safety
    /// The chunk's v is complete; a barrier follows before the result is read.
    #[inline(always)]
    pub unsafe fn measure_v(&self, chunk: u32) {
        let stage = self.stages.wrapping_add(chunk as usize % STAGES);
        // SAFETY: fields.
        let (v, largest) = unsafe { (&raw mut (*stage).v, &raw mut (*stage).v_largest) };
        let (half, column) = (self.thread / COLUMNS_PER_BLOCK, self.thread % COLUMNS_PER_BLOCK);
        let mut found = 0.0f32;
        for token in 0..CHUNK / 2 {
            // SAFETY: bounds: token < 32, columns below 64. Barrier: by the caller.
            let value = unsafe { Tile::at(v, (CHUNK / 2 * half + token) * V_STRIDE + column) }.abs();
            // An infinite v is not to make the column's others too small for 16 bits.
            found = found.max(if value < f32::INFINITY { value } else { 0.0 });
        }
        // SAFETY: bounds: 128 threads. Owner: this thread alone has (half, column). Barrier: by the caller.
        unsafe { Tile::put(largest, self.thread, found) };
    }
}

const _: () = assert!(LOADERS == 2 * COLUMNS_PER_BLOCK);
