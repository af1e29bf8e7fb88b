//! The hash that ties a PTX file to the sources it was built from, so that a machine without a device compiler can tell
//! a stale file from a current one.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

use crate::pipeline;

/// Where the sources of device code lie.
const FOLDERS: [&str; 2] = ["kernels-gpu/src", "kernels-gpu/cuda_std/src"];
/// What in there only the host build compiles.
const HOST_ONLY: [&str; 3] = [
    "kernels-gpu/cuda_std/src/emulated.rs",
    "kernels-gpu/cuda_std/src/emulator.rs",
    "kernels-gpu/cuda_std/src/emulator/",
];

/// SHA-256 over the device sources in the order of their paths, the profile, and the way they are compiled.
pub fn hash(root: &Path) -> Result<String> {
    let mut paths = Vec::new();
    for folder in FOLDERS {
        collect(&root.join(folder), &mut paths)?;
    }
    let mut names: Vec<String> = paths.iter().map(|path| relative(root, path)).collect();
    names.retain(|name| !HOST_ONLY.iter().any(|prefix| name.starts_with(prefix)));
    names.sort();

    let mut hasher = Sha256::new();
    let mut add = |name: &str, text: &str| {
        // Line ends are the checkout's business. Lengths keep two files from passing for one.
        let text = text.replace("\r\n", "\n");
        hasher.update(format!("{name} {}\n{text}", text.len()));
    };
    for name in &names {
        add(name, &read(&root.join(name))?);
    }
    add("profile", device_profile(&read(&root.join("Cargo.toml"))?));
    add("pipeline", &pipeline::description());
    Ok(hasher.finalize().iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("strings grow");
        text
    }))
}

/// The section of the workspace's Cargo.toml that says how device code is compiled.
fn device_profile(manifest: &str) -> &str {
    let start = manifest.find("[profile.device]").unwrap_or(manifest.len());
    let section = &manifest[start..];
    section.find("\n[").map_or(section, |end| &section[..end]).trim_end()
}

/// Every file under `folder`, in no particular order.
pub fn collect(folder: &Path, paths: &mut Vec<PathBuf>) -> Result<()> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))?;
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, paths)?;
        } else {
            paths.push(path);
        }
    }
    Ok(())
}

/// The path inside the repository, with slashes on every system.
pub fn relative(root: &Path, path: &Path) -> String {
    let inside = path.strip_prefix(root).unwrap_or(path);
    inside.components().map(|part| part.as_os_str().to_string_lossy()).collect::<Vec<_>>().join("/")
}

/// The file's text; the error names the file.
pub fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_profile_ends_where_the_next_section_starts() {
        let manifest = "[profile.dev]\na = 1\n\n[profile.device]\nb = 2\n\n[profile.release]\nc = 3\n";
        assert_eq!(device_profile(manifest), "[profile.device]\nb = 2");
        assert_eq!(device_profile("[profile.device]\nb = 2\n"), "[profile.device]\nb = 2");
    }

    #[test]
    fn the_hash_is_sha_256_in_hexadecimal() {
        let hash = hash(&crate::root()).unwrap();
        assert_eq!(hash.len(), 64);
        assert!(hash.chars().all(|digit| digit.is_ascii_hexdigit()));
    }
}
