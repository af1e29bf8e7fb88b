//! Several sequences on tensor cores in common launches: their segments in groups, and the table that says which are in one.
#![forbid(unsafe_code)]
use crate::dispatch;
use crate::error::{Reason, Result};
use crate::plain;
use crate::policy::Card;
use crate::request::Request;
use crate::segments::{self, Form, Launch};
use crate::steps::Step;
use crate::upload;
use cuda_std::{Global, GlobalMut};
use kernels_gpu::kernels::chunk::{Args, CHUNK};
use kernels_gpu::kernels::chunk_parts::WORDS;
use kernels_gpu::kernels::{chunk_fallback, chunk_prep_tensor, chunk_scan_tensor};
use std::ops::Range;

/// Chunks of a group, where the limit of the scratch allows so many: of 8,192 tokens, enough that the blocks of several
/// segments fill a card evenly.
const GROUP_CHUNKS: usize = 8192 / CHUNK;

/// Blocks along the second axis of a grid.
const MOST_BLOCKS: usize = 65_535;

/// A segment of a sequence. Sequences are cut as they would be alone, so that they have the bits they have alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    /// Its place in the batch.
    sequence: usize,
    /// Which of its sequence's segments it is.
    round: usize,
    first: usize,
    tokens: usize,
    is_last: bool,
    /// Among the states between segments, of a sequence that has several.
    kept: usize,
}

impl Part {
    fn chunks(&self) -> usize {
        self.tokens.div_ceil(CHUNK)
    }
}

/// The groups of a batch.
#[derive(Clone, Debug)]
pub(crate) struct Batches {
    /// Group by group, the longest first in each.
    parts: Vec<Part>,
    groups: Vec<Range<usize>>,
    /// Where in the scratch, in floats, states between segments stand, and the chunks. The table is at its start.
    kept_states: usize,
    chunks: usize,
    /// From a group's chunks to the next one's: groups take turns, so that chunk prep of the next one may run while this one's
    /// are read.
    stride: usize,
    /// Scratch of the table, of the states between segments, and of the longest groups.
    pub scratch_bytes: usize,
}

impl Batches {
    /// Cuts these sequences of a request, which go through the form on tensor cores, with at most `limit` bytes of scratch.
    ///
    /// # Errors
    /// [`Reason::ScratchLimit`] where that is too little for common launches.
    pub fn of(request: &Request<'_>, sequences: &[usize], limit: usize) -> Result<Self, Reason> {
        let heads = &request.heads;
        let mut all = Vec::new();
        let (mut kept, mut state_len) = (0, 0);
        for &sequence in sequences {
            let (problem, pointers) = plain::sequence(request, sequence);
            let segments = dispatch::cut(Form::Tensor, &problem, &pointers, limit)?;
            for round in 0..segments.count() {
                let (first, tokens) = segments.extent(round);
                all.push(Part { sequence, round, first, tokens, is_last: round + 1 == segments.count(), kept });
            }
            if segments.count() > 1 {
                kept += 1;
                state_len = problem.state.elements(&problem.heads).next_multiple_of(4);
            }
        }
        all.sort_by_key(|part| (part.round, core::cmp::Reverse(part.tokens)));
        let kept_states = all.len() * WORDS;
        let chunks = kept_states + if request.last.is_some() { 0 } else { kept * state_len };
        // Each on 16 bytes.
        let stride = |group: usize| Form::Tensor.scratch_len(group * CHUNK, heads).next_multiple_of(4);
        let bytes = |turns: usize, group: usize| (chunks + turns * stride(group)) * size_of::<f32>();
        // The scan counts the floats of a group's scratch in 32 bits.
        let limit = limit.min(u32::MAX as usize * size_of::<f32>());
        let longest = all.iter().map(Part::chunks).max().unwrap_or(0);
        if bytes(2, longest) > limit {
            return Err(Reason::ScratchLimit { need: bytes(2, longest), limit });
        }
        let allowed = (longest..=GROUP_CHUNKS).rev().find(|&group| bytes(2, group) <= limit).unwrap_or(longest);
        let groups = groups(&mut all, allowed, MOST_BLOCKS / heads.num_v_heads);
        let most = groups.iter().map(|group| all[group.clone()].iter().map(Part::chunks).sum()).max().unwrap_or(0);
        let scratch_bytes = bytes(groups.len().min(2), most);
        Ok(Self { parts: all, groups, kept_states, chunks, stride: stride(most), scratch_bytes })
    }

    /// Kernels that are launched on `card`.
    pub fn launches(&self, card: &Card) -> usize {
        let has_tokens = |group: &Range<usize>| self.parts[group.start].tokens > 0;
        let phases = Form::Tensor.phases(card).len();
        let of_groups: usize = self.groups.iter().map(|group| if has_tokens(group) { phases } else { 1 }).sum();
        (self.parts.len() * WORDS).div_ceil(upload::MOST_WORDS) + of_groups
    }

    /// Every launch, in order. `scratch` is as many bytes as this says.
    ///
    /// # Errors
    /// Those of `carry_out`.
    pub fn steps(
        &self,
        card: &Card,
        request: &Request<'_>,
        scratch: GlobalMut<f32>,
        mut carry_out: impl FnMut(Step) -> Result<()>,
    ) -> Result<()> {
        let Some(first) = self.parts.first() else { return Ok(()) };
        let table: GlobalMut<u32> = scratch.cast();
        for (index, words) in self.words(request).chunks(upload::MOST_WORDS).enumerate() {
            carry_out(Step::Upload(upload::launch(words, table.offset(index * upload::MOST_WORDS))))?;
        }
        let whole = self.args(request, first.sequence, scratch);
        let (ratio, num_value_heads) = (request.heads.values_per_key(), request.heads.num_v_heads as u32);
        let is_hopper = Form::Tensor.is_hopper(card);
        let chunks_of = |group: &Range<usize>| self.parts[group.clone()].iter().map(Part::chunks).sum::<usize>();
        let mut launch = |phase, index: usize, entry, grid, follows_early| {
            let group = &self.groups[index];
            let args = Args {
                scratch: whole.scratch.offset(index % 2 * self.stride),
                parts: Global::new(table.offset(group.start * WORDS).as_ptr().cast_const()),
                num_parts: group.len() as u32,
                chunks: chunks_of(group) as u32,
                ..whole
            };
            carry_out(Step::Chunked(Launch { entry, grid, args, follows_early, phase }))
        };
        let prep_entry = Form::Tensor.prep_entry(ratio, is_hopper);
        let prep_grid = |index: usize| {
            let chunks = self.groups.get(index).map_or(0, chunks_of);
            (chunks > 0).then(|| chunk_prep_tensor::grid(chunks * CHUNK, request.heads.num_k_heads as u32))
        };
        if let Some(grid) = prep_grid(0) {
            launch(0, 0, prep_entry, grid, false)?;
        }
        for (index, group) in self.groups.iter().enumerate() {
            let parts = group.len() as u32;
            // On Hopper the scan waits for chunk prep itself, and chunk prep of a later group takes the multiprocessors that the
            // scan in front of it leaves.
            let follows_early = is_hopper && chunks_of(group) > 0;
            let scan_grid = chunk_scan_tensor::grid(num_value_heads, parts);
            launch(1, index, Form::Tensor.scan_entry(ratio, card), scan_grid, follows_early)?;
            if let Some(grid) = prep_grid(index + 1) {
                launch(0, index + 1, prep_entry, grid, is_hopper)?;
            }
            if chunks_of(group) > 0 && !is_hopper {
                let grid = chunk_fallback::grid(num_value_heads, parts);
                launch(2, index, &chunk_fallback::KERNEL.entries[0], grid, false)?;
            }
        }
        Ok(())
    }

    /// The table.
    fn words(&self, request: &Request<'_>) -> Vec<u32> {
        let mut words = Vec::with_capacity(self.parts.len() * WORDS);
        for group in &self.groups {
            let mut first_chunk = 0;
            for part in &self.parts[group.clone()] {
                let [batch, token] = request.sequences.start(part.sequence);
                // With a final state, the states between segments stand in its pool.
                let kept = if request.last.is_some() { part.sequence } else { part.kept };
                let held = |is_kept: bool| [usize::from(is_kept), if is_kept { kept } else { part.sequence }];
                let [from, to] = [held(part.round > 0), held(!part.is_last)];
                let place = [batch, token + part.first, part.tokens, first_chunk];
                words.extend(place.into_iter().chain(from).chain(to).map(|word| word as u32));
                first_chunk += part.chunks();
            }
        }
        words
    }

    /// The arguments of a launch, but for its parts.
    fn args(&self, request: &Request<'_>, sequence: usize, scratch: GlobalMut<f32>) -> Args {
        let Request { q, k, v, out, initial, last, .. } = request;
        let [g, beta] = request.gates.tensors();
        let (problem, _) = plain::sequence(request, sequence);
        let pointers = plain::whole(request);
        let slot = |pool: &Option<crate::request::Pool>| pool.map_or(0, |pool| pool.layout.slot);
        let (kept_states, kept_state_stride) = match last {
            Some(pool) => (pointers.final_state, pool.layout.slot),
            None => (scratch.offset(self.kept_states), problem.state.elements(&problem.heads).next_multiple_of(4)),
        };
        Args {
            q_batch_stride: q.batch_stride,
            k_batch_stride: k.batch_stride,
            v_batch_stride: v.batch_stride,
            g_batch_stride: g.batch_stride,
            beta_batch_stride: beta.batch_stride,
            out_batch_stride: out.batch_stride,
            initial_state_stride: slot(initial),
            final_state_stride: slot(last),
            kept_states,
            kept_state_stride,
            ..segments::args(&problem, &pointers, scratch.offset(self.chunks), 0, 0)
        }
    }
}

/// Groups of at most so many chunks and parts, none with two segments of one sequence: a segment starts from what a group
/// before it left. Each is sorted, the longest first.
fn groups(parts: &mut [Part], most_chunks: usize, most_parts: usize) -> Vec<Range<usize>> {
    let mut groups: Vec<Range<usize>> = Vec::new();
    let (mut start, mut chunks, mut in_group) = (0, 0, std::collections::HashSet::new());
    for (index, part) in parts.iter().enumerate() {
        let is_full = chunks + part.chunks() > most_chunks || index - start >= most_parts;
        if index > start && (is_full || in_group.contains(&part.sequence)) {
            groups.push(start..index);
            (start, chunks) = (index, 0);
            in_group.clear();
        }
        chunks += part.chunks();
        in_group.insert(part.sequence);
    }
    if start < parts.len() {
        groups.push(start..parts.len());
    }
    for group in &groups {
        parts[group.clone()].sort_by_key(|part| core::cmp::Reverse(part.tokens));
    }
    groups
}
