//! The chunked path as launches: how a prompt is cut into segments, and what each kernel is given.
#![forbid(unsafe_code)]
use crate::call::state_rows;
use crate::error::Reason;
use crate::heads::{HeadMap, Heads};
use crate::kernel::{Pointers, Problem};
use cuda_std::kernel::Entry;
use cuda_std::{Global, GlobalMut};
use kernels_gpu::kernels::chunk::{Args, CHUNK, scratch_len};
use kernels_gpu::kernels::{chunk_prep, chunk_scan};
use kernels_gpu::shape::{GROUPED, TILED};

/// Tokens of a segment, at most: its scratch stays in the second-level cache between the two kernels.
const SEGMENT_TOKENS: usize = 2048;

/// Shared memory of the scan's block, in bytes.
pub(crate) fn shared_bytes(values_per_key: usize) -> u32 {
    scan_entry(values_per_key).shared_bytes
}

/// Blocks of the scan.
pub(crate) fn scan_blocks(heads: &Heads) -> u32 {
    let [x, y] = chunk_scan::grid(heads.num_k_heads as u32, heads.values_per_key());
    x * y
}

fn scan_entry(values_per_key: usize) -> &'static Entry<Args> {
    &chunk_scan::KERNEL.entries[chunk_scan::values_per_block(values_per_key) - 1]
}

/// How a prompt is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segments {
    tokens: usize,
    /// Tokens of every segment but the last, a multiple of the chunk.
    segment_tokens: usize,
    /// Where in the scratch, in floats, the state stands between segments; None where it stands in the final state.
    carry: Option<usize>,
    /// Scratch of the longest segment, and of the state between segments.
    pub scratch_bytes: usize,
}

impl Segments {
    /// The longest segments, up to [`SEGMENT_TOKENS`], whose scratch is within `limit` bytes. Where a prompt is cut does not
    /// change a bit of the result.
    ///
    /// # Errors
    /// [`Reason::ScratchLimit`] where one chunk is too much.
    pub fn within(problem: &Problem, final_state: bool, limit: usize) -> Result<Self, Reason> {
        let floats = |tokens| scratch_len(tokens, problem.heads.num_v_heads);
        let bytes = |floats: usize| floats * size_of::<f32>();
        let whole = problem.tokens.div_ceil(CHUNK);
        let longest = whole.min(SEGMENT_TOKENS / CHUNK);
        if longest == whole && bytes(floats(whole * CHUNK)) <= limit {
            return Ok(Self::of(problem.tokens, whole * CHUNK, None, bytes(floats(whole * CHUNK))));
        }
        // Several segments. A state that is dropped at the end has to stand somewhere in between.
        let state = state_rows(&problem.heads, problem.state).elements().unwrap_or(usize::MAX / 8);
        let carried = if final_state { 0 } else { state };
        let chunks = (limit.saturating_sub(bytes(carried)) / bytes(floats(CHUNK))).min(longest);
        if chunks == 0 {
            return Err(Reason::ScratchLimit { need: bytes(floats(CHUNK) + carried), limit });
        }
        let segment = floats(chunks * CHUNK);
        let carry = (!final_state).then_some(segment);
        Ok(Self::of(problem.tokens, chunks * CHUNK, carry, bytes(segment + carried)))
    }

    fn of(tokens: usize, segment_tokens: usize, carry: Option<usize>, scratch_bytes: usize) -> Self {
        Self { tokens, segment_tokens, carry, scratch_bytes }
    }

    /// Kernels that are launched.
    pub fn launches(&self) -> usize {
        if self.tokens == 0 { 1 } else { 2 * self.tokens.div_ceil(self.segment_tokens) }
    }

    /// `pointers` with the states of the segment of `tokens` from `first` on: each but the first starts from what the one
    /// before it left.
    fn between(&self, pointers: &Pointers, scratch: GlobalMut<f32>, first: usize, tokens: usize) -> Pointers {
        let kept = self.carry.map_or(pointers.final_state, |offset| scratch.offset(offset));
        let is_last = first + tokens == self.tokens;
        Pointers {
            initial_state: if first == 0 { pointers.initial_state } else { Global::new(kept.as_ptr().cast_const()) },
            final_state: if is_last { pointers.final_state } else { kept },
            ..*pointers
        }
    }

    /// First token and number of tokens of each.
    fn iter(self) -> impl Iterator<Item = (usize, usize)> {
        // Without tokens there is one segment, whose scan hands the state on.
        (0..self.tokens.max(1))
            .step_by(self.segment_tokens.max(1))
            .map(move |first| (first, self.segment_tokens.min(self.tokens - first)))
    }
}

/// A launch of one of the two kernels.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Launch {
    pub entry: &'static Entry<Args>,
    pub grid: [u32; 2],
    pub args: Args,
}

/// Every launch of a problem, in order. `scratch` holds the longest segment's.
pub(crate) fn launches(
    problem: &Problem,
    pointers: &Pointers,
    segments: Segments,
    scratch: GlobalMut<f32>,
) -> impl Iterator<Item = Launch> {
    let (problem, pointers) = (*problem, *pointers);
    let Heads { num_k_heads, .. } = problem.heads;
    let ratio = problem.heads.values_per_key();
    segments.iter().flat_map(move |(first, tokens)| {
        let args = args(&problem, &segments.between(&pointers, scratch, first, tokens), scratch, first, tokens);
        let prep = Launch {
            entry: &chunk_prep::KERNEL.entries[ratio - 1],
            grid: chunk_prep::grid(tokens, num_k_heads as u32),
            args,
        };
        let scan = Launch { entry: scan_entry(ratio), grid: chunk_scan::grid(num_k_heads as u32, ratio), args };
        let prep = (tokens > 0).then_some(prep);
        prep.into_iter().chain([scan])
    })
}

/// The arguments of a segment of `tokens` from `first` on.
fn args(problem: &Problem, pointers: &Pointers, scratch: GlobalMut<f32>, first: usize, tokens: usize) -> Args {
    let Problem { heads, scale, q, k, v, g, beta, out, state, .. } = *problem;
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
        initial_state: pointers.initial_state,
        final_state: pointers.final_state,
        state_head_stride: state.head,
        state_row_stride: state.row,
        scratch,
        scale,
        tokens: u32::try_from(tokens).expect("a segment is short"),
        num_key_heads: heads.num_k_heads as u32,
        values_per_key: heads.values_per_key() as u32,
        head_map: match heads.map {
            HeadMap::Grouped => GROUPED,
            HeadMap::Tiled => TILED,
        },
    }
}

#[cfg(test)]
mod tests {
    use crate::inputs::{Family, Inputs};
    use crate::kernel::Kernel;
    use crate::policy::{PathChoice, Policy};
    use crate::reference::reference_f64;
    use crate::{HeadMap, Heads, emulated};

    /// Output and state of the chunked path in the emulator with at most `limit` bytes of scratch.
    fn run(inputs: &Inputs, limit: usize) -> (Vec<f32>, Vec<f32>) {
        let (mut out, mut state) = (vec![f32::NAN; inputs.v.len()], inputs.state.clone());
        let policy = Policy { max_scratch_bytes: limit, ..Policy::with_path(PathChoice::Forced(Kernel::Chunked)) };
        emulated::run_with(inputs.call(&mut out, &mut state), &policy, 1).unwrap();
        (out, state)
    }

    #[test]
    fn segments_of_any_length_give_the_same_bits() {
        let heads = Heads::new(1, 3, HeadMap::Tiled).unwrap();
        let inputs = Inputs::seeded(heads, 130, Family::Bench, 3);
        let whole = run(&inputs, usize::MAX);
        let expected = reference_f64(&inputs);
        let worst = |actual: &[f32], expected: &[f64]| {
            actual.iter().zip(expected).map(|(&a, e)| (f64::from(a) - e).abs()).fold(0.0, f64::max)
        };
        assert!(worst(&whole.0, &expected.out) < 1e-5 && worst(&whole.1, &expected.state) < 1e-5);
        let one_chunk = kernels_gpu::kernels::chunk::scratch_len(32, 3) * 4;
        for chunks in [1, 2, 4] {
            assert_eq!(run(&inputs, chunks * one_chunk), whole, "{chunks} chunks a segment");
        }
    }
}
