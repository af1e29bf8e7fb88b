//! Asynchronous copies: when their bytes arrive, and what comes too early.
use super::*;
use crate::async_copy::{commit, copy_4, copy_16, wait};
use crate::memory::{Global, GlobalMut};
use crate::thread::{sync_threads, thread_idx_x};

const FLOATS: usize = 256;

#[derive(Clone, Copy)]
struct Args {
    source: Global<f32>,
    out: GlobalMut<f32>,
}

/// Runs a kernel of 32 threads over 256 floats that are their own index.
fn run_copies(order: u64, body: unsafe fn(Args)) -> Result<Vec<f32>, Fault> {
    #[repr(align(16))]
    struct Aligned([f32; FLOATS]);
    let source = Aligned(std::array::from_fn(|i| i as f32));
    let mut out = vec![0.0; FLOATS];
    let mut memory = Memory::new();
    let args = Args { source: memory.read_only(&source.0), out: memory.read_write(&mut out) };
    // SAFETY: the kernels touch memory through the words alone.
    unsafe { run(&Launch { order, ..one_block(32, 4 * FLOATS) }, &memory, body, args) }?;
    Ok(out)
}

/// Two groups in flight: quads of the first half, then single floats of the second.
unsafe fn pipeline(args: Args) {
    let thread = thread_idx_x() as usize;
    let shared = tile::<FLOATS>();
    // SAFETY: bounds: 32 threads x 4 floats in each half; owner: each thread its own four, and reads its neighbour's after
    // the barrier; barrier: after each wait.
    unsafe {
        copy_16(shared, 4 * thread, args.source, 4 * thread);
        commit();
        for i in 0..4 {
            copy_4(shared, 128 + 4 * thread + i, args.source, 128 + 4 * thread + i);
        }
        commit();
        let neighbour = (thread + 1) % 32;
        wait::<1>();
        sync_threads();
        for i in 0..4 {
            args.out.put(4 * neighbour + i, Tile::at(shared, 4 * neighbour + i));
        }
        wait::<0>();
        sync_threads();
        for i in 0..4 {
            args.out.put(128 + 4 * neighbour + i, Tile::at(shared, 128 + 4 * neighbour + i));
        }
    }
}

#[test]
fn copies_arrive_at_their_wait() {
    for order in ORDERS {
        let out = run_copies(order, pipeline).unwrap();
        assert!(out.iter().enumerate().all(|(i, value)| *value == i as f32));
    }
}

#[test]
fn a_read_before_the_wait_is_a_fault() {
    const LINE: u32 = line!() + 4;
    unsafe fn body(args: Args) {
        let (shared, thread) = (tile::<FLOATS>(), thread_idx_x() as usize);
        // SAFETY: a fault.
        unsafe { copy_16(shared, 4 * thread, args.source, 0) };
        commit();
        // An empty group: the one before may still be under way.
        commit();
        wait::<2>();
        // SAFETY: a fault.
        unsafe { Tile::at(shared, 4 * thread + 3) };
    }
    let fault = run_copies(0, body).unwrap_err();
    let Fault::Undelivered { place, action: super::super::Action::Read, copy } = fault else { panic!("{fault}") };
    assert_line(place, file!(), LINE + 6);
    assert_other_line(copy, file!(), LINE);
}

#[test]
fn a_group_that_was_not_committed_is_not_waited_for() {
    unsafe fn body(args: Args) {
        let (shared, thread) = (tile::<FLOATS>(), thread_idx_x() as usize);
        // SAFETY: a fault.
        unsafe {
            copy_16(shared, 4 * thread, args.source, 0);
            wait::<0>();
            Tile::put(shared, 4 * thread, 0.0);
        }
    }
    let fault = run_copies(0, body).unwrap_err();
    assert!(matches!(fault, Fault::Undelivered { action: super::super::Action::Write, .. }), "{fault}");
}

#[test]
fn another_thread_reads_only_after_a_barrier() {
    const LINE: u32 = line!() + 6;
    unsafe fn body(args: Args) {
        let (shared, thread) = (tile::<FLOATS>(), thread_idx_x() as usize);
        // SAFETY: a fault.
        unsafe {
            if thread == 0 {
                copy_16(shared, 0, args.source, 0);
                commit();
                wait::<0>();
            } else {
                Tile::quad(shared, 0);
            }
        }
    }
    let fault = run_copies(0, body).unwrap_err();
    let Fault::Race { place, other, .. } = fault else { panic!("{fault}") };
    assert_line(place, file!(), LINE + 4);
    assert_other_line(other, file!(), LINE);
}

#[test]
fn a_copy_over_what_another_thread_reads_is_a_race() {
    unsafe fn body(args: Args) {
        let (shared, thread) = (tile::<FLOATS>(), thread_idx_x() as usize);
        // SAFETY: a fault.
        unsafe {
            if thread == 0 {
                Tile::at(shared, 2);
            } else {
                copy_16(shared, 0, args.source, 0);
            }
        }
    }
    let fault = run_copies(0, body).unwrap_err();
    assert!(matches!(fault, Fault::Race { .. }), "{fault}");
}

#[test]
fn a_copy_never_waited_for_is_a_fault() {
    const LINE: u32 = line!() + 4;
    unsafe fn body(args: Args) {
        let (shared, thread) = (tile::<FLOATS>(), thread_idx_x() as usize);
        // SAFETY: a fault.
        unsafe { copy_4(shared, thread, args.source, 0) };
        commit();
    }
    let fault = run_copies(0, body).unwrap_err();
    let Fault::NeverWaitedFor { place } = fault else { panic!("{fault}") };
    assert_line(place, file!(), LINE);
}

#[test]
fn misaligned_copies_are_faults() {
    unsafe fn destination(args: Args) {
        // SAFETY: a fault.
        unsafe { copy_16(tile::<FLOATS>(), 2, args.source, 0) };
    }
    unsafe fn source(args: Args) {
        // SAFETY: a fault.
        unsafe { copy_16(tile::<FLOATS>(), 0, args.source, 1) };
    }
    for body in [destination as unsafe fn(Args), source] {
        let fault = run_copies(0, body).unwrap_err();
        assert!(matches!(fault, Fault::Misaligned { alignment: 16, .. }), "{fault}");
    }
}
