//! The kernels, one file each, and the mathematics that several of them share.
pub mod chunk;
pub mod chunk_fallback;
pub mod chunk_prep;
pub mod chunk_prep_tensor;
pub mod chunk_scan;
pub mod chunk_scan_tensor;
pub mod chunk_tensor;
pub mod copy_states;
pub mod decode;
pub mod elements;
pub mod hold;
pub mod recurrence;
pub mod recurrent_by_column;
pub mod recurrent_by_key_head;
pub mod slices;
pub mod slots;
pub mod upload;
