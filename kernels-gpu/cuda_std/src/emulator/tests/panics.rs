//! Panics of a kernel, and that a fault leaves nothing behind.
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::thread::{sync_threads, thread_idx_below, thread_idx_x};

#[test]
fn a_panic_is_a_fault_with_its_place() {
    const LINE: u32 = line!() + 4;
    unsafe fn body(_: ()) {
        let index = thread_idx_x() as usize;
        // SAFETY: a fault.
        unsafe { Tile::at(tile::<40>(), index) };
    }
    let fault = run_block(64, 160, body, ()).unwrap_err();
    let Fault::Panicked { thread, location, message, .. } = &fault else { panic!("{fault}") };
    assert_eq!((*thread, location.starts_with(&format!("{}:{LINE}:", file!()))), (40, true), "{location}");
    assert!(message.contains("out of the bounds"), "{message}");
}

#[test]
fn the_first_block_with_a_fault_is_named() {
    unsafe fn body(_: ()) {
        let block = crate::thread::block_idx_x();
        assert!(block < 11, "block {block}");
    }
    let launch = Launch { grid: [64, 1], ..one_block(32, 0) };
    // SAFETY: the kernel touches no memory.
    let fault = unsafe { run(&launch, &Memory::new(), body, ()) }.unwrap_err();
    let Fault::Panicked { block: [11, 0], message, .. } = &fault else { panic!("{fault}") };
    assert_eq!(message, "block 11");
}

#[test]
fn too_large_a_block_is_a_fault() {
    unsafe fn body(_: ()) {
        thread_idx_below::<32>();
    }
    assert!(matches!(run_block(64, 0, body, ()), Err(Fault::Panicked { thread: 32, .. })));
}

#[test]
fn threads_that_never_finish_are_unwound() {
    static LIVE: AtomicUsize = AtomicUsize::new(0);
    struct Guard;
    impl Drop for Guard {
        fn drop(&mut self) {
            LIVE.fetch_sub(1, Ordering::SeqCst);
        }
    }
    unsafe fn body(_: ()) {
        let _guard = {
            LIVE.fetch_add(1, Ordering::SeqCst);
            Guard
        };
        assert!(thread_idx_x() != 20, "a thread of the first warp, the others of which wait");
        // SAFETY: a fault.
        unsafe { sync_threads() };
    }
    unsafe fn right(_: ()) {
        // SAFETY: all threads come here.
        unsafe { sync_threads() };
    }
    for _ in 0..3 {
        assert!(matches!(run_block(64, 0, body, ()), Err(Fault::Panicked { thread: 20, .. })));
        assert_eq!(LIVE.load(Ordering::SeqCst), 0);
        run_block(64, 0, right, ()).unwrap();
    }
}
