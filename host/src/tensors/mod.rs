//! Inputs and results in safetensors files.
//!
//! `q`, `k` `[T, HK, 128]`, `v` `[T, HV, 128]`, `g` (log of the forget gate, at most 0), `beta` `[T, HV]`, and the state
//! before the first token, `state` `[HV, 128 key rows, 128 value columns]`: zeros if it is not there. Results: `out`
//! `[T, HV, 128]` and `state_out`, as `state`. A leading batch axis of 1 may stand before any of these. Metadata:
//! `head_map` (`grouped`, the default, or `tiled`), `scale` (1 / sqrt(128)), and `note` and `format`, which say nothing.
#![forbid(unsafe_code)]
mod error;
mod read;
mod write;

pub use error::{TensorError, What};
pub use read::read;
pub use write::write;

use host::inputs::Inputs;

/// What a file held.
#[derive(Clone, Debug, PartialEq)]
pub struct File {
    pub inputs: Inputs,
    pub out: Option<Stored>,
    pub state_out: Option<Stored>,
}

/// A result, and how exactly it was stored.
#[derive(Clone, Debug, PartialEq)]
pub struct Stored {
    pub values: Vec<f64>,
    pub precision: Precision,
}

/// The types that results may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    F64,
    F32,
    Bf16,
    F16,
}
