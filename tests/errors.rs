//! Bad arguments: a typed error on every path that names the argument, its value and the limit; nothing is written, nothing
//! panics, in debug and in release builds (cases 8, 11(c), 47, 55).
#![forbid(unsafe_code)]
use host::inputs::{Family, Inputs};
use host::{Call, Error, Gates, HeadMap, Heads, Kernel, Reason, State, StateLayout, Strides, View, ViewMut};
use tests::{Buffers, Layout, POISON, Path, agrees, bars, every_path, every_path_for, expected_of, heads, run};

fn inputs() -> Inputs {
    Inputs::seeded(heads(2, 4, HeadMap::Grouped), 3, Family::Base, 1)
}

/// Runs on every path a call over poisoned outputs that `spoil` has spoiled, and gives each error back.
fn errors_of(inputs: &Inputs, spoil: impl Fn(Spoiled<'_>) -> Call<'_>) -> Vec<(Path, Error)> {
    let mut errors = Vec::new();
    for path in every_path_for(&inputs.heads) {
        let mut out = vec![POISON; inputs.out_len(inputs.tokens)];
        let mut state = inputs.state.clone();
        let call = spoil(Spoiled { inputs, out: &mut out, state: &mut state });
        errors.push((path, path.run(call).expect_err(&format!("{path:?} took bad arguments"))));
        assert!(out.iter().all(|o| o.to_bits() == POISON.to_bits()), "{path:?} wrote to out");
        assert!(
            state.iter().zip(&inputs.state).all(|(a, b)| a.to_bits() == b.to_bits()),
            "{path:?} wrote to the state"
        );
    }
    errors
}

/// What a spoiled call is made from.
struct Spoiled<'a> {
    inputs: &'a Inputs,
    out: &'a mut [f32],
    state: &'a mut [f32],
}

impl<'a> Spoiled<'a> {
    /// The call whose tensors are so much shorter: q, k, v, g, beta, out, state.
    fn shorter_by(self, by: [usize; 7]) -> Call<'a> {
        let Self { inputs, out, state } = self;
        let heads = inputs.heads;
        let less = |data: &'a [f32], by: usize, strides| View::new(&data[..data.len() - by], strides);
        let keys = Strides::dense(heads.num_k_heads, 128);
        let values = Strides::dense(heads.num_v_heads, 128);
        let scalars = Strides::dense(heads.num_v_heads, 1);
        let (out_len, state_len) = (out.len() - by[5], state.len() - by[6]);
        let gates = Gates::Log { g: less(&inputs.g, by[3], scalars), beta: less(&inputs.beta, by[4], scalars) };
        Call::new(
            heads,
            inputs.tokens,
            less(&inputs.q, by[0], keys),
            less(&inputs.k, by[1], keys),
            less(&inputs.v, by[2], values),
            gates,
            ViewMut::new(&mut out[..out_len], values),
        )
        .state(State { data: &mut state[..state_len], layout: StateLayout::key_major(&heads) })
    }

    /// The call with these strides of the output and layout of the state.
    fn with_strides(self, strides: Strides, layout: StateLayout) -> Call<'a> {
        let Self { inputs, out, state } = self;
        let heads = inputs.heads;
        let (keys, scalars) = (Strides::dense(heads.num_k_heads, 128), Strides::dense(heads.num_v_heads, 1));
        Call::new(
            heads,
            inputs.tokens,
            View::new(&inputs.q, keys),
            View::new(&inputs.k, keys),
            View::new(&inputs.v, Strides::dense(heads.num_v_heads, 128)),
            Gates::Log { g: View::new(&inputs.g, scalars), beta: View::new(&inputs.beta, scalars) },
            ViewMut::new(out, strides),
        )
        .state(State { data: state, layout })
    }
}

#[track_caller]
fn assert_shape(errors: Vec<(Path, Error)>, named: &str, mentions: &[&str]) {
    for (path, error) in errors {
        let text = error.to_string();
        match error {
            Error::Shape { argument, .. } => assert_eq!(argument, named, "{path:?}: {text}"),
            other => panic!("{path:?}: {other}"),
        }
        assert!(text.starts_with(named) && mentions.iter().all(|word| text.contains(word)), "{path:?}: {text}");
    }
}

/// Every tensor one element short, and empty.
#[test]
fn a_tensor_that_is_too_short_is_named_with_both_lengths() {
    let inputs = inputs();
    let lengths = [768, 768, 1536, 12, 12, 1536, 4 * 128 * 128];
    for (index, name) in ["q", "k", "v", "g", "beta", "out", "state"].into_iter().enumerate() {
        for by in [1, lengths[index]] {
            let mut shorter = [0; 7];
            shorter[index] = by;
            let (expected, got) = (format!("at least {}", lengths[index]), format!("got {}", lengths[index] - by));
            assert_shape(errors_of(&inputs, |call| call.shorter_by(shorter)), name, &[&expected, &got]);
        }
    }
}

/// Rows that are written and overlap would make the result depend on the order of threads.
#[test]
fn rows_that_overlap_are_refused_where_they_are_written() {
    let inputs = inputs();
    let dense = StateLayout::key_major(&inputs.heads);
    for strides in [
        Strides { token: 0, head: 128 },
        Strides { token: 512, head: 0 },
        Strides { token: 512, head: 127 },
        Strides { token: 511, head: 128 },
        Strides { token: 127, head: 128 },
    ] {
        assert_shape(errors_of(&inputs, |call| call.with_strides(strides, dense)), "out", &["overlap"]);
    }
    let out = Strides::dense(4, 128);
    for layout in [
        StateLayout { head: 0, row: 128, ..dense },
        StateLayout { head: 128 * 128, row: 127, ..dense },
        StateLayout { head: 128 * 128 - 1, row: 128, ..dense },
        StateLayout { head: 128, row: 128, ..dense },
    ] {
        assert_shape(errors_of(&inputs, |call| call.with_strides(out, layout)), "state", &["overlap"]);
    }
}

/// Extents past what 64 bits carry, and 2^32 tokens: never a panic, whatever the strides (case 11(c)).
#[test]
fn extents_past_64_bits_are_refused() {
    let inputs = inputs();
    let dense = StateLayout::key_major(&inputs.heads);
    for token in [usize::MAX, usize::MAX / 2, usize::MAX / 4, 1 << 61] {
        let strides = Strides { token, head: 128 };
        assert_shape(errors_of(&inputs, |call| call.with_strides(strides, dense)), "out", &["at most"]);
        let strides = Strides { token: 512, head: token };
        assert_shape(errors_of(&inputs, |call| call.with_strides(strides, dense)), "out", &["at most"]);
        let layout = StateLayout { head: token, row: 128, ..dense };
        assert_shape(
            errors_of(&inputs, |call| call.with_strides(Strides::dense(4, 128), layout)),
            "state",
            &["at most"],
        );
    }
    for tokens in [1 << 32, usize::MAX] {
        let huge = Inputs { tokens, ..inputs.clone() };
        for path in every_path() {
            let (mut out, mut state) = (vec![POISON; 8], huge.state.clone());
            let call = Spoiled { inputs: &huge, out: &mut out, state: &mut state }.shorter_by([0; 7]);
            let error = path.run(call).unwrap_err();
            assert!(matches!(error, Error::Shape { argument: "tokens", .. }), "{path:?}: {error}");
        }
    }
}

/// A stride along an axis of one element leads nowhere, so that it may be any number.
#[test]
fn strides_that_lead_nowhere_may_be_anything() {
    let inputs = Inputs::seeded(heads(1, 1, HeadMap::Grouped), 1, Family::Base, 2);
    let expected = expected_of(&inputs);
    for anything in [0, 1, 3, usize::MAX, usize::MAX - 3, 1 << 62, 1 << 61] {
        let strides = Strides { token: anything, head: anything };
        let state = StateLayout { slot: anything, head: anything, row: 128, ..StateLayout::key_major(&inputs.heads) };
        let layout =
            Layout { q: strides, k: strides, v: strides, g: strides, beta: strides, out: strides, state, start: 0 };
        for path in every_path() {
            let mut buffers = Buffers::new(&inputs, layout);
            path.run(buffers.call()).unwrap_or_else(|e| panic!("{path:?}, stride {anything}: {e}"));
            agrees(&inputs.heads, &expected, &buffers.output(), &bars::SEQUENTIAL)
                .unwrap_or_else(|e| panic!("{path:?}, stride {anything}: {e}"));
        }
    }
}

/// Head counts that fit each other, from the constructor on (case 8).
#[test]
fn head_counts_are_checked() {
    for (keys, values, argument, mentions) in [
        (0, 4, "num_k_heads", "got 0"),
        (4, 0, "num_v_heads", "got 0"),
        (0, 0, "num_k_heads", "got 0"),
        (3, 4, "num_v_heads", "multiple of num_k_heads = 3"),
        (4, 2, "num_v_heads", "multiple of num_k_heads = 4"),
        (1 << 16, 1 << 16, "num_k_heads", "1 to 65535"),
        (1, 1 << 16, "num_v_heads", "1 to 65535"),
        (usize::MAX, usize::MAX, "num_k_heads", "1 to 65535"),
    ] {
        for map in [HeadMap::Grouped, HeadMap::Tiled] {
            let error = Heads::new(keys, values, map).unwrap_err();
            assert!(matches!(error, Error::Shape { argument: named, .. } if named == argument), "{error}");
            assert!(error.to_string().contains(mentions), "{error}");
        }
    }
    assert!(Heads::new(65535, 65535, HeadMap::Grouped).is_ok());
}

/// Other head sizes than 128, equal or not, powers of two or not: unsupported on every path, never wrong (case 47).
#[test]
fn head_sizes_other_than_128_are_refused() {
    const SIZES: [usize; 12] = [0, 16, 32, 48, 64, 80, 96, 100, 128, 160, 192, 256];
    let base = heads(1, 2, HeadMap::Grouped);
    for key_dim in SIZES {
        for value_dim in SIZES.into_iter().filter(|&value_dim| (key_dim, value_dim) != (128, 128)) {
            let heads = base.with_dims(key_dim, value_dim);
            let inputs = Inputs {
                heads,
                q: vec![0.5; 2 * key_dim],
                k: vec![0.5; 2 * key_dim],
                v: vec![0.5; 4 * value_dim],
                state: vec![0.5; 2 * key_dim * value_dim],
                ..Inputs::seeded(base, 2, Family::Base, 3)
            };
            let (named, value) = if key_dim == 128 { ("head_v_dim", value_dim) } else { ("head_k_dim", key_dim) };
            for path in every_path_for(&heads) {
                let (mut out, mut state) = (vec![POISON; inputs.out_len(2)], inputs.state.clone());
                let error = path.run(inputs.call(&mut out, &mut state)).unwrap_err();
                assert!(
                    matches!(error, Error::HeadDim { argument, got, supported: 128 } if (argument, got) == (named, value)),
                    "{path:?}, {key_dim} x {value_dim}: {error}"
                );
                let text = error.to_string();
                assert!([named, &value.to_string(), "128"].iter().all(|word| text.contains(word)), "{text}");
                assert!(out.iter().all(|o| o.to_bits() == POISON.to_bits()) && state == inputs.state, "{path:?} wrote");
            }
        }
    }
}

/// Five value heads for a key head: kernels that share a key head's rows say so, the others run.
#[test]
fn too_many_value_heads_per_key_head_are_refused_where_they_share_rows() {
    let inputs = Inputs::seeded(heads(1, 5, HeadMap::Tiled), 3, Family::Base, 4);
    let expected = expected_of(&inputs);
    for path in every_path() {
        if path.takes(&inputs.heads) {
            agrees(&inputs.heads, &expected, &run(path, &inputs), &bars::SEQUENTIAL).unwrap();
            continue;
        }
        let mut buffers = Buffers::new(&inputs, Layout::dense(&inputs.heads));
        let before = buffers.clone();
        let error = path.run(buffers.call()).unwrap_err();
        let Error::Refused { kernel, reason: Reason::HeadRatio { ratio: 5, most: 4 } } = error else {
            panic!("{path:?}: {error}");
        };
        assert_eq!(Some(kernel), path.kernel().map(Kernel::name));
        buffers.untouched(&before).unwrap();
    }
}
