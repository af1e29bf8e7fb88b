//! Chunked Gated DeltaNet on tensor cores, last kernel: the value heads that [`super::chunk_prep_tensor`] marked as out of
//! the range of 16-bit floats, and the halves of their columns that the scan did, token by token as
//! [`super::recurrent_by_column`]. Where there are none, it ends at once. On Hopper [`super::chunk_scan_warpgroup`] does this
//! itself, with [`run_tile`].
use super::chunk::{Args, chunk_kernel};
use super::chunk_parts::{Part, final_state, initial_state};
use super::chunk_scan_tensor::COLUMNS_PER_BLOCK;
use super::chunk_tensor::Scratch;
use super::recurrence::{self, Role};
use super::recurrent_by_column;
use cuda_std::thread::{block_idx_x, block_idx_y, thread_idx_below};

pub use recurrent_by_column::THREADS;

/// Tiles of columns that share a mark.
pub const TILES_PER_HALF: usize = COLUMNS_PER_BLOCK / recurrent_by_column::COLUMNS_PER_BLOCK;

chunk_kernel! {
    kernel "chunk_fallback", capability 80, blocks 2;
    entry gdn_chunk_fallback = run, threads THREADS, shared 0;
}

/// The kernel.
///
/// # Safety
/// Called once by each of `THREADS` threads of each block of `grid()`, after the scan with the same arguments; every tensor
/// holds what its shape and strides describe; out and the final state overlap no input but the initial state.
#[inline(always)]
pub unsafe fn run(args: Args) {
    let (place, value_head) = args.part_and_value_head(block_idx_y());
    // SAFETY: the grid has so many parts. All lanes are here. The mark is the block's, so that all of its threads are here.
    unsafe {
        let part = Part::at(&args, place);
        let (tile, thread) = (block_idx_x() as usize, thread_idx_below::<THREADS>());
        if Scratch::of(&args).is_half_marked(&part, value_head as usize, tile / TILES_PER_HALF, thread % 32) {
            run_tile(&args, place, value_head, tile, thread);
        }
    }
}

/// A tile of columns of a part's value head, from the part's start.
///
/// # Safety
/// As [`run`], by [`THREADS`] threads of a block, of which this is one; there are such a part, head and tile.
#[inline(always)]
pub unsafe fn run_tile(args: &Args, place: usize, value_head: u32, tile: usize, thread: usize) {
    // SAFETY: by the caller; the contract is the same.
    unsafe {
        let part = Part::at(args, place);
        let args = Args {
            v: part.v(args),
            out: part.out(args),
            initial_state: initial_state(args, place),
            final_state: final_state(args, place),
            ..part.inputs(args)
        };
        recurrent_by_column::run_head(recurrent(&args), value_head, tile, Role::of(thread));
    }
}

/// Blocks of a launch: column tiles, value heads of each of `parts` parts.
#[must_use]
pub const fn grid(num_value_heads: u32, parts: u32) -> [u32; 2] {
    recurrent_by_column::grid(parts * num_value_heads)
}

/// The same arguments, as the recurrent kernels take them.
#[inline(always)]
fn recurrent(args: &Args) -> recurrence::Args {
    recurrence::Args {
        q: args.q,
        q_token_stride: args.q_token_stride,
        q_head_stride: args.q_head_stride,
        k: args.k,
        k_token_stride: args.k_token_stride,
        k_head_stride: args.k_head_stride,
        v: args.v,
        v_token_stride: args.v_token_stride,
        v_head_stride: args.v_head_stride,
        g: args.g,
        g_token_stride: args.g_token_stride,
        g_head_stride: args.g_head_stride,
        beta: args.beta,
        beta_token_stride: args.beta_token_stride,
        beta_head_stride: args.beta_head_stride,
        out: args.out,
        out_token_stride: args.out_token_stride,
        out_head_stride: args.out_head_stride,
        initial_state: args.initial_state,
        final_state: args.final_state,
        state_head_stride: args.state_head_stride,
        state_row_stride: args.state_row_stride,
        scale: args.scale,
        tokens: args.tokens,
        num_key_heads: args.num_key_heads,
        values_per_key: args.values_per_key,
        head_map: args.head_map,
    }
}
