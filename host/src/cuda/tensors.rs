//! What a call names in device memory. Addresses are CUdeviceptrs: a u64 in cust, cudarc and cubecl alike.
#![forbid(unsafe_code)]
use crate::dtype::{Dtype, IndexDtype};
use crate::layout::{StateLayout, Strides};

/// A tensor in device memory, `[batch, token, head, dim]` or `[batch, token, head]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    /// The address of the first element.
    pub pointer: u64,
    /// The type of the elements.
    pub dtype: Dtype,
    /// Where the rows of a sequence lie, in elements.
    pub strides: Strides,
    /// From a sequence to the next, in elements; only [`Sequences::Uniform`](crate::Sequences::Uniform) with several of them
    /// reads it.
    pub batch_stride: usize,
}

impl View {
    /// The tensor at `pointer`, for one sequence or packed ones.
    #[must_use]
    pub const fn new(pointer: u64, dtype: Dtype, strides: Strides) -> Self {
        Self { pointer, dtype, strides, batch_stride: 0 }
    }

    /// The same with sequences so many elements apart.
    #[must_use]
    pub const fn batch_stride(self, batch_stride: usize) -> Self {
        Self { batch_stride, ..self }
    }
}

/// States in device memory, always f32: one of every sequence in order, or a pool whose slots indices name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// The address of the first slot's first element.
    pub pointer: u64,
    /// Where slots, heads and rows lie, in elements.
    pub layout: StateLayout,
    /// Slots that there are.
    pub slots: usize,
}

impl State {
    /// `slots` states at `pointer`.
    #[must_use]
    pub const fn new(pointer: u64, layout: StateLayout, slots: usize) -> Self {
        Self { pointer, layout, slots }
    }
}

/// Slot numbers in device memory. Padding is negative, or `u32::MAX`; so is, on the device, a slot that the pool has not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Indices {
    /// The address of the first number.
    pub pointer: u64,
    /// The type of the numbers.
    pub dtype: IndexDtype,
}

impl Indices {
    /// The numbers at `pointer`.
    #[must_use]
    pub const fn new(pointer: u64, dtype: IndexDtype) -> Self {
        Self { pointer, dtype }
    }
}

/// The forget gate and the write strength as the caller has them; as [`crate::Gates`].
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Gates {
    /// What the recurrence takes. Both `[batch, token, value head]`, of any type.
    Log {
        /// Log of the forget gate, at most 0, -inf allowed. Above 0 the state grows.
        g: View,
        /// Write strength, after its sigmoid.
        beta: View,
    },
    /// The forget gate itself. Both `[batch, token, value head]`, of any type.
    Linear {
        /// Forget gate, 0 to 1.
        decay: View,
        /// Write strength, after its sigmoid.
        beta: View,
    },
    /// The projections of the layer, from which g = -exp(A_log) softplus(a + dt_bias) and beta = sigmoid(b).
    Raw {
        /// `[batch, token, value head]`, of any type.
        a: View,
        /// `[batch, token, value head]`, of any type.
        b: View,
        /// `[value head]`, the model's decay.
        decay: Decay,
        /// The address of f32 `[value head]`.
        dt_bias: u64,
        /// Twice the sigmoid: write strengths up to 2.
        allow_neg_eigval: bool,
    },
}

/// The address of a model's decay, f32 `[value head]`, as its file has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decay {
    /// `A_log`: Hugging Face.
    ALog(u64),
    /// `-exp(A_log)`: `ssm_a` of GGUF.
    NegExpALog(u64),
}

/// Where the state after each token goes, for sequences of up to [`DECODE_TOKENS`](crate::DECODE_TOKENS) tokens; as
/// [`crate::Checkpoints`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Checkpoints {
    /// A slot for every token, `[sequence, token]` with as many tokens as the longest sequence has; padding: not kept.
    PerToken(Indices),
    /// The state after token t of a sequence in slot s goes to slot `s / lanes * lanes + t`, and the final one nowhere else.
    Lanes(u32),
}
