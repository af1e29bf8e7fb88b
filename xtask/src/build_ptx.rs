//! `cargo xtask build-ptx`: compiles the kernels, one PTX file a target; `--check` says whether the files are current.

use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::device_compiler::{self, DeviceCompiler};
use crate::pipeline;
use crate::ptx_text::{self, Header};
use crate::sources;
use crate::targets::{TARGETS, Target};

const CURE: &str = "run `cargo xtask build-ptx`";

#[derive(clap::Args)]
pub struct Arguments {
    /// The device compiler: a rustup toolchain's name, or a folder with bin/rustc and bin/cargo
    #[arg(long)]
    toolchain: Option<String>,
    /// Write nothing; fail if the files are stale
    #[arg(long)]
    check: bool,
    /// Show what cargo prints
    #[arg(long, short)]
    verbose: bool,
}

pub fn run(root: &Path, arguments: &Arguments) -> Result<()> {
    let compiler = device_compiler::find(arguments.toolchain.as_deref());
    let hash = sources::hash(root)?;
    if arguments.check {
        return check(root, arguments, compiler, &hash);
    }
    for (target, text) in build(root, &compiler?, &hash, arguments.verbose)? {
        let path = target.path(root);
        std::fs::create_dir_all(path.parent().expect("a file in a folder"))?;
        std::fs::write(&path, &text).with_context(|| format!("writing {}", path.display()))?;
        let entries = target.entries().len();
        println!("{}: {entries} entries, {} lines", sources::relative(root, &path), text.lines().count());
    }
    Ok(())
}

/// Every target's file.
fn build(root: &Path, compiler: &DeviceCompiler, hash: &str, verbose: bool) -> Result<Vec<(Target, String)>> {
    println!("compiling with {}", compiler.version);
    let linked = pipeline::bitcode(compiler, root, verbose)?;
    let header = Header { compiler: compiler.version.clone(), sources: hash.to_owned() };
    let one = |target: Target| {
        let entries = target.entries();
        let ptx = pipeline::ptx(compiler, &linked, target, &entries)?;
        let ptx = ptx_text::with_launch_bounds(&ptx_text::without_comments(&ptx), &entries)?;
        Ok((target, header.lines(target) + &ptx))
    };
    TARGETS.into_iter().map(one).collect()
}

/// Compares the bytes where the files' own compiler is at hand, and the hash of the sources in any case.
fn check(
    root: &Path,
    arguments: &Arguments,
    compiler: Result<DeviceCompiler, device_compiler::NoCompiler>,
    hash: &str,
) -> Result<()> {
    let mut made_by = Vec::new();
    for target in TARGETS {
        let name = target.file_name();
        let text = sources::read(&target.path(root)).with_context(|| format!("{name} is missing: {CURE}"))?;
        let header = Header::parse(&text).with_context(|| format!("{name} has no header: {CURE}"))?;
        if header.sources != hash {
            bail!("{name} is stale, its sources have changed since it was built: {CURE}");
        }
        made_by.push(header.compiler);
    }
    let compiler = match compiler {
        Ok(compiler) => compiler,
        // A compiler that was asked for must be there; otherwise the hash will do.
        Err(error) if arguments.toolchain.is_some() => return Err(error.into()),
        Err(error) => {
            println!("host/ptx matches the hash of its sources; not rebuilt, since there is {error}");
            return Ok(());
        }
    };
    if let Some(other) = made_by.iter().find(|&version| *version != compiler.version) {
        println!(
            "host/ptx matches the hash of its sources; not rebuilt, since it was made by\n  {other}\nand here is\n  {}",
            compiler.version
        );
        return Ok(());
    }
    for (target, text) in build(root, &compiler, hash, arguments.verbose)? {
        // The checkout decides about line ends.
        if sources::read(&target.path(root))?.replace("\r\n", "\n") != text {
            bail!("{} differs from what its sources compile to: {CURE}", target.file_name());
        }
    }
    println!("host/ptx is what its sources compile to, byte for byte");
    Ok(())
}
