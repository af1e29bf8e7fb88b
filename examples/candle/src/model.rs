//! A small hybrid model, and the generation of tokens with it.
#![forbid(unsafe_code)]
use crate::attention::{Attention, KeysValues};
use crate::config::Config;
use crate::gated_delta_net::GatedDeltaNet;
use crate::recurrence::Recurrence;
use crate::weights::Weights;
use candle_core::{D, Device, Module, Result, Tensor};
use candle_nn::{Linear, ops};

const EPSILON: f32 = 1e-6;

/// The model.
#[derive(Debug)]
pub struct Model {
    /// `[token, hidden]`, and its own inverse at the end.
    embedding: Tensor,
    blocks: Vec<Block>,
    norm: Tensor,
    device: Device,
}

#[derive(Debug)]
struct Block {
    mixer_norm: Tensor,
    mixer: Mixer,
    mlp_norm: Tensor,
    gate: Linear,
    up: Linear,
    down: Linear,
}

#[derive(Debug)]
enum Mixer {
    GatedDeltaNet(GatedDeltaNet),
    Attention(Attention),
}

/// What a sequence leaves behind for its next tokens, besides the states that the recurrence keeps.
#[derive(Clone, Debug)]
pub struct Cache {
    tokens: usize,
    layers: Vec<LayerCache>,
}

#[derive(Clone, Debug)]
enum LayerCache {
    Tail(Tensor),
    KeysValues(KeysValues),
}

impl Model {
    /// With the weights of `seed`.
    ///
    /// # Errors
    /// Whatever the device says.
    pub fn new(config: &Config, seed: u64, device: &Device) -> Result<Self> {
        let mut weights = Weights::new(seed, device);
        // Small beside what the layers add, so that the next token is not the last one again.
        let embedding = weights.normal(&[config.vocabulary, config.hidden], 0.0, 0.2)?;
        let block = |layer| Block::new(config, layer, &mut weights);
        let blocks = (0..config.layers).map(block).collect::<Result<_>>()?;
        Ok(Self { embedding, blocks, norm: weights.norm(config.hidden)?, device: device.clone() })
    }

    /// That of a new sequence.
    ///
    /// # Errors
    /// Whatever the device says.
    pub fn cache(&self) -> Result<Cache> {
        let layer = |block: &Block| {
            Ok(match &block.mixer {
                Mixer::GatedDeltaNet(mixer) => LayerCache::Tail(mixer.tail()?),
                Mixer::Attention(_) => LayerCache::KeysValues(KeysValues::default()),
            })
        };
        Ok(Cache { tokens: 0, layers: self.blocks.iter().map(layer).collect::<Result<_>>()? })
    }

    /// The next tokens of a sequence: the logits after the last `wanted` of them, `[wanted, vocabulary]`.
    ///
    /// # Errors
    /// Whatever the device says.
    pub fn forward(
        &self,
        tokens: &[u32],
        wanted: usize,
        cache: &mut Cache,
        recurrence: &mut dyn Recurrence,
    ) -> Result<Tensor> {
        let mut x = self.embedding.index_select(&Tensor::new(tokens, &self.device)?, 0)?;
        for (layer, (block, kept)) in self.blocks.iter().zip(&mut cache.layers).enumerate() {
            let normed = ops::rms_norm(&x, &block.mixer_norm, EPSILON)?;
            let mixed = match (&block.mixer, kept) {
                (Mixer::GatedDeltaNet(mixer), LayerCache::Tail(tail)) => {
                    mixer.forward(&normed, tail, recurrence, layer)
                }
                (Mixer::Attention(mixer), LayerCache::KeysValues(kept)) => mixer.forward(&normed, kept, cache.tokens),
                _ => candle_core::bail!("the cache is another model's"),
            }?;
            x = (x + mixed)?;
            x = (&x + block.mlp(&ops::rms_norm(&x, &block.mlp_norm, EPSILON)?)?)?;
        }
        cache.tokens += tokens.len();
        let last = x.narrow(0, tokens.len() - wanted, wanted)?.contiguous()?;
        ops::rms_norm(&last, &self.norm, EPSILON)?.matmul(&self.embedding.t()?)
    }

    /// The `count` most likely tokens one after the other, the first from `logits` of the token before.
    ///
    /// # Errors
    /// Whatever the device says.
    pub fn generate(
        &self,
        logits: &Tensor,
        count: usize,
        cache: &mut Cache,
        recurrence: &mut dyn Recurrence,
    ) -> Result<Vec<u32>> {
        let mut tokens = Vec::with_capacity(count);
        let mut logits = logits.clone();
        for _ in 0..count {
            let token = logits.get(logits.dim(0)? - 1)?.argmax(D::Minus1)?.to_scalar::<u32>()?;
            tokens.push(token);
            logits = self.forward(&[token], 1, cache, recurrence)?;
        }
        Ok(tokens)
    }
}

impl Block {
    fn new(config: &Config, layer: usize, weights: &mut Weights) -> Result<Self> {
        Ok(Self {
            mixer_norm: weights.norm(config.hidden)?,
            mixer: match config.is_attention(layer) {
                true => Mixer::Attention(Attention::new(config, weights)?),
                false => Mixer::GatedDeltaNet(GatedDeltaNet::new(config, weights)?),
            },
            mlp_norm: weights.norm(config.hidden)?,
            gate: weights.linear(config.hidden, config.intermediate)?,
            up: weights.linear(config.hidden, config.intermediate)?,
            down: weights.linear(config.intermediate, config.hidden)?,
        })
    }

    fn mlp(&self, x: &Tensor) -> Result<Tensor> {
        self.down.forward(&(self.gate.forward(x)?.silu()? * self.up.forward(x)?)?)
    }
}
