//! Asynchronous copies: their bytes arrive when the thread that issued them waits, no sooner and no later.
//!
//! The source is read at issue. For memory that nobody writes that is the same as any later moment; in writable memory
//! the read is noted for the race check at issue and again at the arrival, so that a writer at either moment is found.
use std::collections::VecDeque;
use std::panic::Location;

use super::block::{Block, current};
use super::fault::{Action, Fault};
use super::global::{global_read, note_read};
use super::shared::{checked_word, race};

/// A thread's copies under way, oldest first.
#[derive(Debug, Default)]
pub(super) struct Copies {
    queue: VecDeque<Copy>,
    /// Groups that the thread has ended, empty ones included.
    groups: u32,
}

#[derive(Clone, Debug)]
struct Copy {
    /// The group's index among the thread's.
    group: u32,
    /// The first word of the destination in shared memory.
    word: usize,
    words: usize,
    values: [f32; 4],
    source: usize,
    location: &'static Location<'static>,
}

/// Issues a copy of `WORDS` words.
#[inline]
fn issue<const WORDS: usize>(destination: *mut f32, source: *const f32, location: &'static Location<'static>) {
    let read = global_read::<[f32; WORDS]>(source.cast(), 4 * WORDS, location);
    // SAFETY: owner: the running thread's block, by `current`; nothing suspends before the last use but `fail`, which
    // does not return.
    let block = unsafe { &mut *current() };
    let word = checked_word::<WORDS>(block, destination, Action::Write, location);
    let (writer, floor) = (block.access(location), block.floor());
    for record in &mut block.shared_records()[word..word + WORDS] {
        if let Err(conflict) = record.write(writer, floor) {
            race(block, Action::Write, conflict, location);
        }
        record.set_undelivered(writer);
    }
    write_shared(block, word, &[f32::NAN; WORDS]);
    let mut values = [0.0; 4];
    values[..WORDS].copy_from_slice(&read);
    let running = block.running as usize;
    let copies = &mut block.threads[running].copies;
    let group = copies.groups;
    copies.queue.push_back(Copy { group, word, words: WORDS, values, source: source.addr(), location });
}

/// Writes words whose index has been checked.
fn write_shared(block: &mut Block, word: usize, values: &[f32]) {
    assert!((word + values.len()) * 4 <= block.shared_bytes);
    for (index, value) in values.iter().enumerate() {
        // SAFETY: bounds: just checked; owner: all threads that reach it run on this OS thread.
        unsafe { block.shared_start().cast::<f32>().add(word + index).write(*value) };
    }
}

#[inline(never)]
pub(crate) fn copy_async_16(destination: *mut f32, source: *const f32, location: &'static Location<'static>) {
    issue::<4>(destination, source, location);
}

#[inline(never)]
pub(crate) fn copy_async_4(destination: *mut f32, source: *const f32, location: &'static Location<'static>) {
    issue::<1>(destination, source, location);
}

/// Ends the running thread's group.
pub(crate) fn commit() {
    // SAFETY: owner: the running thread's block, by `current`; nothing suspends.
    let block = unsafe { &mut *current() };
    let running = block.running as usize;
    block.threads[running].copies.groups += 1;
}

/// Delivers all groups that have ended but the `pending` last.
#[inline(never)]
pub(crate) fn wait(pending: u32) {
    // SAFETY: owner: the running thread's block, by `current`; nothing suspends before the last use but `fail`, which
    // does not return.
    let block = unsafe { &mut *current() };
    let running = block.running as usize;
    let copies = &mut block.threads[running].copies;
    let due = copies.groups.saturating_sub(pending);
    let count = copies.queue.partition_point(|copy| copy.group < due);
    for _ in 0..count {
        let Some(copy) = block.threads[running].copies.queue.pop_front() else { break };
        note_read(block, copy.source, 4 * copy.words, 4 * copy.words, copy.location);
        // The arrival is a write of this thread now: others may touch the bytes after a barrier.
        let writer = block.access(copy.location);
        for record in &mut block.shared_records()[copy.word..copy.word + copy.words] {
            record.deliver(writer);
        }
        write_shared(block, copy.word, &copy.values[..copy.words]);
    }
}

/// The fault of a thread that exits with copies under way.
pub(super) fn check_exit(block: &Block) -> Option<Fault> {
    let copy = block.threads[block.running as usize].copies.queue.front()?;
    Some(Fault::NeverWaitedFor { place: block.place(copy.location) })
}
