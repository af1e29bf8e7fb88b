//! What can be wrong with a file: which file, which tensor, what it is and what it should be.
#![forbid(unsafe_code)]
use std::path::PathBuf;

/// A file that could not be used.
#[derive(Debug, thiserror::Error)]
#[error("{}: {what}", file.display())]
pub struct TensorError {
    pub file: PathBuf,
    pub what: What,
}

/// What is wrong with it.
#[derive(Debug, thiserror::Error)]
pub enum What {
    /// The system refused.
    #[error("{doing}: {because}")]
    System { doing: &'static str, because: std::io::Error },
    /// Truncated, or something else altogether.
    #[error("not a whole safetensors file: {0}")]
    Format(safetensors::SafeTensorError),
    /// A tensor that has to be there.
    #[error("tensor {tensor} is missing; a file needs q, k, v, g and beta")]
    Missing { tensor: &'static str },
    /// A tensor that nobody would read. A mistyped `state` must not pass for a state of zeros.
    #[error("tensor {tensor:?} is unknown; known are {known}")]
    Unknown { tensor: String, known: String },
    /// A type that is not taken.
    #[error("tensor {tensor} is {got}, expected {expected}")]
    Dtype { tensor: &'static str, got: String, expected: &'static str },
    /// A shape that does not fit, by itself or to the other tensors.
    #[error("tensor {tensor} has shape {got:?}, expected {expected}")]
    Shape { tensor: &'static str, got: Vec<usize>, expected: String },
    /// A number that makes no sense.
    #[error("tensor {tensor} holds {value} at element {index}, expected {expected}")]
    Value { tensor: &'static str, index: usize, value: f32, expected: &'static str },
    /// Metadata with an unknown key or value.
    #[error("metadata {key:?} is {got:?}, expected {expected}")]
    Metadata { key: String, got: String, expected: &'static str },
    /// Head counts that do not fit each other.
    #[error("tensors q and v: {0}")]
    Heads(Box<host::Error>),
}
