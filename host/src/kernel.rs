//! The kernels by name: what each asks for, which PTX entry serves a problem, and how its arguments are made.
#![forbid(unsafe_code)]
use crate::error::Reason;
use crate::heads::{HeadMap, Heads};
use crate::layout::{StateLayout, Strides};
use crate::policy::Card;
use crate::segments::Form;
use cuda_std::kernel::Entry;
use cuda_std::{Global, GlobalMut};
use kernels_gpu::kernels::recurrence::Args;
use kernels_gpu::kernels::{decode, recurrent_by_column, recurrent_by_key_head};
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
    /// Two kernels in turn over segments of the prompt, `chunk_prep` and `chunk_scan`, in 32-bit floats: sm_80 and newer,
    /// 16-byte aligned rows, at most four value heads per key head, scratch. What a call has otherwise (element types, rows, norm,
    /// gates, tables and layouts of states) is converted around this one and the next.
    Chunked,
    /// The same on tensor cores, every number as a pair of 16-bit floats: `chunk_prep_tensor`, then `chunk_scan_tensor` or, on
    /// Hopper, `chunk_scan_warpgroup`, then `chunk_fallback` for value heads out of their range, token by token, which
    /// Hopper's scan takes itself. More scratch;
    /// out may be anywhere. In each chunk of 32 tokens a column of the state, and the column's values, have one power of two, so
    /// that no column's bits depend on another, and an error is small beside the largest number of its column and chunk. Halves
    /// of a head's columns whose large state is forgotten while small values follow are the fallback's too. Where the state is
    /// zero, or values are more than 140 times as large, a token's last bits depend on those after it in its chunk.
    ChunkedTensor,
    /// A whole batch of sequences token by token in one launch, with everything that a call may ask for: any element type,
    /// norm, gates, layout and table of slots. Any card from sm_75. The same bits as the others that go token by token.
    Decode,
}

impl Kernel {
    /// Every one of them.
    pub const ALL: [Self; 5] =
        [Self::RecurrentByKeyHead, Self::RecurrentByColumn, Self::Chunked, Self::ChunkedTensor, Self::Decode];

    /// Those that go token by token through one sequence of f32, the preferred one first. They give the same bits, and so
    /// does [`Kernel::Decode`].
    pub const RECURRENT: [Self; 2] = [Self::RecurrentByKeyHead, Self::RecurrentByColumn];

    /// Whether it takes many tokens at a time. All that do not give the same bits.
    #[must_use]
    pub const fn is_chunked(self) -> bool {
        matches!(self, Self::Chunked | Self::ChunkedTensor)
    }

    /// Its name, that of its file.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::RecurrentByKeyHead => recurrent_by_key_head::KERNEL.name,
            Self::RecurrentByColumn => recurrent_by_column::KERNEL.name,
            Self::Chunked => "chunked",
            Self::ChunkedTensor => "chunked_tensor",
            Self::Decode => decode::KERNEL.name,
        }
    }

    /// Whether it can run `problem` on `card`.
    ///
    /// # Errors
    /// The first reason against it.
    pub(crate) fn require(self, card: &Card, problem: &Problem, pointers: &Pointers) -> Result<(), Reason> {
        let ratio = problem.heads.values_per_key();
        card.require(match self {
            Self::RecurrentByKeyHead => recurrent_by_key_head::KERNEL.architecture,
            Self::RecurrentByColumn => recurrent_by_column::KERNEL.architecture,
            Self::Chunked => Form::Plain.architecture(),
            Self::ChunkedTensor => Form::Tensor.architecture(),
            Self::Decode => decode::KERNEL.architecture,
        })?;
        if matches!(self, Self::RecurrentByColumn | Self::Decode) {
            return Ok(());
        }
        if ratio > MOST_VALUES_PER_KEY {
            return Err(Reason::HeadRatio { ratio, most: MOST_VALUES_PER_KEY });
        }
        let shared_bytes = Form::of(self).map_or(0, |form| form.shared_bytes(ratio));
        if shared_bytes > card.shared_bytes_optin {
            return Err(Reason::SharedMemory { have: card.shared_bytes_optin, need: shared_bytes });
        }
        require_vectors(self, problem, pointers)
    }

    /// The PTX entry of a kernel that goes token by token, for `heads`, which [`Kernel::require`] has accepted.
    fn recurrent_entry(self, heads: &Heads) -> Option<(&'static Entry<Args>, [u32; 2])> {
        match self {
            Self::RecurrentByKeyHead => Some((
                &recurrent_by_key_head::KERNEL.entries[heads.values_per_key() - 1],
                recurrent_by_key_head::grid(heads.num_k_heads as u32),
            )),
            Self::RecurrentByColumn => {
                Some((&recurrent_by_column::KERNEL.entries[0], recurrent_by_column::grid(heads.num_v_heads as u32)))
            }
            Self::Chunked | Self::ChunkedTensor | Self::Decode => None,
        }
    }
}

/// That every row that `kernel` moves by 16 bytes starts on 16 bytes.
fn require_vectors(kernel: Kernel, problem: &Problem, pointers: &Pointers) -> Result<(), Reason> {
    if problem.tokens == 0 {
        // No row is copied, and an empty tensor may be anywhere.
        return Ok(());
    }
    let rows = [
        ("q", pointers.q.as_ptr(), problem.q),
        ("k", pointers.k.as_ptr(), problem.k),
        ("v", pointers.v.as_ptr(), problem.v),
        ("out", pointers.out.as_ptr().cast_const(), problem.out),
    ];
    // Only the plain chunked form writes outputs four at a time.
    let moved = if kernel == Kernel::Chunked { rows.len() } else { rows.len() - 1 };
    for (argument, pointer, strides) in rows.into_iter().take(moved) {
        let bytes = |elements: usize| elements as u64 * size_of::<f32>() as u64;
        let addresses = [pointer as u64, bytes(strides.token), bytes(strides.head)];
        if addresses.iter().any(|address| address % VECTOR_BYTES != 0) {
            return Err(Reason::Unaligned { argument });
        }
    }
    Ok(())
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
fn recurrent_args(problem: &Problem, pointers: &Pointers) -> Args {
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

/// The launch of a kernel that goes token by token through one sequence; None for the others.
pub(crate) fn recurrent_launch(kernel: Kernel, problem: &Problem, pointers: &Pointers) -> Option<RecurrentLaunch> {
    let (entry, grid) = kernel.recurrent_entry(&problem.heads)?;
    Some(RecurrentLaunch { entry, grid, args: recurrent_args(problem, pointers) })
}

/// A launch of a kernel that goes token by token.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecurrentLaunch {
    pub entry: &'static Entry<Args>,
    pub grid: [u32; 2],
    pub args: Args,
}
