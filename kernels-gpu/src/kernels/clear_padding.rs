//! Zeros in the output of the sequences that a table on the device gives no slot: rows of a batch that nobody is in.
//!
//! # Threads: one block per (sequence, value head); 128 threads = 4 warps, a token a warp at a time
//! A block whose sequence has a slot ends at once, and that is nearly all of them.
use super::elements::ElementsMut;
use super::slots::slot_at;
use cuda_std::thread::{block_idx_x, thread_idx_below};
use cuda_std::warp::WARP_SIZE;
use cuda_std::{Global, GlobalMut};

/// Threads of a block.
pub const THREADS: usize = 128;
/// Tokens that a block clears at a time.
const WARPS: usize = THREADS / WARP_SIZE as usize;
const _: () = assert!(4 * WARP_SIZE as usize == crate::shape::HEAD_DIM);

/// Blocks of a launch; their number fits in 31 bits.
#[must_use]
pub const fn grid(sequences: u32, num_value_heads: u32) -> [u32; 2] {
    [sequences * num_value_heads, 1]
}

cuda_std::arguments! {
    /// What the kernel takes. Strides are in elements, dim is contiguous.
    pub struct Args {
        /// `[batch, tokens, value heads, 128]` of `out_element`.
        pub out: GlobalMut<u8>,
        /// From a sequence of out to the next; not used with `cu_seqlens`.
        pub out_batch_stride: usize,
        /// From a token of out to the next.
        pub out_token_stride: usize,
        /// From a head of out to the next.
        pub out_head_stride: usize,
        /// Null, or `[sequences + 1]` ascending: sequence i is rows `cu_seqlens[i]..cu_seqlens[i + 1]` of the token axis.
        pub cu_seqlens: Global<u32>,
        /// `[sequences]` of `state_index`.
        pub state_indices: Global<u8>,
        /// Slots that there are: an entry from there on is padding too.
        pub slots: usize,
        /// Tokens of each sequence; not used with `cu_seqlens`.
        pub tokens: u32,
        /// Value heads.
        pub num_value_heads: u32,
        /// Element type of out.
        pub out_element: u32,
        /// Width of `state_indices`: `slots::INDEX_32` or `slots::INDEX_64`.
        pub state_index: u32,
    }
    for clear_padding_kernel
}

clear_padding_kernel! {
    kernel "clear_padding", capability 75, blocks 8;
    entry gdn_clear_padding = run, threads THREADS, shared 0;
}

/// The kernel.
///
/// # Safety
/// Called once by each of [`THREADS`] threads of each block of `grid()`; out and the tables hold what their shapes and strides
/// describe.
#[inline(always)]
unsafe fn run(args: Args) {
    let (sequence, head) = (block_idx_x() / args.num_value_heads, block_idx_x() % args.num_value_heads);
    let sequence = sequence as usize;
    // SAFETY: bounds: one entry a sequence; read only.
    let slot = unsafe { slot_at(args.state_indices, args.state_index, sequence) };
    if slot < args.slots {
        return;
    }
    let (mut start, mut tokens) = (sequence * args.out_batch_stride, args.tokens);
    if !args.cu_seqlens.as_ptr().is_null() {
        // SAFETY: bounds: one entry more than sequences; read only.
        let (first, end) = unsafe { (args.cu_seqlens.at(sequence), args.cu_seqlens.at(sequence + 1)) };
        (start, tokens) = (first as usize * args.out_token_stride, end - first);
    }
    let thread = thread_idx_below::<THREADS>();
    let (mut token, lane) = (thread / WARP_SIZE as usize, thread % WARP_SIZE as usize);
    let rows =
        ElementsMut::new(args.out, args.out_element).offset(start + head as usize * args.out_head_stride + 4 * lane);
    while token < tokens as usize {
        // SAFETY: bounds: the token exists, 4 lane + 4 <= 128. Owner: one thread an element.
        unsafe { rows.offset(token * args.out_token_stride).put_quad([0.0; 4]) };
        token += WARPS;
    }
}
