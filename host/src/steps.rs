//! A call as launches: which kernel it takes, and every launch in order, whoever carries them out.
#![forbid(unsafe_code)]
use crate::dispatch::{self, Launch};
use crate::error::{Error, Reason, Result};
use crate::kernel::{self, Kernel, RecurrentLaunch};
use crate::plain;
use crate::policy::{Card, PathChoice, Policy};
use crate::request::Request;
use crate::segments::{self, Form};
use cuda_std::GlobalMut;

/// One launch.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    /// Of a kernel that goes token by token.
    Recurrent(RecurrentLaunch),
    /// Of one of the chunked kernels.
    Chunked(segments::Launch),
}

/// Which kernel a call takes, with the reason. `request` is valid.
///
/// # Errors
/// [`Error::Refused`] where the forced kernel, or every kernel, cannot run.
pub(crate) fn choose(card: &Card, request: &Request<'_>, policy: &Policy) -> Result<Launch> {
    let request = request.without_idle_strides();
    let refused = |reason| match policy.path {
        PathChoice::Forced(kernel) => Error::Refused { kernel: kernel.name(), reason },
        _ => Error::Refused { kernel: Kernel::RecurrentByColumn.name(), reason },
    };
    plain::require(&request).map_err(refused)?;
    one_after_the_other(card, &request, policy)
}

/// The kernel of the longest sequence, the launches of all.
fn one_after_the_other(card: &Card, request: &Request<'_>, policy: &Policy) -> Result<Launch> {
    let mut all: Option<(usize, Launch)> = None;
    for index in 0..request.sequences.count() {
        let (problem, pointers) = plain::sequence(request, index);
        let one = dispatch::choose(card, &problem, &pointers, policy)?;
        let mut launches = 0;
        of_sequence(request, index, 0, one.kernel, policy, GlobalMut::new(core::ptr::null_mut()), |_| {
            launches += 1;
            Ok(())
        })?;
        let tokens = problem.tokens;
        all = Some(match all {
            None => (tokens, Launch { launches, ..one }),
            Some((longest, before)) => {
                let scratch_bytes = before.scratch_bytes.max(one.scratch_bytes);
                let launches = before.launches + launches;
                let first = if tokens > longest { one } else { before };
                (longest.max(tokens), Launch { scratch_bytes, launches, ..first })
            }
        });
    }
    // Without sequences nothing is launched.
    let none = Launch { kernel: Kernel::RecurrentByColumn, reason: Reason::Selected, scratch_bytes: 0, launches: 0 };
    Ok(all.map_or(none, |(_, launch)| launch))
}

/// Every launch of a call that [`choose`] has let pass, in order. `scratch` is as many bytes as the choice says.
///
/// # Errors
/// As [`choose`].
pub(crate) fn steps(
    card: &Card,
    request: &Request<'_>,
    policy: &Policy,
    scratch: GlobalMut<f32>,
    mut carry_out: impl FnMut(Step) -> Result<()>,
) -> Result<()> {
    let request = request.without_idle_strides();
    let mut kept = 0;
    for index in 0..request.sequences.count() {
        let (problem, pointers) = plain::sequence(&request, index);
        let kernel = dispatch::choose(card, &problem, &pointers, policy)?.kernel;
        of_sequence(&request, index, kept, kernel, policy, scratch, &mut carry_out)?;
        kept += request.every.map_or(0, |(interval, _)| request.sequences.tokens(index) / interval);
    }
    Ok(())
}

/// The launches of one sequence by `kernel`, `kept` states being kept of those before it.
fn of_sequence(
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
        segments::launches(&problem, &pointers, segments, scratch).map(Step::Chunked).try_for_each(&mut carry_out)?;
    }
    Ok(())
}
