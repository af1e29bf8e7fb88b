//! Sequences: none, empty, cut anywhere, beside others.
use super::batch::Batch;
use super::numbers::assert_agrees;
use super::states::{Indices, States, Target, bits, pools};
use host::{HEAD_DIM, HeadMap, Heads};
use tests::heads;

fn two_heads() -> Heads {
    heads(1, 2, HeadMap::Grouped)
}

/// Empty sequences keep their states bit for bit, whatever their place (case 17).
#[test]
fn empty_sequences() {
    let lengths = [0, 5, 0, 0, 64, 0];
    let mut before = Batch::seeded(two_heads(), &lengths, 2);
    // Bits that no arithmetic would keep.
    let odd = [f32::from_bits(0xffff_ffff), -0.0, f32::from_bits(0x7f80_0001), f32::INFINITY, f32::from_bits(1)];
    for empty in [0, 2, 3, 5] {
        let state: Vec<f32> = odd.into_iter().cycle().take(2 * HEAD_DIM * HEAD_DIM).collect();
        before.initial.as_mut().unwrap().set_slot(&before.heads, empty, &state);
    }
    let mut batch = before.clone();
    let out = batch.run(1);
    assert_eq!(out.len(), 69 * 2 * HEAD_DIM);
    let (initial, after) = (before.initial.clone().unwrap(), batch.initial.clone().unwrap());
    for (sequence, tokens) in lengths.into_iter().enumerate() {
        if tokens == 0 {
            assert_eq!(bits(&after.slot(&before.heads, sequence)), bits(&initial.slot(&before.heads, sequence)));
        } else {
            assert_alone(&before, sequence, &out, &after.slot(&before.heads, sequence));
        }
    }
    // From nothing, to a pool.
    let mut batch = Batch { initial: None, ..before.clone() };
    batch.last = Target::Pool(States::new(&before.heads, pools(&before.heads, 6)[0].1, f32::NAN));
    batch.run(1);
    let Target::Pool(last) = batch.last else { unreachable!() };
    for empty in [0, 2, 3, 5] {
        assert!(last.slot(&before.heads, empty).iter().all(|s| s.to_bits() == 0));
    }
    assert!([1, 4].iter().all(|&slot| last.slot(&before.heads, slot).iter().all(|s| s.is_finite())));
}

#[test]
fn nothing_but_empty_sequences() {
    for (lengths, packed) in [(&[][..], true), (&[0][..], true), (&[0, 0][..], false), (&[][..], false)] {
        let mut batch = Batch::seeded(two_heads(), lengths, 2);
        batch.form.packed = packed;
        let before = batch.initial.clone().unwrap();
        assert!(batch.run(1).is_empty());
        assert_eq!(bits(&batch.initial.unwrap().data), bits(&before.data), "{lengths:?}");
    }
}

/// That a sequence of a batch has the bits it has alone.
#[track_caller]
fn assert_alone(before: &Batch, sequence: usize, out: &[f32], state: &[f32]) {
    let row = before.heads.num_v_heads * HEAD_DIM;
    let tokens = before.tokens(sequence);
    let mut alone = part(before, sequence, tokens.clone());
    let expected = alone.run(0);
    assert_eq!(bits(&out[tokens.start * row..tokens.end * row]), bits(&expected), "sequence {sequence}");
    assert_eq!(bits(state), bits(&alone.initial.unwrap().slot(&before.heads, 0)), "state of {sequence}");
}

/// Some of a batch's tokens as a batch of one sequence, from the state of `slot`.
fn part(batch: &Batch, slot: usize, tokens: std::ops::Range<usize>) -> Batch {
    let rows = |values: &[f32], row: usize| values[tokens.start * row..tokens.end * row].to_vec();
    let (keys, values) = (batch.heads.num_k_heads, batch.heads.num_v_heads);
    let mut initial = States::new(&batch.heads, pools(&batch.heads, 1)[0].1, 0.0);
    initial.set_slot(&batch.heads, 0, &batch.initial.as_ref().unwrap().slot(&batch.heads, slot));
    Batch {
        lengths: vec![tokens.len()],
        q: rows(&batch.q, keys * HEAD_DIM),
        k: rows(&batch.k, keys * HEAD_DIM),
        v: rows(&batch.v, values * HEAD_DIM),
        g: rows(&batch.g, values),
        beta: rows(&batch.beta, values),
        initial: Some(initial),
        ..batch.clone()
    }
}

/// A sequence has its bits whatever its place and its neighbours (case 35).
#[test]
fn neighbours_change_no_bit() {
    for packed in [true, false] {
        let mut before = Batch::seeded(two_heads(), &[3, 3, 3, 3], 3);
        before.form.packed = packed;
        // A neighbour whose every number is infinite or none.
        let tokens = before.tokens(2);
        before.v[tokens.start * 2 * HEAD_DIM..tokens.end * 2 * HEAD_DIM].fill(f32::NAN);
        before.q[tokens.start * HEAD_DIM..tokens.end * HEAD_DIM].fill(f32::INFINITY);
        let mut batch = before.clone();
        let out = batch.run(2);
        for sequence in [0, 1, 3] {
            let state = batch.initial.as_ref().unwrap().slot(&before.heads, sequence);
            assert_alone(&before, sequence, &out, &state);
        }
    }
}

/// One call is several, cut anywhere (case 9), and its checkpoints are their final states (case 54).
#[test]
fn checkpoints_are_the_final_states_of_shorter_runs() {
    const TOKENS: usize = 6;
    let before = Batch::seeded(two_heads(), &[TOKENS, TOKENS], 9);
    let heads = before.heads;
    let table: Vec<i32> = vec![3, 1, -1, 0, 7, 2, 4, 99, 5, 6, 8, -1];
    let layout = pools(&heads, 9)[1].1;
    let mut batch = Batch {
        checkpoint: Target::Pool(States::new(&heads, layout, f32::NAN)),
        checkpoint_indices: Some(Indices::I32(table.clone())),
        checkpoint_tokens: TOKENS,
        ..before.clone()
    };
    let out = batch.run(1);
    let Target::Pool(checkpoints) = &batch.checkpoint else { unreachable!() };
    for sequence in 0..2 {
        let first = before.tokens(sequence).start;
        // Token by token, each from the state before it.
        let mut step = part(&before, sequence, first..first);
        for token in 0..TOKENS {
            let state = step.initial.clone();
            step = Batch { initial: state, ..part(&before, sequence, first + token..first + token + 1) };
            let o = step.run(0);
            let row = 2 * HEAD_DIM;
            assert_eq!(bits(&o), bits(&out[(first + token) * row..][..row]), "token {token}");
            let expected = step.initial.as_ref().unwrap().slot(&heads, 0);
            let slot = table[sequence * TOKENS + token];
            if (0..9).contains(&slot) {
                assert_eq!(bits(&checkpoints.slot(&heads, slot as usize)), bits(&expected), "token {token}");
            }
        }
        let last = step.initial.unwrap().slot(&heads, 0);
        assert_eq!(bits(&batch.initial.as_ref().unwrap().slot(&heads, sequence)), bits(&last));
    }
    checkpoints.assert_untouched(&heads, &States::new(&heads, layout, f32::NAN), &[0, 1, 2, 3, 4, 5, 6, 7, 8]);
}

/// The state after token t of a sequence in slot s goes to lane t of the slot's group, and a pool of checkpoints may be that
/// of the initial states.
#[test]
fn lanes_of_slots() {
    let heads = two_heads();
    let mut before = Batch::seeded(heads, &[3, 2], 4);
    let mut pool = States::new(&heads, pools(&heads, 7)[0].1, f32::NAN);
    for (sequence, slot) in [(0, 1), (1, 4)] {
        pool.set_slot(&heads, slot, &before.initial.as_ref().unwrap().slot(&heads, sequence));
    }
    before.initial = Some(pool);
    before.last = Target::Nowhere;
    before.indices = Some(Indices::U32(vec![1, 4]));
    let mut batch = Batch { checkpoint: Target::Initial, checkpoint_lanes: 4, ..before.clone() };
    let out = batch.run(1);
    let after = batch.initial.as_ref().unwrap();
    // Slot 4's group is 4 to 7, of which the pool has not the last.
    for (sequence, slot, lanes) in [(0, 1, vec![0, 1, 2]), (1, 4, vec![4, 5])] {
        for (token, lane) in lanes.into_iter().enumerate() {
            let first = before.tokens(sequence).start;
            let mut shorter = part(&before, slot, first..first + token + 1);
            (shorter.indices, shorter.last) = (None, Target::Initial);
            let expected = shorter.run(0);
            let row = 2 * HEAD_DIM;
            assert_eq!(bits(&expected), bits(&out[first * row..][..(token + 1) * row]));
            assert_eq!(bits(&after.slot(&heads, lane)), bits(&shorter.initial.unwrap().slot(&heads, 0)), "lane {lane}");
        }
    }
    after.assert_untouched(&heads, before.initial.as_ref().unwrap(), &[0, 1, 2, 4, 5]);
    // Lanes past the pool, and tokens past the lanes, are not stored.
    let mut past = Batch { checkpoint_lanes: 6, ..batch };
    past.initial.clone_from(&before.initial);
    past.indices = Some(Indices::U32(vec![u32::MAX, 6]));
    let zero = past.run(1);
    assert!(zero[..3 * 2 * HEAD_DIM].iter().all(|&o| o == 0.0));
    past.initial.as_ref().unwrap().assert_untouched(&heads, before.initial.as_ref().unwrap(), &[6]);
}

/// As many tokens as anyone likes.
#[test]
fn a_longer_sequence() {
    let before = Batch::seeded(heads(1, 1, HeadMap::Grouped), &[103], 1);
    let mut batch = before.clone();
    let out = batch.run(2);
    assert_agrees(&before, &batch, &out, "103 tokens");
}
