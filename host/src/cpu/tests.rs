//! The backend against the definition in float64, and the promises of its front page.
#![forbid(unsafe_code)]
use super::{Path, run, run_on};
use crate::call::{Call, Gates, State, View, ViewMut, default_scale};
use crate::error::Error;
use crate::heads::{HEAD_DIM, HeadMap, Heads};
use crate::layout::{StateLayout, Strides};

/// Seeded inputs in packed rows `[q | k | v]`, with a state `[HV][K][V]`.
#[derive(Clone)]
struct Problem {
    heads: Heads,
    tokens: usize,
    qkv: Vec<f32>,
    g: Vec<f32>,
    beta: Vec<f32>,
    state: Vec<f32>,
}

impl Problem {
    fn new(num_k_heads: usize, num_v_heads: usize, map: HeadMap, tokens: usize) -> Self {
        let heads = Heads::new(num_k_heads, num_v_heads, map).unwrap();
        let mut numbers = Numbers(num_v_heads as u64 * 1000 + tokens as u64);
        let mut list = |count: usize, low: f32, high: f32| -> Vec<f32> {
            (0..count).map(|_| low + (high - low) * numbers.next()).collect()
        };
        let width = (2 * num_k_heads + num_v_heads) * HEAD_DIM;
        let mut qkv = list(tokens * width, -1.0, 1.0);
        for row in qkv.chunks_mut(width) {
            row[..2 * num_k_heads * HEAD_DIM].chunks_mut(HEAD_DIM).for_each(normalise);
        }
        Self {
            heads,
            tokens,
            qkv,
            g: list(tokens * num_v_heads, -0.5, 0.0),
            beta: list(tokens * num_v_heads, 0.0, 1.0),
            state: list(num_v_heads * HEAD_DIM * HEAD_DIM, -1.0, 1.0),
        }
    }

    fn width(&self) -> usize {
        (2 * self.heads.num_k_heads + self.heads.num_v_heads) * HEAD_DIM
    }

    /// Offsets of q, k and v in a packed row.
    fn offsets(&self) -> [usize; 3] {
        [0, 1, 2].map(|index| index * self.heads.num_k_heads * HEAD_DIM)
    }

    /// Outputs `[token][HV][V]` of tokens `from` to `to`; the state is read from `state` and written back if there is one.
    fn run_tokens(&self, from: usize, to: usize, state: Option<State<'_>>) -> Vec<f32> {
        self.run_tokens_on(pulp::Arch::new(), from, to, state)
    }

    fn run_tokens_on(&self, arch: pulp::Arch, from: usize, to: usize, state: Option<State<'_>>) -> Vec<f32> {
        let value_heads = self.heads.num_v_heads;
        let mut out = vec![f32::NAN; (to - from) * value_heads * HEAD_DIM];
        let rows = Strides { token: self.width(), head: HEAD_DIM };
        let [q, k, v] = self.offsets().map(|offset| {
            let first = from * self.width() + offset;
            View::new(self.qkv.get(first..).unwrap_or_default(), rows)
        });
        let scalars = Strides::dense(value_heads, 1);
        let gates = Gates::Log {
            g: View::new(&self.g[from * value_heads..], scalars),
            beta: View::new(&self.beta[from * value_heads..], scalars),
        };
        let out_view = ViewMut::new(&mut out, Strides::dense(value_heads, HEAD_DIM));
        let mut call = Call::new(self.heads, to - from, q, k, v, gates, out_view);
        if let Some(state) = state {
            call = call.state(state);
        }
        run_on(call, Path::Recurrent, arch).unwrap();
        out
    }

    /// Outputs, and the state after the last token.
    fn run(&self) -> (Vec<f32>, Vec<f32>) {
        let mut state = self.state.clone();
        let layout = StateLayout::key_major(&self.heads);
        let out = self.run_tokens(0, self.tokens, Some(State { data: &mut state, layout }));
        (out, state)
    }

    /// The definition, from `state`, in float64.
    fn expected(&self, state: &[f32]) -> (Vec<f64>, Vec<f64>) {
        let value_heads = self.heads.num_v_heads;
        let mut states: Vec<f64> = state.iter().map(|&element| f64::from(element)).collect();
        let mut out = Vec::with_capacity(self.tokens * value_heads * HEAD_DIM);
        let scale = f64::from(default_scale(&self.heads));
        for token in 0..self.tokens {
            let packed = &self.qkv[token * self.width()..];
            let row = |offset: usize, head: usize| &packed[offset + head * HEAD_DIM..][..HEAD_DIM];
            for head in 0..value_heads {
                let k_head = self.heads.k_head(head);
                let [q, k, v] = self.offsets();
                let (q, k, v) = (row(q, k_head), row(k, k_head), row(v, head));
                let decay = f64::from(self.g[token * value_heads + head]).exp();
                let beta = f64::from(self.beta[token * value_heads + head]);
                let s = &mut states[head * HEAD_DIM * HEAD_DIM..][..HEAD_DIM * HEAD_DIM];
                s.iter_mut().for_each(|element| *element *= decay);
                for column in 0..HEAD_DIM {
                    let product = |s: &[f64], with: &[f32]| -> f64 {
                        (0..HEAD_DIM).map(|row| s[row * HEAD_DIM + column] * f64::from(with[row])).sum()
                    };
                    let d = beta * (f64::from(v[column]) - product(s, k));
                    for (row, &k) in k.iter().enumerate() {
                        s[row * HEAD_DIM + column] += f64::from(k) * d;
                    }
                    out.push(scale * product(s, q));
                }
            }
        }
        (out, states)
    }
}

struct Numbers(u64);

impl Numbers {
    /// From 0 up to 1.
    fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as f32 / (1 << 24) as f32
    }
}

fn normalise(row: &mut [f32]) {
    let length = row.iter().map(|element| element * element).sum::<f32>().sqrt();
    row.iter_mut().for_each(|element| *element /= length);
}

/// Largest difference over largest value; infinite where either is not finite.
fn relative_error(actual: &[f32], expected: &[f64]) -> f64 {
    assert_eq!(actual.len(), expected.len());
    let mut largest = (0.0_f64, 0.0_f64);
    for (&actual, &expected) in actual.iter().zip(expected) {
        let difference = (f64::from(actual) - expected).abs();
        if !difference.is_finite() {
            return f64::INFINITY;
        }
        largest = (largest.0.max(difference), largest.1.max(expected.abs()));
    }
    if largest.0 == 0.0 { 0.0 } else { largest.0 / largest.1 }
}

fn bits(list: &[f32]) -> Vec<u32> {
    list.iter().map(|element| element.to_bits()).collect()
}

#[test]
fn agrees_with_the_definition() {
    for (num_k_heads, num_v_heads, map) in [
        (1, 1, HeadMap::Grouped),
        (2, 6, HeadMap::Tiled),
        (2, 6, HeadMap::Grouped),
        (3, 3, HeadMap::Tiled),
        (2, 10, HeadMap::Grouped),
    ] {
        for tokens in [0, 1, 2, 31, 33, 130] {
            let problem = Problem::new(num_k_heads, num_v_heads, map, tokens);
            let (out, state) = problem.run();
            let (expected_out, expected_state) = problem.expected(&problem.state);
            let fresh_out = problem.run_tokens(0, tokens, None);
            let (expected_fresh_out, _) = problem.expected(&vec![0.0; problem.state.len()]);
            for (what, actual, expected) in [
                ("output", &out, &expected_out),
                ("state", &state, &expected_state),
                ("output from zero", &fresh_out, &expected_fresh_out),
            ] {
                let error = relative_error(actual, expected);
                assert!(error <= 1e-6, "{what}, {tokens} tokens, {:?}: {error:e}", problem.heads);
            }
        }
    }
}

/// Those with fused multiply-add have the same bits, too.
#[cfg(target_arch = "x86_64")]
#[test]
fn every_vector_width_agrees_with_the_definition() {
    use pulp::Arch;
    let widths = [Some(Arch::Scalar), pulp::x86::V3::try_new().map(Arch::V3), pulp::x86::V4::try_new().map(Arch::V4)];
    for tokens in [1, 2, 70] {
        let problem = Problem::new(1, 3, HeadMap::Grouped, tokens);
        let (expected, expected_state) = problem.expected(&problem.state);
        let mut fused = Vec::new();
        for arch in widths.into_iter().flatten() {
            let mut state = problem.state.clone();
            let layout = StateLayout::key_major(&problem.heads);
            let out = problem.run_tokens_on(arch, 0, tokens, Some(State { data: &mut state, layout }));
            assert!(relative_error(&out, &expected) <= 1e-6, "{arch:?}");
            assert!(relative_error(&state, &expected_state) <= 1e-6, "{arch:?}");
            if !matches!(arch, Arch::Scalar) {
                fused.push((bits(&out), bits(&state)));
            }
        }
        assert!(fused.windows(2).all(|pair| pair[0] == pair[1]));
    }
}

#[test]
fn layouts_do_not_change_a_bit() {
    let problem = Problem::new(2, 6, HeadMap::Grouped, 37);
    let Problem { heads, tokens, .. } = problem;
    let (expected_out, expected_state) = problem.run();
    // Head-major copies, states with key rows outermost, and room between the output's rows.
    let head_major = |first: usize, count: usize| -> Vec<f32> {
        let rows = (0..count * tokens).map(|row| (row / tokens, row % tokens));
        rows.flat_map(|(head, token)| &problem.qkv[token * problem.width() + first + head * HEAD_DIM..][..HEAD_DIM])
            .copied()
            .collect()
    };
    let [q, k, v] = problem.offsets();
    let (q, k, v) = (head_major(q, 2), head_major(k, 2), head_major(v, 6));
    let strides = Strides { token: HEAD_DIM, head: tokens * HEAD_DIM };
    let scalars = Strides::dense(6, 1);
    let mut state: Vec<f32> =
        (0..problem.state.len()).map(|index| problem.state[key_rows_to_key_major(index, 6)]).collect();
    let out_strides = Strides { token: HEAD_DIM + 3, head: tokens * (HEAD_DIM + 3) + 5 };
    let mut out = vec![f32::NAN; 6 * out_strides.head];
    let call = Call::new(
        heads,
        tokens,
        View::new(&q, strides),
        View::new(&k, strides),
        View::new(&v, strides),
        Gates::Log { g: View::new(&problem.g, scalars), beta: View::new(&problem.beta, scalars) },
        ViewMut::new(&mut out, out_strides),
    );
    run(call.state(State { data: &mut state, layout: StateLayout::key_rows(&heads) })).unwrap();
    for (index, &element) in state.iter().enumerate() {
        assert_eq!(element.to_bits(), expected_state[key_rows_to_key_major(index, 6)].to_bits(), "state {index}");
    }
    for (index, expected) in expected_out.chunks(HEAD_DIM).enumerate() {
        let first = index / 6 * out_strides.token + index % 6 * out_strides.head;
        assert_eq!(bits(&out[first..first + HEAD_DIM]), bits(expected), "output row {index}");
    }
    let written = out.iter().filter(|element| !element.is_nan()).count();
    assert_eq!(written, expected_out.len(), "something between the rows was written");
}

/// Where the element at `index` of `[K][HV][V]` lies in `[HV][K][V]`.
fn key_rows_to_key_major(index: usize, value_heads: usize) -> usize {
    let (row, head, column) = (index / HEAD_DIM / value_heads, index / HEAD_DIM % value_heads, index % HEAD_DIM);
    (head * HEAD_DIM + row) * HEAD_DIM + column
}

#[test]
fn a_gate_of_minus_infinity_forgets() {
    let mut problem = Problem::new(2, 6, HeadMap::Tiled, 40);
    problem.g[33 * 6..34 * 6].fill(f32::NEG_INFINITY);
    let (out, state) = problem.run();
    let (expected_out, expected_state) = problem.expected(&problem.state);
    assert!(relative_error(&out, &expected_out) <= 1e-6);
    assert!(relative_error(&state, &expected_state) <= 1e-6);
    let mut fresh = vec![0.0; state.len()];
    let layout = StateLayout::key_major(&problem.heads);
    let fresh_out = problem.run_tokens(33, 40, Some(State { data: &mut fresh, layout }));
    assert_eq!(out[33 * 6 * HEAD_DIM..], fresh_out);
    assert_eq!(state, fresh);
}

#[test]
fn two_calls_give_the_bits_of_one() {
    let problem = Problem::new(2, 6, HeadMap::Grouped, 70);
    let (out, state) = problem.run();
    for at in [0, 1, 31, 32, 33, 69, 70] {
        let mut handed_on = problem.state.clone();
        let layout = StateLayout::key_major(&problem.heads);
        let mut outs = problem.run_tokens(0, at, Some(State { data: &mut handed_on, layout }));
        outs.extend(problem.run_tokens(at, 70, Some(State { data: &mut handed_on, layout })));
        assert_eq!(bits(&outs), bits(&out), "cut at {at}");
        assert_eq!(bits(&handed_on), bits(&state), "cut at {at}");
    }
}

#[test]
fn any_number_of_threads_gives_the_same_bits() {
    for (num_v_heads, tokens) in [(1, 50), (2, 1), (6, 50)] {
        let problem = Problem::new(1, num_v_heads, HeadMap::Grouped, tokens);
        let [one, three, eight] = [1, 3, 8].map(|threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let (out, state) = pool.install(|| problem.run());
            (bits(&out), bits(&state))
        });
        assert!(one == three && one == eight);
    }
}

#[test]
fn no_tokens_leave_every_bit_of_the_state() {
    let mut problem = Problem::new(1, 1, HeadMap::Grouped, 0);
    problem.state[..3].copy_from_slice(&[f32::NAN, -0.0, f32::INFINITY]);
    let (out, state) = problem.run();
    assert!(out.is_empty());
    assert_eq!(bits(&state), bits(&problem.state));
}

#[test]
fn refusals_name_the_argument_and_write_nothing() {
    let heads = Heads::new(1, 2, HeadMap::Grouped).unwrap();
    let (dense, scalars) = (Strides::dense(2, HEAD_DIM), Strides::dense(2, 1));
    let list = vec![1.0; 3 * 2 * HEAD_DIM];
    let refused = |heads: Heads, k_length: usize, out_strides: Strides| -> Error {
        let mut out = vec![7.0; list.len()];
        let mut state = vec![7.0; 2 * HEAD_DIM * HEAD_DIM];
        let rows = View::new(&list, dense);
        let gates = Gates::Log { g: View::new(&list, scalars), beta: View::new(&list, scalars) };
        let short = View::new(&list[..k_length], dense);
        let call = Call::new(heads, 3, rows, short, rows, gates, ViewMut::new(&mut out, out_strides));
        let error = run(call.state(State { data: &mut state, layout: StateLayout::key_major(&heads) })).unwrap_err();
        assert!(out.iter().chain(&state).all(|&element| element == 7.0));
        error
    };
    let full = list.len();
    assert!(matches!(refused(heads, HEAD_DIM, dense), Error::Shape { argument: "k", .. }));
    let overlapping = Strides { token: HEAD_DIM, head: HEAD_DIM };
    assert!(matches!(refused(heads, full, overlapping), Error::Shape { argument: "out", .. }));
    assert!(matches!(refused(heads.with_dims(64, 64), full, dense), Error::HeadDim { got: 64, .. }));
}
