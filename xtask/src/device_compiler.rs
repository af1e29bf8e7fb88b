//! Finding a compiler for the GPU: rustc with the sources of `core`, its cargo, and the LLVM tools of its version.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, anyhow, bail};

use crate::process;

/// The cure where no device compiler is found.
const CURE: &str = "install one of these:
  with rustup:          rustup component add rust-src llvm-tools
  on Debian 12, root:   apt-get install --no-install-recommends rustc-web cargo-web rust-web-src rust-web-llvm llvm-22
then run this again, or name a compiler by --toolchain (a rustup toolchain, or a folder with bin/rustc)";

/// Where Debian's packages put their compiler.
const DEBIAN_PREFIX: &str = "/usr";

/// Programs that together make PTX.
#[derive(Debug)]
pub struct DeviceCompiler {
    pub rustc: PathBuf,
    pub cargo: PathBuf,
    pub llvm_link: PathBuf,
    pub opt: PathBuf,
    pub llc: PathBuf,
    /// What decides about the bytes of the PTX: rustc's version with its commit, and LLVM's.
    pub version: String,
}

/// No compiler was found; says where it was looked for, why each place would not do, and the cure.
#[derive(Debug)]
pub struct NoCompiler(Vec<String>);

impl fmt::Display for NoCompiler {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(formatter, "no compiler for the GPU found")?;
        for reason in &self.0 {
            writeln!(formatter, "  {reason}")?;
        }
        write!(formatter, "{CURE}")
    }
}

impl std::error::Error for NoCompiler {}

/// The compiler that `toolchain` names, else Debian's, else the rustup toolchain in use.
pub fn find(toolchain: Option<&str>) -> Result<DeviceCompiler, NoCompiler> {
    let candidates: Vec<(String, Result<PathBuf>)> = match toolchain {
        Some(name) if Path::new(name).is_dir() => vec![(name.to_owned(), Ok(PathBuf::from(name)))],
        Some(name) => vec![(format!("toolchain {name}"), sysroot(Command::new("rustc").arg(format!("+{name}"))))],
        None => vec![
            ("Debian's compiler".to_owned(), Ok(PathBuf::from(DEBIAN_PREFIX))),
            ("the toolchain in use".to_owned(), sysroot(&mut Command::new("rustc"))),
        ],
    };
    let mut reasons = Vec::new();
    for (name, prefix) in candidates {
        match prefix.and_then(|prefix| at(&prefix)) {
            Ok(compiler) => return Ok(compiler),
            Err(error) => reasons.push(format!("{name}: {error:#}")),
        }
    }
    Err(NoCompiler(reasons))
}

fn sysroot(rustc: &mut Command) -> Result<PathBuf> {
    Ok(PathBuf::from(process::output(rustc.args(["--print", "sysroot"]))?.trim()))
}

/// The compiler installed under `prefix`, if nothing of it is missing.
fn at(prefix: &Path) -> Result<DeviceCompiler> {
    let program = |name: &str| -> Result<PathBuf> {
        let path = prefix.join("bin").join(format!("{name}{}", std::env::consts::EXE_SUFFIX));
        if path.is_file() { Ok(path) } else { Err(anyhow!("{} is missing", path.display())) }
    };
    let (rustc, cargo) = (program("rustc")?, program("cargo")?);
    let verbose = process::output(process::command_in_clean_environment(&rustc).arg("-vV"))?;
    let version = Version::parse(&verbose)?;

    // A prefix may be a sysroot or hold a link to one.
    let sysroot = sysroot(&mut process::command_in_clean_environment(&rustc))?;
    let sources = sysroot.join("lib/rustlib/src/rust/library/core/src/lib.rs");
    if !sources.is_file() {
        bail!("{} has no sources of core (rust-src)", version.rustc);
    }
    let tool_folder = sysroot.join("lib/rustlib").join(version.host).join("bin");
    let tool = |name| llvm_tool(&tool_folder, name, version.llvm_major);
    let (llvm_link, opt, llc) = (tool("llvm-link")?, tool("opt")?, tool("llc")?);
    let llvm = process::output(Command::new(&llc).arg("--version"))?;
    let llvm = llvm_version(&llvm).context("llc --version names no LLVM version")?;
    let version = format!("{} LLVM {llvm}", version.rustc);
    Ok(DeviceCompiler { rustc, cargo, llvm_link, opt, llc, version })
}

/// An LLVM program of the compiler's own major version, which reads its bitcode: from the component llvm-tools, or the
/// system's with the version in its name.
fn llvm_tool(folder: &Path, name: &str, major: u32) -> Result<PathBuf> {
    let own = folder.join(format!("{name}{}", std::env::consts::EXE_SUFFIX));
    if own.is_file() {
        return Ok(own);
    }
    let versioned = format!("{name}-{major}");
    process::find_in_path(&versioned)
        .with_context(|| format!("neither {} nor {versioned} in PATH (llvm-tools)", own.display()))
}

/// What `rustc -vV` says.
#[derive(Debug, PartialEq, Eq)]
struct Version<'text> {
    rustc: &'text str,
    host: &'text str,
    llvm_major: u32,
}

impl<'text> Version<'text> {
    fn parse(verbose: &'text str) -> Result<Self> {
        let field = |name: &str| {
            verbose.lines().find_map(|line| line.strip_prefix(name)).with_context(|| format!("rustc -vV lacks {name}"))
        };
        let llvm = field("LLVM version: ")?;
        let llvm_major = llvm.split('.').next().and_then(|major| major.parse().ok()).context("LLVM version")?;
        Ok(Self { rustc: verbose.lines().next().unwrap_or_default(), host: field("host: ")?, llvm_major })
    }
}

/// The number in `llc --version`, whose first line names the distribution.
fn llvm_version(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once("LLVM version ")?;
    rest.split_whitespace().next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read() {
        let verbose = "rustc 1.96.0 (ac68faa20 2026-05-25)\nbinary: rustc\nhost: x86_64-unknown-linux-gnu\n\
                       LLVM version: 22.1.8\n";
        let expected =
            Version { rustc: "rustc 1.96.0 (ac68faa20 2026-05-25)", host: "x86_64-unknown-linux-gnu", llvm_major: 22 };
        assert_eq!(Version::parse(verbose).unwrap(), expected);
        assert!(Version::parse("rustc 1.96.0\n").is_err());
        assert_eq!(llvm_version("Debian LLVM version 22.1.8\n  Optimized build.\n"), Some("22.1.8"));
        assert_eq!(llvm_version("LLVM (http://llvm.org/):\n  LLVM version 22.1.2-rust\n"), Some("22.1.2-rust"));
    }

    #[test]
    fn the_message_names_both_cures() {
        let message = find(Some("no-such-toolchain")).unwrap_err().to_string();
        assert!(message.contains("rustup component add") && message.contains("apt-get install"), "{message}");
    }
}
