//! Shared memory: where it is, and every read and write of it.
use std::panic::Location;

use super::block::{Block, current, fail};
use super::fault::{Action, Fault, Space};
use super::record::Conflict;

/// The block's shared memory, if the launch gives at least `bytes`.
pub(crate) fn shared_memory(bytes: usize, location: &'static Location<'static>) -> *mut u8 {
    // SAFETY: owner: the running thread's block, by `current`; nothing suspends before the last use but `fail`, which
    // does not return.
    let block = unsafe { &mut *current() };
    let available = block.shared_bytes;
    if bytes > available {
        fail(Fault::SharedTooSmall { place: block.place(location), needed: bytes, available });
    }
    block.shared_start()
}

/// The word index of a checked access to `WORDS` words, aligned to all of them.
#[inline]
pub(super) fn checked_word<const WORDS: usize>(
    block: &mut Block,
    pointer: *const f32,
    action: Action,
    location: &'static Location<'static>,
) -> usize {
    let bytes = 4 * WORDS;
    let offset = pointer.addr().wrapping_sub(block.shared_start().addr());
    let length = block.shared_bytes;
    if offset >= length || length - offset < bytes {
        let offset = offset as isize;
        let place = block.place(location);
        fail(Fault::OutOfBounds { place, action, space: Space::Shared, bytes, offset, length });
    }
    if !offset.is_multiple_of(bytes) {
        let place = block.place(location);
        fail(Fault::Misaligned { place, action, address: pointer.addr(), alignment: bytes });
    }
    offset / 4
}

/// The fault of an access that met a conflict.
#[cold]
#[inline(never)]
pub(super) fn race(block: &Block, action: Action, conflict: Conflict, location: &'static Location<'static>) -> ! {
    let place = block.place(location);
    let other = conflict.access.into();
    if conflict.access.is_undelivered() {
        fail(Fault::Undelivered { place, action, copy: other });
    }
    let other_action = if conflict.wrote { Action::Write } else { Action::Read };
    fail(Fault::Race { place, action, other, other_action })
}

#[inline]
fn read<const WORDS: usize>(pointer: *const f32, location: &'static Location<'static>) -> [f32; WORDS] {
    // SAFETY: owner: the running thread's block, by `current`; nothing suspends before the last use but `fail`, which
    // does not return.
    let block = unsafe { &mut *current() };
    let word = checked_word::<WORDS>(block, pointer, Action::Read, location);
    let (reader, floor) = (block.access(location), block.floor());
    for record in &mut block.shared_records()[word..word + WORDS] {
        if let Err(conflict) = record.read(reader, floor) {
            race(block, Action::Read, conflict, location);
        }
    }
    // SAFETY: bounds and alignment: `checked_word`; owner: all threads that reach it run on this OS thread.
    unsafe { block.shared_start().cast::<f32>().add(word).cast::<[f32; WORDS]>().read() }
}

#[inline]
fn write<const WORDS: usize>(pointer: *mut f32, value: [f32; WORDS], location: &'static Location<'static>) {
    // SAFETY: owner: the running thread's block, by `current`; nothing suspends before the last use but `fail`, which
    // does not return.
    let block = unsafe { &mut *current() };
    let word = checked_word::<WORDS>(block, pointer, Action::Write, location);
    let (writer, floor) = (block.access(location), block.floor());
    for record in &mut block.shared_records()[word..word + WORDS] {
        if let Err(conflict) = record.write(writer, floor) {
            race(block, Action::Write, conflict, location);
        }
    }
    // SAFETY: bounds and alignment: `checked_word`; owner: all threads that reach it run on this OS thread.
    unsafe { block.shared_start().cast::<f32>().add(word).cast::<[f32; WORDS]>().write(value) }
}

/// The fault of a row that is not on 16 bytes; its words are checked when they are read.
pub(super) fn check_row(pointer: *const f32, location: &'static Location<'static>) {
    // SAFETY: owner: the running thread's block, by `current`; nothing suspends but `fail`, which does not return.
    let block = unsafe { &mut *current() };
    checked_word::<4>(block, pointer, Action::Read, location);
}

#[inline(never)]
pub(crate) fn shared_read(pointer: *const f32, location: &'static Location<'static>) -> f32 {
    let [value] = read(pointer, location);
    value
}

#[inline(never)]
pub(crate) fn shared_read_pair(pointer: *const f32, location: &'static Location<'static>) -> [f32; 2] {
    read(pointer, location)
}

#[inline(never)]
pub(crate) fn shared_read_quad(pointer: *const f32, location: &'static Location<'static>) -> [f32; 4] {
    read(pointer, location)
}

#[inline(never)]
pub(crate) fn shared_write(pointer: *mut f32, value: f32, location: &'static Location<'static>) {
    write(pointer, [value], location);
}

#[inline(never)]
pub(crate) fn shared_write_pair(pointer: *mut f32, value: [f32; 2], location: &'static Location<'static>) {
    write(pointer, value, location);
}

#[inline(never)]
pub(crate) fn shared_write_quad(pointer: *mut f32, value: [f32; 4], location: &'static Location<'static>) {
    write(pointer, value, location);
}
