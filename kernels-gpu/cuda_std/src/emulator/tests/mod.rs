//! Small kernels, right and wrong ones, and what the emulator says of them.
mod barriers;
mod copies;
mod memory;
mod panics;
mod races;
mod tensor;
mod warps;

use std::panic::Location;

use super::{Fault, Launch, Memory, Other, Place, run};
use crate::shared::Tile;

/// Thread orders that every right kernel is run in.
const ORDERS: [u64; 4] = [0, 1, 2, 0xdead_beef];

/// One block, ascending order.
fn one_block(threads: u32, shared_bytes: usize) -> Launch {
    Launch { grid: [1, 1], threads, shared_bytes: shared_bytes as u32, order: 0 }
}

/// Runs one block of a kernel that touches no global memory.
fn run_block<A: Copy + Send + Sync>(
    threads: u32,
    shared_bytes: usize,
    body: unsafe fn(A),
    args: A,
) -> Result<(), Fault> {
    // SAFETY: the kernels of these tests touch memory through the words alone.
    unsafe { run(&one_block(threads, shared_bytes), &Memory::new(), body, args) }
}

/// Shared memory of one tile of `N` floats.
fn tile<const N: usize>() -> *mut Tile<N> {
    crate::shared::dynamic_shared_mem()
}

/// Checks that a place is that line of that file.
#[track_caller]
fn assert_line(place: Place, file: &str, line: u32) {
    assert_eq!((place.location.file(), place.location.line()), (file, line));
}

/// Checks the same of the other thread.
#[track_caller]
fn assert_other_line(other: Other, file: &str, line: u32) {
    assert_eq!(other.location.map(|location: &Location<'_>| (location.file(), location.line())), Some((file, line)));
}

#[test]
fn thread_counts_are_checked_and_an_empty_grid_runs_nothing() {
    unsafe fn never(_: ()) {
        panic!("no thread runs");
    }
    for threads in [0, 31, 48, 1056] {
        assert!(matches!(run_block(threads, 0, never, ()), Err(Fault::Threads { threads: t }) if t == threads));
    }
    let launch = Launch { grid: [0, 5], ..one_block(32, 0) };
    // SAFETY: nothing runs.
    unsafe { run(&launch, &Memory::new(), never, ()) }.unwrap();
}

#[test]
#[should_panic(expected = "outside a kernel")]
fn words_outside_a_kernel_panic() {
    crate::thread::thread_idx_x();
}
