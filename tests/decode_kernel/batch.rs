//! A batch in memory: what the launch takes, made from dense tensors of 32-bit floats.
use super::states::{Indices, States, Target, none, pools};
use cuda_std::Global;
use cuda_std::emulator::{self, Launch, Memory};
use cuda_std::float::{to_bf16, to_f16, unpack_bf16x2, unpack_f16x2};
use host::inputs::{Family, Inputs};
use host::reference::{Expected, reference_f64};
use host::{HEAD_DIM, HeadMap, Heads};
use kernels_gpu::kernels::decode::{Args, GATES_LOG, KERNEL, NORM_NONE, grid};
use kernels_gpu::kernels::elements::{BF16, F32, bytes};
use kernels_gpu::shape::{GROUPED, TILED};

/// A byte that nobody wrote; as floats of any size, NaN.
const POISON: u8 = 0xff;

/// Sixteen bytes on sixteen bytes.
#[repr(C, align(16))]
#[derive(Clone, Copy)]
struct Block([u8; 16]);

/// The numbers that `values` become in memory of type `element`.
pub fn rounded(values: &[f32], element: u32) -> Vec<f32> {
    values.iter().map(|&value| read(&encoded(value, element), element)).collect()
}

fn encoded(value: f32, element: u32) -> Vec<u8> {
    match element {
        F32 => value.to_ne_bytes().to_vec(),
        BF16 => to_bf16(value).to_ne_bytes().to_vec(),
        _ => to_f16(value).to_ne_bytes().to_vec(),
    }
}

fn read(bytes: &[u8], element: u32) -> f32 {
    match (element, bytes) {
        (F32, &[a, b, c, d, ..]) => f32::from_ne_bytes([a, b, c, d]),
        (BF16, &[a, b, ..]) => unpack_bf16x2(u16::from_ne_bytes([a, b]).into()).0,
        (_, &[a, b, ..]) => unpack_f16x2(u16::from_ne_bytes([a, b]).into()).0,
        _ => panic!("too few bytes"),
    }
}

/// How tensors lie in memory.
#[derive(Clone, Copy, Debug)]
pub struct Form {
    /// Of q, k and v.
    pub element: u32,
    pub g_element: u32,
    pub beta_element: u32,
    pub out_element: u32,
    /// All sequences on one token axis, with a table of where they start.
    pub packed: bool,
    /// Elements in front of the first, and between a token and the next.
    pub start: usize,
    pub gap: usize,
    /// Of the output.
    pub out_start: usize,
}

impl Form {
    pub const DENSE: Self = Self {
        element: F32,
        g_element: F32,
        beta_element: F32,
        out_element: F32,
        packed: true,
        start: 0,
        gap: 0,
        out_start: 0,
    };
}

/// A tensor `[sequences][tokens][heads][dim]` in memory.
struct Tensor {
    memory: Vec<Block>,
    element: u32,
    start: usize,
    /// Batch, token, head.
    strides: [usize; 3],
    /// Where each row of `dim` starts, in the order of the dense tensor.
    rows: Vec<usize>,
    dim: usize,
}

impl Tensor {
    fn new(batch: &Batch, heads: usize, dim: usize, element: u32, start: usize) -> Self {
        let token_stride = heads * dim + batch.form.gap;
        let longest = batch.lengths.iter().copied().max().unwrap_or(0);
        let batch_stride = longest * token_stride + batch.form.gap;
        let mut rows = Vec::new();
        let mut first = 0;
        for (sequence, &tokens) in batch.lengths.iter().enumerate() {
            let origin = if batch.form.packed { first * token_stride } else { sequence * batch_stride };
            first += tokens;
            rows.extend((0..tokens * heads).map(|row| start + origin + row / heads * token_stride + row % heads * dim));
        }
        let elements = rows.iter().max().map_or(start, |last| last + dim) + 3;
        let memory = vec![Block([POISON; 16]); (elements * bytes(element)).div_ceil(16)];
        // A batch stride that must not matter.
        let batch_stride = if batch.form.packed { 1 << 50 } else { batch_stride };
        Self { memory, element, start, strides: [batch_stride, token_stride, dim], rows, dim }
    }

    fn filled(mut self, values: &[f32]) -> Self {
        assert_eq!(values.len(), self.rows.len() * self.dim);
        for (row, values) in self.rows.iter().zip(values.chunks_exact(self.dim)) {
            for (i, &value) in values.iter().enumerate() {
                let encoded = encoded(value, self.element);
                let at = (row + i) * encoded.len();
                for (byte, value) in encoded.into_iter().enumerate() {
                    self.memory[(at + byte) / 16].0[(at + byte) % 16] = value;
                }
            }
        }
        self
    }

    /// The dense tensor. Whatever lies between its rows is as it was.
    fn values(&self) -> Vec<f32> {
        let memory: Vec<u8> = self.memory.iter().flat_map(|block| block.0).collect();
        let size = bytes(self.element);
        let mut outside = vec![true; memory.len()];
        let mut values = Vec::new();
        for &row in &self.rows {
            let bytes = row * size..(row + self.dim) * size;
            outside[bytes.clone()].fill(false);
            values.extend(memory[bytes].chunks_exact(size).map(|bytes| read(bytes, self.element)));
        }
        assert!(memory.iter().zip(outside).all(|(&byte, outside)| !outside || byte == POISON), "a gap was written");
        values
    }
}

/// A batch. Tensors are dense: the tokens of all sequences one after the other.
#[derive(Clone, Debug)]
pub struct Batch {
    pub heads: Heads,
    pub lengths: Vec<usize>,
    pub q: Vec<f32>,
    pub k: Vec<f32>,
    pub v: Vec<f32>,
    pub g: Vec<f32>,
    pub beta: Vec<f32>,
    pub form: Form,
    pub initial: Option<States>,
    pub last: Target,
    pub checkpoint: Target,
    pub indices: Option<Indices>,
    pub output_indices: Option<Indices>,
    pub checkpoint_indices: Option<Indices>,
    pub checkpoint_tokens: usize,
    pub checkpoint_lanes: u32,
    pub scale: f32,
    pub norm: u32,
    pub norm_eps: f32,
    pub gates: u32,
    pub a_log: Vec<f32>,
    pub dt_bias: Vec<f32>,
    pub beta_factor: f32,
}

impl Batch {
    /// Sequences of these lengths, each from its own slot of a dense pool, in place.
    pub fn seeded(heads: Heads, lengths: &[usize], seed: u64) -> Self {
        let tokens = lengths.iter().sum();
        let Inputs { q, k, v, g, beta, scale, .. } = Inputs::seeded(heads, tokens, Family::Base, seed);
        let mut initial = States::new(&heads, pools(&heads, lengths.len())[0].1, 0.0);
        for slot in 0..lengths.len() {
            initial.set_slot(&heads, slot, &Inputs::seeded(heads, 0, Family::Base, seed + 1 + slot as u64).state);
        }
        Self {
            heads,
            lengths: lengths.to_vec(),
            q,
            k,
            v,
            g,
            beta,
            form: Form::DENSE,
            initial: Some(initial),
            last: Target::Initial,
            checkpoint: Target::Nowhere,
            indices: None,
            output_indices: None,
            checkpoint_indices: None,
            checkpoint_tokens: 0,
            checkpoint_lanes: 0,
            scale,
            norm: NORM_NONE,
            norm_eps: 0.0,
            gates: GATES_LOG,
            a_log: Vec::new(),
            dt_bias: Vec::new(),
            beta_factor: 1.0,
        }
    }

    /// The tokens of a sequence, of all sequences' tokens.
    pub fn tokens(&self, sequence: usize) -> std::ops::Range<usize> {
        let start = self.lengths[..sequence].iter().sum();
        start..start + self.lengths[sequence]
    }

    /// A sequence by itself, as float64 takes it: numbers as memory holds them, and the state of `slot`.
    pub fn inputs(&self, sequence: usize, slot: Option<usize>) -> Inputs {
        let tokens = self.tokens(sequence);
        let Self { heads, form, .. } = self;
        let part =
            |values: &[f32], row: usize, element| rounded(&values[tokens.start * row..tokens.end * row], element);
        let (keys, values) = (heads.num_k_heads * HEAD_DIM, heads.num_v_heads * HEAD_DIM);
        let state = match (slot, &self.initial) {
            (Some(slot), Some(initial)) => initial.slot(heads, slot),
            _ => vec![0.0; heads.num_v_heads * HEAD_DIM * HEAD_DIM],
        };
        Inputs {
            heads: *heads,
            tokens: tokens.len(),
            scale: self.scale,
            q: part(&self.q, keys, form.element),
            k: part(&self.k, keys, form.element),
            v: part(&self.v, values, form.element),
            g: part(&self.g, heads.num_v_heads, form.g_element),
            beta: part(&self.beta, heads.num_v_heads, form.beta_element),
            state,
        }
    }

    /// What float64 makes of a sequence that starts from `slot`.
    pub fn expected(&self, sequence: usize, slot: Option<usize>) -> Expected {
        reference_f64(&self.inputs(sequence, slot))
    }

    /// The launch. Gives the outputs, dense; states are in their pools.
    #[track_caller]
    pub fn run(&mut self, order: u64) -> Vec<f32> {
        let Self { heads, form, .. } = *self;
        let (keys, values) = (heads.num_k_heads, heads.num_v_heads);
        let tensor =
            |heads, dim, element, data: &[f32]| Tensor::new(self, heads, dim, element, form.start).filled(data);
        let q = tensor(keys, HEAD_DIM, form.element, &self.q);
        let k = tensor(keys, HEAD_DIM, form.element, &self.k);
        let v = tensor(values, HEAD_DIM, form.element, &self.v);
        let g = tensor(values, 1, form.g_element, &self.g);
        let beta = tensor(values, 1, form.beta_element, &self.beta);
        let mut out = Tensor::new(self, values, HEAD_DIM, form.out_element, form.out_start);
        let rows: usize = self.lengths.iter().sum();
        let sequences = self.lengths.len();
        let ends = (0..=sequences).map(|count| self.lengths[..count].iter().sum::<usize>() as u32);
        let cu_seqlens: Vec<u32> = ends.collect();
        let tokens = if form.packed { rows } else { self.lengths.first().copied().unwrap_or(0) };

        let mut memory = Memory::new();
        let initial = self.initial.as_mut().map_or_else(none, |states| states.lend(&mut memory));
        let last = self.last.lend(initial, &mut memory);
        let checkpoint = self.checkpoint.lend(initial, &mut memory);
        let [(initial, from), (last, to), (checkpoint, after)] = [initial, last, checkpoint];
        let (state_indices, state_index) = Indices::lend(self.indices.as_ref(), &mut memory);
        let (output_state_indices, output_state_index) = Indices::lend(self.output_indices.as_ref(), &mut memory);
        let (checkpoint_indices, checkpoint_index) = Indices::lend(self.checkpoint_indices.as_ref(), &mut memory);
        let args = Args {
            q: memory.read_only(&q.memory).cast::<u8>().offset(q.start * bytes(q.element)),
            q_batch_stride: q.strides[0],
            q_token_stride: q.strides[1],
            q_head_stride: q.strides[2],
            k: memory.read_only(&k.memory).cast::<u8>().offset(k.start * bytes(k.element)),
            k_batch_stride: k.strides[0],
            k_token_stride: k.strides[1],
            k_head_stride: k.strides[2],
            v: memory.read_only(&v.memory).cast::<u8>().offset(v.start * bytes(v.element)),
            v_batch_stride: v.strides[0],
            v_token_stride: v.strides[1],
            v_head_stride: v.strides[2],
            g: memory.read_only(&g.memory).cast::<u8>().offset(g.start * bytes(g.element)),
            g_batch_stride: g.strides[0],
            g_token_stride: g.strides[1],
            g_head_stride: g.strides[2],
            beta: memory.read_only(&beta.memory).cast::<u8>().offset(beta.start * bytes(beta.element)),
            beta_batch_stride: beta.strides[0],
            beta_token_stride: beta.strides[1],
            beta_head_stride: beta.strides[2],
            a_log: memory.read_only(&self.a_log),
            dt_bias: memory.read_only(&self.dt_bias),
            out_batch_stride: out.strides[0],
            out_token_stride: out.strides[1],
            out_head_stride: out.strides[2],
            out: memory.read_write(&mut out.memory).cast::<u8>().offset(out.start * bytes(out.element)),
            cu_seqlens: if form.packed { memory.read_only(&cu_seqlens) } else { Global::new(std::ptr::null()) },
            initial_state: Global::new(initial.as_ptr()),
            initial_slot_stride: from.slot_stride,
            initial_head_stride: from.head_stride,
            initial_row_stride: from.row_stride,
            initial_column_stride: from.column_stride,
            initial_slots: from.slots,
            final_state: last,
            final_slot_stride: to.slot_stride,
            final_head_stride: to.head_stride,
            final_row_stride: to.row_stride,
            final_column_stride: to.column_stride,
            final_slots: to.slots,
            checkpoint,
            checkpoint_slot_stride: after.slot_stride,
            checkpoint_head_stride: after.head_stride,
            checkpoint_row_stride: after.row_stride,
            checkpoint_column_stride: after.column_stride,
            checkpoint_slots: after.slots,
            state_indices,
            output_state_indices,
            checkpoint_indices,
            checkpoint_tokens: self.checkpoint_tokens,
            checkpoint_lanes: self.checkpoint_lanes,
            scale: self.scale,
            norm_eps: self.norm_eps,
            beta_factor: self.beta_factor,
            sequences: sequences as u32,
            tokens: tokens as u32,
            num_key_heads: keys as u32,
            values_per_key: heads.values_per_key() as u32,
            head_map: if heads.map == HeadMap::Tiled { TILED } else { GROUPED },
            element: form.element,
            g_element: form.g_element,
            beta_element: form.beta_element,
            out_element: form.out_element,
            norm: self.norm,
            gates: self.gates,
            state_index,
            output_state_index,
            checkpoint_index,
        };
        let entry = &KERNEL.entries[0];
        let grid = grid(sequences as u32, values as u32);
        let launch = Launch { grid, threads: entry.threads, shared_bytes: entry.shared_bytes, order };
        // SAFETY: types: the entry takes `Args`. Lengths: what the kernel touches outside `memory` is refused. Lifetime: the
        // batch and the tensors outlive the launch.
        unsafe { emulator::run(&launch, &memory, entry.body, args) }.unwrap_or_else(|fault| panic!("{fault}"));
        drop(memory);
        out.values()
    }
}
