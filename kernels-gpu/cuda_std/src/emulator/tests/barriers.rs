//! The block barrier: right use in every order, divergence, exits.
use super::*;
use crate::memory::{Global, GlobalMut};
use crate::thread::{block_idx_x, block_idx_y, sync_threads, thread_idx_x};

const THREADS: usize = 128;

#[derive(Clone, Copy)]
struct Axpy {
    a: f32,
    x: Global<f32>,
    y: GlobalMut<f32>,
}

/// `y += a x`, each thread of another's element, by way of shared memory.
unsafe fn axpy(args: Axpy) {
    let thread = thread_idx_x() as usize;
    let start = (block_idx_y() * 3 + block_idx_x()) as usize * THREADS;
    let shared = tile::<THREADS>();
    // SAFETY: bounds: a tile of one element a thread, and slices of one an element a thread of six blocks; owner: the
    // thread writes element `thread`, then the one opposite; barrier: in between.
    unsafe {
        Tile::put(shared, thread, args.x.at(start + thread));
        sync_threads();
        let opposite = THREADS - 1 - thread;
        let y = Global::new(args.y.as_ptr().cast_const()).at(start + opposite);
        args.y.put(start + opposite, args.a.mul_add(Tile::at(shared, opposite), y));
        sync_threads();
        // Shared memory may be written again after the second barrier.
        Tile::put(shared, opposite, 0.0);
    }
}

#[test]
fn a_right_kernel_runs_alike_in_every_order() {
    let x: Vec<f32> = (0..6 * THREADS).map(|i| i as f32).collect();
    for order in ORDERS {
        let mut y = vec![1.0_f32; 6 * THREADS];
        let mut memory = Memory::new();
        let args = Axpy { a: 2.0, x: memory.read_only(&x), y: memory.read_write(&mut y) };
        let launch = Launch { grid: [3, 2], threads: THREADS as u32, shared_bytes: 4 * THREADS as u32, order };
        // SAFETY: the kernel touches memory through the words alone.
        unsafe { run(&launch, &memory, axpy, args) }.unwrap();
        assert!(y.iter().zip(&x).all(|(y, x)| *y == 2.0 * x + 1.0));
    }
}

#[test]
fn orders_differ() {
    /// Every thread writes its turn of running, which no right kernel can know.
    unsafe fn turns(counter: (GlobalMut<u32>, *const std::sync::atomic::AtomicU32)) {
        // SAFETY: the counter outlives the launch; every thread writes its own element.
        unsafe {
            let turn = (*counter.1).fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            counter.0.put(thread_idx_x() as usize, turn);
        }
    }
    #[derive(Clone, Copy)]
    struct Args(GlobalMut<u32>, *const std::sync::atomic::AtomicU32);
    // SAFETY: the counter is atomic.
    unsafe impl Send for Args {}
    // SAFETY: as above.
    unsafe impl Sync for Args {}
    unsafe fn body(args: Args) {
        // SAFETY: forwarded.
        unsafe { turns((args.0, args.1)) }
    }
    let results = ORDERS.map(|order| {
        let counter = std::sync::atomic::AtomicU32::new(0);
        let mut out = vec![0_u32; THREADS];
        let mut memory = Memory::new();
        let args = Args(memory.read_write(&mut out), &raw const counter);
        // SAFETY: the kernel touches memory through the words, and an atomic that outlives the launch.
        unsafe { run(&Launch { order, ..one_block(THREADS as u32, 0) }, &memory, body, args) }.unwrap();
        out
    });
    assert!(results[0].iter().enumerate().all(|(thread, turn)| *turn as usize == thread));
    assert_ne!(results[0], results[1]);
    assert_ne!(results[1], results[2]);
}

#[test]
#[allow(clippy::if_same_then_else)] // the same call in two places is the point
fn different_barriers_are_a_fault() {
    const LINE: u32 = line!() + 5;
    unsafe fn body(_: ()) {
        // SAFETY: a fault.
        unsafe {
            if thread_idx_x() < 7 {
                sync_threads();
            } else {
                sync_threads();
            }
        }
    }
    let fault = run_block(64, 0, body, ()).unwrap_err();
    let Fault::DivergentBarrier { place, other } = fault else { panic!("{fault}") };
    assert_line(place, file!(), LINE + 2);
    assert_other_line(other, file!(), LINE);
    assert_eq!((place.thread, other.thread), (7, 0));
}

#[test]
fn an_exit_while_others_wait_is_a_fault() {
    const LINE: u32 = line!() + 5;
    unsafe fn body(_: ()) {
        // SAFETY: a fault.
        unsafe {
            if thread_idx_x() != 40 {
                sync_threads();
            }
        }
    }
    for order in ORDERS {
        // SAFETY: the kernel touches no memory.
        let fault = unsafe { run(&Launch { order, ..one_block(64, 0) }, &Memory::new(), body, ()) }.unwrap_err();
        let Fault::BarrierAfterExit { place, exited: 40 } = fault else { panic!("{fault}") };
        assert_line(place, file!(), LINE);
    }
}
