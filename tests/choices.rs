//! Which kernel a call takes and why the others are not taken, without a device (cases 43, 55).
#![forbid(unsafe_code)]
use host::cuda::{Call, Checkpoints, Decay, Gates, Indices, State, View};
use host::{
    Card, Dtype, Error, HeadMap, Heads, IndexDtype, Kernel, PathChoice, Policy, QkNorm, Reason, Sequences, StateLayout,
    Strides,
};
use tests::heads;

const H200: Card = Card::new(90, 132, 232_448);
const T4: Card = Card::new(75, 40, 65_536);

fn layer() -> Heads {
    heads(16, 48, HeadMap::Grouped)
}

/// Dense tensors of one type, at addresses that nobody reads.
fn call<'a>(sequences: impl Into<Sequences<'a>>, dtype: Dtype) -> Call<'a> {
    let sequences = sequences.into();
    let tokens = sequences.longest();
    let view = |count: usize, dim: usize| {
        View::new(1 << 20, dtype, Strides::dense(count, dim)).batch_stride(tokens * count * dim)
    };
    let gates = Gates::Log { g: view(48, 1), beta: view(48, 1) };
    Call::new(layer(), sequences, view(16, 128), view(16, 128), view(48, 128), gates, view(48, 128))
}

fn state(layout: StateLayout, slots: usize) -> State {
    State::new(1 << 20, layout, slots)
}

fn scalars() -> View {
    View::new(1 << 20, Dtype::F32, Strides::dense(48, 1))
}

/// 2,048 tokens of f32 with these gates.
fn with_gates(gates: Gates) -> Call<'static> {
    let view = |count: usize| View::new(1 << 20, Dtype::F32, Strides::dense(count, 128));
    Call::new(layer(), 1024, view(16), view(16), view(48), gates, view(48))
}

fn raw() -> Gates {
    let (a, b) = (scalars(), scalars());
    Gates::Raw { a, b, decay: Decay::ALog(1 << 20), dt_bias: 1 << 20, allow_neg_eigval: false }
}

/// What nothing but the general kernel can do takes it, with the reason; forced kernels are refused with the same one.
#[test]
fn what_is_special_takes_the_general_kernel() {
    let heads = layer();
    let long = call(2048, Dtype::F32);
    let [key_major, key_rows] = [StateLayout::key_major(&heads), StateLayout::key_rows(&heads)];
    let short = call(2, Dtype::F32).state(state(key_major, 4));
    // States on the way are written where they stay, and nothing is between the rows of this layout's columns.
    let on_the_way = state(StateLayout::value_major(&heads), 32);
    for (call, reason, launches) in [
        (short.checkpoints(Checkpoints::Lanes(2)), Reason::Checkpoints, 1),
        (long.checkpoint_every(64, on_the_way), Reason::Layout { argument: "checkpoint_every" }, 32),
    ] {
        let launch = call.plan(&H200, &Policy::default()).unwrap();
        assert_eq!(
            (launch.kernel, launch.reason, launch.launches, launch.scratch_bytes),
            (Kernel::Decode, reason, launches, 0)
        );
        for kernel in [Kernel::Chunked, Kernel::ChunkedTensor] {
            let error = call.plan(&H200, &Policy::with_path(PathChoice::Forced(kernel))).unwrap_err();
            assert!(
                matches!(error, Error::Refused { kernel: named, reason: why } if named == kernel.name() && why == reason),
                "{error}"
            );
        }
        let forced = call.plan(&T4, &Policy::with_path(PathChoice::Forced(Kernel::Decode))).unwrap();
        assert_eq!((forced.kernel, forced.reason), (Kernel::Decode, Reason::Forced));
    }
    // Plain f32 in any layout with contiguous columns goes as it always did.
    for layout in [key_major, key_rows] {
        let launch = long.state(state(layout, 1)).plan(&H200, &Policy::default()).unwrap();
        assert_eq!((launch.kernel, launch.reason), (Kernel::ChunkedTensor, Reason::Selected));
    }
}

/// What the chunked kernels do not read as it is takes them all the same, between launches that convert it; where a plain call
/// would not take them, the general kernel, with the reason. Token by token it is the general kernel's.
#[test]
fn what_is_converted_takes_the_chunked_kernels() {
    let heads = layer();
    let long = call(1024, Dtype::F32);
    let table = Indices::new(1 << 20, IndexDtype::I32);
    let [key_major, value_major] = [StateLayout::key_major(&heads), StateLayout::value_major(&heads)];
    let key_rows = StateLayout::key_rows(&heads);
    let (keys, values, gates, one_state) =
        (1024 * 16 * 128 * 4, 1024 * 48 * 128 * 4, 1024 * 48 * 4, 48 * 128 * 128 * 4);
    let inputs = 2 * keys + values + 2 * gates;
    let view = |count: usize| View::new(1 << 20, Dtype::F32, Strides::dense(count, 128));
    let odd = View::new((1 << 20) + 4, Dtype::F32, Strides::dense(48, 128));
    let gate_logs = Gates::Log { g: scalars(), beta: scalars() };
    let odd_out = Call::new(heads, 1024, view(16), view(16), view(48), gate_logs, odd);
    for (call, reason, launches, bytes) in [
        (call(1024, Dtype::Bf16), Reason::Dtype { argument: "q", dtype: Dtype::Bf16 }, 2, inputs + values),
        (call(1024, Dtype::F16), Reason::Dtype { argument: "q", dtype: Dtype::F16 }, 2, inputs + values),
        (long.qk_norm(QkNorm::L2 { eps: 1e-6 }), Reason::Norm, 1, 2 * keys),
        // What is not aligned goes along.
        (odd_out.qk_norm(QkNorm::L2 { eps: 1e-6 }), Reason::Norm, 2, 2 * keys + values),
        (with_gates(raw()), Reason::Gates { gates: "raw", takes: "their logs" }, 1, 2 * gates),
        (
            with_gates(Gates::Linear { decay: scalars(), beta: scalars() }),
            Reason::Gates { gates: "linear", takes: "their logs" },
            1,
            2 * gates,
        ),
        (long.state(state(value_major, 1)), Reason::Layout { argument: "initial_state" }, 2, one_state),
        (long.final_state(state(value_major, 1)), Reason::Layout { argument: "final_state" }, 1, one_state),
        (
            long.initial_state(state(key_major, 1)).final_state(state(key_rows, 1)),
            Reason::Layout { argument: "final_state" },
            2,
            one_state,
        ),
        (
            long.state(state(key_major, 9)).state_indices(table),
            Reason::Indices { argument: "state_indices" },
            3,
            one_state,
        ),
        (
            long.state(state(key_major, 9)).state_indices(table).output_state_indices(table),
            Reason::Indices { argument: "state_indices" },
            3,
            one_state,
        ),
        (
            long.state(state(key_major, 9)).output_state_indices(table),
            Reason::Indices { argument: "output_state_indices" },
            2,
            one_state,
        ),
    ] {
        let plan = |call: &Call<'_>, path| call.plan(&H200, &Policy::with_path(path)).unwrap();
        for (path, kernel, why) in [
            (PathChoice::Auto, Kernel::ChunkedTensor, Reason::Selected),
            (PathChoice::Forced(Kernel::Chunked), Kernel::Chunked, Reason::Forced),
            (PathChoice::Forced(Kernel::ChunkedTensor), Kernel::ChunkedTensor, Reason::Forced),
        ] {
            let (launch, plain) = (plan(&call, path), plan(&long, path));
            assert_eq!((launch.kernel, launch.reason), (kernel, why), "{reason}");
            let more = (launch.launches - plain.launches, launch.scratch_bytes - plain.scratch_bytes);
            assert_eq!(more, (launches, bytes), "{reason}");
        }
        for (card, path, reason) in [
            (T4, PathChoice::Auto, Reason::Capability { have: 75, need: 80 }),
            (T4, PathChoice::Recurrent, reason),
            (H200, PathChoice::Recurrent, reason),
        ] {
            let launch = call.plan(&card, &Policy::with_path(path)).unwrap();
            assert_eq!(
                (launch.kernel, launch.reason, launch.launches, launch.scratch_bytes),
                (Kernel::Decode, reason, 1, 0)
            );
        }
        for kernel in [Kernel::RecurrentByKeyHead, Kernel::RecurrentByColumn] {
            let error = call.plan(&H200, &Policy::with_path(PathChoice::Forced(kernel))).unwrap_err();
            assert!(
                matches!(error, Error::Refused { kernel: named, reason: why } if named == kernel.name() && why == reason),
                "{error}"
            );
        }
    }
    let short = call(63, Dtype::Bf16).plan(&H200, &Policy::default()).unwrap();
    assert_eq!((short.kernel, short.reason), (Kernel::Decode, Reason::FewTokens { tokens: 63, min: 64 }));
}

/// A long prompt is converted window by window; less scratch means shorter ones, and too little the general kernel.
#[test]
fn scratch_of_what_is_converted_is_that_of_a_window() {
    let auto = |limit| {
        let mut policy = Policy::default();
        policy.max_scratch_bytes = limit;
        policy
    };
    let plan = |tokens, limit| call(tokens, Dtype::Bf16).plan(&H200, &auto(limit)).unwrap();
    let [window, long] = [8192, 32_768].map(|tokens| plan(tokens, usize::MAX));
    assert_eq!(long.launches, 4 * window.launches);
    // States between windows stand in the scratch where the last one is dropped.
    assert_eq!(long.scratch_bytes - window.scratch_bytes, 48 * 128 * 128 * 4);
    let kept = state(StateLayout::key_major(&layer()), 1);
    let with_state = call(32_768, Dtype::Bf16).state(kept).plan(&H200, &auto(usize::MAX)).unwrap();
    let between_segments = 48 * 128 * 128 * 4;
    let expected = (window.scratch_bytes - between_segments, long.launches);
    assert_eq!((with_state.scratch_bytes, with_state.launches), expected);

    let half = plan(32_768, window.scratch_bytes / 2);
    assert_eq!((half.kernel, half.reason), (Kernel::ChunkedTensor, Reason::Selected));
    assert!(half.scratch_bytes <= window.scratch_bytes / 2 && half.launches > long.launches);
    let little = plan(32_768, 4 << 20);
    assert!(matches!(little.reason, Reason::ScratchLimit { limit: 4_194_304, .. }), "{little:?}");
    assert_eq!((little.kernel, little.scratch_bytes), (Kernel::Decode, 0));
    let mut forced = Policy::with_path(PathChoice::Forced(Kernel::Chunked));
    forced.max_scratch_bytes = 4 << 20;
    let error = call(32_768, Dtype::Bf16).plan(&H200, &forced).unwrap_err();
    let Error::Refused { kernel: "chunked", reason: Reason::ScratchLimit { need, .. } } = error else {
        panic!("{error}");
    };
    // What it asks for is enough.
    forced.max_scratch_bytes = need;
    assert!(call(32_768, Dtype::Bf16).plan(&H200, &forced).unwrap().scratch_bytes <= need);
}

/// Short sequences of a batch go in one launch, long ones in common launches; packed ones of different lengths bring a table.
#[test]
fn batches_go_together_or_one_after_the_other() {
    let auto = Policy::default();
    let plan = |sequences: Sequences<'_>, dtype| call(sequences, dtype).plan(&H200, &auto).unwrap();
    let decode = plan(Sequences::Uniform { batch: 256, tokens: 1 }, Dtype::F32);
    assert_eq!((decode.kernel, decode.reason), (Kernel::Decode, Reason::ShortSequences { sequences: 256, tokens: 1 }));
    assert_eq!((decode.launches, decode.scratch_bytes), (1, 0));
    let long = plan(Sequences::Uniform { batch: 3, tokens: 2048 }, Dtype::F32);
    let one = plan(Sequences::from(2048), Dtype::F32);
    assert_eq!((long.kernel, long.reason), (Kernel::ChunkedTensor, Reason::Selected));
    assert!(long.launches < 3 * one.launches && long.scratch_bytes > 2 * one.scratch_bytes, "{long:?}");
    // The kernel of the longest sequence.
    let mixed = plan(Sequences::Varlen { cu_seqlens: &[0, 5, 2053, 2053] }, Dtype::F32);
    assert!(mixed.kernel == Kernel::ChunkedTensor && mixed.launches > one.launches, "{mixed:?}");
    let packed = plan(Sequences::Varlen { cu_seqlens: &[0, 5, 7] }, Dtype::F16);
    assert_eq!((packed.kernel, packed.launches, packed.scratch_bytes), (Kernel::Decode, 2, 12));
    let even = plan(Sequences::Varlen { cu_seqlens: &[0, 5, 10] }, Dtype::F16);
    assert_eq!((even.kernel, even.launches, even.scratch_bytes), (Kernel::Decode, 1, 0));
    let offsets: Vec<u32> = (0..1000).map(|n| n + n / 2).collect();
    assert_eq!(plan(Sequences::Varlen { cu_seqlens: &offsets }, Dtype::F16).launches, 3);
    for sequences in [Sequences::Varlen { cu_seqlens: &[0] }, Sequences::Uniform { batch: 0, tokens: 7 }] {
        for dtype in Dtype::ALL {
            assert_eq!(plan(sequences, dtype).launches, 0);
        }
    }
}

/// States on the way cut a sequence; the general kernel cannot do it where tables name the slots.
#[test]
fn states_on_the_way_are_launches_of_their_own() {
    let heads = layer();
    let kept = state(StateLayout::key_major(&heads), 40);
    let final_state = state(StateLayout::key_major(&heads), 2);
    let auto = Policy::default();
    for dtype in [Dtype::F32, Dtype::Bf16] {
        let call = |tokens| call(Sequences::Uniform { batch: 2, tokens }, dtype).checkpoint_every(64, kept);
        let sequential = Policy::with_path(PathChoice::Recurrent);
        let launches = |call: Call<'_>, policy| call.plan(&H200, policy).unwrap().launches;
        // 64, 64 and 2 tokens, twice.
        assert_eq!(launches(call(130), &sequential), 6);
        // 64 and 64 tokens; with a final state that has to go on to its place.
        assert_eq!(launches(call(128), &sequential), 4);
        assert_eq!(launches(call(128).final_state(final_state), &sequential), 6);
        assert_eq!(launches(call(63), &auto), 2);
        let named = call(130).state(final_state).state_indices(Indices::new(1 << 20, IndexDtype::U32));
        let error = named.plan(&H200, &auto).unwrap_err();
        let reason = Reason::Indices { argument: "state_indices" };
        assert!(matches!(error, Error::Refused { kernel: "decode", reason: why } if why == reason), "{error}");
    }
}

/// More blocks than a launch has.
#[test]
fn a_batch_of_too_many_sequences_is_refused() {
    let sequences = Sequences::Uniform { batch: u32::MAX as usize, tokens: 1 };
    let error = call(sequences, Dtype::F16).plan(&H200, &Policy::default()).unwrap_err();
    assert!(matches!(error, Error::Refused { kernel: "decode", reason: Reason::Batch { .. } }), "{error}");
    assert!(error.to_string().contains("4294967295 sequences"), "{error}");
    let most = Sequences::Uniform { batch: 1 << 20, tokens: 1 };
    call(most, Dtype::F16).plan(&H200, &Policy::default()).unwrap();
}
