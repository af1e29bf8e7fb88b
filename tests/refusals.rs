//! What a batch, a pool or a table is refused for, on the host and on the device's side, before anything runs (cases 11, 47,
//! 55): a typed error that names the argument; nothing is written.
#![forbid(unsafe_code)]
use host::{
    Checkpoints, Dtype, Error, HeadMap, Heads, IndexDtype, Indices, QkNorm, Sequences, State, StateLayout, Strides,
    View, ViewMut, cpu, cuda,
};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use tests::{Batch, BatchPath, POISON, heads};

fn base() -> Batch {
    Batch::new(heads(1, 2, HeadMap::Grouped), &[3, 3], Dtype::F32, 1)
}

#[track_caller]
fn assert_names(error: &Error, named: &str) {
    match error {
        Error::Shape { argument, .. } | Error::Null { argument } | Error::Misaligned { argument, .. } => {
            assert_eq!(*argument, named, "{error}");
        }
        other => panic!("{other}"),
    }
    assert!(error.to_string().starts_with(named), "{error}");
}

/// A batch stride that leads past a tensor's end, or onto another sequence's rows where they are written.
#[test]
fn batch_strides_are_checked() {
    let batch = base();
    let rows = |count| Strides::dense(count, 128);
    for path in BatchPath::all() {
        let floats = vec![0.5f32; 2 * 3 * 256];
        for (stride, overlaps) in [(3 * 256 + 1, false), (3 * 256 - 1, true), (0, true)] {
            let mut out = vec![POISON; floats.len()];
            let view = |count: usize| View::new(&floats, rows(count)).batch_stride(3 * count * 128);
            let scalars = View::new(&floats, Strides::dense(2, 1)).batch_stride(6);
            let gates = host::Gates::Log { g: scalars, beta: scalars };
            let sequences = Sequences::Uniform { batch: 2, tokens: 3 };
            let out_view = ViewMut::new(&mut out, rows(2)).batch_stride(stride);
            let call = host::Call::new(batch.heads, sequences, view(1), view(1), view(2), gates, out_view);
            let error = path.run(call).unwrap_err();
            assert_names(&error, "out");
            assert_eq!(error.to_string().contains("overlap"), overlaps, "{error}");
            assert!(out.iter().all(|o| o.to_bits() == POISON.to_bits()));
        }
    }
}

/// Pools with fewer slots than sequences, slots on top of each other, tables with fewer rows, offsets that fall.
#[test]
fn pools_tables_and_offsets_are_checked() {
    let batch = base();
    let layout = StateLayout::key_major(&batch.heads);
    for path in BatchPath::all() {
        let refused = |call: &dyn Fn(&mut tests::Numbers, &mut [f32]) -> Error, named: &str| {
            let (mut out, mut states) = (batch.poisoned_out(), vec![POISON; 2 * layout.slot]);
            assert_names(&call(&mut out, &mut states), named);
            assert!(out.to_f32().iter().all(|o| o.is_nan()) && states.iter().all(|s| s.is_nan()), "{path:?} wrote");
        };
        fn state(data: &mut [f32], layout: StateLayout) -> State<'_> {
            State { data, layout }
        }
        refused(&|out, data| path.run(batch.call(out).state(state(&mut data[1..], layout))).unwrap_err(), "state");
        refused(
            &|out, data| path.run(batch.call(out).final_state(state(&mut data[1..], layout))).unwrap_err(),
            "final_state",
        );
        let close = layout.slot_stride(layout.slot - 1);
        refused(&|out, data| path.run(batch.call(out).state(State { data, layout: close })).unwrap_err(), "state");
        refused(
            &|out, data| path.run(batch.call(out).state(state(data, layout)).state_indices(&[0i32])).unwrap_err(),
            "state_indices",
        );
        refused(
            &|out, data| {
                path.run(batch.call(out).state(state(data, layout)).output_state_indices(&[0i64])).unwrap_err()
            },
            "output_state_indices",
        );
        refused(
            &|out, _| path.run(batch.call(out).output_state_indices(&[0i64, 1])).unwrap_err(),
            "output_state_indices",
        );
        refused(&|out, _| path.run(batch.call(out).checkpoints(Checkpoints::Lanes(4))).unwrap_err(), "checkpoints");
        let per_token = Checkpoints::PerToken(Indices::from(&[0i32; 5]));
        refused(
            &|out, data| path.run(batch.call(out).state(state(data, layout)).checkpoints(per_token)).unwrap_err(),
            "checkpoints",
        );
        refused(
            &|out, data| {
                path.run(batch.call(out).state(state(data, layout)).checkpoints(Checkpoints::Lanes(2))).unwrap_err()
            },
            "lanes",
        );
        let falling = Batch { cu_seqlens: vec![0, 4, 3], packed: true, ..batch.clone() };
        refused(&|out, _| path.run(falling.call(out)).unwrap_err(), "cu_seqlens");
        let longer = Batch { cu_seqlens: vec![0, 3, 7], packed: true, ..batch.clone() };
        refused(&|out, _| path.run(longer.call(out)).unwrap_err(), "q");
    }
}

/// More than 16 tokens are prefill's.
#[test]
fn decode_takes_up_to_sixteen_tokens() {
    let heads = heads(1, 1, HeadMap::Grouped);
    let decode = |batch: &Batch| {
        let (mut out, mut pool) = (batch.poisoned_out(), batch.pool(StateLayout::key_major(&heads)));
        cpu::decode(batch.call(&mut out).state(pool.state())).map(|()| (out, pool.data))
    };
    let batch = Batch::new(heads, &[16, 2], Dtype::Bf16, 2);
    let (out, states) = decode(&batch).unwrap();
    let expected = batch.run(BatchPath::Cpu(Some(cpu::Path::Recurrent))).unwrap();
    assert_eq!(batch.cut(&out), [expected[0].out.clone(), expected[1].out.clone()]);
    assert_eq!(states, [expected[0].state.clone(), expected[1].state.clone()].concat());
    let error = decode(&Batch::new(heads, &[2, 17], Dtype::Bf16, 3)).unwrap_err();
    assert!(matches!(error, Error::DecodeTokens { tokens: 17, most: 16 }), "{error}");
    let long = Batch::new(heads, &[17], Dtype::F32, 4);
    let (mut out, mut pool) = (long.poisoned_out(), long.pool(StateLayout::key_major(&heads)));
    let call = long.call(&mut out).state(pool.state()).checkpoints(Checkpoints::Lanes(17));
    assert!(matches!(cpu::run(call).unwrap_err(), Error::DecodeTokens { tokens: 17, most: 16 }));
}

/// A device call of every feature, whose pointers are all good but for one.
fn device_call<'a>(heads: Heads, name: &str, pointer: u64) -> cuda::Call<'a> {
    let at = |this: &str| if this == name { pointer } else { 1 << 20 };
    let view = |this: &str, count: usize, dim: usize| {
        cuda::View::new(at(this), Dtype::Bf16, Strides::dense(count, dim)).batch_stride(3 * count * dim)
    };
    let state = |this: &str| cuda::State::new(at(this), StateLayout::value_major(&heads), 4);
    let table = |this: &str, dtype| cuda::Indices::new(at(this), dtype);
    let gates = cuda::Gates::Raw {
        a: view("a", 4, 1),
        b: view("b", 4, 1),
        decay: cuda::Decay::ALog(at("decay")),
        dt_bias: at("dt_bias"),
        allow_neg_eigval: false,
    };
    let sequences = Sequences::Uniform { batch: 2, tokens: 3 };
    cuda::Call::new(
        heads,
        sequences,
        view("q", 2, 128),
        view("k", 2, 128),
        view("v", 4, 128),
        gates,
        view("out", 4, 128),
    )
    .qk_norm(QkNorm::L2 { eps: 1e-6 })
    .initial_state(state("initial_state"))
    .final_state(state("final_state"))
    .state_indices(table("state_indices", IndexDtype::I32))
    .output_state_indices(table("output_state_indices", IndexDtype::I64))
    .checkpoints(cuda::Checkpoints::PerToken(table("checkpoints", IndexDtype::U32)))
}

/// Null, misaligned and wrapping pointers, each argument in turn, each at its own element's size.
#[test]
fn device_pointers_of_every_argument_are_checked() {
    let heads = heads(2, 4, HeadMap::Grouped);
    for (name, bytes) in [
        ("q", 2),
        ("k", 2),
        ("v", 2),
        ("a", 2),
        ("b", 2),
        ("out", 2),
        ("decay", 4),
        ("dt_bias", 4),
        ("initial_state", 4),
        ("final_state", 4),
        ("state_indices", 4),
        ("output_state_indices", 8),
        ("checkpoints", 4),
    ] {
        device_call(heads, name, (1 << 30) + bytes).validate().unwrap();
        assert!(matches!(device_call(heads, name, 0).validate(), Err(Error::Null { argument }) if argument == name));
        for odd in 1..bytes {
            let error = device_call(heads, name, (1 << 30) + odd).validate().unwrap_err();
            assert!(
                matches!(error, Error::Misaligned { argument, required, .. } if argument == name && required == bytes as usize),
                "{error}"
            );
        }
        assert_names(&device_call(heads, name, 0u64.wrapping_sub(bytes)).validate().unwrap_err(), name);
    }
    // A pool of fewer slots than sequences, where no table names them.
    let view = cuda::View::new(1 << 20, Dtype::F32, Strides::dense(1, 128)).batch_stride(128);
    let scalars = cuda::View::new(1 << 20, Dtype::F32, Strides::dense(1, 1)).batch_stride(1);
    let heads = tests::heads(1, 1, HeadMap::Grouped);
    let gates = cuda::Gates::Log { g: scalars, beta: scalars };
    let call = cuda::Call::new(heads, Sequences::Uniform { batch: 2, tokens: 1 }, view, view, view, gates, view);
    let state = |slots| cuda::State::new(1 << 20, StateLayout::key_major(&heads), slots);
    call.state(state(2)).validate().unwrap();
    assert_names(&call.state(state(1)).validate().unwrap_err(), "initial_state");
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 400,
        rng_seed: RngSeed::Fixed(1),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Batches and slots against 128-bit arithmetic: what is accepted ends below 2^64, what is refused does not, or overlaps
    /// where it is written (case 11(c)).
    #[test]
    fn extents_of_batches_and_pools_are_checked_in_64_bits(
        (batch, tokens) in (1..1usize << 20, 1..1usize << 20),
        strides in [any_stride(), any_stride(), any_stride()],
        (slots, slot, bytes) in (1..1usize << 20, any_stride(), prop::sample::select(&[2u64, 4][..])),
    ) {
        let heads = heads(2, 2, HeadMap::Grouped);
        let [batch_stride, token, head] = strides;
        let dtype = if bytes == 2 { Dtype::F16 } else { Dtype::F32 };
        let pointer = 1u64 << 40;
        let view = cuda::View::new(pointer, dtype, Strides { token, head }).batch_stride(batch_stride);
        let one = cuda::View::new(pointer, Dtype::F32, Strides { token: 0, head: 0 });
        let dense = cuda::View::new(pointer, dtype, Strides::dense(2, 128)).batch_stride(tokens * 256);
        let layout = StateLayout::key_major(&heads).slot_stride(slot);
        let sequences = Sequences::Uniform { batch, tokens };
        let gates = cuda::Gates::Log { g: one, beta: one };
        let call = cuda::Call::new(heads, sequences, view, dense, dense, gates, dense)
            .state(cuda::State::new(pointer, layout, slots))
            .state_indices(cuda::Indices::new(pointer, IndexDtype::I32));
        let end = |axes: [(usize, usize); 3], dim: u128, bytes: u128| {
            let last: u128 = axes.iter().map(|&(count, stride)| (count as u128 - 1) * stride as u128).sum();
            u128::from(pointer) + (last + dim) * bytes
        };
        let q_fits = end([(batch, batch_stride), (tokens, token), (2, head)], 128, u128::from(bytes)) < 1 << 63;
        let states_fit = end([(slots, slot), (128, 128), (2, 128 * 128)], 128, 4) < 1 << 63;
        match call.validate() {
            Ok(()) => prop_assert!(q_fits && states_fit && (slots == 1 || slot >= 2 * 128 * 128)),
            Err(Error::Shape { argument: "q", .. }) => prop_assert!(!q_fits),
            Err(Error::Shape { argument, expected, .. }) => {
                prop_assert_eq!(argument, "initial_state");
                prop_assert!(!states_fit || (expected.contains("overlap") && slot < 2 * 128 * 128));
            }
            Err(other) => return Err(TestCaseError::fail(other.to_string())),
        }
    }
}

fn any_stride() -> impl Strategy<Value = usize> {
    prop_oneof![0..1usize << 20, (0..63u32).prop_map(|shift| 1 << shift), any::<usize>()]
}
