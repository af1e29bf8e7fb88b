//! Copies states from slots of a pool to slots of another, whatever the order of the axes of each; or makes slots zero.
//!
//! # Threads
//! Those of [`super::slices`].
//!
//! # Why it is shaped so
//! A thread's 4 x 4 squares are turned in its registers, so that both sides move 16 bytes at a time where their columns or
//! rows are contiguous, without shared memory. Few slots travel in the parameters, which needs no table on the device.
use super::slices::{COLUMNS_PER_THREAD, Role, load, store};
use super::slots::{PADDING, Pool, slot_at, slot_of};
use cuda_std::parameter::Words;
use cuda_std::{Global, GlobalMut, parameter_word};

pub use super::slices::{THREADS, grid};
pub use super::upload::MOST_WORDS;

cuda_std::arguments! {
    /// What the kernel takes. A pool's element is `[slot][value head][key row][column]` at four strides of any order.
    pub struct Args {
        /// Where a table is null: the slots written, `count` of them, and from `count` on the slots read.
        pub words: Words<MOST_WORDS>,
        /// The pool that is read, null to write zeros.
        pub source: Global<f32>,
        /// From a slot to the next.
        pub source_slot_stride: usize,
        /// From a head to the next.
        pub source_head_stride: usize,
        /// From a key row to the next.
        pub source_row_stride: usize,
        /// From a column to the next.
        pub source_column_stride: usize,
        /// Slots of the pool.
        pub source_slots: usize,
        /// The pool that is written. May be the one that is read, where no slot that is written is read for another.
        pub destination: GlobalMut<f32>,
        /// From a slot to the next.
        pub destination_slot_stride: usize,
        /// From a head to the next.
        pub destination_head_stride: usize,
        /// From a key row to the next.
        pub destination_row_stride: usize,
        /// From a column to the next.
        pub destination_column_stride: usize,
        /// Slots of the pool.
        pub destination_slots: usize,
        /// `[count]` of `source_index`: slots read, null for those in `words`. Padding: nothing is written.
        pub source_indices: Global<u8>,
        /// `[count]` of `destination_index`: slots written, null for those in `words`. Padding: nothing is written.
        pub destination_indices: Global<u8>,
        /// Null, or `[count]` of `guard_index`: where it is padding nothing is written, whatever the others say.
        pub guard_indices: Global<u8>,
        /// Slots that there are for the guard: an entry from there on is padding too.
        pub guard_slots: usize,
        /// States to copy.
        pub count: u32,
        /// Value heads.
        pub num_value_heads: u32,
        /// Width of `source_indices`: `slots::INDEX_32` or `slots::INDEX_64`.
        pub source_index: u32,
        /// Width of `destination_indices`.
        pub destination_index: u32,
        /// Width of `guard_indices`.
        pub guard_index: u32,
    }
    for copy_states_kernel
}

copy_states_kernel! {
    kernel "copy_states", capability 75, blocks 8;
    entry gdn_copy_states = run, threads THREADS, shared 0;
}

/// The slot that a copy reads; 0 where zeros are written.
///
/// # Safety
/// The table, or the words, have `index`.
#[inline(always)]
unsafe fn source_slot(args: &Args, index: usize) -> usize {
    // SAFETY: the caller's contract; read only.
    unsafe {
        if args.source.as_ptr().is_null() {
            0
        } else if args.source_indices.as_ptr().is_null() {
            slot_of(parameter_word!("gdn_copy_states", args.words, index + args.count as usize))
        } else {
            slot_at(args.source_indices, args.source_index, index)
        }
    }
}

/// The slot that a copy writes.
///
/// # Safety
/// As [`source_slot`].
#[inline(always)]
unsafe fn destination_slot(args: &Args, index: usize) -> usize {
    // SAFETY: the caller's contract; read only.
    unsafe {
        if args.destination_indices.as_ptr().is_null() {
            slot_of(parameter_word!("gdn_copy_states", args.words, index))
        } else {
            slot_at(args.destination_indices, args.destination_index, index)
        }
    }
}

/// Whether the guard lets a copy happen.
///
/// # Safety
/// The table, where there is one, has `index`.
#[inline(always)]
unsafe fn is_let_pass(args: &Args, index: usize) -> bool {
    // SAFETY: the caller's contract; read only.
    args.guard_indices.as_ptr().is_null()
        || unsafe { slot_at(args.guard_indices, args.guard_index, index) } < args.guard_slots
}

/// The kernel.
///
/// # Safety
/// Called once by each of `THREADS` threads of each block of `grid()`; pools and tables hold what their strides and shapes
/// describe, or `words` has the slots; slots that are written are distinct, and not read for another.
#[inline(always)]
unsafe fn run(args: Args) {
    let role = Role::here(args.num_value_heads);
    let value_head = role.value_head as usize;
    let source = Pool {
        slot_stride: args.source_slot_stride,
        head_stride: args.source_head_stride,
        row_stride: args.source_row_stride,
        column_stride: args.source_column_stride,
        slots: if args.source.as_ptr().is_null() { PADDING } else { args.source_slots },
    };
    let destination = Pool {
        slot_stride: args.destination_slot_stride,
        head_stride: args.destination_head_stride,
        row_stride: args.destination_row_stride,
        column_stride: args.destination_column_stride,
        slots: args.destination_slots,
    };
    // SAFETY: the grid has blocks for so many copies.
    let (from, to) = unsafe { (source_slot(&args, role.state), destination_slot(&args, role.state)) };
    // SAFETY: as above.
    if from >= source.slots || to >= destination.slots || !unsafe { is_let_pass(&args, role.state) } {
        return;
    }
    let mut s = [Default::default(); COLUMNS_PER_THREAD];
    if !args.source.as_ptr().is_null() {
        // SAFETY: the slot is one of the pool's. Owner: nobody writes a slot that is read, but this thread its own part.
        s = unsafe { load(args.source.offset(source.head(from, value_head)), &source, role) };
    }
    // SAFETY: the slot is one of the pool's, and no other copy's.
    unsafe { store(args.destination.offset(destination.head(to, value_head)), &destination, role, &s) };
}
