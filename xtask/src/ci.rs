//! `cargo xtask ci`: every check of the project in the order of their cost, up to the first that fails.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::process;

/// What cargo is told, and what a step adds to the environment.
const STEPS: [(&str, Option<(&str, &str)>); 9] = [
    ("fmt --all -- --check", None),
    ("xtask tidy", None),
    ("clippy --workspace --all-targets -- -D warnings", None),
    // The library without CUDA is one that people build.
    ("clippy -p host --no-default-features -- -D warnings", None),
    ("doc --workspace --no-deps", Some(("RUSTDOCFLAGS", "-D warnings"))),
    ("test --workspace", None),
    ("run -p host -- parity", None),
    ("xtask build-ptx --check", None),
    ("xtask verify-ptx", None),
];

pub fn run(root: &Path) -> Result<()> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut times: Vec<(&str, Duration)> = Vec::new();
    for (step, variable) in STEPS {
        println!("\n==> cargo {step}");
        let start = Instant::now();
        let mut command = Command::new(&cargo);
        command.current_dir(root).args(step.split(' ')).envs(variable);
        process::run(&mut command).with_context(|| format!("the step `cargo {step}`"))?;
        times.push((step, start.elapsed()));
        println!("<== {:.1} s", start.elapsed().as_secs_f64());
    }
    println!("\nall checks passed");
    for (step, time) in times {
        println!("{:7.1} s  cargo {step}", time.as_secs_f64());
    }
    Ok(())
}
