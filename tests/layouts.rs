//! Views instead of dense tensors: packed rows, a slot of a pool, padding, odd addresses, any strides (case 10). Results
//! have the bits of the dense call, and nothing outside the rows is read or written.
#![forbid(unsafe_code)]
use host::inputs::{Family, Inputs};
use host::{Call, Error, Gates, HeadMap, Heads, Kernel, Reason, State, StateLayout, Strides, View, ViewMut};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use tests::{
    Buffers, HEADS, Layout, Output, POISON, Path, every_path, every_path_for, heads, run, same_bits, untouched,
};

/// q, k and v as columns of one buffer, g and beta as columns of another, the state as slot 3 of a pool whose slots are 33
/// floats apart, the output with 8 floats between its rows.
#[test]
fn an_engines_views_give_the_dense_bits() {
    for map in [HeadMap::Grouped, HeadMap::Tiled] {
        let heads = heads(2, 6, map);
        let inputs = Inputs::seeded(heads, 19, Family::Base, 1);
        let packed = inputs.packed();
        let (keys, width) = (2 * 128, 2 * 2 * 128 + 6 * 128);
        let row = Strides { token: width, head: 128 };
        let gates = Strides { token: 12, head: 1 };
        let slot = inputs.state.len() + 33;
        let out_strides = Strides { token: 6 * 128 + 8, head: 128 };
        for path in every_path() {
            let mut pool = vec![POISON; 5 * slot];
            pool[3 * slot..][..inputs.state.len()].copy_from_slice(&inputs.state);
            let pool_before = pool.clone();
            let mut out = vec![POISON; 19 * out_strides.token];
            let out_before = out.clone();
            let call = Call::new(
                heads,
                19,
                View::new(&packed.qkv, row),
                View::new(&packed.qkv[keys..], row),
                View::new(&packed.qkv[2 * keys..], row),
                Gates::Log { g: View::new(&packed.gates, gates), beta: View::new(&packed.gates[6..], gates) },
                ViewMut::new(&mut out, out_strides),
            );
            let layout = StateLayout::key_major(&heads);
            path.run(call.state(State { data: &mut pool[3 * slot..], layout })).unwrap();

            let rows = out.chunks_exact(out_strides.token).flat_map(|row| row[..6 * 128].to_vec()).collect();
            let actual = Output { out: rows, state: pool[3 * slot..][..inputs.state.len()].to_vec() };
            same_bits(&heads, &run(path, &inputs), &actual).unwrap_or_else(|e| panic!("{path:?}: {e}"));
            let in_slot = 3 * slot..3 * slot + inputs.state.len();
            untouched(&pool_before, &pool, |index| in_slot.contains(&index))
                .unwrap_or_else(|e| panic!("{path:?}: {e}"));
            untouched(&out_before, &out, |index| index % out_strides.token < 6 * 128)
                .unwrap_or_else(|e| panic!("{path:?}: {e}"));
        }
    }
}

/// The packed layout of `host::inputs`, whose state has its key rows outermost.
#[test]
fn a_state_with_key_rows_outermost_gives_the_dense_bits() {
    let inputs = Inputs::seeded(heads(2, 4, HeadMap::Tiled), 12, Family::Base, 2);
    let packed = inputs.packed();
    for path in every_path() {
        let mut output = Output::poisoned(&inputs);
        path.run(packed.call(&mut output.out, &mut output.state)).unwrap();
        output.state = packed.key_major(&output.state);
        same_bits(&inputs.heads, &run(path, &inputs), &output).unwrap_or_else(|e| panic!("{path:?}: {e}"));
    }
}

/// Whether the rows of one of q, k, v and out start on 16 bytes, in a buffer that does.
fn is_aligned(layout: &Layout, argument: &str) -> bool {
    let (strides, start) = match argument {
        "q" => (layout.q, layout.start),
        "k" => (layout.k, layout.start),
        "v" => (layout.v, layout.start),
        _ => (layout.out, 0),
    };
    [strides.token, strides.head, start].iter().all(|elements| elements.is_multiple_of(4))
}

/// Runs `inputs` in `layout` and compares with the dense bits; what moves rows by 16 bytes may refuse other rows, untouched.
fn check_layout(path: Path, inputs: &Inputs, layout: Layout) -> Result<(), String> {
    let mut buffers = Buffers::new(inputs, layout);
    let before = buffers.clone();
    match path.run(buffers.call()) {
        Ok(()) => {
            same_bits(&inputs.heads, &run(path, inputs), &buffers.output())?;
            buffers.gaps_untouched(&before)
        }
        Err(Error::Refused { kernel, reason: Reason::Unaligned { argument } }) if !is_aligned(&layout, argument) => {
            assert_eq!(Some(kernel), path.kernel().map(Kernel::name));
            assert!(path.needs_alignment_of().contains(&argument), "{path:?} does not move {argument} by 16 bytes");
            buffers.untouched(&before)
        }
        Err(error) => Err(error.to_string()),
    }
}

/// Whether the emulator, which sees the caller's addresses, must refuse.
fn refuses(path: Path, inputs: &Inputs, layout: Layout) -> bool {
    let mut buffers = Buffers::new(inputs, layout);
    matches!(path.run(buffers.call()), Err(Error::Refused { reason: Reason::Unaligned { .. }, .. }))
}

/// One element off, as a slice of some larger buffer is: right, or a typed refusal, never a fault.
#[test]
fn an_odd_start_is_right_or_refused() {
    let inputs = Inputs::seeded(heads(2, 4, HeadMap::Grouped), 11, Family::Base, 3);
    let layout = Layout { start: 1, ..Layout::dense(&inputs.heads) };
    for path in every_path() {
        check_layout(path, &inputs, layout).unwrap_or_else(|e| panic!("{path:?}: {e}"));
    }
    assert!(refuses(Path::Emulated(Kernel::RecurrentByKeyHead), &inputs, layout));
    assert!(refuses(Path::Emulated(Kernel::Chunked), &inputs, layout));
    assert!(!refuses(Path::Emulated(Kernel::RecurrentByColumn), &inputs, layout));
}

/// A stride that leads off the 16 bytes is as bad as an address, for each of q, k, v and out alone.
#[test]
fn an_odd_stride_is_right_or_refused() {
    let inputs = Inputs::seeded(heads(2, 4, HeadMap::Tiled), 11, Family::Base, 4);
    let dense = Layout::dense(&inputs.heads);
    let odd = |strides: Strides| Strides { token: strides.token + 2, head: strides.head };
    let wide = |strides: Strides| Strides { token: 2 * (strides.token + 1), head: strides.head + 1 };
    for layout in [
        Layout { q: odd(dense.q), ..dense },
        Layout { k: odd(dense.k), ..dense },
        Layout { v: odd(dense.v), ..dense },
        Layout { v: wide(dense.v), ..dense },
    ] {
        for path in every_path() {
            check_layout(path, &inputs, layout).unwrap_or_else(|e| panic!("{path:?}: {e}"));
        }
        for kernel in [Kernel::RecurrentByKeyHead, Kernel::Chunked] {
            assert!(refuses(Path::Emulated(kernel), &inputs, layout), "{kernel:?}, {layout:?}");
        }
    }
    // Only the chunked kernels write four elements at a time.
    let layout = Layout { out: odd(dense.out), ..dense };
    for path in every_path() {
        check_layout(path, &inputs, layout).unwrap_or_else(|e| panic!("{path:?}: {e}"));
    }
    assert!(refuses(Path::Emulated(Kernel::Chunked), &inputs, layout));
    assert!(!refuses(Path::Emulated(Kernel::RecurrentByKeyHead), &inputs, layout));
}

/// Inputs that all tokens share, by a stride of 0.
#[test]
fn a_stride_of_zero_repeats_a_row() {
    let heads = heads(1, 2, HeadMap::Grouped);
    let mut inputs = Inputs::seeded(heads, 10, Family::Base, 5);
    for (tensor, row) in [(&mut inputs.k, 128), (&mut inputs.v, 256), (&mut inputs.g, 2), (&mut inputs.beta, 2)] {
        let first = tensor[..row].to_vec();
        tensor.chunks_exact_mut(row).for_each(|row| row.copy_from_slice(&first));
    }
    let still = |strides: Strides| Strides { token: 0, ..strides };
    let dense = Layout::dense(&heads);
    let layout = Layout { k: still(dense.k), v: still(dense.v), g: still(dense.g), beta: still(dense.beta), ..dense };
    for path in every_path() {
        check_layout(path, &inputs, layout).unwrap_or_else(|e| panic!("{path:?}: {e}"));
    }
}

/// Rows of `count` heads: tokens outermost or heads outermost, so much padding behind each head and each outer row.
fn strides(tokens: usize, count: usize, dim: usize, heads_first: bool, pads: [usize; 2]) -> Strides {
    let inner = dim + pads[0];
    match heads_first {
        false => Strides { token: count * inner + pads[1], head: inner },
        true => Strides { token: inner, head: tokens.max(1) * inner + pads[1] },
    }
}

/// A layout with every tensor at strides of its own.
fn any_layout(heads: Heads, tokens: usize) -> impl Strategy<Value = Layout> {
    let (keys, values) = (heads.num_k_heads, heads.num_v_heads);
    let one = (any::<bool>(), [0..5_usize, 0..9_usize]);
    let all = [one.clone(), one.clone(), one.clone(), one.clone(), one.clone(), one.clone(), one];
    let aligned = [any::<bool>(), any::<bool>()];
    (aligned, 0..3_usize, all).prop_map(move |([aligned, out_aligned], start, [q, k, v, g, beta, out, state])| {
        let of = |count: usize, dim: usize, (first, pads): (bool, [usize; 2])| strides(tokens, count, dim, first, pads);
        // Rows of q, k and v on 16 bytes, or anywhere; and those of the output.
        let [unit, out_unit] = [aligned, out_aligned].map(|aligned| if aligned { 4 } else { 1 });
        let times = |unit: usize, (first, pads): (bool, [usize; 2])| (first, pads.map(|pad| pad * unit));
        let wide = |pads| times(unit, pads);
        let state = strides(128, values, 128, state.0, state.1);
        Layout {
            q: of(keys, 128, wide(q)),
            k: of(keys, 128, wide(k)),
            v: of(values, 128, wide(v)),
            g: of(values, 1, g),
            beta: of(values, 1, beta),
            out: of(values, 128, times(out_unit, out)),
            state: StateLayout { head: state.head, row: state.token, ..StateLayout::key_major(&heads) },
            start: start * unit,
        }
    })
}

fn any_case() -> impl Strategy<Value = (Heads, usize, Layout, u64)> {
    let map = prop_oneof![Just(HeadMap::Grouped), Just(HeadMap::Tiled)];
    (prop::sample::select(&HEADS[..]), map, 0..20_usize, any::<u64>()).prop_flat_map(
        |((keys, values), map, tokens, seed)| {
            let heads = heads(keys, values, map);
            any_layout(heads, tokens).prop_map(move |layout| (heads, tokens, layout, seed))
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 40,
        // The same cases on every machine; what fails is reported in full.
        rng_seed: RngSeed::Fixed(1),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn any_strides_give_the_dense_bits((heads, tokens, layout, seed) in any_case()) {
        let inputs = Inputs::seeded(heads, tokens, Family::Base, seed);
        for path in every_path_for(&heads) {
            check_layout(path, &inputs, layout)
                .map_err(|e| TestCaseError::fail(format!("{path:?}: {e}")))?;
        }
    }
}
