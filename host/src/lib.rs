//! The Gated DeltaNet recurrence: CUDA and CPU backends, the emulated kernels, and the float64 reference.
//!
//! Per value head, with a state S of 128 key rows x 128 value columns:
//!
//! ```text
//! S_t = e^(g_t) S_(t-1) + k_t d_t^T,   d_t = beta_t (v_t - e^(g_t) S_(t-1)^T k_t),   o_t = scale * S_t^T q_t
//! ```

/// The guide for engines, whose code is compiled and run with the tests.
#[cfg(doctest)]
#[doc = include_str!("../../docs/adopt.md")]
struct Adopt;

mod batches;
mod call;
pub mod compare;
mod conversions;
mod copies;
pub mod cpu;
mod decode;
mod dispatch;
mod dtype;
pub mod emulated;
mod error;
mod extent;
mod gates;
mod heads;
pub mod inputs;
mod kernel;
mod layout;
mod plain;
mod policy;
#[cfg(feature = "cli")]
pub mod probe;
pub mod reference;
pub mod reference_batch;
mod request;
mod segments;
mod sequences;
mod slots;
mod steps;
mod upload;
mod widened;
mod windows;

#[cfg(feature = "cuda")]
pub mod cuda;

pub use cuda_std::kernel::Architecture;

#[cfg(all(test, feature = "cuda"))]
use libcuda_loader as _;

pub use call::{Call, Checkpoints, Decay, Gates, QkNorm, State, StateView, View, ViewMut, default_scale};
pub use dispatch::{Launch, plan};
pub use dtype::{Dtype, Element, IndexDtype, Indices, Slice, SliceMut};
pub use error::{Error, Reason, Result};
pub use heads::{HEAD_DIM, HeadMap, Heads};
pub use kernel::Kernel;
pub use layout::{StateLayout, StateOrder, Strides};
pub use policy::{Card, PathChoice, Policy};
pub use request::DECODE_TOKENS;
pub use sequences::Sequences;
pub use slots::{Slot, Slots};
