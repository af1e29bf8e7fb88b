//! One call of the recurrence over device memory.
#![forbid(unsafe_code)]
use super::tensors::{Checkpoints, Decay, Gates, Indices, State, View};
use crate::call::{QkNorm, default_scale};
use crate::dispatch::Launch;
use crate::error::Result;
use crate::heads::Heads;
use crate::policy::{Card, Policy};
use crate::request::{CheckpointTable, GateTensors, Place, Pool, Request, Table, Tensor};
use crate::sequences::Sequences;
use crate::steps;

/// One call over device memory: plain data, no device work. Only `cu_seqlens` is in host memory, and read before the call
/// returns.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct Call<'a> {
    heads: Heads,
    sequences: Sequences<'a>,
    q: View,
    k: View,
    v: View,
    gates: Gates,
    out: View,
    scale: f32,
    norm: QkNorm,
    initial: Option<State>,
    last: Option<State>,
    indices: Option<Indices>,
    output_indices: Option<Indices>,
    checkpoints: Option<Checkpoints>,
    every: Option<(usize, State)>,
}

impl<'a> Call<'a> {
    /// q, k `[batch, token, HK, K]`, v `[batch, token, HV, V]`, all of one type; out `[batch, token, HV, V]` of that type or
    /// f32. `sequences` may be a number of tokens: one sequence. From zero states that are dropped at the end, with scale
    /// 1 / sqrt(K), until the setters say otherwise.
    pub fn new(
        heads: Heads,
        sequences: impl Into<Sequences<'a>>,
        q: View,
        k: View,
        v: View,
        gates: Gates,
        out: View,
    ) -> Self {
        Self {
            heads,
            sequences: sequences.into(),
            q,
            k,
            v,
            gates,
            out,
            scale: default_scale(&heads),
            norm: QkNorm::None,
            initial: None,
            last: None,
            indices: None,
            output_indices: None,
            checkpoints: None,
            every: None,
        }
    }

    /// What the output is multiplied with; 1 / sqrt(K) if not called, 1 for a q that is scaled already.
    pub fn scale(mut self, scale: f32) -> Self {
        self.scale = scale;
        self
    }

    /// What is done to q and k first; nothing if not called.
    pub fn qk_norm(mut self, norm: QkNorm) -> Self {
        self.norm = norm;
        self
    }

    /// The states before the first tokens, replaced by those after the last.
    pub fn state(self, state: State) -> Self {
        self.initial_state(state).final_state(state)
    }

    /// The states before the first tokens.
    pub fn initial_state(mut self, state: State) -> Self {
        self.initial = Some(state);
        self
    }

    /// Where the states after the last tokens go. What is there before is not read.
    pub fn final_state(mut self, state: State) -> Self {
        self.last = Some(state);
        self
    }

    /// The slot of each sequence in the pools of states, `[sequences]`. Padding has an output of zeros and touches no state.
    /// Slots that are written have to be distinct: on the device nobody checks it.
    pub fn state_indices(mut self, indices: Indices) -> Self {
        self.indices = Some(indices);
        self
    }

    /// The slot that each sequence's final state goes to, instead of the one it is read from, `[sequences]`. Padding: dropped.
    pub fn output_state_indices(mut self, indices: Indices) -> Self {
        self.output_indices = Some(indices);
        self
    }

    /// Keeps the state after every token, in the pool of final states.
    pub fn checkpoints(mut self, checkpoints: Checkpoints) -> Self {
        self.checkpoints = Some(checkpoints);
        self
    }

    /// Keeps the state after every `interval` tokens of each sequence, for a cache of prefixes: the first sequence's in the
    /// first slots of `state`, then the second's, [`Sequences::checkpoints`] in all. `interval` is a multiple of 32. Without
    /// indices.
    pub fn checkpoint_every(mut self, interval: usize, state: State) -> Self {
        self.every = Some((interval, state));
        self
    }

    /// Every check that a run makes on the host.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape), [`Error::HeadDim`](crate::Error::HeadDim),
    /// [`Error::Dtype`](crate::Error::Dtype), [`Error::Null`](crate::Error::Null),
    /// [`Error::Misaligned`](crate::Error::Misaligned) or [`Error::DecodeTokens`](crate::Error::DecodeTokens), naming the
    /// first argument that does not fit.
    pub fn validate(&self) -> Result<()> {
        self.request().validate()
    }

    /// What [`Gdn::prefill`](super::Gdn::prefill) would run on `card` under `policy`, without a device.
    ///
    /// # Errors
    /// Those of [`Call::validate`]; [`Error::Refused`](crate::Error::Refused) where no kernel, or not the forced one, can run.
    pub fn plan(&self, card: &Card, policy: &Policy) -> Result<Launch> {
        let request = self.request();
        request.validate()?;
        steps::choose(card, &request, policy)
    }

    pub(super) fn request(&self) -> Request<'a> {
        let table = |indices: Indices| Table { place: place(indices.pointer), dtype: indices.dtype };
        Request {
            heads: self.heads,
            sequences: self.sequences,
            scale: self.scale,
            norm: self.norm,
            q: tensor("q", self.q),
            k: tensor("k", self.k),
            v: tensor("v", self.v),
            gates: gates(&self.gates),
            out: tensor("out", self.out),
            initial: self.initial.map(|state| pool_of("initial_state", state)),
            last: self.last.map(|state| pool_of("final_state", state)),
            indices: self.indices.map(table),
            output_indices: self.output_indices.map(table),
            checkpoints: self.checkpoints.map(|checkpoints| match checkpoints {
                Checkpoints::PerToken(indices) => CheckpointTable::PerToken(table(indices)),
                Checkpoints::Lanes(lanes) => CheckpointTable::Lanes(lanes),
            }),
            every: self.every.map(|(interval, state)| (interval, pool_of("checkpoint_every", state))),
        }
    }
}

/// Nobody knows how much is there.
fn place(pointer: u64) -> Place {
    Place { address: pointer, length: None }
}

/// A pool as the checks take it.
pub(super) fn pool_of(argument: &'static str, state: State) -> Pool {
    Pool { argument, place: place(state.pointer), layout: state.layout, slots: state.slots }
}

fn tensor(argument: &'static str, view: View) -> Tensor {
    let View { pointer, dtype, strides, batch_stride } = view;
    Tensor { argument, place: place(pointer), dtype, strides, batch_stride }
}

fn gates(gates: &Gates) -> GateTensors {
    match *gates {
        Gates::Log { g, beta } => GateTensors::Log { g: tensor("g", g), beta: tensor("beta", beta) },
        Gates::Linear { decay, beta } => {
            GateTensors::Linear { decay: tensor("decay", decay), beta: tensor("beta", beta) }
        }
        Gates::Raw { a, b, decay, dt_bias, allow_neg_eigval } => {
            let (pointer, is_log) = match decay {
                Decay::ALog(pointer) => (pointer, true),
                Decay::NegExpALog(pointer) => (pointer, false),
            };
            GateTensors::Raw {
                a: tensor("a", a),
                b: tensor("b", b),
                decay: place(pointer),
                is_log,
                dt_bias: place(dt_bias),
                beta_factor: if allow_neg_eigval { 2.0 } else { 1.0 },
            }
        }
    }
}
