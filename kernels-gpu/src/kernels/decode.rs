//! Gated DeltaNet token by token for what an inference engine decodes: a batch of sequences of few tokens each, in any
//! element type, with the states in pools. One launch, no scratch, and nothing that the host must know of the tables.
//!
//! # Math
//! [`super::recurrence`], for every token in order, on FP32 states. Before it, where asked for:
//!   x <- x / sqrt(sum x^2 + eps)                                       for q and k
//!   g = -exp(a_log) softplus(a + dt_bias),   beta = factor sigmoid(b)  from raw gates

use cuda_std::{Global, GlobalMut};

cuda_std::arguments! {
    /// What the kernel takes. Strides are in elements of their tensor, dim is contiguous, and element types are the codes of
    /// [`super::elements`]. A pool's element is `[slot][value head][key row][column]` at four strides of any order.
    pub struct Args {
        /// `[batch, tokens, key heads, 128]` of `element`.
        pub q: Global<u8>,
        /// From a sequence of q to the next; not used with `cu_seqlens`, here as in what follows.
        pub q_batch_stride: usize,
        /// From a token of q to the next.
        pub q_token_stride: usize,
        /// From a head of q to the next.
        pub q_head_stride: usize,
        /// `[batch, tokens, key heads, 128]` of `element`.
        pub k: Global<u8>,
        /// From a sequence of k to the next.
        pub k_batch_stride: usize,
        /// From a token of k to the next.
        pub k_token_stride: usize,
        /// From a head of k to the next.
        pub k_head_stride: usize,
        /// `[batch, tokens, value heads, 128]` of `element`.
        pub v: Global<u8>,
        /// From a sequence of v to the next.
        pub v_batch_stride: usize,
        /// From a token of v to the next.
        pub v_token_stride: usize,
        /// From a head of v to the next.
        pub v_head_stride: usize,
        /// `[batch, tokens, value heads]` of `g_element`: g, or a where gates are raw.
        pub g: Global<u8>,
        /// From a sequence of g to the next.
        pub g_batch_stride: usize,
        /// From a token of g to the next.
        pub g_token_stride: usize,
        /// From a head of g to the next.
        pub g_head_stride: usize,
        /// `[batch, tokens, value heads]` of `beta_element`: beta, or b where gates are raw.
        pub beta: Global<u8>,
        /// From a sequence of beta to the next.
        pub beta_batch_stride: usize,
        /// From a token of beta to the next.
        pub beta_token_stride: usize,
        /// From a head of beta to the next.
        pub beta_head_stride: usize,
        /// `[value heads]`, read where gates are raw: see `gates`.
        pub a_log: Global<f32>,
        /// `[value heads]`, read where gates are raw.
        pub dt_bias: Global<f32>,
        /// `[batch, tokens, value heads, 128]` of `out_element`; overlaps no input.
        pub out: GlobalMut<u8>,
        /// From a sequence of out to the next.
        pub out_batch_stride: usize,
        /// From a token of out to the next.
        pub out_token_stride: usize,
        /// From a head of out to the next.
        pub out_head_stride: usize,
        /// Null, or `[sequences + 1]` ascending: sequence i is rows `cu_seqlens[i]..cu_seqlens[i + 1]` of the token axis.
        pub cu_seqlens: Global<u32>,
        /// The pool that sequences start from, null for zero states.
        pub initial_state: Global<f32>,
        /// From a slot to the next.
        pub initial_slot_stride: usize,
        /// From a head to the next.
        pub initial_head_stride: usize,
        /// From a key row to the next.
        pub initial_row_stride: usize,
        /// From a column to the next.
        pub initial_column_stride: usize,
        /// Slots of the pool.
        pub initial_slots: usize,
        /// The pool that final states go to, null to drop them. May be `initial_state`'s memory with the same strides.
        pub final_state: GlobalMut<f32>,
        /// From a slot to the next.
        pub final_slot_stride: usize,
        /// From a head to the next.
        pub final_head_stride: usize,
        /// From a key row to the next.
        pub final_row_stride: usize,
        /// From a column to the next.
        pub final_column_stride: usize,
        /// Slots of the pool.
        pub final_slots: usize,
        /// The pool that the state after each token goes to, null for none. May be one of the others with the same strides.
        pub checkpoint: GlobalMut<f32>,
        /// From a slot to the next.
        pub checkpoint_slot_stride: usize,
        /// From a head to the next.
        pub checkpoint_head_stride: usize,
        /// From a key row to the next.
        pub checkpoint_row_stride: usize,
        /// From a column to the next.
        pub checkpoint_column_stride: usize,
        /// Slots of the pool.
        pub checkpoint_slots: usize,
        /// `[sequences]` of `state_index`: the slot that a sequence starts from, and that its final state goes to. Null: the
        /// sequence's number. Padding: output rows are zero, no state is written.
        pub state_indices: Global<u8>,
        /// `[sequences]` of `output_state_index`: the slot of the final state, where it is another. Padding: it is dropped.
        pub output_state_indices: Global<u8>,
        /// `[sequences][checkpoint_tokens]` of `checkpoint_index`: the slot of the state after each token. Padding: it is
        /// not stored, as after tokens from `checkpoint_tokens` on. Null: by `checkpoint_lanes`.
        pub checkpoint_indices: Global<u8>,
        /// Entries of a sequence in `checkpoint_indices`.
        pub checkpoint_tokens: usize,
        /// Without `checkpoint_indices`: the state after token t of a sequence with slot s of `state_indices` goes to slot
        /// `s / lanes * lanes + t`, for t below lanes. The final state still goes to its slot, last.
        pub checkpoint_lanes: u32,
        /// Multiplies the output.
        pub scale: f32,
        /// What is added to the sum of squares where q and k are normalised.
        pub norm_eps: f32,
        /// Multiplies the sigmoid of raw gates: 1, or 2 to allow negative eigenvalues.
        pub beta_factor: f32,
        /// Sequences.
        pub sequences: u32,
        /// Tokens of each sequence; with `cu_seqlens`, rows of the token axis, which no sequence passes.
        pub tokens: u32,
        /// Key heads.
        pub num_key_heads: u32,
        /// Value heads per key head.
        pub values_per_key: u32,
        /// `shape::GROUPED` or `shape::TILED`.
        pub head_map: u32,
        /// Element type of q, k and v.
        pub element: u32,
        /// Element type of g or a.
        pub g_element: u32,
        /// Element type of beta or b.
        pub beta_element: u32,
        /// Element type of out.
        pub out_element: u32,
        /// [`NORM_NONE`] or [`NORM_L2`].
        pub norm: u32,
        /// [`GATES_LOG`], [`GATES_A_LOG`] or [`GATES_NEGATIVE_EXP`].
        pub gates: u32,
        /// Width of `state_indices`: `slots::INDEX_32` or `slots::INDEX_64`.
        pub state_index: u32,
        /// Width of `output_state_indices`.
        pub output_state_index: u32,
        /// Width of `checkpoint_indices`.
        pub checkpoint_index: u32,
    }
    for decode_kernel
}

/// `norm`: q and k as they are.
pub const NORM_NONE: u32 = 0;
/// `norm`: q and k divided by `sqrt(sum x^2 + norm_eps)`; zero stays zero.
pub const NORM_L2: u32 = 1;

/// `gates`: g is the log of the forget gate, beta the write strength.
pub const GATES_LOG: u32 = 0;
/// `gates`: raw, and `a_log` is what `-exp` is taken of.
pub const GATES_A_LOG: u32 = 1;
/// `gates`: raw, and `a_log` holds `-exp(a_log)` already.
pub const GATES_NEGATIVE_EXP: u32 = 2;
