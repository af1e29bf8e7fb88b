//! The arguments, a struct for each command.
#![forbid(unsafe_code)]
mod bench;
#[cfg(feature = "cuda")]
mod facts;
mod plan;

pub use bench::{BenchArguments, Multiprocessors};
#[cfg(feature = "cuda")]
pub use facts::FactsArguments;
pub use plan::PlanArguments;

use std::path::PathBuf;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum};

use host::inputs::Family;
use host::{HeadMap, Heads};

/// The Gated DeltaNet recurrence on GPU and CPU, checked against a float64 reference.
///
/// Exit code: 0 if everything compared agreed, 1 if something did not, 2 if it could not run.
#[derive(Debug, Parser)]
#[command(version)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Check every path on this machine against float64 and against each other, on seeded inputs
    Parity(ParityArguments),
    /// Run the recurrence on tensors from files, and compare with the results in them or write results
    Check(CheckArguments),
    /// Measure every path on this machine, after comparing its results
    Bench(BenchArguments),
    /// Say which kernel a call would take on a card and why, without the card
    Plan(PlanArguments),
    /// Say what was found on this machine and which paths can run
    Device(DeviceArguments),
    /// Ask the GPU what its tensor cores compute, how fast they are, and what launches cost
    #[cfg(feature = "cuda")]
    Facts(FactsArguments),
}

#[derive(Debug, Args)]
pub struct ParityArguments {
    /// Seed of the inputs and of the emulator's thread order
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Key and value heads
    #[arg(long, value_name = "KEY/VALUE", default_value = "16/48", value_parser = parse_heads)]
    pub heads: HeadCounts,
    /// Which key head a value head reads
    #[arg(long, value_enum, default_value_t = MapArgument::Grouped)]
    pub map: MapArgument,
    /// Prompt lengths, separated by commas; by default 1 to 8192 around every edge, and 32768 path against path
    #[arg(long, value_name = "T,..", value_delimiter = ',', value_parser = parse_tokens)]
    pub tokens: Vec<usize>,
    /// Families of inputs, separated by commas, or `all`
    #[arg(long, value_delimiter = ',', default_value = "bench", value_parser = families())]
    pub gates: Vec<Families>,
    /// Instead: run each path so many times more on the same inputs, alone and beside a second one, and expect the same bits
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub reruns: Option<u32>,
    #[command(flatten)]
    pub output: OutputArguments,
}

#[derive(Debug, Args)]
pub struct CheckArguments {
    /// Safetensors files: q, k [T, HK, 128], v [T, HV, 128], g, beta [T, HV] and, if there, state [HV, 128, 128] as
    /// float32, bfloat16 or float16; out and state_out to compare with
    #[arg(required = true)]
    pub files: Vec<PathBuf>,
    /// Write out and state_out of the first path here, as float32
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    #[command(flatten)]
    pub output: OutputArguments,
}

#[derive(Debug, Args)]
pub struct DeviceArguments {
    /// A report in JSON on standard output, and nothing else there
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct OutputArguments {
    /// Where to run, separated by commas; by default everywhere. It is an error if one of them cannot run
    #[arg(long, value_enum, value_delimiter = ',')]
    pub on: Vec<Backend>,
    #[command(flatten)]
    pub named: PathArguments,
    /// A report in JSON on standard output, and nothing else there
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct PathArguments {
    /// Only these paths, separated by commas: a name as `chunked_tensor`, on one backend as "cuda chunked_tensor", or a
    /// backend's. It is an error if one of them does not run
    #[arg(long, alias = "paths", value_name = "NAME,..", value_delimiter = ',')]
    pub path: Vec<String>,
}

/// Where the recurrence runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, ValueEnum)]
pub enum Backend {
    /// The kernels on an NVIDIA GPU
    Cuda,
    /// The CPU backend
    Cpu,
    /// The kernels in the emulator, on the CPU
    Emulator,
}

impl std::fmt::Display for Backend {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::Cuda => "cuda",
            Self::Cpu => "cpu",
            Self::Emulator => "emulator",
        })
    }
}

/// [`HeadMap`] as an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MapArgument {
    /// Value head h reads key head h % key heads: GGUF, llama.cpp
    Tiled,
    /// Value head h reads key head h / (value heads / key heads): Hugging Face, flash-linear-attention, vLLM
    Grouped,
}

impl From<MapArgument> for HeadMap {
    fn from(map: MapArgument) -> Self {
        match map {
            MapArgument::Tiled => Self::Tiled,
            MapArgument::Grouped => Self::Grouped,
        }
    }
}

/// Key and value heads, known to fit each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadCounts {
    pub keys: usize,
    pub values: usize,
}

fn parse_heads(text: &str) -> Result<HeadCounts, String> {
    let form = || format!("expected KEY/VALUE such as 16/48, got {text:?}");
    let (keys, values) = text.split_once('/').ok_or_else(form)?;
    let (keys, values) = (keys.parse().map_err(|_| form())?, values.parse().map_err(|_| form())?);
    Heads::new(keys, values, HeadMap::Grouped).map_err(|error| error.to_string())?;
    Ok(HeadCounts { keys, values })
}

/// The longest prompt of the command line; the library has no such limit.
const MOST_TOKENS: usize = 1 << 20;

fn parse_tokens(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(tokens) if tokens <= MOST_TOKENS => Ok(tokens),
        _ => Err(format!("expected a number of tokens from 0 to {MOST_TOKENS}, got {text:?}")),
    }
}

/// One family of inputs or all of them.
#[derive(Clone, Debug)]
pub enum Families {
    All,
    One(Family),
}

impl Families {
    /// What a list of arguments names, each family once.
    pub fn named_by(arguments: &[Self]) -> Vec<Family> {
        let mut named = Vec::new();
        for argument in arguments {
            let families = match argument {
                Self::All => Family::value_variants(),
                Self::One(family) => std::slice::from_ref(family),
            };
            for family in families {
                if !named.contains(family) {
                    named.push(*family);
                }
            }
        }
        named
    }
}

fn families() -> impl TypedValueParser<Value = Families> {
    let names = Family::value_variants().iter().filter_map(Family::to_possible_value);
    let all = PossibleValue::new("all").help("All of these");
    PossibleValuesParser::new(names.chain([all])).map(|name| match Family::from_str(&name, false) {
        Ok(family) => Families::One(family),
        Err(_) => Families::All,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn parity(arguments: &[&str]) -> Result<ParityArguments, clap::Error> {
        let arguments = ["host", "parity"].iter().chain(arguments);
        match Cli::try_parse_from(arguments)?.command {
            Command::Parity(parity) => Ok(parity),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn lists_are_separated_by_commas() {
        let parity = parity(&["--tokens", "0,33", "--on", "cpu,emulator", "--gates", "hard,all"]).unwrap();
        assert_eq!(parity.tokens, [0, 33]);
        assert_eq!(parity.output.on, [Backend::Cpu, Backend::Emulator]);
        let families = Families::named_by(&parity.gates);
        assert_eq!(families[0], Family::Hard);
        assert_eq!(families.len(), Family::value_variants().len());
    }

    #[test]
    fn bad_arguments_name_themselves() {
        for (arguments, says) in [
            (["--heads", "16"], "KEY/VALUE"),
            (["--heads", "0/4"], "num_k_heads"),
            (["--heads", "3/4"], "multiple of num_k_heads = 3"),
            (["--tokens", "many"], "--tokens"),
            (["--tokens", "1048577"], "0 to 1048576"),
            (["--gates", "unnormalised"], "--gates"),
            (["--on", "tpu"], "--on"),
        ] {
            let error = parity(&arguments).unwrap_err();
            assert_eq!(error.exit_code(), 2);
            assert!(error.to_string().contains(says), "{arguments:?}: {error}");
        }
    }
}
