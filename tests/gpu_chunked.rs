//! The chunked kernels on a GPU: lengths that the emulator does not get through, and their scratch (cases 2, 9, 35, 51).
//! Counted as skipped without one, a failure with `GDN_REQUIRE_GPU=1`.
use cust::memory::DeviceBuffer;
use cust::stream::StreamFlags;
use host::compare::{Tensor, compare};
use host::cuda::{Call, Gdn, Scratch, Stream};
use host::inputs::{Family, Inputs};
use host::reference::{Expected, reference_f64_at};
use host::{Error, HeadMap, Heads, Kernel, PathChoice, Policy};
use kernels_gpu::kernels::{chunk, chunk_tensor};
use tests::{
    OnDevice, Output, Path, agrees, bars, engine_context, expected_of, forced, gpu_or_skip, heads, run, same_bits,
    tokens_of,
};

const KERNELS: [Kernel; 2] = [Kernel::Chunked, Kernel::ChunkedTensor];
/// The one with more scratch.
const TENSOR: Path = Path::Cuda(Kernel::ChunkedTensor);

/// Floats of scratch for segments of so many tokens, and the launches of a prompt with it.
fn in_segments(gdn: &Gdn, kernel: Kernel, segment: usize, inputs: &Inputs) -> (usize, usize) {
    let Heads { num_k_heads, num_v_heads, .. } = inputs.heads;
    let segments = inputs.tokens.div_ceil(segment);
    match kernel {
        // Two segments take turns; what is enough for both is enough for a prompt of two.
        Kernel::ChunkedTensor => {
            let floats = 2 * chunk_tensor::scratch_len(segment, num_k_heads, num_v_heads);
            // Hopper's scan is its own fallback.
            let phases = if gdn.facts().capability == 90 { 2 } else { 3 };
            (floats, phases * if segments <= 2 { 1 } else { segments })
        }
        _ => (chunk::scratch_len(segment, num_v_heads), 2 * segments),
    }
}

/// That a chunked result is within 1e-4 of the sequential one.
#[track_caller]
fn assert_near(inputs: &Inputs, sequential: &Output, chunked: &Output, what: &str) {
    for (tensor, a, b) in
        [(Tensor::Out, &sequential.out, &chunked.out), (Tensor::State, &sequential.state, &chunked.state)]
    {
        let comparison = compare(tensor, &inputs.heads, a, b);
        assert!(comparison.meets(&bars::GENERAL), "{what}, {tensor:?}, against the sequential kernel: {comparison:?}");
    }
}

/// Around the border of a segment: float64, and the sequential kernel.
#[test]
fn segment_borders_agree() {
    let Some(_) = gpu_or_skip("borders of segments", 4 * 2 * 2) else { return };
    for map in [HeadMap::Grouped, HeadMap::Tiled] {
        let inputs = Inputs::seeded(heads(4, 12, map), 4099, Family::Bench, 1);
        let lengths = [2047, 2048, 2049, 4099];
        let prefixes = reference_f64_at(&inputs, &lengths);
        for tokens in lengths {
            let inputs = tokens_of(&inputs, 0..tokens, &inputs.state);
            let (out, state) = prefixes.at(tokens).unwrap();
            let expected = Expected { out: out.to_vec(), state: state.to_vec() };
            let sequential = run(Path::Cuda(Kernel::RecurrentByKeyHead), &inputs);
            for path in KERNELS.map(Path::Cuda) {
                let output = run(path, &inputs);
                agrees(&inputs.heads, &expected, &output, &bars::SEQUENTIAL)
                    .unwrap_or_else(|e| panic!("{path:?}, {tokens} tokens, {map:?}: {e}"));
                assert_near(&inputs, &sequential, &output, &format!("{path:?}, {tokens} tokens, {map:?}"));
            }
        }
    }
}

/// The heads that the kernels were written for, in every family.
#[test]
fn every_family_agrees() {
    let families = [
        Family::Bench,
        Family::Strong,
        Family::Reset,
        Family::Repeat,
        Family::Hard,
        Family::Slow,
        Family::Real,
        Family::Beta,
        Family::Outlier,
        Family::Positive,
    ];
    let Some(_) = gpu_or_skip("families of inputs", 2 * families.len()) else { return };
    for family in families {
        let inputs = Inputs::seeded(heads(16, 48, HeadMap::Grouped), 600, family, 2);
        let (expected, sequential) = (expected_of(&inputs), run(Path::Cuda(Kernel::RecurrentByColumn), &inputs));
        for path in KERNELS.map(Path::Cuda) {
            let output = run(path, &inputs);
            agrees(&inputs.heads, &expected, &output, &bars::REPEATED_KEYS)
                .unwrap_or_else(|e| panic!("{path:?}, {family}: {e}"));
            assert_near(&inputs, &sequential, &output, &format!("{path:?}, {family}"));
        }
    }
}

/// One to four value heads for each key head, every ragged end of a chunk.
#[test]
fn every_length_of_the_last_chunk_agrees() {
    let Some(_) = gpu_or_skip("last chunks", 4 * 67 * 2) else { return };
    for ratio in 1..=4 {
        let inputs = Inputs::seeded(heads(2, 2 * ratio, HeadMap::Tiled), 66, Family::Base, ratio as u64);
        let lengths: Vec<usize> = (0..=66).collect();
        let prefixes = reference_f64_at(&inputs, &lengths);
        for tokens in lengths {
            let (out, state) = prefixes.at(tokens).unwrap();
            let expected = Expected { out: out.to_vec(), state: state.to_vec() };
            for path in KERNELS.map(Path::Cuda) {
                let output = run(path, &tokens_of(&inputs, 0..tokens, &inputs.state));
                agrees(&inputs.heads, &expected, &output, &bars::SEQUENTIAL)
                    .unwrap_or_else(|e| panic!("{path:?}, {tokens} tokens, {ratio} value heads: {e}"));
            }
        }
    }
}

/// Two hundred times the same bits, alone and beside other inputs on a second stream (case 2).
#[test]
fn reruns_have_the_same_bits() {
    let Some(gdn) = gpu_or_skip("reruns of the chunked kernels", 2 * 2 * 200) else { return };
    let inputs = Inputs::seeded(heads(16, 32, HeadMap::Grouped), 1000, Family::Base, 3);
    let other = Inputs::seeded(heads(16, 48, HeadMap::Tiled), 700, Family::Bench, 4);
    for kernel in KERNELS {
        for beside in [None, Some(&other)] {
            let differing = gdn.count_differing_reruns(&inputs, beside, kernel, 200).unwrap();
            assert_eq!(differing, 0, "{kernel:?}, beside another: {}", beside.is_some());
        }
    }
}

/// Scratch for 64 tokens and for 96 gives what one segment does (cases 9, 43).
#[test]
fn segments_are_the_whole() {
    let Some(gdn) = gpu_or_skip("segments", 2 * 2 * 6) else { return };
    let inputs = Inputs::seeded(heads(2, 6, HeadMap::Grouped), 2049, Family::Bench, 5);
    for kernel in KERNELS {
        let path = Path::Cuda(kernel);
        for tokens in [63, 64, 65, 128, 129, 2049] {
            let inputs = tokens_of(&inputs, 0..tokens, &inputs.state);
            let whole = run(path, &inputs);
            for segment in [64, 96] {
                let (floats, launches) = in_segments(gdn, kernel, segment, &inputs);
                let mut policy = Policy::with_path(PathChoice::Forced(kernel));
                policy.max_scratch_bytes = size_of::<f32>() * floats;
                let mut output = Output::poisoned(&inputs);
                let call = inputs.call(&mut output.out, &mut output.state);
                let launch = gdn.with_policy(policy).run_on_slices(call, None).unwrap();
                assert_eq!(launch.launches, launches);
                path.same_across_cuts(&inputs.heads, &whole, &output)
                    .unwrap_or_else(|e| panic!("{path:?}, {tokens} tokens in segments of {segment}: {e}"));
            }
        }
    }
}

/// Between segments the state stands in the final one, or in the scratch where there is none: an initial state is only
/// read, by the first segment alone.
#[test]
fn segments_hand_on_the_state() {
    let Some(gdn) = gpu_or_skip("states between segments", 2 * 2 * 3) else { return };
    let _engine = engine_context();
    let inputs = Inputs::seeded(heads(2, 6, HeadMap::Tiled), 600, Family::Slow, 8);
    let zeros = Inputs { state: vec![0.0; inputs.state.len()], ..inputs.clone() };
    for (kernel, segment) in KERNELS.into_iter().flat_map(|kernel| [(kernel, 32), (kernel, 96)]) {
        let path = Path::Cuda(kernel);
        let (from_state, from_zeros) = (run(path, &inputs), run(path, &zeros));
        let (floats, launches) = in_segments(gdn, kernel, segment, &inputs);
        let limited = |carried: usize| {
            let mut policy = Policy::with_path(PathChoice::Forced(kernel));
            policy.max_scratch_bytes = size_of::<f32>() * (floats + carried);
            gdn.with_policy(policy)
        };
        let run = |gdn: &Gdn, tensors: &OnDevice<'_>, call: &Call| {
            let launch = gdn.plan(call).unwrap();
            assert_eq!(launch.launches, launches);
            tensors.enqueue_call(gdn, call, Scratch::Device, Stream::LEGACY).unwrap();
            gdn.synchronize(Stream::LEGACY).unwrap();
            tensors.output()
        };
        let is = |expected: &Output, out: Vec<f32>, state: Vec<f32>, what: &str| {
            path.same_across_cuts(&inputs.heads, expected, &Output { out, state })
                .unwrap_or_else(|e| panic!("{path:?}, segments of {segment}, {what}: {e}"));
        };
        // Two states: the first is not written.
        let (tensors, apart) = (OnDevice::new(&inputs, 0), OnDevice::new(&zeros, 0));
        let call = tensors.stateless().initial_state(tensors.state()).final_state(apart.state());
        let output = run(&limited(0), &tensors, &call);
        assert_eq!(output.state, inputs.state, "an initial state was written");
        is(&from_state, output.out, apart.read(5), "two states");
        // An initial one alone.
        let tensors = OnDevice::new(&inputs, 0);
        let call = tensors.stateless().initial_state(tensors.state());
        let output = run(&limited(inputs.state.len()), &tensors, &call);
        assert_eq!(output.state, inputs.state, "an initial state was written");
        is(&from_state, output.out, from_state.state.clone(), "no final state");
        // None.
        let tensors = OnDevice::new(&inputs, 0);
        let output = run(&limited(inputs.state.len()), &tensors, &tensors.stateless());
        is(&from_zeros, output.out, from_zeros.state.clone(), "no state");
    }
}

/// Two streams take turns with the device's scratch, which holds one call at a time, and never meet in it: fifty rounds.
#[test]
fn two_streams_share_the_scratch_in_turns() {
    let Some(gdn) = gpu_or_skip("two streams and one scratch", 50 * 4) else { return };
    let _engine = engine_context();
    let handles = KERNELS.map(|kernel| forced(gdn, kernel));
    let problems: [Inputs; 4] =
        [(16, 48, 1000), (4, 8, 500), (16, 16, 300), (2, 8, 2049)].map(|(keys, values, tokens)| {
            Inputs::seeded(heads(keys, values, HeadMap::Grouped), tokens, Family::Bench, tokens as u64)
        });
    let alone = problems.each_ref().map(|inputs| KERNELS.map(|kernel| run(Path::Cuda(kernel), inputs)));
    let streams = [0, 1].map(|_| cust::stream::Stream::new(StreamFlags::NON_BLOCKING, None).unwrap());
    let mut tensors = problems.each_ref().map(|inputs| OnDevice::new(inputs, 0));
    for round in 0..50 {
        tensors.iter_mut().for_each(OnDevice::reset);
        for (index, tensors) in tensors.iter().enumerate() {
            let (gdn, stream) = (&handles[round / 2 % 2], &streams[(index + round) % 2]);
            tensors.enqueue(gdn, Scratch::Device, Stream::from(stream)).unwrap();
        }
        streams.iter().for_each(|stream| stream.synchronize().unwrap());
        for ((inputs, expected), tensors) in problems.iter().zip(&alone).zip(&tensors) {
            same_bits(&inputs.heads, &expected[round / 2 % 2], &tensors.output())
                .unwrap_or_else(|e| panic!("round {round}, {} tokens: {e}", inputs.tokens));
        }
    }
}

/// Small, then large, then small again: what is held grows and stays, also while the call before is still running.
#[test]
fn the_scratch_grows_with_the_heads() {
    let Some(_) = gpu_or_skip("scratch that grows", 5) else { return };
    let _engine = engine_context();
    // A handle of its own, that holds nothing yet.
    let gdn = forced(&Gdn::new(0).unwrap(), Kernel::ChunkedTensor);
    let problems: Vec<Inputs> = [(1, 1, 40), (4, 12, 300), (16, 48, 2048), (16, 64, 2048), (1, 2, 33)]
        .into_iter()
        .map(|(keys, values, tokens)| Inputs::seeded(heads(keys, values, HeadMap::Tiled), tokens, Family::Bench, 6))
        .collect();
    let stream = cust::stream::Stream::new(StreamFlags::NON_BLOCKING, None).unwrap();
    let tensors: Vec<OnDevice<'_>> = problems.iter().map(|inputs| OnDevice::new(inputs, 0)).collect();
    // All of them without a wait in between.
    let bytes: Vec<usize> = tensors
        .iter()
        .map(|tensors| tensors.enqueue(&gdn, Scratch::Device, Stream::from(&stream)).unwrap().scratch_bytes)
        .collect();
    stream.synchronize().unwrap();
    for (inputs, tensors) in problems.iter().zip(&tensors) {
        same_bits(&inputs.heads, &run(TENSOR, inputs), &tensors.output())
            .unwrap_or_else(|e| panic!("{:?}: {e}", inputs.heads));
    }
    let largest = bytes.iter().copied().max().unwrap();
    assert_eq!(largest, bytes[3]);
    assert_eq!(gdn.reserve(&tensors[4].call()).unwrap(), largest, "a small call keeps what a large one took");

    // Reserved beforehand, it is there as well.
    let gdn = forced(&Gdn::new(0).unwrap(), Kernel::ChunkedTensor);
    assert_eq!(gdn.reserve(&tensors[0].call()).unwrap(), bytes[0]);
    assert_eq!(gdn.reserve(&tensors[2].call()).unwrap(), bytes[2]);
    assert_eq!(gdn.reserve(&tensors[1].call()).unwrap(), bytes[2]);
}

/// The caller's memory: too small or off 16 bytes is an error that wrote nothing, and what fits gives the bits of the
/// device's own, whatever was in it.
#[test]
fn borrowed_scratch_is_checked() {
    let Some(gdn) = gpu_or_skip("borrowed scratch", 4) else { return };
    let _engine = engine_context();
    let gdn = forced(gdn, Kernel::ChunkedTensor);
    let inputs = Inputs::seeded(heads(4, 12, HeadMap::Grouped), 200, Family::Bench, 7);
    let expected = run(TENSOR, &inputs);
    let mut tensors = OnDevice::new(&inputs, 0);
    let need = gdn.plan(&tensors.call()).unwrap().scratch_bytes;
    let memory = DeviceBuffer::from_slice(&vec![u8::MAX; need + 16]).unwrap();
    let pointer = memory.as_device_ptr().as_raw();
    let borrowed = |pointer, bytes| Scratch::Borrowed { pointer, bytes };

    let error = tensors.enqueue(&gdn, borrowed(pointer, need - 1), Stream::LEGACY).unwrap_err();
    assert!(
        matches!(error, Error::Scratch { need: n, have, capturing: false } if (n, have) == (need, need - 1)),
        "{error}"
    );
    let error = tensors.enqueue(&gdn, borrowed(pointer + 4, need), Stream::LEGACY).unwrap_err();
    assert!(
        matches!(error, Error::Misaligned { argument: "scratch", address, required: 16 } if address == pointer + 4),
        "{error}"
    );
    gdn.synchronize(Stream::LEGACY).unwrap();
    assert!(tensors.read(6).iter().all(|o| o.is_nan()), "a refusal wrote to out");
    assert_eq!(tensors.read(5), inputs.state, "a refusal wrote to the state");

    for pointer in [pointer, pointer + 16] {
        tensors.reset();
        tensors.enqueue(&gdn, borrowed(pointer, need), Stream::LEGACY).unwrap();
        gdn.synchronize(Stream::LEGACY).unwrap();
        same_bits(&inputs.heads, &expected, &tensors.output()).unwrap();
    }

    // A workspace for shorter prompts.
    let short = OnDevice::new(&inputs, 0);
    let few = Inputs::seeded(inputs.heads, 64, Family::Bench, 7);
    let mut workspace = gdn.workspace(&OnDevice::new(&few, 0).call()).unwrap();
    let have = workspace.bytes();
    let error = short.enqueue(&gdn, Scratch::Workspace(&mut workspace), Stream::LEGACY).unwrap_err();
    assert!(matches!(error, Error::Scratch { need: n, have: h, .. } if (n, h) == (need, have)), "{error}");
}
