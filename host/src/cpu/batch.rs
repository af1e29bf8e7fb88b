//! The sequences of a call as independent jobs: each has its rows of the output, the slots that it writes, and a view of what
//! it starts from.
#![forbid(unsafe_code)]
use super::prepare::{Buffers, Source};
use super::rows::Rows;
use super::split;
use super::uses::uses;
use super::{PartSize, Path, advance};
use crate::call::{Call, States};
use crate::error::Result;
use crate::heads::{HEAD_DIM, Heads};
use ndarray::{Array3, ArrayView3, ArrayViewMut3};
use pulp::Arch;
use rayon::prelude::*;

/// Tokens that are converted at once: a multiple of the chunk, so that no bit depends on it.
const PIECE: usize = 512;

/// Runs `call`, which is valid, sequence by sequence, by `path` or by the one that each sequence's length names.
///
/// # Errors
/// Those of [`uses`]; nothing has been written then.
pub(super) fn run(call: Call<'_>, path: Option<Path>, arch: Arch) -> Result<()> {
    let uses = uses(&call)?;
    let slots = call.request().written_slots();
    let Call { heads, sequences, q, k, v, gates, out, states, every, scale, norm, .. } = call;
    let source = Source { heads, q, k, v, gates, norm, scale };
    let (initial, last, in_place) = match states {
        States::InPlace(state) => (None, Some(state), true),
        States::Apart { initial, last } => (initial, last, false),
    };
    let mut pool: Vec<Option<ArrayViewMut3<'_, f32>>> =
        last.map_or(Vec::new(), |state| split::slots(state.data, slots, &heads, state.layout).map(Some).collect());
    let slots_kept = every.as_ref().map_or(0, |(interval, _)| sequences.checkpoints(*interval));
    let (interval, kept) = every.map_or((usize::MAX, None), |(interval, state)| (interval, Some(state)));
    let mut kept = kept.into_iter().flat_map(|state| split::slots(state.data, slots_kept, &heads, state.layout));

    let outs = Rows::of_sequences(out, &sequences, &heads);
    let mut jobs = Vec::with_capacity(uses.len());
    for (index, (out, found)) in outs.into_iter().zip(&uses).enumerate() {
        let tokens = sequences.tokens(index);
        let mut stores: Vec<Store<'_>> = Vec::new();
        for (&slot, &after) in &found.written {
            let state = pool[slot].take().expect("no slot has two writers");
            stores.push(Store { after, state, is_start: in_place && found.read == Some(slot) });
        }
        for count in 1..=tokens / interval {
            let state = kept.next().expect("as many as `validate` asked for");
            if !found.padding {
                stores.push(Store { after: count * interval, state, is_start: false });
            }
        }
        jobs.push(Job { start: sequences.start(index), tokens, out, stores, initial: None, padding: found.padding });
    }
    // What nobody writes may be read by several.
    for (job, found) in jobs.iter_mut().zip(&uses) {
        job.initial = match (found.read, &initial) {
            (Some(slot), Some(state)) => Some(split::slot(state.data, slot, &heads, state.layout)),
            (Some(slot), None) => pool[slot].as_ref().map(|state| state.view()),
            (None, _) => None,
        };
    }
    let threads = rayon::current_num_threads().div_ceil(jobs.len().max(1));
    jobs.into_par_iter().for_each_init(Room::default, |room, job| {
        let path = path.unwrap_or_else(|| Path::choose(job.tokens, &heads));
        let how = How { path, size: PartSize::new(&heads, path, threads), arch };
        job.run(&source, &how, room);
    });
    Ok(())
}

/// How a sequence is carried out.
struct How {
    path: Path,
    size: PartSize,
    arch: Arch,
}

/// What a thread converts in, kept from job to job.
#[derive(Default)]
struct Room {
    inputs: Buffers,
    out: Vec<f32>,
}

/// A slot that a sequence's state is stored in.
struct Store<'a> {
    /// After so many tokens.
    after: usize,
    /// `[head, key row, value column]`.
    state: ArrayViewMut3<'a, f32>,
    /// It holds the state that the sequence starts from.
    is_start: bool,
}

/// One sequence.
struct Job<'a> {
    /// On the batch axis, on the token axis.
    start: [usize; 2],
    tokens: usize,
    out: Rows<'a>,
    stores: Vec<Store<'a>>,
    /// Where it starts from, if that is none of the stores.
    initial: Option<ArrayView3<'a, f32>>,
    padding: bool,
}

impl Job<'_> {
    fn run(mut self, source: &Source<'_>, how: &How, room: &mut Room) {
        if self.padding {
            return self.out.zero();
        }
        // The state stands where it is to be in the end, if its columns lie as the sums take them.
        let contiguous = |store: &Store<'_>| store.after == self.tokens && store.state.strides()[2] == 1;
        let home = (self.stores.iter().position(|store| contiguous(store) && store.is_start))
            .or_else(|| self.stores.iter().position(contiguous));
        let mut home = home.map(|index| self.stores.swap_remove(index));
        let start = match &home {
            Some(store) if store.is_start => None,
            _ => (self.stores.iter().find(|store| store.is_start).map(|store| store.state.view())).or(self.initial),
        };
        let mut copy = None;
        let mut state = match (&mut home, start) {
            (Some(home), start) => {
                match start {
                    Some(start) => home.state.assign(&start),
                    None if !home.is_start => home.state.fill(0.0),
                    None => {}
                }
                Some(home.state.view_mut())
            }
            (None, Some(start)) => {
                // Not `to_owned`, which keeps the order of the axes.
                let copy = copy.insert(zeros(&source.heads));
                copy.assign(&start);
                Some(copy.view_mut())
            }
            // A state that is zero and dropped needs no memory, unless it has to wait between pieces.
            (None, None) if self.stores.is_empty() && source.as_they_are(self.start, 0..self.tokens).is_some() => None,
            (None, None) => Some(copy.insert(zeros(&source.heads)).view_mut()),
        };
        let mut done = 0;
        while done < self.tokens {
            let next = self.stores.iter().map(|store| store.after).filter(|&after| after > done).min();
            let next = next.unwrap_or(self.tokens);
            let (inputs, next) = match source.as_they_are(self.start, done..next) {
                Some(inputs) => (inputs, next),
                None => {
                    let next = next.min(done - done % PIECE + PIECE);
                    (source.converted(self.start, done..next, &mut room.inputs), next)
                }
            };
            self.out.write(done..next, &mut room.out, |out| {
                advance(
                    &inputs,
                    &source.heads,
                    how.path,
                    &how.size,
                    out,
                    state.as_mut().map(|state| state.view_mut()),
                    how.arch,
                );
            });
            done = next;
            if let Some(state) = &state {
                store(&mut self.stores, done, state);
            }
        }
        if let (Some(state), 0) = (&state, self.tokens) {
            store(&mut self.stores, 0, state);
        }
    }
}

/// `[head, key row, value column]`.
fn zeros(heads: &Heads) -> Array3<f32> {
    Array3::zeros((heads.num_v_heads, HEAD_DIM, HEAD_DIM))
}

/// Stores the state that is to be stored after so many tokens.
fn store(stores: &mut [Store<'_>], after: usize, state: &ArrayViewMut3<'_, f32>) {
    stores.iter_mut().filter(|store| store.after == after).for_each(|store| store.state.assign(state));
}
