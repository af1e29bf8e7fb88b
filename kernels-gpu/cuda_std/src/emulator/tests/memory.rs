//! Bounds, alignment, permission, and what shared memory starts with.
use super::super::{Action, Space};
use super::*;
use crate::async_copy::prefetch;
use crate::memory::{Global, GlobalMut};
use crate::thread::{sync_threads, thread_idx_x};

#[derive(Clone, Copy)]
struct Args {
    x: Global<f32>,
    y: GlobalMut<f32>,
}

#[repr(align(16))]
struct Aligned([f32; 192]);

/// Runs one warp with 64 floats to read and 64 to write. Others lie around them, that the launch is not lent.
fn run_memory(body: unsafe fn(Args)) -> Result<(), Fault> {
    let (x, mut y) = (Aligned([1.0; 192]), Aligned([2.0; 192]));
    let mut memory = Memory::new();
    let args = Args { x: memory.read_only(&x.0[64..128]), y: memory.read_write(&mut y.0[64..128]) };
    // SAFETY: the kernels touch memory through the words alone.
    unsafe { run(&one_block(32, 256), &memory, body, args) }
}

#[test]
fn global_accesses_stay_inside() {
    const LINE: u32 = line!() + 3;
    unsafe fn read(args: Args) {
        // SAFETY: a fault.
        unsafe { args.x.at(64) };
    }
    unsafe fn read_across_the_end(args: Args) {
        // SAFETY: a fault.
        unsafe { args.x.quad(62) };
    }
    unsafe fn write_before_the_start(args: Args) {
        // SAFETY: a fault.
        unsafe { args.y.put(usize::MAX, 0.0) };
    }
    unsafe fn ask_for_a_line_outside(args: Args) {
        // SAFETY: a fault.
        unsafe { prefetch(args.x, 100) };
    }
    unsafe fn read_null(_: Args) {
        // SAFETY: a fault.
        unsafe { Global::<f32>::new(std::ptr::null()).at(0) };
    }
    let fault = run_memory(read).unwrap_err();
    let Fault::OutOfBounds { place, action, space, bytes, offset, length } = fault else { panic!("{fault}") };
    assert_line(place, file!(), LINE);
    assert_eq!((action, space, bytes), (Action::Read, Space::Global, 4));
    assert_eq!((offset, length), (256, 256));
    for (body, action) in [
        (read_across_the_end as unsafe fn(Args), Action::Read),
        (write_before_the_start, Action::Write),
        (ask_for_a_line_outside, Action::Prefetch),
        (read_null, Action::Read),
    ] {
        let fault = run_memory(body).unwrap_err();
        assert!(matches!(fault, Fault::OutOfBounds { action: a, .. } if a == action), "{fault}");
    }
}

#[test]
fn a_write_into_read_only_memory_is_a_fault() {
    const LINE: u32 = line!() + 3;
    unsafe fn body(args: Args) {
        // SAFETY: a fault.
        unsafe { GlobalMut::new(args.x.as_ptr().cast_mut()).put(3, 0.0) };
    }
    let fault = run_memory(body).unwrap_err();
    let Fault::ReadOnly { place } = fault else { panic!("{fault}") };
    assert_line(place, file!(), LINE);
}

#[test]
fn misaligned_quads_are_faults() {
    const LINE: u32 = line!() + 3;
    unsafe fn global_read(args: Args) {
        // SAFETY: a fault.
        unsafe { args.x.quad(2) };
    }
    unsafe fn global_write(args: Args) {
        // SAFETY: a fault.
        unsafe { args.y.put_quad(1, [0.0; 4]) };
    }
    unsafe fn shared_read(_: Args) {
        // SAFETY: a fault.
        unsafe { Tile::quad(tile::<64>(), 1) };
    }
    unsafe fn shared_write(_: Args) {
        // SAFETY: a fault.
        unsafe { Tile::put_quad(tile::<64>(), 2, [0.0; 4]) };
    }
    for (index, body) in [global_read as unsafe fn(Args), global_write, shared_read, shared_write].iter().enumerate() {
        let fault = run_memory(*body).unwrap_err();
        let Fault::Misaligned { place, alignment: 16, .. } = fault else { panic!("{fault}") };
        assert_line(place, file!(), LINE + 4 * index as u32);
    }
}

#[test]
fn shared_memory_has_the_size_of_the_launch() {
    unsafe fn too_large(_: Args) {
        tile::<65>();
    }
    unsafe fn past_the_end(_: Args) {
        // SAFETY: a fault.
        unsafe { Tile::at(tile::<64>().wrapping_add(1), 0) };
    }
    let fault = run_memory(too_large).unwrap_err();
    assert!(matches!(fault, Fault::SharedTooSmall { needed: 272, available: 256, .. }), "{fault}");
    let fault = run_memory(past_the_end).unwrap_err();
    assert!(matches!(fault, Fault::OutOfBounds { space: Space::Shared, offset: 256, length: 256, .. }), "{fault}");
}

#[test]
fn shared_memory_starts_as_nan_in_each_block() {
    unsafe fn body(args: Args) {
        let thread = thread_idx_x() as usize;
        // SAFETY: bounds: 64 floats; owner: two a thread; barrier: none needed.
        unsafe {
            assert!(Tile::at(tile::<64>(), thread).is_nan());
            assert!(Tile::at(tile::<64>(), 32 + thread).is_nan());
            Tile::put(tile::<64>(), thread, args.x.at(thread));
        }
    }
    let x = [0.0; 64];
    let mut y = [0.0; 64];
    let mut memory = Memory::new();
    let args = Args { x: memory.read_only(&x), y: memory.read_write(&mut y) };
    // SAFETY: the kernel touches memory through the words alone.
    unsafe { run(&Launch { grid: [20, 1], ..one_block(32, 256) }, &memory, body, args) }.unwrap();
}

#[test]
fn memory_may_be_updated_in_place_and_hold_other_types() {
    #[derive(Clone, Copy)]
    struct InPlace {
        initial: Global<f32>,
        last: GlobalMut<f32>,
        counts: GlobalMut<u64>,
        flags: Global<u8>,
        nothing: Global<f32>,
    }
    unsafe fn body(args: InPlace) {
        let thread = thread_idx_x() as usize;
        // SAFETY: bounds: 32 elements; owner: each thread reads its own, then writes its neighbour's; barrier: between.
        unsafe {
            let value = args.initial.at(thread);
            sync_threads();
            args.last.put((thread + 1) % 32, value + f32::from(args.flags.at(thread)));
            args.counts.put(thread, u64::MAX - thread as u64);
        }
        assert!(args.nothing.as_ptr().is_null());
    }
    let mut state: Vec<f32> = (0..32).map(|i| i as f32).collect();
    let (mut counts, flags) = (vec![0_u64; 32], vec![1_u8; 32]);
    let mut memory = Memory::new();
    let last = memory.read_write(&mut state);
    let args = InPlace {
        initial: Global::new(last.as_ptr()),
        last,
        counts: memory.read_write(&mut counts),
        flags: memory.read_only(&flags),
        nothing: Global::new(std::ptr::null()),
    };
    // SAFETY: the kernel touches memory through the words alone.
    unsafe { run(&one_block(32, 0), &memory, body, args) }.unwrap();
    assert!(state.iter().enumerate().all(|(i, value)| *value == ((i + 31) % 32) as f32 + 1.0));
    assert!(counts.iter().enumerate().all(|(i, count)| *count == u64::MAX - i as u64));
}
