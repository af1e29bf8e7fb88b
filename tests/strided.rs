//! Inputs and outputs at any strides, in buffers whose other elements are poison.
#![forbid(unsafe_code)]
use host::inputs::Inputs;
use host::{Call, Gates, Heads, State, StateLayout, Strides, View, ViewMut};

use crate::checks::{Fails, Output, untouched};

/// A NaN of ones: what no sum may read and nobody may write.
pub const POISON: f32 = f32::from_bits(u32::MAX);

/// Where the rows of every tensor lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Of q.
    pub q: Strides,
    /// Of k.
    pub k: Strides,
    /// Of v.
    pub v: Strides,
    /// Of g.
    pub g: Strides,
    /// Of beta.
    pub beta: Strides,
    /// Of the output.
    pub out: Strides,
    /// Of the state.
    pub state: StateLayout,
    /// Elements in front of the first of q, k and v.
    pub start: usize,
}

impl Layout {
    /// Every tensor dense.
    #[must_use]
    pub fn dense(heads: &Heads) -> Self {
        let keys = Strides::dense(heads.num_k_heads, heads.head_k_dim);
        let values = Strides::dense(heads.num_v_heads, heads.head_v_dim);
        let scalars = Strides::dense(heads.num_v_heads, 1);
        let state = StateLayout::key_major(heads);
        Self { q: keys, k: keys, v: values, g: scalars, beta: scalars, out: values, state, start: 0 }
    }
}

/// One tensor's rows: how many in each direction, how long, how far apart.
#[derive(Clone, Copy)]
struct Rows {
    outer: usize,
    inner: usize,
    dim: usize,
    strides: Strides,
}

impl Rows {
    /// The first element of each row, in the order of the dense tensor.
    fn starts(self) -> impl Iterator<Item = usize> {
        let Self { outer, inner, strides, .. } = self;
        (0..outer).flat_map(move |token| (0..inner).map(move |head| token * strides.token + head * strides.head))
    }

    /// A poisoned buffer with a few elements to spare, and in it the dense tensor's rows.
    fn scatter(self, dense: &[f32], start: usize) -> Vec<f32> {
        let end = self.starts().max().map_or(0, |last| last + self.dim);
        let mut buffer = vec![POISON; start + end + 5];
        for (row, at) in dense.chunks_exact(self.dim).zip(self.starts()) {
            buffer[start + at..][..self.dim].copy_from_slice(row);
        }
        buffer
    }

    fn gather(self, buffer: &[f32]) -> Vec<f32> {
        self.starts().flat_map(|at| buffer[at..][..self.dim].iter().copied()).collect()
    }

    /// Which elements of a buffer belong to a row.
    fn covers(self, length: usize) -> Vec<bool> {
        let mut covered = vec![false; length];
        self.starts().for_each(|at| covered[at..][..self.dim].fill(true));
        covered
    }
}

/// Buffers in a layout.
#[derive(Clone, Debug)]
pub struct Buffers {
    layout: Layout,
    heads: Heads,
    tokens: usize,
    scale: f32,
    inputs: [Vec<f32>; 5],
    /// The output's buffer.
    pub out: Vec<f32>,
    /// The state's buffer.
    pub state: Vec<f32>,
}

impl Buffers {
    /// `inputs` in `layout`; everything else is poison, the output too.
    #[must_use]
    pub fn new(inputs: &Inputs, layout: Layout) -> Self {
        let Inputs { heads, tokens, scale, .. } = *inputs;
        let (keys, values) = (heads.num_k_heads, heads.num_v_heads);
        let rows = |inner, dim, strides| Rows { outer: tokens, inner, dim, strides };
        let scattered = [
            rows(keys, heads.head_k_dim, layout.q).scatter(&inputs.q, layout.start),
            rows(keys, heads.head_k_dim, layout.k).scatter(&inputs.k, layout.start),
            rows(values, heads.head_v_dim, layout.v).scatter(&inputs.v, layout.start),
            rows(values, 1, layout.g).scatter(&inputs.g, 0),
            rows(values, 1, layout.beta).scatter(&inputs.beta, 0),
        ];
        let mut buffers = Self { layout, heads, tokens, scale, inputs: scattered, out: Vec::new(), state: Vec::new() };
        buffers.out = buffers.out_rows().scatter(&[], 0);
        buffers.state = buffers.state_rows().scatter(&inputs.state, 0);
        buffers
    }

    fn out_rows(&self) -> Rows {
        let Heads { num_v_heads, head_v_dim, .. } = self.heads;
        Rows { outer: self.tokens, inner: num_v_heads, dim: head_v_dim, strides: self.layout.out }
    }

    fn state_rows(&self) -> Rows {
        let Heads { num_v_heads, head_k_dim, head_v_dim, .. } = self.heads;
        let strides = Strides { token: self.layout.state.head, head: self.layout.state.row };
        Rows { outer: num_v_heads, inner: head_k_dim, dim: head_v_dim, strides }
    }

    /// The call over the buffers.
    pub fn call(&mut self) -> Call<'_> {
        let Self { layout, heads, tokens, scale, .. } = *self;
        let [q, k, v, g, beta] = &self.inputs;
        let start = layout.start;
        Call::new(
            heads,
            tokens,
            View::new(&q[start..], layout.q),
            View::new(&k[start..], layout.k),
            View::new(&v[start..], layout.v),
            Gates::Log { g: View::new(g, layout.g), beta: View::new(beta, layout.beta) },
            ViewMut::new(&mut self.out, layout.out),
        )
        .scale(scale)
        .state(State { data: &mut self.state, layout: layout.state })
    }

    /// What was written, dense.
    #[must_use]
    pub fn output(&self) -> Output {
        Output { out: self.out_rows().gather(&self.out), state: self.state_rows().gather(&self.state) }
    }

    /// That nothing but rows has changed since `before`.
    ///
    /// # Errors
    /// The first element that has.
    pub fn gaps_untouched(&self, before: &Self) -> Result<(), Fails> {
        for (name, rows, before, after) in
            [("out", self.out_rows(), &before.out, &self.out), ("state", self.state_rows(), &before.state, &self.state)]
        {
            let covered = rows.covers(after.len());
            untouched(before, after, |index| covered[index]).map_err(|fails| format!("{name}: {fails}"))?;
        }
        Ok(())
    }

    /// That nothing at all has changed since `before`: what a refusal promises.
    ///
    /// # Errors
    /// The first element that has.
    pub fn untouched(&self, before: &Self) -> Result<(), Fails> {
        untouched(&before.out, &self.out, |_| false)?;
        untouched(&before.state, &self.state, |_| false)
    }
}
