//! `cargo xtask tidy`: the rules of the project that no compiler knows.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use crate::code::{code_only, count_word};
use crate::ptx_text;
use crate::sources;
use crate::targets::TARGETS;

/// Above this a file has more than one job.
const MOST_LINES: usize = 550;

/// The fence: where `unsafe` may stand.
const UNSAFE_PREFIXES: [&str; 9] = [
    "kernels-gpu/cuda_std/",
    "kernels-gpu/src/",
    "host/libcuda_loader/",
    "host/src/cuda/",
    "host/src/emulated",
    "host/examples/",
    "examples/candle/src/on_candle/on_gpu.rs",
    "examples/candle/src/on_device.rs",
    "tests/",
];

/// Where code may ask which machine it is compiled for. Kernels may not: their one body serves both.
const TARGET_PREFIXES: [&str; 4] =
    ["kernels-gpu/cuda_std/", "kernels-gpu/src/lib.rs", "host/libcuda_loader/", "host/src/cpu/"];

/// Documentation speaks of the project, not of the machine it was written on.
const FOREIGN_PATHS: [&str; 2] = ["/home/", "/tmp/"];

pub fn run(root: &Path) -> Result<()> {
    let mut faults = Vec::new();
    for path in files(root)? {
        let name = sources::relative(root, &path);
        let check = match path.extension().and_then(|extension| extension.to_str()) {
            Some("rs") => rust_faults,
            Some("md") => documentation_faults,
            _ => continue,
        };
        let text = sources::read(&path)?;
        faults.extend(check(&name, &text).into_iter().map(|fault| format!("{name}: {fault}")));
    }
    faults.extend(missing_entries(root)?);
    if !faults.is_empty() {
        bail!("{} faults\n  {}", faults.len(), faults.join("\n  "));
    }
    println!("tidy");
    Ok(())
}

/// Every file of the repository, in the order of their paths.
fn files(root: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(root)? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if !entry.path().is_dir() {
            files.push(entry.path());
        } else if name != "target" && !name.starts_with('.') {
            sources::collect(&entry.path(), &mut files)?;
        }
    }
    files.sort();
    Ok(files)
}

fn rust_faults(name: &str, text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    let code = code_only(text);
    let under = |prefixes: &[&str]| prefixes.iter().any(|prefix| name.starts_with(prefix));
    if !text.starts_with("//!") {
        faults.push("does not begin with `//!`: say what the file is for".to_owned());
    }
    let lines = text.lines().count();
    if lines > MOST_LINES {
        faults.push(format!("{lines} lines, at most {MOST_LINES}: split it by its jobs"));
    }
    if count_word(&code, "unsafe") > 0 && !under(&UNSAFE_PREFIXES) {
        faults.push("`unsafe` outside the fence (UNSAFE_PREFIXES in tidy.rs)".to_owned());
    }
    if count_word(&code, "target_arch") > 0 && !under(&TARGET_PREFIXES) {
        faults.push("`cfg(target_arch)` outside the device vocabulary (TARGET_PREFIXES in tidy.rs)".to_owned());
    }
    if code.contains("#[ignore") {
        faults.push("an ignored test is no test".to_owned());
    }
    // Split, since this file is checked too.
    for mark in [concat!("TO", "DO"), concat!("FIX", "ME")] {
        if count_word(text, mark) > 0 {
            faults.push(format!("{mark}: do it, or say why not"));
        }
    }
    faults
}

fn documentation_faults(_name: &str, text: &str) -> Vec<String> {
    let found = FOREIGN_PATHS.into_iter().filter(|&path| text.contains(path));
    found.map(|path| format!("`{path}` has no place in documentation")).collect()
}

/// Entries that a PTX file lacks: a kernel was added and the PTX was not built.
fn missing_entries(root: &Path) -> Result<Vec<String>> {
    let mut faults = Vec::new();
    for target in TARGETS {
        let ptx = sources::read(&target.path(root))?;
        let found = ptx_text::entries(&ptx);
        for facts in target.entries() {
            if !found.iter().any(|entry| entry.name == facts.symbol) {
                faults.push(format!("{}: no entry {}, run `cargo xtask build-ptx`", target.file_name(), facts.symbol));
            }
        }
    }
    Ok(faults)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_of_rust_files_are_found() {
        let faults = |text| rust_faults("host/src/lib.rs", text).len();
        assert_eq!(faults("//! Good.\n// unsafe, in words\n"), 0);
        assert_eq!(faults("fn main() {}\n"), 1);
        assert_eq!(faults("//! x\nfn f() { unsafe { g() } }\n"), 1);
        assert_eq!(faults("//! x\n#[cfg(target_arch = \"nvptx64\")]\nfn f() {}\n"), 1);
        assert_eq!(faults("//! x\n#[test]\n#[ignore = \"slow\"]\nfn f() {}\n"), 1);
        assert_eq!(faults(concat!("//! x\n// TO", "DO: more\n")), 1);
        assert_eq!(faults(&format!("//! x\n{}", "\n".repeat(MOST_LINES))), 1);
        assert!(rust_faults("kernels-gpu/src/kernels/a.rs", "//! x\nunsafe fn f() {}\n").is_empty());
    }

    #[test]
    fn documentation_names_no_machine() {
        assert_eq!(documentation_faults("README.md", "From /tmp/x and /home/somebody.").len(), 2);
        assert!(documentation_faults("README.md", "A file in target/tmp.").is_empty());
    }
}
