//! Device vocabulary for kernels in Rust, with the names of Rust-CUDA's `cuda_std`, on the upstream `nvptx64-nvidia-cuda`
//! target, plus what that crate lacks (asynchronous copies, prefetch, fused multiply-add, an accurate exponential).
//!
//! Every word has two bodies. On the GPU it is the PTX instruction that its documentation names; on the CPU it is a
//! call into the [`emulator`], which runs the same kernel source one block at a time and checks what a GPU does not:
//! bounds, alignment, barriers, races between threads, and reads of bytes that an asynchronous copy has not delivered.
//!
//! | module | words |
//! | --- | --- |
//! | [`thread`] | indices of the thread, its block and the grid; clocks; the block barrier |
//! | [`warp`] | lane index, shuffles, the warp barrier |
//! | [`shared`] | dynamic shared memory, as typed [`Tile`]s |
//! | [`memory`] | [`Global`] and [`GlobalMut`] pointers, the quads they move |
//! | [`parameter`] | words that a launch carries in its parameters |
//! | [`async_copy`] | copies from global to shared memory in the background |
//! | [`float`] | fused multiply-add, exponential, square root, 16-bit floats |
//! | [`tensor`] | products of 16-bit matrices by the tensor cores |
//! | [`warpgroup`] | the same by four warps together, in the background: Hopper |
//!
//! [`arguments!`] declares a kernel's arguments once, for its PTX entries, for a launch and for the emulator.
#![cfg_attr(target_arch = "nvptx64", no_std)]
#![cfg_attr(target_arch = "nvptx64", feature(core_intrinsics, link_llvm_intrinsics, repr_simd, asm_experimental_arch))]
#![cfg_attr(target_arch = "nvptx64", allow(internal_features))]

pub mod async_copy;
pub mod float;
pub mod kernel;
pub mod memory;
pub mod parameter;
pub mod shared;
pub mod tensor;
pub mod thread;
pub mod warp;
pub mod warpgroup;

#[cfg(not(target_arch = "nvptx64"))]
pub mod emulator;

#[cfg_attr(target_arch = "nvptx64", path = "nvptx.rs")]
#[cfg_attr(not(target_arch = "nvptx64"), path = "emulated.rs")]
mod imp;

pub use memory::{Global, GlobalMut};
pub use shared::Tile;
