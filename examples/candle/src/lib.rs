//! Gated DeltaNet layers in an engine on candle: a small hybrid model whose recurrence can take any path of `host`.
#![forbid(unsafe_code)]

pub mod attention;
pub mod config;
pub mod gated_delta_net;
pub mod model;
pub mod on_candle;
pub mod recurrence;
pub mod weights;
