//! `host device`: what was found on this machine.
#![forbid(unsafe_code)]
use std::fmt::Write;

use serde::Serialize;

use super::paths::{Gpu, Machine, Offer};
use super::{Verdict, print, print_json};
use crate::cli::DeviceArguments;

#[derive(Debug, Serialize)]
struct Found {
    version: &'static str,
    gpus: Vec<Gpu>,
    /// Why there is none, or why one of them could not be opened.
    no_gpu: Option<String>,
    cpu_threads: usize,
    paths: Vec<Offer>,
}

/// Runs the command. A machine without a GPU is a machine like any other.
///
/// # Errors
/// If standard output cannot be written.
pub fn run(arguments: &DeviceArguments) -> anyhow::Result<Verdict> {
    let machine = Machine::open();
    let (gpus, no_gpu) = gpus(&machine);
    let found = Found {
        version: env!("CARGO_PKG_VERSION"),
        gpus,
        no_gpu,
        cpu_threads: rayon::current_num_threads(),
        paths: machine.offers(),
    };
    if arguments.json {
        print_json(&found)?
    } else {
        print(&text(&found))?
    }
    Ok(Verdict::Agreed)
}

/// Every GPU that opens, and the first reason where one does not. The first is open already.
#[cfg(feature = "cuda")]
fn gpus(machine: &Machine) -> (Vec<Gpu>, Option<String>) {
    let (mut gpus, mut no_gpu) = match machine.gpu() {
        Ok(gpu) => (vec![gpu], None),
        Err(reason) => (Vec::new(), Some(reason)),
    };
    for ordinal in 1..host::cuda::device_count().unwrap_or(0) {
        match host::cuda::Gdn::new(ordinal) {
            Ok(device) => gpus.push(super::paths::gpu(device.facts())),
            Err(reason) => no_gpu = no_gpu.or(Some(format!("GPU {ordinal}: {reason}"))),
        }
    }
    (gpus, no_gpu)
}

#[cfg(not(feature = "cuda"))]
fn gpus(machine: &Machine) -> (Vec<Gpu>, Option<String>) {
    (Vec::new(), machine.gpu().err())
}

fn text(found: &Found) -> String {
    let mut text = String::new();
    for gpu in &found.gpus {
        let _ = writeln!(text, "GPU: {gpu}");
    }
    if let Some(reason) = &found.no_gpu {
        let _ = writeln!(text, "No GPU: {reason}");
    }
    let _ = writeln!(text, "CPU: {} threads\n\nPaths:", found.cpu_threads);
    let width = found.paths.iter().map(|offer| offer.path.to_string().len()).max().unwrap_or(0);
    for Offer { path, unavailable } in &found.paths {
        let can = unavailable.as_ref().map_or("can run".to_owned(), |reason| format!("cannot run: {reason}"));
        let _ = writeln!(text, "  {path:width$}  {can}");
    }
    text
}
