//! One call of the recurrence over device memory.
#![forbid(unsafe_code)]
use crate::call::{Rows, StateLayout, Strides, default_scale, state_rows};
use crate::error::{Error, Result};
use crate::heads::Heads;
use crate::kernel::{Pointers, Problem};
use cuda_std::{Global, GlobalMut};

/// A tensor in device memory: a CUdeviceptr (a u64 in cust, cudarc and cubecl alike) to f32, and where its rows lie.
#[derive(Clone, Copy, Debug)]
pub struct View {
    /// The address of the first element.
    pub pointer: u64,
    /// Where the rows lie, in elements.
    pub strides: Strides,
}

impl View {
    /// f32 at `pointer`, with `strides`.
    #[must_use]
    pub const fn new(pointer: u64, strides: Strides) -> Self {
        Self { pointer, strides }
    }
}

/// One call over device memory: plain data, no device work.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct Call {
    pub(super) heads: Heads,
    tokens: usize,
    q: View,
    k: View,
    v: View,
    g: View,
    beta: View,
    out: View,
    scale: f32,
    initial_state: Option<u64>,
    final_state: Option<u64>,
    layout: StateLayout,
}

impl Call {
    /// q, k `[tokens, HK, K]`; v, out `[tokens, HV, V]`; g (log of the forget gate, at most 0) and beta `[tokens, HV]`.
    /// From a zero state that is dropped at the end, with scale 1 / sqrt(K), until the setters say otherwise.
    #[allow(clippy::too_many_arguments)]
    pub fn new(heads: Heads, tokens: usize, q: View, k: View, v: View, g: View, beta: View, out: View) -> Self {
        let (scale, layout) = (default_scale(&heads), StateLayout::key_major(&heads));
        Self { heads, tokens, q, k, v, g, beta, out, scale, initial_state: None, final_state: None, layout }
    }

    /// What the output is multiplied with; 1 / sqrt(K) if not called.
    pub fn scale(mut self, scale: f32) -> Self {
        self.scale = scale;
        self
    }

    /// Where states lie; `[HV][K][V]` if not called.
    pub fn state_layout(mut self, layout: StateLayout) -> Self {
        self.layout = layout;
        self
    }

    /// The state before the first token, replaced by the one after the last.
    pub fn state(self, pointer: u64) -> Self {
        self.initial_state(pointer).final_state(pointer)
    }

    /// The state before the first token.
    pub fn initial_state(mut self, pointer: u64) -> Self {
        self.initial_state = Some(pointer);
        self
    }

    /// Where the state after the last token goes.
    pub fn final_state(mut self, pointer: u64) -> Self {
        self.final_state = Some(pointer);
        self
    }

    /// Every check that a run makes on the host.
    ///
    /// # Errors
    /// [`Error::Shape`], [`Error::HeadDim`], [`Error::Null`] or [`Error::Misaligned`], naming the first argument that does
    /// not fit.
    pub fn validate(&self) -> Result<()> {
        let heads = &self.heads;
        heads.require_128()?;
        let (k_heads, v_heads) = (heads.num_k_heads, heads.num_v_heads);
        for (argument, view, count, dim) in [
            ("q", self.q, k_heads, heads.head_k_dim),
            ("k", self.k, k_heads, heads.head_k_dim),
            ("v", self.v, v_heads, heads.head_v_dim),
            ("g", self.g, v_heads, 1),
            ("beta", self.beta, v_heads, 1),
            ("out", self.out, v_heads, heads.head_v_dim),
        ] {
            let rows = Rows { argument, strides: view.strides, tokens: self.tokens, heads: count, dim };
            require_pointer(argument, view.pointer, rows.elements()?)?;
            if argument == "out" {
                rows.require_disjoint()?;
            }
        }
        for (argument, pointer) in [("initial_state", self.initial_state), ("final_state", self.final_state)] {
            if let Some(pointer) = pointer {
                let rows = Rows { argument, ..state_rows(heads, self.layout) };
                require_pointer(argument, pointer, rows.elements()?)?;
                rows.require_disjoint()?;
            }
        }
        Ok(())
    }

    pub(super) fn problem(&self) -> Problem {
        Problem {
            heads: self.heads,
            tokens: self.tokens,
            scale: self.scale,
            q: self.q.strides,
            k: self.k.strides,
            v: self.v.strides,
            g: self.g.strides,
            beta: self.beta.strides,
            out: self.out.strides,
            state: self.layout,
        }
        .without_idle_strides()
    }

    pub(super) fn pointers(&self) -> Pointers {
        let read = |view: View| Global::new(view.pointer as *const f32);
        Pointers {
            q: read(self.q),
            k: read(self.k),
            v: read(self.v),
            g: read(self.g),
            beta: read(self.beta),
            out: GlobalMut::new(self.out.pointer as *mut f32),
            initial_state: Global::new(self.initial_state.unwrap_or(0) as *const f32),
            final_state: GlobalMut::new(self.final_state.unwrap_or(0) as *mut f32),
        }
    }
}

/// That `elements` f32 can stand at `pointer`.
fn require_pointer(argument: &'static str, pointer: u64, elements: usize) -> Result<()> {
    let element_bytes = size_of::<f32>();
    if elements == 0 {
        return Ok(());
    }
    if pointer == 0 {
        return Err(Error::Null { argument });
    }
    if !pointer.is_multiple_of(element_bytes as u64) {
        return Err(Error::Misaligned { argument, address: pointer, required: element_bytes });
    }
    if pointer.checked_add((elements * element_bytes) as u64).is_none() {
        return Err(Error::shape(argument, "an extent that ends below 2^64", format!("{pointer:#x} + {elements} f32")));
    }
    Ok(())
}
