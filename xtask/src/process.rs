//! Running programs: the environment they get, and errors that quote the command.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// What an outer cargo or the user's shell sets for the host's compiler, and must not reach the device's.
const FOREIGN_PREFIXES: [&str; 6] =
    ["RUSTC", "RUSTDOC", "CARGO_BUILD_", "CARGO_PROFILE_", "CARGO_TARGET_", "CARGO_UNSTABLE_"];
const FOREIGN_NAMES: [&str; 7] = [
    "CARGO",
    "CARGO_ENCODED_RUSTFLAGS",
    "CARGO_INCREMENTAL",
    "LD_LIBRARY_PATH",
    "RUSTFLAGS",
    "RUSTUP_TOOLCHAIN",
    "RUST_RECURSION_COUNT",
];

/// A command without the variables by which a cargo steers the cargo and rustc that it starts.
pub fn command_in_clean_environment(program: &Path) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        let Some(name) = name.to_str() else { continue };
        if FOREIGN_NAMES.contains(&name) || FOREIGN_PREFIXES.iter().any(|prefix| name.starts_with(prefix)) {
            command.env_remove(name);
        }
    }
    command
}

/// Runs to the end; what the program prints goes where ours does.
pub fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("starting {command:?}"))?;
    if !status.success() {
        bail!("{command:?} failed: {status}");
    }
    Ok(())
}

/// Runs to the end and returns standard output followed by standard error.
pub fn output(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("starting {command:?}"))?;
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    if !output.status.success() {
        bail!("{command:?} failed: {}\n{text}", output.status);
    }
    Ok(text)
}

/// The program of that name in PATH.
pub fn find_in_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let file = format!("{name}{}", std::env::consts::EXE_SUFFIX);
    std::env::split_paths(&path).map(|folder| folder.join(&file)).find(|candidate| candidate.is_file())
}
