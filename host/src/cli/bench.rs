//! The arguments of `host bench`.
#![forbid(unsafe_code)]
use std::path::PathBuf;

use clap::Args;

use super::{Backend, HeadCounts, MapArgument, PathArguments, parse_heads, parse_tokens};

#[derive(Debug, Args)]
pub struct BenchArguments {
    /// Prompt lengths, separated by commas
    #[arg(
        long,
        value_name = "T,..",
        value_delimiter = ',',
        default_value = "32,96,128,512,2048,8192,32768",
        value_parser = parse_some_tokens
    )]
    pub tokens: Vec<usize>,
    /// Key and value heads
    #[arg(long, value_name = "KEY/VALUE", default_value = "16/48", value_parser = parse_heads)]
    pub heads: HeadCounts,
    /// Which key head a value head reads
    #[arg(long, value_enum, default_value_t = MapArgument::Grouped)]
    pub map: MapArgument,
    /// With how many of the GPU's multiprocessors, separated by commas; the others are held by a waiting kernel
    #[arg(long, value_name = "N,..|all", value_delimiter = ',', default_value = "all", value_parser = parse_multiprocessors)]
    pub multiprocessors: Vec<Multiprocessors>,
    /// Samples of each path and length; fewer are taken where a call takes long
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub samples: u32,
    /// Where to run, separated by commas; by default on the GPU, without one on the CPU
    #[arg(long, value_enum, value_delimiter = ',')]
    pub on: Vec<Backend>,
    #[command(flatten)]
    pub named: PathArguments,
    /// Seed of the inputs
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Instead: N sequences of seeded lengths that are --tokens together, against one of all the tokens, on the GPU
    #[cfg(feature = "cuda")]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub varlen: Option<u32>,
    /// Instead: batches of N sequences of one token, against a copy of their states, on the GPU
    #[cfg(feature = "cuda")]
    #[arg(long, value_name = "N,..", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub decode: Vec<u32>,
    /// Write raw.csv, summary.json, summary.md and time.svg into this folder
    #[arg(long, value_name = "FOLDER")]
    pub record: Option<PathBuf>,
    /// A report in JSON on standard output, and nothing else there
    #[arg(long)]
    pub json: bool,
}

/// How many of a GPU's multiprocessors may work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Multiprocessors {
    All,
    So(u32),
}

fn parse_multiprocessors(text: &str) -> Result<Multiprocessors, String> {
    match text.parse() {
        _ if text == "all" => Ok(Multiprocessors::All),
        Ok(count) if count > 0 => Ok(Multiprocessors::So(count)),
        _ => Err(format!("expected a number of multiprocessors or `all`, got {text:?}")),
    }
}

/// Nothing to do has no time a token.
fn parse_some_tokens(text: &str) -> Result<usize, String> {
    match parse_tokens(text)? {
        0 => Err("expected at least one token".to_owned()),
        tokens => Ok(tokens),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use clap::Parser;

    fn bench(arguments: &[&str]) -> Result<BenchArguments, clap::Error> {
        let arguments = ["host", "bench"].iter().chain(arguments);
        match Cli::try_parse_from(arguments)?.command {
            Command::Bench(bench) => Ok(bench),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn unasked_it_is_a_record_of_the_usual_lengths() {
        let bench = bench(&[]).unwrap();
        assert_eq!(bench.tokens, [32, 96, 128, 512, 2048, 8192, 32_768]);
        assert_eq!((bench.samples, bench.multiprocessors), (30, vec![Multiprocessors::All]));
    }

    #[test]
    fn multiprocessors_are_numbers_or_all() {
        let bench = bench(&["--multiprocessors", "32,all"]).unwrap();
        assert_eq!(bench.multiprocessors, [Multiprocessors::So(32), Multiprocessors::All]);
    }

    #[test]
    fn bad_arguments_name_themselves() {
        for (arguments, says) in [
            (["--tokens", "32,0"], "at least one token"),
            (["--samples", "0"], "--samples"),
            (["--multiprocessors", "0"], "or `all`"),
        ] {
            let error = bench(&arguments).unwrap_err();
            assert_eq!(error.exit_code(), 2);
            assert!(error.to_string().contains(says), "{arguments:?}: {error}");
        }
    }
}
