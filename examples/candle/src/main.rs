//! `e2e` says what another path of the recurrence changes about a whole model, `generate` lets it speak.
#![forbid(unsafe_code)]
use anyhow::Result;
use candle_core::Device;
use candle_example::config::Config;
use candle_example::e2e::{self, Request};
use candle_example::gated_delta_net::heads;
use candle_example::model::Model;
use candle_example::on_candle::{OnCandle, Prefill};
use candle_example::recurrence::Recurrence;
use clap::{Args, Parser, Subcommand};
use host::cpu::Path;

#[derive(Debug, Parser)]
#[command(about = "A small model of Gated DeltaNet layers on candle tensors")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Compares every path of the recurrence on this machine by what a whole model says and how long it takes
    E2e(E2eArguments),
    /// Generates tokens after a prompt, on the CPU
    Generate(GenerateArguments),
}

#[derive(Debug, Args)]
struct E2eArguments {
    /// Prompt lengths, separated by commas
    #[arg(long, value_name = "T,..", value_delimiter = ',', default_value = "600,2048,8192", value_parser = some)]
    tokens: Vec<usize>,
    /// Tokens to generate after each prompt
    #[arg(long, default_value_t = 32)]
    generated: usize,
    /// Rounds of timing, of two samples of each path; there are fewer where they take long
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Seed of the weights and of the prompts
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Keep candle's tensors on the GPU too
    #[cfg(feature = "cuda")]
    #[arg(long)]
    on_gpu: bool,
    /// A report in JSON on standard output, and nothing else there
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct GenerateArguments {
    /// Token numbers of the prompt, separated by commas
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_value = "1,2,3", value_parser = token)]
    prompt: Vec<u32>,
    /// Tokens to generate
    #[arg(long, default_value_t = 32)]
    tokens: usize,
    /// Seed of the weights
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// A prompt has a last token.
fn some(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(tokens @ 1..) => Ok(tokens),
        _ => Err(format!("expected a number of tokens from 1 on, got {text:?}")),
    }
}

fn token(text: &str) -> Result<u32, String> {
    let vocabulary = Config::SMALL.vocabulary;
    match text.parse() {
        Ok(token) if (token as usize) < vocabulary => Ok(token),
        _ => Err(format!("expected a token number below {vocabulary}, got {text:?}")),
    }
}

fn main() -> Result<()> {
    // Before the first CUDA call. No driver is no error here: the report says so. candle's CUDA feature links the driver.
    #[cfg(not(feature = "cuda"))]
    let _ = libcuda_loader::load();
    match Cli::parse().command {
        Command::E2e(arguments) => compare(arguments),
        Command::Generate(arguments) => generate(&arguments),
    }
}

fn compare(arguments: E2eArguments) -> Result<()> {
    let device = arguments.device()?;
    let E2eArguments { tokens, generated, rounds, seed, json, .. } = arguments;
    let report = e2e::run(&Request { config: Config::SMALL, seed, device, tokens, generated, rounds })?;
    match json {
        true => println!("{}", serde_json::to_string_pretty(&report)?),
        false => print!("{report}"),
    }
    Ok(())
}

impl E2eArguments {
    fn device(&self) -> Result<Device> {
        #[cfg(feature = "cuda")]
        if self.on_gpu {
            return Ok(Device::new_cuda(0)?);
        }
        Ok(Device::Cpu)
    }
}

fn generate(arguments: &GenerateArguments) -> Result<()> {
    let config = Config::SMALL;
    let model = Model::new(&config, arguments.seed, &Device::Cpu)?;
    let mut recurrence = OnCandle::new(&heads(&config)?, config.layers, Prefill::Cpu(Path::Recurrent), &Device::Cpu)?;
    recurrence.reset()?;
    let mut cache = model.cache()?;
    let logits = model.forward(&arguments.prompt, 1, &mut cache, &mut recurrence)?;
    println!("{:?}", model.generate(&logits, arguments.tokens, &mut cache, &mut recurrence)?);
    Ok(())
}
