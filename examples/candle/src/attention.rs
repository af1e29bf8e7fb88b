//! The softmax attention layer between Gated DeltaNet layers: grouped heads, normed and partly rotated, with a gated output.
#![forbid(unsafe_code)]
use crate::config::Config;
use crate::weights::Weights;
use candle_core::{D, Module, Result, Tensor};
use candle_nn::{Linear, ops, rotary_emb};

const EPSILON: f32 = 1e-6;
/// What the angles of rotations are powers of.
const ROTARY_BASE: f64 = 1e6;
/// Queries that are weighed at once, so that long prompts need no matrix of all pairs of tokens.
const QUERIES: usize = 128;

/// One layer.
#[derive(Debug)]
pub struct Attention {
    query_heads: usize,
    shared_heads: usize,
    dim: usize,
    rotary_dim: usize,
    q: Linear,
    k: Linear,
    v: Linear,
    gate: Linear,
    q_norm: Tensor,
    k_norm: Tensor,
    out: Linear,
}

/// Keys and values of the tokens so far, `[head, token, dim]`.
#[derive(Clone, Debug, Default)]
pub struct KeysValues(Option<(Tensor, Tensor)>);

impl KeysValues {
    /// With those of more tokens: keys and values of all.
    fn append(&mut self, k: Tensor, v: Tensor) -> Result<(Tensor, Tensor)> {
        let all = match &self.0 {
            Some((old_k, old_v)) => (Tensor::cat(&[old_k, &k], 1)?, Tensor::cat(&[old_v, &v], 1)?),
            None => (k, v),
        };
        self.0 = Some(all.clone());
        Ok(all)
    }
}

impl Attention {
    /// With random weights.
    ///
    /// # Errors
    /// Whatever the device says.
    pub fn new(config: &Config, weights: &mut Weights) -> Result<Self> {
        let &Config { hidden, query_heads, shared_heads, attention_dim: dim, rotary_dim, .. } = config;
        Ok(Self {
            query_heads,
            shared_heads,
            dim,
            rotary_dim,
            q: weights.linear(hidden, query_heads * dim)?,
            k: weights.linear(hidden, shared_heads * dim)?,
            v: weights.linear(hidden, shared_heads * dim)?,
            gate: weights.linear(hidden, query_heads * dim)?,
            q_norm: weights.norm(dim)?,
            k_norm: weights.norm(dim)?,
            out: weights.linear(query_heads * dim, hidden)?,
        })
    }

    /// The next tokens of a sequence of which `before` have gone, `[token, hidden]`.
    ///
    /// # Errors
    /// Whatever the device says.
    pub fn forward(&self, x: &Tensor, cache: &mut KeysValues, before: usize) -> Result<Tensor> {
        let tokens = x.dim(0)?;
        let by_head = |projection: &Linear, heads| {
            projection.forward(x)?.reshape((tokens, heads, self.dim))?.transpose(0, 1)?.contiguous()
        };
        let q = self.rotated(&by_head(&self.q, self.query_heads)?, &self.q_norm, before)?;
        let k = self.rotated(&by_head(&self.k, self.shared_heads)?, &self.k_norm, before)?;
        let (k, v) = cache.append(k, by_head(&self.v, self.shared_heads)?)?;
        let starts = (0..tokens).step_by(QUERIES);
        let parts = starts.map(|start| {
            let count = QUERIES.min(tokens - start);
            let end = before + start + count;
            self.weigh(&q.narrow(1, start, count)?, &k.narrow(1, 0, end)?, &v.narrow(1, 0, end)?)
        });
        let out = Tensor::cat(&parts.collect::<Result<Vec<_>>>()?, 0)?;
        self.out.forward(&(out * ops::sigmoid(&self.gate.forward(x)?)?)?)
    }

    /// Queries that are the last of the tokens whose keys and values are given: their outputs, `[token, heads * dim]`.
    fn weigh(&self, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
        let (queries, keys) = (q.dim(1)?, k.dim(1)?);
        let first = keys - queries;
        let mask: Vec<f32> = (0..queries)
            .flat_map(|query| (0..keys).map(move |key| if key <= first + query { 0.0 } else { f32::NEG_INFINITY }))
            .collect();
        let mask = Tensor::from_vec(mask, (1, queries, keys), q.device())?;
        let sharing = self.query_heads / self.shared_heads;
        let q = q.reshape((self.shared_heads, sharing * queries, self.dim))?;
        let scores = (q.matmul(&k.transpose(1, 2)?)? * (1.0 / (self.dim as f64).sqrt()))?;
        let scores = scores.reshape((self.query_heads, queries, keys))?.broadcast_add(&mask)?;
        let weights = ops::softmax_last_dim(&scores)?.reshape((self.shared_heads, sharing * queries, keys))?;
        let out = weights.matmul(&v.contiguous()?)?.reshape((self.query_heads, queries, self.dim))?;
        out.transpose(0, 1)?.contiguous()?.flatten_from(1)
    }

    /// Normed, and the first of their numbers rotated by their token's place.
    fn rotated(&self, rows: &Tensor, norm: &Tensor, before: usize) -> Result<Tensor> {
        let (tokens, half) = (rows.dim(1)?, self.rotary_dim / 2);
        let angles: Vec<f32> = (before..before + tokens)
            .flat_map(|token| (0..half).map(move |i| token as f64 / ROTARY_BASE.powf(i as f64 / half as f64)))
            .map(|angle| angle as f32)
            .collect();
        let angles = Tensor::from_vec(angles, (tokens, half), rows.device())?;
        let rows = ops::rms_norm(rows, norm, EPSILON)?;
        let turning = rows.narrow(D::Minus1, 0, self.rotary_dim)?.contiguous()?.unsqueeze(0)?;
        let turned = rotary_emb::rope(&turning, &angles.cos()?, &angles.sin()?)?.squeeze(0)?;
        let rest = rows.narrow(D::Minus1, self.rotary_dim, self.dim - self.rotary_dim)?;
        Tensor::cat(&[&turned, &rest], D::Minus1)
    }
}
