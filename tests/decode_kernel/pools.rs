//! Pools: orders of the state's axes, slots by tables, padding.
use super::batch::Batch;
use super::states::{Indices, States, Target, bits, pools};
use host::{HEAD_DIM, HeadMap, Heads};
use kernels_gpu::kernels::elements::{BF16, F16, F32};
use tests::heads;

fn two_heads() -> Heads {
    heads(1, 2, HeadMap::Grouped)
}

/// The states of `batch`'s sequences in a pool of other strides; whatever is no state is NaN.
fn moved(batch: &Batch, layout: kernels_gpu::kernels::slots::Pool, start: usize) -> States {
    let mut states = States::new(&batch.heads, layout, f32::NAN);
    states.start = start;
    states.data.resize(states.data.len() + start, f32::NAN);
    for slot in 0..batch.lengths.len() {
        states.set_slot(&batch.heads, slot, &batch.initial.as_ref().unwrap().slot(&batch.heads, slot));
    }
    states
}

/// Any order of axes, aligned or not, from any to any: the same bits, and nothing written beside them (cases 7, 10).
#[test]
fn every_order_of_axes_has_the_same_bits() {
    let batch = Batch::seeded(two_heads(), &[2, 1], 3);
    let heads = &batch.heads;
    let mut dense = batch.clone();
    let expected = dense.run(0);
    let all = || pools(heads, 2).into_iter().flat_map(|(name, pool)| [0, 1].map(|start| (name, pool, start)));
    for (name, from, start) in all() {
        let initial = moved(&batch, from, start);
        let mut in_place = Batch { initial: Some(initial.clone()), ..batch.clone() };
        assert_eq!(bits(&in_place.run(1)), bits(&expected), "{name} from {start}");
        let after = in_place.initial.unwrap();
        for slot in 0..2 {
            let state = dense.initial.as_ref().unwrap().slot(heads, slot);
            assert_eq!(bits(&after.slot(heads, slot)), bits(&state), "{name} from {start}");
        }
        after.assert_untouched(heads, &initial, &[0, 1]);
        let to = pools(heads, 2)[(start + 1) % 5].1;
        let mut apart = Batch { last: Target::Pool(moved(&batch, to, 1 - start)), ..batch.clone() };
        apart.initial = Some(initial.clone());
        assert_eq!(bits(&apart.run(1)), bits(&expected), "{name} from {start}");
        let Target::Pool(last) = apart.last else { unreachable!() };
        for slot in 0..2 {
            assert_eq!(bits(&last.slot(heads, slot)), bits(&after.slot(heads, slot)), "{name} from {start}");
        }
        assert_eq!(bits(&apart.initial.unwrap().data), bits(&initial.data), "the initial pool was written");
    }
}

/// A query that reads one row of a state which is not symmetric: rows and columns are what they are called (case 7).
#[test]
fn rows_are_rows() {
    let mut batch = Batch::seeded(heads(1, 1, HeadMap::Grouped), &[1], 1);
    for values in [&mut batch.q, &mut batch.k, &mut batch.beta, &mut batch.g] {
        values.fill(0.0);
    }
    batch.q[3] = 1.0;
    batch.scale = 1.0;
    let value_major = pools(&batch.heads, 1)[1].1;
    let mut states = States::new(&batch.heads, value_major, f32::NAN);
    let state: Vec<f32> = (0..HEAD_DIM * HEAD_DIM).map(|i| (i / HEAD_DIM + 1000 * (i % HEAD_DIM)) as f32).collect();
    states.set_slot(&batch.heads, 0, &state);
    batch.initial = Some(states);
    let out = batch.run(1);
    assert!(out.iter().enumerate().all(|(column, &o)| o == (3 + 1000 * column) as f32));
}

/// Padding: rows of zeros, and not a byte of any state (case 15). Slots that nobody names may hold anything (case 14).
#[test]
fn padding_writes_zeros_and_touches_no_state() {
    for (indices, poisoned) in [
        (Indices::I32(vec![2, -1, 0, -1]), [1, 3]),
        (Indices::U32(vec![2, u32::MAX, 0, 4]), [1, 3]),
        (Indices::I64(vec![2, -1, 0, 1 << 32]), [1, 3]),
        (Indices::I64(vec![2, i64::MIN, 0, i64::MAX]), [1, 3]),
        (Indices::I32(vec![2, i32::MAX, 0, i32::MIN]), [1, 3]),
    ] {
        for out_element in [F32, BF16, F16] {
            let mut before = Batch::seeded(two_heads(), &[2; 4], 6);
            before.form.out_element = out_element;
            let heads = before.heads;
            for slot in poisoned {
                before.initial.as_mut().unwrap().set_slot(&heads, slot, &vec![f32::NAN; 2 * HEAD_DIM * HEAD_DIM]);
            }
            for padding in [1, 3] {
                let tokens = before.tokens(padding);
                before.v[tokens.start * 2 * HEAD_DIM..tokens.end * 2 * HEAD_DIM].fill(f32::NAN);
            }
            // The same two sequences by themselves, with two slots of their own.
            let mut alone = before.clone();
            let initial = before.initial.clone().unwrap();
            alone.initial.as_mut().unwrap().set_slot(&heads, 0, &initial.slot(&heads, 2));
            alone.initial.as_mut().unwrap().set_slot(&heads, 2, &initial.slot(&heads, 0));
            let expected = alone.run(0);

            let mut batch = Batch { indices: Some(indices.clone()), ..before.clone() };
            let out = batch.run(1);
            let row = 2 * 2 * HEAD_DIM;
            for (sequence, slot) in [(0, 2), (2, 0)] {
                assert_eq!(
                    bits(&out[sequence * row..][..row]),
                    bits(&expected[sequence * row..][..row]),
                    "{indices:?}"
                );
                let state = batch.initial.as_ref().unwrap().slot(&heads, slot);
                assert_eq!(bits(&state), bits(&alone.initial.as_ref().unwrap().slot(&heads, sequence)), "{indices:?}");
            }
            for padding in [1, 3] {
                assert!(out[padding * row..][..row].iter().all(|o| o.to_bits() == 0), "{indices:?}");
            }
            batch.initial.unwrap().assert_untouched(&heads, &initial, &[0, 2]);
        }
    }
}

/// Another table for where final states go: the slots read stay as they were (case 54), padding drops.
#[test]
fn final_states_may_go_elsewhere() {
    let before = Batch::seeded(two_heads(), &[1, 2, 1], 5);
    let heads = before.heads;
    let mut expected = before.clone();
    let out = expected.run(0);
    for table in [Indices::I32(vec![4, -1, 3]), Indices::I64(vec![4, 5, 3])] {
        let initial = moved(&before, pools(&heads, 5)[0].1, 0);
        let mut batch = Batch { initial: Some(initial.clone()), output_indices: Some(table), ..before.clone() };
        assert_eq!(bits(&batch.run(1)), bits(&out));
        let after = batch.initial.unwrap();
        for (sequence, slot) in [(0, 4), (2, 3)] {
            let state = expected.initial.as_ref().unwrap().slot(&heads, sequence);
            assert_eq!(bits(&after.slot(&heads, slot)), bits(&state));
        }
        after.assert_untouched(&heads, &initial, &[3, 4]);
    }
}

/// Zero states are not zero times what a slot holds, and final states may be dropped.
#[test]
fn without_pools() {
    let before = Batch::seeded(two_heads(), &[2], 5);
    let mut zeros = before.clone();
    zeros.initial.as_mut().unwrap().data.fill(0.0);
    let expected = zeros.run(0);
    let mut batch = Batch { initial: None, last: Target::Nowhere, ..before.clone() };
    assert_eq!(bits(&batch.run(1)), bits(&expected));
    // Without a pool, a table still says what is padding.
    let mut batch = Batch { indices: Some(Indices::I32(vec![-1])), ..batch };
    assert!(batch.run(1).iter().all(|&o| o == 0.0));
    let mut batch = Batch { indices: Some(Indices::I32(vec![17])), ..batch };
    assert_eq!(bits(&batch.run(1)), bits(&expected));
}
