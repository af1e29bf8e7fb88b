//! An output in dense rows of 32-bit floats, written where the caller has it, in the caller's element type: each number is
//! rounded once, to the nearest.
//!
//! # Threads
//! Those of [`super::dense_rows`].
use super::dense_rows::{Role, Strided, blocks};
use super::elements::ElementsMut;
use super::recurrence::QUADS;
use crate::shape::HEAD_DIM;
use cuda_std::thread::block_idx_x;
use cuda_std::{Global, GlobalMut};

pub use super::dense_rows::THREADS;

/// Blocks of a launch.
#[must_use]
pub const fn grid(tokens: u32, num_value_heads: u32) -> [u32; 2] {
    [blocks(tokens * num_value_heads), 1]
}

cuda_std::arguments! {
    /// What the kernel takes. Strides are in elements, dim is contiguous.
    pub struct Args {
        /// `[all tokens, value heads, 128]`, dense, on 16 bytes.
        pub wide_out: Global<f32>,
        /// `[batch, tokens, value heads, 128]` of `out_element`.
        pub out: GlobalMut<u8>,
        /// From a sequence of out to the next.
        pub out_batch_stride: usize,
        /// From a token of out to the next.
        pub out_token_stride: usize,
        /// From a head of out to the next.
        pub out_head_stride: usize,
        /// Tokens of each sequence, at least one.
        pub tokens: u32,
        /// Tokens of all together; times the value heads below 2^31.
        pub all_tokens: u32,
        /// Value heads.
        pub num_value_heads: u32,
        /// Element type of out.
        pub out_element: u32,
    }
    for narrow_kernel
}

narrow_kernel! {
    kernel "narrow", capability 75, blocks 4;
    entry gdn_narrow = run, threads THREADS, shared 0;
}

/// The kernel.
///
/// # Safety
/// Called once by each of [`THREADS`] threads of each block of `grid()`; tensors hold what their shapes and strides describe, on
/// addresses that their elements need; rows of out overlap neither each other nor what is read.
#[inline(always)]
unsafe fn run(args: Args) {
    let role = Role::here(block_idx_x());
    if role.row >= args.all_tokens * args.num_value_heads {
        return;
    }
    let strided = Strided { batch: args.out_batch_stride, token: args.out_token_stride, head: args.out_head_stride };
    let start = strided.row(role.row, args.tokens, args.num_value_heads);
    let from = args.wide_out.offset(role.row as usize * HEAD_DIM);
    let to = ElementsMut::new(args.out, args.out_element).offset(start);
    let mut o = [[0.0; 4]; QUADS];
    for quad in 0..QUADS {
        // SAFETY: bounds: the row exists, elements below 128 by `Role`; read only. It is dense and on 16 bytes.
        o[quad] = unsafe { from.quad(role.element(quad)) };
    }
    for quad in 0..QUADS {
        // SAFETY: bounds: as above. Owner: one thread an element.
        unsafe { to.offset(role.element(quad)).put_quad(o[quad]) };
    }
}
