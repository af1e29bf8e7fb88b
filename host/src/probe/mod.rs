//! What is asked of a card's tensor cores: products whose every bit is known from the emulation, and measurements.
#![forbid(unsafe_code)]
mod fragments;
mod rate;
mod regimes;

pub use fragments::{CHAIN_LINKS, Difference, Differences, Fragments};
pub use rate::{Chains, Load, Rate};
pub use regimes::Regime;

use serde::Serialize;

/// From this compute capability (times ten) on, cards round as the emulation does: Hopper and Blackwell keep 25 bits below
/// the largest exponent of sixteen products. Ampere and Ada keep 24 and add the products in two halves.
pub const EXACT_CAPABILITY: u32 = 90;

/// What a series of launches costs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LaunchCost {
    /// How they were launched.
    pub how: &'static str,
    /// Behind other work on the same stream, and not on a device at rest.
    pub behind_work: bool,
    /// Kernels one after another, each of one block for each multiprocessor.
    pub kernels: usize,
    /// Microseconds between the events around them, median of [`LaunchCost::samples`]. None where the driver refused.
    pub microseconds: Option<f64>,
    /// The least.
    pub microseconds_least: Option<f64>,
    /// How many; none where the driver refused.
    pub samples: usize,
    /// What the driver said where it refused.
    pub refused: Option<String>,
}
