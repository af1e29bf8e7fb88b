//! A Gated DeltaNet layer on candle tensors, as an engine writes it.
#![forbid(unsafe_code)]
use crate::config::{CONVOLUTION, Config};
use crate::recurrence::{Inputs, Recurrence};
use crate::weights::Weights;
use candle_core::{D, Module, Result, Tensor};
use candle_nn::{Linear, ops};
use host::{HEAD_DIM, HeadMap, Heads};

/// Added to sums of squares and to their means.
const EPSILON: f64 = 1e-6;

/// Projections, convolution, gates, the recurrence, norm, projection.
#[derive(Debug)]
pub struct GatedDeltaNet {
    heads: Heads,
    /// To q, k and v of a token, side by side.
    qkv: Linear,
    /// To the gate of the output.
    z: Linear,
    /// To the forget gate.
    a: Linear,
    /// To the write strength.
    b: Linear,
    /// `[token, channel]`, the oldest token first.
    convolution: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    norm: Tensor,
    out: Linear,
}

impl GatedDeltaNet {
    /// With random weights.
    ///
    /// # Errors
    /// Whatever the device says; heads that do not fit each other.
    pub fn new(config: &Config, weights: &mut Weights) -> Result<Self> {
        let heads = heads(config)?;
        let (keys, values) = (heads.num_k_heads * HEAD_DIM, heads.num_v_heads * HEAD_DIM);
        Ok(Self {
            heads,
            qkv: weights.linear(config.hidden, 2 * keys + values)?,
            z: weights.linear(config.hidden, values)?,
            a: weights.linear(config.hidden, heads.num_v_heads)?,
            b: weights.linear(config.hidden, heads.num_v_heads)?,
            convolution: weights.normal(&[CONVOLUTION, 2 * keys + values], 0.0, 0.5)?,
            a_log: weights.a_log(heads.num_v_heads)?,
            dt_bias: weights.dt_bias(heads.num_v_heads)?,
            norm: weights.norm(HEAD_DIM)?,
            out: weights.linear(values, config.hidden)?,
        })
    }

    /// What the convolution sees before the first token.
    ///
    /// # Errors
    /// Whatever the device says.
    pub fn tail(&self) -> Result<Tensor> {
        self.convolution.narrow(0, 1, CONVOLUTION - 1)?.zeros_like()
    }

    /// The next tokens of a sequence, `[token, hidden]`. `tail` and the recurrence's state of `layer` are carried on.
    ///
    /// # Errors
    /// Whatever the device says.
    pub fn forward(
        &self,
        x: &Tensor,
        tail: &mut Tensor,
        recurrence: &mut dyn Recurrence,
        layer: usize,
    ) -> Result<Tensor> {
        let (keys, values) = (self.heads.num_k_heads, self.heads.num_v_heads);
        let mixed = self.convolve(&self.qkv.forward(x)?, tail)?;
        // Views, not copies: the recurrence takes strides.
        let rows = mixed.reshape((x.dim(0)?, 2 * keys + values, HEAD_DIM))?;
        let out = recurrence.run(
            layer,
            &Inputs {
                heads: self.heads,
                q: &normalised(&rows.narrow(1, 0, keys)?)?,
                k: &normalised(&rows.narrow(1, keys, keys)?)?,
                v: &rows.narrow(1, 2 * keys, values)?,
                g: &self.forget(&self.a.forward(x)?)?,
                beta: &ops::sigmoid(&self.b.forward(x)?)?,
            },
        )?;
        let gate = self.z.forward(x)?.reshape(out.shape())?.silu()?;
        let gated = (ops::rms_norm(&out, &self.norm, EPSILON as f32)? * gate)?;
        self.out.forward(&gated.flatten_from(1)?)
    }

    /// Each channel's last few tokens, weighted and summed, and SiLU. The newest of them become the tail.
    fn convolve(&self, mixed: &Tensor, tail: &mut Tensor) -> Result<Tensor> {
        let tokens = mixed.dim(0)?;
        let padded = Tensor::cat(&[&*tail, mixed], 0)?;
        *tail = padded.narrow(0, tokens, CONVOLUTION - 1)?.copy()?;
        let part = |age| padded.narrow(0, age, tokens)?.broadcast_mul(&self.convolution.narrow(0, age, 1)?);
        let sum = (1..CONVOLUTION).try_fold(part(0)?, |sum, age| sum + part(age)?)?;
        sum.silu()
    }

    /// Log of the forget gate: -exp(A_log) softplus(a + dt_bias).
    fn forget(&self, a: &Tensor) -> Result<Tensor> {
        let x = a.broadcast_add(&self.dt_bias)?;
        // log(1 + e^x) without an exponential that overflows.
        let softplus = (x.relu()? + (x.abs()?.neg()?.exp()? + 1.0)?.log()?)?;
        softplus.broadcast_mul(&self.a_log.exp()?.neg()?)
    }
}

/// The heads of `config`'s Gated DeltaNet layers.
///
/// # Errors
/// If they do not fit each other.
pub fn heads(config: &Config) -> Result<Heads> {
    Heads::new(config.key_heads, config.value_heads, HeadMap::Grouped).map_err(candle_core::Error::wrap)
}

/// Each row divided by its length.
fn normalised(rows: &Tensor) -> Result<Tensor> {
    let length = (rows.sqr()?.sum_keepdim(D::Minus1)? + EPSILON)?.sqrt()?;
    rows.broadcast_div(&length)
}

#[cfg(test)]
mod tests;
