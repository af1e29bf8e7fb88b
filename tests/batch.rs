//! Batches of sequences in any element type, the ways to run them, and pools of states whose gaps are poison.
#![forbid(unsafe_code)]
use half::{bf16, f16};
use host::compare::Bar;
use host::inputs::{Family, Inputs};
use host::reference::Expected;
use host::reference_batch::reference_batch_f64;
use host::{
    Call, Decay, Dtype, Gates, Heads, Kernel, PathChoice, Policy, QkNorm, Result, Sequences, State, StateLayout,
    StateOrder, Strides, View, ViewMut, cpu,
};

use crate::checks::{Fails, Output, agrees, same_bits};
use crate::gpu_or_skip::{gpu, say_paths_are_missing};
use crate::paths::ORDERS;
use crate::strided::POISON;

/// One way to run a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchPath {
    /// The CPU backend, by a path of its own or by its choice.
    Cpu(Option<cpu::Path>),
    /// A kernel in the emulator, or its choice.
    Emulated(Option<Kernel>),
    /// A kernel on the GPU, or its choice.
    Cuda(Option<Kernel>),
}

impl BatchPath {
    /// Those that take every call of up to 16 tokens, whatever it asks for.
    ///
    /// # Panics
    /// As [`gpu`].
    #[must_use]
    pub fn all() -> Vec<Self> {
        let mut all = vec![
            Self::Cpu(Some(cpu::Path::Recurrent)),
            Self::Cpu(Some(cpu::Path::Chunked)),
            Self::Emulated(Some(Kernel::Decode)),
        ];
        match gpu() {
            Some(_) => all.push(Self::Cuda(Some(Kernel::Decode))),
            None => say_paths_are_missing(),
        }
        all
    }

    /// Those of [`BatchPath::all`] that have a sequence's bits wherever it is cut.
    ///
    /// # Panics
    /// As [`gpu`].
    #[must_use]
    pub fn sequential() -> Vec<Self> {
        let mut all = Self::all();
        all.retain(|path| *path != Self::Cpu(Some(cpu::Path::Chunked)));
        all
    }

    /// Runs `call`.
    ///
    /// # Errors
    /// Those of the path.
    ///
    /// # Panics
    /// Where a path of a GPU runs on a machine without one.
    pub fn run(self, call: Call<'_>) -> Result<()> {
        match self {
            Self::Cpu(None) => cpu::run(call),
            Self::Cpu(Some(path)) => cpu::run_by(call, path),
            Self::Emulated(kernel) => {
                let policy = kernel.map_or(Policy::default(), |kernel| Policy::with_path(PathChoice::Forced(kernel)));
                host::emulated::run_with(call, &policy, ORDERS[1])
            }
            Self::Cuda(kernel) => gpu().expect("a path of a GPU").run_on_slices(call, kernel).map(drop),
        }
    }
}

/// Numbers of one type.
#[derive(Clone, Debug, PartialEq)]
pub enum Numbers {
    /// 32-bit floats.
    F32(Vec<f32>),
    /// bfloat16.
    Bf16(Vec<bf16>),
    /// Half precision.
    F16(Vec<f16>),
}

impl Numbers {
    /// `numbers` rounded to `dtype`.
    #[must_use]
    pub fn new(numbers: &[f32], dtype: Dtype) -> Self {
        match dtype {
            Dtype::Bf16 => Self::Bf16(numbers.iter().map(|&x| bf16::from_f32(x)).collect()),
            Dtype::F16 => Self::F16(numbers.iter().map(|&x| f16::from_f32(x)).collect()),
            _ => Self::F32(numbers.to_vec()),
        }
    }

    /// A tensor over them, from element `first` on.
    #[must_use]
    pub fn view(&self, first: usize, strides: Strides) -> View<'_> {
        match self {
            Self::F32(data) => View::new(data.get(first..).unwrap_or_default(), strides),
            Self::Bf16(data) => View::new(data.get(first..).unwrap_or_default(), strides),
            Self::F16(data) => View::new(data.get(first..).unwrap_or_default(), strides),
        }
    }

    /// The same, to be written.
    #[must_use]
    pub fn view_mut(&mut self, strides: Strides) -> ViewMut<'_> {
        match self {
            Self::F32(data) => ViewMut::new(data, strides),
            Self::Bf16(data) => ViewMut::new(data, strides),
            Self::F16(data) => ViewMut::new(data, strides),
        }
    }

    /// How many.
    #[must_use]
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.view(0, Strides::dense(1, 1)).data.len()
    }

    /// Some of them.
    #[must_use]
    pub fn part(&self, range: core::ops::Range<usize>) -> Self {
        match self {
            Self::F32(data) => Self::F32(data[range].to_vec()),
            Self::Bf16(data) => Self::Bf16(data[range].to_vec()),
            Self::F16(data) => Self::F16(data[range].to_vec()),
        }
    }

    /// As f32, exactly.
    #[must_use]
    pub fn to_f32(&self) -> Vec<f32> {
        match self {
            Self::F32(data) => data.clone(),
            Self::Bf16(data) => data.iter().map(|x| x.to_f32()).collect(),
            Self::F16(data) => data.iter().map(|x| x.to_f32()).collect(),
        }
    }
}

/// States in slots, everything between their rows poison.
#[derive(Clone, Debug)]
pub struct Pool {
    /// Head counts.
    pub heads: Heads,
    /// Where they lie.
    pub layout: StateLayout,
    /// The states.
    pub data: Vec<f32>,
}

impl Pool {
    /// `slots` slots of poison.
    #[must_use]
    pub fn new(heads: Heads, layout: StateLayout, slots: usize) -> Self {
        let last = (heads.num_v_heads - 1) * layout.head + 127 * layout.row + 128;
        let length = if slots == 0 { 0 } else { (slots - 1) * layout.slot + last };
        Self { heads, layout, data: vec![POISON; length] }
    }

    fn at(&self, slot: usize, element: usize) -> usize {
        let (head, row, column) = (element / (128 * 128), element / 128 % 128, element % 128);
        let inside = match self.layout.order {
            StateOrder::KeyMajor => row * self.layout.row + column,
            StateOrder::ValueMajor => column * self.layout.row + row,
        };
        slot * self.layout.slot + head * self.layout.head + inside
    }

    /// Puts a state `[HV][K][V]` in a slot.
    pub fn put(&mut self, slot: usize, state: &[f32]) {
        for (element, &value) in state.iter().enumerate() {
            let at = self.at(slot, element);
            self.data[at] = value;
        }
    }

    /// The state `[HV][K][V]` of a slot.
    #[must_use]
    pub fn get(&self, slot: usize) -> Vec<f32> {
        (0..self.heads.state_len()).map(|element| self.data[self.at(slot, element)]).collect()
    }

    /// For a call.
    pub fn state(&mut self) -> State<'_> {
        State { data: &mut self.data, layout: self.layout }
    }
}

/// A batch with dense tensors.
#[derive(Clone, Debug)]
pub struct Batch {
    /// Head counts.
    pub heads: Heads,
    /// Tokens of each sequence.
    pub lengths: Vec<usize>,
    /// `[sequences + 1]`.
    pub cu_seqlens: Vec<u32>,
    /// Whether the sequences are given as packed ones; otherwise all have one length.
    pub packed: bool,
    /// Of the output.
    pub scale: f32,
    /// Of q and k.
    pub norm: QkNorm,
    /// `[all tokens, HK, 128]`.
    pub q: Numbers,
    /// `[all tokens, HK, 128]`.
    pub k: Numbers,
    /// `[all tokens, HV, 128]`.
    pub v: Numbers,
    /// g, or a of raw gates, `[all tokens, HV]`.
    pub g: Numbers,
    /// beta, or b of raw gates, `[all tokens, HV]`.
    pub beta: Numbers,
    /// A_log and dt_bias, where gates are raw.
    pub raw: Option<[Vec<f32>; 2]>,
    /// Type of the output.
    pub out: Dtype,
    /// `[HV][K][V]` of each sequence.
    pub states: Vec<Vec<f32>>,
}

/// What a path makes of a batch, sequence by sequence.
pub type Outputs = Vec<Output>;

impl Batch {
    /// Seeded sequences of such lengths, all tensors of `dtype` but the states.
    #[must_use]
    pub fn new(heads: Heads, lengths: &[usize], dtype: Dtype, seed: u64) -> Self {
        let inputs = Inputs::seeded(heads, lengths.iter().sum(), Family::Base, seed);
        let mut cu_seqlens = vec![0];
        lengths.iter().for_each(|&tokens| cu_seqlens.push(cu_seqlens[cu_seqlens.len() - 1] + tokens as u32));
        let states = (0..lengths.len()).map(|index| Inputs::seeded(heads, 0, Family::Base, seed + 100 + index as u64));
        Self {
            heads,
            lengths: lengths.to_vec(),
            cu_seqlens,
            packed: lengths.windows(2).any(|pair| pair[0] != pair[1]),
            scale: inputs.scale,
            norm: QkNorm::None,
            q: Numbers::new(&inputs.q, dtype),
            k: Numbers::new(&inputs.k, dtype),
            v: Numbers::new(&inputs.v, dtype),
            g: Numbers::new(&inputs.g, dtype),
            beta: Numbers::new(&inputs.beta, dtype),
            raw: None,
            out: Dtype::F32,
            states: states.map(|inputs| inputs.state).collect(),
        }
    }

    /// All tokens.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.lengths.iter().sum()
    }

    /// The sequences.
    #[must_use]
    pub fn sequences(&self) -> Sequences<'_> {
        match self.packed {
            true => Sequences::Varlen { cu_seqlens: &self.cu_seqlens },
            false => {
                Sequences::Uniform { batch: self.lengths.len(), tokens: self.lengths.first().copied().unwrap_or(0) }
            }
        }
    }

    /// An output of poison.
    #[must_use]
    pub fn poisoned_out(&self) -> Numbers {
        Numbers::new(&vec![f32::NAN; self.tokens() * self.heads.num_v_heads * 128], self.out)
    }

    /// The call without states.
    pub fn call<'a>(&'a self, out: &'a mut Numbers) -> Call<'a> {
        let (keys, values) = (self.heads.num_k_heads, self.heads.num_v_heads);
        let tokens = self.lengths.first().copied().unwrap_or(0);
        let view = |numbers: &'a Numbers, heads: usize, dim: usize| {
            numbers.view(0, Strides::dense(heads, dim)).batch_stride(tokens * heads * dim)
        };
        let (g, beta) = (view(&self.g, values, 1), view(&self.beta, values, 1));
        let gates = match &self.raw {
            None => Gates::Log { g, beta },
            Some([a_log, dt_bias]) => {
                Gates::Raw { a: g, b: beta, decay: Decay::ALog(a_log), dt_bias, allow_neg_eigval: false }
            }
        };
        let out = out.view_mut(Strides::dense(values, 128)).batch_stride(tokens * values * 128);
        let (q, k, v) = (view(&self.q, keys, 128), view(&self.k, keys, 128), view(&self.v, values, 128));
        Call::new(self.heads, self.sequences(), q, k, v, gates, out).scale(self.scale).qk_norm(self.norm)
    }

    /// The states in slots of their own, in order.
    #[must_use]
    pub fn pool(&self, layout: StateLayout) -> Pool {
        let mut pool = Pool::new(self.heads, layout, self.lengths.len());
        self.states.iter().enumerate().for_each(|(slot, state)| pool.put(slot, state));
        pool
    }

    /// An output, cut by sequence.
    #[must_use]
    pub fn cut(&self, out: &Numbers) -> Vec<Vec<f32>> {
        let (out, row) = (out.to_f32(), self.heads.num_v_heads * 128);
        let ends = self.cu_seqlens.windows(2).map(|ends| ends[0] as usize * row..ends[1] as usize * row);
        ends.map(|rows| out[rows].to_vec()).collect()
    }

    /// What `path` makes of it, every state replaced in place.
    ///
    /// # Errors
    /// Those of the path.
    pub fn run(&self, path: BatchPath) -> Result<Outputs> {
        let (mut out, mut pool) = (self.poisoned_out(), self.pool(StateLayout::key_major(&self.heads)));
        path.run(self.call(&mut out).state(pool.state()))?;
        let outs = self.cut(&out).into_iter().enumerate();
        Ok(outs.map(|(slot, out)| Output { out, state: pool.get(slot) }).collect())
    }

    /// Sequence `index` as a batch of its own.
    #[must_use]
    pub fn alone(&self, index: usize) -> Self {
        self.part(index, 0..self.lengths[index])
    }

    /// Some tokens of sequence `index` as a batch of their own.
    #[must_use]
    pub fn part(&self, index: usize, tokens: core::ops::Range<usize>) -> Self {
        let first = self.cu_seqlens[index] as usize;
        let of = |numbers: &Numbers| {
            let row = numbers.len() / self.tokens().max(1);
            numbers.part((first + tokens.start) * row..(first + tokens.end) * row)
        };
        Self {
            heads: self.heads,
            lengths: vec![tokens.len()],
            cu_seqlens: vec![0, tokens.len() as u32],
            packed: false,
            q: of(&self.q),
            k: of(&self.k),
            v: of(&self.v),
            g: of(&self.g),
            beta: of(&self.beta),
            states: vec![self.states[index].clone()],
            scale: self.scale,
            norm: self.norm,
            raw: self.raw.clone(),
            out: self.out,
        }
    }

    /// What float64 makes of it.
    #[must_use]
    pub fn expected(&self) -> Vec<Expected> {
        let (mut out, mut pool) = (self.poisoned_out(), self.pool(StateLayout::key_major(&self.heads)));
        let expected = reference_batch_f64(&self.call(&mut out).state(pool.state()));
        expected.into_iter().map(|one| Expected { out: one.out, state: one.state.expect("no padding") }).collect()
    }

    /// That every sequence of `outputs` is within `bar` of float64.
    ///
    /// # Errors
    /// The first that is not.
    pub fn agrees(&self, outputs: &Outputs, bar: &Bar) -> Result<(), Fails> {
        for (index, (expected, actual)) in self.expected().iter().zip(outputs).enumerate() {
            agrees(&self.heads, expected, actual, bar).map_err(|fails| format!("sequence {index}: {fails}"))?;
        }
        Ok(())
    }

    /// That every sequence of `outputs` has the bits that `path` gives it alone.
    ///
    /// # Errors
    /// The first that has not.
    pub fn bits_alone(&self, path: BatchPath, outputs: &Outputs) -> Result<(), Fails> {
        for (index, output) in outputs.iter().enumerate() {
            let alone = self.alone(index).run(path).map_err(|error| error.to_string())?;
            same_bits(&self.heads, &alone[0], output).map_err(|fails| format!("sequence {index}: {fails}"))?;
        }
        Ok(())
    }
}
