//! The GPU of this machine. Without one its cases are counted as skipped; with `GDN_REQUIRE_GPU=1` that is a failure.
#![forbid(unsafe_code)]
use std::io::Write;
use std::sync::{Once, OnceLock};

use host::cuda::Gdn;

/// Set to 1 where a GPU was promised.
const REQUIRE: &str = "GDN_REQUIRE_GPU";

/// The first GPU, opened once for the whole test binary; the driver is loaded before the first call of it.
///
/// # Panics
/// Without a usable GPU, where `GDN_REQUIRE_GPU` is 1.
pub fn gpu() -> Option<&'static Gdn> {
    static GPU: OnceLock<Result<Gdn, String>> = OnceLock::new();
    let gpu = GPU.get_or_init(|| {
        // No driver is no error here: opening the device says so.
        let _ = libcuda_loader::load();
        Gdn::new(0).map_err(|error| error.to_string())
    });
    match gpu {
        Ok(gpu) => Some(gpu),
        Err(reason) if std::env::var_os(REQUIRE).is_some_and(|value| value == "1") => {
            panic!("{REQUIRE} is 1, and there is no GPU: {reason}")
        }
        Err(_) => None,
    }
}

/// The GPU, or a line that says how many cases are left out.
///
/// # Panics
/// As [`gpu`].
pub fn gpu_or_skip(what: &str, cases: usize) -> Option<&'static Gdn> {
    let gpu = gpu();
    if gpu.is_none() {
        let unit = if cases == 1 { "case" } else { "cases" };
        say(&format!("skipped: no device ({cases} {unit}): {what}"));
    }
    gpu
}

/// Says once that the GPU's paths are missing from every case that runs on all paths.
pub(crate) fn say_paths_are_missing() {
    static SAID: Once = Once::new();
    SAID.call_once(|| say("skipped: no device (4 of the 10 paths of every case)"));
}

/// A line that the test harness does not capture: a skip has to be seen.
fn say(line: &str) {
    // A closed standard error is no reason to fail.
    let _ = writeln!(std::io::stderr(), "{line}");
}
