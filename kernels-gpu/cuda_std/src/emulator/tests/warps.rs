//! Shuffles and the warp barrier: their results, and lanes that do not come.
use super::super::Collective;
use super::*;
use crate::memory::GlobalMut;
use crate::thread::{clock_cycles, global_nanoseconds, sleep, sync_threads, thread_idx_x};
use crate::warp::{lane_id, sync_warp, warp_shuffle_idx, warp_shuffle_up, warp_shuffle_xor};

unsafe fn shuffles(out: GlobalMut<f32>) {
    let thread = thread_idx_x() as usize;
    // SAFETY: bounds: 8 values a thread; owner: each thread its own.
    unsafe {
        let put = |index: usize, value: f32| out.put(thread * 8 + index, value);
        let value = thread as f32;
        put(0, warp_shuffle_xor(value, 1));
        put(1, warp_shuffle_xor(value, 31));
        put(2, warp_shuffle_idx(value, 5));
        // Each lane may name another source.
        put(3, warp_shuffle_idx(value, (lane_id() + 3) % 32));
        put(4, warp_shuffle_up(value, 1));
        put(5, warp_shuffle_up(value, 8));
        let mut sum = value;
        for mask in [16, 8, 4, 2, 1] {
            sum += warp_shuffle_xor(sum, mask);
        }
        put(6, sum);
        sync_warp();
        put(7, warp_shuffle_idx(sum + value, 31));
    }
}

#[test]
fn shuffles_take_the_right_lanes_in_every_order() {
    for order in ORDERS {
        let mut out = vec![0.0_f32; 96 * 8];
        let mut memory = Memory::new();
        let args = memory.read_write(&mut out);
        // SAFETY: the kernel touches memory through the words alone.
        unsafe { run(&Launch { order, ..one_block(96, 0) }, &memory, shuffles, args) }.unwrap();
        for (thread, out) in out.chunks(8).enumerate() {
            let (lane, first) = (thread % 32, thread / 32 * 32);
            let up = |delta: usize| first + lane.checked_sub(delta).unwrap_or(lane);
            let sum: usize = (first..first + 32).sum();
            let expected =
                [thread ^ 1, thread ^ 31, first + 5, first + (lane + 3) % 32, up(1), up(8), sum, sum + first + 31];
            assert_eq!(out, expected.map(|value| value as f32), "thread {thread}");
        }
    }
}

#[test]
fn a_lane_that_exited_is_missed() {
    const LINE: u32 = line!() + 5;
    unsafe fn body(_: ()) {
        // SAFETY: a fault.
        unsafe {
            if thread_idx_x() != 33 {
                warp_shuffle_xor(0.0, 1);
            }
        }
    }
    let fault = run_block(64, 0, body, ()).unwrap_err();
    let Fault::MissingLane { place, collective: Collective::ShuffleXor, missing } = fault else { panic!("{fault}") };
    assert_line(place, file!(), LINE);
    assert_eq!((place.thread, missing.thread, missing.location), (32, 33, None));
}

#[test]
fn a_lane_at_the_block_barrier_is_missed() {
    const LINE: u32 = line!() + 5;
    unsafe fn body(_: ()) {
        // SAFETY: a fault.
        unsafe {
            if thread_idx_x() == 3 {
                sync_threads();
            } else {
                sync_warp();
            }
        }
    }
    for order in ORDERS {
        // SAFETY: the kernel touches no memory.
        let fault = unsafe { run(&Launch { order, ..one_block(32, 0) }, &Memory::new(), body, ()) }.unwrap_err();
        let Fault::MissingLane { place, collective: Collective::Barrier, missing } = fault else { panic!("{fault}") };
        assert_line(place, file!(), LINE + 2);
        assert_eq!(missing.thread, 3);
        assert_other_line(missing, file!(), LINE);
    }
}

#[test]
#[allow(clippy::if_same_then_else)] // the same call in two places is the point
fn lanes_at_different_shuffles_are_a_fault() {
    const LINE: u32 = line!() + 5;
    unsafe fn body(_: ()) {
        // SAFETY: a fault.
        unsafe {
            if lane_id() < 16 {
                warp_shuffle_xor(0.0, 1);
            } else {
                warp_shuffle_xor(0.0, 1);
            }
        }
    }
    let fault = run_block(32, 0, body, ()).unwrap_err();
    let Fault::DivergentWarp { place, other, .. } = fault else { panic!("{fault}") };
    assert_line(place, file!(), LINE + 2);
    assert_other_line(other, file!(), LINE);
}

#[test]
fn warps_may_be_at_different_shuffles() {
    unsafe fn body(_: ()) {
        // SAFETY: all lanes of a warp take the same side.
        unsafe {
            if thread_idx_x() < 32 {
                warp_shuffle_xor(0.0, 1);
                sync_warp();
            } else {
                warp_shuffle_up(0.0, 1);
            }
            sync_threads();
        }
    }
    run_block(64, 0, body, ()).unwrap();
}

#[test]
fn an_operand_of_32_is_a_fault() {
    unsafe fn body(_: ()) {
        // SAFETY: a fault.
        unsafe { warp_shuffle_idx(0.0, 32) };
    }
    let fault = run_block(32, 0, body, ()).unwrap_err();
    assert!(matches!(fault, Fault::LaneOperand { operand: 32, collective: Collective::ShuffleIndex, .. }), "{fault}");
}

#[test]
fn clocks_go_forward() {
    unsafe fn clocks(_: ()) {
        let before = (clock_cycles(), global_nanoseconds());
        sleep::<1_000>();
        assert!(clock_cycles() >= before.0 + 1_000 && global_nanoseconds() >= before.1 + 1_000);
    }
    run_block(32, 0, clocks, ()).unwrap();
}
