//! The sizes of a model.
#![forbid(unsafe_code)]

/// Tokens that the causal convolution looks at, its own among them.
pub const CONVOLUTION: usize = 4;

/// A model of Qwen3-Next's kind: Gated DeltaNet layers, and after every few of them one of softmax attention.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Token numbers that there are.
    pub vocabulary: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Layers in all.
    pub layers: usize,
    /// Every how many layers one is softmax attention, the last of them.
    pub attention_every: usize,
    /// Key heads of a Gated DeltaNet layer, of 128 each.
    pub key_heads: usize,
    /// Value heads of a Gated DeltaNet layer, of 128 each.
    pub value_heads: usize,
    /// Query heads of an attention layer.
    pub query_heads: usize,
    /// Key and value heads of an attention layer.
    pub shared_heads: usize,
    /// Their size.
    pub attention_dim: usize,
    /// Of which so many are rotated.
    pub rotary_dim: usize,
    /// Width of the MLP.
    pub intermediate: usize,
}

impl Config {
    /// Four layers, 3.3 million weights.
    pub const SMALL: Self = Self {
        vocabulary: 1000,
        hidden: 256,
        layers: 4,
        attention_every: 4,
        key_heads: 2,
        value_heads: 6,
        query_heads: 4,
        shared_heads: 2,
        attention_dim: 64,
        rotary_dim: 16,
        intermediate: 512,
    };

    /// Two layers, for tests.
    pub const TINY: Self = Self {
        vocabulary: 50,
        hidden: 16,
        layers: 2,
        attention_every: 2,
        key_heads: 1,
        value_heads: 2,
        query_heads: 2,
        shared_heads: 1,
        attention_dim: 8,
        rotary_dim: 4,
        intermediate: 24,
    };

    /// Whether so many layers in there is one of attention.
    #[must_use]
    pub const fn is_attention(&self, layer: usize) -> bool {
        (layer + 1).is_multiple_of(self.attention_every)
    }
}
