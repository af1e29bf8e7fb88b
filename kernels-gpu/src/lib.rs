//! Gated DeltaNet kernels. One source: PTX for the GPU, and bodies that the emulator of `cuda_std` runs on the CPU.
//!
//! Per value head, with a state `s` of 128 key rows x 128 value columns:
//!
//! ```text
//! s <- e^g s + k d^T,   d = beta (v - e^g s^T k),   o = scale * s^T q        token by token
//! ```
//!
//! | kernel | for |
//! | --- | --- |
//! | [`kernels::recurrent_by_key_head`] | sm_80 and newer, 16-byte aligned rows, 1 to 4 value heads per key head |
//! | [`kernels::recurrent_by_column`] | any card from sm_75, any alignment, any number of value heads per key head |
//! | [`kernels::chunk_prep_tensor`] (on Hopper [`kernels::chunk_prep_hopper`]), [`kernels::chunk_scan_tensor`], [`kernels::chunk_fallback`] | long prompts on sm_80 and newer: 32 tokens at a time on tensor cores, same alignment |
//! | [`kernels::chunk_scan_warpgroup`] | the second of them on Hopper |
//! | [`kernels::chunk_prep`], [`kernels::chunk_scan`] | the same in 32-bit floats, with less scratch |
//! | [`kernels::decode`] | batches of short sequences on any card from sm_75: any element type and strides, states in pools, raw gates |
//! | [`kernels::widen`], [`kernels::narrow`], [`kernels::clear_padding`] | in front of the kernels by chunks, and after them: other element types, norm, raw gates; sequences without a slot |
//! | [`kernels::copy_states`] | states from pool to pool, whatever the orders of their axes; zero states |
//! | [`kernels::upload`] | small tables of the host's, carried in the launch's parameters |
//! | [`kernels::hold`] | measurements: keeps multiprocessors from the others |
//! | [`kernels::tensor_probe`] | measurements: what tensor cores compute, and how fast |
//!
//! The first two and [`kernels::decode`] compute the same sums in the same order ([`kernels::recurrence`]), so their results are
//! equal bit for bit.
//!
//! # Symbols
//! Single letters stand for these alone; everything else is words.
//!
//! | symbol | meaning | shape |
//! | --- | --- | --- |
//! | `q` `k` `v` | query, key, value of a token | 128 each |
//! | `g` | log of the forget gate, at most 0 | scalar |
//! | `beta` | write strength | scalar |
//! | `s` | state | 128 x 128 |
//! | `d` | correction that a token writes | 128 |
//! | `o` | output | 128 |
//! | `t` `i` `j` | a token of a chunk, earlier ones | |
//! | `a` `q` | lower triangles of a chunk: decayed `k.k`, decayed `q.k` ([`kernels::chunk`]) | 32 x 32 |
//! | `t_inv` `p` | lower triangles: what `y` becomes `d` and `o` by | 32 x 32 |
//! | `y` | value less what the state before the chunk holds at the key | 128 |
// Kernels index several arrays by one role: the index is the mathematics.
#![allow(clippy::needless_range_loop)]
#![cfg_attr(target_arch = "nvptx64", no_std)]
#![cfg_attr(target_arch = "nvptx64", feature(abi_ptx, asm_experimental_arch, stdarch_nvptx))]

pub mod kernels;
pub mod shape;
#[cfg(not(target_arch = "nvptx64"))]
pub mod table;

/// A violated bound traps on the GPU; the emulator says where.
#[cfg(target_arch = "nvptx64")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // SAFETY: `trap` has no precondition.
    unsafe { core::arch::nvptx::trap() }
}
