//! The chunked form: its launches in order, super-block by super-block, and the arguments of each.
//!
//! `chunk_prep` and `chunk_scan` alternate over super-blocks of tokens, so that the scratch between them has a fixed size
//! and stays in the second-level cache.
#![forbid(unsafe_code)]
use crate::call::state_rows;
use crate::error::{Reason, Result};
use crate::heads::{HeadMap, Heads};
use crate::kernel::{Pointers, Problem, require_vectors};
use cuda_std::kernel::Entry;
use cuda_std::{Global, GlobalMut};
use kernels_gpu::kernels::chunk::{Args, CHUNK, scratch_len};
use kernels_gpu::kernels::{chunk_prep, chunk_scan};
use kernels_gpu::shape::{GROUPED, MOST_VALUES_PER_KEY, TILED};

/// Tokens of a super-block. With 48 value heads its scratch is 14.6 MB.
pub(crate) const SUPER_BLOCK: usize = 2048;

/// One launch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Launch {
    pub entry: &'static Entry<Args>,
    pub grid: [u32; 2],
    pub args: Args,
}

/// Memory beside the call's own, lent to its launches.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scratch {
    /// [`scratch_floats`] floats on 16 bytes.
    pub chunks: GlobalMut<f32>,
    /// [`state_floats`] floats, between super-blocks of a call that drops its state. Else null.
    pub state: GlobalMut<f32>,
}

/// Floats of [`Scratch::chunks`].
pub(crate) fn scratch_floats(heads: &Heads, tokens: usize, super_block: usize) -> usize {
    scratch_len(tokens.min(super_block), heads.num_v_heads)
}

/// Floats of [`Scratch::state`], which has the layout of the call's state.
pub(crate) fn state_floats(problem: &Problem) -> Result<usize> {
    state_rows(&problem.heads, problem.state).elements()
}

/// Whether the chunked form can run `problem` on a device of `capability` (times ten).
///
/// # Errors
/// The first reason against it.
pub(crate) fn require(capability: u32, problem: &Problem, pointers: &Pointers) -> Result<(), Reason> {
    let need = chunk_scan::KERNEL.minimum_capability;
    if capability < need {
        return Err(Reason::Capability { have: capability, need });
    }
    let ratio = problem.heads.values_per_key();
    if ratio > MOST_VALUES_PER_KEY {
        return Err(Reason::HeadRatio { ratio, most: MOST_VALUES_PER_KEY });
    }
    require_vectors(problem, pointers)?;
    let strides = problem.out;
    let out = pointers.out.as_ptr() as usize / size_of::<f32>();
    if [out, strides.token, strides.head].iter().any(|floats| floats % 4 != 0)
        || !(pointers.out.as_ptr() as usize).is_multiple_of(16)
    {
        return Err(Reason::Unaligned { argument: "out" });
    }
    Ok(())
}

/// The launches for `problem`, in order, with super-blocks of `super_block` tokens, a multiple of a chunk. Without tokens
/// there is one, which copies the state.
pub(crate) fn launches(
    problem: &Problem,
    pointers: &Pointers,
    scratch: &Scratch,
    super_block: usize,
) -> impl Iterator<Item = Launch> {
    assert!(super_block > 0 && super_block.is_multiple_of(CHUNK), "super-blocks of whole chunks");
    let (problem, pointers, scratch) = (*problem, *pointers, *scratch);
    (0..problem.tokens.div_ceil(super_block).max(1)).flat_map(move |index| {
        let first = index * super_block;
        let tokens = (problem.tokens - first).min(super_block);
        let is_last = first + tokens == problem.tokens;
        let args = args(&problem, &pointers, &scratch, first, tokens, is_last);
        let (key_heads, ratio) = (problem.heads.num_k_heads as u32, problem.heads.values_per_key());
        let prep = (tokens > 0).then(|| Launch {
            entry: &chunk_prep::KERNEL.entries[ratio - 1],
            grid: chunk_prep::grid(tokens, key_heads),
            args,
        });
        let scan = Launch {
            entry: &chunk_scan::KERNEL.entries[chunk_scan::values_per_block(ratio) - 1],
            grid: chunk_scan::grid(key_heads, ratio),
            args,
        };
        prep.into_iter().chain([scan])
    })
}

/// The arguments of both kernels for `tokens` tokens from `first` on.
fn args(
    problem: &Problem,
    pointers: &Pointers,
    scratch: &Scratch,
    first: usize,
    tokens: usize,
    is_last: bool,
) -> Args {
    let Problem { heads, scale, q, k, v, g, beta, out, state, .. } = *problem;
    // A state that is dropped in the end still goes from a super-block to the next.
    let between = if pointers.final_state.as_ptr().is_null() { scratch.state } else { pointers.final_state };
    Args {
        q: pointers.q.offset(first * q.token),
        q_token_stride: q.token,
        q_head_stride: q.head,
        k: pointers.k.offset(first * k.token),
        k_token_stride: k.token,
        k_head_stride: k.head,
        v: pointers.v.offset(first * v.token),
        v_token_stride: v.token,
        v_head_stride: v.head,
        g: pointers.g.offset(first * g.token),
        g_token_stride: g.token,
        g_head_stride: g.head,
        beta: pointers.beta.offset(first * beta.token),
        beta_token_stride: beta.token,
        beta_head_stride: beta.head,
        out: pointers.out.offset(first * out.token),
        out_token_stride: out.token,
        out_head_stride: out.head,
        initial_state: if first == 0 { pointers.initial_state } else { Global::new(between.as_ptr().cast_const()) },
        final_state: if is_last { pointers.final_state } else { between },
        state_head_stride: state.head,
        state_row_stride: state.row,
        scratch: scratch.chunks,
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
