//! What the checks say of any shapes and strides, against arithmetic that cannot overflow (case 11(c)); and the checks on
//! device pointers, which need no device.
#![forbid(unsafe_code)]
use host::cuda;
use host::{Call, Dtype, Error, Gates, HeadMap, Heads, State, StateLayout, Strides, View, ViewMut};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use tests::heads;

/// The most elements that a slice of f32 can have.
const MOST_ELEMENTS: u128 = (isize::MAX / 4) as u128;

/// Elements from the first to the last of `tokens` x `count` rows, in 128 bits.
fn extent(tokens: usize, count: usize, dim: usize, strides: Strides) -> u128 {
    if tokens == 0 {
        return 0;
    }
    (tokens as u128 - 1) * strides.token as u128 + (count as u128 - 1) * strides.head as u128 + dim as u128
}

/// Whether two rows share an element, row by row.
fn overlap(tokens: usize, count: usize, strides: Strides) -> bool {
    let mut starts: Vec<u128> = (0..tokens as u128)
        .flat_map(|token| (0..count as u128).map(move |head| (token, head)))
        .map(|(token, head)| token * strides.token as u128 + head * strides.head as u128)
        .collect();
    starts.sort_unstable();
    starts.windows(2).any(|pair| pair[1] - pair[0] < 128)
}

/// One problem: its heads, tokens, strides of q, k, v, g, beta and out, and elements behind each.
#[derive(Clone, Debug)]
struct Problem {
    heads: Heads,
    tokens: usize,
    strides: [Strides; 6],
    state: StateLayout,
}

const NAMES: [&str; 6] = ["q", "k", "v", "g", "beta", "out"];

impl Problem {
    fn counts(&self) -> [(usize, usize); 6] {
        let (keys, values) = (self.heads.num_k_heads, self.heads.num_v_heads);
        [(keys, 128), (keys, 128), (values, 128), (values, 1), (values, 1), (values, 128)]
    }

    /// The first argument that does not fit `length` elements a tensor, in the order of the checks.
    fn first_misfit(&self, length: usize, state_length: usize) -> Option<&'static str> {
        if self.tokens > u32::MAX as usize {
            return Some("tokens");
        }
        for ((name, strides), (count, dim)) in NAMES.into_iter().zip(self.strides).zip(self.counts()) {
            if extent(self.tokens, count, dim, strides) > length as u128 {
                return Some(name);
            }
        }
        let state = Strides { token: self.state.row, head: self.state.head };
        (extent(128, self.heads.num_v_heads, 128, state) > state_length as u128).then_some("state")
    }

    fn validate(&self, length: usize, state_length: usize) -> host::Result<()> {
        let data = vec![0.0; length];
        let (mut out, mut state) = (vec![0.0; length], vec![0.0; state_length]);
        let [q, k, v, g, beta, out_strides] = self.strides;
        let view = |strides| View::new(&data, strides);
        let out = ViewMut::new(&mut out, out_strides);
        let gates = Gates::Log { g: view(g), beta: view(beta) };
        Call::new(self.heads, self.tokens, view(q), view(k), view(v), gates, out)
            .state(State { data: &mut state, layout: self.state })
            .validate()
    }
}

/// Small strides, large ones, and those around every limit.
fn any_stride() -> impl Strategy<Value = usize> {
    prop_oneof![
        4 => 0..700_usize,
        1 => any::<usize>(),
        1 => (0..64_u32, 0..9_usize).prop_map(|(bit, off)| (1_usize << bit).wrapping_add(off).wrapping_sub(4)),
    ]
}

fn any_problem() -> impl Strategy<Value = Problem> {
    let counts = (1..4_usize, 1..5_usize, prop_oneof![Just(HeadMap::Grouped), Just(HeadMap::Tiled)]);
    let tokens = prop_oneof![
        6 => 0..6_usize,
        1 => any::<usize>(),
        1 => (0..64_u32, 0..9_usize).prop_map(|(bit, off)| (1_usize << bit).wrapping_add(off).wrapping_sub(4)),
    ];
    let strides = || (any_stride(), any_stride()).prop_map(|(token, head)| Strides { token, head });
    let state = (any_stride(), any_stride()).prop_map(move |(head, row)| StateLayout {
        head,
        row,
        ..StateLayout::key_major(&heads(1, 1, HeadMap::Grouped))
    });
    (counts, tokens, [strides(), strides(), strides(), strides(), strides(), strides()], state).prop_map(
        |((keys, ratio, map), tokens, strides, state)| Problem {
            heads: heads(keys, keys * ratio, map),
            tokens,
            strides,
            state,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 2000,
        rng_seed: RngSeed::Fixed(2),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// What is accepted fits and overlaps nowhere; what does not fit is refused by the name of the first that does not.
    #[test]
    fn slices_are_accepted_if_they_fit(problem in any_problem(), length in 0..4000_usize, state_length in 0..90_000_usize) {
        let misfit = problem.first_misfit(length, state_length);
        match problem.validate(length, state_length) {
            Ok(()) => {
                prop_assert_eq!(misfit, None);
                prop_assert!(!overlap(problem.tokens, problem.heads.num_v_heads, problem.strides[5]));
                let state = Strides { token: problem.state.row, head: problem.state.head };
                prop_assert!(!overlap(128, problem.heads.num_v_heads, state));
            }
            Err(Error::Shape { argument, expected, .. }) if expected.contains("overlap") => {
                prop_assert!(argument == "out" || (argument == "state" && misfit.is_none()));
            }
            Err(Error::Shape { argument, .. }) => prop_assert_eq!(Some(argument), misfit),
            Err(other) => return Err(TestCaseError::fail(other.to_string())),
        }
    }

    /// On the device no length is known: what no address space holds is refused, everything else is the caller's word.
    #[test]
    fn device_extents_are_checked_in_64_bits(problem in any_problem(), pointer in 1..u64::MAX / 4) {
        let pointer = pointer * 4;
        let [q, k, v, g, beta, out] = problem.strides.map(|strides| cuda::View::new(pointer, Dtype::F32, strides));
        let call = cuda::Call::new(problem.heads, problem.tokens, q, k, v, cuda::Gates::Log { g, beta }, out);
        let fits = |index: usize| {
            let (count, dim) = problem.counts()[index];
            let elements = extent(problem.tokens, count, dim, problem.strides[index]);
            elements <= MOST_ELEMENTS && u128::from(pointer) + 4 * elements < 1 << 64
        };
        let fit = problem.tokens <= u32::MAX as usize && (0..6).all(fits);
        match call.validate() {
            Ok(()) => prop_assert!(fit),
            Err(Error::Shape { argument: "out", expected, .. }) if expected.contains("overlap") => {}
            Err(Error::Shape { .. }) => prop_assert!(!fit),
            Err(other) => return Err(TestCaseError::fail(other.to_string())),
        }
    }
}

/// Layouts that engines use are accepted: rows inside rows, in either order, with padding.
#[test]
fn nested_rows_are_accepted() {
    let heads = heads(2, 6, HeadMap::Grouped);
    let tokens = 9;
    for (token, head) in [(6 * 128, 128), (6 * 130 + 7, 130), (128, 9 * 128), (131, 9 * 131 + 1), (5000, 128)] {
        let out = Strides { token, head };
        let dense = Strides::dense(6, 128);
        let problem = Problem {
            heads,
            tokens,
            strides: [dense, dense, dense, Strides::dense(6, 1), Strides::dense(6, 1), out],
            state: StateLayout::key_rows(&heads),
        };
        let length = extent(tokens, 6, 128, out).max(extent(tokens, 6, 128, dense)) as usize;
        problem.validate(length, 6 * 128 * 128).unwrap();
    }
}

/// A device call whose tensors are all at `pointer`, but for one.
fn device_call(name: &str, pointer: u64) -> cuda::Call<'static> {
    let heads = heads(2, 4, HeadMap::Grouped);
    let view = |this: &str, count: usize, dim: usize| {
        cuda::View::new(if this == name { pointer } else { 1 << 20 }, Dtype::F32, Strides::dense(count, dim))
    };
    let state =
        |this: &str| cuda::State::new(if this == name { pointer } else { 1 << 20 }, StateLayout::key_major(&heads), 1);
    cuda::Call::new(
        heads,
        3,
        view("q", 2, 128),
        view("k", 2, 128),
        view("v", 4, 128),
        cuda::Gates::Log { g: view("g", 4, 1), beta: view("beta", 4, 1) },
        view("out", 4, 128),
    )
    .initial_state(state("initial_state"))
    .final_state(state("final_state"))
}

/// Null, misaligned and wrapping pointers, each argument in turn.
#[test]
fn device_pointers_are_checked_by_name() {
    for name in ["q", "k", "v", "g", "beta", "out", "initial_state", "final_state"] {
        device_call(name, 1 << 30).validate().unwrap();
        let error = device_call(name, 0).validate().unwrap_err();
        assert!(matches!(error, Error::Null { argument } if argument == name), "{error}");
        assert!(error.to_string().contains(name), "{error}");
        for odd in [1, 2, 3] {
            let error = device_call(name, (1 << 30) + odd).validate().unwrap_err();
            assert!(
                matches!(error, Error::Misaligned { argument, required: 4, address }
                    if argument == name && address == (1 << 30) + odd),
                "{error}"
            );
        }
        let error = device_call(name, u64::MAX - 3).validate().unwrap_err();
        assert!(matches!(error, Error::Shape { argument, .. } if argument == name), "{error}");
    }
}

/// Without tokens there is nothing at the pointers of a token, so that they may be null; the state is still looked at.
#[test]
fn without_tokens_only_the_state_is_looked_at() {
    let heads = heads(2, 4, HeadMap::Grouped);
    let null = cuda::View::new(0, Dtype::F32, Strides::dense(4, 128));
    let call = cuda::Call::new(heads, 0, null, null, null, cuda::Gates::Log { g: null, beta: null }, null);
    let state = |pointer| cuda::State::new(pointer, StateLayout::key_major(&heads), 1);
    call.validate().unwrap();
    call.state(state(1 << 20)).validate().unwrap();
    assert!(matches!(call.state(state(0)).validate(), Err(Error::Null { argument: "initial_state" })));
}
