//! Tables in device memory that say which slot of a pool of states a sequence has.
//!
//! A slot that is negative, [`u32::MAX`], or not below the number of slots of its pool is padding: nothing is read or
//! written there.

/// Width of a table's entries: `i32`, or `u32` where [`u32::MAX`] is -1.
pub const INDEX_32: u32 = 0;
/// Width of a table's entries: `i64`.
pub const INDEX_64: u32 = 1;
