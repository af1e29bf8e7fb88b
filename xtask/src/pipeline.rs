//! From the kernels' Rust to PTX: rustc, llvm-link, opt, llc, and what each is told.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;
use cuda_std::kernel::EntryFacts;

use crate::device_compiler::DeviceCompiler;
use crate::process;
use crate::targets::Target;

const TRIPLE: &str = "nvptx64-nvidia-cuda";
const PROFILE: &str = "device";
const BUILD_STD: &str = "-Zbuild-std=core";
/// Names the address spaces; linked with the kernels before they are optimised.
const ADDRESS_SPACES: &str = "kernels-gpu/cuda_std/src/address_spaces.ll";

/// One bitcode serves every target: its code does not depend on the processor, opt and llc are told theirs.
const RUST_FLAGS: [&str; 5] = [
    "-Ctarget-cpu=sm_75",
    // Optimisation is opt's, below, once the address spaces are linked in.
    "-Cno-prepopulate-passes",
    // It copies what follows a branch into both arms, barriers too.
    "-Zmir-enable-passes=-JumpThreading",
    // A panic is a trap on the spot: a call would give every kernel a stack and the calling convention's registers.
    "-Zunstable-options",
    "-Cpanic=immediate-abort",
];

/// Address spaces are inferred as soon as the pointers are in registers. Left to llc, which does it too, constant
/// shared addresses would by then have been folded into generic ones, converted back and forth around every access;
/// and the optimiser would not know that shared and global memory never overlap.
const PASSES: &str = "internalize,always-inline,function(sroa,early-cse,infer-address-spaces),default<O3>";

/// Rows of a tile that a thread keeps in registers are arrays under loops of up to 32 iterations. Those loops must
/// vanish, or the arrays land in local memory: the default, 300, is too low for it. At 3,000 outer loops unrolled too,
/// and ptxas spilled.
const UNROLL_THRESHOLD: u32 = 1000;

/// Everything above that the PTX depends on, for the hash of the sources.
pub fn description() -> String {
    format!("{TRIPLE} {PROFILE} {BUILD_STD} {RUST_FLAGS:?} {PASSES} {UNROLL_THRESHOLD} llc -O3")
}

/// Compiles the kernels and links them with the address spaces. Returns the unoptimised bitcode's path.
pub fn bitcode(compiler: &DeviceCompiler, root: &Path, verbose: bool) -> Result<PathBuf> {
    let folder = target_folder(root).join("device");
    std::fs::create_dir_all(&folder)?;
    let (kernels, linked) = (folder.join("kernels.bc"), folder.join("linked.bc"));
    let cargo = |task: &str| {
        let mut command = process::command_in_clean_environment(&compiler.cargo);
        command.current_dir(root).arg(task).env("RUSTC", &compiler.rustc).env("RUSTC_BOOTSTRAP", "1");
        command.args(["--package", "kernels-gpu", "--profile", PROFILE, "--target", TRIPLE]);
        command.arg("--target-dir").arg(&folder);
        if !verbose {
            command.arg("--quiet");
        }
        command
    };
    // The bitcode is a by-product that cargo does not track, so it must not think the kernels fresh.
    process::run(&mut cargo("clean"))?;
    let mut emit = std::ffi::OsString::from("--emit=llvm-bc=");
    emit.push(&kernels);
    process::run(
        cargo("rustc")
            .env("RUSTFLAGS", RUST_FLAGS.join(" "))
            .args(["--lib", "--locked", "--crate-type", "staticlib", BUILD_STD, "--"])
            .arg(emit),
    )?;
    let address_spaces = root.join(ADDRESS_SPACES);
    process::run(Command::new(&compiler.llvm_link).args([&kernels, &address_spaces]).arg("-o").arg(&linked))?;
    Ok(linked)
}

/// The PTX of `entries` alone: whatever they do not reach is removed as dead, newer targets' instructions with it.
pub fn ptx(compiler: &DeviceCompiler, linked: &Path, target: Target, entries: &[EntryFacts]) -> Result<String> {
    let symbols: Vec<&str> = entries.iter().map(|entry| entry.symbol).collect();
    let architecture = target.architecture.target();
    let optimised = linked.with_file_name(format!("{architecture}.bc"));
    process::run(
        Command::new(&compiler.opt)
            .arg(format!("-passes={PASSES}"))
            .arg(format!("-internalize-public-api-list={}", symbols.join(",")))
            .arg(format!("-unroll-threshold={UNROLL_THRESHOLD}"))
            .arg(format!("-mtriple={TRIPLE}"))
            .arg(format!("-mcpu={architecture}"))
            .arg(linked)
            .arg("-o")
            .arg(&optimised),
    )?;
    let (major, minor) = target.version;
    process::output(
        Command::new(&compiler.llc)
            .arg("-O3")
            .arg(format!("-mcpu={architecture}"))
            .arg(format!("-mattr=+ptx{major}{minor}"))
            .arg(&optimised)
            .args(["-o", "-"]),
    )
}

/// Where cargo builds for the host.
fn target_folder(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |folder| root.join(folder))
}
