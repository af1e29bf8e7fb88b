//! Batches through the form on tensor cores: every sequence has the bits that it has alone, by every scan.
use super::{CARD, run_on};
use crate::batches::Batches;
use crate::call::{Call, Gates, State, StateView, View, ViewMut};
use crate::compare::{Tensor, compare};
use crate::heads::{HEAD_DIM, HeadMap, Heads};
use crate::inputs::{Family, Inputs};
use crate::layout::{StateLayout, Strides};
use crate::policy::Card;
use crate::reference::reference_f64;
use crate::sequences::Sequences;
use crate::{Kernel, PathChoice, Policy};

/// As on Hopper; on a card with enough shared memory to copy two chunks ahead; on the smallest.
const CARDS: [Card; 3] = [
    Card::new(90, CARD.multiprocessors, 227 << 10),
    Card::new(80, CARD.multiprocessors, 227 << 10),
    Card::new(80, CARD.multiprocessors, 99 << 10),
];

/// Lengths around the chunk, empty sequences, some with several segments where the scratch is short.
const LENGTHS: [usize; 8] = [70, 0, 33, 130, 0, 5, 1, 96];

/// Where the states of a batch come from and go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum States {
    InPlace,
    Dropped,
    None,
}

fn heads() -> Heads {
    Heads::new(1, 2, HeadMap::Tiled).unwrap()
}

/// Sequences of these lengths, with inputs of their own.
fn sequences(lengths: &[usize], family: Family) -> Vec<Inputs> {
    lengths.iter().enumerate().map(|(n, &tokens)| Inputs::seeded(heads(), tokens, family, 40 + n as u64)).collect()
}

fn packed(sequences: &[Inputs], of: impl Fn(&Inputs) -> &Vec<f32>) -> Vec<f32> {
    sequences.iter().flat_map(|inputs| of(inputs).iter().copied()).collect()
}

fn policy(max_scratch_bytes: usize) -> Policy {
    Policy { max_scratch_bytes, ..Policy::with_path(PathChoice::Forced(Kernel::ChunkedTensor)) }
}

/// Each sequence's output and state: of a packed batch, or of one of a single length whose tensors are head-major.
fn run(card: &Card, sequences: &[Inputs], uniform: bool, states: States, limit: usize) -> Vec<(Vec<f32>, Vec<f32>)> {
    let heads = heads();
    let (q, k, v) = (packed(sequences, |i| &i.q), packed(sequences, |i| &i.k), packed(sequences, |i| &i.v));
    let (g, beta) = (packed(sequences, |i| &i.g), packed(sequences, |i| &i.beta));
    let mut pool = packed(sequences, |i| &i.state);
    let mut cu_seqlens = vec![0];
    sequences.iter().for_each(|i| cu_seqlens.push(cu_seqlens[cu_seqlens.len() - 1] + i.tokens as u32));
    let tokens = sequences[0].tokens;
    let packing = if uniform {
        Sequences::Uniform { batch: sequences.len(), tokens }
    } else {
        Sequences::Varlen { cu_seqlens: &cu_seqlens }
    };
    let mut out = vec![f32::NAN; v.len()];
    let row = heads.num_v_heads * HEAD_DIM;
    fn view(data: &[f32], heads: usize, dim: usize, tokens: usize) -> View<'_> {
        View::new(data, Strides::dense(heads, dim)).batch_stride(tokens * heads * dim)
    }
    let gates =
        Gates::Log { g: view(&g, heads.num_v_heads, 1, tokens), beta: view(&beta, heads.num_v_heads, 1, tokens) };
    let call = Call::new(
        heads,
        packing,
        view(&q, heads.num_k_heads, HEAD_DIM, tokens),
        view(&k, heads.num_k_heads, HEAD_DIM, tokens),
        view(&v, heads.num_v_heads, HEAD_DIM, tokens),
        gates,
        ViewMut::new(&mut out, Strides::dense(heads.num_v_heads, HEAD_DIM)).batch_stride(tokens * row),
    )
    .scale(sequences[0].scale);
    let layout = StateLayout::key_major(&heads);
    let call = match states {
        States::InPlace => call.state(State { data: &mut pool, layout }),
        States::Dropped => call.initial_state(StateView { data: &pool, layout }),
        States::None => call,
    };
    run_on(card, call, &policy(limit), 1).unwrap();
    let states = pool.chunks(heads.state_len()).map(<[f32]>::to_vec);
    let ends = cu_seqlens.windows(2).map(|ends| out[ends[0] as usize * row..ends[1] as usize * row].to_vec());
    ends.zip(states).collect()
}

/// Bytes of scratch of so many chunks, and a little more, for a table.
fn scratch_of(chunks: usize) -> usize {
    let Heads { num_k_heads, num_v_heads, .. } = heads();
    let floats = kernels_gpu::kernels::chunk_tensor::scratch_len(32 * chunks, num_k_heads, num_v_heads);
    4 * floats + 1024
}

#[track_caller]
fn assert_bits_alone(cards: &[Card], sequences: &[Inputs], uniform: bool, states: States, limit: usize) {
    for card in cards {
        let together = run(card, sequences, uniform, states, limit);
        for (index, (inputs, output)) in sequences.iter().zip(&together).enumerate() {
            let alone = run(card, std::slice::from_ref(inputs), false, states, limit);
            let same = |a: &[f32], b: &[f32]| a.iter().map(|x| x.to_bits()).eq(b.iter().map(|x| x.to_bits()));
            assert!(same(&alone[0].0, &output.0), "output of {index}, {states:?}, {card:?}");
            assert!(same(&alone[0].1, &output.1), "state of {index}, {states:?}, {card:?}");
        }
    }
}

#[test]
fn packed_sequences_have_the_bits_they_have_alone() {
    assert_bits_alone(&CARDS, &sequences(&LENGTHS, Family::Base), false, States::InPlace, usize::MAX);
}

#[test]
fn segments_of_several_sequences_have_them_too() {
    for (cards, states) in [(&CARDS[..], States::InPlace), (&CARDS[..1], States::Dropped), (&CARDS[2..], States::None)]
    {
        // Dropped states stand in the scratch between segments, so that it has to be longer.
        let kept = if states == States::InPlace { 0 } else { 4 * heads().state_len() };
        assert_bits_alone(cards, &sequences(&[70, 0, 33, 300], Family::Base), false, states, scratch_of(6) + kept);
    }
}

#[test]
fn sequences_of_one_length_have_them_too() {
    assert_bits_alone(&CARDS, &sequences(&[37; 3], Family::Base), true, States::InPlace, usize::MAX);
    assert_bits_alone(&CARDS, &sequences(&[0; 3], Family::Base), true, States::InPlace, usize::MAX);
}

/// What 16 bits cannot carry goes token by token, in its sequence alone.
#[test]
fn a_sequence_out_of_range_leaves_its_neighbours_alone() {
    let mut sequences = sequences(&[40, 70, 33], Family::Base);
    sequences[1].k.iter_mut().for_each(|k| *k *= 1.8);
    assert_bits_alone(&CARDS, &sequences, false, States::InPlace, usize::MAX);
}

#[test]
fn a_batch_agrees_with_float64() {
    let sequences = sequences(&LENGTHS, Family::Bench);
    for card in &CARDS {
        for (inputs, (out, state)) in sequences.iter().zip(run(card, &sequences, false, States::InPlace, usize::MAX)) {
            let expected = reference_f64(inputs);
            let out = compare(Tensor::Out, &heads(), &expected.out, &out);
            let state = compare(Tensor::State, &heads(), &expected.state, &state);
            assert!(out.relative_by_head <= 3e-6 && state.relative_by_head <= 4e-6, "{out:?} {state:?}");
        }
    }
}

/// Three launches for all, and a table; in groups where the scratch is short.
#[test]
fn launches_are_common() {
    let cu_seqlens = [0, 70, 70, 103, 403];
    let inputs = Inputs::seeded(heads(), 403, Family::Base, 1);
    let (mut out, mut state) = (vec![0.0; inputs.v.len()], vec![0.0; heads().state_len()]);
    let mut call = inputs.call(&mut out, &mut state);
    call.sequences = Sequences::Varlen { cu_seqlens: &cu_seqlens };
    let request = call.request().without_idle_strides();
    let batches = |limit| Batches::of(&request, &[0, 1, 2, 3], limit).unwrap();
    assert_eq!(batches(usize::MAX).launches(&CARD), 4);
    // Segments of up to three chunks, in groups of no more, of which two take turns.
    let short = batches(scratch_of(6));
    assert!(short.scratch_bytes <= scratch_of(6) && short.launches(&CARD) > 4, "{short:?}");
    assert!(Batches::of(&request, &[0, 1, 2, 3], 100).is_err());
}
