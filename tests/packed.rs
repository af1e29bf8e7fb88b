//! Batches: sequences of one length, packed ones, empty ones. Each has the bits that it has alone, whatever its neighbours
//! are (cases 9, 17, 19, 20, 35), and states that are kept on the way are those of shorter prompts (case 45).
#![forbid(unsafe_code)]
use host::inputs::{Family, Inputs};
use host::{Dtype, Error, HeadMap, Kernel, PathChoice, Policy, Reason, Sequences, State, StateLayout, cpu};
use tests::{Batch, BatchPath, Numbers, ORDERS, Output, POISON, Pool, bars, heads, same_bits};

const MAPS: [HeadMap; 2] = [HeadMap::Grouped, HeadMap::Tiled];

/// Batches of one length and packed ones, float64's bar and the bits of each sequence alone.
#[test]
fn every_sequence_has_the_bits_it_has_alone() {
    for (lengths, map) in [(&[3, 3, 3][..], MAPS[0]), (&[1; 5], MAPS[1]), (&[2, 0, 5, 1], MAPS[0]), (&[16], MAPS[1])] {
        let batch = Batch::new(heads(2, 4, map), lengths, Dtype::F32, 1);
        for path in BatchPath::all() {
            let outputs = batch.run(path).unwrap_or_else(|e| panic!("{path:?}, {lengths:?}: {e}"));
            batch
                .agrees(&outputs, &bars::SEQUENTIAL)
                .and_then(|()| batch.bits_alone(path, &outputs))
                .unwrap_or_else(|e| panic!("{path:?}, {lengths:?}: {e}"));
        }
    }
}

/// Packed sequences of one length are the same batch.
#[test]
fn packing_changes_no_bit() {
    let mut batch = Batch::new(heads(1, 2, HeadMap::Grouped), &[4, 4, 4], Dtype::Bf16, 2);
    for path in BatchPath::all() {
        let outputs = batch.run(path).unwrap();
        batch.packed = true;
        assert_eq!(batch.run(path).unwrap(), outputs, "{path:?}");
        batch.packed = false;
        batch.bits_alone(path, &outputs).unwrap_or_else(|e| panic!("{path:?}: {e}"));
    }
}

/// Empty first, twice in the middle, last; with states and without; no sequences at all; no tokens at all.
#[test]
fn empty_sequences_keep_their_states() {
    let lengths = [0, 5, 0, 0, 12, 0];
    let batch = Batch::new(heads(1, 2, HeadMap::Tiled), &lengths, Dtype::F32, 3);
    for path in BatchPath::all() {
        let outputs = batch.run(path).unwrap();
        batch.bits_alone(path, &outputs).unwrap_or_else(|e| panic!("{path:?}: {e}"));
        for (index, output) in outputs.iter().enumerate().filter(|(index, _)| lengths[*index] == 0) {
            assert_eq!(output.state, batch.states[index], "{path:?}, sequence {index}");
        }
        // Without an initial state an empty sequence ends in zeros.
        let (mut out, mut pool) = (batch.poisoned_out(), Pool::new(batch.heads, layout(&batch), lengths.len()));
        path.run(batch.call(&mut out).final_state(pool.state())).unwrap();
        let zeros = Batch { states: vec![vec![0.0; batch.heads.state_len()]; lengths.len()], ..batch.clone() };
        for (index, expected) in zeros.run(path).unwrap().into_iter().enumerate() {
            let output = Output { out: batch.cut(&out)[index].clone(), state: pool.get(index) };
            same_bits(&batch.heads, &expected, &output).unwrap_or_else(|e| panic!("{path:?}, sequence {index}: {e}"));
        }
    }
    for (lengths, packed) in [(&[0][..], true), (&[], true), (&[], false), (&[0, 0], false)] {
        let batch = Batch { packed, ..Batch::new(batch.heads, lengths, Dtype::F32, 4) };
        let mut paths = BatchPath::all();
        paths.extend([BatchPath::Cpu(None), BatchPath::Emulated(None)]);
        for path in paths {
            let outputs = batch.run(path).unwrap_or_else(|e| panic!("{path:?}, {lengths:?}: {e}"));
            assert!(outputs.iter().zip(&batch.states).all(|(output, state)| output.state == *state), "{path:?}");
        }
    }
}

fn layout(batch: &Batch) -> StateLayout {
    StateLayout::key_major(&batch.heads)
}

/// A long sequence alone, first of two, and 17th of 64 (case 35), by the path that its length names.
#[test]
fn a_long_sequence_has_its_bits_in_any_batch() {
    let heads = heads(8, 16, HeadMap::Grouped);
    let long = Batch::new(heads, &[300], Dtype::Bf16, 5);
    let alone = long.run(BatchPath::Cpu(None)).unwrap().remove(0);
    for (lengths, place) in [(vec![300, 7], 0), ((0..64).map(|n| if n == 16 { 300 } else { n % 5 }).collect(), 16)] {
        let mut batch = Batch::new(heads, &lengths, Dtype::Bf16, 6);
        let first = batch.cu_seqlens[place] as usize;
        for (to, from) in [
            (&mut batch.q, &long.q),
            (&mut batch.k, &long.k),
            (&mut batch.v, &long.v),
            (&mut batch.g, &long.g),
            (&mut batch.beta, &long.beta),
        ] {
            let (Numbers::Bf16(to), Numbers::Bf16(from)) = (to, from) else { unreachable!("both are bf16") };
            let row = from.len() / 300;
            to[first * row..][..from.len()].copy_from_slice(from);
        }
        batch.states[place].clone_from(&long.states[0]);
        let outputs = batch.run(BatchPath::Cpu(None)).unwrap();
        same_bits(&heads, &alone, &outputs[place]).unwrap_or_else(|e| panic!("{place}: {e}"));
        // In pools of one thread and of three.
        for threads in [1, 3] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let outputs = pool.install(|| batch.run(BatchPath::Cpu(None)).unwrap());
            same_bits(&heads, &alone, &outputs[place]).unwrap_or_else(|e| panic!("{threads} threads, {place}: {e}"));
        }
    }
}

/// One call is several that hand the state on, whatever the types, the norm and the gates (case 9).
#[test]
fn split_sequences_have_the_bits_of_whole_ones() {
    let mut batch = Batch::new(heads(1, 2, HeadMap::Grouped), &[9], Dtype::F16, 7);
    batch.norm = host::QkNorm::L2 { eps: 1e-6 };
    for path in BatchPath::sequential() {
        let whole = batch.run(path).unwrap().remove(0);
        for cut in [1, 4, 8] {
            let first = batch.part(0, 0..cut).run(path).unwrap().remove(0);
            let mut rest = batch.part(0, cut..9);
            rest.states[0] = first.state;
            let rest = rest.run(path).unwrap().remove(0);
            let joined = Output { out: [first.out, rest.out].concat(), state: rest.state };
            same_bits(&batch.heads, &whole, &joined).unwrap_or_else(|e| panic!("{path:?}, cut at {cut}: {e}"));
        }
    }
}

/// A batch of plain long sequences goes through the kernels one after the other, of short ones through one launch; each with
/// the bits that it has alone, and the plan says so.
#[test]
fn a_plain_batch_takes_the_kernels_of_its_sequences() {
    let policy = |kernel| Policy::with_path(PathChoice::Forced(kernel));
    let batch = Batch::new(heads(1, 2, HeadMap::Grouped), &[40, 0, 33], Dtype::F32, 8);
    for kernel in [Kernel::RecurrentByKeyHead, Kernel::RecurrentByColumn, Kernel::Chunked, Kernel::ChunkedTensor] {
        let path = BatchPath::Emulated(Some(kernel));
        let outputs = batch.run(path).unwrap();
        batch
            .agrees(&outputs, &bars::GENERAL)
            .and_then(|()| batch.bits_alone(path, &outputs))
            .unwrap_or_else(|e| panic!("{kernel:?}: {e}"));
    }
    // What they cannot do is refused with the reason.
    let half = Batch::new(batch.heads, &[3], Dtype::F16, 9);
    let (mut out, mut pool) = (half.poisoned_out(), half.pool(layout(&half)));
    let call = half.call(&mut out).state(pool.state());
    let error = host::emulated::run_with(call, &policy(Kernel::RecurrentByColumn), ORDERS[0]).unwrap_err();
    assert!(
        matches!(
            error,
            Error::Refused {
                kernel: "recurrent_by_column",
                reason: Reason::Dtype { argument: "q", dtype: Dtype::F16 }
            }
        ),
        "{error}"
    );
    // And taken by the one that can.
    let chosen = half.run(BatchPath::Emulated(None)).unwrap();
    assert_eq!(chosen, half.run(BatchPath::Emulated(Some(Kernel::Decode))).unwrap());
}

/// States after every 64 tokens: 130 tokens have two of them, 63 none, 128 two whose last is the final state; each has the
/// bits of the final state of a prompt that ends there (case 45).
#[test]
fn states_on_the_way_are_those_of_shorter_prompts() {
    let heads = heads(1, 2, HeadMap::Tiled);
    for path in [
        BatchPath::Cpu(Some(cpu::Path::Recurrent)),
        BatchPath::Cpu(Some(cpu::Path::Chunked)),
        BatchPath::Emulated(Some(Kernel::RecurrentByKeyHead)),
        BatchPath::Emulated(Some(Kernel::Chunked)),
        BatchPath::Emulated(Some(Kernel::Decode)),
    ] {
        let batch = Batch::new(heads, &[130, 63, 128], Dtype::F32, 10);
        for (interval, count) in [(64, 4), (128, 2)] {
            assert_eq!(batch.sequences().checkpoints(interval), count);
            let mut kept = Pool::new(heads, StateLayout::key_major(&heads), count);
            let (mut out, mut pool) = (batch.poisoned_out(), batch.pool(layout(&batch)));
            path.run(batch.call(&mut out).state(pool.state()).checkpoint_every(interval, kept.state())).unwrap();
            let whole = batch.run(path).unwrap();
            let outs = batch.cut(&out);
            for (index, whole) in whole.iter().enumerate() {
                let output = Output { out: outs[index].clone(), state: pool.get(index) };
                same_bits(&heads, whole, &output).unwrap_or_else(|e| panic!("{path:?}, {interval}: {e}"));
            }
            let mut slot = 0;
            for (index, &tokens) in batch.lengths.iter().enumerate() {
                for end in (interval..=tokens).step_by(interval) {
                    let shorter = batch.part(index, 0..end).run(path).unwrap().remove(0);
                    assert!(kept.get(slot) == shorter.state, "{path:?}: state {slot}, after {end} tokens");
                    slot += 1;
                }
            }
            assert_eq!(slot, count);
        }
    }
}

/// The interval is a multiple of 32, and there is room for every state.
#[test]
fn states_on_the_way_are_checked() {
    let batch = Batch::new(heads(1, 1, HeadMap::Grouped), &[64], Dtype::F32, 11);
    for (interval, slots, argument) in
        [(0, 2, "checkpoint_every"), (33, 2, "checkpoint_every"), (32, 1, "checkpoint_every")]
    {
        for path in BatchPath::all() {
            let mut kept = vec![POISON; slots * 128 * 128];
            let mut out = batch.poisoned_out();
            let state = State { data: &mut kept, layout: layout(&batch) };
            let error = path.run(batch.call(&mut out).checkpoint_every(interval, state)).unwrap_err();
            assert!(matches!(error, Error::Shape { argument: named, .. } if named == argument), "{path:?}: {error}");
            assert!(kept.iter().all(|x| x.to_bits() == POISON.to_bits()));
        }
    }
}

/// More offsets than one launch can carry.
#[test]
fn many_packed_sequences_are_uploaded_in_turns() {
    let heads = heads(1, 1, HeadMap::Grouped);
    let lengths: Vec<usize> = (0..1000).map(|n| usize::from(n % 100 == 7)).collect();
    let batch = Batch::new(heads, &lengths, Dtype::F32, 12);
    let (mut by_cpu, mut emulated) = (batch.poisoned_out(), batch.poisoned_out());
    cpu::run(batch.call(&mut by_cpu)).unwrap();
    BatchPath::Emulated(None).run(batch.call(&mut emulated)).unwrap();
    let (by_cpu, emulated) = (by_cpu.to_f32(), emulated.to_f32());
    assert!(by_cpu.iter().zip(&emulated).all(|(a, b)| (a - b).abs() < 1e-6), "the offsets were not all there");
}

/// A number of tokens is one sequence.
#[test]
fn a_number_of_tokens_is_one_sequence() {
    assert_eq!(Sequences::from(5), Sequences::Uniform { batch: 1, tokens: 5 });
    let inputs = Inputs::seeded(heads(1, 1, HeadMap::Grouped), 2, Family::Base, 13);
    let mut output = Output::poisoned(&inputs);
    cpu::run(inputs.call(&mut output.out, &mut output.state)).unwrap();
}

/// The checks of this file go red: mistakes that batches bring along (case 55).
#[test]
fn mistakes_in_batches_are_caught() {
    let batch = Batch::new(heads(1, 2, HeadMap::Grouped), &[3, 0, 4], Dtype::Bf16, 14);
    let right = batch.run(BatchPath::Cpu(None)).unwrap();
    batch.agrees(&right, &bars::SEQUENTIAL).unwrap();
    let spoiled = |spoil: &dyn Fn(&mut Batch)| {
        let mut batch = batch.clone();
        spoil(&mut batch);
        batch.run(BatchPath::Cpu(None)).unwrap()
    };
    let swapped =
        vec![right[0].clone(), right[1].clone(), Output { state: right[1].state.clone(), ..right[2].clone() }];
    for (mistake, outputs) in [
        ("offsets off by one", spoiled(&|batch| batch.cu_seqlens = vec![0, 4, 4, 7])),
        ("states of neighbours", spoiled(&|batch| batch.states.rotate_left(1))),
        ("a norm that nobody asked for", spoiled(&|batch| batch.norm = host::QkNorm::L2 { eps: 1e-2 })),
        ("a scale off by one percent", spoiled(&|batch| batch.scale *= 1.01)),
        ("an output rounded to bf16", spoiled(&|batch| batch.out = Dtype::Bf16)),
        (
            "bf16 read as f16",
            spoiled(&|batch| {
                let Numbers::Bf16(v) = &batch.v else { unreachable!("bf16") };
                let reread: Vec<f32> = v.iter().map(|x| half::f16::from_bits(x.to_bits()).to_f32()).collect();
                batch.v = Numbers::new(&reread, Dtype::Bf16);
            }),
        ),
        ("an empty sequence's state in another's slot", swapped),
    ] {
        assert!(batch.agrees(&outputs, &bars::SEQUENTIAL).is_err(), "{mistake} passes for right");
    }
}
