//! NVIDIA's assembler: finding it, running it, reading its report.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::process;
use crate::sources;

/// The version that the project checks with, as .ci/run installs it.
const CURE: &str = "no ptxas found; install it by `python3 -m venv .venv && .venv/bin/pip install nvidia-cuda-nvcc`, \
                    or name one by --ptxas or the variable PTXAS";

/// What the assembler reports of one entry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub entry: String,
    pub registers: u32,
    /// Static shared memory, bytes.
    pub shared: u32,
    /// Bytes.
    pub stack: u32,
    /// Bytes.
    pub spill_stores: u32,
    /// Bytes.
    pub spill_loads: u32,
}

/// The assembler that the argument, PTXAS, PATH or the repository's virtual environment has.
pub fn find(root: &Path, named: Option<&Path>) -> Result<PathBuf> {
    let named = named.map(Path::to_path_buf).or_else(|| std::env::var_os("PTXAS").map(PathBuf::from));
    if let Some(path) = named {
        if !path.is_file() {
            bail!("{} is no file", path.display());
        }
        return Ok(path);
    }
    process::find_in_path("ptxas").or_else(|| in_virtual_environment(&root.join(".venv"))).context(CURE)
}

/// NVIDIA's wheels put it into nvidia/cu13/bin or the like, older ones into nvidia/cuda_nvcc/bin.
fn in_virtual_environment(folder: &Path) -> Option<PathBuf> {
    let mut files = Vec::new();
    for library in ["lib", "Lib"] {
        // Absent folders are the common case.
        let _ = sources::collect(&folder.join(library), &mut files);
    }
    let is_program = |path: &PathBuf| {
        path.file_stem().is_some_and(|name| name == "ptxas")
            && path.parent().is_some_and(|folder| folder.ends_with("bin"))
    };
    files.retain(is_program);
    files.into_iter().max()
}

/// Assembles a file. Returns what each entry uses, and the complaints.
pub fn assemble(ptxas: &Path, file: &Path, architecture: &str) -> Result<(Vec<Usage>, Vec<String>)> {
    let object = std::env::temp_dir().join(format!("{architecture}-{}.cubin", std::process::id()));
    let report = process::output(
        Command::new(ptxas).arg("-v").arg(format!("-arch={architecture}")).arg(file).arg("-o").arg(&object),
    );
    // Only the report is wanted.
    let _ = std::fs::remove_file(&object);
    let report = report?;
    Ok((usages(&report), complaints(&report)))
}

/// Warnings, and the notes numbered C75xx: "Potential Performance Loss: wgmma.mma_async instructions are serialized". Not
/// C7519, a warpgroup's arrival that the assembler adds: that is an instruction, and waits for nothing.
fn complaints(report: &str) -> Vec<String> {
    const MARKS: [&str; 4] = ["warning", "(C75", "serialized", "Performance Loss"];
    let complains = |line: &str| MARKS.iter().any(|mark| line.contains(mark)) && !line.contains("(C7519)");
    report.lines().filter(|line| complains(line)).map(|line| line.trim().to_owned()).collect()
}

fn usages(report: &str) -> Vec<Usage> {
    let mut usages: Vec<Usage> = Vec::new();
    for line in report.lines() {
        if let Some((_, rest)) = line.split_once("Compiling entry function '") {
            let entry = rest.split('\'').next().unwrap_or_default().to_owned();
            usages.push(Usage { entry, ..Usage::default() });
        }
        let Some(usage) = usages.last_mut() else { continue };
        let mut read = |unit: &str, field: fn(&mut Usage) -> &mut u32| {
            if let Some(number) = number_before(line, unit) {
                *field(usage) = number;
            }
        };
        read(" bytes stack frame", |usage| &mut usage.stack);
        read(" bytes spill stores", |usage| &mut usage.spill_stores);
        read(" bytes spill loads", |usage| &mut usage.spill_loads);
        read(" registers", |usage| &mut usage.registers);
        read(" bytes smem", |usage| &mut usage.shared);
    }
    usages
}

/// The number in front of `unit`.
fn number_before(line: &str, unit: &str) -> Option<u32> {
    let (before, _) = line.split_once(unit)?;
    before.rsplit(|character: char| !character.is_ascii_digit()).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = "ptxas info    : 0 bytes gmem\n\
        ptxas info    : Compiling entry function 'a' for 'sm_80'\n\
        ptxas info    : Function properties for a\n    \
        128 bytes stack frame, 8 bytes spill stores, 16 bytes spill loads\n\
        ptxas info    : Used 64 registers, used 1 barriers, 128 bytes cumulative stack size, 48 bytes smem, 380 bytes cmem[0]\n\
        ptxas info    : Compile time = 3.080 ms\n\
        ptxas info    : Compiling entry function 'b' for 'sm_80'\n\
        ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized due to x\n    \
        0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n\
        ptxas info    : Used 18 registers, used 0 barriers\n";

    #[test]
    fn the_report_is_read() {
        let b = Usage { entry: "b".into(), registers: 18, ..Usage::default() };
        let a = Usage { entry: "a".into(), registers: 64, shared: 48, stack: 128, spill_stores: 8, spill_loads: 16 };
        assert_eq!(usages(REPORT), [a, b]);
    }

    #[test]
    fn notes_of_lost_speed_are_complaints() {
        assert_eq!(complaints(REPORT).len(), 1);
        for line in [
            "ptxas info    : (C7511) Potential Performance Loss: wgmma.mma_async instructions are serialized due to x",
            "ptxas info    : (C7517) wgmma.wait_group is injected in around line 13 by compiler",
            "ptxas info    : Potential Performance Loss: 'setmaxnreg' ignored",
            "ptxas warning : Value of threads per SM for entry a is out of range",
        ] {
            assert_eq!(complaints(line), [line]);
        }
        let arrival = "ptxas info    : (C7519) warpgroup.arrive is injected in around line 13 by compiler";
        assert!(complaints(arrival).is_empty());
    }
}
