//! The command line: exit code 0 if everything compared agreed, 1 if something did not, 2 if it could not run.
#![forbid(unsafe_code)]
mod cli;
mod commands;
mod tensors;

use std::process::ExitCode;

use clap::Parser;

use commands::Verdict;

fn main() -> ExitCode {
    // Before the first CUDA call. No driver is no error here: the device says so when it is opened.
    #[cfg(feature = "cuda")]
    let _ = libcuda_loader::load();
    match commands::run(cli::Cli::parse().command) {
        Ok(Verdict::Agreed) => ExitCode::SUCCESS,
        Ok(Verdict::Disagreed) => ExitCode::from(1),
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}
