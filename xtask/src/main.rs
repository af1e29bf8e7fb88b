//! The project's tasks, in Rust so that they run wherever the project builds: `cargo xtask <task>`.
#![forbid(unsafe_code)]

mod build_ptx;
mod ci;
mod code;
mod device_compiler;
mod pipeline;
mod process;
mod ptx_audit;
mod ptx_text;
mod ptxas;
mod sources;
mod targets;
mod tidy;
mod verify_ptx;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Tasks of the project")]
enum Task {
    /// Compiles the kernels to host/ptx
    BuildPtx(build_ptx::Arguments),
    /// Assembles host/ptx for every architecture; reports registers, spills, shared memory and barriers
    VerifyPtx(verify_ptx::Arguments),
    /// Checks the rules that no compiler knows
    Tidy,
    /// Runs every check of the project: the one door
    Ci,
}

fn main() -> ExitCode {
    let root = root();
    let result = match Task::parse() {
        Task::BuildPtx(arguments) => build_ptx::run(&root, &arguments),
        Task::VerifyPtx(arguments) => verify_ptx::run(&root, &arguments),
        Task::Tidy => tidy::run(&root),
        Task::Ci => ci::run(&root),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // The message names the cure; a backtrace would bury it.
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The repository's top folder.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the repository").to_path_buf()
}
