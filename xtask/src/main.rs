//! The project's tasks, in Rust so that they run wherever the project builds: `cargo xtask <task>`.
#![forbid(unsafe_code)]

mod build_ptx;
mod code;
mod device_compiler;
mod pipeline;
mod process;
mod ptx_text;
mod sources;
mod targets;

use std::path::{Path, PathBuf};

use clap::Parser;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Tasks of the project")]
enum Task {
    /// Compiles the kernels to host/ptx.
    BuildPtx(build_ptx::Arguments),
}

fn main() -> anyhow::Result<()> {
    let root = root();
    match Task::parse() {
        Task::BuildPtx(arguments) => build_ptx::run(&root, &arguments),
    }
}

/// The repository's top folder.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the repository").to_path_buf()
}
