//! Kernels with one fault each, declared as the project's are, and what the emulator says of them: the checks under every
//! emulated test go red too (case 55).
use cuda_std::emulator::{Fault, Launch, Memory, run};
use tests::ORDERS;

/// Reverses 64 numbers through shared memory, right or with one fault.
mod reverse {
    use cuda_std::async_copy::{commit, copy_4, wait};
    use cuda_std::shared::dynamic_shared_mem;
    use cuda_std::thread::{sync_threads, thread_idx_below};
    use cuda_std::warp::warp_shuffle_xor;
    use cuda_std::{Global, GlobalMut, Tile};

    pub const THREADS: usize = 64;

    cuda_std::arguments! {
        /// What the kernel takes.
        pub struct Args {
            /// 64 numbers.
            pub x: Global<f32>,
            /// Where they go.
            pub y: GlobalMut<f32>,
        }
        for reverse_kernel
    }

    /// Shared memory of the block.
    #[repr(C, align(16))]
    struct Shared {
        x: Tile<THREADS>,
        unused: Tile<THREADS>,
    }
    const SHARED_BYTES: usize = size_of::<Shared>();

    pub const RIGHT: u32 = 0;
    pub const NO_BARRIER: u32 = 1;
    pub const NO_WAIT: u32 = 2;
    pub const NO_WAIT_AT_ALL: u32 = 3;
    pub const PAST_THE_INPUT: u32 = 4;
    pub const PAST_THE_TILE: u32 = 5;
    pub const PAST_THE_OUTPUT: u32 = 6;
    pub const DIVERGENT_BARRIER: u32 = 7;
    pub const TWO_WRITERS: u32 = 8;
    pub const WRITES_THE_INPUT: u32 = 9;
    pub const UNWRITTEN: u32 = 10;
    pub const LANES_MISSING: u32 = 11;
    pub const BARRIER_BEFORE_WAIT: u32 = 12;

    reverse_kernel! {
        kernel "reverse", capability 80, blocks 1;
        entry reverse = body::<RIGHT>, threads THREADS, shared SHARED_BYTES;
        entry reverse_no_barrier = body::<NO_BARRIER>, threads THREADS, shared SHARED_BYTES;
        entry reverse_no_wait = body::<NO_WAIT>, threads THREADS, shared SHARED_BYTES;
        entry reverse_no_wait_at_all = body::<NO_WAIT_AT_ALL>, threads THREADS, shared SHARED_BYTES;
        entry reverse_past_the_input = body::<PAST_THE_INPUT>, threads THREADS, shared SHARED_BYTES;
        entry reverse_past_the_tile = body::<PAST_THE_TILE>, threads THREADS, shared SHARED_BYTES;
        entry reverse_past_the_output = body::<PAST_THE_OUTPUT>, threads THREADS, shared SHARED_BYTES;
        entry reverse_divergent_barrier = body::<DIVERGENT_BARRIER>, threads THREADS, shared SHARED_BYTES;
        entry reverse_two_writers = body::<TWO_WRITERS>, threads THREADS, shared SHARED_BYTES;
        entry reverse_writes_the_input = body::<WRITES_THE_INPUT>, threads THREADS, shared SHARED_BYTES;
        entry reverse_unwritten = body::<UNWRITTEN>, threads THREADS, shared SHARED_BYTES;
        entry reverse_lanes_missing = body::<LANES_MISSING>, threads THREADS, shared SHARED_BYTES;
        entry reverse_barrier_before_wait = body::<BARRIER_BEFORE_WAIT>, threads THREADS, shared SHARED_BYTES;
        entry reverse_too_little_shared = body::<RIGHT>, threads THREADS, shared SHARED_BYTES - 16;
        entry reverse_too_many_threads = body::<RIGHT>, threads THREADS + 32, shared SHARED_BYTES;
    }

    /// # Safety
    /// `x` and `y` have 64 numbers. Faulty on purpose unless `FAULT` is `RIGHT`.
    unsafe fn body<const FAULT: u32>(args: Args) {
        let thread = thread_idx_below::<THREADS>();
        let shared = dynamic_shared_mem::<Shared>();
        // SAFETY: the emulator checks every access of this body, which is what the faults are for.
        unsafe {
            let from = if FAULT == PAST_THE_INPUT { thread + 1 } else { thread };
            let to = if FAULT == PAST_THE_TILE { thread + 1 } else { thread };
            copy_4(&raw mut (*shared).x, to, args.x, from);
            commit();
            if FAULT == BARRIER_BEFORE_WAIT {
                sync_threads();
            }
            if FAULT != NO_WAIT && FAULT != NO_WAIT_AT_ALL {
                wait::<0>();
            }
            if FAULT != NO_BARRIER && FAULT != BARRIER_BEFORE_WAIT && (FAULT != DIVERGENT_BARRIER || thread < 32) {
                sync_threads();
            }
            if FAULT == LANES_MISSING && thread.is_multiple_of(2) {
                warp_shuffle_xor(0.0, 1);
            }
            let tile = if FAULT == UNWRITTEN { &raw mut (*shared).unused } else { &raw mut (*shared).x };
            let value = if FAULT == NO_WAIT_AT_ALL { 0.0 } else { Tile::at(tile, THREADS - 1 - thread) };
            let index = match FAULT {
                PAST_THE_OUTPUT => thread + 1,
                TWO_WRITERS => thread / 2,
                _ => thread,
            };
            let y = if FAULT == WRITES_THE_INPUT { GlobalMut::new(args.x.as_ptr().cast_mut()) } else { args.y };
            y.put(index, value);
        }
    }
}

/// Runs the entry over fresh memory: its output, or the fault.
fn emulate(symbol: &str, order: u64) -> Result<Vec<f32>, Fault> {
    let entry = reverse::KERNEL.entries.iter().find(|entry| entry.symbol == symbol).expect("an entry of the kernel");
    let x: Vec<f32> = (0..64).map(|i| i as f32).collect();
    let mut y = vec![f32::NAN; 64];
    let mut memory = Memory::new();
    let args = reverse::Args { x: memory.read_only(&x), y: memory.read_write(&mut y) };
    let launch = Launch { grid: [1, 1], threads: entry.threads, shared_bytes: entry.shared_bytes, order };
    // SAFETY: the body touches memory through the words of cuda_std alone.
    unsafe { run(&launch, &memory, entry.body, args) }?;
    drop(memory);
    Ok(y)
}

#[test]
fn the_right_kernel_reverses() {
    for order in ORDERS {
        let y = emulate("reverse", order).unwrap();
        assert!(y.iter().enumerate().all(|(index, &y)| y == (63 - index) as f32), "order {order}");
    }
}

/// Shared memory that nobody wrote is NaN, which no check of a result lets through.
#[test]
fn unwritten_shared_memory_shows_in_the_result() {
    for order in ORDERS {
        assert!(emulate("reverse_unwritten", order).unwrap().iter().all(|y| y.is_nan()));
    }
}

/// Every fault is found in every order of threads, and what is said names this file.
#[test]
fn faults_are_found_in_every_order() {
    type Is = fn(&Fault) -> bool;
    let faults: [(&str, Is); 13] = [
        ("reverse_no_barrier", |fault| matches!(fault, Fault::Race { .. } | Fault::Undelivered { .. })),
        ("reverse_barrier_before_wait", |fault| matches!(fault, Fault::Race { .. } | Fault::Undelivered { .. })),
        ("reverse_no_wait", |fault| matches!(fault, Fault::Undelivered { .. })),
        ("reverse_no_wait_at_all", |fault| matches!(fault, Fault::NeverWaitedFor { .. })),
        ("reverse_past_the_input", |fault| matches!(fault, Fault::OutOfBounds { length: 256, offset: 256, .. })),
        ("reverse_past_the_tile", |fault| matches!(fault, Fault::Panicked { thread: 63, .. })),
        ("reverse_past_the_output", |fault| matches!(fault, Fault::OutOfBounds { length: 256, offset: 256, .. })),
        ("reverse_divergent_barrier", |fault| {
            matches!(fault, Fault::BarrierAfterExit { .. } | Fault::DivergentBarrier { .. } | Fault::Race { .. })
        }),
        ("reverse_two_writers", |fault| matches!(fault, Fault::Race { .. })),
        ("reverse_writes_the_input", |fault| matches!(fault, Fault::ReadOnly { .. })),
        ("reverse_lanes_missing", |fault| matches!(fault, Fault::MissingLane { .. })),
        ("reverse_too_little_shared", |fault| {
            matches!(fault, Fault::SharedTooSmall { needed: 512, available: 496, .. })
        }),
        ("reverse_too_many_threads", |fault| matches!(fault, Fault::Panicked { .. })),
    ];
    for (symbol, is) in faults {
        for order in ORDERS {
            match emulate(symbol, order) {
                Ok(_) => panic!("{symbol} passes in order {order}"),
                Err(fault) => {
                    assert!(is(&fault), "{symbol}, order {order}: {fault}");
                    assert!(fault.to_string().contains("faulty_kernels.rs"), "{symbol}: {fault}");
                }
            }
        }
    }
}
