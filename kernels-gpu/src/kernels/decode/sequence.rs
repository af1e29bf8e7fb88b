//! Which tokens and which slots a sequence has, from tables on the device.
use super::super::slots::{PADDING, Pool, slot_at};
use super::Args;

/// One sequence of the batch.
#[derive(Clone, Copy, Debug)]
pub struct Sequence {
    /// Its number.
    pub index: usize,
    /// What batch strides are multiplied by.
    pub batch: usize,
    /// Its first row of the token axis.
    pub first_token: usize,
    /// Its tokens.
    pub tokens: usize,
    /// The slot that it starts from; padding where the sequence is.
    pub slot: usize,
    /// The slot of its final state; padding where that is dropped.
    pub final_slot: usize,
}

/// The pool of initial states.
#[inline(always)]
pub fn initial_pool(args: &Args) -> Pool {
    Pool {
        slot_stride: args.initial_slot_stride,
        head_stride: args.initial_head_stride,
        row_stride: args.initial_row_stride,
        column_stride: args.initial_column_stride,
        slots: if args.initial_state.as_ptr().is_null() { PADDING } else { args.initial_slots },
    }
}

/// The pool of final states, without slots where there is none.
#[inline(always)]
pub fn final_pool(args: &Args) -> Pool {
    Pool {
        slot_stride: args.final_slot_stride,
        head_stride: args.final_head_stride,
        row_stride: args.final_row_stride,
        column_stride: args.final_column_stride,
        slots: if args.final_state.as_ptr().is_null() { 0 } else { args.final_slots },
    }
}

/// The pool of checkpoints, without slots where there is none.
#[inline(always)]
pub fn checkpoint_pool(args: &Args) -> Pool {
    Pool {
        slot_stride: args.checkpoint_slot_stride,
        head_stride: args.checkpoint_head_stride,
        row_stride: args.checkpoint_row_stride,
        column_stride: args.checkpoint_column_stride,
        slots: if args.checkpoint.as_ptr().is_null() { 0 } else { args.checkpoint_slots },
    }
}

impl Sequence {
    /// Sequence `index`.
    ///
    /// # Safety
    /// `index` is below the number of sequences, and the tables have what their documentation says.
    #[inline(always)]
    pub unsafe fn of(args: &Args, index: usize) -> Self {
        let (mut batch, mut first_token, mut tokens) = (index, 0, args.tokens);
        if !args.cu_seqlens.as_ptr().is_null() {
            // SAFETY: bounds: one entry more than sequences, by the caller; read only.
            let (start, end) = unsafe { (args.cu_seqlens.at(index), args.cu_seqlens.at(index + 1)) };
            batch = 0;
            first_token = start as usize;
            // A table that is not what it should be must not lead out of the tensors.
            tokens = end.min(args.tokens).saturating_sub(start);
        }
        let mut slot = index;
        if !args.state_indices.as_ptr().is_null() {
            // SAFETY: bounds: one entry a sequence, by the caller; read only.
            slot = unsafe { slot_at(args.state_indices, args.state_index, index) };
        }
        let mut final_slot = slot;
        if !args.output_state_indices.as_ptr().is_null() {
            // SAFETY: as above.
            final_slot = unsafe { slot_at(args.output_state_indices, args.output_state_index, index) };
        } else if !args.final_state.as_ptr().is_null() && slot >= args.final_slots {
            slot = PADDING;
        }
        if slot >= initial_pool(args).slots {
            slot = PADDING;
        }
        Self { index, batch, first_token, tokens: tokens as usize, slot, final_slot }
    }

    /// The slot of the state after token `token`; padding where it is not stored.
    ///
    /// # Safety
    /// As [`Sequence::of`].
    #[inline(always)]
    pub unsafe fn checkpoint_slot(&self, args: &Args, token: usize) -> usize {
        if !args.checkpoint_indices.as_ptr().is_null() {
            if token < args.checkpoint_tokens {
                let entry = self.index * args.checkpoint_tokens + token;
                // SAFETY: bounds: token < checkpoint_tokens entries of the sequence; read only.
                return unsafe { slot_at(args.checkpoint_indices, args.checkpoint_index, entry) };
            }
        } else if token < args.checkpoint_lanes as usize {
            // Slots that are not padding fit in 32 bits.
            let first_lane = self.slot as u32 / args.checkpoint_lanes * args.checkpoint_lanes;
            return first_lane as usize + token;
        }
        PADDING
    }
}
