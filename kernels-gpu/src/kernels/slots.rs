//! Pools of states, and tables in device memory that say which slot of a pool a sequence has.
//!
//! An entry that is negative, [`u32::MAX`], or not below the number of slots of its pool is padding: nothing is read or
//! written there.
use cuda_std::Global;

/// Width of a table's entries: `i32`, or `u32` where [`u32::MAX`] is -1.
pub const INDEX_32: u32 = 0;
/// Width of a table's entries: `i64`.
pub const INDEX_64: u32 = 1;

/// Slots that a table can name; above it are the negative entries of narrow tables.
const MOST_SLOTS: u32 = i32::MAX as u32;

/// What [`slot_at`] gives for padding: no pool has so many slots.
pub const PADDING: usize = usize::MAX;

/// The slot that a narrow entry names.
#[inline(always)]
#[must_use]
pub const fn slot_of(entry: u32) -> usize {
    if entry > MOST_SLOTS { PADDING } else { entry as usize }
}

/// Entry `index` of `table`, [`PADDING`] where it is negative or above all pools.
///
/// # Safety
/// The table has the entry, in the width that `width` says, and nobody writes it during the launch.
#[inline(always)]
#[must_use]
pub unsafe fn slot_at(table: Global<u8>, width: u32, index: usize) -> usize {
    // SAFETY: the caller's contract.
    unsafe {
        if width == INDEX_64 {
            let entry = table.cast::<u64>().at(index);
            if entry > MOST_SLOTS as u64 { PADDING } else { entry as usize }
        } else {
            slot_of(table.cast::<u32>().at(index))
        }
    }
}

/// Where a pool's `[slot][value head][key row][column]` lie, in elements.
#[derive(Clone, Copy, Debug)]
pub struct Pool {
    /// From a slot to the next.
    pub slot_stride: usize,
    /// From a head to the next.
    pub head_stride: usize,
    /// From a key row to the next.
    pub row_stride: usize,
    /// From a column to the next.
    pub column_stride: usize,
    /// Slots.
    pub slots: usize,
}

impl Pool {
    /// Where a head of a slot starts.
    #[inline(always)]
    #[must_use]
    pub fn head(&self, slot: usize, value_head: usize) -> usize {
        slot * self.slot_stride + value_head * self.head_stride
    }
}
