//! A window of a call as plain f32: what of it is converted, where that stands in the scratch, and the launches around it.
#![forbid(unsafe_code)]
use crate::call::QkNorm;
use crate::copies::{self, Named};
use crate::decode;
use crate::dtype::Dtype;
use crate::layout::{StateLayout, Strides};
use crate::plain;
use crate::request::{GateTensors, Place, Pool, Request, Tensor};
use crate::windows::Window;
use cuda_std::kernel::Entry;
use cuda_std::{Global, GlobalMut};
use kernels_gpu::kernels::{clear_padding, narrow, widen};

/// Bytes that the chunked kernels move at once.
const VECTOR_BYTES: u64 = 16;

/// One launch of the kernel that widens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Widen {
    pub entry: &'static Entry<widen::Args>,
    pub grid: [u32; 2],
    pub args: widen::Args,
}

/// One launch of the kernel that narrows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Narrow {
    pub entry: &'static Entry<narrow::Args>,
    pub grid: [u32; 2],
    pub args: narrow::Args,
}

/// One launch of the kernel that clears the output of padding.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClearPadding {
    pub entry: &'static Entry<clear_padding::Args>,
    pub grid: [u32; 2],
    pub args: clear_padding::Args,
}

/// What of a call is converted, and where in the scratch it stands, in floats, for any of its windows.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Places {
    keys: Option<[usize; 2]>,
    values: Option<usize>,
    gates: Option<[usize; 2]>,
    out: Option<usize>,
    states: Option<usize>,
    cu_seqlens: Option<usize>,
    /// Floats of all together, a multiple of four.
    pub floats: usize,
}

impl Places {
    /// What `request`, whose idle strides are 0, needs for each of these windows.
    pub fn of(request: &Request<'_>, windows: &[Window]) -> Self {
        let heads = &request.heads;
        let most = |count: &dyn Fn(&Window) -> usize| windows.iter().map(count).max().unwrap_or(0);
        let tokens = most(&|window| window.sequences().total());
        let sequences = most(&|window| window.sequences.len());
        let is_cut = windows.iter().any(Window::is_cut);
        let mut floats = 0;
        let mut take = |count: usize| {
            let first = floats;
            floats += count.next_multiple_of(4);
            first
        };
        let keys =
            [request.q, request.k].iter().any(|tensor| request.norm != QkNorm::None || !is_read_as_it_is(tensor));
        let is_raw = !matches!(request.gates, GateTensors::Log { .. });
        let gates = is_raw || request.gates.tensors().iter().any(|tensor| tensor.dtype != Dtype::F32);
        // States between windows have to stand somewhere, also where the last one is dropped.
        let states = !plain::takes_states(request) || (is_cut && request.last.is_none());
        let has_offsets = request.indices.is_some() && windows.iter().any(|window| window.cu_seqlens().is_some());
        let rows = tokens * heads.num_v_heads;
        let key_floats = tokens * heads.num_k_heads * heads.head_k_dim;
        let mut places = Self {
            keys: keys.then(|| [take(key_floats), take(key_floats)]),
            values: (!is_read_as_it_is(&request.v)).then(|| take(rows * heads.head_v_dim)),
            gates: gates.then(|| [take(rows), take(rows)]),
            out: (!is_read_as_it_is(&request.out)).then(|| take(rows * heads.head_v_dim)),
            states: states.then(|| take(sequences * heads.state_len())),
            cu_seqlens: has_offsets.then(|| take(sequences + 1)),
            floats: 0,
        };
        places.floats = floats;
        places
    }

    /// The window as a plain call, whose converted tensors stand in the scratch at address `scratch`.
    pub fn plain<'w>(&self, request: &Request<'w>, window: &'w Window, scratch: u64) -> Request<'w> {
        let heads = &request.heads;
        let sequences = window.sequences();
        let [_, tokens] = sequences.axes();
        let at = |floats: usize| Place { address: scratch + (floats * size_of::<f32>()) as u64, length: None };
        let tensor = |tensor: Tensor, converted: Option<usize>, count: usize, dim: usize| match converted {
            None => Tensor {
                place: Place { address: plain::element(request, &tensor, &window.first()), length: None },
                ..tensor
            },
            Some(first) => Tensor {
                argument: tensor.argument,
                place: at(first),
                dtype: Dtype::F32,
                strides: Strides::dense(count, dim),
                batch_stride: tokens * count * dim,
            },
        };
        let [g, beta] = request.gates.tensors().map(|tensor| *tensor);
        let [wide_q, wide_k] = both(self.keys);
        let [wide_g, wide_beta] = both(self.gates);
        let (k_heads, v_heads) = (heads.num_k_heads, heads.num_v_heads);
        let [initial, last] = self.states(request, window, scratch);
        let plain = Request {
            sequences,
            norm: QkNorm::None,
            q: tensor(request.q, wide_q, k_heads, heads.head_k_dim),
            k: tensor(request.k, wide_k, k_heads, heads.head_k_dim),
            v: tensor(request.v, self.values, v_heads, heads.head_v_dim),
            gates: GateTensors::Log { g: tensor(g, wide_g, v_heads, 1), beta: tensor(beta, wide_beta, v_heads, 1) },
            out: tensor(request.out, self.out, v_heads, heads.head_v_dim),
            initial,
            last,
            indices: None,
            output_indices: None,
            ..*request
        };
        plain.without_idle_strides()
    }

    /// The pools that the window's sequences start from and end in.
    fn states(&self, request: &Request<'_>, window: &Window, scratch: u64) -> [Option<Pool>; 2] {
        let pool = self.pool(request, window, scratch);
        let callers = |pool: Option<Pool>| {
            pool.map(|pool| Pool {
                place: Place { address: plain::slot_address(&pool, window.sequences.start), length: None },
                slots: window.sequences.len(),
                ..pool
            })
        };
        let [initial, last] = [request.initial, request.last].map(|own| own.and(pool).or(callers(own)));
        [if window.starts { initial } else { pool.or(last) }, if window.ends { last } else { pool.or(last) }]
    }

    /// The window's states in the scratch.
    fn pool(&self, request: &Request<'_>, window: &Window, scratch: u64) -> Option<Pool> {
        let first = self.states?;
        let place = Place { address: scratch + (first * size_of::<f32>()) as u64, length: None };
        let (layout, slots) = (StateLayout::key_major(&request.heads), window.sequences.len());
        Some(Pool { argument: "scratch", place, layout, slots })
    }

    /// The launch that converts the inputs of a window.
    pub fn widen(&self, request: &Request<'_>, window: &Window, scratch: GlobalMut<f32>) -> Option<Widen> {
        let [batch, tokens] = window.sequences().axes();
        let all_tokens = (batch * tokens) as u32;
        let count = |is_converted: bool, heads: usize| if is_converted { heads as u32 } else { 0 };
        let num_key_heads = count(self.keys.is_some(), request.heads.num_k_heads);
        let num_value_heads = count(self.values.is_some(), request.heads.num_v_heads);
        let num_gate_heads = count(self.gates.is_some(), request.heads.num_v_heads);
        let grid = widen::grid(all_tokens, [num_key_heads, num_value_heads, num_gate_heads]);
        if grid[0] == 0 {
            return None;
        }
        let Request { q, k, v, .. } = request;
        let [g, beta] = request.gates.tensors();
        let from = |tensor: &Tensor| Global::new(plain::element(request, tensor, &window.first()) as *const u8);
        let to = |floats: Option<usize>| scratch.offset(floats.unwrap_or(0));
        let ([wide_q, wide_k], [wide_g, wide_beta]) = (both(self.keys).map(to), both(self.gates).map(to));
        let gates = decode::gates(request);
        let (norm, norm_eps) = decode::norm(request);
        let args = widen::Args {
            q: from(q),
            q_batch_stride: q.batch_stride,
            q_token_stride: q.strides.token,
            q_head_stride: q.strides.head,
            wide_q,
            k: from(k),
            k_batch_stride: k.batch_stride,
            k_token_stride: k.strides.token,
            k_head_stride: k.strides.head,
            wide_k,
            v: from(v),
            v_batch_stride: v.batch_stride,
            v_token_stride: v.strides.token,
            v_head_stride: v.strides.head,
            wide_v: to(self.values),
            g: from(g),
            g_batch_stride: g.batch_stride,
            g_token_stride: g.strides.token,
            g_head_stride: g.strides.head,
            wide_g,
            beta: from(beta),
            beta_batch_stride: beta.batch_stride,
            beta_token_stride: beta.strides.token,
            beta_head_stride: beta.strides.head,
            wide_beta,
            a_log: gates.a_log,
            dt_bias: gates.dt_bias,
            norm_eps,
            beta_factor: gates.beta_factor,
            tokens: tokens as u32,
            all_tokens,
            num_key_heads,
            num_value_heads,
            num_gate_heads,
            element: decode::element(q.dtype),
            g_element: gates.g_element,
            beta_element: gates.beta_element,
            norm,
            gates: gates.gates,
        };
        Some(Widen { entry: &widen::KERNEL.entries[0], grid, args })
    }

    /// The launch that puts the output of a window where the caller has it.
    pub fn narrow(&self, request: &Request<'_>, window: &Window, scratch: GlobalMut<f32>) -> Option<Narrow> {
        let [batch, tokens] = window.sequences().axes();
        let all_tokens = (batch * tokens) as u32;
        let wide_out = scratch.offset(self.out.filter(|_| all_tokens > 0)?);
        let (out, num_value_heads) = (&request.out, request.heads.num_v_heads as u32);
        let args = narrow::Args {
            wide_out: Global::new(wide_out.as_ptr().cast_const()),
            out: GlobalMut::new(plain::element(request, out, &window.first()) as *mut u8),
            out_batch_stride: out.batch_stride,
            out_token_stride: out.strides.token,
            out_head_stride: out.strides.head,
            tokens: tokens as u32,
            all_tokens,
            num_value_heads,
            out_element: decode::element(out.dtype),
        };
        Some(Narrow { entry: &narrow::KERNEL.entries[0], grid: narrow::grid(all_tokens, num_value_heads), args })
    }

    /// The launch that brings the states which a window's sequences start from.
    pub fn gather(&self, request: &Request<'_>, window: &Window, scratch: GlobalMut<f32>) -> Option<copies::Launch> {
        let to = self.pool(request, window, scratch.as_ptr() as u64)?;
        let from = request.initial.filter(|_| window.starts)?;
        let named = Named::of(request.indices, &window.sequences);
        Some(copies::one(&request.heads, (from, named), (to, Named::InOrder(0)), to.slots))
    }

    /// The launch that puts the states that they end in where the caller has them.
    pub fn scatter(&self, request: &Request<'_>, window: &Window, scratch: GlobalMut<f32>) -> Option<copies::Launch> {
        let from = self.pool(request, window, scratch.as_ptr() as u64)?;
        let to = request.last.filter(|_| window.ends)?;
        let named = Named::of(request.output_indices.or(request.indices), &window.sequences);
        Some(copies::one(&request.heads, (from, Named::InOrder(0)), (to, named), from.slots))
    }

    /// The launch that clears the output of sequences without a slot, and the offsets that have to be in its table before.
    pub fn clear_padding<'w>(
        &self,
        request: &Request<'_>,
        window: &'w Window,
        scratch: GlobalMut<f32>,
    ) -> Option<(&'w [u32], GlobalMut<u32>, ClearPadding)> {
        let [batch, tokens] = window.sequences().axes();
        let indices = request.indices.filter(|_| batch * tokens > 0)?;
        let words = window.cu_seqlens().unwrap_or_default();
        let table: GlobalMut<u32> = scratch.offset(self.cu_seqlens.unwrap_or(0)).cast();
        let cu_seqlens = if words.is_empty() { core::ptr::null() } else { table.as_ptr().cast_const() };
        let (state_indices, state_index) = decode::table(Some(indices.from_row(window.sequences.start)));
        // A slot that the final pool has not is padding too, where the final state would go there.
        let last = request.last.filter(|_| request.output_indices.is_none());
        let slots = [request.initial, last].into_iter().flatten().map(|pool| pool.slots).min().unwrap_or(usize::MAX);
        let (out, num_value_heads) = (&request.out, request.heads.num_v_heads as u32);
        let args = clear_padding::Args {
            out: GlobalMut::new(plain::element(request, out, &window.first()) as *mut u8),
            out_batch_stride: out.batch_stride,
            out_token_stride: out.strides.token,
            out_head_stride: out.strides.head,
            cu_seqlens: Global::new(cu_seqlens),
            state_indices,
            slots,
            tokens: tokens as u32,
            num_value_heads,
            out_element: decode::element(out.dtype),
            state_index,
        };
        let grid = clear_padding::grid(window.sequences.len() as u32, num_value_heads);
        Some((words, table, ClearPadding { entry: &clear_padding::KERNEL.entries[0], grid, args }))
    }
}

/// Whether the chunked kernels read, or write, the tensor where it is.
fn is_read_as_it_is(tensor: &Tensor) -> bool {
    let bytes = |elements: usize| elements as u64 * size_of::<f32>() as u64;
    let Tensor { place, strides, batch_stride, .. } = *tensor;
    let addresses = [place.address, bytes(strides.token), bytes(strides.head), bytes(batch_stride)];
    tensor.dtype == Dtype::F32 && addresses.iter().all(|address| address.is_multiple_of(VECTOR_BYTES))
}

fn both(places: Option<[usize; 2]>) -> [Option<usize>; 2] {
    places.map_or([None; 2], |places| places.map(Some))
}
