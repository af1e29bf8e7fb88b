//! A call as numbers: shapes, strides, types and addresses, whoever owns the memory. What is checked before anything runs,
//! and what launches are made from.
#![forbid(unsafe_code)]
use crate::call::{Call, Checkpoints, Decay, Gates, QkNorm, States, View};
use crate::dtype::{Dtype, IndexDtype, Indices, Slice};
use crate::error::{Error, Result};
use crate::extent::Rows;
use crate::heads::Heads;
use crate::layout::{StateLayout, Strides};
use crate::sequences::Sequences;
use kernels_gpu::kernels::chunk::CHUNK;

/// Tokens of a sequence that decode takes, at most.
pub const DECODE_TOKENS: usize = 16;

/// Where something is: a device address, or a slice with its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub address: u64,
    /// Elements of the slice; None on the device, where nobody knows.
    pub length: Option<usize>,
}

impl Place {
    fn of(slice: Slice<'_>) -> Self {
        Self { address: slice.address(), length: Some(slice.len()) }
    }

    fn floats(data: &[f32]) -> Self {
        Self::of(Slice::F32(data))
    }

    /// That so many elements of `bytes` bytes are there.
    fn require(self, argument: &'static str, elements: usize, bytes: usize) -> Result<()> {
        if elements == 0 {
            return Ok(());
        }
        let Self { address, length } = self;
        if let Some(length) = length {
            return if length < elements {
                Err(Error::shape(argument, format!("at least {elements} elements"), length))
            } else {
                Ok(())
            };
        }
        if address == 0 {
            return Err(Error::Null { argument });
        }
        if !address.is_multiple_of(bytes as u64) {
            return Err(Error::Misaligned { argument, address, required: bytes });
        }
        let fits = u64::try_from(elements as u128 * bytes as u128).ok().and_then(|bytes| address.checked_add(bytes));
        if fits.is_none() {
            let extent = format!("{address:#x} + {elements} elements of {bytes} bytes");
            return Err(Error::shape(argument, "an extent that ends below 2^64", extent));
        }
        Ok(())
    }
}

/// A `[batch, token, head]` tensor of rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tensor {
    pub argument: &'static str,
    pub place: Place,
    pub dtype: Dtype,
    pub strides: Strides,
    pub batch_stride: usize,
}

impl Tensor {
    fn of(argument: &'static str, view: &View<'_>) -> Self {
        let View { data, strides, batch_stride } = *view;
        Self { argument, place: Place::of(data), dtype: data.dtype(), strides, batch_stride }
    }

    /// Its rows under `sequences`.
    fn rows(&self, sequences: &Sequences<'_>, heads: usize, dim: usize) -> Rows {
        let [batch, tokens] = sequences.axes();
        Rows {
            argument: self.argument,
            axes: [(batch, self.batch_stride), (tokens, self.strides.token), (heads, self.strides.head)],
            dim,
            element_bytes: self.dtype.bytes(),
        }
    }

    fn require(&self, rows: &Rows) -> Result<()> {
        match self.place.length {
            Some(length) => rows.require_length(length),
            None => self.place.require(self.argument, rows.elements()?, rows.element_bytes),
        }
    }

    /// The same tensor with strides of 0 along axes of one element or none. They lead nowhere, so that a caller may have
    /// left any number in them, and no kernel has to compute with it.
    fn without_idle_strides(self, sequences: &Sequences<'_>, heads: usize) -> Self {
        let [batch, tokens] = sequences.axes();
        let used = |stride: usize, count: usize| if count > 1 { stride } else { 0 };
        Self {
            strides: Strides { token: used(self.strides.token, tokens), head: used(self.strides.head, heads) },
            batch_stride: used(self.batch_stride, batch),
            ..self
        }
    }
}

/// A pool of states.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pool {
    pub argument: &'static str,
    pub place: Place,
    pub layout: StateLayout,
    /// Slots that it has.
    pub slots: usize,
}

impl Pool {
    pub fn of(argument: &'static str, heads: &Heads, data: &[f32], layout: StateLayout) -> Self {
        let one = Self { argument, place: Place::floats(data), layout, slots: 1 };
        let first = one.rows(heads, 1).elements().unwrap_or(usize::MAX);
        let slots = match data.len().checked_sub(first) {
            None => 0,
            Some(more) if layout.slot > 0 => 1 + more / layout.slot,
            Some(_) => 1,
        };
        Self { slots, ..one }
    }

    fn rows(&self, heads: &Heads, slots: usize) -> Rows {
        let [rows, dim] = self.layout.rows(heads);
        let axes = [(slots, self.layout.slot), (rows, self.layout.row), (heads.num_v_heads, self.layout.head)];
        Rows { argument: self.argument, axes, dim, element_bytes: size_of::<f32>() }
    }

    /// That it has `slots` slots, apart from each other.
    pub fn require(&self, heads: &Heads, slots: usize) -> Result<()> {
        let rows = self.rows(heads, slots);
        match self.place.length {
            Some(length) => rows.require_length(length)?,
            None => {
                self.place.require(self.argument, rows.elements()?, size_of::<f32>())?;
                if self.slots < slots {
                    return Err(Error::shape(self.argument, format!("at least {slots} slots"), self.slots));
                }
            }
        }
        rows.require_disjoint()
    }

    /// The same with a head stride of 0 where there is one head, and a slot stride of 0 where there is one slot.
    fn without_idle_strides(self, heads: &Heads) -> Self {
        let used = |stride: usize, count: usize| if count > 1 { stride } else { 0 };
        let StateLayout { slot, head, .. } = self.layout;
        let layout = StateLayout { slot: used(slot, self.slots), head: used(head, heads.num_v_heads), ..self.layout };
        Self { layout, ..self }
    }
}

/// A table of slot numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Table {
    pub place: Place,
    pub dtype: IndexDtype,
}

impl Table {
    fn of(indices: &Indices<'_>) -> Self {
        Self { place: Place { address: indices.address(), length: Some(indices.len()) }, dtype: indices.dtype() }
    }

    fn require(&self, argument: &'static str, rows: usize) -> Result<()> {
        self.place.require(argument, rows, self.dtype.bytes())
    }

    /// The rest of it, from row `row` on.
    pub fn rows_from(self, row: usize) -> Self {
        let Place { address, length } = self.place;
        let address = address.wrapping_add((row * self.dtype.bytes()) as u64);
        Self { place: Place { address, length: length.map(|length| length.saturating_sub(row)) }, ..self }
    }
}

/// The gates of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum GateTensors {
    Log { g: Tensor, beta: Tensor },
    Linear { decay: Tensor, beta: Tensor },
    Raw { a: Tensor, b: Tensor, decay: Place, is_log: bool, dt_bias: Place, beta_factor: f32 },
}

impl GateTensors {
    /// The tensor of each token's decay, and that of its write strength.
    pub fn tensors(&self) -> [&Tensor; 2] {
        match self {
            Self::Log { g, beta } => [g, beta],
            Self::Linear { decay, beta } => [decay, beta],
            Self::Raw { a, b, .. } => [a, b],
        }
    }

    fn map(self, tensor: impl Fn(Tensor) -> Tensor) -> Self {
        match self {
            Self::Log { g, beta } => Self::Log { g: tensor(g), beta: tensor(beta) },
            Self::Linear { decay, beta } => Self::Linear { decay: tensor(decay), beta: tensor(beta) },
            Self::Raw { a, b, decay, is_log, dt_bias, beta_factor } => {
                Self::Raw { a: tensor(a), b: tensor(b), decay, is_log, dt_bias, beta_factor }
            }
        }
    }
}

/// Where the state after each token goes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CheckpointTable {
    PerToken(Table),
    Lanes(u32),
}

/// The whole call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request<'a> {
    pub heads: Heads,
    pub sequences: Sequences<'a>,
    pub scale: f32,
    pub norm: QkNorm,
    pub q: Tensor,
    pub k: Tensor,
    pub v: Tensor,
    pub gates: GateTensors,
    pub out: Tensor,
    pub initial: Option<Pool>,
    pub last: Option<Pool>,
    pub indices: Option<Table>,
    pub output_indices: Option<Table>,
    pub checkpoints: Option<CheckpointTable>,
    pub every: Option<(usize, Pool)>,
}

impl<'a> Request<'a> {
    /// That of a call over slices.
    pub fn of(call: &Call<'a>) -> Self {
        let heads = &call.heads;
        let out = Tensor {
            argument: "out",
            place: Place::of(call.out.data.as_slice()),
            dtype: call.out.data.as_slice().dtype(),
            strides: call.out.strides,
            batch_stride: call.out.batch_stride,
        };
        let (initial, last) = match &call.states {
            States::InPlace(state) => {
                let pool = Pool::of("state", heads, state.data, state.layout);
                (Some(pool), Some(pool))
            }
            States::Apart { initial, last } => (
                initial.as_ref().map(|state| Pool::of("initial_state", heads, state.data, state.layout)),
                last.as_ref().map(|state| Pool::of("final_state", heads, state.data, state.layout)),
            ),
        };
        Self {
            heads: *heads,
            sequences: call.sequences,
            scale: call.scale,
            norm: call.norm,
            q: Tensor::of("q", &call.q),
            k: Tensor::of("k", &call.k),
            v: Tensor::of("v", &call.v),
            gates: gates_of(&call.gates),
            out,
            initial,
            last,
            indices: call.indices.as_ref().map(Table::of),
            output_indices: call.output_indices.as_ref().map(Table::of),
            checkpoints: call.checkpoints.as_ref().map(|checkpoints| match checkpoints {
                Checkpoints::PerToken(indices) => CheckpointTable::PerToken(Table::of(indices)),
                Checkpoints::Lanes(lanes) => CheckpointTable::Lanes(*lanes),
            }),
            every: call
                .every
                .as_ref()
                .map(|(tokens, state)| (*tokens, Pool::of("checkpoint_every", heads, state.data, state.layout))),
        }
    }

    /// Every check that needs no memory to be read.
    ///
    /// # Errors
    /// [`Error::Shape`], [`Error::HeadDim`], [`Error::Dtype`], [`Error::Null`] or [`Error::Misaligned`], naming the first
    /// argument that does not fit.
    pub fn validate(&self) -> Result<()> {
        let (heads, sequences) = (&self.heads, &self.sequences);
        heads.require_128()?;
        sequences.validate()?;
        let (k_heads, v_heads) = (heads.num_k_heads, heads.num_v_heads);
        let [g, beta] = self.gates.tensors();
        for (tensor, count, dim) in [
            (&self.q, k_heads, heads.head_k_dim),
            (&self.k, k_heads, heads.head_k_dim),
            (&self.v, v_heads, heads.head_v_dim),
            (g, v_heads, 1),
            (beta, v_heads, 1),
            (&self.out, v_heads, heads.head_v_dim),
        ] {
            tensor.require(&tensor.rows(sequences, count, dim))?;
        }
        self.out.rows(sequences, v_heads, heads.head_v_dim).require_disjoint()?;
        self.require_dtypes()?;
        if let GateTensors::Raw { decay, dt_bias, .. } = &self.gates {
            for (argument, place) in [("decay", decay), ("dt_bias", dt_bias)] {
                let used = if sequences.total() == 0 { 0 } else { v_heads };
                place.require(argument, used, size_of::<f32>())?;
            }
        }
        if let QkNorm::L2 { eps } = self.norm
            && !(eps.is_finite() && eps >= 0.0)
        {
            return Err(Error::shape("eps", "a finite number from 0 on", eps));
        }
        self.require_states()
    }

    /// Slots of the initial pool that a sequence may start from: all, where tables name them.
    pub fn read_slots(&self) -> usize {
        match &self.initial {
            Some(pool) if self.indices.is_some() => pool.slots,
            _ => self.sequences.count(),
        }
    }

    /// Slots of the final pool that may be written: all, where tables name them.
    pub fn written_slots(&self) -> usize {
        let named = self.indices.is_some() || self.output_indices.is_some() || self.checkpoints.is_some();
        match &self.last {
            Some(pool) if named => pool.slots,
            _ => self.sequences.count(),
        }
    }

    fn require_dtypes(&self) -> Result<()> {
        let dtype = self.q.dtype;
        for tensor in [&self.k, &self.v] {
            if tensor.dtype != dtype {
                let (argument, got) = (tensor.argument, tensor.dtype);
                return Err(Error::Dtype { argument, got, expected: [dtype, dtype] });
            }
        }
        if ![dtype, Dtype::F32].contains(&self.out.dtype) {
            return Err(Error::Dtype { argument: "out", got: self.out.dtype, expected: [dtype, Dtype::F32] });
        }
        Ok(())
    }

    fn require_states(&self) -> Result<()> {
        let count = self.sequences.count();
        for (pool, slots) in [(&self.initial, self.read_slots()), (&self.last, self.written_slots())] {
            if let Some(pool) = pool {
                pool.require(&self.heads, slots)?;
            }
        }
        for (argument, table) in [("state_indices", &self.indices), ("output_state_indices", &self.output_indices)] {
            if let Some(table) = table {
                table.require(argument, count)?;
            }
        }
        if self.last.is_none() && self.output_indices.is_some() {
            return Err(Error::shape("output_state_indices", "a final state that they name slots of", "none"));
        }
        self.require_checkpoints()
    }

    fn require_checkpoints(&self) -> Result<()> {
        if let Some(checkpoints) = &self.checkpoints {
            let (longest, count) = (self.sequences.longest(), self.sequences.count());
            if self.last.is_none() {
                return Err(Error::shape("checkpoints", "a final state, in whose pool they are kept", "none"));
            }
            if longest > DECODE_TOKENS {
                return Err(Error::DecodeTokens { tokens: longest, most: DECODE_TOKENS });
            }
            match checkpoints {
                CheckpointTable::PerToken(table) => table.require("checkpoints", count * longest)?,
                CheckpointTable::Lanes(lanes) if longest > *lanes as usize => {
                    return Err(Error::shape("lanes", format!("at least {longest}, the tokens of a sequence"), lanes));
                }
                CheckpointTable::Lanes(_) => {}
            }
        }
        if let Some((interval, pool)) = &self.every {
            if *interval == 0 || !interval.is_multiple_of(CHUNK) {
                return Err(Error::shape("checkpoint_every", format!("a multiple of {CHUNK} tokens"), interval));
            }
            pool.require(&self.heads, self.sequences.checkpoints(*interval))?;
        }
        Ok(())
    }

    /// The same call with strides of 0 along axes of one element or none.
    pub fn without_idle_strides(self) -> Self {
        let Heads { num_k_heads, num_v_heads, .. } = self.heads;
        let sequences = self.sequences;
        let rows = |tensor: Tensor, heads| tensor.without_idle_strides(&sequences, heads);
        Self {
            q: rows(self.q, num_k_heads),
            k: rows(self.k, num_k_heads),
            v: rows(self.v, num_v_heads),
            gates: self.gates.map(|tensor| rows(tensor, num_v_heads)),
            out: rows(self.out, num_v_heads),
            initial: self.initial.map(|pool| pool.without_idle_strides(&self.heads)),
            last: self.last.map(|pool| pool.without_idle_strides(&self.heads)),
            every: self.every.map(|(tokens, pool)| (tokens, pool.without_idle_strides(&self.heads))),
            ..self
        }
    }
}

fn gates_of(gates: &Gates<'_>) -> GateTensors {
    match gates {
        Gates::Log { g, beta } => GateTensors::Log { g: Tensor::of("g", g), beta: Tensor::of("beta", beta) },
        Gates::Linear { decay, beta } => {
            GateTensors::Linear { decay: Tensor::of("decay", decay), beta: Tensor::of("beta", beta) }
        }
        Gates::Raw { a, b, decay, dt_bias, allow_neg_eigval } => {
            let (values, is_log) = match decay {
                Decay::ALog(values) => (values, true),
                Decay::NegExpALog(values) => (values, false),
            };
            GateTensors::Raw {
                a: Tensor::of("a", a),
                b: Tensor::of("b", b),
                decay: Place::floats(values),
                is_log,
                dt_bias: Place::floats(dt_bias),
                beta_factor: if *allow_neg_eigval { 2.0 } else { 1.0 },
            }
        }
    }
}
