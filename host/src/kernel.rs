//! The kernels by name: what each asks for, which PTX entry serves a problem, and how its arguments are made.
#![forbid(unsafe_code)]
use crate::call::{Call, Gates, StateLayout, Strides};
use crate::error::{Error, Reason, Result};
use crate::heads::{HeadMap, Heads};
use cuda_std::kernel::Entry;
use cuda_std::{Global, GlobalMut};
use kernels_gpu::kernels::recurrence::Args;
use kernels_gpu::kernels::{recurrent_by_column, recurrent_by_key_head};
use kernels_gpu::shape::{GROUPED, MOST_VALUES_PER_KEY, TILED};

/// Bytes that the aligned kernels move at once.
const VECTOR_BYTES: u64 = 16;

/// A kernel of the recurrence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kernel {
    /// A block carries columns of all value heads of a key head: sm_80 and newer, 16-byte aligned rows, at most four
    /// value heads per key head.
    RecurrentByKeyHead,
    /// A block carries columns of one value head: any card from sm_75, any alignment, any number of value heads.
    RecurrentByColumn,
}

impl Kernel {
    /// Every kernel, the preferred one first.
    pub const ALL: [Self; 2] = [Self::RecurrentByKeyHead, Self::RecurrentByColumn];

    /// Its name, that of its file.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::RecurrentByKeyHead => recurrent_by_key_head::KERNEL.name,
            Self::RecurrentByColumn => recurrent_by_column::KERNEL.name,
        }
    }

    /// Whether it can run `problem` on a device of `capability` (times ten).
    ///
    /// # Errors
    /// The first reason against it.
    pub(crate) fn require(self, capability: u32, problem: &Problem, pointers: &Pointers) -> Result<(), Reason> {
        let kernel = match self {
            Self::RecurrentByKeyHead => &recurrent_by_key_head::KERNEL,
            Self::RecurrentByColumn => &recurrent_by_column::KERNEL,
        };
        if capability < kernel.minimum_capability {
            return Err(Reason::Capability { have: capability, need: kernel.minimum_capability });
        }
        if self == Self::RecurrentByKeyHead {
            let ratio = problem.heads.values_per_key();
            if ratio > MOST_VALUES_PER_KEY {
                return Err(Reason::HeadRatio { ratio, most: MOST_VALUES_PER_KEY });
            }
            require_vectors(problem, pointers)?;
        }
        Ok(())
    }

    /// Its PTX entry for `heads`, which [`Kernel::require`] has accepted.
    pub(crate) fn entry(self, heads: &Heads) -> &'static Entry<Args> {
        match self {
            Self::RecurrentByKeyHead => &recurrent_by_key_head::KERNEL.entries[heads.values_per_key() - 1],
            Self::RecurrentByColumn => &recurrent_by_column::KERNEL.entries[0],
        }
    }

    /// Its blocks for `heads`.
    pub(crate) fn grid(self, heads: &Heads) -> [u32; 2] {
        match self {
            Self::RecurrentByKeyHead => recurrent_by_key_head::grid(heads.num_k_heads as u32),
            Self::RecurrentByColumn => recurrent_by_column::grid(heads.num_v_heads as u32),
        }
    }
}

/// That every row the aligned kernel copies starts on 16 bytes.
pub(crate) fn require_vectors(problem: &Problem, pointers: &Pointers) -> Result<(), Reason> {
    for (argument, pointer, strides) in
        [("q", pointers.q, problem.q), ("k", pointers.k, problem.k), ("v", pointers.v, problem.v)]
    {
        let bytes = |elements: usize| elements as u64 * size_of::<f32>() as u64;
        let addresses = [pointer.as_ptr() as u64, bytes(strides.token), bytes(strides.head)];
        if addresses.iter().any(|address| address % VECTOR_BYTES != 0) {
            return Err(Reason::Unaligned { argument });
        }
    }
    Ok(())
}

/// Chooses the kernel: the one that is `forced`, or the first that can run, with the reason against those before it.
///
/// # Errors
/// [`Error::Refused`] where the forced kernel, or every kernel, cannot run.
pub(crate) fn choose(
    capability: u32,
    problem: &Problem,
    pointers: &Pointers,
    forced: Option<Kernel>,
) -> Result<(Kernel, Reason)> {
    if let Some(kernel) = forced {
        return match kernel.require(capability, problem, pointers) {
            Ok(()) => Ok((kernel, Reason::Forced)),
            Err(reason) => Err(Error::Refused { kernel: kernel.name(), reason }),
        };
    }
    let mut reason = Reason::Selected;
    let mut last = Kernel::ALL[0];
    for kernel in Kernel::ALL {
        match kernel.require(capability, problem, pointers) {
            Ok(()) => return Ok((kernel, reason)),
            Err(refusal) if reason == Reason::Selected => reason = refusal,
            Err(_) => {}
        }
        last = kernel;
    }
    Err(Error::Refused { kernel: last.name(), reason })
}

/// A problem without its memory: what a kernel's arguments are made from, together with [`Pointers`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Problem {
    pub heads: Heads,
    pub tokens: usize,
    pub scale: f32,
    pub q: Strides,
    pub k: Strides,
    pub v: Strides,
    pub g: Strides,
    pub beta: Strides,
    pub out: Strides,
    pub state: StateLayout,
}

impl Problem {
    /// That of a call over slices.
    pub fn of(call: &Call<'_>) -> Self {
        let Gates::Log { g, beta } = &call.gates;
        Self {
            heads: call.heads,
            tokens: call.tokens,
            scale: call.scale,
            q: call.q.strides,
            k: call.k.strides,
            v: call.v.strides,
            g: g.strides,
            beta: beta.strides,
            out: call.out.strides,
            state: call.state.as_ref().map_or(StateLayout::key_major(&call.heads), |state| state.layout),
        }
    }
}

/// Where a problem's tensors are, on the device or in the emulator's memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pointers {
    pub q: Global<f32>,
    pub k: Global<f32>,
    pub v: Global<f32>,
    pub g: Global<f32>,
    pub beta: Global<f32>,
    pub out: GlobalMut<f32>,
    pub initial_state: Global<f32>,
    pub final_state: GlobalMut<f32>,
}

/// The arguments of the recurrent kernels.
pub(crate) fn recurrent_args(problem: &Problem, pointers: &Pointers) -> Args {
    let Problem { heads, tokens, scale, q, k, v, g, beta, out, state } = *problem;
    Args {
        q: pointers.q,
        q_token_stride: q.token,
        q_head_stride: q.head,
        k: pointers.k,
        k_token_stride: k.token,
        k_head_stride: k.head,
        v: pointers.v,
        v_token_stride: v.token,
        v_head_stride: v.head,
        g: pointers.g,
        g_token_stride: g.token,
        g_head_stride: g.head,
        beta: pointers.beta,
        beta_token_stride: beta.token,
        beta_head_stride: beta.head,
        out: pointers.out,
        out_token_stride: out.token,
        out_head_stride: out.head,
        initial_state: pointers.initial_state,
        final_state: pointers.final_state,
        state_head_stride: state.head,
        state_row_stride: state.row,
        scale,
        tokens: u32::try_from(tokens).expect("validated: below 2^32 tokens"),
        num_key_heads: heads.num_k_heads as u32,
        values_per_key: heads.values_per_key() as u32,
        head_map: match heads.map {
            HeadMap::Grouped => GROUPED,
            HeadMap::Tiled => TILED,
        },
    }
}
