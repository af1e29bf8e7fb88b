//! What needs the GPU for itself, in a binary of its own, one after the other: memory that is all taken, memory that is
//! counted, captures that no other thread may disturb (cases 33, 42, 43). Counted as skipped without a GPU, a failure with
//! `GDN_REQUIRE_GPU=1`.
use std::sync::{Mutex, MutexGuard, PoisonError};

use cust::memory::{DeviceBuffer, mem_get_info};
use cust::stream::StreamFlags;
use cust::sys::{self, CUstreamCaptureMode};
use host::cuda::{Gdn, Scratch, Stream};
use host::inputs::{Family, Inputs};
use host::{Dtype, Error, HeadMap, Kernel, Policy, Reason};
use tests::{
    Batch, BatchOnDevice, BatchPath, OnDevice, Path, engine_context, forced, gpu_or_skip, heads, run, same_bits,
};

/// The GPU, while no other test of this binary has it.
fn alone(what: &str, cases: usize) -> Option<(&'static Gdn, MutexGuard<'static, ()>)> {
    static ALONE: Mutex<()> = Mutex::new(());
    let gdn = gpu_or_skip(what, cases)?;
    Some((gdn, ALONE.lock().unwrap_or_else(PoisonError::into_inner)))
}

/// A handle without scratch, that takes the chunked path on tensor cores wherever it can run.
fn fresh() -> Gdn {
    let mut policy = Policy::default();
    policy.enough_multiprocessors = false;
    Gdn::new(0).unwrap().with_policy(policy)
}

fn free_bytes() -> usize {
    mem_get_info().unwrap().0
}

/// Takes the device's memory down to less than a megabyte a piece.
fn fill_memory() -> Vec<DeviceBuffer<u8>> {
    let mut held = Vec::new();
    let mut bytes = 16 << 30;
    while bytes >= 1 << 20 {
        // SAFETY: nobody reads it.
        match unsafe { DeviceBuffer::uninitialized(bytes) } {
            Ok(buffer) => held.push(buffer),
            Err(_) => bytes /= 2,
        }
    }
    held
}

/// No memory for the scratch: the call goes token by token and says so, a forced one refuses, nothing stays behind, and
/// with memory the chunked path is back.
#[test]
fn full_memory_means_token_by_token() {
    let Some((_, _alone)) = alone("memory that is all taken", 6) else { return };
    let _engine = engine_context();
    let inputs = Inputs::seeded(heads(16, 48, HeadMap::Grouped), 2048, Family::Bench, 1);
    let sequential = run(Path::Cuda(Kernel::RecurrentByKeyHead), &inputs);
    let chunked = run(Path::Cuda(Kernel::ChunkedTensor), &inputs);
    let gdn = fresh();
    let mut tensors = OnDevice::new(&inputs, 0);
    tensors.reset();
    let bytes = gdn.plan(&tensors.call()).unwrap().scratch_bytes;
    let before = free_bytes();
    let held = fill_memory();
    let free = free_bytes();
    assert!(free < 5 << 20 && free < bytes, "{free} bytes are left, and the scratch takes {bytes}");

    for round in 0..3 {
        let launch = tensors.enqueue(&gdn, Scratch::Device, Stream::LEGACY).unwrap();
        assert_eq!(launch.kernel, Kernel::RecurrentByKeyHead, "round {round}");
        assert_eq!(launch.reason, Reason::ScratchAllocation { need: bytes });
        assert_eq!(launch.scratch_bytes, 0);
        gdn.synchronize(Stream::LEGACY).unwrap();
        same_bits(&inputs.heads, &sequential, &tensors.output()).unwrap_or_else(|e| panic!("round {round}: {e}"));
        tensors.reset();
    }

    let refused = |error: Error| match error {
        Error::Refused { reason: Reason::ScratchAllocation { need }, .. } => assert_eq!(need, bytes),
        other => panic!("{other}"),
    };
    refused(tensors.enqueue(&forced(&gdn, Kernel::ChunkedTensor), Scratch::Device, Stream::LEGACY).unwrap_err());
    refused(gdn.reserve(&tensors.call()).unwrap_err());
    assert!(matches!(gdn.workspace(&tensors.call()).unwrap_err(), Error::Cuda(_)));
    gdn.synchronize(Stream::LEGACY).unwrap();
    assert!(tensors.read(6).iter().all(|o| o.is_nan()), "a refusal wrote to out");

    drop(held);
    let after = free_bytes();
    assert!(after + (8 << 20) >= before, "{before} bytes were free before, {after} after");
    let launch = tensors.enqueue(&gdn, Scratch::Device, Stream::LEGACY).unwrap();
    assert_eq!((launch.kernel, launch.reason), (Kernel::ChunkedTensor, Reason::Selected));
    gdn.synchronize(Stream::LEGACY).unwrap();
    same_bits(&inputs.heads, &chunked, &tensors.output()).unwrap();
}

/// From the second call on nothing is allocated; after `reserve`, from the first (case 42).
#[test]
fn later_calls_allocate_nothing() {
    let Some((_, _alone)) = alone("memory of later calls", 5 * 100) else { return };
    let _engine = engine_context();
    let inputs = Inputs::seeded(heads(16, 48, HeadMap::Grouped), 2049, Family::Bench, 2);
    let tensors = OnDevice::new(&inputs, 0);
    let calls = |gdn: &Gdn, count: usize| {
        for _ in 0..count {
            tensors.enqueue(gdn, Scratch::Device, Stream::LEGACY).unwrap();
        }
        gdn.synchronize(Stream::LEGACY).unwrap();
    };
    for kernel in [Kernel::ChunkedTensor, Kernel::Chunked, Kernel::RecurrentByKeyHead] {
        let gdn = forced(&fresh(), kernel);
        calls(&gdn, 2);
        let free = free_bytes();
        calls(&gdn, 98);
        assert_eq!(free_bytes(), free, "{kernel:?}");
    }
    for kernel in [Kernel::ChunkedTensor, Kernel::Chunked] {
        let gdn = forced(&fresh(), kernel);
        let bytes = gdn.reserve(&tensors.call()).unwrap();
        let free = free_bytes();
        calls(&gdn, 100);
        assert_eq!((free_bytes(), gdn.reserve(&tensors.call()).unwrap()), (free, bytes), "{kernel:?}");
    }
}

#[track_caller]
fn check(code: sys::CUresult) {
    assert_eq!(code, sys::CUresult::CUDA_SUCCESS);
}

/// A captured graph, ready to run.
struct Graph {
    graph: sys::CUgraph,
    executable: sys::CUgraphExec,
}

impl Graph {
    /// What `work` enqueues on `stream`.
    fn capture(stream: &cust::stream::Stream, mode: CUstreamCaptureMode, work: impl FnOnce()) -> Self {
        // SAFETY: the stream is alive.
        check(unsafe { sys::cuStreamBeginCapture_v2(stream.as_inner(), mode) });
        work();
        let (mut graph, mut executable) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: `graph` is written; destroyed in `drop`.
        check(unsafe { sys::cuStreamEndCapture(stream.as_inner(), &raw mut graph) });
        // SAFETY: `executable` is written; destroyed in `drop`.
        check(unsafe { sys::cuGraphInstantiateWithFlags(&raw mut executable, graph, 0) });
        Self { graph, executable }
    }

    /// Runs it on `stream` and waits.
    fn replay(&self, stream: &cust::stream::Stream) {
        // SAFETY: both handles are alive; the memory that the graph uses is the test's, and lives.
        check(unsafe { sys::cuGraphLaunch(self.executable, stream.as_inner()) });
        stream.synchronize().unwrap();
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: made in `capture`, destroyed once; every replay has been waited for.
        let _ = unsafe { (sys::cuGraphExecDestroy(self.executable), sys::cuGraphDestroy(self.graph)) };
    }
}

/// On a stream that is being captured the device's scratch is an error, a workspace works, and ten replays have the bits of
/// the eager call, with other calls in between (case 33). Nothing but the handle is warm.
#[test]
fn captured_calls_replay_with_the_eager_bits() {
    let Some((_, _alone)) = alone("captured calls", 2 * 10) else { return };
    let _engine = engine_context();
    let inputs = Inputs::seeded(heads(16, 48, HeadMap::Grouped), 2049, Family::Bench, 3);
    let eager = run(Path::Cuda(Kernel::ChunkedTensor), &inputs);
    for mode in
        [CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL]
    {
        let gdn = fresh();
        let mut tensors = OnDevice::new(&inputs, 0);
        let mut workspace = gdn.workspace(&tensors.call()).unwrap();
        let need = workspace.bytes();
        let own = cust::stream::Stream::new(StreamFlags::NON_BLOCKING, None).unwrap();
        let graph = Graph::capture(&own, mode, || {
            let error = tensors.enqueue(&gdn, Scratch::Device, Stream::from(&own)).unwrap_err();
            assert!(
                matches!(error, Error::Scratch { need: n, have: 0, capturing: true } if n == need),
                "{mode:?}: {error}"
            );
            let launch = tensors.enqueue(&gdn, Scratch::Workspace(&mut workspace), Stream::from(&own)).unwrap();
            let phases = if gdn.facts().capability == 90 { 2 } else { 3 };
            assert_eq!((launch.kernel, launch.launches), (Kernel::ChunkedTensor, 2 * phases));
        });
        assert!(tensors.read(6).iter().all(|o| o.is_nan()), "{mode:?}: a capture ran");
        for round in 0..10 {
            tensors.reset();
            graph.replay(&own);
            same_bits(&inputs.heads, &eager, &tensors.output()).unwrap_or_else(|e| panic!("{mode:?}, {round}: {e}"));
            tensors.reset();
            tensors.enqueue(&gdn, Scratch::Device, Stream::from(&own)).unwrap();
            own.synchronize().unwrap();
            same_bits(&inputs.heads, &eager, &tensors.output())
                .unwrap_or_else(|e| panic!("{mode:?}, eager after {round}: {e}"));
        }
    }
}

/// The sequential kernels need no scratch, so that they are captured as they are.
#[test]
fn sequential_calls_are_captured_without_scratch() {
    let Some((_, _alone)) = alone("captured sequential calls", 10) else { return };
    let _engine = engine_context();
    let inputs = Inputs::seeded(heads(2, 6, HeadMap::Tiled), 65, Family::Base, 4);
    let kernel = Kernel::RecurrentByKeyHead;
    let eager = run(Path::Cuda(kernel), &inputs);
    let gdn = forced(&fresh(), kernel);
    let mut tensors = OnDevice::new(&inputs, 0);
    let own = cust::stream::Stream::new(StreamFlags::NON_BLOCKING, None).unwrap();
    let graph = Graph::capture(&own, CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL, || {
        tensors.enqueue(&gdn, Scratch::Device, Stream::from(&own)).unwrap();
    });
    for round in 0..10 {
        tensors.reset();
        graph.replay(&own);
        same_bits(&inputs.heads, &eager, &tensors.output()).unwrap_or_else(|e| panic!("{round}: {e}"));
    }
}

/// Decode needs no scratch, so that it is captured as it is; each replay reads the table of slots anew, and rows that are padding
/// then touch nothing (cases 15, 33).
#[test]
fn captured_decode_follows_its_table() {
    let Some((_, _alone)) = alone("captured decode", 2 * 6) else { return };
    let _engine = engine_context();
    let batch = Batch::new(heads(16, 48, HeadMap::Grouped), &[1; 4], Dtype::Bf16, 5);
    let expected = batch.run(BatchPath::Cuda(Some(Kernel::Decode))).unwrap();
    for mode in
        [CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL]
    {
        let gdn = fresh();
        let mut device = BatchOnDevice::new(&batch, 6);
        let own = cust::stream::Stream::new(StreamFlags::NON_BLOCKING, None).unwrap();
        let before = free_bytes();
        let graph = Graph::capture(&own, mode, || {
            let launch = device.decode(&gdn, Stream::from(&own)).unwrap();
            assert_eq!((launch.kernel, launch.launches, launch.scratch_bytes), (Kernel::Decode, 1, 0));
        });
        for slots in [[0, 1, 2, 3], [5, -1, 0, 4], [-1; 4], [3, 2, 1, 0], [-1, -1, -1, 2], [1, 5, 3, 2]] {
            device.place(&slots);
            graph.replay(&own);
            for ((expected, output), slot) in expected.iter().zip(device.outputs(&slots)).zip(slots) {
                if slot < 0 {
                    assert!(output.out.iter().all(|o| o.to_bits() == 0), "{mode:?}, {slots:?}");
                } else {
                    same_bits(&batch.heads, expected, &output).unwrap_or_else(|e| panic!("{mode:?}, {slots:?}: {e}"));
                }
            }
        }
        assert!(free_bytes() + (4 << 20) >= before, "{mode:?}: a decode kept memory");
    }
}

/// A packed prefill keeps its offsets in the workspace, and the captured one brings its own at each replay (case 33).
#[test]
fn captured_packed_prefill_brings_its_offsets() {
    let Some((_, _alone)) = alone("captured packed prefill", 2 * 5) else { return };
    let _engine = engine_context();
    let slots = [2, 0, 1];
    for dtype in [Dtype::F16, Dtype::F32] {
        let gdn = fresh();
        let batch = Batch::new(heads(2, 6, HeadMap::Tiled), &[3, 0, 40], dtype, 6);
        let other = Batch::new(batch.heads, &[9, 30, 1], dtype, 7);
        let expected = batch.run(BatchPath::Cuda(Some(Kernel::Decode))).unwrap();
        let (mut device, mut between) = (BatchOnDevice::new(&batch, 3), BatchOnDevice::new(&other, 3));
        let mut workspace = gdn.workspace(&device.call()).unwrap();
        let own = cust::stream::Stream::new(StreamFlags::NON_BLOCKING, None).unwrap();
        let graph = Graph::capture(&own, CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL, || {
            let error = device.prefill(&gdn, Scratch::Device, Stream::from(&own)).unwrap_err();
            assert!(matches!(error, Error::Scratch { capturing: true, .. }), "{error}");
            let launch = device.prefill(&gdn, Scratch::Workspace(&mut workspace), Stream::from(&own)).unwrap();
            assert_eq!((launch.kernel, launch.launches), (Kernel::Decode, 2));
        });
        for round in 0..5 {
            device.place(&slots);
            between.place(&slots);
            between.prefill(&gdn, Scratch::Device, Stream::from(&own)).unwrap();
            graph.replay(&own);
            for (expected, output) in expected.iter().zip(device.outputs(&slots)) {
                same_bits(&batch.heads, expected, &output).unwrap_or_else(|e| panic!("{dtype}, {round}: {e}"));
            }
        }
    }
}
