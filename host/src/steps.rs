//! A call as launches: which kernel it takes, and every launch in order, whoever carries them out.
#![forbid(unsafe_code)]
use crate::batches::Batches;
use crate::conversions;
use crate::copies;
use crate::decode;
use crate::dispatch::{self, Launch};
use crate::error::{Error, Reason, Result};
use crate::kernel::{self, Kernel, RecurrentLaunch};
use crate::plain;
use crate::policy::{Card, PathChoice, Policy};
use crate::request::Request;
use crate::segments::{self, Form};
use crate::sequences::Sequences;
use crate::upload;
use crate::widened::Widened;
use cuda_std::{Global, GlobalMut};

/// One launch.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::large_enum_variant)] // A step is carried out as it is made.
pub(crate) enum Step {
    /// Of a kernel that goes token by token through one sequence.
    Recurrent(RecurrentLaunch),
    /// Of one of the chunked kernels.
    Chunked(segments::Launch),
    /// Of the general kernel.
    Decode(decode::Launch),
    /// Of a table that is read on the device.
    Upload(upload::Launch),
    /// Of inputs as the chunked kernels read them.
    Widen(conversions::Widen),
    /// Of an output in the caller's type.
    Narrow(conversions::Narrow),
    /// Of states from the caller's slots, and back.
    Copy(copies::Launch),
    /// Of zeros in the output of padding.
    ClearPadding(conversions::ClearPadding),
}

/// Which kernel a call takes, with the reason. `request` is valid.
///
/// Sequences of f32 that nothing special is asked of go each by the kernel that it would take alone, on tensor cores together. Other
/// calls are converted to such ones where that takes a chunked kernel. Short sequences of a batch, and what is not converted, go
/// through the general kernel together.
///
/// # Errors
/// [`Error::Refused`] where the forced kernel, or every kernel, cannot run.
pub(crate) fn choose(card: &Card, request: &Request<'_>, policy: &Policy) -> Result<Launch> {
    let request = &request.without_idle_strides();
    let against = match policy.path {
        PathChoice::Forced(Kernel::Decode) => Reason::Forced,
        PathChoice::Forced(kernel) => match plain::require(request) {
            Ok(()) => return by_sequences(card, request, policy),
            Err(_) if kernel.is_chunked() => return Ok(Widened::of(card, request, policy)?.launch()),
            Err(reason) => return Err(Error::Refused { kernel: kernel.name(), reason }),
        },
        PathChoice::Recurrent | PathChoice::Auto => match plain::require(request) {
            Ok(()) => match prefer_sequences(request, policy) {
                Ok(()) => return by_sequences(card, request, policy),
                Err(reason) => reason,
            },
            Err(reason) if policy.path == PathChoice::Recurrent => reason,
            Err(_) => match Widened::of(card, request, policy) {
                Ok(widened) => return Ok(widened.launch()),
                Err(Error::Refused { reason, .. }) => reason,
                Err(error) => return Err(error),
            },
        },
    };
    let kernel = Kernel::Decode;
    decode::require(&policy.passing(card), request)
        .map_err(|reason| Error::Refused { kernel: kernel.name(), reason })?;
    let words = table(request).map_or(0, <[u32]>::len);
    let launches = match request.sequences.count() {
        0 => 0,
        _ if request.every.is_some() => pieces(request).count(),
        _ => 1 + words.div_ceil(upload::MOST_WORDS),
    };
    Ok(Launch { kernel, reason: against, scratch_bytes: words * size_of::<u32>(), launches })
}

/// Whether launches for each sequence are worth it.
///
/// # Errors
/// The reason against it.
fn prefer_sequences(request: &Request<'_>, policy: &Policy) -> Result<(), Reason> {
    let (sequences, tokens) = (request.sequences.count(), request.sequences.longest());
    if sequences > 1 && tokens < policy.min_chunked_tokens && request.every.is_none() {
        return Err(Reason::ShortSequences { sequences, tokens });
    }
    Ok(())
}

/// The offsets that the general kernel reads on the device.
fn table<'a>(request: &Request<'a>) -> Option<&'a [u32]> {
    match request.sequences {
        Sequences::Varlen { cu_seqlens } if decode::needs_table(request) => Some(cu_seqlens),
        _ => None,
    }
}

/// The pieces of every sequence.
fn pieces(request: &Request<'_>) -> impl Iterator<Item = plain::Piece> {
    let interval = request.every.map_or(usize::MAX, |(interval, _)| interval);
    let mut kept = 0;
    (0..request.sequences.count()).flat_map(move |index| {
        let pieces = plain::pieces(request, index, kept);
        kept += request.sequences.tokens(index) / interval;
        pieces
    })
}

/// How a plain call is carried out: each sequence by the kernel that it would take alone.
struct Plan {
    /// What the longest sequence takes.
    longest: Option<Launch>,
    /// Sequences that go through launches of their own, and their kernels.
    apart: Vec<(usize, Kernel)>,
    /// Those that go on tensor cores together.
    together: Option<Batches>,
}

impl Plan {
    /// # Errors
    /// [`Error::Refused`] where no kernel takes one of the sequences.
    fn of(card: &Card, request: &Request<'_>, policy: &Policy) -> Result<Self> {
        let mut chosen = Vec::new();
        for index in 0..request.sequences.count() {
            let (problem, pointers) = plain::sequence(request, index);
            chosen.push((problem.tokens, dispatch::choose(card, &problem, &pointers, policy)?));
        }
        // The first of the longest.
        let longest = chosen.iter().rev().max_by_key(|(tokens, _)| *tokens).map(|&(_, launch)| launch);
        let on_tensor_cores = |index: &usize| chosen[*index].1.kernel == Kernel::ChunkedTensor;
        let candidates: Vec<usize> = (0..chosen.len()).filter(on_tensor_cores).collect();
        // A limit that is too little for common launches is enough for one sequence after the other.
        let together = (candidates.len() > 1 && request.every.is_none())
            .then(|| Batches::of(request, &candidates, policy.max_scratch_bytes).ok())
            .flatten();
        let is_apart = |index: &usize| together.is_none() || !on_tensor_cores(index);
        let apart = (0..chosen.len()).filter(is_apart).map(|index| (index, chosen[index].1.kernel)).collect();
        Ok(Self { longest, apart, together })
    }

    fn steps(
        &self,
        card: &Card,
        request: &Request<'_>,
        policy: &Policy,
        scratch: GlobalMut<f32>,
        mut carry_out: impl FnMut(Step) -> Result<()>,
    ) -> Result<()> {
        if let Some(together) = &self.together {
            together.steps(&policy.passing(card), request, scratch, &mut carry_out)?;
        }
        let mut kept = 0;
        for &(index, kernel) in &self.apart {
            of_sequence(card, request, index, kept, kernel, policy, scratch, &mut carry_out)?;
            kept += request.every.map_or(0, |(interval, _)| request.sequences.tokens(index) / interval);
        }
        Ok(())
    }
}

/// The kernel of the longest sequence, the launches of all.
fn by_sequences(card: &Card, request: &Request<'_>, policy: &Policy) -> Result<Launch> {
    let plan = Plan::of(card, request, policy)?;
    let passed = policy.passing(card);
    let mut launches = plan.together.as_ref().map_or(0, |together| together.launches(&passed));
    let mut scratch_bytes = plan.together.as_ref().map_or(0, |together| together.scratch_bytes);
    for &(index, kernel) in &plan.apart {
        let (problem, pointers) = plain::sequence(request, index);
        scratch_bytes = scratch_bytes.max(dispatch::choose(card, &problem, &pointers, policy)?.scratch_bytes);
        of_sequence(card, request, index, 0, kernel, policy, GlobalMut::new(core::ptr::null_mut()), |_| {
            launches += 1;
            Ok(())
        })?;
    }
    // Without sequences nothing is launched.
    let none = Launch { kernel: Kernel::RecurrentByColumn, reason: Reason::Selected, scratch_bytes: 0, launches: 0 };
    Ok(Launch { scratch_bytes, launches, ..plan.longest.unwrap_or(none) })
}

/// Every launch of a call for which [`choose`] has given `launch`, in order. `scratch` is as many bytes as it says.
///
/// # Errors
/// Those of `carry_out`.
pub(crate) fn steps(
    card: &Card,
    request: &Request<'_>,
    launch: &Launch,
    policy: &Policy,
    scratch: GlobalMut<f32>,
    mut carry_out: impl FnMut(Step) -> Result<()>,
) -> Result<()> {
    let request = &request.without_idle_strides();
    if launch.kernel == Kernel::Decode {
        return by_decode(request, scratch, carry_out);
    }
    if plain::require(request).is_err() {
        return Widened::of(card, request, policy)?.steps(card, request, policy, scratch, &mut carry_out);
    }
    Plan::of(card, request, policy)?.steps(card, request, policy, scratch, carry_out)
}

fn by_decode(
    request: &Request<'_>,
    scratch: GlobalMut<f32>,
    mut carry_out: impl FnMut(Step) -> Result<()>,
) -> Result<()> {
    if request.sequences.count() == 0 {
        return Ok(());
    }
    if request.every.is_some() {
        return pieces(request).map(|piece| Step::Decode(decode::piece(request, &piece))).try_for_each(carry_out);
    }
    let offsets = GlobalMut::new(scratch.as_ptr().cast());
    for (index, words) in table(request).unwrap_or_default().chunks(upload::MOST_WORDS).enumerate() {
        carry_out(Step::Upload(upload::launch(words, offsets.offset(index * upload::MOST_WORDS))))?;
    }
    carry_out(Step::Decode(decode::whole(request, Global::new(offsets.as_ptr().cast_const()))))
}

/// The launches of one sequence by `kernel`, `kept` states being kept of those before it.
#[allow(clippy::too_many_arguments)]
fn of_sequence(
    card: &Card,
    request: &Request<'_>,
    index: usize,
    kept: usize,
    kernel: Kernel,
    policy: &Policy,
    scratch: GlobalMut<f32>,
    mut carry_out: impl FnMut(Step) -> Result<()>,
) -> Result<()> {
    for piece in plain::pieces(request, index, kept) {
        let (problem, pointers) = plain::of(request, &piece);
        let Some(form) = Form::of(kernel) else {
            let launch = kernel::recurrent_launch(kernel, &problem, &pointers).expect("not chunked");
            carry_out(Step::Recurrent(launch))?;
            continue;
        };
        let segments = dispatch::cut(form, &problem, &pointers, policy.max_scratch_bytes)
            .map_err(|reason| Error::Refused { kernel: kernel.name(), reason })?;
        segments::launches(&policy.passing(card), &problem, &pointers, segments, scratch)
            .map(Step::Chunked)
            .try_for_each(&mut carry_out)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inputs::{Family, Inputs};
    use crate::{Call, HeadMap, Heads, QkNorm};

    /// The PTX entries that a prompt takes on an H200 under `policy`.
    fn entries(policy: &Policy) -> Vec<&'static str> {
        entries_of(policy, |call| call)
    }

    /// Those that it takes where `ask` has asked for more.
    fn entries_of(policy: &Policy, ask: impl Fn(Call<'_>) -> Call<'_>) -> Vec<&'static str> {
        let card = Card::new(90, 132, 232_448);
        let inputs = Inputs::seeded(Heads::new(1, 2, HeadMap::Grouped).unwrap(), 64, Family::Base, 1);
        let (mut out, mut state) = (vec![0.0; inputs.v.len()], inputs.state.clone());
        let call = ask(inputs.call(&mut out, &mut state));
        let request = call.request();
        let launch = choose(&card, &request, policy).unwrap();
        let mut entries = Vec::new();
        steps(&card, &request, &launch, policy, GlobalMut::new(core::ptr::null_mut()), |step| {
            entries.push(match step {
                Step::Recurrent(step) => step.entry.symbol,
                Step::Chunked(step) => step.entry.symbol,
                Step::Decode(step) => step.entry.symbol,
                Step::Upload(step) => step.entry.symbol,
                Step::Widen(step) => step.entry.symbol,
                Step::Narrow(step) => step.entry.symbol,
                Step::Copy(step) => step.entry.symbol,
                Step::ClearPadding(step) => step.entry.symbol,
            });
            Ok(())
        })
        .unwrap();
        assert_eq!(entries.len(), launch.launches);
        entries
    }

    #[test]
    fn a_card_that_passes_for_another_takes_the_others_entries() {
        let as_if = |capability| entries(&Policy { emulate_capability: capability, ..Policy::default() });

        assert_eq!(as_if(None), ["gdn_chunk_prep_hopper_r2", "gdn_chunk_scan_warpgroup"]);
        assert_eq!(as_if(Some(80)), ["gdn_chunk_prep_tensor_r2", "gdn_chunk_scan_tensor_ahead", "gdn_chunk_fallback"]);
        assert_eq!(as_if(Some(75)), ["gdn_recurrent_by_column"]);
    }

    #[test]
    fn what_is_converted_takes_the_same_entries_between_others() {
        fn slots(call: Call<'_>) -> Call<'_> {
            call.qk_norm(QkNorm::L2 { eps: 1e-6 }).state_indices(&[0i32])
        }
        let policy = Policy::default();
        let plain = entries(&policy);
        let converted = entries_of(&policy, slots);
        assert_eq!(converted[..2], ["gdn_widen", "gdn_copy_states"]);
        assert_eq!(converted[2..2 + plain.len()], plain);
        assert_eq!(converted[2 + plain.len()..], ["gdn_copy_states", "gdn_clear_padding"]);
        assert_eq!(entries_of(&Policy::with_path(PathChoice::Recurrent), slots), ["gdn_decode"]);
    }
}
