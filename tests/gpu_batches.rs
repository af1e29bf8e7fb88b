//! Batches, pools and decode on a GPU: counted as skipped without one, a failure with `GDN_REQUIRE_GPU=1` (cases 11, 15, 31, 32,
//! 35, 40, 42, 51).
use std::thread;

use cust::context::CurrentContext;
use cust::memory::{CopyDestination, DeviceBuffer, mem_get_info};
use cust::stream::StreamFlags;
use host::cuda::{Call, CudaError, Gates, Gdn, Indices, Scratch, State, StatePool, Stream, View, device_count};
use host::{Dtype, Error, HeadMap, IndexDtype, Kernel, QkNorm, Reason, Sequences, StateLayout, Strides};
use tests::{Batch, BatchOnDevice, BatchPath, Output, bars, engine_context, gpu_or_skip, heads, same_bits};

/// The general kernel has the emulator's bits in every type, packed and not, with norm and raw gates and without.
#[test]
fn the_general_kernel_has_the_emulators_bits() {
    let Some(_) = gpu_or_skip("the general kernel in every type", 24) else { return };
    for dtype in Dtype::ALL {
        for lengths in [&[4, 4][..], &[1, 0, 7]] {
            for norm in [QkNorm::None, QkNorm::L2 { eps: 1e-6 }] {
                for raw in [None, Some([vec![0.5, -1.0, 2.0, 0.0], vec![0.1, -0.3, 1.0, 0.0]])] {
                    let mut batch = Batch::new(heads(2, 4, HeadMap::Tiled), lengths, dtype, 1);
                    (batch.norm, batch.raw, batch.out) = (norm, raw, dtype);
                    let emulated = batch.run(BatchPath::Emulated(Some(Kernel::Decode))).unwrap();
                    let outputs = batch.run(BatchPath::Cuda(Some(Kernel::Decode))).unwrap();
                    assert!(outputs == emulated, "{dtype}, {lengths:?}, {norm:?}, raw {}", batch.raw.is_some());
                }
            }
        }
    }
}

/// A long sequence alone, first of two, and 17th of 64, by whatever kernel its length names (case 35).
#[test]
fn a_long_sequence_has_its_bits_in_any_batch_on_the_device() {
    let Some(_) = gpu_or_skip("a long sequence in batches", 2 * 3) else { return };
    for dtype in [Dtype::F32, Dtype::Bf16] {
        for lengths in [vec![777, 7], vec![777; 3], (0..64).map(|n| if n == 16 { 777 } else { n % 5 }).collect()] {
            let batch = Batch::new(heads(4, 12, HeadMap::Grouped), &lengths, dtype, 2);
            let outputs = batch.run(BatchPath::Cuda(None)).unwrap();
            batch
                .agrees(&outputs, &bars::GENERAL)
                .and_then(|()| batch.bits_alone(BatchPath::Cuda(None), &outputs))
                .unwrap_or_else(|e| panic!("{dtype}, {lengths:?}: {e}"));
        }
    }
}

/// Long prompts of bf16 whose slots only the device knows take a chunked kernel, each with the bits that it has alone; rows of
/// padding are zeros, and other slots are untouched (cases 15, 35).
#[test]
fn long_prompts_in_slots_take_the_chunked_kernels() {
    let Some(gdn) = gpu_or_skip("long prompts in slots", 2 * 4) else { return };
    let _engine = engine_context();
    for lengths in [&[300; 4][..], &[300, 40, 2100, 0]] {
        let mut batch = Batch::new(heads(4, 12, HeadMap::Grouped), lengths, Dtype::Bf16, 12);
        (batch.norm, batch.out) = (QkNorm::L2 { eps: 1e-6 }, Dtype::Bf16);
        let slots = [5, -1, 0, 3];
        let mut device = BatchOnDevice::new(&batch, 6);
        device.place(&slots);
        let launch = device.prefill(gdn, Scratch::Device, Stream::LEGACY).unwrap();
        assert!(launch.kernel.is_chunked(), "{launch:?}");
        gdn.synchronize(Stream::LEGACY).unwrap();
        let outputs = device.outputs(&[5, 4, 0, 3]);
        assert!(outputs[1].out.iter().all(|o| o.to_bits() == 0));
        for untouched in device.outputs(&[1, 2, 4, 4]) {
            assert!(untouched.state.iter().all(|s| s.is_nan()));
        }
        for live in [0, 2, 3] {
            let alone = batch.alone(live).run(BatchPath::Cuda(None)).unwrap().remove(0);
            same_bits(&batch.heads, &alone, &outputs[live]).unwrap_or_else(|e| panic!("{lengths:?}, {live}: {e}"));
        }
    }
}

/// Slots behind 2^31 elements of a pool (case 11(a)).
#[test]
fn slots_behind_two_to_the_31_elements() {
    const SLOTS: usize = 4200;
    let Some(gdn) = gpu_or_skip("a pool of 4200 slots", 4) else { return };
    let _engine = engine_context();
    let heads = heads(16, 32, HeadMap::Grouped);
    let layout = StateLayout::key_major(&heads);
    if mem_get_info().unwrap().0 < SLOTS * layout.slot * 4 + (1 << 30) {
        eprintln!("skipped: 9 GB of device memory are not free (4 cases)");
        return;
    }
    let batch = Batch::new(heads, &[8; 4], Dtype::Bf16, 3);
    let expected = batch.run(BatchPath::Cuda(Some(Kernel::Decode))).unwrap();
    let slots = [0, 4095, 4096, 4199];
    let mut small = BatchOnDevice::new(&batch, 4);
    small.place(&[0, 1, 2, 3]);
    // SAFETY: what is read of it is written before.
    let large = unsafe { DeviceBuffer::<f32>::uninitialized(SLOTS * layout.slot) }.unwrap();
    let pool = State::new(large.as_device_ptr().as_raw(), layout, SLOTS);
    let table = DeviceBuffer::from_slice(&slots.map(|slot| slot as i32)).unwrap();
    CurrentContext::synchronize().unwrap();
    // SAFETY: all buffers live until the stream is synchronised.
    unsafe {
        gdn.copy_states(&heads, (small.state(), &[0, 1, 2, 3]), (pool, &slots), Stream::LEGACY).unwrap();
        let call = small.call().state(pool);
        let call = call.state_indices(Indices::new(table.as_device_ptr().as_raw(), IndexDtype::I32));
        gdn.decode(&call, Stream::LEGACY).unwrap();
        gdn.copy_states(&heads, (pool, &slots), (small.state(), &[0, 1, 2, 3]), Stream::LEGACY).unwrap();
    }
    gdn.synchronize(Stream::LEGACY).unwrap();
    for (expected, output) in expected.iter().zip(small.outputs(&[0, 1, 2, 3])) {
        same_bits(&heads, expected, &output).unwrap();
    }
}

/// Tokens behind 2^31 elements of v and out (case 11(b)): all but the last 64 write nothing, so that those are as alone.
#[test]
fn tokens_behind_two_to_the_31_elements() {
    const TOKENS: usize = (1 << 18) + 64;
    let Some(gdn) = gpu_or_skip("2^31 elements of a tensor", 1) else { return };
    let _engine = engine_context();
    let heads = heads(1, 64, HeadMap::Grouped);
    let row = 64 * 128;
    if mem_get_info().unwrap().0 < 6 * TOKENS * row + (2 << 30) {
        eprintln!("skipped: 15 GB of device memory are not free (1 case)");
        return;
    }
    let last = Batch::new(heads, &[64], Dtype::Bf16, 4);
    let expected = last.run(BatchPath::Cuda(Some(Kernel::Decode))).unwrap().remove(0);
    let zeros = |elements: usize| DeviceBuffer::<u16>::zeroed(elements).unwrap();
    let upload = |numbers: &tests::Numbers, row: usize| {
        let tests::Numbers::Bf16(data) = numbers else { unreachable!("bf16") };
        let bits: Vec<u16> = data.iter().map(|x| x.to_bits()).collect();
        let buffer = zeros(TOKENS * row);
        buffer.index((TOKENS - 64) * row..).copy_from(&bits[..]).unwrap();
        buffer
    };
    let (q, k, v) = (upload(&last.q, 128), upload(&last.k, 128), upload(&last.v, row));
    let (g, beta) = (upload(&last.g, 64), upload(&last.beta, 64));
    let out = DeviceBuffer::<u32>::zeroed(TOKENS * row).unwrap();
    let states = DeviceBuffer::from_slice(&last.states[0]).unwrap();
    CurrentContext::synchronize().unwrap();
    let view = |buffer: &DeviceBuffer<u16>, heads: usize, dim: usize| {
        View::new(buffer.as_device_ptr().as_raw(), Dtype::Bf16, Strides::dense(heads, dim))
    };
    let gates = Gates::Log { g: view(&g, 64, 1), beta: view(&beta, 64, 1) };
    let out_view = View::new(out.as_device_ptr().as_raw(), Dtype::F32, Strides::dense(64, 128));
    let state = State::new(states.as_device_ptr().as_raw(), StateLayout::key_major(&heads), 1);
    let call = Call::new(heads, TOKENS, view(&q, 1, 128), view(&k, 1, 128), view(&v, 64, 128), gates, out_view);
    // SAFETY: all buffers live until the stream is synchronised.
    let launch = unsafe { gdn.prefill(&call.state(state), Stream::LEGACY) }.unwrap();
    assert_eq!((launch.kernel, launch.reason), (Kernel::Decode, Reason::HeadRatio { ratio: 64, most: 4 }));
    gdn.synchronize(Stream::LEGACY).unwrap();
    let mut bits = vec![0u32; 64 * row];
    out.index((TOKENS - 64) * row..).copy_to(&mut bits[..]).unwrap();
    let mut state = vec![0.0f32; states.len()];
    states.copy_to(&mut state[..]).unwrap();
    let output = Output { out: bits.into_iter().map(f32::from_bits).collect(), state };
    same_bits(&heads, &expected, &output).unwrap();
}

/// On the two streams without an object and one of the caller's, behind work that is still running, and the context of the
/// thread stays what it was, through errors too (cases 31, 32).
#[test]
fn decode_runs_on_every_kind_of_stream() {
    let Some(gdn) = gpu_or_skip("decode on streams", 3 * 20) else { return };
    let _engine = engine_context();
    let batch = Batch::new(heads(16, 48, HeadMap::Grouped), &[1; 8], Dtype::Bf16, 5);
    let expected = batch.run(BatchPath::Cuda(Some(Kernel::Decode))).unwrap();
    let own = cust::stream::Stream::new(StreamFlags::NON_BLOCKING, None).unwrap();
    let slots: Vec<i32> = (0..8).rev().collect();
    let mut device = BatchOnDevice::new(&batch, 8);
    for stream in [Stream::LEGACY, Stream::PER_THREAD, Stream::from(&own)] {
        for _ in 0..20 {
            device.place(&slots);
            let launch = device.decode(gdn, stream).unwrap();
            assert_eq!((launch.kernel, launch.launches, launch.scratch_bytes), (Kernel::Decode, 1, 0));
            gdn.synchronize(stream).unwrap();
            for (expected, output) in expected.iter().zip(device.outputs(&slots)) {
                same_bits(&batch.heads, expected, &output).unwrap();
            }
        }
    }
    own.synchronize().unwrap();
    let long = Batch::new(batch.heads, &[17], Dtype::F32, 6);
    let error = BatchOnDevice::new(&long, 1).decode(gdn, Stream::LEGACY).unwrap_err();
    assert!(matches!(error, Error::DecodeTokens { tokens: 17, most: 16 }), "{error}");
    let uneven = Batch::new(batch.heads, &[1, 2], Dtype::F32, 7);
    let error = BatchOnDevice::new(&uneven, 2).decode(gdn, Stream::LEGACY).unwrap_err();
    assert!(matches!(error, Error::Refused { kernel: "decode", reason: Reason::Lengths }), "{error}");
}

/// Padding, and slots that the pool has not: zeros, and no state is touched (case 15).
#[test]
fn padding_on_the_device_touches_nothing() {
    let Some(gdn) = gpu_or_skip("padding", 4) else { return };
    let _engine = engine_context();
    let batch = Batch::new(heads(2, 4, HeadMap::Grouped), &[2; 4], Dtype::F16, 8);
    let mut device = BatchOnDevice::new(&batch, 4);
    device.place(&[2, -1, 0, 4]);
    device.decode(gdn, Stream::LEGACY).unwrap();
    gdn.synchronize(Stream::LEGACY).unwrap();
    let outputs = device.outputs(&[2, 1, 0, 3]);
    for padding in [1, 3] {
        assert!(outputs[padding].out.iter().all(|o| o.to_bits() == 0));
        assert!(outputs[padding].state.iter().all(|s| s.is_nan()));
    }
    for live in [0, 2] {
        let alone = batch.alone(live).run(BatchPath::Cuda(Some(Kernel::Decode))).unwrap().remove(0);
        same_bits(&batch.heads, &alone, &outputs[live]).unwrap();
    }
}

/// Eight threads, each with a stream, a workspace and shapes of its own, on one handle (case 51).
#[test]
fn eight_threads_decode_and_prefill_on_one_handle() {
    let Some(gdn) = gpu_or_skip("eight threads that decode", 8 * 500) else { return };
    thread::scope(|scope| {
        for number in 0..8 {
            scope.spawn(move || {
                let _engine = engine_context();
                let own = cust::stream::Stream::new(StreamFlags::NON_BLOCKING, None).unwrap();
                let stream = Stream::from(&own);
                let dtype = Dtype::ALL[number % 3];
                let decode = Batch::new(heads(2, 6, HeadMap::Grouped), &vec![1; 1 + number], dtype, number as u64);
                let packed = Batch::new(heads(2, 4, HeadMap::Tiled), &[number, 20, 1], dtype, 50 + number as u64);
                let expected = [&decode, &packed].map(|batch| batch.run(BatchPath::Cuda(None)).unwrap());
                let slots: [Vec<i32>; 2] = [&decode, &packed].map(|batch| (0..batch.lengths.len() as i32).collect());
                let mut devices = [&decode, &packed].map(|batch| BatchOnDevice::new(batch, batch.lengths.len()));
                let mut workspace = gdn.workspace(&devices[1].call()).unwrap();
                for round in 0..250 {
                    for (device, slots) in devices.iter_mut().zip(&slots) {
                        device.place(slots);
                    }
                    devices[0].decode(gdn, stream).unwrap();
                    let scratch = Scratch::Workspace(&mut workspace);
                    devices[1].prefill(gdn, scratch, stream).unwrap();
                    gdn.synchronize(stream).unwrap();
                    for ((device, slots), expected) in devices.iter().zip(&slots).zip(&expected) {
                        assert!(device.outputs(slots) == *expected, "thread {number}, round {round}");
                    }
                }
            });
        }
    });
}

/// A pool gives each slot once, zeroed, and says when there is none.
#[test]
fn a_pool_gives_zeroed_slots() {
    let Some(gdn) = gpu_or_skip("a pool of states", 1) else { return };
    let _engine = engine_context();
    let heads = heads(1, 2, HeadMap::Grouped);
    let pool = StatePool::new(gdn, &heads, StateLayout::value_major(&heads), 3, 2).unwrap();
    assert_eq!((pool.capacity(), pool.in_use()), (2, 0));
    // SAFETY: the stream always lives.
    let acquire = || unsafe { pool.acquire(Stream::LEGACY) };
    let (first, second) = (acquire().unwrap(), acquire().unwrap());
    assert!(matches!(acquire(), Err(Error::PoolExhausted { capacity: 2 })));
    let batch = Batch::new(heads, &[3], Dtype::Bf16, 9);
    let zeros = Batch { states: vec![vec![0.0; heads.state_len()]], ..batch.clone() };
    let expected = zeros.run(BatchPath::Cuda(Some(Kernel::Decode))).unwrap().remove(0);
    let mut small = BatchOnDevice::new(&batch, 1);
    let mut slot = second;
    // Twice in a slot that the first round has filled.
    for _ in 0..2 {
        let table = DeviceBuffer::from_slice(&[slot.index() as i32]).unwrap();
        small.place(&[0]);
        let indices = Indices::new(table.as_device_ptr().as_raw(), IndexDtype::I32);
        // SAFETY: all buffers live until the stream is synchronised.
        unsafe {
            gdn.decode(&small.call().state(pool.layer(1)).state_indices(indices), Stream::LEGACY).unwrap();
            let from = (pool.layer(1), &[slot.index()][..]);
            gdn.copy_states(&heads, from, (small.state(), &[0]), Stream::LEGACY).unwrap();
        }
        gdn.synchronize(Stream::LEGACY).unwrap();
        same_bits(&heads, &expected, &small.outputs(&[0])[0]).unwrap();
        pool.release(slot);
        slot = acquire().unwrap();
    }
    drop((first, slot));
    assert_eq!(pool.in_use(), 0);
    let overlapping = StateLayout::key_major(&heads).slot_stride(1);
    assert!(matches!(
        StatePool::new(gdn, &heads, overlapping, 1, 2),
        Err(Error::Shape { argument: "layout.slot", .. })
    ));
}

/// In a debug build a pointer to host memory, and one to another device's, are errors that name the argument (case 31).
#[test]
fn pointers_are_asked_for_in_debug_builds() {
    let Some(gdn) = gpu_or_skip("pointers that are not the device's", 2) else { return };
    if !cfg!(debug_assertions) {
        return;
    }
    let _engine = engine_context();
    let batch = Batch::new(heads(1, 1, HeadMap::Grouped), &[1], Dtype::F32, 10);
    let device = BatchOnDevice::new(&batch, 1);
    let refused = |pointer: u64| {
        let state = State::new(pointer, StateLayout::key_major(&batch.heads), 1);
        // SAFETY: the call is refused before anything is launched.
        unsafe { gdn.decode(&device.call().state(state), Stream::LEGACY) }.unwrap_err()
    };
    let host_memory = vec![0.0f32; batch.heads.state_len()];
    let Error::Cuda(error) = refused(host_memory.as_ptr() as u64) else { panic!("another error") };
    assert!(matches!(*error, CudaError::NotDeviceMemory { argument: "initial_state", .. }), "{error}");
    if device_count().unwrap() < 2 {
        eprintln!("skipped: no second device (1 case)");
        return;
    }
    let other = Gdn::new(1).unwrap();
    let pool = StatePool::new(&other, &batch.heads, StateLayout::key_major(&batch.heads), 1, 1).unwrap();
    let Error::Cuda(error) = refused(pool.layer(0).pointer) else { panic!("another error") };
    assert!(matches!(*error, CudaError::OtherDevice { device: 1, ordinal: 0, .. }), "{error}");
    // Both devices in turn on one thread, each with its own memory.
    for _ in 0..100 {
        device.decode(gdn, Stream::LEGACY).unwrap();
        // SAFETY: the pool is the other device's own.
        unsafe { other.zero_states(&batch.heads, pool.layer(0), &[0], Stream::LEGACY) }.unwrap();
    }
    gdn.synchronize(Stream::LEGACY).unwrap();
    other.synchronize(Stream::LEGACY).unwrap();
}

/// In a child of the process the handle is an error, and dropping it does nothing (case 40).
#[test]
fn a_forked_child_gets_an_error() {
    let Some(gdn) = gpu_or_skip("a forked child", 1) else { return };
    let _engine = engine_context();
    let batch = Batch::new(heads(1, 1, HeadMap::Grouped), &[1], Dtype::F32, 11);
    let device = BatchOnDevice::new(&batch, 1);
    let (call, clone) = (device.call(), gdn.clone());
    // SAFETY: the child calls nothing that another thread's lock could hold up for good, and ends without unwinding.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: refused before anything is launched.
        let result = unsafe { clone.decode(&call, Stream::LEGACY) };
        let refused = matches!(&result, Err(Error::Cuda(error)) if matches!(**error, CudaError::ForkedProcess { .. }));
        drop(clone);
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(!refused)) };
    }
    assert!(child > 0, "fork");
    let mut status = 0;
    let has_ended = (0..1000).any(|_| {
        thread::sleep(std::time::Duration::from_millis(10));
        // SAFETY: the child is ours; `status` is written.
        unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) == child }
    });
    if !has_ended {
        // SAFETY: the child is ours.
        unsafe { libc::kill(child, libc::SIGKILL) };
        panic!("the child hangs");
    }
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "the child ended with {status}");
    device.decode(gdn, Stream::LEGACY).unwrap();
    gdn.synchronize(Stream::LEGACY).unwrap();
}

/// No sequences launch nothing.
#[test]
fn no_sequences_launch_nothing() {
    let Some(gdn) = gpu_or_skip("no sequences", 2) else { return };
    let _engine = engine_context();
    let heads = heads(1, 1, HeadMap::Grouped);
    let null = View::new(0, Dtype::Bf16, Strides::dense(1, 128));
    for sequences in [Sequences::Varlen { cu_seqlens: &[0] }, Sequences::Uniform { batch: 0, tokens: 3 }] {
        let call = Call::new(heads, sequences, null, null, null, Gates::Log { g: null, beta: null }, null);
        // SAFETY: there is nothing at the pointers.
        let launch = unsafe { gdn.prefill(&call, Stream::LEGACY) }.unwrap();
        assert_eq!(launch.launches, 0);
    }
}
