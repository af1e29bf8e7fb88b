//! Which kernel a call takes: a pure function of the card, the problem and the policy, with the reason.
#![forbid(unsafe_code)]
use crate::error::{Error, Reason, Result};
use crate::heads::Heads;
use crate::kernel::{Kernel, Pointers, Problem};
use crate::layout::{StateLayout, Strides};
use crate::policy::{Card, PathChoice, Policy};
use crate::segments::{self, Form};
use crate::sequences::Sequences;
use cuda_std::{Global, GlobalMut};

/// What a call runs, or would run, and why that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Launch {
    /// The kernel.
    pub kernel: Kernel,
    /// Why it, or why not the one that would have come before it.
    pub reason: Reason,
    /// Scratch that it uses, in bytes.
    pub scratch_bytes: usize,
    /// Kernels that it launches.
    pub launches: usize,
}

/// Chooses by the policy: the kernel that is forced, or the first that can run and is worth it, with the reason against the
/// first of those before it.
///
/// # Errors
/// [`Error::Refused`] where the forced kernel, or every kernel, cannot run.
pub(crate) fn choose(card: &Card, problem: &Problem, pointers: &Pointers, policy: &Policy) -> Result<Launch> {
    let card = policy.passing(card);
    let candidates: &[Kernel] = match &policy.path {
        PathChoice::Auto => {
            &[Kernel::ChunkedTensor, Kernel::Chunked, Kernel::RecurrentByKeyHead, Kernel::RecurrentByColumn]
        }
        PathChoice::Recurrent => &Kernel::RECURRENT,
        PathChoice::Forced(kernel) => core::slice::from_ref(kernel),
    };
    let forced = matches!(policy.path, PathChoice::Forced(_));
    let (mut against, mut last) = (None, Reason::Selected);
    for &kernel in candidates {
        let verdict = kernel
            .require(&card, problem, pointers)
            .and_then(|()| if forced { Ok(()) } else { prefer(kernel, &card, problem, policy) })
            .and_then(|()| scratch(kernel, &card, problem, pointers, policy));
        match verdict {
            Ok((scratch_bytes, launches)) => {
                let chosen = if forced { Reason::Forced } else { Reason::Selected };
                return Ok(Launch { kernel, reason: against.unwrap_or(chosen), scratch_bytes, launches });
            }
            Err(reason) => {
                against = against.or(Some(reason));
                last = reason;
            }
        }
    }
    // The last one asks for the least, so that its reason is the one to cure.
    Err(Error::Refused { kernel: candidates[candidates.len() - 1].name(), reason: last })
}

/// What a call with dense, aligned tensors and a state would run on `card`, without a device.
///
/// # Errors
/// [`Error::HeadDim`] for heads other than 128 x 128; [`Error::Refused`] where no kernel can run; [`Error::Shape`] for 2^32
/// tokens or more.
pub fn plan(card: &Card, heads: Heads, tokens: usize, policy: &Policy) -> Result<Launch> {
    heads.require_128()?;
    let values = Strides::dense(heads.num_v_heads, heads.head_v_dim);
    Sequences::from(tokens).validate()?;
    let keys = Strides::dense(heads.num_k_heads, heads.head_k_dim);
    let gates = Strides::dense(heads.num_v_heads, 1);
    let state = StateLayout::key_major(&heads);
    let problem =
        Problem { heads, tokens, scale: 1.0, q: keys, k: keys, v: values, g: gates, beta: gates, out: values, state };
    // Nothing is read there: a plan looks at alignment alone.
    let (read, write) = (Global::new(256 as *const f32), GlobalMut::new(256 as *mut f32));
    let pointers = Pointers {
        q: read,
        k: read,
        v: read,
        g: read,
        beta: read,
        out: write,
        initial_state: read,
        final_state: write,
    };
    choose(card, &problem, &pointers, policy)
}

/// Scratch bytes and launches of a kernel under the policy's limit.
fn scratch(
    kernel: Kernel,
    card: &Card,
    problem: &Problem,
    pointers: &Pointers,
    policy: &Policy,
) -> Result<(usize, usize), Reason> {
    let Some(form) = Form::of(kernel) else { return Ok((0, 1)) };
    let segments = cut(form, problem, pointers, policy.max_scratch_bytes)?;
    Ok((segments.scratch_bytes, segments.launches(card)))
}

/// How a form of the chunked path cuts the problem with at most `limit` bytes of scratch.
pub(crate) fn cut(
    form: Form,
    problem: &Problem,
    pointers: &Pointers,
    limit: usize,
) -> Result<segments::Segments, Reason> {
    segments::Segments::within(form, problem, !pointers.final_state.as_ptr().is_null(), limit)
}

/// Whether `kernel` is worth taking where [`Kernel::require`] lets it run.
///
/// # Errors
/// The first reason against it.
fn prefer(kernel: Kernel, card: &Card, problem: &Problem, policy: &Policy) -> Result<(), Reason> {
    let Some(form) = Form::of(kernel) else {
        let is_off = kernel == Kernel::RecurrentByKeyHead && !policy.by_key_head;
        return if is_off { Err(Reason::SwitchedOff { kernel: kernel.name() }) } else { Ok(()) };
    };
    let tokens = problem.tokens;
    let min = match form {
        Form::Plain => policy.min_chunked_tokens,
        Form::Tensor => policy.min_tensor_tokens,
    };
    if tokens < min {
        return Err(Reason::FewTokens { tokens, min });
    }
    let (have, need) = (card.multiprocessors, form.multiprocessors(&problem.heads));
    if policy.enough_multiprocessors && have < need {
        return Err(Reason::FewMultiprocessors { have, need });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::heads::HeadMap;
    use kernels_gpu::kernels::chunk_tensor::scratch_len as tensor_scratch_len;

    const H200: Card = Card::new(90, 132, 232_448);
    const RTX_5090: Card = Card::new(120, 170, 101_376);
    const RTX_4090: Card = Card::new(89, 128, 101_376);
    const RTX_3090: Card = Card::new(86, 82, 101_376);
    const T4: Card = Card::new(75, 40, 65_536);

    /// The smallest that the kernels by chunks are for.
    const fn small(multiprocessors: u32) -> Card {
        Card::new(80, multiprocessors, 101_376)
    }

    fn problem(key_heads: usize, value_heads: usize, tokens: usize) -> Problem {
        let heads = Heads::new(key_heads, value_heads, HeadMap::Grouped).unwrap();
        let (keys, values) = (Strides::dense(key_heads, 128), Strides::dense(value_heads, 128));
        let gates = Strides::dense(value_heads, 1);
        Problem {
            heads,
            tokens,
            scale: 1.0,
            q: keys,
            k: keys,
            v: values,
            g: gates,
            beta: gates,
            out: values,
            state: StateLayout::key_major(&heads),
        }
    }

    /// Addresses on 256 bytes; nothing is read there.
    fn pointers() -> Pointers {
        let (read, write) = (Global::new(256 as *const f32), GlobalMut::new(256 as *mut f32));
        Pointers { q: read, k: read, v: read, g: read, beta: read, out: write, initial_state: read, final_state: write }
    }

    fn chosen(card: &Card, problem: &Problem, policy: &Policy) -> (Kernel, Reason) {
        let launch = choose(card, problem, &pointers(), policy).unwrap();
        (launch.kernel, launch.reason)
    }

    #[test]
    fn the_policy_as_a_table() {
        use Kernel::{Chunked, ChunkedTensor, RecurrentByColumn, RecurrentByKeyHead};
        let auto = Policy::default();
        let two = Policy { enough_multiprocessors: false, ..Policy::default() };
        // What is left of the scratch keeps the path on tensor cores from its one chunk, and not the one in 32-bit floats.
        let tight = Policy { max_scratch_bytes: 600_000, ..Policy::default() };
        let tight_two = Policy { enough_multiprocessors: false, ..tight.clone() };
        let off = Policy::with_path(PathChoice::Recurrent);
        let column = Policy { by_key_head: false, ..off.clone() };
        let old = Policy { emulate_capability: Some(75), ..Policy::default() };
        let scratch = Reason::ScratchLimit { need: 2 * 4 * tensor_scratch_len(32, 16, 48), limit: 600_000 };
        let sequential = Reason::FewTokens { tokens: 63, min: 64 };
        let few = |have, need| Reason::FewMultiprocessors { have, need };
        for (card, heads, tokens, policy, kernel, reason) in [
            (H200, (16, 48), 2048, &auto, ChunkedTensor, Reason::Selected),
            (H200, (16, 48), 64, &auto, ChunkedTensor, Reason::Selected),
            (H200, (16, 48), 63, &auto, RecurrentByKeyHead, sequential),
            (H200, (16, 48), 63, &two, RecurrentByKeyHead, sequential),
            (H200, (16, 48), 0, &auto, RecurrentByKeyHead, Reason::FewTokens { tokens: 0, min: 64 }),
            (H200, (16, 48), 2048, &off, RecurrentByKeyHead, Reason::Selected),
            (H200, (16, 48), 2048, &column, RecurrentByColumn, Reason::SwitchedOff { kernel: "recurrent_by_key_head" }),
            (H200, (16, 48), 2048, &old, RecurrentByColumn, Reason::Capability { have: 75, need: 80 }),
            (H200, (16, 80), 2048, &auto, RecurrentByColumn, Reason::HeadRatio { ratio: 5, most: 4 }),
            (RTX_5090, (16, 48), 2048, &auto, ChunkedTensor, Reason::Selected),
            (RTX_4090, (16, 48), 2048, &auto, ChunkedTensor, Reason::Selected),
            (RTX_3090, (16, 48), 2048, &auto, ChunkedTensor, Reason::Selected),
            // Three waves of 96 blocks.
            (small(32), (16, 48), 2048, &auto, ChunkedTensor, Reason::Selected),
            (small(31), (16, 48), 2048, &auto, RecurrentByKeyHead, few(31, 32)),
            (small(31), (16, 48), 2048, &two, ChunkedTensor, Reason::Selected),
            (small(31), (16, 32), 2048, &auto, ChunkedTensor, Reason::Selected),
            (H200, (16, 48), 2048, &tight, Chunked, scratch),
            (H200, (16, 48), 127, &tight, RecurrentByKeyHead, scratch),
            (RTX_4090, (16, 48), 2048, &tight, Chunked, scratch),
            (RTX_3090, (16, 48), 2048, &tight, RecurrentByKeyHead, scratch),
            (RTX_3090, (16, 48), 2048, &tight_two, Chunked, scratch),
            (RTX_3090, (8, 24), 2048, &auto, ChunkedTensor, Reason::Selected),
            (T4, (16, 48), 2048, &two, RecurrentByColumn, Reason::Capability { have: 75, need: 80 }),
        ] {
            let problem = problem(heads.0, heads.1, tokens);
            assert_eq!(chosen(&card, &problem, policy), (kernel, reason), "{card:?} {heads:?} {tokens} {policy:?}");
        }
    }

    #[test]
    fn shared_memory_decides_between_the_chunked_path_and_the_others() {
        let problem = problem(16, 48, 2048);
        let need = Form::Tensor.shared_bytes(3);
        for (have, kernel) in [
            (49_152, Kernel::RecurrentByKeyHead),
            (65_536, Kernel::RecurrentByKeyHead),
            (101_376, Kernel::ChunkedTensor),
            (166_912, Kernel::ChunkedTensor),
            (232_448, Kernel::ChunkedTensor),
        ] {
            let card = Card { shared_bytes_optin: have, ..H200 };
            let (chosen, reason) = chosen(&card, &problem, &Policy::default());
            assert_eq!(chosen, kernel, "{have}");
            if chosen != Kernel::ChunkedTensor {
                assert_eq!(reason, Reason::SharedMemory { have, need });
            }
        }
    }

    #[test]
    fn a_forced_kernel_that_cannot_run_is_an_error_with_the_reason() {
        for kernel in [Kernel::ChunkedTensor, Kernel::Chunked, Kernel::RecurrentByKeyHead] {
            let forced = Policy::with_path(PathChoice::Forced(kernel));
            let error = choose(&T4, &problem(16, 48, 5), &pointers(), &forced).unwrap_err().to_string();
            assert!(error.contains(kernel.name()) && error.contains("7.5") && error.contains("8.0"), "{error}");
        }
        // Thresholds are preferences: a forced kernel runs below them.
        for kernel in [Kernel::ChunkedTensor, Kernel::Chunked] {
            let forced = Policy::with_path(PathChoice::Forced(kernel));
            assert_eq!(chosen(&small(1), &problem(16, 48, 1), &forced), (kernel, Reason::Forced));
        }
    }

    #[test]
    fn odd_addresses_take_the_kernel_that_reads_four_bytes() {
        let odd = Pointers { v: Global::new(260 as *const f32), ..pointers() };
        let launch = choose(&H200, &problem(16, 48, 500), &odd, &Policy::default()).unwrap();
        assert_eq!((launch.kernel, launch.reason), (Kernel::RecurrentByColumn, Reason::Unaligned { argument: "v" }));
        // Only the chunked path in 32-bit floats writes its output sixteen bytes at a time.
        let odd = Pointers { out: GlobalMut::new(260 as *mut f32), ..pointers() };
        let launch = choose(&H200, &problem(16, 48, 500), &odd, &Policy::default()).unwrap();
        assert_eq!((launch.kernel, launch.reason), (Kernel::ChunkedTensor, Reason::Selected));
        let forced = Policy::with_path(PathChoice::Forced(Kernel::Chunked));
        let refused = choose(&H200, &problem(16, 48, 500), &odd, &forced);
        assert!(matches!(refused, Err(Error::Refused { reason: Reason::Unaligned { argument: "out" }, .. })));
    }

    #[test]
    fn scratch_is_that_of_a_segment_and_a_limit_makes_more_of_them() {
        let (short, long) = (problem(16, 48, 1024), problem(16, 48, 32_768));
        let plan = |problem: &Problem, limit| {
            choose(&H200, problem, &pointers(), &Policy { max_scratch_bytes: limit, ..Policy::default() }).unwrap()
        };
        let whole = plan(&short, usize::MAX);
        assert_eq!(whole.launches, 2);
        let long_plan = plan(&long, usize::MAX);
        // Two segments of 4,096 take turns.
        assert_eq!((long_plan.scratch_bytes, long_plan.launches), (8 * whole.scratch_bytes, 16));
        let limited = plan(&long, whole.scratch_bytes / 2);
        assert_eq!((limited.kernel, limited.launches), (Kernel::ChunkedTensor, 256));
        assert!(limited.scratch_bytes <= whole.scratch_bytes / 2);
        let refused = plan(&long, 1000);
        assert_eq!(refused.kernel, Kernel::RecurrentByKeyHead);
        assert!(matches!(refused.reason, Reason::ScratchLimit { limit: 1000, .. }));
    }
}
