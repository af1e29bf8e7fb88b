//! Several sequences in one launch of the chunked kernels on tensor cores: which of them a block works on.
//!
//! # Memory
//! A table of [`WORDS`] words for each part, which is a sequence or a segment of one. The longest part is the first, so that
//! the short ones' blocks fill what the long ones' leave. The scratch has the chunks of all parts in the same order.
//!
//! # Why it is shaped so
//! A block reads its part once. What it needs again at its end, where the final state goes, it reads again: carried along, it
//! would take registers that the scan does not have.
use super::chunk::{Args, CHUNK};
use cuda_std::warp::warp_max;
use cuda_std::{Global, GlobalMut};

/// Words of a part, in this order: its place on the batch axis, its first token, its tokens, its first chunk in the scratch;
/// whether its state comes from the states that are kept, and its slot there or among the initial ones; the same two for where
/// the state goes.
pub const WORDS: usize = 8;
const BATCH: usize = 0;
const FIRST_TOKEN: usize = 1;
const TOKENS: usize = 2;
const FIRST_CHUNK: usize = 3;
const FROM: usize = 4;
const TO: usize = 6;

/// A part of a launch.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    batch: usize,
    first_token: usize,
    /// Its tokens.
    pub tokens: u32,
    /// Its first chunk in the scratch.
    pub first_chunk: usize,
}

impl Part {
    /// The part at `place` of the table; without a table the whole launch.
    ///
    /// # Safety
    /// There is such a part.
    #[inline(always)]
    pub unsafe fn at(args: &Args, place: usize) -> Self {
        if args.parts.as_ptr().is_null() {
            return Self { batch: 0, first_token: 0, tokens: args.tokens, first_chunk: 0 };
        }
        // SAFETY: bounds: by the caller. Read only.
        let [batch, first_token, tokens, first_chunk] =
            [BATCH, FIRST_TOKEN, TOKENS, FIRST_CHUNK].map(|word| unsafe { args.parts.at(place * WORDS + word) });
        Self { batch: batch as usize, first_token: first_token as usize, tokens, first_chunk: first_chunk as usize }
    }

    /// The part that has a chunk of the launch.
    ///
    /// # Safety
    /// There is such a chunk; all lanes of the warp make this call together.
    #[inline(always)]
    pub unsafe fn of_chunk(args: &Args, chunk: usize, lane: usize) -> Self {
        let (mut place, mut index) = (0, lane);
        // All lanes look at once: parts start one after the other, so that the last that starts early enough is it.
        while index < args.num_parts as usize {
            // SAFETY: bounds: index < num_parts. Read only.
            if unsafe { args.parts.at(index * WORDS + FIRST_CHUNK) } as usize <= chunk {
                place = index;
            }
            index += 32;
        }
        // SAFETY: all lanes are here.
        let place = unsafe { warp_max(place as u32) };
        // SAFETY: place < num_parts, or there is no table.
        unsafe { Self::at(args, place as usize) }
    }

    /// Where, in a tensor with these strides, the part starts.
    #[inline(always)]
    #[must_use]
    pub fn start(&self, batch_stride: usize, token_stride: usize) -> usize {
        self.batch * batch_stride + self.first_token * token_stride
    }

    /// The arguments with keys, queries and gates from the part on, and its tokens alone.
    #[inline(always)]
    #[must_use]
    pub fn inputs(&self, args: &Args) -> Args {
        Args {
            q: args.q.offset(self.start(args.q_batch_stride, args.q_token_stride)),
            k: args.k.offset(self.start(args.k_batch_stride, args.k_token_stride)),
            g: args.g.offset(self.start(args.g_batch_stride, args.g_token_stride)),
            beta: args.beta.offset(self.start(args.beta_batch_stride, args.beta_token_stride)),
            tokens: self.tokens,
            ..*args
        }
    }

    /// v from the part on.
    #[inline(always)]
    #[must_use]
    pub fn v(&self, args: &Args) -> Global<f32> {
        args.v.offset(self.start(args.v_batch_stride, args.v_token_stride))
    }

    /// The output from the part on.
    #[inline(always)]
    #[must_use]
    pub fn out(&self, args: &Args) -> GlobalMut<f32> {
        args.out.offset(self.start(args.out_batch_stride, args.out_token_stride))
    }

    /// Its chunks.
    #[inline(always)]
    #[must_use]
    pub fn chunks(&self) -> usize {
        (self.tokens as usize).div_ceil(CHUNK)
    }
}

/// Where the part at `place` starts from; null for zeros.
///
/// # Safety
/// There is such a part.
#[inline(always)]
pub unsafe fn initial_state(args: &Args, place: usize) -> Global<f32> {
    if args.parts.as_ptr().is_null() {
        return args.initial_state;
    }
    // SAFETY: bounds: by the caller. Read only.
    let [kept, slot] = [FROM, FROM + 1].map(|word| unsafe { args.parts.at(place * WORDS + word) });
    if kept != 0 {
        Global::new(args.kept_states.offset(slot as usize * args.kept_state_stride).as_ptr().cast_const())
    } else if args.initial_state.as_ptr().is_null() {
        args.initial_state
    } else {
        args.initial_state.offset(slot as usize * args.initial_state_stride)
    }
}

/// Where its state goes; null to drop it.
///
/// # Safety
/// There is such a part.
#[inline(always)]
pub unsafe fn final_state(args: &Args, place: usize) -> GlobalMut<f32> {
    if args.parts.as_ptr().is_null() {
        return args.final_state;
    }
    // SAFETY: bounds: by the caller. Read only.
    let [kept, slot] = [TO, TO + 1].map(|word| unsafe { args.parts.at(place * WORDS + word) });
    if kept != 0 {
        args.kept_states.offset(slot as usize * args.kept_state_stride)
    } else if args.final_state.as_ptr().is_null() {
        args.final_state
    } else {
        args.final_state.offset(slot as usize * args.final_state_stride)
    }
}
