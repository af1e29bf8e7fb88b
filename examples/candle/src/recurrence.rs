//! The seam between a model and the recurrence: what a layer hands over, and who carries the states.
#![forbid(unsafe_code)]
use candle_core::{Result, Tensor};
use host::Heads;
use std::fmt::Debug;
use std::time::Duration;

/// What a layer hands to the recurrence for some tokens of one sequence, all f32.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a> {
    /// How many key and value heads there are.
    pub heads: Heads,
    /// `[token, HK, 128]`, normalised.
    pub q: &'a Tensor,
    /// `[token, HK, 128]`, normalised.
    pub k: &'a Tensor,
    /// `[token, HV, 128]`.
    pub v: &'a Tensor,
    /// `[token, HV]`, log of the forget gate.
    pub g: &'a Tensor,
    /// `[token, HV]`, write strength.
    pub beta: &'a Tensor,
}

/// A way to compute the recurrence, with the states of a sequence in every layer.
pub trait Recurrence: Debug {
    /// What a report calls it.
    fn name(&self) -> String;

    /// Starts a new sequence: states of zero, no time.
    ///
    /// # Errors
    /// Whatever the device says.
    fn reset(&mut self) -> Result<()>;

    /// Carries the state of `layer` through the tokens of `inputs`: the output, `[token, HV, 128]`.
    ///
    /// # Errors
    /// Whatever the device says.
    fn run(&mut self, layer: usize, inputs: &Inputs<'_>) -> Result<Tensor>;

    /// How long the calls since [`Recurrence::reset`] took, copies between host and device left out.
    fn elapsed(&self) -> Duration;
}
