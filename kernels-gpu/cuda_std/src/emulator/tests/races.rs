//! The race check: what is one, what is not, in shared and in global memory.
use super::super::Action;
use super::*;
use crate::memory::{Global, GlobalMut};
use crate::thread::{sync_threads, thread_idx_x};
use crate::warp::{sync_warp, warp_shuffle_xor};

#[test]
fn a_missing_barrier_is_a_race_in_every_order() {
    const LINE: u32 = line!() + 5;
    unsafe fn body(_: ()) {
        let thread = thread_idx_x() as usize;
        // SAFETY: a fault.
        unsafe {
            Tile::put(tile::<64>(), thread, 1.0);
            Tile::at(tile::<64>(), 63 - thread);
        }
    }
    for order in ORDERS {
        // SAFETY: the kernel touches memory through the words alone.
        let fault = unsafe { run(&Launch { order, ..one_block(64, 256) }, &Memory::new(), body, ()) }.unwrap_err();
        let Fault::Race { place, action, other, other_action } = fault else { panic!("{fault}") };
        assert_eq!(place.thread + other.thread, 63);
        // Whichever came first.
        match action {
            Action::Read => {
                assert_line(place, file!(), LINE + 1);
                assert_other_line(other, file!(), LINE);
                assert_eq!(other_action, Action::Write);
            }
            _ => {
                assert_line(place, file!(), LINE);
                assert_other_line(other, file!(), LINE + 1);
                assert_eq!(other_action, Action::Read);
            }
        }
    }
}

/// What two accesses of thread 0 and thread `second` to one word need between them.
#[derive(Clone, Copy)]
struct Pair {
    second: usize,
    /// 0 nothing, 1 a shuffle, 2 a warp barrier, 3 a block barrier.
    between: u32,
    first_writes: bool,
    second_writes: bool,
    global: Option<GlobalMut<f32>>,
}

unsafe fn touch(pair: &Pair, write: bool) {
    // SAFETY: bounds: one float; order: what the test is about.
    unsafe {
        match (pair.global, write) {
            (None, true) => Tile::put(tile::<4>(), 0, 1.0),
            (None, false) => drop(Tile::at(tile::<4>(), 0)),
            (Some(word), true) => word.put(0, 1.0),
            (Some(word), false) => drop(Global::new(word.as_ptr().cast_const()).at(0)),
        }
    }
}

unsafe fn pair(pair: Pair) {
    let thread = thread_idx_x() as usize;
    // SAFETY: what the test is about.
    unsafe {
        if thread == 0 {
            touch(&pair, pair.first_writes);
        }
        match pair.between {
            0 => {}
            1 => drop(warp_shuffle_xor(0.0, 1)),
            2 => sync_warp(),
            _ => sync_threads(),
        }
        if thread == pair.second {
            touch(&pair, pair.second_writes);
        }
    }
}

#[test]
fn every_pair_of_accesses() {
    for (second, between, access, global) in combinations(&[1, 31, 32, 63], 4, 4, 2) {
        let (first_writes, second_writes) = (access & 1 != 0, access & 2 != 0);
        let mut word = [0.0_f32];
        let mut memory = Memory::new();
        let region = memory.read_write(&mut word);
        let args = Pair { second, between, first_writes, second_writes, global: (global == 1).then_some(region) };
        let ordered = between == 3 || between == 2 && second < 32;
        for order in ORDERS {
            // SAFETY: the kernel touches memory through the words alone.
            let result = unsafe { run(&Launch { order, ..one_block(64, 16) }, &memory, pair, args) };
            let expected = !ordered && (first_writes || second_writes);
            assert_eq!(matches!(result, Err(Fault::Race { .. })), expected, "{result:?} order {order}");
            assert_eq!(result.is_err(), expected);
        }
    }
}

/// All combinations of the seconds and of the numbers below the three limits.
fn combinations(seconds: &[usize], a: u32, b: u32, c: u32) -> Vec<(usize, u32, u32, u32)> {
    let mut all = Vec::new();
    for &second in seconds {
        for index in 0..a * b * c {
            all.push((second, index % a, index / a % b, index / (a * b)));
        }
    }
    all
}

#[test]
fn a_writer_meets_every_reader_that_no_barrier_precedes() {
    /// Readers in the order of their threads, then a warp barrier in all warps, then the writer.
    #[derive(Clone, Copy)]
    struct Args {
        readers: u64,
        readers_after: u64,
        writer: u32,
    }
    unsafe fn body(args: Args) {
        let thread = thread_idx_x();
        // SAFETY: what the test is about.
        unsafe {
            let read = |readers: u64| {
                if readers >> thread & 1 != 0 {
                    Tile::at(tile::<4>(), 0);
                }
            };
            read(args.readers);
            sync_warp();
            read(args.readers_after);
            if thread == args.writer {
                Tile::put(tile::<4>(), 0, 1.0);
            }
        }
    }
    let warp = |thread: u32| thread / 32;
    let sets = [0, 0b1, 0b10, 0b11, 1 << 40, 0b11 << 40, 0b1 | 1 << 40, 0b10 | 0b11 << 40, u64::MAX];
    for readers in sets {
        for readers_after in sets {
            for writer in [0, 1, 31, 40, 41, 63] {
                let expected = (0..64).any(|thread| {
                    let unordered = readers >> thread & 1 != 0 && warp(thread) != warp(writer);
                    let unordered_after = readers_after >> thread & 1 != 0 && thread != writer;
                    unordered || unordered_after
                });
                for order in ORDERS {
                    let args = Args { readers, readers_after, writer };
                    let launch = Launch { order, ..one_block(64, 16) };
                    // SAFETY: the kernel touches memory through the words alone.
                    let result = unsafe { run(&launch, &Memory::new(), body, args) };
                    assert_eq!(
                        matches!(result, Err(Fault::Race { .. })),
                        expected,
                        "{readers:x} {readers_after:x} {writer}: {result:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn many_readers_are_no_race() {
    unsafe fn body(x: Global<f32>) {
        // SAFETY: bounds: one float; nobody writes.
        unsafe {
            Tile::at(tile::<4>(), 0);
            x.at(0);
        }
    }
    let mut word = [0.0_f32];
    let mut memory = Memory::new();
    let args = Global::new(memory.read_write(&mut word).as_ptr().cast_const());
    // SAFETY: the kernel touches memory through the words alone.
    unsafe { run(&one_block(256, 16), &memory, body, args) }.unwrap();
}
