//! What `arguments!` declares, seen from another crate, and a kernel of it in the emulator.
use cuda_std::emulator::{Launch, Memory, run};
use cuda_std::kernel::{Architecture, Arguments};

/// A kernel with arguments of different sizes.
mod scale {
    use cuda_std::float::fma;
    use cuda_std::thread::thread_idx_below;
    use cuda_std::{Global, GlobalMut};

    pub const THREADS: usize = 64;

    cuda_std::arguments! {
        /// `y = factor x + y[0]`.
        pub struct Args {
            /// Read.
            pub x: Global<f32>,
            /// A small field between large ones.
            pub factor: f32,
            /// Written.
            pub y: GlobalMut<f32>,
            /// Elements.
            pub count: usize,
            /// A small field at the end.
            pub addend: f32,
        }
        for scale_kernel
    }

    scale_kernel! {
        kernel "scale", capability 75, blocks 2;
        entry scale_once = run::<1>, threads THREADS, shared 0;
        entry scale_twice = run::<2>, threads THREADS, shared 16;
    }

    #[inline(always)]
    unsafe fn run<const TIMES: usize>(args: Args) {
        let thread = thread_idx_below::<THREADS>();
        if thread < args.count {
            // SAFETY: bounds: below `count`; owner: each thread its own element.
            unsafe {
                let mut value = args.x.at(thread);
                for _ in 0..TIMES {
                    value = fma(value, args.factor, args.addend);
                }
                args.y.put(thread, value);
            }
        }
    }
}

#[test]
fn pointers_are_in_the_order_of_the_fields() {
    let (x, mut y) = ([0.0; 1], [0.0; 1]);
    let mut memory = Memory::new();
    let args =
        scale::Args { x: memory.read_only(&x), factor: 2.5, y: memory.read_write(&mut y), count: 77, addend: -1.0 };
    let fields = [
        (&raw const args.x).addr(),
        (&raw const args.factor).addr(),
        (&raw const args.y).addr(),
        (&raw const args.count).addr(),
        (&raw const args.addend).addr(),
    ];
    let pointers = args.pointers();
    assert_eq!(pointers.iter().map(|pointer| pointer.addr()).collect::<Vec<_>>(), fields);
    // SAFETY: the pointers are those of `args`, which is in place.
    let values = unsafe { (*pointers[1].cast::<f32>(), *pointers[3].cast::<usize>(), *pointers[4].cast::<f32>()) };
    assert_eq!(values, (2.5, 77, -1.0));
}

#[test]
fn entries_carry_what_a_launch_needs() {
    let facts: Vec<_> = scale::KERNEL.facts().collect();
    assert_eq!(facts.iter().map(|fact| fact.symbol).collect::<Vec<_>>(), ["scale_once", "scale_twice"]);
    assert!(
        facts
            .iter()
            .all(|fact| (fact.kernel, fact.architecture, fact.threads) == ("scale", Architecture::From(75), 64))
    );
    assert_eq!((facts[1].shared_bytes, facts[1].blocks_per_multiprocessor), (16, 2));
}

/// A kernel for one compute capability alone.
mod alone {
    use cuda_std::GlobalMut;
    use cuda_std::thread::thread_idx_below;

    cuda_std::arguments! {
        /// `y = 1`.
        pub struct Args {
            /// Written.
            pub y: GlobalMut<f32>,
        }
        for alone_kernel
    }

    alone_kernel! {
        kernel "alone", capability 90 alone, blocks 1;
        entry write_ones = run, threads 32, shared 0;
    }

    unsafe fn run(args: Args) {
        // SAFETY: bounds: as many elements as threads; owner: each thread its own element.
        unsafe { args.y.put(thread_idx_below::<32>(), 1.0) }
    }
}

#[test]
fn a_kernel_may_be_for_one_card_alone() {
    let facts: Vec<_> = alone::KERNEL.facts().collect();
    assert_eq!((facts.len(), facts[0].architecture), (1, Architecture::Only(90)));
    let mut y = [0.0; 32];
    let mut memory = Memory::new();
    let args = alone::Args { y: memory.read_write(&mut y) };
    let launch = Launch { grid: [1, 1], threads: 32, shared_bytes: 0, order: 1 };
    // SAFETY: the kernel touches memory through the words alone.
    unsafe { run(&launch, &memory, alone::KERNEL.entries[0].body, args) }.unwrap();
    assert_eq!(y, [1.0; 32]);
}

#[test]
fn architectures_are_cards_from_one_on_or_one_alone() {
    use Architecture::{From, Only};
    for (architecture, target, runs) in [
        (From(75), "sm_75", [75, 80, 90, 100].as_slice()),
        (From(80), "sm_80", &[80, 90, 100]),
        (Only(90), "sm_90a", &[90]),
    ] {
        assert_eq!(architecture.target(), target);
        for card in [70, 75, 80, 90, 100] {
            assert_eq!(architecture.runs_on(card), runs.contains(&card), "{architecture:?} on {card}");
        }
    }
    for (kernel, file, fits) in [
        (From(75), From(80), true),
        (From(80), From(80), true),
        (From(80), From(75), false),
        (From(80), Only(90), true),
        (From(100), Only(90), false),
        (Only(90), Only(90), true),
        (Only(90), Only(100), false),
        // A later card runs the file, and would not run the kernel.
        (Only(90), From(90), false),
        (Only(90), From(80), false),
    ] {
        assert_eq!(kernel.fits_in(file), fits, "{kernel:?} in {file:?}");
    }
}

#[test]
fn entries_run_in_the_emulator() {
    let x: Vec<f32> = (0..50).map(|i| i as f32).collect();
    for (entry, times) in scale::KERNEL.entries.iter().zip(1..) {
        let mut y = vec![0.0; 50];
        let mut memory = Memory::new();
        let args = scale::Args {
            x: memory.read_only(&x),
            factor: 3.0,
            y: memory.read_write(&mut y),
            count: x.len(),
            addend: 0.5,
        };
        let launch = Launch { grid: [1, 1], threads: entry.threads, shared_bytes: entry.shared_bytes, order: 7 };
        // SAFETY: the kernel touches memory through the words alone.
        unsafe { run(&launch, &memory, entry.body, args) }.unwrap();
        let expected = |x: f32| (0..times).fold(x, |value, _| value * 3.0 + 0.5);
        assert!(x.iter().zip(&y).all(|(x, y)| *y == expected(*x)));
    }
}
