//! A window of a call as plain f32: what of it is converted, where that stands in the scratch, and the launches around it.
#![forbid(unsafe_code)]
use crate::call::QkNorm;
use crate::copies::{self, Named};
use crate::decode;
use crate::dtype::Dtype;
use crate::layout::{StateLayout, Strides};
use crate::plain;
use crate::request::{GateTensors, Place, Pool, Request, Tensor};
use crate::upload;
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
        let are_logs = matches!(request.gates, GateTensors::Log { .. });
        let gates = !are_logs || request.gates.tensors().iter().any(|tensor| tensor.dtype != Dtype::F32);
        // States between windows have to stand somewhere, also where the last one is dropped. Those that are kept on the way are
        // where windows end.
        let is_dropped = request.last.is_none() && request.every.is_none();
        let states = plain::require_states(request).is_err() || (is_cut && is_dropped);
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
        let [initial, last, kept] = self.states(request, window, scratch);
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
            every: request.every.and_then(|(interval, _)| Some((interval, kept?))),
            ..*request
        };
        plain.without_idle_strides()
    }

    /// The pools that the window's sequences start from and end in, and that of the states which they keep on the way.
    fn states(&self, request: &Request<'_>, window: &Window, scratch: u64) -> [Option<Pool>; 3] {
        let from_slot = |pool: Pool, slot: usize| Pool {
            place: Place { address: plain::slot_address(&pool, slot), length: None },
            slots: window.sequences.len(),
            ..pool
        };
        let pool = self.pool(request, window, scratch);
        let [initial, last] = [request.initial, request.last]
            .map(|callers| callers.map(|callers| pool.unwrap_or_else(|| from_slot(callers, window.sequences.start))));
        let Some((interval, kept)) = request.every else {
            let between = pool.or(last);
            return [if window.starts { initial } else { between }, if window.ends { last } else { between }, None];
        };
        // Cut at multiples of the interval, where the last state that is kept is that between windows.
        let first = window.first();
        let before: usize = (0..first.sequence).map(|index| request.sequences.tokens(index) / interval).sum();
        let done = before + first.first / interval;
        [
            if window.starts { initial } else { Some(from_slot(kept, done - 1)) },
            last.filter(|_| window.ends),
            Some(Pool { slots: kept.slots.saturating_sub(done), ..from_slot(kept, done) }),
        ]
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
        let copy = copies::one(&request.heads, (from, Named::InOrder(0)), (to, named), from.slots);
        // What is padding where it starts ends nowhere, whatever the second table says.
        let guard = request.indices.filter(|_| request.output_indices.is_some());
        Some(copy.guarded(guard.map(|table| table.rows_from(window.sequences.start)), slots(request)))
    }

    /// The launch that clears the output of sequences without a slot, and the one that brings the offsets which it reads.
    pub fn clear_padding(
        &self,
        request: &Request<'_>,
        window: &Window,
        scratch: GlobalMut<f32>,
    ) -> Option<(Option<upload::Launch>, ClearPadding)> {
        let [batch, tokens] = window.sequences().axes();
        let indices = request.indices.filter(|_| batch * tokens > 0)?;
        let table: GlobalMut<u32> = scratch.offset(self.cu_seqlens.unwrap_or(0)).cast();
        let upload = window.cu_seqlens().map(|words| upload::launch(words, table));
        let cu_seqlens = if upload.is_some() { table.as_ptr().cast_const() } else { core::ptr::null() };
        let (state_indices, state_index) = decode::table(Some(indices.rows_from(window.sequences.start)));
        let (out, num_value_heads) = (&request.out, request.heads.num_v_heads as u32);
        let args = clear_padding::Args {
            out: GlobalMut::new(plain::element(request, out, &window.first()) as *mut u8),
            out_batch_stride: out.batch_stride,
            out_token_stride: out.strides.token,
            out_head_stride: out.strides.head,
            cu_seqlens: Global::new(cu_seqlens),
            state_indices,
            slots: slots(request),
            tokens: tokens as u32,
            num_value_heads,
            out_element: decode::element(out.dtype),
            state_index,
        };
        let grid = clear_padding::grid(window.sequences.len() as u32, num_value_heads);
        Some((upload, ClearPadding { entry: &clear_padding::KERNEL.entries[0], grid, args }))
    }
}

/// Slots that a sequence may start from. One that the final pool has not is padding too, where the final state would go there.
fn slots(request: &Request<'_>) -> usize {
    let last = request.last.filter(|_| request.output_indices.is_none());
    [request.initial, last].into_iter().flatten().map(|pool| pool.slots).min().unwrap_or(usize::MAX)
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
