//! Element types, norms and gates as engines have them (cases 13, 21, 22, 23, 27, 48).
#![forbid(unsafe_code)]
use half::{bf16, f16};
use host::{Call, Decay, Dtype, Error, Gates, HeadMap, QkNorm, State, StateLayout, Strides, View, ViewMut, cpu};
use tests::{Batch, BatchPath, Numbers, bars, heads};

/// Multiples of 1/64 in -1..=1, which every type has.
fn coarse(numbers: &Numbers) -> Vec<f32> {
    numbers.to_f32().iter().map(|x| (x * 64.0).round().clamp(-64.0, 64.0) / 64.0).collect()
}

/// The same numbers in every type, one after the other, have the same bits, and the output is rounded once (case 21).
#[test]
fn the_same_numbers_in_every_type_have_the_same_bits() {
    let heads = heads(1, 2, HeadMap::Grouped);
    let base = Batch::new(heads, &[4], Dtype::F32, 1);
    let of = |dtype, out| Batch {
        q: Numbers::new(&coarse(&base.q), dtype),
        k: Numbers::new(&coarse(&base.k), dtype),
        v: Numbers::new(&coarse(&base.v), dtype),
        g: Numbers::new(&coarse(&base.g), dtype),
        beta: Numbers::new(&coarse(&base.beta), dtype),
        out,
        ..base.clone()
    };
    for path in BatchPath::all() {
        let expected = of(Dtype::F32, Dtype::F32).run(path).unwrap();
        for dtype in [Dtype::F16, Dtype::Bf16, Dtype::F16, Dtype::F32] {
            let same = of(dtype, Dtype::F32).run(path).unwrap();
            assert_eq!(same, expected, "{path:?}, {dtype}");
            let rounded = of(dtype, dtype).run(path).unwrap();
            assert_eq!(rounded[0].state, expected[0].state, "{path:?}, {dtype}");
            assert_eq!(rounded[0].out, Numbers::new(&expected[0].out, dtype).to_f32(), "{path:?}, {dtype}");
        }
        // Gates of another type than the rest, and of two types.
        let mut mixed = of(Dtype::Bf16, Dtype::F32);
        mixed.g = Numbers::new(&coarse(&base.g), Dtype::F32);
        mixed.beta = Numbers::new(&coarse(&base.beta), Dtype::F16);
        assert_eq!(mixed.run(path).unwrap(), expected, "{path:?}");
    }
}

/// One of q, k and v of another type than the others, and outputs of a third (case 21).
#[test]
fn mixed_types_are_refused() {
    let batch = Batch::new(heads(1, 1, HeadMap::Grouped), &[1], Dtype::Bf16, 2);
    let other = |numbers: &Numbers| Numbers::new(&numbers.to_f32(), Dtype::F16);
    let spoiled = [
        (Batch { k: other(&batch.k), ..batch.clone() }, "k"),
        (Batch { v: other(&batch.v), ..batch.clone() }, "v"),
        (Batch { q: other(&batch.q), ..batch.clone() }, "k"),
        (Batch { out: Dtype::F16, ..batch.clone() }, "out"),
    ];
    for (batch, named) in spoiled {
        for path in BatchPath::all() {
            let mut out = batch.poisoned_out();
            let error = path.run(batch.call(&mut out)).unwrap_err();
            assert!(matches!(error, Error::Dtype { argument, .. } if argument == named), "{path:?}: {error}");
            assert!(error.to_string().contains("f16"), "{error}");
            assert!(out.to_f32().iter().all(|o| o.is_nan()), "{path:?} wrote");
        }
    }
}

/// Float64's bar in every type, with norm and raw gates and without.
#[test]
fn every_type_norm_and_gate_agrees_with_float64() {
    let heads = heads(2, 4, HeadMap::Tiled);
    for dtype in Dtype::ALL {
        for norm in [QkNorm::None, QkNorm::L2 { eps: 1e-6 }] {
            for raw in [None, Some([vec![0.5, -1.0, 2.0, 0.0], vec![0.1, -0.3, 1.0, 0.0]])] {
                let mut batch = Batch::new(heads, &[3, 5], dtype, 3);
                if norm != QkNorm::None {
                    // Longer than they will be.
                    let longer: Vec<f32> = batch.k.to_f32().iter().map(|x| x * 7.0).collect();
                    batch.k = Numbers::new(&longer, dtype);
                }
                (batch.norm, batch.raw) = (norm, raw);
                for path in BatchPath::all() {
                    let outputs = batch.run(path).unwrap();
                    batch
                        .agrees(&outputs, &bars::SEQUENTIAL)
                        .unwrap_or_else(|e| panic!("{path:?}, {dtype}, {norm:?}, raw {}: {e}", batch.raw.is_some()));
                }
            }
        }
    }
}

/// Thousands of bf16 tokens one by one on an FP32 state keep its accuracy (case 22).
#[test]
fn the_state_is_never_rounded_to_the_type_of_the_inputs() {
    let heads = heads(1, 1, HeadMap::Grouped);
    let (tokens, emulated) = (4096, 64);
    let mut batch = Batch::new(heads, &[tokens], Dtype::Bf16, 4);
    batch.g = Numbers::new(&vec![-1e-3; tokens], Dtype::F32);
    batch.beta = Numbers::new(&vec![0.5; tokens], Dtype::F32);
    for (path, tokens) in [(BatchPath::Cpu(Some(cpu::Path::Recurrent)), tokens), (BatchPath::Emulated(None), emulated)]
    {
        let mut state = batch.states[0].clone();
        let mut outs = Vec::new();
        for token in 0..tokens {
            let mut one = batch.part(0, token..token + 1);
            one.states[0] = state;
            let output = one.run(path).unwrap().remove(0);
            outs.extend(output.out);
            state = output.state;
        }
        let first = batch.part(0, 0..tokens);
        first
            .agrees(&vec![tests::Output { out: outs, state }], &bars::SEQUENTIAL)
            .unwrap_or_else(|e| panic!("{path:?}: {e}"));
    }
}

/// An output above 65504: right in f32, finite in bf16, infinite and not NaN in f16; the state keeps its bits (case 23).
#[test]
fn an_output_too_large_for_f16_is_infinite_and_not_nan() {
    let heads = heads(1, 1, HeadMap::Grouped);
    for (dtype, expected) in [
        (Dtype::F32, 113_137.0),
        (Dtype::Bf16, bf16::from_f32(113_137.0).to_f32()),
        (Dtype::F16, f16::INFINITY.to_f32()),
    ] {
        let mut batch = Batch::new(heads, &[1], dtype, 5);
        let q = (1.0f32 / 128.0).sqrt();
        batch.q = Numbers::new(&[q; 128], dtype);
        batch.k = Numbers::new(&[0.0; 128], dtype);
        (batch.g, batch.beta) = (Numbers::new(&[0.0], dtype), Numbers::new(&[0.0], dtype));
        batch.states[0].fill(1e4);
        (batch.scale, batch.out) = (1.0, dtype);
        for path in BatchPath::all() {
            let output = batch.run(path).unwrap().remove(0);
            assert_eq!(output.state, batch.states[0], "{path:?}");
            for o in output.out {
                assert!(o == expected || (o - expected).abs() <= expected * 4e-3, "{path:?}, {dtype}: {o}");
            }
        }
    }
}

/// Keys from length 1 down to 1e-4, where eps counts, and none at all: x / sqrt(sum x^2 + eps), and no NaN (case 48).
#[test]
fn eps_is_added_to_the_sum_of_squares() {
    let heads = heads(1, 1, HeadMap::Grouped);
    let mut batch = Batch::new(heads, &[5], Dtype::F32, 6);
    batch.norm = QkNorm::L2 { eps: 1e-6 };
    let lengths = [1.0, 1e-2, 1e-3, 1e-4, 0.0];
    let scaled = |numbers: &Numbers| {
        let rows = numbers.to_f32();
        let scaled = rows.chunks(128).zip(lengths).flat_map(|(row, length)| row.iter().map(move |x| x * length));
        Numbers::F32(scaled.collect())
    };
    (batch.q, batch.k) = (scaled(&batch.q), scaled(&batch.k));
    // The state of each token by itself, since a later one would hide an earlier one's error.
    for token in 0..5 {
        let one = batch.part(0, token..token + 1);
        for path in BatchPath::all() {
            let outputs = one.run(path).unwrap();
            one.agrees(&outputs, &bars::SEQUENTIAL).unwrap_or_else(|e| panic!("{path:?}, token {token}: {e}"));
            if token == 4 {
                assert!(outputs[0].out.iter().all(|&o| o == 0.0), "{path:?}: a query of zeros");
            }
        }
    }
    for eps in [-1.0, f32::NAN, f32::INFINITY] {
        let bad = Batch { norm: QkNorm::L2 { eps }, ..batch.clone() };
        let error = bad.run(BatchPath::Cpu(None)).unwrap_err();
        assert!(matches!(error, Error::Shape { argument: "eps", .. }), "{error}");
    }
}

/// A raw gate far out: softplus is linear there, e^A_log is 134 or nothing at all, and -exp(A_log) may be given instead.
#[test]
fn raw_gates_at_their_limits() {
    let heads = heads(1, 4, HeadMap::Grouped);
    let mut batch = Batch::new(heads, &[4], Dtype::F32, 7);
    batch.g = Numbers::F32([-100.0, -4.0, 25.0, 100.0].into_iter().flat_map(|a| [a; 4]).collect());
    batch.beta = Numbers::F32([-200.0, 0.0, 3.0, 200.0].into_iter().flat_map(|b| [b; 4]).collect());
    let a_log = vec![4.9, 0.0, -30.0, 88.0];
    batch.raw = Some([a_log.clone(), vec![0.5; 4]]);
    let negative: Vec<f32> = a_log.iter().map(|a| -a.exp()).collect();
    for path in BatchPath::all() {
        let outputs = batch.run(path).unwrap();
        batch.agrees(&outputs, &bars::SEQUENTIAL).unwrap_or_else(|e| panic!("{path:?}: {e}"));
        for (allow_neg_eigval, factor) in [(false, 1.0f32), (true, 2.0)] {
            let gates = |view: &Numbers| view.clone();
            let (a, b, bias) = (gates(&batch.g), gates(&batch.beta), vec![0.5; 4]);
            let raw = Gates::Raw {
                a: a.view(0, Strides::dense(4, 1)),
                b: b.view(0, Strides::dense(4, 1)),
                decay: Decay::NegExpALog(&negative),
                dt_bias: &bias,
                allow_neg_eigval,
            };
            let (out, state) = run_with_gates(&batch, path, raw);
            // The same through logs.
            let logs: Vec<f32> = (a.to_f32().iter().enumerate())
                .map(|(index, &a)| {
                    let x = f64::from(a) + 0.5;
                    (f64::from(negative[index % 4]) * if x > 20.0 { x } else { x.exp().ln_1p() }) as f32
                })
                .collect();
            let beta: Vec<f32> = b.to_f32().iter().map(|b| factor / (1.0 + (-b).exp())).collect();
            let log =
                Gates::Log { g: View::new(&logs, Strides::dense(4, 1)), beta: View::new(&beta, Strides::dense(4, 1)) };
            let (expected_out, expected_state) = run_with_gates(&batch, path, log);
            near(&out, &expected_out, 2e-5);
            near(&state, &expected_state, 2e-5);
        }
    }
}

/// Output and state of a batch of one sequence by other gates.
fn run_with_gates(batch: &Batch, path: BatchPath, gates: Gates<'_>) -> (Vec<f32>, Vec<f32>) {
    let (keys, values) = (batch.heads.num_k_heads, batch.heads.num_v_heads);
    let mut out = vec![f32::NAN; batch.tokens() * values * 128];
    let mut state = batch.states[0].clone();
    let call = Call::new(
        batch.heads,
        batch.tokens(),
        batch.q.view(0, Strides::dense(keys, 128)),
        batch.k.view(0, Strides::dense(keys, 128)),
        batch.v.view(0, Strides::dense(values, 128)),
        gates,
        ViewMut::new(&mut out, Strides::dense(values, 128)),
    )
    .scale(batch.scale)
    .state(State { data: &mut state, layout: StateLayout::key_major(&batch.heads) });
    path.run(call).unwrap_or_else(|e| panic!("{path:?}: {e}"));
    (out, state)
}

#[track_caller]
fn near(a: &[f32], b: &[f32], bar: f32) {
    let largest = b.iter().fold(0.0f32, |largest, b| largest.max(b.abs()));
    let worst = a.iter().zip(b).fold(0.0f32, |worst, (a, b)| worst.max((a - b).abs()));
    assert!(worst <= bar * largest, "{worst} of {largest}");
}

/// The log and the gate itself through their own variants (case 13); a gate of the other convention is named by the check that
/// is there for it, and computed all the same.
#[test]
fn conventions_of_gates_are_named() {
    let batch = Batch::new(heads(1, 2, HeadMap::Grouped), &[6], Dtype::F32, 8);
    let (g, beta) = (batch.g.to_f32(), batch.beta.to_f32());
    let linear: Vec<f32> = g.iter().map(|g| g.exp()).collect();
    let view = |data| View::new(data, Strides::dense(2, 1));
    for path in BatchPath::all() {
        let expected = run_with_gates(&batch, path, Gates::Log { g: view(&g), beta: view(&beta) });
        let actual = run_with_gates(&batch, path, Gates::Linear { decay: view(&linear), beta: view(&beta) });
        near(&actual.0, &expected.0, 2e-5);
        near(&actual.1, &expected.1, 2e-5);
    }
    // A linear gate of zero forgets, as a log of -inf does.
    let (zeros, minus_infinity) = (vec![0.0f32; g.len()], vec![f32::NEG_INFINITY; g.len()]);
    for path in BatchPath::all() {
        let forgotten = run_with_gates(&batch, path, Gates::Linear { decay: view(&zeros), beta: view(&beta) });
        let expected = run_with_gates(&batch, path, Gates::Log { g: view(&minus_infinity), beta: view(&beta) });
        assert_eq!(forgotten, expected, "{path:?}");
    }

    let growing = Batch { g: Numbers::F32(g.iter().map(|g| -5.0 * g).collect()), ..batch.clone() };
    let mut out = growing.poisoned_out();
    let error = growing.call(&mut out).check_gates().unwrap_err();
    assert!(matches!(error, Error::Gate { token: 0, head: 0, value, .. } if value > 0.0), "{error}");
    assert!(error.to_string().contains("log of the forget gate"), "{error}");
    batch.call(&mut out).check_gates().unwrap();
    for path in BatchPath::all() {
        let outputs = growing.run(path).unwrap();
        growing.agrees(&outputs, &bars::SEQUENTIAL).unwrap_or_else(|e| panic!("{path:?}: {e}"));
    }
}

/// One zero, or one, for all tokens and heads is what no gate and no write strength are (case 27).
#[test]
fn absent_gates_are_a_repeated_number() {
    let batch = Batch::new(heads(1, 2, HeadMap::Grouped), &[5], Dtype::F32, 9);
    let (zeros, ones) = (vec![0.0f32; 10], vec![1.0f32; 10]);
    for path in BatchPath::all() {
        let dense = |data| View::new(data, Strides::dense(2, 1));
        let expected = run_with_gates(&batch, path, Gates::Log { g: dense(&zeros[..]), beta: dense(&ones[..]) });
        let repeated = |data| View::new(data, Strides { token: 0, head: 0 });
        let gates = Gates::Log { g: repeated(&zeros[..1]), beta: repeated(&ones[..1]) };
        assert_eq!(run_with_gates(&batch, path, gates), expected, "{path:?}");
    }
}

/// q, k and v as columns of one row a token, one element off any alignment, gates as columns of another, in every type: the
/// dense bits (case 10).
#[test]
fn packed_views_one_element_off_have_the_dense_bits() {
    let heads = heads(2, 4, HeadMap::Grouped);
    let (tokens, row) = (3, 2 * 256 + 512 + 5);
    for dtype in Dtype::ALL {
        let batch = Batch::new(heads, &[tokens], dtype, 10);
        let mut packed = vec![f32::NAN; 1 + tokens * row];
        for (numbers, first, count) in [(&batch.q, 0, 256), (&batch.k, 256, 256), (&batch.v, 512, 512)] {
            for (token, values) in numbers.to_f32().chunks(count).enumerate() {
                packed[1 + token * row + first..][..count].copy_from_slice(values);
            }
        }
        let (g, beta) = (batch.g.to_f32(), batch.beta.to_f32());
        let gates: Vec<f32> =
            g.chunks(4).zip(beta.chunks(4)).flat_map(|(g, beta)| g.iter().chain(beta).copied()).collect();
        let (packed, gates) = (Numbers::new(&packed, dtype), Numbers::new(&gates, dtype));
        let strides = Strides { token: row, head: 128 };
        let scalars = Strides { token: 8, head: 1 };
        for path in BatchPath::all() {
            let expected = batch.run(path).unwrap().remove(0);
            let (mut out, mut state) = (batch.poisoned_out(), batch.states[0].clone());
            let call = Call::new(
                heads,
                tokens,
                packed.view(1, strides),
                packed.view(257, strides),
                packed.view(513, strides),
                Gates::Log { g: gates.view(0, scalars), beta: gates.view(4, scalars) },
                out.view_mut(Strides::dense(4, 128)),
            )
            .state(State { data: &mut state, layout: StateLayout::key_major(&heads) });
            path.run(call).unwrap_or_else(|e| panic!("{path:?}, {dtype}: {e}"));
            assert!(out.to_f32() == expected.out && state == expected.state, "{path:?}, {dtype}");
        }
    }
}
