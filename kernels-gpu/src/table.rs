//! Every kernel's PTX entries: what `xtask` builds and verifies, and what tests loop over.
use crate::kernels::{
    chunk_fallback, chunk_prep, chunk_prep_hopper, chunk_prep_tensor, chunk_scan, chunk_scan_tensor,
    chunk_scan_warpgroup, clear_padding, copy_states, decode, hold, narrow, recurrent_by_column, recurrent_by_key_head,
    tensor_probe, upload, widen,
};
use cuda_std::kernel::{Architecture, EntryFacts};

/// The cards that each PTX file is for, the best last. A file holds every entry that runs on all of them.
pub const FILES: [Architecture; 3] = [Architecture::From(75), Architecture::From(80), Architecture::Only(90)];

/// The best file for a card of compute capability `card`, times ten; None where it is too old for all of them.
#[must_use]
pub const fn file_for(card: u32) -> Option<Architecture> {
    let mut place = FILES.len();
    while place > 0 {
        place -= 1;
        if FILES[place].runs_on(card) {
            return Some(FILES[place]);
        }
    }
    None
}

/// The facts of every PTX entry.
#[must_use]
pub fn entries() -> Vec<EntryFacts> {
    recurrent_by_key_head::KERNEL
        .facts()
        .chain(recurrent_by_column::KERNEL.facts())
        .chain(chunk_prep::KERNEL.facts())
        .chain(chunk_scan::KERNEL.facts())
        .chain(hold::KERNEL.facts())
        .chain(chunk_prep_tensor::KERNEL.facts())
        .chain(chunk_scan_tensor::KERNEL.facts())
        .chain(chunk_scan_warpgroup::KERNEL.facts())
        .chain(chunk_prep_hopper::KERNEL.facts())
        .chain(chunk_fallback::KERNEL.facts())
        .chain(decode::KERNEL.facts())
        .chain(upload::KERNEL.facts())
        .chain(copy_states::KERNEL.facts())
        .chain(widen::KERNEL.facts())
        .chain(narrow::KERNEL.facts())
        .chain(clear_padding::KERNEL.facts())
        .chain(tensor_probe::KERNEL.facts())
        .collect()
}
