//! Pools of states: slots by tables, padding, recycled slots, layouts, copies, checkpoints of every token (cases 7, 10, 14, 15,
//! 54).
#![forbid(unsafe_code)]
use host::{Checkpoints, Dtype, Error, HeadMap, Heads, Indices, StateLayout, StateView, cpu};
use tests::{Batch, BatchPath, Output, POISON, Pool, heads, same_bits, untouched};

fn layouts(heads: &Heads) -> [StateLayout; 6] {
    let [a, b, c] = [StateLayout::key_major(heads), StateLayout::value_major(heads), StateLayout::key_rows(heads)];
    let wide = |layout: StateLayout| StateLayout {
        slot: 2 * layout.slot + 33,
        head: 2 * layout.head + 1,
        row: 2 * layout.row,
        ..layout
    };
    [a, b, c, wide(a), wide(b), a.slot_stride(a.slot + 33)]
}

/// That only `slots` of a pool changed.
fn only_these_changed(before: &Pool, after: &Pool, slots: &[usize]) {
    let mut may = vec![false; before.data.len()];
    for &slot in slots {
        // Marks a slot's elements by their difference from the poison between them.
        let mut marked = Pool { data: vec![0.0; before.data.len()], ..before.clone() };
        marked.put(slot, &vec![1.0; before.heads.state_len()]);
        may.iter_mut().zip(&marked.data).for_each(|(may, &mark)| *may |= mark == 1.0);
    }
    untouched(&before.data, &after.data, |index| may[index]).unwrap();
}

/// Element (row i, column j) = i + 1000 j, one token with q = e_3 that changes nothing: the output is row 3 in whatever layout
/// the state lies (case 7).
#[test]
fn layouts_are_what_they_say() {
    let heads = heads(1, 1, HeadMap::Grouped);
    let mut batch = Batch::new(heads, &[1], Dtype::F32, 1);
    batch.scale = 1.0;
    let one_at = |at: usize| (0..128).map(|i| if i == at { 1.0 } else { 0.0 }).collect::<Vec<f32>>();
    batch.q = tests::Numbers::F32(one_at(3));
    batch.k = tests::Numbers::F32(vec![0.0; 128]);
    (batch.g, batch.beta) = (tests::Numbers::F32(vec![0.0]), tests::Numbers::F32(vec![0.0]));
    batch.states[0] = (0..128 * 128).map(|element| (element / 128 + 1000 * (element % 128)) as f32).collect();
    let expected: Vec<f32> = (0..128).map(|column| (3 + 1000 * column) as f32).collect();
    for layout in layouts(&heads) {
        for path in BatchPath::all() {
            let (mut out, mut pool) = (batch.poisoned_out(), batch.pool(layout));
            let before = pool.clone();
            path.run(batch.call(&mut out).state(pool.state())).unwrap_or_else(|e| panic!("{path:?}, {layout:?}: {e}"));
            assert_eq!(out.to_f32(), expected, "{path:?}, {layout:?}");
            untouched(&before.data, &pool.data, |_| false).unwrap();
        }
    }
}

/// Every layout has the bits of the dense one, read and written in one or apart, and nothing between rows is touched; prefill,
/// conversion and one token more are prefill of all (cases 7, 10).
#[test]
fn every_layout_has_the_same_bits() {
    let heads = heads(1, 2, HeadMap::Tiled);
    let batch = Batch::new(heads, &[3, 3], Dtype::F32, 2);
    for path in BatchPath::all() {
        let expected = batch.run(path).unwrap();
        for layout in layouts(&heads) {
            let (mut out, mut pool) = (batch.poisoned_out(), batch.pool(layout));
            let before = pool.clone();
            path.run(batch.call(&mut out).state(pool.state())).unwrap_or_else(|e| panic!("{path:?}, {layout:?}: {e}"));
            only_these_changed(&before, &pool, &[0, 1]);
            // From this layout to the dense one.
            let mut other = Pool::new(heads, StateLayout::key_major(&heads), 2);
            let (mut apart, initial) = (batch.poisoned_out(), before.clone());
            let view = StateView { data: &initial.data, layout };
            path.run(batch.call(&mut apart).initial_state(view).final_state(other.state())).unwrap();
            for (index, expected) in expected.iter().enumerate() {
                let in_place = Output { out: batch.cut(&out)[index].clone(), state: pool.get(index) };
                let apart = Output { out: batch.cut(&apart)[index].clone(), state: other.get(index) };
                same_bits(&heads, expected, &in_place)
                    .and_then(|()| same_bits(&heads, expected, &apart))
                    .unwrap_or_else(|e| panic!("{path:?}, {layout:?}: {e}"));
            }
        }
    }
}

#[test]
fn prefill_conversion_and_one_token_are_prefill_of_all() {
    let heads = heads(1, 2, HeadMap::Grouped);
    let batch = Batch::new(heads, &[6], Dtype::Bf16, 3);
    for path in BatchPath::sequential() {
        let whole = batch.run(path).unwrap().remove(0);
        let first = batch.part(0, 0..5);
        let (mut out, mut pool) = (first.poisoned_out(), first.pool(StateLayout::key_rows(&heads)));
        path.run(first.call(&mut out).state(pool.state())).unwrap();
        let mut turned = Pool::new(heads, StateLayout::value_major(&heads), 3);
        let from = StateView { data: &pool.data, layout: pool.layout };
        cpu::copy_states(&heads, from, &[0], turned.state(), &[2]).unwrap();
        let last = batch.part(0, 5..6);
        let mut out = last.poisoned_out();
        path.run(last.call(&mut out).state(turned.state()).state_indices(&[2i32])).unwrap();
        assert_eq!(out.to_f32()[..], whole.out[5 * 256..], "{path:?}");
        assert_eq!(turned.get(2), whole.state, "{path:?}");
    }
}

/// Slots [2, -1, 0, -1] of four: 2 and 0 as alone, 1 and 3 untouched, rows of padding are zeros though their inputs are poison
/// (case 15). Tables of every type.
#[test]
fn padding_has_zeros_and_touches_nothing() {
    let heads = heads(1, 2, HeadMap::Grouped);
    let mut batch = Batch::new(heads, &[2; 4], Dtype::F16, 4);
    let clean = batch.clone();
    let poison = |numbers: &mut tests::Numbers, row: usize| {
        let tests::Numbers::F16(data) = numbers else { unreachable!("f16") };
        for sequence in [1, 3] {
            data[2 * sequence * row..][..2 * row].fill(half::f16::NAN);
        }
    };
    for (numbers, row) in [(&mut batch.q, 128), (&mut batch.k, 128), (&mut batch.v, 256)] {
        poison(numbers, row);
    }
    poison(&mut batch.g, 2);
    poison(&mut batch.beta, 2);
    for path in BatchPath::all() {
        for table in [
            Indices::from(&[2i32, -1, 0, -7]),
            Indices::from(&[2u32, u32::MAX, 0, u32::MAX]),
            Indices::from(&[2i64, -1, 0, i64::MIN]),
        ] {
            let mut pool = Pool::new(heads, StateLayout::key_major(&heads), 4);
            pool.put(2, &batch.states[0]);
            pool.put(0, &batch.states[2]);
            let (before, mut out) = (pool.clone(), batch.poisoned_out());
            path.run(batch.call(&mut out).state(pool.state()).state_indices(table)).unwrap();
            only_these_changed(&before, &pool, &[0, 2]);
            let outs = batch.cut(&out);
            for (sequence, slot) in [(0, 2), (2, 0)] {
                let alone = clean.alone(sequence).run(path).unwrap().remove(0);
                let output = Output { out: outs[sequence].clone(), state: pool.get(slot) };
                same_bits(&heads, &alone, &output).unwrap_or_else(|e| panic!("{path:?}, {table:?}: {e}"));
            }
            for padding in [1, 3] {
                assert!(outs[padding].iter().all(|o| o.to_bits() == 0), "{path:?}: row {padding} of padding");
            }
        }
    }
}

/// Two new sequences in slots full of NaN or 1e30, cleared before, and one that goes on: as from zeros, as from its state
/// (case 14).
#[test]
fn recycled_slots_are_cleared() {
    let heads = heads(1, 2, HeadMap::Tiled);
    for tokens in [1, 5, 64, 130] {
        let mut batch = Batch::new(heads, &[tokens; 3], Dtype::F32, 5);
        for filling in [POISON, 1e30] {
            // The emulator is slow, and long sequences are nothing new to its kernel.
            let is_short = |path: &BatchPath| tokens <= 16 || matches!(path, BatchPath::Cpu(_));
            for path in BatchPath::all().into_iter().filter(is_short) {
                let mut pool = Pool::new(heads, StateLayout::key_major(&heads), 5);
                pool.data.fill(filling);
                pool.put(3, &batch.states[1]);
                let before = pool.clone();
                cpu::zero_states(&heads, pool.state(), &[4, 0]).unwrap();
                let mut out = batch.poisoned_out();
                path.run(batch.call(&mut out).state(pool.state()).state_indices(&[4i32, 3, 0])).unwrap();
                only_these_changed(&before, &pool, &[0, 3, 4]);
                let kept = batch.states[1].clone();
                batch.states = vec![vec![0.0; heads.state_len()], kept, vec![0.0; heads.state_len()]];
                let expected = batch.run(path).unwrap();
                for ((sequence, slot), expected) in [(0, 4), (1, 3), (2, 0)].into_iter().zip(&expected) {
                    let output = Output { out: batch.cut(&out)[sequence].clone(), state: pool.get(slot) };
                    same_bits(&heads, expected, &output).unwrap_or_else(|e| panic!("{path:?}, {filling}: {e}"));
                }
            }
        }
    }
}

/// Reading one slot and writing another leaves the first; padding among the slots written drops the state (case 54).
#[test]
fn output_slots_are_written_instead() {
    let heads = heads(1, 2, HeadMap::Grouped);
    let batch = Batch::new(heads, &[2, 2, 2], Dtype::Bf16, 6);
    for path in BatchPath::all() {
        let mut pool = Pool::new(heads, StateLayout::value_major(&heads), 6);
        [1, 2, 5].into_iter().zip(&batch.states).for_each(|(slot, state)| pool.put(slot, state));
        let (before, mut out) = (pool.clone(), batch.poisoned_out());
        let call = batch.call(&mut out).state(pool.state());
        path.run(call.state_indices(&[1i64, 2, 5]).output_state_indices(&[0i32, -1, 5])).unwrap();
        only_these_changed(&before, &pool, &[0, 5]);
        let expected = batch.run(path).unwrap();
        assert_eq!(pool.get(0), expected[0].state, "{path:?}");
        assert_eq!(pool.get(5), expected[2].state, "{path:?}");
        for (out, expected) in batch.cut(&out).iter().zip(&expected) {
            assert_eq!(*out, expected.out, "{path:?}");
        }
    }
}

/// The state after each of six tokens has the bits of the final state of so many (case 54), by slots of every token and by
/// lanes.
#[test]
fn states_of_every_token_are_those_of_shorter_runs() {
    let heads = heads(1, 2, HeadMap::Grouped);
    let batch = Batch::new(heads, &[6, 4], Dtype::F32, 7);
    for path in BatchPath::sequential() {
        let shorter =
            |sequence: usize, tokens: usize| batch.part(sequence, 0..tokens).run(path).unwrap().remove(0).state;
        // [sequence][token], as many as the longest has; -1 is not kept.
        let table = [2i32, 3, 4, -1, 6, 7, 8, 9, 10, 11, -1, -1];
        let mut pool = Pool::new(heads, StateLayout::key_rows(&heads), 13);
        pool.put(0, &batch.states[0]);
        pool.put(1, &batch.states[1]);
        let (before, mut out) = (pool.clone(), batch.poisoned_out());
        let call = batch.call(&mut out).state(pool.state()).state_indices(&[0u32, 1]);
        path.run(call.output_state_indices(&[12i32, -1]).checkpoints(Checkpoints::PerToken(Indices::from(&table))))
            .unwrap();
        only_these_changed(&before, &pool, &[2, 3, 4, 6, 7, 8, 9, 10, 11, 12]);
        for (sequence, tokens) in [(0, 6), (1, 4)] {
            for token in 0..tokens {
                if let Ok(slot) = usize::try_from(table[sequence * 6 + token]) {
                    assert!(
                        pool.get(slot) == shorter(sequence, token + 1),
                        "{path:?}: sequence {sequence}, token {token}"
                    );
                }
            }
        }
        assert!(pool.get(12) == shorter(0, 6), "{path:?}");

        // Lanes of six: sequence 0 goes on from lane 1 of the second group, sequence 1 from lane 3 of the first.
        let mut pool = Pool::new(heads, StateLayout::key_major(&heads), 12);
        pool.put(7, &batch.states[0]);
        pool.put(3, &batch.states[1]);
        let (before, mut out) = (pool.clone(), batch.poisoned_out());
        let call = batch.call(&mut out).state(pool.state()).state_indices(&[7i32, 3]);
        path.run(call.checkpoints(Checkpoints::Lanes(6))).unwrap();
        only_these_changed(&before, &pool, &[0, 1, 2, 3, 6, 7, 8, 9, 10, 11]);
        for (sequence, first, tokens) in [(0, 6, 6), (1, 0, 4)] {
            for token in 0..tokens {
                assert!(pool.get(first + token) == shorter(sequence, token + 1), "{path:?}: lane {}", first + token);
            }
        }
    }
}

/// Slots that are not there, and slots that two sequences would use at once, where the host can see them; nothing is written.
#[test]
fn bad_slots_are_refused_on_the_host() {
    let heads = heads(1, 1, HeadMap::Grouped);
    let batch = Batch::new(heads, &[1, 1], Dtype::F32, 8);
    let pool = batch.pool(StateLayout::key_major(&heads));
    let errors = |read: [i32; 2], written: Option<[i32; 2]>| {
        let (mut out, mut pool) = (batch.poisoned_out(), pool.clone());
        let mut call = batch.call(&mut out).state(pool.state()).state_indices(&read);
        if let Some(written) = &written {
            call = call.output_state_indices(written);
        }
        let error = cpu::run(call).unwrap_err();
        untouched(&batch.pool(StateLayout::key_major(&heads)).data, &pool.data, |_| false).unwrap();
        assert!(out.to_f32().iter().all(|o| o.is_nan()));
        error
    };
    assert!(matches!(errors([0, 2], None), Error::Slot { argument: "state_indices", row: 1, index: 2, slots: 2 }));
    assert!(matches!(errors([1, 1], None), Error::SharedSlot { slot: 1, first: 0, second: 1 }));
    assert!(matches!(errors([0, 1], Some([0, 0])), Error::SharedSlot { slot: 0, first: 0, second: 1 }));
    // A slot that is written while another sequence starts from it.
    assert!(matches!(errors([0, 1], Some([1, -1])), Error::SharedSlot { slot: 1, first: 0, second: 1 }));
    assert!(matches!(errors([0, 1], Some([0, 9])), Error::Slot { argument: "output_state_indices", row: 1, .. }));
    // Two that start from one slot, which nobody writes, are a fork.
    let (mut out, mut pool) = (batch.poisoned_out(), pool);
    let call = batch.call(&mut out).state(pool.state()).state_indices(&[1i32, 1]);
    cpu::run(call.output_state_indices(&[0i32, -1])).unwrap();
}

/// Copies convert layouts and keep bits; lists are checked.
#[test]
fn copies_keep_bits() {
    let heads = heads(1, 2, HeadMap::Grouped);
    let batch = Batch::new(heads, &[1, 1], Dtype::F32, 9);
    for from in layouts(&heads) {
        for to in layouts(&heads) {
            let source = batch.pool(from);
            let mut target = Pool::new(heads, to, 3);
            let before = target.clone();
            let view = StateView { data: &source.data, layout: from };
            cpu::copy_states(&heads, view, &[1, 0], target.state(), &[0, 2]).unwrap();
            let mut emulated = Pool::new(heads, to, 3);
            host::emulated::copy_states(&heads, (view, &[1, 0]), (emulated.state(), &[0, 2]), 1).unwrap();
            untouched(&target.data, &emulated.data, |_| false).unwrap();
            let (mut cleared, mut by_cpu) = (emulated.clone(), emulated);
            host::emulated::zero_states(&heads, cleared.state(), &[2], 2).unwrap();
            cpu::zero_states(&heads, by_cpu.state(), &[2]).unwrap();
            untouched(&by_cpu.data, &cleared.data, |_| false).unwrap();
            assert_eq!([target.get(0), target.get(2)], [batch.states[1].clone(), batch.states[0].clone()]);
            only_these_changed(&before, &target, &[0, 2]);
        }
    }
    let mut pool = batch.pool(StateLayout::key_major(&heads));
    cpu::copy_states_within(&heads, pool.state(), &[0], &[1]).unwrap();
    assert_eq!(pool.get(1), batch.states[0]);
    let source = pool.clone();
    let view = StateView { data: &source.data, layout: source.layout };
    for (from, to) in [(&[0, 1][..], &[0][..]), (&[2], &[0]), (&[0], &[2]), (&[0, 1], &[1, 1])] {
        assert!(cpu::copy_states(&heads, view, from, pool.state(), to).is_err(), "{from:?} {to:?}");
    }
    assert!(cpu::copy_states_within(&heads, pool.state(), &[0, 1], &[1, 0]).is_err());
}
