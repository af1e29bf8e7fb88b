//! The chunked path as launches: how a prompt is cut into segments, and what each kernel is given.
#![forbid(unsafe_code)]
use crate::error::Reason;
use crate::heads::{HeadMap, Heads};
use crate::kernel::{Kernel, Pointers, Problem};
use crate::policy::Card;
use cuda_std::kernel::{Architecture, Entry};
use cuda_std::{Global, GlobalMut};
use kernels_gpu::kernels::chunk::{Args, CHUNK, scratch_len};
use kernels_gpu::kernels::{
    chunk_fallback, chunk_prep, chunk_prep_hopper, chunk_prep_tensor, chunk_scan, chunk_scan_tensor,
    chunk_scan_warpgroup, chunk_tensor,
};
use kernels_gpu::shape::{GROUPED, TILED};

/// Tokens of a segment in 32-bit floats, at most: its scratch stays in the second-level cache between the two kernels.
const SEGMENT_TOKENS: usize = 2048;

/// Tokens of a segment on tensor cores: about a quarter of a prompt, about so many at least and at most (up to 1,504 and 4,608,
/// since all are of one length). Chunk prep of a segment runs
/// beside the scan of the one before it, and at the end nothing is left to run beside the last one, so that segments are short;
/// each costs 6 to 10 us. An H200 took at 16/48 heads, in microseconds a call, with segments of so many tokens:
/// ```text
///   prompt     1,024    1,216    1,536    2,048    4,096
///   2,048      148      148      153      156      156
///   8,192      547      546      546      535      541
///   32,768     2,197    2,166    2,166    2,142    2,113
/// ```
const TENSOR_SEGMENT_TOKENS: [usize; 2] = [1024, 4096];

/// The two forms of the chunked path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// In 32-bit floats.
    Plain,
    /// On tensor cores.
    Tensor,
}

impl Form {
    /// That of a kernel, None for one that goes token by token.
    pub fn of(kernel: Kernel) -> Option<Self> {
        match kernel {
            Kernel::Chunked => Some(Self::Plain),
            Kernel::ChunkedTensor => Some(Self::Tensor),
            Kernel::RecurrentByKeyHead | Kernel::RecurrentByColumn | Kernel::Decode => None,
        }
    }

    /// The cards that its kernels are for.
    pub fn architecture(self) -> Architecture {
        match self {
            Self::Plain => chunk_scan::KERNEL.architecture,
            Self::Tensor => chunk_scan_tensor::KERNEL.architecture,
        }
    }

    /// Shared memory of the block that takes most, in bytes, of the scan that takes least.
    pub fn shared_bytes(self, values_per_key: usize) -> u32 {
        let scan = match self {
            Self::Plain => chunk_scan::KERNEL.entries[chunk_scan::values_per_block(values_per_key) - 1].shared_bytes,
            Self::Tensor => chunk_scan_tensor::KERNEL.entries[0].shared_bytes,
        };
        scan.max(self.prep_entry(values_per_key, false).shared_bytes)
    }

    /// The fewest multiprocessors that it is worth taking on. Each block of the scan walks every chunk, so that one more wave
    /// of them takes as long as the first.
    ///
    /// In 32-bit floats that loses, so that there has to be a multiprocessor for each block. On tensor cores it does not, since
    /// the kernels that go token by token have waves of their own: an H200 whose other multiprocessors were held took at 16/48
    /// heads and 2,048 tokens, in microseconds (`host bench --multiprocessors 40,82,108,all`, an earlier scan on tensor cores):
    /// ```text
    ///   multiprocessors    on tensor cores, 96 blocks    32-bit floats, 128    by key head, 128
    ///   40                 609                           1,451                 1,641
    ///   82                 373                           736                   835
    ///   108                251                           724                   833
    ///   132                236                           383                   499
    /// ```
    /// Beyond three waves nothing has been measured.
    pub fn multiprocessors(self, heads: &Heads) -> u32 {
        let [x, y] = self.scan_grid(heads);
        let most_waves = match self {
            Self::Plain => 1,
            Self::Tensor => 3,
        };
        (x * y).div_ceil(most_waves)
    }

    /// The launches of a segment on `card`, by name. Hopper's scan is its own fallback.
    pub fn phases(self, card: &Card) -> &'static [&'static str] {
        if self == Self::Plain || self.is_hopper(card) { &["prep", "scan"] } else { &["prep", "scan", "fallback"] }
    }

    pub fn prep_entry(self, values_per_key: usize, is_hopper: bool) -> &'static Entry<Args> {
        let entries = match self {
            Self::Plain => chunk_prep::KERNEL.entries,
            Self::Tensor if is_hopper => chunk_prep_hopper::KERNEL.entries,
            Self::Tensor => chunk_prep_tensor::KERNEL.entries,
        };
        &entries[values_per_key - 1]
    }

    /// Whether the scan is Hopper's, which starts before chunk prep has ended.
    pub fn is_hopper(self, card: &Card) -> bool {
        let warpgroup = &chunk_scan_warpgroup::KERNEL;
        let fits = warpgroup.entries[0].shared_bytes <= card.shared_bytes_optin;
        self == Self::Tensor && fits && card.require(warpgroup.architecture).is_ok()
    }

    fn prep_grid(self, tokens: usize, num_k_heads: u32) -> [u32; 2] {
        match self {
            Self::Plain => chunk_prep::grid(tokens, num_k_heads),
            Self::Tensor => chunk_prep_tensor::grid(tokens, num_k_heads),
        }
    }

    /// The fastest that `card` can run.
    pub fn scan_entry(self, values_per_key: usize, card: &Card) -> &'static Entry<Args> {
        match self {
            Self::Plain => &chunk_scan::KERNEL.entries[chunk_scan::values_per_block(values_per_key) - 1],
            Self::Tensor => {
                if self.is_hopper(card) {
                    return &chunk_scan_warpgroup::KERNEL.entries[0];
                }
                let entries = chunk_scan_tensor::KERNEL.entries;
                let fits = |entry: &&Entry<Args>| entry.shared_bytes <= card.shared_bytes_optin;
                entries.iter().rev().find(fits).unwrap_or(&entries[0])
            }
        }
    }

    fn scan_grid(self, heads: &Heads) -> [u32; 2] {
        match self {
            Self::Plain => chunk_scan::grid(heads.num_k_heads as u32, heads.values_per_key()),
            Self::Tensor => chunk_scan_tensor::grid(heads.num_v_heads as u32, 1),
        }
    }

    /// Chunks of a segment of `whole` chunks, where nothing limits them.
    fn segment_chunks(self, whole: usize) -> usize {
        match self {
            Self::Plain => whole.min(SEGMENT_TOKENS / CHUNK),
            Self::Tensor => {
                let [least, most] = TENSOR_SEGMENT_TOKENS.map(|tokens| tokens / CHUNK);
                let about = (whole / 4).clamp(least, most);
                // As many as come nearest to it, of the same length.
                let count = ((whole + about / 2) / about).max(1);
                whole.div_ceil(count)
            }
        }
    }

    /// Floats of scratch of a segment.
    pub fn scratch_len(self, tokens: usize, heads: &Heads) -> usize {
        match self {
            Self::Plain => scratch_len(tokens, heads.num_v_heads),
            Self::Tensor => chunk_tensor::scratch_len(tokens, heads.num_k_heads, heads.num_v_heads),
        }
    }
}

/// How a prompt is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segments {
    form: Form,
    tokens: usize,
    /// Tokens of every segment but the last, a multiple of the chunk.
    segment_tokens: usize,
    /// From a segment's scratch to the next one's, in floats: those of the form on tensor cores take turns, so that chunk prep
    /// of the next segment may run while this one's is read.
    stride: usize,
    /// Where in the scratch, in floats, the state stands between segments; None where it stands in the final state.
    carry: Option<usize>,
    /// Scratch of the longest segments, and of the state between segments.
    pub scratch_bytes: usize,
}

impl Segments {
    /// The longest segments that the form takes, whose scratch is within `limit` bytes. Where a prompt is cut does not change a
    /// bit of the plain form's result.
    ///
    /// # Errors
    /// [`Reason::ScratchLimit`] where one chunk is too much.
    pub fn within(form: Form, problem: &Problem, final_state: bool, limit: usize) -> Result<Self, Reason> {
        // The scan on tensor cores counts the floats of its scratch in 32 bits.
        let limit = limit.min(u32::MAX as usize * size_of::<f32>());
        let floats = |tokens| form.scratch_len(tokens, &problem.heads);
        let bytes = |floats: usize| floats * size_of::<f32>();
        let whole = problem.tokens.div_ceil(CHUNK);
        let longest = form.segment_chunks(whole);
        if longest == whole && bytes(floats(whole * CHUNK)) <= limit {
            let (segment_tokens, scratch_bytes) = (whole * CHUNK, bytes(floats(whole * CHUNK)));
            return Ok(Self { form, tokens: problem.tokens, segment_tokens, stride: 0, carry: None, scratch_bytes });
        }
        // Several segments. A state that is dropped at the end has to stand somewhere in between.
        let state = problem.state.elements(&problem.heads);
        let carried = if final_state { 0 } else { state };
        let turns = if form == Form::Tensor { 2 } else { 1 };
        let chunks = (limit.saturating_sub(bytes(carried)) / (turns * bytes(floats(CHUNK)))).min(longest);
        if chunks == 0 {
            return Err(Reason::ScratchLimit { need: bytes(turns * floats(CHUNK) + carried), limit });
        }
        // Each on 16 bytes.
        let stride = floats(chunks * CHUNK).next_multiple_of(4);
        let carry = (!final_state).then_some(turns * stride);
        Ok(Self {
            form,
            tokens: problem.tokens,
            segment_tokens: chunks * CHUNK,
            stride: if turns > 1 { stride } else { 0 },
            carry,
            scratch_bytes: bytes(turns * stride + carried),
        })
    }

    /// Kernels that are launched on `card`.
    pub fn launches(&self, card: &Card) -> usize {
        if self.tokens == 0 { 1 } else { self.form.phases(card).len() * self.count() }
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

    /// How many there are: without tokens one, whose scan hands the state on.
    pub fn count(self) -> usize {
        self.tokens.div_ceil(self.segment_tokens.max(1)).max(1)
    }

    /// First token and number of tokens of one.
    pub fn extent(self, index: usize) -> (usize, usize) {
        let first = index * self.segment_tokens;
        (first, self.segment_tokens.min(self.tokens - first))
    }
}

/// A launch of one of a form's kernels.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Launch {
    pub entry: &'static Entry<Args>,
    pub grid: [u32; 2],
    pub args: Args,
    /// Whether it may begin before the launch in front of it has ended. The emulator runs one after the other.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))]
    pub follows_early: bool,
    /// Which of the form's phases it is, for the times of a card.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))]
    pub phase: usize,
}

/// Every launch of a problem on `card`, in order. `scratch` holds the longest segment's.
pub(crate) fn launches(
    card: &Card,
    problem: &Problem,
    pointers: &Pointers,
    segments: Segments,
    scratch: GlobalMut<f32>,
) -> impl Iterator<Item = Launch> {
    let (problem, pointers) = (*problem, *pointers);
    let Heads { num_k_heads, num_v_heads, .. } = problem.heads;
    let (form, ratio) = (segments.form, problem.heads.values_per_key());
    let (scan_entry, is_hopper) = (form.scan_entry(ratio, card), form.is_hopper(card));
    let launch = move |phase, entry, grid, index: usize, follows_early| {
        let (first, tokens) = segments.extent(index);
        let own = scratch.offset(index % 2 * segments.stride);
        let args = args(&problem, &segments.between(&pointers, scratch, first, tokens), own, first, tokens);
        Launch { entry, grid, args, follows_early, phase }
    };
    let prep = move |index: usize| {
        let tokens = segments.extent(index).1;
        let grid = form.prep_grid(tokens, num_k_heads as u32);
        // On Hopper that of a later segment takes the multiprocessors that the scan in front of it leaves.
        let follows_early = is_hopper && index > 0;
        (tokens > 0).then(|| launch(0, form.prep_entry(ratio, is_hopper), grid, index, follows_early))
    };
    let scan_grid = form.scan_grid(&problem.heads);
    let has_fallback = form == Form::Tensor && !is_hopper && problem.tokens > 0;
    (0..segments.count()).flat_map(move |index| {
        let (is_first, is_last) = (index == 0, index + 1 == segments.count());
        // On Hopper it waits for chunk prep itself, which is in front of it.
        let scan = launch(1, scan_entry, scan_grid, index, is_hopper && problem.tokens > 0);
        let fallback = has_fallback.then(|| {
            let grid = chunk_fallback::grid(num_v_heads as u32, 1);
            launch(2, &chunk_fallback::KERNEL.entries[0], grid, index, false)
        });
        let first = is_first.then(|| prep(0)).flatten();
        let next = (!is_last).then(|| prep(index + 1)).flatten();
        first.into_iter().chain([scan]).chain(next).chain(fallback)
    })
}

/// The arguments of a segment of `tokens` from `first` on.
pub(crate) fn args(
    problem: &Problem,
    pointers: &Pointers,
    scratch: GlobalMut<f32>,
    first: usize,
    tokens: usize,
) -> Args {
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
        q_batch_stride: 0,
        k_batch_stride: 0,
        v_batch_stride: 0,
        g_batch_stride: 0,
        beta_batch_stride: 0,
        out_batch_stride: 0,
        initial_state_stride: 0,
        final_state_stride: 0,
        kept_states: GlobalMut::new(core::ptr::null_mut()),
        kept_state_stride: 0,
        parts: Global::new(core::ptr::null()),
        num_parts: 0,
        chunks: tokens.div_ceil(CHUNK) as u32,
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
    use super::{CHUNK, Form};
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
    fn segments_on_tensor_cores_are_about_a_quarter() {
        let of = |tokens: usize| Form::Tensor.segment_chunks(tokens.div_ceil(CHUNK)) * CHUNK;
        let cuts = [(1, 32), (1024, 1024), (1504, 1504), (1536, 768), (2048, 1024), (8192, 2048), (32_768, 4096)];
        for (tokens, segment) in cuts {
            assert_eq!(of(tokens), segment, "{tokens} tokens");
        }
        assert!((1..200_000).step_by(331).all(|tokens| (32..=6144).contains(&of(tokens))));
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
