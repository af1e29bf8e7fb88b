//! The arguments of `host facts`.
#![forbid(unsafe_code)]
use std::path::PathBuf;

use clap::Args;

#[derive(Debug, Args)]
pub struct FactsArguments {
    /// Seed of the products
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Products of each regime, half of them one by one and half in chains of 16
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u32).range(32..=65_536))]
    pub products: u32,
    /// Samples of each series of launches
    #[arg(long, default_value_t = 201, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub samples: u32,
    /// Write facts.json and facts.txt into this folder
    #[arg(long, value_name = "FOLDER")]
    pub record: Option<PathBuf>,
    /// A report in JSON on standard output, and nothing else there
    #[arg(long)]
    pub json: bool,
}
