//! What only a GPU can show: counted as skipped without one, a failure with `GDN_REQUIRE_GPU=1` (cases 2, 10, 14, 31, 51).
use std::thread;

use cust::context::CurrentContext;
use cust::memory::{CopyDestination, DeviceBuffer};
use cust::stream::StreamFlags;
use host::cuda::{CudaError, Gdn, State, Stream};
use host::inputs::{Family, Inputs};
use host::{Error, HeadMap, Kernel, PathChoice, Policy, Reason};
use tests::{
    ORDERS, OnDevice, Output, Path, TOKENS, agrees, bars, engine_context, every_heads, expected_of, gpu_or_skip, heads,
    run, same_bits,
};

/// The calling thread's current context, as an address; 0 where there is none.
fn current_context() -> usize {
    let mut context = std::ptr::null_mut();
    // SAFETY: `context` is written; the driver is initialised, since a device is open.
    let code = unsafe { cust::sys::cuCtxGetCurrent(&raw mut context) };
    assert_eq!(code as u32, 0, "cuCtxGetCurrent");
    context as usize
}

/// Both kernels over every shape: the bar of float64, each other's bits, and the emulator's.
#[test]
fn kernels_have_each_others_and_the_emulators_bits() {
    let Some(_) = gpu_or_skip("both kernels over every shape", 2 * TOKENS.len() * every_heads().count()) else {
        return;
    };
    for heads in every_heads() {
        for tokens in TOKENS {
            let inputs = Inputs::seeded(heads, tokens, Family::Base, 1);
            let expected = expected_of(&inputs);
            let emulated = tests::run_in_order(Path::Emulated(Kernel::RecurrentByColumn), &inputs, ORDERS[0]);
            for path in Kernel::RECURRENT.map(Path::Cuda).into_iter().filter(|path| path.takes(&heads)) {
                let output = run(path, &inputs);
                let fails = agrees(&heads, &expected, &output, &bars::SEQUENTIAL)
                    .and_then(|()| same_bits(&heads, &emulated, &output));
                fails.unwrap_or_else(|e| panic!("{path:?}, {tokens} tokens, {heads:?}: {e}"));
            }
        }
    }
}

/// Lengths that the emulator does not get through: float64 and each other.
#[test]
fn long_prompts_agree() {
    let Some(_) = gpu_or_skip("long prompts", 8) else { return };
    for (tokens, family) in [(2049, Family::Bench), (8192, Family::Slow), (1000, Family::Reset), (600, Family::Real)] {
        let inputs = Inputs::seeded(heads(16, 48, HeadMap::Grouped), tokens, family, 2);
        let expected = expected_of(&inputs);
        let [by_key_head, by_column] = Kernel::RECURRENT.map(|kernel| run(Path::Cuda(kernel), &inputs));
        agrees(&inputs.heads, &expected, &by_key_head, &bars::SEQUENTIAL)
            .and_then(|()| same_bits(&inputs.heads, &by_key_head, &by_column))
            .unwrap_or_else(|e| panic!("{family}, {tokens} tokens: {e}"));
    }
}

/// Whatever was current stays current, through success and errors (case 31).
#[test]
fn the_callers_context_stays_current() {
    let Some(gdn) = gpu_or_skip("the caller's context", 4) else { return };
    let inputs = Inputs::seeded(heads(2, 4, HeadMap::Grouped), 9, Family::Base, 3);
    let works = || {
        let mut output = Output::poisoned(&inputs);
        gdn.run_on_slices(inputs.call(&mut output.out, &mut output.state), None).unwrap();
    };
    let fails = || {
        let five = Inputs::seeded(heads(1, 5, HeadMap::Grouped), 3, Family::Base, 3);
        let mut output = Output::poisoned(&five);
        let call = five.call(&mut output.out, &mut output.state);
        gdn.run_on_slices(call, Some(Kernel::RecurrentByKeyHead)).unwrap_err();
        Gdn::new(1_000).unwrap_err();
    };
    thread::scope(|scope| {
        // A thread without a context has none afterwards.
        scope.spawn(|| {
            assert_eq!(current_context(), 0);
            works();
            assert_eq!(current_context(), 0);
            fails();
            drop(Gdn::new(0).unwrap());
            gdn.synchronize(Stream::LEGACY).unwrap();
            assert_eq!(current_context(), 0);
        });
        // A thread with the engine's context keeps it.
        scope.spawn(|| {
            let _engine = engine_context();
            let before = current_context();
            assert_ne!(before, 0);
            works();
            fails();
            drop(Gdn::new(0).unwrap());
            assert_eq!(current_context(), before);
        });
    });
}

/// A handle that one thread made, a second uses and a third drops (case 31).
#[test]
fn a_handle_goes_from_thread_to_thread() {
    let Some(_) = gpu_or_skip("a handle that wanders", 1) else { return };
    let inputs = Inputs::seeded(heads(2, 4, HeadMap::Grouped), 9, Family::Base, 4);
    let expected = run(Path::Cuda(Kernel::RecurrentByColumn), &inputs);
    let made = thread::spawn(|| Gdn::new(0).unwrap()).join().unwrap();
    let (used, output) = thread::spawn(move || {
        let mut output = Output::poisoned(&inputs);
        made.run_on_slices(inputs.call(&mut output.out, &mut output.state), Some(Kernel::RecurrentByColumn)).unwrap();
        (made, output)
    })
    .join()
    .unwrap();
    assert_eq!(output, expected);
    thread::spawn(move || drop(used)).join().unwrap();
}

/// One element off 16 bytes: by column is right, the others refuse and write nothing (case 10).
#[test]
fn an_odd_offset_is_right_or_refused() {
    let Some(gdn) = gpu_or_skip("an odd offset", 4) else { return };
    let _engine = engine_context();
    let inputs = Inputs::seeded(heads(2, 4, HeadMap::Tiled), 33, Family::Base, 5);
    let expected = run(Path::Cuda(Kernel::RecurrentByKeyHead), &inputs);
    let odd = OnDevice::new(&inputs, 1);
    for refusing in [Kernel::RecurrentByKeyHead, Kernel::Chunked] {
        match odd.run(gdn, &odd.call(), refusing, Stream::LEGACY) {
            Err(Error::Refused { kernel, reason: Reason::Unaligned { argument: "q" } }) => {
                assert_eq!(kernel, refusing.name());
            }
            Err(other) => panic!("{other}"),
            Ok(_) => panic!("{refusing:?} took an odd offset"),
        }
        assert!(odd.read(6).iter().all(|o| o.is_nan()), "a refusal wrote to out");
        assert_eq!(odd.read(5), inputs.state, "a refusal wrote to the state");
    }

    let token_by_token = gdn.with_policy(Policy::with_path(PathChoice::Recurrent));
    assert_eq!(token_by_token.plan(&odd.call()).unwrap().kernel, Kernel::RecurrentByColumn);
    let output = odd.run(gdn, &odd.call(), Kernel::RecurrentByColumn, Stream::LEGACY).unwrap();
    same_bits(&inputs.heads, &expected, &output).unwrap();
}

/// Kernels that were asked for and cannot run, and devices that are not there.
#[test]
fn refusals_are_typed() {
    let Some(gdn) = gpu_or_skip("refusals", 2) else { return };
    let _engine = engine_context();
    let inputs = Inputs::seeded(heads(1, 5, HeadMap::Grouped), 3, Family::Base, 6);
    let on_device = OnDevice::new(&inputs, 0);
    let error = on_device.run(gdn, &on_device.call(), Kernel::RecurrentByKeyHead, Stream::LEGACY).unwrap_err();
    assert!(matches!(error, Error::Refused { reason: Reason::HeadRatio { ratio: 5, most: 4 }, .. }), "{error}");
    let Err(Error::Cuda(error)) = Gdn::new(1_000) else { panic!("device 1000 exists") };
    match *error {
        CudaError::NoSuchDevice { ordinal: 1_000, count } => assert_eq!(count, host::cuda::device_count().unwrap()),
        other => panic!("{other}"),
    }
}

/// A final state alone: its memory is not read, whatever was in it. An initial state alone is not written. Two states are
/// one of each (case 14).
#[test]
fn states_are_read_and_written_as_asked() {
    let Some(gdn) = gpu_or_skip("initial and final states", 3 * 4) else { return };
    let _engine = engine_context();
    let inputs = Inputs::seeded(heads(2, 6, HeadMap::Grouped), 10, Family::Base, 7);
    let zeros = Inputs { state: vec![0.0; inputs.state.len()], ..inputs.clone() };
    for kernel in Kernel::ALL {
        let (from_state, from_zeros) = (run(Path::Cuda(kernel), &inputs), run(Path::Cuda(kernel), &zeros));
        for poison in [f32::NAN, 1e30] {
            let poisoned = Inputs { state: vec![poison; inputs.state.len()], ..inputs.clone() };
            let tensors = OnDevice::new(&poisoned, 0);
            let call = tensors.stateless().final_state(tensors.state());
            let output = tensors.run(gdn, &call, kernel, Stream::LEGACY).unwrap();
            same_bits(&inputs.heads, &from_zeros, &output).unwrap_or_else(|e| panic!("{kernel:?}, {poison}: {e}"));
        }
        let tensors = OnDevice::new(&inputs, 0);
        let call = tensors.stateless().initial_state(tensors.state());
        let output = tensors.run(gdn, &call, kernel, Stream::LEGACY).unwrap();
        assert_eq!(output.out, from_state.out, "{kernel:?}");
        assert_eq!(output.state, inputs.state, "{kernel:?} wrote an initial state");

        let tensors = OnDevice::new(&inputs, 0);
        let apart = DeviceBuffer::from_slice(&vec![f32::NAN; inputs.state.len()]).unwrap();
        CurrentContext::synchronize().unwrap();
        let call = tensors
            .stateless()
            .initial_state(tensors.state())
            .final_state(State { pointer: apart.as_device_ptr().as_raw(), ..tensors.state() });
        let output = tensors.run(gdn, &call, kernel, Stream::LEGACY).unwrap();
        let mut state = vec![0.0; apart.len()];
        apart.copy_to(&mut state[..]).unwrap();
        assert_eq!(output.state, inputs.state, "{kernel:?} wrote an initial state");
        same_bits(&inputs.heads, &from_state, &Output { state, ..output })
            .unwrap_or_else(|e| panic!("{kernel:?}: {e}"));
    }
}

/// The two streams without an object, and one of the caller's.
#[test]
fn every_kind_of_stream_runs() {
    let Some(gdn) = gpu_or_skip("streams", 2 * 3) else { return };
    let _engine = engine_context();
    let inputs = Inputs::seeded(heads(2, 4, HeadMap::Grouped), 65, Family::Base, 8);
    let own = cust::stream::Stream::new(StreamFlags::NON_BLOCKING, None).unwrap();
    for kernel in [Kernel::RecurrentByKeyHead, Kernel::Chunked] {
        let expected = run(Path::Cuda(kernel), &inputs);
        for stream in [Stream::LEGACY, Stream::PER_THREAD, Stream::from(&own)] {
            let tensors = OnDevice::new(&inputs, 0);
            let output = tensors.run(gdn, &tensors.call(), kernel, stream).unwrap();
            same_bits(&inputs.heads, &expected, &output).unwrap_or_else(|e| panic!("{kernel:?}, {stream:?}: {e}"));
        }
    }
    // It is still the caller's, and works.
    own.synchronize().unwrap();
}

/// Two hundred times the same bits (case 2).
#[test]
fn reruns_have_the_same_bits() {
    let Some(gdn) = gpu_or_skip("reruns", 3 * 200) else { return };
    let _engine = engine_context();
    let inputs = Inputs::seeded(heads(16, 48, HeadMap::Grouped), 130, Family::Base, 9);
    for kernel in Kernel::ALL {
        let mut tensors = OnDevice::new(&inputs, 0);
        let first = tensors.run(gdn, &tensors.call(), kernel, Stream::LEGACY).unwrap();
        agrees(&inputs.heads, &expected_of(&inputs), &first, &bars::SEQUENTIAL).unwrap();
        for round in 1..200 {
            tensors.reset();
            let output = tensors.run(gdn, &tensors.call(), kernel, Stream::LEGACY).unwrap();
            same_bits(&inputs.heads, &first, &output).unwrap_or_else(|e| panic!("{kernel:?}, round {round}: {e}"));
        }
    }
}

/// Eight threads, each with its own stream and shape, on one handle, have the bits that they have alone (cases 2, 51).
#[test]
fn eight_threads_on_one_handle_have_the_bits_they_have_alone() {
    let Some(gdn) = gpu_or_skip("eight threads on one handle", 8 * 3 * 100) else { return };
    let problems: Vec<Inputs> = (0..8)
        .map(|thread| {
            let (keys, values) = [(1, 1), (2, 6), (16, 48), (1, 4)][thread % 4];
            Inputs::seeded(heads(keys, values, HeadMap::Grouped), 20 + 31 * thread, Family::Base, thread as u64)
        })
        .collect();
    let alone: Vec<[Output; Kernel::ALL.len()]> =
        problems.iter().map(|inputs| Kernel::ALL.map(|kernel| run(Path::Cuda(kernel), inputs))).collect();
    thread::scope(|scope| {
        for (inputs, expected) in problems.iter().zip(&alone) {
            scope.spawn(move || {
                let _engine = engine_context();
                let own = cust::stream::Stream::new(StreamFlags::NON_BLOCKING, None).unwrap();
                let mut tensors = OnDevice::new(inputs, 0);
                for round in 0..100 {
                    for (kernel, expected) in Kernel::ALL.into_iter().zip(expected) {
                        tensors.reset();
                        let output = tensors.run(gdn, &tensors.call(), kernel, Stream::from(&own)).unwrap();
                        same_bits(&inputs.heads, expected, &output)
                            .unwrap_or_else(|e| panic!("{kernel:?}, round {round}: {e}"));
                    }
                }
            });
        }
    });
}

/// A skipped suite is not a passed one: the line that counts it is what a run without a GPU must show, and a GPU that was
/// promised must be there.
#[test]
fn a_promised_gpu_is_there() {
    if std::env::var_os("GDN_REQUIRE_GPU").is_some_and(|value| value == "1") {
        assert!(tests::gpu().is_some());
    }
}
