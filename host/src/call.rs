//! One call of the recurrence over slices: what the CPU backend and the emulator run. The CUDA backend's call has device
//! pointers in their place and shares the checks.
#![forbid(unsafe_code)]
use crate::error::{Error, Result};
use crate::heads::Heads;

/// Where the rows of a `[token, head, dim]` or `[token, head]` tensor lie: element `(t, h, i)` is at
/// `t * token + h * head + i`. In elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Strides {
    /// From a token to the next.
    pub token: usize,
    /// From a head to the next.
    pub head: usize,
}

impl Strides {
    /// Dense `[token, heads, dim]`.
    #[must_use]
    pub const fn dense(heads: usize, dim: usize) -> Self {
        Self { token: heads * dim, head: dim }
    }
}

/// Where a `[value head, key row, value column]` state lies: element `(h, row, column)` is at
/// `h * head + row * row_stride + column`. In elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StateLayout {
    /// From a value head to the next.
    pub head: usize,
    /// From a key row to the next.
    pub row: usize,
}

impl StateLayout {
    /// `[HV][K][V]`: flash-linear-attention's default.
    #[must_use]
    pub const fn key_major(heads: &Heads) -> Self {
        Self { head: heads.head_k_dim * heads.head_v_dim, row: heads.head_v_dim }
    }

    /// `[K][HV][V]`: key rows outermost.
    #[must_use]
    pub const fn key_rows(heads: &Heads) -> Self {
        Self { head: heads.head_v_dim, row: heads.num_v_heads * heads.head_v_dim }
    }
}

/// A tensor to read.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// From the first element on.
    pub data: &'a [f32],
    /// Where the rows lie in it.
    pub strides: Strides,
}

impl<'a> View<'a> {
    /// `data` with `strides`.
    #[must_use]
    pub const fn new(data: &'a [f32], strides: Strides) -> Self {
        Self { data, strides }
    }
}

/// A tensor to write.
#[derive(Debug)]
pub struct ViewMut<'a> {
    /// From the first element on.
    pub data: &'a mut [f32],
    /// Where the rows lie in it.
    pub strides: Strides,
}

impl<'a> ViewMut<'a> {
    /// `data` with `strides`.
    #[must_use]
    pub const fn new(data: &'a mut [f32], strides: Strides) -> Self {
        Self { data, strides }
    }
}

/// The state of every value head, read and written in place.
#[derive(Debug)]
pub struct State<'a> {
    /// From the first element on.
    pub data: &'a mut [f32],
    /// Where the rows lie in it.
    pub layout: StateLayout,
}

/// The forget gate as the caller has it. Log and linear gates have the same type and shape, so the convention is named.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Gates<'a> {
    /// `g`: log of the forget gate, at most 0, -inf allowed; `beta` after its sigmoid. Both `[token, value head]`.
    Log {
        /// Log of the forget gate.
        g: View<'a>,
        /// Write strength.
        beta: View<'a>,
    },
}

/// One call over slices. Tensors may overlap each other freely where they are read; Rust keeps `out` and the state apart.
#[derive(Debug)]
#[must_use]
pub struct Call<'a> {
    pub(crate) heads: Heads,
    pub(crate) tokens: usize,
    pub(crate) q: View<'a>,
    pub(crate) k: View<'a>,
    pub(crate) v: View<'a>,
    pub(crate) gates: Gates<'a>,
    pub(crate) out: ViewMut<'a>,
    pub(crate) state: Option<State<'a>>,
    pub(crate) scale: f32,
}

impl<'a> Call<'a> {
    /// q, k `[tokens, HK, K]`; v, out `[tokens, HV, V]`. From a zero state that is dropped at the end, with scale
    /// 1 / sqrt(K), until the setters say otherwise.
    pub fn new(
        heads: Heads,
        tokens: usize,
        q: View<'a>,
        k: View<'a>,
        v: View<'a>,
        gates: Gates<'a>,
        out: ViewMut<'a>,
    ) -> Self {
        let scale = default_scale(&heads);
        Self { heads, tokens, q, k, v, gates, out, state: None, scale }
    }

    /// What the output is multiplied with; 1 / sqrt(K) if not called.
    pub fn scale(mut self, scale: f32) -> Self {
        self.scale = scale;
        self
    }

    /// The state before the first token, replaced by the one after the last.
    pub fn state(mut self, state: State<'a>) -> Self {
        self.state = Some(state);
        self
    }

    /// Every check that a run makes. With no tokens only the state is looked at.
    ///
    /// # Errors
    /// [`Error::Shape`] or [`Error::HeadDim`], naming the first argument that does not fit.
    pub fn validate(&self) -> Result<()> {
        let heads = &self.heads;
        heads.require_128()?;
        let Gates::Log { g, beta } = &self.gates;
        let (k_heads, v_heads) = (heads.num_k_heads, heads.num_v_heads);
        for (argument, view, count, dim) in [
            ("q", &self.q, k_heads, heads.head_k_dim),
            ("k", &self.k, k_heads, heads.head_k_dim),
            ("v", &self.v, v_heads, heads.head_v_dim),
            ("g", g, v_heads, 1),
            ("beta", beta, v_heads, 1),
        ] {
            let rows = Rows { argument, strides: view.strides, tokens: self.tokens, heads: count, dim };
            rows.require_length(view.data.len())?;
        }
        let out = Rows {
            argument: "out",
            strides: self.out.strides,
            tokens: self.tokens,
            heads: v_heads,
            dim: heads.head_v_dim,
        };
        out.require_length(self.out.data.len())?;
        out.require_disjoint()?;
        if let Some(state) = &self.state {
            let rows = state_rows(heads, state.layout);
            rows.require_length(state.data.len())?;
            rows.require_disjoint()?;
        }
        Ok(())
    }
}

/// 1 / sqrt(K), the recurrence's customary scale.
#[must_use]
pub fn default_scale(heads: &Heads) -> f32 {
    (1.0 / (heads.head_k_dim as f64).sqrt()) as f32
}

/// A state as rows: its key rows stand where other tensors have tokens.
pub(crate) fn state_rows(heads: &Heads, layout: StateLayout) -> Rows {
    Rows {
        argument: "state",
        strides: Strides { token: layout.row, head: layout.head },
        tokens: heads.head_k_dim,
        heads: heads.num_v_heads,
        dim: heads.head_v_dim,
    }
}

/// The rows that a tensor's shape and strides describe, for the checks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rows {
    pub argument: &'static str,
    pub strides: Strides,
    pub tokens: usize,
    pub heads: usize,
    pub dim: usize,
}

impl Rows {
    /// Elements from the first to the last, both included; 0 for no rows.
    ///
    /// # Errors
    /// [`Error::Shape`] where that or its bytes do not fit a signed 64-bit number, or there are 2^32 tokens or more.
    pub fn elements(&self) -> Result<usize> {
        if self.tokens == 0 || self.heads == 0 {
            return Ok(0);
        }
        if u32::try_from(self.tokens).is_err() {
            return Err(Error::shape("tokens", format!("at most {}", u32::MAX), self.tokens));
        }
        let last = |count: usize, stride: usize| (count as u128 - 1) * stride as u128;
        let elements = last(self.tokens, self.strides.token) + last(self.heads, self.strides.head) + self.dim as u128;
        let limit = isize::MAX as u128 / size_of::<f32>() as u128;
        if elements > limit {
            return Err(Error::shape(
                self.argument,
                format!("at most {limit} elements from the first to the last"),
                elements,
            ));
        }
        Ok(elements as usize)
    }

    /// That `length` elements hold the rows.
    pub fn require_length(&self, length: usize) -> Result<()> {
        let elements = self.elements()?;
        if length < elements {
            let Self { tokens, heads, dim, strides, .. } = self;
            return Err(Error::shape(
                self.argument,
                format!(
                    "at least {elements} elements for {tokens} x {heads} rows of {dim} (strides {}, {})",
                    strides.token, strides.head
                ),
                length,
            ));
        }
        Ok(())
    }

    /// That no two rows share an element, for a tensor that is written.
    pub fn require_disjoint(&self) -> Result<()> {
        let mut axes = [(self.tokens, self.strides.token), (self.heads, self.strides.head)];
        axes.sort_by_key(|&(_, stride)| stride);
        let mut extent = self.dim as u128;
        for (count, stride) in axes.into_iter().filter(|&(count, _)| count > 1) {
            if (stride as u128) < extent {
                return Err(Error::shape(
                    self.argument,
                    format!("rows that do not overlap: a stride of at least {extent}"),
                    stride,
                ));
            }
            extent += (count as u128 - 1) * stride as u128;
        }
        Ok(())
    }
}
