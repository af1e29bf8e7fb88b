//! What of a call the kernels for one sequence of f32 can do: one sequence after the other, in pieces where states are kept on
//! the way.
#![forbid(unsafe_code)]
use crate::call::QkNorm;
use crate::dtype::Dtype;
use crate::error::Reason;
use crate::kernel::{Pointers, Problem};
use crate::layout::{StateLayout, StateOrder};
use crate::request::{GateTensors, Pool, Request, Tensor};
use cuda_std::{Global, GlobalMut};

/// A piece of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// The sequence.
    pub sequence: usize,
    /// Its first token in the sequence.
    pub first: usize,
    /// Its tokens.
    pub tokens: usize,
    /// Where its state comes from.
    pub from: Held,
    /// Where it goes.
    pub to: Held,
}

/// Where a sequence's state stands at one end of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Held {
    /// Where the caller has it.
    Caller,
    /// In this slot of the states that are kept on the way.
    Kept(usize),
}

/// The pieces of sequence `sequence`, `done` states being kept of those before it.
pub(crate) fn pieces(request: &Request<'_>, sequence: usize, done: usize) -> impl Iterator<Item = Piece> + use<> {
    let tokens = request.sequences.tokens(sequence);
    let interval = request.every.map_or(usize::MAX, |(interval, _)| interval);
    let kept = tokens / interval;
    let from = move |count: usize| if count == 0 { Held::Caller } else { Held::Kept(done + count - 1) };
    let whole = (0..kept).map(move |count| Piece {
        sequence,
        first: count * interval,
        tokens: interval,
        from: from(count),
        to: Held::Kept(done + count),
    });
    // What is left, be it nothing but the state that goes on to its place.
    let rest = tokens - kept.saturating_mul(interval).min(tokens);
    let last = Piece { sequence, first: tokens - rest, tokens: rest, from: from(kept), to: Held::Caller };
    whole.chain((rest > 0 || kept == 0 || request.last.is_some()).then_some(last))
}

/// Whether the kernels for one sequence of f32 can do it.
///
/// # Errors
/// The first reason against it.
pub(crate) fn require(request: &Request<'_>) -> Result<(), Reason> {
    let GateTensors::Log { g, beta } = &request.gates else {
        let gates = if matches!(request.gates, GateTensors::Raw { .. }) { "raw" } else { "linear" };
        return Err(Reason::Gates { gates, takes: "their logs" });
    };
    for Tensor { argument, dtype, .. } in [&request.q, &request.k, &request.v, g, beta, &request.out] {
        if *dtype != Dtype::F32 {
            return Err(Reason::Dtype { argument, dtype: *dtype });
        }
    }
    if request.norm != QkNorm::None {
        return Err(Reason::Norm);
    }
    if request.checkpoints.is_some() {
        return Err(Reason::Checkpoints);
    }
    require_states(request)
}

/// Whether they can read and write its states where they are.
///
/// # Errors
/// The first reason against it.
pub(crate) fn require_states(request: &Request<'_>) -> Result<(), Reason> {
    for (argument, table) in [("state_indices", &request.indices), ("output_state_indices", &request.output_indices)] {
        if table.is_some() {
            return Err(Reason::Indices { argument });
        }
    }
    let layout = state_layout(request);
    for Pool { argument, layout: other, .. } in
        [request.initial, request.last, request.every.map(|(_, pool)| pool)].into_iter().flatten()
    {
        if other.order != StateOrder::KeyMajor || (other.head, other.row) != (layout.head, layout.row) {
            return Err(Reason::Layout { argument });
        }
    }
    Ok(())
}

/// The one layout of a call's states.
fn state_layout(request: &Request<'_>) -> StateLayout {
    let pools = [request.initial, request.last, request.every.map(|(_, pool)| pool)];
    pools.into_iter().flatten().next().map_or(StateLayout::key_major(&request.heads), |pool| pool.layout)
}

/// Sequence `index` as a problem of its own, which [`require`] has let pass and whose idle strides are 0.
pub(crate) fn sequence(request: &Request<'_>, index: usize) -> (Problem, Pointers) {
    let tokens = request.sequences.tokens(index);
    of(request, &Piece { sequence: index, first: 0, tokens, from: Held::Caller, to: Held::Caller })
}

/// Where the tensors of the whole call are.
pub(crate) fn whole(request: &Request<'_>) -> Pointers {
    let [g, beta] = request.gates.tensors();
    let at = |tensor: &Tensor| tensor.place.address as *const f32;
    let state = |pool: Option<Pool>| pool.map_or(0, |pool| pool.place.address);
    Pointers {
        q: Global::new(at(&request.q)),
        k: Global::new(at(&request.k)),
        v: Global::new(at(&request.v)),
        g: Global::new(at(g)),
        beta: Global::new(at(beta)),
        out: GlobalMut::new(at(&request.out).cast_mut()),
        initial_state: Global::new(state(request.initial) as *const f32),
        final_state: GlobalMut::new(state(request.last) as *mut f32),
    }
}

/// A piece as a problem of its own, as [`sequence`].
pub(crate) fn of(request: &Request<'_>, piece: &Piece) -> (Problem, Pointers) {
    let [g, beta] = request.gates.tensors();
    let Request { heads, scale, q, k, v, out, .. } = *request;
    let problem = Problem {
        heads,
        tokens: piece.tokens,
        scale,
        q: q.strides,
        k: k.strides,
        v: v.strides,
        g: g.strides,
        beta: beta.strides,
        out: out.strides,
        state: state_layout(request),
    };
    let at = |tensor: &Tensor| element(request, tensor, piece) as *const f32;
    let state = |pool: Option<Pool>, held: Held| match (held, pool, request.every) {
        (Held::Caller, pool, _) => pool.map_or(0, |pool| slot_address(&pool, piece.sequence)),
        (Held::Kept(slot), _, Some((_, kept))) => slot_address(&kept, slot),
        (Held::Kept(_), _, None) => 0,
    };
    let pointers = Pointers {
        q: Global::new(at(&q)),
        k: Global::new(at(&k)),
        v: Global::new(at(&v)),
        g: Global::new(at(g)),
        beta: Global::new(at(beta)),
        out: GlobalMut::new(at(&out).cast_mut()),
        initial_state: Global::new(state(request.initial, piece.from) as *const f32),
        final_state: GlobalMut::new(state(request.last, piece.to) as *mut f32),
    };
    (problem, pointers)
}

/// The address of a tensor's first element of a piece. Strides of what is not there are not in it.
pub(crate) fn element(request: &Request<'_>, tensor: &Tensor, piece: &Piece) -> u64 {
    let [batch, token] = request.sequences.start(piece.sequence);
    let elements =
        batch as u64 * tensor.batch_stride as u64 + (token + piece.first) as u64 * tensor.strides.token as u64;
    tensor.place.address.wrapping_add(elements * tensor.dtype.bytes() as u64)
}

/// The address of a slot.
pub(crate) fn slot_address(pool: &Pool, slot: usize) -> u64 {
    pool.place.address.wrapping_add(slot as u64 * pool.layout.slot as u64 * size_of::<f32>() as u64)
}
