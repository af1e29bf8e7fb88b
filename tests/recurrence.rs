//! The recurrence by cases whose results are known: by hand, exactly, or with one property that a mistake would break
//! (cases 3, 7, 8, 27, 49, 50).
#![forbid(unsafe_code)]
use approx::assert_abs_diff_eq;
use host::inputs::{Family, Inputs};
use host::{HeadMap, Heads};
use tests::{Output, bars, every_path_for, heads, holds_on_every_path, holds_within, on_every_path, run};

const DIM: usize = 128;

/// Inputs of zeros, with scale 1.
fn zeros(heads: Heads, tokens: usize) -> Inputs {
    let mut inputs = Inputs::seeded(heads, tokens, Family::Base, 1);
    for tensor in [&mut inputs.q, &mut inputs.k, &mut inputs.v, &mut inputs.g, &mut inputs.beta, &mut inputs.state] {
        tensor.fill(0.0);
    }
    Inputs { scale: 1.0, ..inputs }
}

/// Two rows and columns worked by hand, the other 126 zeros: decay, then the error, then the write (case 27). The first
/// token's corrections are 1/4 and 1/2; with the decay after the error they would be 0 and 1/2.
#[test]
fn three_tokens_by_hand() {
    let mut inputs = zeros(heads(1, 1, HeadMap::Grouped), 3);
    for (token, q) in [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]].iter().enumerate() {
        inputs.q[token * DIM..][..2].copy_from_slice(q);
        inputs.k[token * DIM] = 1.0;
        inputs.v[token * DIM..][..2].fill(1.0);
    }
    inputs.g.fill(-std::f32::consts::LN_2);
    inputs.beta.fill(0.5);
    (inputs.state[0], inputs.state[DIM + 1]) = (1.0, 1.0);
    let by_hand = [[3.0 / 4.0, 1.0 / 2.0], [0.0, 1.0 / 4.0], [43.0 / 64.0, 21.0 / 32.0 + 1.0 / 8.0]];
    for (path, output) in on_every_path(&inputs) {
        // The gate is ln(1/2) rounded to float32, and so are the results.
        for (row, by_hand) in output.out.chunks_exact(DIM).zip(by_hand) {
            assert_abs_diff_eq!(row[..2], by_hand[..], epsilon = 1e-6);
            assert!(row[2..].iter().all(|&o| o == 0.0), "{path:?}");
        }
        assert_abs_diff_eq!(output.state[..2], [43.0 / 64.0, 21.0 / 32.0], epsilon = 1e-6);
        assert_abs_diff_eq!(output.state[DIM..][..2], [0.0, 1.0 / 8.0], epsilon = 1e-6);
        let elsewhere = output.state.iter().enumerate().filter(|(index, _)| index / DIM > 1 || index % DIM > 1);
        assert!(elsewhere.into_iter().all(|(_, &s)| s == 0.0), "{path:?}");
    }
}

/// The key head that a value head reads, as in the case's own table.
fn key_head(heads: &Heads, value_head: usize) -> usize {
    match heads.map {
        HeadMap::Grouped => value_head * heads.num_k_heads / heads.num_v_heads,
        HeadMap::Tiled => value_head % heads.num_k_heads,
    }
}

/// Where a value head writes says which key it read (case 8): exactly.
#[test]
fn value_heads_write_at_the_key_of_their_key_head() {
    for map in [HeadMap::Grouped, HeadMap::Tiled] {
        for (num_k_heads, num_v_heads) in [(2, 6), (3, 3), (16, 48), (2, 10)] {
            let heads = heads(num_k_heads, num_v_heads, map);
            let mut inputs = zeros(heads, 5);
            inputs.beta.fill(1.0);
            for (row, key) in inputs.k.chunks_exact_mut(DIM).enumerate() {
                key[row % num_k_heads] = 1.0;
            }
            for (row, value) in inputs.v.chunks_exact_mut(DIM).enumerate() {
                value.fill((row % num_v_heads + 1) as f32);
            }
            for (path, output) in on_every_path(&inputs) {
                for (index, &s) in output.state.iter().enumerate() {
                    let (head, row) = (index / DIM / DIM, index / DIM % DIM);
                    let expected = if row == key_head(&heads, head) { (head + 1) as f32 } else { 0.0 };
                    assert_eq!(s, expected, "{path:?}, {heads:?}, head {head}, row {row}");
                }
            }
        }
    }
}

/// What a value head puts out says which query it read (case 8): exactly.
#[test]
fn value_heads_read_the_query_of_their_key_head() {
    for map in [HeadMap::Grouped, HeadMap::Tiled] {
        for (num_k_heads, num_v_heads) in [(2, 6), (3, 3), (16, 48), (2, 10)] {
            let heads = heads(num_k_heads, num_v_heads, map);
            let mut inputs = Inputs { scale: host::default_scale(&heads), ..zeros(heads, 2) };
            inputs.state.fill(1.0);
            for (row, query) in inputs.q.chunks_exact_mut(DIM).enumerate() {
                query[0] = (row % num_k_heads + 1) as f32;
            }
            for (path, output) in on_every_path(&inputs) {
                for (index, &o) in output.out.iter().enumerate() {
                    let head = index / DIM % num_v_heads;
                    assert_eq!(
                        o,
                        (key_head(&heads, head) + 1) as f32 * inputs.scale,
                        "{path:?}, {heads:?}, head {head}"
                    );
                }
            }
        }
    }
}

/// A state that is not symmetric: rows are keys, columns are values (case 7).
#[test]
fn state_rows_are_keys_and_columns_are_values() {
    let mut inputs = zeros(heads(1, 1, HeadMap::Grouped), 1);
    for (index, s) in inputs.state.iter_mut().enumerate() {
        *s = (index / DIM + 1000 * (index % DIM)) as f32;
    }
    inputs.q[3] = 1.0;
    for (path, output) in on_every_path(&inputs) {
        let expected: Vec<f32> = (0..DIM).map(|column| (3 + 1000 * column) as f32).collect();
        assert_eq!(output.out, expected, "{path:?}");
        assert_eq!(output.state, inputs.state, "{path:?}");
    }
}

/// All keys the same, and nearly so (case 3).
#[test]
fn repeated_keys_lose_nothing() {
    let inputs = Inputs::seeded(heads(2, 8, HeadMap::Grouped), 130, Family::Repeat, 3);
    holds_within("case 3", &inputs, &bars::SEQUENTIAL, &bars::REPEATED_KEYS);
    let inputs = Inputs::seeded(heads(1, 2, HeadMap::Grouped), 130, Family::Hard, 4);
    holds_within("nearly parallel keys", &inputs, &bars::SEQUENTIAL, &bars::REPEATED_KEYS);
}

/// Keys that nobody normalised: huge, finite, right; and where they overflow at last, no other head knows (case 49).
#[test]
fn unnormalised_keys_are_huge_and_right() {
    let heads = heads(2, 2, HeadMap::Grouped);
    let inputs = Inputs::seeded(heads, 16, Family::Unnormalised, 5);
    let outputs = holds_on_every_path("case 49, 16 tokens", &inputs, &bars::UNNORMALISED);
    let largest = outputs[0].1.state.iter().fold(0.0_f32, |largest, s| largest.max(s.abs()));
    assert!(largest > 1e4, "{largest:e}: the case is not what it is meant to be");

    let long = 130;
    let good = Inputs::seeded(heads, long, Family::Base, 6);
    let mut bad = good.clone();
    let unnormalised = Inputs::seeded(heads, long, Family::Unnormalised, 5);
    for token in 0..long {
        let key = token * 2 * DIM..(token * 2 + 1) * DIM;
        bad.k[key.clone()].copy_from_slice(&unnormalised.k[key]);
        bad.g[token * 2] = 0.0;
    }
    for path in every_path_for(&heads) {
        let (good, bad) = (run(path, &good), run(path, &bad));
        let second = |output: &Output| -> Vec<u32> {
            let rows = output.out.chunks_exact(DIM).skip(1).step_by(2).flatten();
            rows.chain(&output.state[DIM * DIM..]).map(|x| x.to_bits()).collect()
        };
        assert_eq!(second(&good), second(&bad), "{path:?}");
        assert!(!bad.state[..DIM * DIM].iter().all(|s| s.is_finite()), "{path:?}: the first head was to overflow");
    }
}

/// beta = 0: nothing is written, so that nothing depends on the values (case 50).
#[test]
fn beta_zero_writes_nothing() {
    let mut inputs = Inputs::seeded(heads(2, 4, HeadMap::Tiled), 20, Family::Base, 7);
    inputs.beta.fill(0.0);
    let outputs = holds_on_every_path("case 50, beta 0", &inputs, &bars::SEQUENTIAL);
    let other = Inputs { v: vec![-1e3; inputs.v.len()], ..inputs };
    for (path, output) in outputs {
        tests::same_bits(&other.heads, &output, &run(path, &other)).unwrap_or_else(|e| panic!("{path:?}: {e}"));
    }
}

/// beta = 1 with a key of one row and no decay: the row is the last value written there, exactly (case 50). Values are
/// whole numbers, so that no rounding is in the way.
#[test]
fn beta_one_overwrites() {
    let mut inputs = zeros(heads(1, 2, HeadMap::Grouped), 40);
    inputs.beta.fill(1.0);
    let row_of = |token: usize| token * 7 % 11;
    for (token, key) in inputs.k.chunks_exact_mut(DIM).enumerate() {
        key[row_of(token)] = 1.0;
    }
    inputs.v.iter_mut().enumerate().for_each(|(index, v)| *v = (index * 37 % 201) as f32 - 100.0);
    inputs.state.iter_mut().enumerate().for_each(|(index, s)| *s = (index % 50) as f32);
    for (path, output) in on_every_path(&inputs) {
        for (index, &s) in output.state.iter().enumerate() {
            let (head, row, column) = (index / DIM / DIM, index / DIM % DIM, index % DIM);
            let last = (0..40).rev().find(|&token| row_of(token) == row);
            let expected = last.map_or(inputs.state[index], |token| inputs.v[(token * 2 + head) * DIM + column]);
            assert_eq!(s, expected, "{path:?}, head {head}, row {row}, column {column}");
        }
    }
}

/// beta = 2 with keys of length 1 reflects: twice the same is nothing (case 50).
#[test]
fn beta_two_twice_is_nothing() {
    let mut inputs = Inputs::seeded(heads(2, 2, HeadMap::Grouped), 2, Family::Base, 8);
    inputs.g.fill(0.0);
    inputs.beta.fill(2.0);
    inputs.v.fill(0.0);
    let (first, second) = inputs.k.split_at_mut(2 * DIM);
    second.copy_from_slice(first);
    let largest = inputs.state.iter().fold(0.0_f32, |largest, s| largest.max(s.abs()));
    for (path, output) in on_every_path(&inputs) {
        for (s, before) in output.state.iter().zip(&inputs.state) {
            assert!((s - before).abs() <= 1e-6 * largest, "{path:?}: {s} was {before}");
        }
    }
}

/// beta = 1.9 over a thousand tokens stays in bounds (case 50).
#[test]
fn beta_near_two_stays_in_bounds() {
    let mut inputs = Inputs::seeded(heads(1, 1, HeadMap::Grouped), 1000, Family::Base, 9);
    inputs.beta.fill(1.9);
    holds_on_every_path("case 50, beta 1.9", &inputs, &bars::SEQUENTIAL);
    inputs.beta.fill(2.0);
    inputs.g.fill(0.0);
    inputs.v.fill(0.0);
    // A reflection keeps lengths: the state's columns neither grow nor shrink.
    let squares = |state: &[f32]| state.iter().map(|&s| f64::from(s) * f64::from(s)).sum::<f64>();
    let before = squares(&inputs.state);
    for (path, output) in on_every_path(&inputs) {
        let ratio = squares(&output.state) / before;
        assert!((ratio - 1.0).abs() < 1e-3, "{path:?}: {ratio}");
    }
}
