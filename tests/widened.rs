//! The chunked kernels on calls that they do not read as they are: element types, norm, raw gates, and states in other layouts or
//! in the slots of a table are converted around them (cases 7, 9, 10, 15, 21, 22, 35).
#![forbid(unsafe_code)]
use host::compare::bars::CHUNKED_STATE;
use host::{
    Call, Dtype, Error, Gates, HeadMap, Heads, Indices, Kernel, PathChoice, Policy, QkNorm, Reason, StateLayout,
    StateView, Strides, View,
};
use tests::{Batch, BatchPath, Numbers, ORDERS, Output, Outputs, Pool, gpu, heads, same_bits, untouched};

const KERNELS: [Kernel; 2] = [Kernel::Chunked, Kernel::ChunkedTensor];

/// The chunked kernels in the emulator, and on the GPU if there is one.
fn paths() -> Vec<BatchPath> {
    let on_gpu = KERNELS.map(|kernel| BatchPath::Cuda(Some(kernel)));
    let emulated = KERNELS.map(|kernel| BatchPath::Emulated(Some(kernel)));
    emulated.into_iter().chain(on_gpu.into_iter().filter(|_| gpu().is_some())).collect()
}

fn raw_gates(value_heads: usize) -> [Vec<f32>; 2] {
    let of = |numbers: [f32; 4]| numbers[..value_heads].to_vec();
    [of([0.5, -1.0, 2.0, 0.0]), of([0.1, -0.3, 1.0, 0.0])]
}

/// bf16 with all that an engine may leave to the kernel.
fn engines(heads: Heads, lengths: &[usize], seed: u64) -> Batch {
    let mut batch = Batch::new(heads, lengths, Dtype::Bf16, seed);
    // Longer than they will be.
    let longer: Vec<f32> = batch.k.to_f32().iter().map(|x| x * 7.0).collect();
    batch.k = Numbers::new(&longer, Dtype::Bf16);
    batch.norm = QkNorm::L2 { eps: 1e-6 };
    batch.raw = Some(raw_gates(heads.num_v_heads));
    batch
}

/// Float64's bar on the numbers as they are, in every type, with norm and raw gates and without.
#[test]
fn every_type_norm_and_gate_agrees_with_float64() {
    let heads = heads(1, 2, HeadMap::Grouped);
    for dtype in Dtype::ALL {
        for norm in [QkNorm::None, QkNorm::L2 { eps: 1e-6 }] {
            for raw in [None, Some(raw_gates(2))] {
                let mut batch = Batch::new(heads, &[45], dtype, 1);
                (batch.norm, batch.raw) = (norm, raw);
                for path in paths() {
                    let outputs = batch.run(path).unwrap();
                    batch
                        .agrees(&outputs, &CHUNKED_STATE)
                        .unwrap_or_else(|e| panic!("{path:?}, {dtype}, {norm:?}, raw {}: {e}", batch.raw.is_some()));
                }
            }
        }
    }
}

/// Multiples of 1/64 in -1..=1, which every type has.
fn coarse(numbers: &Numbers) -> Vec<f32> {
    numbers.to_f32().iter().map(|x| (x * 64.0).round().clamp(-64.0, 64.0) / 64.0).collect()
}

/// The same numbers have the bits of plain f32 in every type, and the output is rounded once (case 21).
#[test]
fn the_same_numbers_in_every_type_have_the_same_bits() {
    let base = Batch::new(heads(1, 2, HeadMap::Tiled), &[40], Dtype::F32, 2);
    let of = |dtype, out| Batch {
        q: Numbers::new(&coarse(&base.q), dtype),
        k: Numbers::new(&coarse(&base.k), dtype),
        v: Numbers::new(&coarse(&base.v), dtype),
        g: Numbers::new(&coarse(&base.g), dtype),
        beta: Numbers::new(&coarse(&base.beta), dtype),
        out,
        ..base.clone()
    };
    for path in paths() {
        let expected = of(Dtype::F32, Dtype::F32).run(path).unwrap();
        for dtype in [Dtype::F16, Dtype::Bf16] {
            assert_eq!(of(dtype, Dtype::F32).run(path).unwrap(), expected, "{path:?}, {dtype}");
            let rounded = of(dtype, dtype).run(path).unwrap();
            assert_eq!(rounded[0].state, expected[0].state, "{path:?}, {dtype}");
            assert_eq!(rounded[0].out, Numbers::new(&expected[0].out, dtype).to_f32(), "{path:?}, {dtype}");
        }
        // One tensor alone that is not f32.
        let mut mixed = of(Dtype::F32, Dtype::F32);
        mixed.beta = Numbers::new(&coarse(&base.beta), Dtype::F16);
        assert_eq!(mixed.run(path).unwrap(), expected, "{path:?}");
    }
}

/// Batches of one length and packed ones: each sequence has the bits it has alone (case 35).
#[test]
fn neighbours_change_no_bit() {
    for (lengths, map) in [(&[33, 33][..], HeadMap::Grouped), (&[40, 0, 3, 35], HeadMap::Tiled)] {
        let mut batch = engines(heads(1, 2, map), lengths, 3);
        batch.out = Dtype::Bf16;
        for path in paths() {
            let outputs = batch.run(path).unwrap();
            batch.bits_alone(path, &outputs).unwrap_or_else(|e| panic!("{path:?}, {lengths:?}: {e}"));
        }
    }
}

/// What `policy` makes of a batch in the emulator.
fn by(policy: &Policy, batch: &Batch) -> Outputs {
    let (mut out, mut pool) = (batch.poisoned_out(), batch.pool(StateLayout::key_major(&batch.heads)));
    host::emulated::run_with(batch.call(&mut out).state(pool.state()), policy, ORDERS[2]).unwrap();
    let outs = batch.cut(&out).into_iter().enumerate();
    outs.map(|(slot, out)| Output { out, state: pool.get(slot) }).collect()
}

/// Beside a long sequence a short one goes token by token on what was converted: decode's bits, so that norm, gates and types are
/// decode's too.
#[test]
fn what_is_converted_has_the_numbers_of_decode() {
    for dtype in Dtype::ALL {
        let mut batch = engines(heads(1, 2, HeadMap::Grouped), &[40, 11], 4);
        for numbers in [&mut batch.q, &mut batch.k, &mut batch.v, &mut batch.g, &mut batch.beta] {
            *numbers = Numbers::new(&numbers.to_f32(), dtype);
        }
        let mut policy = Policy::default();
        (policy.min_chunked_tokens, policy.min_tensor_tokens) = (40, usize::MAX);
        let outputs = by(&policy, &batch);
        let decode = batch.run(BatchPath::Emulated(Some(Kernel::Decode))).unwrap();
        same_bits(&batch.heads, &decode[1], &outputs[1]).unwrap_or_else(|e| panic!("{dtype}: {e}"));
        let alone = batch.alone(0).run(BatchPath::Emulated(Some(Kernel::Chunked))).unwrap();
        same_bits(&batch.heads, &alone[0], &outputs[0]).unwrap_or_else(|e| panic!("{dtype}: {e}"));
        assert_ne!(decode[0].out, outputs[0].out, "the long one went token by token");
    }
}

/// Windows of any length give the bits of one, where the final state is kept and where it is dropped: packed sequences of which
/// not all are cut, and a batch whose v, gates and output stay where they are.
#[test]
fn windows_of_any_length_have_the_same_bits() {
    let packed = engines(heads(1, 2, HeadMap::Tiled), &[70, 5, 33], 5);
    let norm = QkNorm::L2 { eps: 1e-6 };
    let in_place = Batch { norm, ..Batch::new(packed.heads, &[40, 40], Dtype::F32, 15) };
    for batch in [packed, in_place] {
        windows_have_the_bits_of_one(&batch);
    }
}

fn windows_have_the_bits_of_one(batch: &Batch) {
    let policy = |limit| {
        let mut policy = Policy::with_path(PathChoice::Forced(Kernel::Chunked));
        policy.max_scratch_bytes = limit;
        policy
    };
    let needed = |call: Call<'_>| {
        let error = host::emulated::run_with(call, &policy(1000), ORDERS[0]).unwrap_err();
        let Error::Refused { reason: Reason::ScratchLimit { need, limit: 1000 }, .. } = error else {
            panic!("{error}")
        };
        need
    };
    let whole = by(&policy(usize::MAX), batch);
    let (mut out, mut pool) = (batch.poisoned_out(), batch.pool(StateLayout::key_major(&batch.heads)));
    // A window of 32 tokens, and a chunk.
    let need = needed(batch.call(&mut out).state(pool.state()));
    for limit in [need, 2 * need, 3 * need] {
        let cut = by(&policy(limit), batch);
        for (index, (whole, cut)) in whole.iter().zip(&cut).enumerate() {
            same_bits(&batch.heads, whole, cut).unwrap_or_else(|e| panic!("{limit}, sequence {index}: {e}"));
        }
    }
    // Without a final state those between windows stand in the scratch.
    let initial = batch.pool(StateLayout::key_major(&batch.heads));
    let view = StateView { data: &initial.data, layout: initial.layout };
    let mut dropped = batch.poisoned_out();
    let more = needed(batch.call(&mut dropped).initial_state(view));
    assert!(more > need);
    let call = batch.call(&mut dropped).initial_state(view);
    host::emulated::run_with(call, &policy(more), ORDERS[0]).unwrap();
    for (whole, dropped) in whole.iter().zip(batch.cut(&dropped)) {
        assert_eq!(whole.out, dropped);
    }
}

fn layouts(heads: &Heads) -> [StateLayout; 4] {
    let [a, b, c] = [StateLayout::key_major(heads), StateLayout::value_major(heads), StateLayout::key_rows(heads)];
    let wide = StateLayout { slot: 2 * b.slot + 33, head: 2 * b.head + 1, row: 2 * b.row, ..b };
    [a, b, c, wide]
}

/// That only `slots` of a pool changed.
fn only_these_changed(before: &Pool, after: &Pool, slots: &[usize]) {
    let mut marked = Pool { data: vec![0.0; before.data.len()], ..before.clone() };
    slots.iter().for_each(|&slot| marked.put(slot, &vec![1.0; before.heads.state_len()]));
    untouched(&before.data, &after.data, |index| marked.data[index] == 1.0).unwrap();
}

/// Every layout has the bits of the dense one, in place and from one to another, with an initial state and without, and nothing
/// between rows is touched (cases 7, 10).
#[test]
fn every_layout_has_the_same_bits() {
    let heads = heads(1, 2, HeadMap::Tiled);
    let batch = Batch::new(heads, &[33, 33], Dtype::F32, 6);
    let zeros = Batch { states: vec![vec![0.0; heads.state_len()]; 2], ..batch.clone() };
    for path in paths() {
        let [expected, from_zeros] = [&batch, &zeros].map(|batch| batch.run(path).unwrap());
        for layout in layouts(&heads) {
            let (mut out, mut pool) = (batch.poisoned_out(), batch.pool(layout));
            let before = pool.clone();
            path.run(batch.call(&mut out).state(pool.state())).unwrap_or_else(|e| panic!("{path:?}, {layout:?}: {e}"));
            only_these_changed(&before, &pool, &[0, 1]);
            let mut other = Pool::new(heads, layouts(&heads)[0], 2);
            let mut apart = batch.poisoned_out();
            let view = StateView { data: &before.data, layout };
            path.run(batch.call(&mut apart).initial_state(view).final_state(other.state())).unwrap();
            let (mut out_alone, mut alone) = (batch.poisoned_out(), Pool::new(heads, layout, 2));
            path.run(batch.call(&mut out_alone).final_state(alone.state())).unwrap();
            let mut dropped = batch.poisoned_out();
            path.run(batch.call(&mut dropped).initial_state(view)).unwrap();
            assert_eq!(dropped, out, "{path:?}, {layout:?}");
            for index in 0..2 {
                let outputs =
                    |out: &Numbers, pool: &Pool| Output { out: batch.cut(out)[index].clone(), state: pool.get(index) };
                same_bits(&heads, &expected[index], &outputs(&out, &pool))
                    .and_then(|()| same_bits(&heads, &expected[index], &outputs(&apart, &other)))
                    .and_then(|()| same_bits(&heads, &from_zeros[index], &outputs(&out_alone, &alone)))
                    .unwrap_or_else(|e| panic!("{path:?}, {layout:?}: {e}"));
            }
        }
    }
}

/// Fills the inputs of some sequences.
fn fill_inputs(batch: &mut Batch, sequences: &[usize], filling: f32) {
    let (cu_seqlens, total) = (batch.cu_seqlens.clone(), batch.tokens());
    for numbers in [&mut batch.q, &mut batch.k, &mut batch.v, &mut batch.g, &mut batch.beta] {
        let mut data = numbers.to_f32();
        let row = data.len() / total;
        for &sequence in sequences {
            let [first, end] = [sequence, sequence + 1].map(|index| cu_seqlens[index] as usize);
            data[first * row..end * row].fill(filling);
        }
        *numbers = Numbers::new(&data, Dtype::Bf16);
    }
}

/// Slots 2 and 0 of four have the bits of their sequences alone, the others are untouched, and rows of padding are zeros though
/// their inputs are poison (case 15): tables of every type, a slot that the pool has not, packed sequences and a batch.
#[test]
fn padding_has_zeros_and_touches_nothing() {
    for lengths in [&[33, 2, 35, 34][..], &[33; 4]] {
        let heads = heads(1, 2, HeadMap::Grouped);
        let clean = Batch { out: Dtype::Bf16, ..engines(heads, lengths, 7) };
        for path in paths() {
            let mut batch = clean.clone();
            fill_inputs(&mut batch, &[1, 3], f32::NAN);
            let alone = [0, 2].map(|sequence| clean.alone(sequence).run(path).unwrap().remove(0));
            for table in [
                Indices::from(&[2i32, -1, 0, -7]),
                Indices::from(&[2u32, u32::MAX, 0, 4]),
                Indices::from(&[2i64, -1, 0, i64::MIN]),
            ] {
                let layout = StateLayout::value_major(&heads);
                let mut pool = Pool::new(heads, layout, 4);
                pool.put(2, &batch.states[0]);
                pool.put(0, &batch.states[2]);
                let (before, mut out) = (pool.clone(), batch.poisoned_out());
                path.run(batch.call(&mut out).state(pool.state()).state_indices(table)).unwrap();
                only_these_changed(&before, &pool, &[0, 2]);
                let outs = batch.cut(&out);
                for ((sequence, slot), alone) in [(0, 2), (2, 0)].into_iter().zip(&alone) {
                    let output = Output { out: outs[sequence].clone(), state: pool.get(slot) };
                    same_bits(&heads, alone, &output).unwrap_or_else(|e| panic!("{path:?}, {table:?}: {e}"));
                }
                for padding in [1, 3] {
                    assert!(outs[padding].iter().all(|o| o.to_bits() == 0), "{path:?}: row {padding} of padding");
                }
            }
        }
    }
}

/// Final states go to the slots of a table of their own, or nowhere; a fork reads one slot twice and writes it never; a table
/// without an initial state starts from zeros.
#[test]
fn tables_say_where_states_go() {
    let heads = heads(1, 2, HeadMap::Grouped);
    let batch = Batch::new(heads, &[33, 34], Dtype::F32, 8);
    for path in paths() {
        let expected = batch.run(path).unwrap();
        let mut pool = Pool::new(heads, StateLayout::key_major(&heads), 4);
        pool.put(0, &batch.states[0]);
        pool.put(1, &batch.states[1]);
        let (before, mut out) = (pool.clone(), batch.poisoned_out());
        path.run(batch.call(&mut out).state(pool.state()).output_state_indices(&[3i64, -1])).unwrap();
        only_these_changed(&before, &pool, &[3]);
        let outs = batch.cut(&out);
        let output = Output { out: outs[0].clone(), state: pool.get(3) };
        same_bits(&heads, &expected[0], &output).unwrap_or_else(|e| panic!("{path:?}: {e}"));
        assert_eq!(outs[1], expected[1].out, "{path:?}");

        let fork = Batch { states: vec![batch.states[1].clone(); 2], ..batch.clone() };
        let view = StateView { data: &before.data, layout: before.layout };
        let mut out = batch.poisoned_out();
        path.run(batch.call(&mut out).initial_state(view).state_indices(&[1i32, 1])).unwrap();
        let outs: Vec<_> = fork.run(path).unwrap().into_iter().map(|output| output.out).collect();
        assert_eq!(batch.cut(&out), outs, "{path:?}");

        let zeros = Batch { states: vec![vec![0.0; heads.state_len()]; 2], ..batch.clone() };
        let mut pool = Pool::new(heads, StateLayout::key_major(&heads), 3);
        let (before, mut out) = (pool.clone(), batch.poisoned_out());
        path.run(batch.call(&mut out).final_state(pool.state()).state_indices(&[2u32, 1])).unwrap();
        only_these_changed(&before, &pool, &[1, 2]);
        for ((expected, out), slot) in zeros.run(path).unwrap().iter().zip(batch.cut(&out)).zip([2, 1]) {
            same_bits(&heads, expected, &Output { out, state: pool.get(slot) }).unwrap();
        }
    }
}

/// What is padding where it starts ends nowhere, whatever the table of final slots says; a slot that only the other pool has is
/// none there, and none is left where the final state is dropped.
#[test]
fn padding_at_the_start_ends_nowhere() {
    let heads = heads(1, 2, HeadMap::Grouped);
    let batch = Batch::new(heads, &[33, 1, 34, 33], Dtype::F32, 12);
    for path in paths() {
        let expected = batch.run(path).unwrap();
        let mut initial = Pool::new(heads, StateLayout::key_major(&heads), 3);
        initial.put(2, &batch.states[0]);
        initial.put(0, &batch.states[2]);
        let mut last = Pool::new(heads, StateLayout::value_major(&heads), 5);
        let (before, mut out) = (last.clone(), batch.poisoned_out());
        let view = StateView { data: &initial.data, layout: initial.layout };
        let call = batch.call(&mut out).initial_state(view).final_state(last.state());
        path.run(call.state_indices(&[2i32, -1, 0, 3]).output_state_indices(&[4i64, 0, 7, 1])).unwrap();
        only_these_changed(&before, &last, &[4]);
        let outs = batch.cut(&out);
        let output = Output { out: outs[0].clone(), state: last.get(4) };
        same_bits(&heads, &expected[0], &output).unwrap_or_else(|e| panic!("{path:?}: {e}"));
        assert_eq!(outs[2], expected[2].out, "{path:?}");
        assert!(outs[1].iter().chain(&outs[3]).all(|o| o.to_bits() == 0), "{path:?}");
    }
}

/// The gate itself instead of its log; a gate of zero forgets, and one of one keeps, exactly (case 13).
#[test]
fn linear_gates_are_their_logs() {
    let batch = Batch::new(heads(1, 2, HeadMap::Tiled), &[40], Dtype::F32, 13);
    let with_decay = |decay: &[f32], path: BatchPath| {
        let (mut out, mut pool) = (batch.poisoned_out(), batch.pool(StateLayout::key_major(&batch.heads)));
        let [beta, v] = [batch.beta.view(0, Strides::dense(2, 1)), batch.v.view(0, Strides::dense(2, 128))];
        let [q, k] = [&batch.q, &batch.k].map(|keys| keys.view(0, Strides::dense(1, 128)));
        let gates = Gates::Linear { decay: View::new(decay, Strides::dense(2, 1)), beta };
        let out_view = out.view_mut(Strides::dense(2, 128));
        path.run(Call::new(batch.heads, 40, q, k, v, gates, out_view).state(pool.state())).unwrap();
        vec![Output { out: out.to_f32(), state: pool.get(0) }]
    };
    let decay: Vec<f32> = batch.g.to_f32().iter().map(|g| g.exp()).collect();
    for path in paths() {
        batch.agrees(&with_decay(&decay, path), &CHUNKED_STATE).unwrap_or_else(|e| panic!("{path:?}: {e}"));
        for (decay, g) in [(0.0, f32::NEG_INFINITY), (1.0, 0.0)] {
            let logs = Batch { g: Numbers::F32(vec![g; 80]), ..batch.clone() };
            assert_eq!(with_decay(&[decay; 80], path), logs.run(path).unwrap(), "{path:?}, {decay}");
        }
    }
}

/// States on the way are those of shorter prompts, in one window and in several (case 45).
#[test]
fn states_on_the_way_are_those_of_shorter_prompts() {
    for lengths in [&[70, 5, 64][..], &[70]] {
        let batch = engines(heads(1, 2, HeadMap::Tiled), lengths, 14);
        for limit in [usize::MAX, 100 << 10] {
            for is_dropped in [false, true] {
                states_on_the_way(&batch, limit, is_dropped);
            }
        }
    }
}

/// Those after every 32 tokens, with so much scratch, and a final state or none.
fn states_on_the_way(batch: &Batch, limit: usize, is_dropped: bool) {
    let path = BatchPath::Emulated(Some(Kernel::Chunked));
    let case = format!("{:?}, {limit}, dropped {is_dropped}", batch.lengths);
    let layout = StateLayout::key_major(&batch.heads);
    let count = batch.sequences().checkpoints(32);
    let (mut kept, mut pool) = (Pool::new(batch.heads, layout, count), batch.pool(layout));
    let (initial, mut out) = (pool.clone(), batch.poisoned_out());
    let call = batch.call(&mut out).checkpoint_every(32, kept.state());
    let call = if is_dropped {
        call.initial_state(StateView { data: &initial.data, layout })
    } else {
        call.state(pool.state())
    };
    let mut policy = Policy::with_path(PathChoice::Forced(Kernel::Chunked));
    policy.max_scratch_bytes = limit;
    host::emulated::run_with(call, &policy, ORDERS[1]).unwrap();
    let mut slot = 0;
    for (index, (out, whole)) in batch.cut(&out).into_iter().zip(batch.run(path).unwrap()).enumerate() {
        let state = if is_dropped { whole.state.clone() } else { pool.get(index) };
        same_bits(&batch.heads, &whole, &Output { out, state }).unwrap_or_else(|e| panic!("{case}, {index}: {e}"));
        for end in (32..=batch.lengths[index]).step_by(32) {
            let shorter = batch.part(index, 0..end).run(path).unwrap().remove(0);
            assert!(kept.get(slot) == shorter.state, "{case}: state {slot}");
            slot += 1;
        }
    }
    assert_eq!(slot, count);
}

/// A packed row one element off any alignment, in every type: the dense bits, and nothing beside the output's rows is touched
/// (case 10).
#[test]
fn packed_views_one_element_off_have_the_dense_bits() {
    let heads = heads(2, 4, HeadMap::Grouped);
    let (tokens, row) = (35, 2 * 256 + 512 + 5);
    for dtype in Dtype::ALL {
        let mut batch = Batch::new(heads, &[tokens], dtype, 9);
        (batch.norm, batch.out) = (QkNorm::L2 { eps: 1e-6 }, dtype);
        let mut packed = vec![f32::NAN; 1 + tokens * row];
        for (numbers, first, count) in [(&batch.q, 0, 256), (&batch.k, 256, 256), (&batch.v, 512, 512)] {
            for (token, values) in numbers.to_f32().chunks(count).enumerate() {
                packed[1 + token * row + first..][..count].copy_from_slice(values);
            }
        }
        let packed = Numbers::new(&packed, dtype);
        let strides = Strides { token: row, head: 128 };
        for path in paths() {
            let expected = batch.run(path).unwrap().remove(0);
            let mut pool = batch.pool(StateLayout::key_major(&heads));
            // Halves of a word that two threads write are a race to the emulator, so that rows start on whole ones.
            let mut out = Numbers::new(&vec![f32::NAN; tokens * 514], dtype);
            let gates =
                Gates::Log { g: batch.g.view(0, Strides::dense(4, 1)), beta: batch.beta.view(0, Strides::dense(4, 1)) };
            let [q, k, v] = [1, 257, 513].map(|first| packed.view(first, strides));
            let call = Call::new(heads, tokens, q, k, v, gates, out.view_mut(Strides { token: 514, head: 128 }))
                .scale(batch.scale)
                .qk_norm(batch.norm);
            path.run(call.state(pool.state())).unwrap();
            let rows = out.to_f32();
            let written = rows.chunks(514).flat_map(|row| row[..512].to_vec()).collect();
            let output = Output { out: written, state: pool.get(0) };
            same_bits(&heads, &expected, &output).unwrap_or_else(|e| panic!("{path:?}, {dtype}: {e}"));
            assert!(rows.chunks(514).all(|row| row[512..].iter().all(|o| o.is_nan())), "{path:?}, {dtype}");
        }
    }
}

/// Without tokens states go on to their places, and without sequences nothing is done.
#[test]
fn without_tokens_states_go_on() {
    let heads = heads(1, 2, HeadMap::Grouped);
    for lengths in [&[0][..], &[0, 0], &[]] {
        let batch = engines(heads, lengths, 10);
        for path in paths() {
            let outputs = batch.run(path).unwrap_or_else(|e| panic!("{path:?}, {lengths:?}: {e}"));
            assert!(outputs.iter().zip(&batch.states).all(|(output, state)| output.state == *state), "{path:?}");
            let mut pool = batch.pool(StateLayout::value_major(&heads));
            let before = pool.clone();
            let mut out = batch.poisoned_out();
            path.run(batch.call(&mut out).state(pool.state())).unwrap();
            untouched(&before.data, &pool.data, |_| false).unwrap();
        }
    }
}

/// The checks of this file go red: mistakes that conversions bring along.
#[test]
fn mistakes_in_conversions_are_caught() {
    let batch = engines(heads(1, 2, HeadMap::Grouped), &[40], 11);
    let path = BatchPath::Emulated(Some(Kernel::Chunked));
    batch.agrees(&batch.run(path).unwrap(), &CHUNKED_STATE).unwrap();
    let spoiled = |spoil: &dyn Fn(&mut Batch)| {
        let mut batch = batch.clone();
        spoil(&mut batch);
        batch.run(path).unwrap()
    };
    for (mistake, outputs) in [
        ("no norm", spoiled(&|batch| batch.norm = QkNorm::None)),
        ("another epsilon", spoiled(&|batch| batch.norm = QkNorm::L2 { eps: 1e-2 })),
        ("heads that swapped their gates", spoiled(&|batch| batch.raw.as_mut().unwrap()[0].swap(0, 1))),
        ("no bias", spoiled(&|batch| batch.raw.as_mut().unwrap()[1].fill(0.0))),
        ("an output rounded to bf16", spoiled(&|batch| batch.out = Dtype::Bf16)),
    ] {
        assert!(batch.agrees(&outputs, &CHUNKED_STATE).is_err(), "{mistake} passes for right");
    }
}
