//! Tensors whose element type is known when a kernel runs: 32-bit floats, or 16-bit ones that are widened as they are read.
//!
//! bf16 is the upper half of a 32-bit float, so that a shift reads it on any card; f16 has its conversion on all of them.

/// An element type: 32-bit floats.
pub const F32: u32 = 0;
/// An element type: the upper halves of 32-bit floats.
pub const BF16: u32 = 1;
/// An element type: 16-bit floats of IEEE 754.
pub const F16: u32 = 2;
