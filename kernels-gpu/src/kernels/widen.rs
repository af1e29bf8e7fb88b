//! Tensors as the chunked kernels read them: dense rows of 32-bit floats, from any element type and strides; q and k
//! normalised, and g and beta from raw or linear gates, where that is asked for.
//!
//! # Math
//!   x <- x / sqrt(sum x^2 + eps)                                       for q and k
//!   g = -exp(a_log) softplus(a + dt_bias),   beta = factor sigmoid(b)  from raw gates, or g = ln(decay) from linear ones
//!
//! # Threads
//! Those of [`super::dense_rows`] for the rows of q, then those of k, then those of v; after them a thread a gate. Tensors that
//! stay where they are have no heads here, and so no blocks.
//!
//! # Why it is shaped so
//! One launch for all tensors: they are independent of each other, and each alone is too short to hide the start of the next.
//!
//! # Bits
//! Sums, gates and conversions are those of [`super::decode`], which does the same as it reads: the numbers are its own, but for the
//! logs of linear gates, which it does not need.
use super::decode::gates::{Gates, Kind};
use super::decode::{NORM_L2, NORM_NONE};
use super::dense_rows::{QUAD_STEP, Role, Strided, blocks};
use super::elements::{Elements, widen_quads};
use super::recurrence::QUADS;
use super::slices::normalised;
use crate::shape::HEAD_DIM;
use cuda_std::thread::{block_idx_x, thread_idx_below};
use cuda_std::{Global, GlobalMut};

pub use super::dense_rows::THREADS;

/// Blocks of a launch over so many tokens: heads of q, and of k as many, of v, and of g and beta, 0 of what stays where it is.
#[must_use]
pub const fn grid(tokens: u32, [key_heads, value_heads, gate_heads]: [u32; 3]) -> [u32; 2] {
    let of_rows = 2 * blocks(tokens * key_heads) + blocks(tokens * value_heads);
    [of_rows + (tokens * gate_heads).div_ceil(THREADS as u32), 1]
}

cuda_std::arguments! {
    /// What the kernel takes. Strides are in elements of their tensor, dim is contiguous, and element types are the codes of
    /// [`super::elements`]. What is written is dense, on 16 bytes, and overlaps nothing that is read.
    pub struct Args {
        /// `[batch, tokens, key heads, 128]` of `element`.
        pub q: Global<u8>,
        /// From a sequence of q to the next.
        pub q_batch_stride: usize,
        /// From a token of q to the next.
        pub q_token_stride: usize,
        /// From a head of q to the next.
        pub q_head_stride: usize,
        /// `[all tokens, key heads, 128]`.
        pub wide_q: GlobalMut<f32>,
        /// `[batch, tokens, key heads, 128]` of `element`.
        pub k: Global<u8>,
        /// From a sequence of k to the next.
        pub k_batch_stride: usize,
        /// From a token of k to the next.
        pub k_token_stride: usize,
        /// From a head of k to the next.
        pub k_head_stride: usize,
        /// `[all tokens, key heads, 128]`.
        pub wide_k: GlobalMut<f32>,
        /// `[batch, tokens, value heads, 128]` of `element`.
        pub v: Global<u8>,
        /// From a sequence of v to the next.
        pub v_batch_stride: usize,
        /// From a token of v to the next.
        pub v_token_stride: usize,
        /// From a head of v to the next.
        pub v_head_stride: usize,
        /// `[all tokens, value heads, 128]`.
        pub wide_v: GlobalMut<f32>,
        /// `[batch, tokens, gate heads]` of `g_element`: g, the forget gate where gates are linear, a where they are raw.
        pub g: Global<u8>,
        /// From a sequence of g to the next.
        pub g_batch_stride: usize,
        /// From a token of g to the next.
        pub g_token_stride: usize,
        /// From a head of g to the next.
        pub g_head_stride: usize,
        /// `[all tokens, gate heads]`.
        pub wide_g: GlobalMut<f32>,
        /// `[batch, tokens, gate heads]` of `beta_element`: beta, or b where gates are raw.
        pub beta: Global<u8>,
        /// From a sequence of beta to the next.
        pub beta_batch_stride: usize,
        /// From a token of beta to the next.
        pub beta_token_stride: usize,
        /// From a head of beta to the next.
        pub beta_head_stride: usize,
        /// `[all tokens, gate heads]`.
        pub wide_beta: GlobalMut<f32>,
        /// `[gate heads]`, read where gates are raw: see `gates`.
        pub a_log: Global<f32>,
        /// `[gate heads]`, read where gates are raw.
        pub dt_bias: Global<f32>,
        /// What is added to the sum of squares where q and k are normalised.
        pub norm_eps: f32,
        /// Multiplies the sigmoid of raw gates.
        pub beta_factor: f32,
        /// Tokens of each sequence, at least one.
        pub tokens: u32,
        /// Tokens of all together; times the heads of any tensor below 2^31.
        pub all_tokens: u32,
        /// Heads of q and of k, 0 where both stay where they are.
        pub num_key_heads: u32,
        /// Heads of v, 0 where it stays.
        pub num_value_heads: u32,
        /// Heads of g and beta, 0 where both stay.
        pub num_gate_heads: u32,
        /// Element type of q, k and v.
        pub element: u32,
        /// Element type of g or a.
        pub g_element: u32,
        /// Element type of beta or b.
        pub beta_element: u32,
        /// `decode::NORM_NONE` or `decode::NORM_L2`.
        pub norm: u32,
        /// `decode::GATES_LOG` or one of the others.
        pub gates: u32,
    }
    for widen_kernel
}

widen_kernel! {
    kernel "widen", capability 75, blocks 4;
    entry gdn_widen = run, threads THREADS, shared 0;
}

/// A tensor of rows, on its way.
#[derive(Clone, Copy)]
struct Rows {
    from: Global<u8>,
    strided: Strided,
    to: GlobalMut<f32>,
    heads: u32,
    norm: u32,
}

impl Rows {
    #[inline(always)]
    fn q(args: &Args) -> Self {
        Self {
            from: args.q,
            strided: Strided { batch: args.q_batch_stride, token: args.q_token_stride, head: args.q_head_stride },
            to: args.wide_q,
            heads: args.num_key_heads,
            norm: args.norm,
        }
    }

    #[inline(always)]
    fn k(args: &Args) -> Self {
        Self {
            from: args.k,
            strided: Strided { batch: args.k_batch_stride, token: args.k_token_stride, head: args.k_head_stride },
            to: args.wide_k,
            heads: args.num_key_heads,
            norm: args.norm,
        }
    }

    #[inline(always)]
    fn v(args: &Args) -> Self {
        Self {
            from: args.v,
            strided: Strided { batch: args.v_batch_stride, token: args.v_token_stride, head: args.v_head_stride },
            to: args.wide_v,
            heads: args.num_value_heads,
            norm: NORM_NONE,
        }
    }
}

/// The kernel.
///
/// # Safety
/// Called once by each of [`THREADS`] threads of each block of `grid()`; tensors hold what their shapes and strides describe, on
/// addresses that their elements need.
#[inline(always)]
unsafe fn run(args: Args) {
    let of_keys = blocks(args.all_tokens * args.num_key_heads);
    let of_values = blocks(args.all_tokens * args.num_value_heads);
    let block = block_idx_x();
    // SAFETY: each tensor has the blocks that `grid` counts for it.
    unsafe {
        if block < of_keys {
            widen_rows(&args, Rows::q(&args), block);
        } else if block < 2 * of_keys {
            widen_rows(&args, Rows::k(&args), block - of_keys);
        } else if block < 2 * of_keys + of_values {
            widen_rows(&args, Rows::v(&args), block - 2 * of_keys);
        } else {
            widen_gates(&args, block - 2 * of_keys - of_values);
        }
    }
}

/// A block's rows of one tensor.
///
/// # Safety
/// All threads of block `block` of the tensor make this call.
#[inline(always)]
unsafe fn widen_rows(args: &Args, rows: Rows, block: u32) {
    let role = Role::here(block);
    let count = args.all_tokens * rows.heads;
    // Lanes behind the last row read it too: all of them take part in the sums.
    let start = rows.strided.row(role.row.min(count - 1), args.tokens, rows.heads) + role.element(0);
    // SAFETY: bounds: a row of the tensor, elements below 128 by `Role`; read only.
    let raw = unsafe { Elements::new(rows.from, args.element).offset(start).quads::<QUADS>(QUAD_STEP) };
    let mut x = widen_quads(args.element, &raw);
    if rows.norm == NORM_L2 {
        // SAFETY: all lanes of the warp are here, with the lanes of a row as `slices` has those of a column.
        x = unsafe { normalised(&x, args.norm_eps) };
    }
    if role.row < count {
        let to = rows.to.offset(role.row as usize * HEAD_DIM);
        for quad in 0..QUADS {
            // SAFETY: bounds: as above. Owner: one thread an element. The row is dense and on 16 bytes.
            unsafe { to.put_quad(role.element(quad), x[quad]) };
        }
    }
}

/// A block's gates.
///
/// # Safety
/// `block` is one of those that `grid` counts for them.
#[inline(always)]
unsafe fn widen_gates(args: &Args, block: u32) {
    let index = block * THREADS as u32 + thread_idx_below::<THREADS>() as u32;
    if index >= args.all_tokens * args.num_gate_heads {
        return;
    }
    let strides = |batch, token, head| Strided { batch, token, head };
    let g = strides(args.g_batch_stride, args.g_token_stride, args.g_head_stride);
    let beta = strides(args.beta_batch_stride, args.beta_token_stride, args.beta_head_stride);
    let Args { gates, g_element, beta_element, a_log, dt_bias, beta_factor, .. } = *args;
    let kind = Kind { gates, g_element, beta_element, a_log, dt_bias, beta_factor };
    let at = |memory, element, strided: Strided| {
        Elements::new(memory, element).offset(strided.row(index, args.tokens, args.num_gate_heads))
    };
    // SAFETY: bounds: the gate exists. Owner: inputs are read only, and a thread writes its own gate.
    unsafe {
        let gates = Gates::of(kind, (index % args.num_gate_heads) as usize);
        let (g, beta) = gates.log_and_beta(at(args.g, g_element, g).first(), at(args.beta, beta_element, beta).first());
        args.wide_g.put(index as usize, g);
        args.wide_beta.put(index as usize, beta);
    }
}
