//! Gated DeltaNet layers in an engine on candle: a small hybrid model whose recurrence can take any path of `host`.

pub mod altered;
pub mod attention;
pub mod config;
pub mod e2e;
pub mod gated_delta_net;
pub mod model;
pub mod on_candle;
pub mod on_device;
pub mod recurrence;
pub mod weights;

#[cfg(test)]
mod tests;
