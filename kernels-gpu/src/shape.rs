//! The sizes that every kernel shares.

/// Key rows and value columns of a head's state.
pub const HEAD_DIM: usize = 128;
