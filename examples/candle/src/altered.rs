//! A path whose inputs are altered: the scales on which differences between paths can be read.
#![forbid(unsafe_code)]
use crate::recurrence::{Inputs, Recurrence};
use candle_core::{D, DType, Device, Result, Tensor};
use host::HEAD_DIM;
use std::time::Duration;

/// A step that has no divisor in common with the size of a head, so that its multiples come to every place.
const STEP: usize = 37;

/// What is done to q, k and v.
#[derive(Clone, Debug)]
pub enum Alteration {
    /// The elements of q and k in this order, and so the rows of states that start at zero: the same numbers, added in another
    /// order. Differences of this size mean nothing.
    Order(Tensor),
    /// Rounded to bf16: what a kernel for them would be given.
    Bf16,
}

impl Alteration {
    /// Another order.
    ///
    /// # Errors
    /// Whatever the device says.
    pub fn order(device: &Device) -> Result<Self> {
        let order: Vec<u32> = (0..HEAD_DIM).map(|place| (place * STEP % HEAD_DIM) as u32).collect();
        Ok(Self::Order(Tensor::new(order, device)?))
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Order(_) => "other order",
            Self::Bf16 => "bf16 q, k, v",
        }
    }

    fn apply(&self, inputs: &Inputs<'_>) -> Result<[Tensor; 3]> {
        let rounded = |rows: &Tensor| rows.to_dtype(DType::BF16)?.to_dtype(DType::F32);
        let Inputs { q, k, v, .. } = *inputs;
        Ok(match self {
            Self::Order(order) => [q.index_select(order, D::Minus1)?, k.index_select(order, D::Minus1)?, v.clone()],
            Self::Bf16 => [rounded(q)?, rounded(k)?, rounded(v)?],
        })
    }
}

/// A recurrence on altered inputs.
#[derive(Debug)]
pub struct Altered<R> {
    inner: R,
    alteration: Alteration,
}

impl<R: Recurrence> Altered<R> {
    /// `inner` on altered inputs.
    pub fn new(inner: R, alteration: Alteration) -> Self {
        Self { inner, alteration }
    }
}

impl<R: Recurrence> Recurrence for Altered<R> {
    fn name(&self) -> String {
        format!("{}, {}", self.inner.name(), self.alteration.name())
    }

    fn reset(&mut self) -> Result<()> {
        self.inner.reset()
    }

    fn run(&mut self, layer: usize, inputs: &Inputs<'_>) -> Result<Tensor> {
        let [q, k, v] = self.alteration.apply(inputs)?;
        self.inner.run(layer, &Inputs { q: &q, k: &k, v: &v, ..*inputs })
    }

    fn elapsed(&self) -> Duration {
        self.inner.elapsed()
    }
}
