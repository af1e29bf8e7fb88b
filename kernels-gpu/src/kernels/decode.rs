//! Gated DeltaNet token by token for what an inference engine decodes: a batch of sequences of few tokens each, in any
//! element type, with the states in pools. One launch, no scratch, and nothing that the host must know of the tables.
//!
//! # Math
//! [`super::recurrence`], for every token in order, on FP32 states. Before it, where asked for:
//!   x <- x / sqrt(sum x^2 + eps)                                       for q and k
//!   g = -exp(a_log) softplus(a + dt_bias),   beta = factor sigmoid(b)  from raw gates
//!
//! # Threads
//! Those of [`super::slices`], a state a sequence.
//!
//! # Memory
//! No shared memory. With one token a sequence, this is a copy of the states with arithmetic in between: a thread asks for
//! all of its state before it waits for any of it, 16 bytes at a time where columns or rows are contiguous. The other
//! inputs are small beside it; they are read a token ahead.
//!
//! # Bits
//! The sums are those of [`super::recurrence`] in their order, so that results are equal bit for bit to those of the recurrent
//! kernels on the same numbers, whatever the element types, strides, slots and neighbours, and wherever a sequence is cut.
pub mod gates;
mod inputs;
mod sequence;

use super::elements::{ElementsMut, widen_quads};
use super::recurrence::{correction, update};
use super::slices::{COLUMNS_PER_THREAD, Role, dot, load, store};
use super::slots::PADDING;
use crate::shape::key_head;
use cuda_std::memory::Quad;
use cuda_std::{Global, GlobalMut};
use gates::{Gates, Kind};
use inputs::{Inputs, Token, key_or_query};
use sequence::{Sequence, checkpoint_pool, final_pool, initial_pool};

pub use super::slices::{THREADS, grid};

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
        /// Sequences; blocks of a larger grid do nothing.
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
        /// [`GATES_LOG`], [`GATES_LINEAR`], [`GATES_A_LOG`] or [`GATES_NEGATIVE_EXP`].
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

decode_kernel! {
    kernel "decode", capability 75, blocks 5;
    entry gdn_decode = run, threads THREADS, shared 0;
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
/// `gates`: g is the forget gate itself, beta the write strength.
pub const GATES_LINEAR: u32 = 3;

/// Where a thread's outputs go.
struct Output {
    first: ElementsMut,
    part: usize,
}

impl Output {
    #[inline(always)]
    fn new(args: &Args, sequence: &Sequence, role: Role) -> Self {
        let first = ElementsMut::new(args.out, args.out_element).offset(
            sequence.batch * args.out_batch_stride
                + sequence.first_token * args.out_token_stride
                + role.value_head as usize * args.out_head_stride
                + role.column,
        );
        Self { first, part: role.row_group }
    }

    /// Writes a token's outputs of the thread's columns, together with the other lanes that have them.
    ///
    /// # Safety
    /// The token exists.
    #[inline(always)]
    unsafe fn put(&self, args: &Args, token: usize, o: Quad) {
        // SAFETY: bounds: column + 4 <= 128, the token by the caller. Owner: the column's lanes, each its part.
        unsafe { self.first.offset(token * args.out_token_stride).put_quad_part(self.part, o) };
    }
}

/// The kernel.
///
/// # Safety
/// Called once by each of `THREADS` threads of each block of `grid()`; tensors, pools and tables hold what their shapes and
/// strides describe, on addresses that their elements need; sequences that are not padding have slots of their own; out and
/// the pools that are written overlap nothing that is read, but for a pool that is another with the same strides.
#[inline(always)]
pub unsafe fn run(args: Args) {
    let role = Role::here(args.num_key_heads * args.values_per_key);
    if role.state >= args.sequences as usize {
        return;
    }
    let key_head = key_head(role.value_head, args.values_per_key, args.num_key_heads, args.head_map) as usize;
    let value_head = role.value_head as usize;
    // SAFETY: there are so many sequences.
    let sequence = unsafe { Sequence::of(&args, role.state) };

    let mut inputs = Inputs::first(&args, &sequence, key_head, role);
    let mut next = Token::default();
    if sequence.tokens > 0 {
        // SAFETY: there is a first token.
        next = unsafe { inputs.read(&args) };
    }
    let Args { gates, g_element, beta_element, a_log, dt_bias, beta_factor, .. } = args;
    let kind = Kind { gates, g_element, beta_element, a_log, dt_bias, beta_factor };
    // SAFETY: value_head is one of the heads.
    let gates = unsafe { Gates::of(kind, value_head) };
    let out = Output::new(&args, &sequence, role);
    if sequence.slot == PADDING {
        for token in 0..sequence.tokens {
            // SAFETY: the token exists.
            unsafe { out.put(&args, token, [0.0; 4]) };
        }
        return;
    }

    let mut s = [Default::default(); COLUMNS_PER_THREAD];
    if !args.initial_state.as_ptr().is_null() {
        let pool = initial_pool(&args);
        let state = args.initial_state.offset(pool.head(sequence.slot, value_head));
        // SAFETY: the slot is one of the pool's. Owner: this thread alone writes its part of it, below.
        s = unsafe { load(state, &pool, role) };
    }
    for token in 0..sequence.tokens {
        let current = next;
        // SAFETY: it is the token's turn.
        let q = unsafe { inputs.read_query(&args) };
        if sequence.tokens - token > 1 {
            // SAFETY: the token exists.
            next = unsafe { inputs.read(&args) };
        }
        let (decay, beta) = gates.decay_and_beta(current.g, current.beta);
        let [v] = widen_quads(args.element, &current.v);
        // SAFETY: all lanes of the warp run every token of the sequence, here and below.
        let (k, state_at_key) = unsafe {
            let k = key_or_query(&args, &current.k);
            (k, dot(&s, &k))
        };
        for n in 0..COLUMNS_PER_THREAD {
            let d = correction(beta, v[n], decay, state_at_key[n]);
            update(&mut s[n], decay, &k, d);
        }
        // SAFETY: all lanes are here.
        let o = unsafe { dot(&s, &key_or_query(&args, &q)) };
        // SAFETY: the token exists.
        unsafe { out.put(&args, token, o.map(|o| o * args.scale)) };

        let pool = checkpoint_pool(&args);
        if pool.slots > 0 {
            // SAFETY: the table has the sequence.
            let slot = unsafe { sequence.checkpoint_slot(&args, token) };
            if slot < pool.slots {
                let state = args.checkpoint.offset(pool.head(slot, value_head));
                // SAFETY: the slot is one of the pool's, and this thread has read its part of the initial state.
                unsafe { store(state, &pool, role, &s) };
            }
        }
    }

    let pool = final_pool(&args);
    if sequence.final_slot < pool.slots {
        let state = args.final_state.offset(pool.head(sequence.final_slot, value_head));
        // SAFETY: the slot is one of the pool's, and this thread has read its part of the initial state.
        unsafe { store(state, &pool, role, &s) };
    }
}
