//! One call of the recurrence over slices: what the CPU backend and the emulator run. The CUDA backend's call has device
//! pointers in their place and shares the checks.
#![forbid(unsafe_code)]
use crate::dtype::{Element, Indices, Slice, SliceMut};
use crate::error::Result;
use crate::heads::Heads;
use crate::layout::{StateLayout, Strides};
use crate::request::Request;
use crate::sequences::Sequences;

/// A tensor to read, `[batch, token, head, dim]` or `[batch, token, head]`, of f32, bf16 or f16.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// From the first element on.
    pub data: Slice<'a>,
    /// Where the rows of a sequence lie in it.
    pub strides: Strides,
    /// From a sequence to the next, in elements; only [`Sequences::Uniform`] with several of them reads it.
    pub batch_stride: usize,
}

impl<'a> View<'a> {
    /// `data` with `strides`, for one sequence or packed ones.
    #[must_use]
    pub fn new<T: Element>(data: &'a [T], strides: Strides) -> Self {
        Self { data: T::slice(data), strides, batch_stride: 0 }
    }

    /// The same with sequences so many elements apart.
    #[must_use]
    pub const fn batch_stride(self, batch_stride: usize) -> Self {
        Self { batch_stride, ..self }
    }
}

/// A tensor to write, `[batch, token, head, dim]`, of f32, bf16 or f16.
#[derive(Debug)]
pub struct ViewMut<'a> {
    /// From the first element on.
    pub data: SliceMut<'a>,
    /// Where the rows of a sequence lie in it.
    pub strides: Strides,
    /// From a sequence to the next, in elements; only [`Sequences::Uniform`] with several of them reads it.
    pub batch_stride: usize,
}

impl<'a> ViewMut<'a> {
    /// `data` with `strides`, for one sequence or packed ones.
    #[must_use]
    pub fn new<T: Element>(data: &'a mut [T], strides: Strides) -> Self {
        Self { data: T::slice_mut(data), strides, batch_stride: 0 }
    }

    /// The same with sequences so many elements apart.
    #[must_use]
    pub fn batch_stride(self, batch_stride: usize) -> Self {
        Self { batch_stride, ..self }
    }
}

/// States to write, always f32: one of every sequence in order, or a pool whose slots indices name.
#[derive(Debug)]
pub struct State<'a> {
    /// From the first element on.
    pub data: &'a mut [f32],
    /// Where slots, heads and rows lie in it.
    pub layout: StateLayout,
}

/// States to read, always f32.
#[derive(Clone, Copy, Debug)]
pub struct StateView<'a> {
    /// From the first element on.
    pub data: &'a [f32],
    /// Where slots, heads and rows lie in it.
    pub layout: StateLayout,
}

/// The forget gate and the write strength as the caller has them. Conventions that share a type and a shape are named apart.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Gates<'a> {
    /// What the recurrence takes. Both `[batch, token, value head]`, of any type.
    Log {
        /// Log of the forget gate, at most 0, -inf allowed: flash-linear-attention's `g`. Above 0 the state grows.
        g: View<'a>,
        /// Write strength, after its sigmoid.
        beta: View<'a>,
    },
    /// The forget gate itself: FlashInfer's prefill `g` (or `alpha`). Both `[batch, token, value head]`, of any type.
    Linear {
        /// Forget gate, 0 to 1.
        decay: View<'a>,
        /// Write strength, after its sigmoid.
        beta: View<'a>,
    },
    /// The projections of the layer, from which g = -exp(A_log) softplus(a + dt_bias) and beta = sigmoid(b). softplus(x) is
    /// log(1 + e^x), and x above 20.
    Raw {
        /// `[batch, token, value head]`, of any type.
        a: View<'a>,
        /// `[batch, token, value head]`, of any type.
        b: View<'a>,
        /// `[value head]`, the model's decay.
        decay: Decay<'a>,
        /// `[value head]`.
        dt_bias: &'a [f32],
        /// Twice the sigmoid: write strengths up to 2.
        allow_neg_eigval: bool,
    },
}

/// The decay of a model, `[value head]`, as its file has it.
#[derive(Clone, Copy, Debug)]
pub enum Decay<'a> {
    /// `A_log`: Hugging Face.
    ALog(&'a [f32]),
    /// `-exp(A_log)`: `ssm_a` of GGUF.
    NegExpALog(&'a [f32]),
}

/// What is done to q and k before they are used.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum QkNorm {
    /// Nothing: they are normalised already, or are not to be.
    #[default]
    None,
    /// Each row is divided by sqrt(sum of its squares + eps), in FP32: a row of zeros stays one.
    L2 {
        /// Added to the sum, not to its mean or root; flash-linear-attention's and mistral.rs's is 1e-6.
        eps: f32,
    },
}

/// Where the state after each token goes, for sequences of up to [`DECODE_TOKENS`](crate::DECODE_TOKENS) tokens: to roll
/// back to the last token of a draft that is accepted. All slots are those of the pool that the final state goes to.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Checkpoints<'a> {
    /// A slot for every token, in the order of the tokens: `[batch, token]`, or `[token]` of packed sequences; negative: not
    /// kept. FlashInfer's and vLLM's `ssm_state_indices`.
    PerToken(Indices<'a>),
    /// The state after token t of a sequence in slot s goes to slot `s / lanes * lanes + t`, and the final one nowhere else:
    /// mistral.rs's lanes. A sequence has at most so many tokens.
    Lanes(u32),
}

/// Where a call's states come from and go to.
#[derive(Debug)]
pub(crate) enum States<'a> {
    /// From these, replaced by those after the last token.
    InPlace(State<'a>),
    /// From zero or from some, dropped or kept elsewhere.
    Apart { initial: Option<StateView<'a>>, last: Option<State<'a>> },
}

/// One call over slices. Tensors may overlap each other freely where they are read; Rust keeps `out` and the states apart.
#[derive(Debug)]
#[must_use]
pub struct Call<'a> {
    pub(crate) heads: Heads,
    pub(crate) sequences: Sequences<'a>,
    pub(crate) q: View<'a>,
    pub(crate) k: View<'a>,
    pub(crate) v: View<'a>,
    pub(crate) gates: Gates<'a>,
    pub(crate) out: ViewMut<'a>,
    pub(crate) states: States<'a>,
    pub(crate) indices: Option<Indices<'a>>,
    pub(crate) output_indices: Option<Indices<'a>>,
    pub(crate) checkpoints: Option<Checkpoints<'a>>,
    pub(crate) every: Option<(usize, State<'a>)>,
    pub(crate) scale: f32,
    pub(crate) norm: QkNorm,
}

impl<'a> Call<'a> {
    /// q, k `[batch, token, HK, K]`, v `[batch, token, HV, V]`, all of one type; out `[batch, token, HV, V]` of that type or
    /// f32. `sequences` may be a number of tokens: one sequence. From zero states that are dropped at the end, with scale
    /// 1 / sqrt(K), until the setters say otherwise.
    pub fn new(
        heads: Heads,
        sequences: impl Into<Sequences<'a>>,
        q: View<'a>,
        k: View<'a>,
        v: View<'a>,
        gates: Gates<'a>,
        out: ViewMut<'a>,
    ) -> Self {
        Self {
            heads,
            sequences: sequences.into(),
            q,
            k,
            v,
            gates,
            out,
            states: States::Apart { initial: None, last: None },
            indices: None,
            output_indices: None,
            checkpoints: None,
            every: None,
            scale: default_scale(&heads),
            norm: QkNorm::None,
        }
    }

    /// What the output is multiplied with; 1 / sqrt(K) if not called.
    pub fn scale(mut self, scale: f32) -> Self {
        self.scale = scale;
        self
    }

    /// What is done to q and k first; nothing if not called.
    pub fn qk_norm(mut self, norm: QkNorm) -> Self {
        self.norm = norm;
        self
    }

    /// The states before the first tokens, replaced by those after the last.
    pub fn state(mut self, state: State<'a>) -> Self {
        self.states = States::InPlace(state);
        self
    }

    /// The states before the first tokens, left as they are.
    pub fn initial_state(mut self, state: StateView<'a>) -> Self {
        let last = match self.states {
            States::InPlace(last) => Some(last),
            States::Apart { last, .. } => last,
        };
        self.states = States::Apart { initial: Some(state), last };
        self
    }

    /// Where the states after the last tokens go. What is there before is not read.
    pub fn final_state(mut self, state: State<'a>) -> Self {
        let initial = match self.states {
            States::InPlace(_) => None,
            States::Apart { initial, .. } => initial,
        };
        self.states = States::Apart { initial, last: Some(state) };
        self
    }

    /// The slot of each sequence in the pool of states, `[sequences]`. Padding (negative, `u32::MAX`) has an output of zeros
    /// and touches no state. No slot that is written may be named twice, and each has to be there: the CPU backend refuses
    /// others; to a kernel a slot that is not there is padding.
    pub fn state_indices(mut self, indices: impl Into<Indices<'a>>) -> Self {
        self.indices = Some(indices.into());
        self
    }

    /// The slot that each sequence's final state goes to, instead of the one it is read from, `[sequences]`. Padding: dropped.
    pub fn output_state_indices(mut self, indices: impl Into<Indices<'a>>) -> Self {
        self.output_indices = Some(indices.into());
        self
    }

    /// Keeps the state after every token, in the pool of final states.
    pub fn checkpoints(mut self, checkpoints: Checkpoints<'a>) -> Self {
        self.checkpoints = Some(checkpoints);
        self
    }

    /// Keeps the state after every `interval` tokens of each sequence, for a cache of prefixes: the first sequence's in the
    /// first slots of `state`, then the second's, [`Sequences::checkpoints`] in all. `interval` is a multiple of 32, so that
    /// each has the bits of the final state of a prompt that ends there.
    pub fn checkpoint_every(mut self, interval: usize, state: State<'a>) -> Self {
        self.every = Some((interval, state));
        self
    }

    /// Every check that a run makes but those of slot numbers, which [`crate::cpu::run`] makes. With no tokens only the
    /// states are looked at.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape), [`Error::HeadDim`](crate::Error::HeadDim) or
    /// [`Error::Dtype`](crate::Error::Dtype), naming the first argument that does not fit.
    pub fn validate(&self) -> Result<()> {
        self.request().validate()
    }

    /// The call without its slices.
    pub(crate) fn request(&self) -> Request<'a> {
        Request::of(self)
    }

    /// Whether any gate is one that the convention does not have: a log above 0, a linear gate outside 0 to 1, or NaN. They
    /// are computed like others; this is for engines that are being brought up.
    ///
    /// # Errors
    /// Those of [`Call::validate`]; [`Error::Gate`](crate::Error::Gate) with the first such gate.
    pub fn check_gates(&self) -> Result<()> {
        self.validate()?;
        crate::gates::check(self)
    }
}

/// 1 / sqrt(K), the recurrence's customary scale.
#[must_use]
pub fn default_scale(heads: &Heads) -> f32 {
    (1.0 / (heads.head_k_dim as f64).sqrt()) as f32
}
