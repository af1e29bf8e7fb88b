//! The general kernel as launches: any call goes through it token by token, a whole batch in one launch.
#![forbid(unsafe_code)]
use crate::call::QkNorm;
use crate::dtype::{Dtype, IndexDtype};
use crate::error::Reason;
use crate::heads::HeadMap;
use crate::layout::StateOrder;
use crate::plain::{self, Held, Piece};
use crate::policy::Card;
use crate::request::{CheckpointTable, GateTensors, Place, Pool, Request, Table, Tensor};
use cuda_std::kernel::Entry;
use cuda_std::{Global, GlobalMut};
use kernels_gpu::kernels::decode::gates::Kind;
use kernels_gpu::kernels::decode::{self, Args};
use kernels_gpu::kernels::{elements, slots};
use kernels_gpu::shape::{GROUPED, TILED};

/// Blocks of a launch, at most.
const MOST_BLOCKS: u64 = i32::MAX as u64;

/// One launch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Launch {
    pub entry: &'static Entry<Args>,
    pub grid: [u32; 2],
    pub args: Args,
}

/// Whether the kernel can run `request` on `card`.
///
/// # Errors
/// The first reason against it.
pub(crate) fn require(card: &Card, request: &Request<'_>) -> Result<(), Reason> {
    card.require(decode::KERNEL.architecture)?;
    let [blocks, _] = decode::grid(1, request.heads.num_v_heads as u32);
    let (sequences, most) = (request.sequences.count(), (MOST_BLOCKS / u64::from(blocks)) as usize);
    if sequences > most {
        return Err(Reason::Batch { sequences, most });
    }
    if request.every.is_some() {
        for (argument, table) in
            [("state_indices", &request.indices), ("output_state_indices", &request.output_indices)]
        {
            if table.is_some() {
                return Err(Reason::Indices { argument });
            }
        }
    }
    Ok(())
}

/// Whether `request` needs its offsets in device memory: where its sequences have different lengths.
pub(crate) fn needs_table(request: &Request<'_>) -> bool {
    request.every.is_none() && request.sequences.uniform().is_none()
}

/// The launch of a whole call without states kept on the way, whose idle strides are 0. `table` holds its offsets on the device
/// where [`needs_table`] says so.
pub(crate) fn whole(request: &Request<'_>, table: Global<u32>) -> Launch {
    let sequences = request.sequences.count();
    let lengths = request.sequences.uniform();
    // Packed sequences of one length are a batch.
    let is_packed = matches!(request.sequences, crate::Sequences::Varlen { .. });
    let batch_stride = |tensor: &Tensor| match lengths {
        Some(tokens) if is_packed => tokens * tensor.strides.token,
        _ => tensor.batch_stride,
    };
    let mut args = args(request, &Ends { initial: request.initial, last: request.last });
    let [g, beta] = request.gates.tensors();
    args.q_batch_stride = batch_stride(&request.q);
    args.k_batch_stride = batch_stride(&request.k);
    args.v_batch_stride = batch_stride(&request.v);
    args.g_batch_stride = batch_stride(g);
    args.beta_batch_stride = batch_stride(beta);
    args.out_batch_stride = batch_stride(&request.out);
    args.sequences = sequences as u32;
    args.tokens = lengths.unwrap_or(request.sequences.total()) as u32;
    args.cu_seqlens = if lengths.is_some() { Global::new(core::ptr::null()) } else { table };
    launch(request, args)
}

/// The launch of a piece of one sequence of a call without tables of slots, whose idle strides are 0.
pub(crate) fn piece(request: &Request<'_>, piece: &Piece) -> Launch {
    let one = |pool: Option<Pool>, held: Held| {
        let (pool, slot) = match held {
            Held::Caller => (pool?, piece.sequence),
            Held::Kept(slot) => (request.every?.1, slot),
        };
        let place = Place { address: plain::slot_address(&pool, slot), ..pool.place };
        Some(Pool { place, slots: 1, ..pool })
    };
    let ends = Ends { initial: one(request.initial, piece.from), last: one(request.last, piece.to) };
    let mut args = args(request, &ends);
    let at = |tensor: &Tensor| plain::element(request, tensor, piece);
    let [g, beta] = request.gates.tensors();
    args.q = read(at(&request.q));
    args.k = read(at(&request.k));
    args.v = read(at(&request.v));
    args.g = read(at(g));
    args.beta = read(at(beta));
    args.out = write(at(&request.out));
    args.sequences = 1;
    args.tokens = piece.tokens as u32;
    launch(request, args)
}

/// The pools at both ends of a launch.
struct Ends {
    initial: Option<Pool>,
    last: Option<Pool>,
}

fn launch(request: &Request<'_>, args: Args) -> Launch {
    let grid = decode::grid(args.sequences, request.heads.num_v_heads as u32);
    Launch { entry: &decode::KERNEL.entries[0], grid, args }
}

fn read<T: Copy>(address: u64) -> Global<T> {
    Global::new(address as *const T)
}

fn write<T: Copy>(address: u64) -> GlobalMut<T> {
    GlobalMut::new(address as *mut T)
}

/// From a slot, a head, a key row and a column to the next; the address; slots. Of no pool: null.
fn pool(pool: Option<Pool>) -> ([usize; 4], u64, usize) {
    let Some(Pool { place, layout, slots, .. }) = pool else { return ([0; 4], 0, 0) };
    let (row, column) = match layout.order {
        StateOrder::KeyMajor => (layout.row, 1),
        StateOrder::ValueMajor => (1, layout.row),
    };
    ([layout.slot, layout.head, row, column], place.address, slots)
}

/// A table of slots, null where there is none, and the width of its entries.
pub(crate) fn table(table: Option<Table>) -> (Global<u8>, u32) {
    let Some(Table { place, dtype }) = table else { return (read(0), slots::INDEX_32) };
    let width = match dtype {
        IndexDtype::I32 | IndexDtype::U32 => slots::INDEX_32,
        IndexDtype::I64 => slots::INDEX_64,
    };
    (read(place.address), width)
}

/// The kernels' number of an element type.
pub(crate) fn element(dtype: Dtype) -> u32 {
    match dtype {
        Dtype::F32 => elements::F32,
        Dtype::Bf16 => elements::BF16,
        Dtype::F16 => elements::F16,
    }
}

/// What the gates of a call are.
pub(crate) fn gates(request: &Request<'_>) -> Kind {
    let [g, beta] = request.gates.tensors();
    let (a_log, dt_bias, gates, beta_factor) = match request.gates {
        GateTensors::Log { .. } => (0, 0, decode::GATES_LOG, 1.0),
        GateTensors::Linear { .. } => (0, 0, decode::GATES_LINEAR, 1.0),
        GateTensors::Raw { decay, is_log, dt_bias, beta_factor, .. } => {
            let gates = if is_log { decode::GATES_A_LOG } else { decode::GATES_NEGATIVE_EXP };
            (decay.address, dt_bias.address, gates, beta_factor)
        }
    };
    let (g_element, beta_element) = (element(g.dtype), element(beta.dtype));
    Kind { gates, g_element, beta_element, a_log: read(a_log), dt_bias: read(dt_bias), beta_factor }
}

/// What is done to q and k, and with which epsilon.
pub(crate) fn norm(request: &Request<'_>) -> (u32, f32) {
    match request.norm {
        QkNorm::None => (decode::NORM_NONE, 0.0),
        QkNorm::L2 { eps } => (decode::NORM_L2, eps),
    }
}

/// What a launch of any part of `request` takes, between these pools.
fn args(request: &Request<'_>, ends: &Ends) -> Args {
    let Request { heads, q, k, v, out, .. } = request;
    let [g, beta] = request.gates.tensors();
    let Kind { gates, g_element, beta_element, a_log, dt_bias, beta_factor } = self::gates(request);
    let (norm, norm_eps) = self::norm(request);
    // Lanes are where the final state is, too.
    let is_lanes = matches!(request.checkpoints, Some(CheckpointTable::Lanes(_)));
    let last = ends.last.filter(|_| !is_lanes || request.output_indices.is_some());
    let (checkpoint_table, checkpoint_lanes) = match request.checkpoints {
        Some(CheckpointTable::PerToken(table)) => (Some(table), 0),
        Some(CheckpointTable::Lanes(lanes)) => (None, lanes),
        None => (None, 0),
    };
    let (initial_strides, initial_state, initial_slots) = pool(ends.initial);
    let (final_strides, final_state, final_slots) = pool(last);
    let (checkpoint_strides, checkpoint, checkpoint_slots) = pool(request.checkpoints.and(ends.last));
    let (state_indices, state_index) = table(request.indices);
    let (output_state_indices, output_state_index) = table(request.output_indices);
    let (checkpoint_indices, checkpoint_index) = table(checkpoint_table);
    Args {
        q: read(q.place.address),
        q_batch_stride: q.batch_stride,
        q_token_stride: q.strides.token,
        q_head_stride: q.strides.head,
        k: read(k.place.address),
        k_batch_stride: k.batch_stride,
        k_token_stride: k.strides.token,
        k_head_stride: k.strides.head,
        v: read(v.place.address),
        v_batch_stride: v.batch_stride,
        v_token_stride: v.strides.token,
        v_head_stride: v.strides.head,
        g: read(g.place.address),
        g_batch_stride: g.batch_stride,
        g_token_stride: g.strides.token,
        g_head_stride: g.strides.head,
        beta: read(beta.place.address),
        beta_batch_stride: beta.batch_stride,
        beta_token_stride: beta.strides.token,
        beta_head_stride: beta.strides.head,
        a_log,
        dt_bias,
        out: write(out.place.address),
        out_batch_stride: out.batch_stride,
        out_token_stride: out.strides.token,
        out_head_stride: out.strides.head,
        cu_seqlens: read(0),
        initial_state: read(initial_state),
        initial_slot_stride: initial_strides[0],
        initial_head_stride: initial_strides[1],
        initial_row_stride: initial_strides[2],
        initial_column_stride: initial_strides[3],
        initial_slots,
        final_state: write(final_state),
        final_slot_stride: final_strides[0],
        final_head_stride: final_strides[1],
        final_row_stride: final_strides[2],
        final_column_stride: final_strides[3],
        final_slots,
        checkpoint: write(checkpoint),
        checkpoint_slot_stride: checkpoint_strides[0],
        checkpoint_head_stride: checkpoint_strides[1],
        checkpoint_row_stride: checkpoint_strides[2],
        checkpoint_column_stride: checkpoint_strides[3],
        checkpoint_slots,
        state_indices,
        output_state_indices,
        checkpoint_indices,
        checkpoint_tokens: request.sequences.longest(),
        checkpoint_lanes,
        scale: request.scale,
        norm_eps,
        beta_factor,
        sequences: 0,
        tokens: 0,
        num_key_heads: heads.num_k_heads as u32,
        values_per_key: heads.values_per_key() as u32,
        head_map: match heads.map {
            HeadMap::Grouped => GROUPED,
            HeadMap::Tiled => TILED,
        },
        element: element(q.dtype),
        g_element,
        beta_element,
        out_element: element(out.dtype),
        norm,
        gates,
        state_index,
        output_state_index,
        checkpoint_index,
    }
}
