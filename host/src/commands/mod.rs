//! The commands, one file each, and what they share.
#![forbid(unsafe_code)]
mod bench;
mod check;
mod device;
#[cfg(feature = "cuda")]
mod facts;
mod parity;
mod paths;
mod plan;
mod report;
mod reruns;
mod runs;
mod schedule;
mod table;

use std::io::Write;

use anyhow::Context;

use crate::cli::Command;

/// What a command that ran found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Everything that was compared agreed.
    Agreed,
    /// Something did not.
    Disagreed,
}

/// Runs a command.
///
/// # Errors
/// What kept it from running; nothing has been written then.
pub fn run(command: Command) -> anyhow::Result<Verdict> {
    match command {
        Command::Parity(arguments) => parity::run(&arguments),
        Command::Check(arguments) => check::run(&arguments),
        Command::Bench(arguments) => bench::run(&arguments),
        Command::Plan(arguments) => plan::run(&arguments),
        Command::Device(arguments) => device::run(&arguments),
        #[cfg(feature = "cuda")]
        Command::Facts(arguments) => facts::run(&arguments),
    }
}

/// Writes to standard output, where a closed pipe is an error like any other and no panic.
fn print(text: &str) -> anyhow::Result<()> {
    let mut output = std::io::stdout().lock();
    output.write_all(text.as_bytes()).and_then(|()| output.flush()).context("writing to standard output")
}

/// Writes one JSON document to standard output. Ratios that are no numbers are null in it.
fn print_json(value: &impl serde::Serialize) -> anyhow::Result<()> {
    print(&(serde_json::to_string_pretty(value)? + "\n"))
}
