//! Every read and write of global memory.
use std::mem::MaybeUninit;
use std::panic::Location;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering::Relaxed};

use super::block::{Block, current, fail};
use super::fault::{Action, Fault, Space};
use super::memory::Region;
use super::shared::race;

/// The region that holds an access, aligned as it must be.
#[inline]
fn checked_region(
    block: &mut Block,
    address: usize,
    bytes: usize,
    alignment: usize,
    action: Action,
    location: &'static Location<'static>,
) -> Region {
    let holds = |region: &Region| region.contains(address, bytes);
    let index = match block.regions.get(block.last_region) {
        Some(region) if holds(region) => block.last_region,
        _ => match block.regions.iter().position(holds) {
            Some(index) => index,
            None => out_of_bounds(block, address, bytes, action, location),
        },
    };
    block.last_region = index;
    if !address.is_multiple_of(alignment) {
        fail(Fault::Misaligned { place: block.place(location), action, address, alignment });
    }
    block.regions[index]
}

/// The fault of an access outside, seen from the region that is nearest.
#[cold]
#[inline(never)]
fn out_of_bounds(
    block: &Block,
    address: usize,
    bytes: usize,
    action: Action,
    location: &'static Location<'static>,
) -> ! {
    let distance = |region: &&Region| {
        let end = region.start + region.bytes;
        region.start.saturating_sub(address).max(address.saturating_sub(end))
    };
    let (start, length) =
        block.regions.iter().min_by_key(distance).map_or((0, 0), |region| (region.start, region.bytes));
    let offset = address.wrapping_sub(start) as isize;
    let place = block.place(location);
    fail(Fault::OutOfBounds { place, action, space: Space::Global, bytes, offset, length })
}

/// Checks a read of `bytes` bytes and notes it for the race check. Returns whether other blocks may write there.
#[inline]
pub(super) fn note_read(
    block: &mut Block,
    address: usize,
    bytes: usize,
    alignment: usize,
    location: &'static Location<'static>,
) -> bool {
    let region = checked_region(block, address, bytes, alignment, Action::Read, location);
    if region.writable {
        let (reader, floor) = (block.access(location), block.floor());
        for word in address / 4..=(address + bytes - 1) / 4 {
            if let Err(conflict) = block.global_record(word).read(reader, floor) {
                race(block, Action::Read, conflict, location);
            }
        }
    }
    region.writable
}

/// Checks a write and notes it for the race check.
#[inline]
fn note_write(block: &mut Block, address: usize, bytes: usize, alignment: usize, location: &'static Location<'static>) {
    let region = checked_region(block, address, bytes, alignment, Action::Write, location);
    if !region.writable {
        fail(Fault::ReadOnly { place: block.place(location) });
    }
    let (writer, floor) = (block.access(location), block.floor());
    for word in address / 4..=(address + bytes - 1) / 4 {
        if let Err(conflict) = block.global_record(word).write(writer, floor) {
            race(block, Action::Write, conflict, location);
        }
    }
}

/// Whether a `T` is made of aligned words.
const fn made_of_words<T>() -> bool {
    size_of::<T>().is_multiple_of(4) && align_of::<T>().is_multiple_of(4)
}

/// Reads memory that another block, on another OS thread, may be writing: a fault of the kernel that must not become
/// undefined behaviour of the emulator.
///
/// # Safety
/// `pointer` is valid for reads and `T` is plain numbers.
#[inline]
unsafe fn load<T: Copy>(pointer: *const T) -> T {
    let mut value = MaybeUninit::<T>::uninit();
    // SAFETY: bounds: each loop covers the bytes of one `T`, in words where it is made of them; owner: atomic.
    unsafe {
        if made_of_words::<T>() {
            for word in 0..size_of::<T>() / 4 {
                let source = AtomicU32::from_ptr(pointer.cast_mut().cast::<u32>().add(word));
                value.as_mut_ptr().cast::<u32>().add(word).write(source.load(Relaxed));
            }
        } else {
            for byte in 0..size_of::<T>() {
                let source = AtomicU8::from_ptr(pointer.cast_mut().cast::<u8>().add(byte));
                value.as_mut_ptr().cast::<u8>().add(byte).write(source.load(Relaxed));
            }
        }
        value.assume_init()
    }
}

/// Writes memory that another block may touch. See [`load`].
///
/// # Safety
/// `pointer` is valid for writes and `T` is plain numbers.
#[inline]
unsafe fn store<T: Copy>(pointer: *mut T, value: T) {
    let source = std::ptr::from_ref(&value);
    // SAFETY: bounds: each loop covers the bytes of one `T`, in words where it is made of them; owner: atomic.
    unsafe {
        if made_of_words::<T>() {
            for word in 0..size_of::<T>() / 4 {
                let target = AtomicU32::from_ptr(pointer.cast::<u32>().add(word));
                target.store(source.cast::<u32>().add(word).read(), Relaxed);
            }
        } else {
            for byte in 0..size_of::<T>() {
                let target = AtomicU8::from_ptr(pointer.cast::<u8>().add(byte));
                target.store(source.cast::<u8>().add(byte).read(), Relaxed);
            }
        }
    }
}

/// Reads a `T` at an address that is a multiple of `alignment`.
#[inline(never)]
pub(crate) fn global_read<T: Copy>(pointer: *const T, alignment: usize, location: &'static Location<'static>) -> T {
    // SAFETY: owner: the running thread's block, by `current`; nothing suspends before the last use but `fail`, which
    // does not return.
    let block = unsafe { &mut *current() };
    if note_read(block, pointer.addr(), size_of::<T>(), alignment, location) {
        // SAFETY: bounds and alignment: checked, the region is lent for the launch; plain: by `Memory::read_write`.
        unsafe { load(pointer) }
    } else {
        // SAFETY: bounds and alignment: checked, the region is lent for the launch; owner: nobody may write it.
        unsafe { pointer.read() }
    }
}

/// Writes a `T` at an address that is a multiple of `alignment`.
#[inline(never)]
pub(crate) fn global_write<T: Copy>(pointer: *mut T, value: T, alignment: usize, location: &'static Location<'static>) {
    // SAFETY: owner: the running thread's block, by `current`; nothing suspends before the last use but `fail`, which
    // does not return.
    let block = unsafe { &mut *current() };
    note_write(block, pointer.addr(), size_of::<T>(), alignment, location);
    // SAFETY: bounds and alignment: checked, the region is lent for writing; plain: by `Memory::read_write`.
    unsafe { store(pointer, value) }
}

/// Checks a prefetch: its address must lie inside the memory, though the GPU would not mind.
#[inline(never)]
pub(crate) fn prefetch(pointer: *const f32, location: &'static Location<'static>) {
    // SAFETY: owner: the running thread's block, by `current`; nothing suspends before the last use but `fail`, which
    // does not return.
    let block = unsafe { &mut *current() };
    checked_region(block, pointer.addr(), 4, 4, Action::Prefetch, location);
}
