//! Head counts and sizes of one layer, and which key head a value head reads.
#![forbid(unsafe_code)]
use crate::error::{Error, Result};

/// Rows and columns of a head's state that the kernels and the CPU backend are written for.
pub const HEAD_DIM: usize = kernels_gpu::shape::HEAD_DIM;

/// Which key head value head `h` reads where there are `r` value heads for each of the `num_k_heads` key heads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum HeadMap {
    /// `h / r`: Hugging Face, flash-linear-attention, FlashInfer, vLLM.
    #[default]
    Grouped,
    /// `h % num_k_heads`: GGUF, llama.cpp.
    Tiled,
}

/// Head counts and sizes of one layer (of one tensor-parallel rank).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Heads {
    /// Key (and query) heads.
    pub num_k_heads: usize,
    /// Value heads, a multiple of `num_k_heads`.
    pub num_v_heads: usize,
    /// Length of a key and of a query.
    pub head_k_dim: usize,
    /// Length of a value.
    pub head_v_dim: usize,
    /// Which key head a value head reads.
    pub map: HeadMap,
}

impl Heads {
    /// Heads of 128 x 128.
    ///
    /// # Errors
    /// [`Error::Shape`] unless both counts are above zero, `num_v_heads` is a multiple of `num_k_heads`, and both are
    /// below 2^16.
    pub fn new(num_k_heads: usize, num_v_heads: usize, map: HeadMap) -> Result<Self> {
        let heads = Self { num_k_heads, num_v_heads, head_k_dim: HEAD_DIM, head_v_dim: HEAD_DIM, map };
        heads.require_counts()?;
        Ok(heads)
    }

    /// What [`Heads::new`] promises; the fields are public, and may have been changed since.
    fn require_counts(&self) -> Result<()> {
        const LIMIT: usize = 1 << 16;
        let &Self { num_k_heads, num_v_heads, .. } = self;
        for (argument, count) in [("num_k_heads", num_k_heads), ("num_v_heads", num_v_heads)] {
            if count == 0 || count >= LIMIT {
                return Err(Error::shape(argument, format!("1 to {}", LIMIT - 1), count));
            }
        }
        if !num_v_heads.is_multiple_of(num_k_heads) {
            return Err(Error::shape("num_v_heads", format!("a multiple of num_k_heads = {num_k_heads}"), num_v_heads));
        }
        Ok(())
    }

    /// The same heads with other sizes. Whether a backend runs them is its answer, see [`Heads::require_128`].
    #[must_use]
    pub fn with_dims(self, head_k_dim: usize, head_v_dim: usize) -> Self {
        Self { head_k_dim, head_v_dim, ..self }
    }

    /// Value heads for each key head.
    #[must_use]
    pub fn values_per_key(&self) -> usize {
        self.num_v_heads / self.num_k_heads
    }

    /// Elements of one sequence's state.
    #[must_use]
    pub const fn state_len(&self) -> usize {
        self.num_v_heads * self.head_k_dim * self.head_v_dim
    }

    /// The key head that `v_head` reads.
    #[must_use]
    pub fn k_head(&self, v_head: usize) -> usize {
        match self.map {
            HeadMap::Grouped => v_head / self.values_per_key(),
            HeadMap::Tiled => v_head % self.num_k_heads,
        }
    }

    /// What every backend asks for.
    ///
    /// # Errors
    /// [`Error::HeadDim`] unless both head sizes are 128; [`Error::Shape`] for counts that [`Heads::new`] refuses.
    pub fn require_128(&self) -> Result<()> {
        self.require_counts()?;
        for (argument, got) in [("head_k_dim", self.head_k_dim), ("head_v_dim", self.head_v_dim)] {
            if got != HEAD_DIM {
                return Err(Error::HeadDim { argument, got, supported: HEAD_DIM });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_checked_again_before_a_run() {
        let good = Heads::new(2, 6, HeadMap::Grouped).unwrap();
        for bad in [
            Heads { num_k_heads: 0, ..good },
            Heads { num_v_heads: 0, ..good },
            Heads { num_v_heads: 7, ..good },
            Heads { num_v_heads: 1 << 16, ..good },
        ] {
            assert!(matches!(bad.require_128(), Err(Error::Shape { .. })), "{bad:?}");
        }
    }
}
