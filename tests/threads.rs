//! Many threads at once on every path, each with the bits it has alone (case 51).
#![forbid(unsafe_code)]
use std::thread;

use host::cuda::Gdn;
use host::inputs::{Family, Inputs};
use host::{Call, HeadMap, cpu};
use tests::{HEADS, Output, Path, every_path_for, heads, run, same_bits};

const fn send<T: Send>() {}
const fn shared<T: Send + Sync>() {}

/// What may go from thread to thread, as far as types say it.
const _: () = {
    shared::<Gdn>();
    shared::<host::Error>();
    shared::<host::cuda::Call>();
    shared::<host::cuda::Stream>();
    shared::<host::cuda::StatePool>();
    shared::<host::cuda::Workspace>();
    shared::<host::Slots>();
    shared::<host::Slot>();
    send::<Call<'static>>();
};

/// One thread's problem and what it gives alone.
fn alone(thread: usize) -> (Inputs, Vec<(Path, Output)>) {
    let (keys, values) = HEADS[thread % HEADS.len()];
    let heads = heads(keys, values, HeadMap::Tiled);
    let inputs = Inputs::seeded(heads, 5 + 3 * thread, Family::Base, thread as u64);
    let outputs = every_path_for(&heads).into_iter().map(|path| (path, run(path, &inputs))).collect();
    (inputs, outputs)
}

#[test]
fn eight_threads_have_the_bits_they_have_alone() {
    let problems: Vec<_> = (0..8).map(alone).collect();
    thread::scope(|scope| {
        for (inputs, expected) in &problems {
            scope.spawn(move || {
                for round in 0..5 {
                    for (path, expected) in expected {
                        // Emulated, one round is enough to meet the others.
                        if round == 0 || !matches!(path, Path::Emulated(_)) {
                            same_bits(&inputs.heads, expected, &run(*path, inputs))
                                .unwrap_or_else(|e| panic!("{path:?}, round {round}: {e}"));
                        }
                    }
                }
            });
        }
    });
}

/// However many threads share the work, the bits are the same.
#[test]
fn the_cpus_bits_do_not_depend_on_the_number_of_threads() {
    for (keys, values) in HEADS {
        let heads = heads(keys, values, HeadMap::Grouped);
        let inputs = Inputs::seeded(heads, 70, Family::Base, 9);
        for path in cpu::Path::ALL.map(Path::Cpu) {
            let expected = run(path, &inputs);
            for threads in [1, 2, 3, 7, 16] {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                let output = pool.install(|| run(path, &inputs));
                same_bits(&heads, &expected, &output)
                    .unwrap_or_else(|e| panic!("{path:?}, {threads} threads, {heads:?}: {e}"));
            }
        }
    }
}
