//! `host bench`: how long each path takes, after its result has been compared.
//!
//! ```text
//! run          what was asked for and what is there: the request
//!   measure    length by length: compare, warm up, samples in turn
//!     bed      inputs in place, and how a path is called: a new path is an arm of its two matches
//!     agreement   parity before the clock
//!     statistics  median and spread, and the order of a round
//!   batches    instead: packed sequences and decode, on the GPU
//!   text       the report for people
//!   record     the report as files, with a picture (plot)
//!     circumstances   what a number depends on besides the code
//! ```
#![forbid(unsafe_code)]
mod agreement;
#[cfg(feature = "cuda")]
mod batches;
mod bed;
pub mod circumstances;
mod measure;
mod plot;
pub mod record;
mod report;
mod statistics;
mod text;

use std::time::Instant;

use anyhow::{bail, ensure};

use super::paths::{self, Gpu, Machine, Offer, Path};
use super::report::Skip;
use super::runs::progress;
use super::{Verdict, print, print_json};
use crate::cli::{Backend, BenchArguments, Multiprocessors};
use circumstances::Circumstances;
use host::Heads;
use measure::{FAMILY, Request, measure};
use report::Report;

/// Memory that the inputs and outputs may take: above it the arguments are a mistake, and an allocation would abort.
const MOST_BYTES: u128 = 1 << 36;

/// Runs the command.
///
/// # Errors
/// If a backend asked for cannot run, or nothing is left to measure.
pub fn run(arguments: &BenchArguments) -> anyhow::Result<Verdict> {
    let started = Instant::now();
    let least = if arguments.record.is_some() { record::LEAST_SAMPLES } else { 1 };
    ensure!(arguments.samples as usize >= least, "--record takes at least {least} samples");
    let circumstances = Circumstances::here();
    let machine = Machine::open();
    let heads = Heads::new(arguments.heads.keys, arguments.heads.values, arguments.map.into())?;
    let mut tokens = arguments.tokens.clone();
    tokens.sort_unstable();
    tokens.dedup();
    require_memory(&heads, &tokens)?;
    #[cfg(feature = "cuda")]
    if arguments.varlen.is_some() || !arguments.decode.is_empty() {
        return batches::run(arguments, heads);
    }
    let multiprocessors = multiprocessors(&arguments.multiprocessors, machine.gpu().ok())?;
    let chosen = choose(&machine.offers(), &arguments.on, &arguments.named.path)?;
    let request = Request {
        heads,
        tokens,
        multiprocessors,
        samples: arguments.samples as usize,
        seed: arguments.seed,
        paths: chosen.paths,
    };

    let bar = progress(request.tokens.len() * request.groups().len());
    let found = measure(&request, &machine, &bar)?;
    bar.finish_and_clear();
    let left_out = chosen.left_out.into_iter().map(|(path, reason)| Skip {
        name: None,
        heads: (&heads).into(),
        path,
        tokens: request.tokens.clone(),
        reason,
    });
    let gpu = machine.gpu();
    let agreed = found.rows.iter().all(|row| row.agreement.agreed);
    let report = Report {
        command: "bench",
        version: env!("CARGO_PKG_VERSION"),
        circumstances,
        family: FAMILY.to_string(),
        clocks: found.clocks,
        seed: arguments.seed,
        heads: (&heads).into(),
        no_gpu: gpu.as_ref().err().cloned(),
        gpu: gpu.ok(),
        cpu_threads: rayon::current_num_threads(),
        agreed,
        skipped: found.skipped.into_iter().chain(left_out).collect(),
        rows: found.rows,
        seconds: started.elapsed().as_secs_f64(),
    };
    let ran: Vec<Path> = report.rows.iter().map(|row| row.path).collect();
    paths::require_ran(&arguments.named.path, &ran, &report.skipped)?;
    ensure!(!report.rows.is_empty(), "nothing was measured{}", text::left_out(&report.skipped));
    if let Some(folder) = &arguments.record {
        record::write(folder, &report)?;
    }
    if arguments.json {
        print_json(&report)?
    } else {
        print(&text::text(&report))?
    }
    Ok(if agreed { Verdict::Agreed } else { Verdict::Disagreed })
}

/// The paths to measure, and those that were left out with the reason.
#[derive(Debug, PartialEq, Eq)]
struct Chosen {
    paths: Vec<Path>,
    left_out: Vec<(Path, String)>,
}

/// Who is measured: the backends asked for or else the GPU, without one the CPU; of their paths those that are named.
///
/// # Errors
/// If a backend asked for cannot run or cannot be measured, or a name is that of no path that can.
fn choose(offers: &[Offer], on: &[Backend], named: &[String]) -> anyhow::Result<Chosen> {
    ensure!(!on.contains(&Backend::Emulator), "--on emulator: its time says nothing about a GPU's");
    let measured: Vec<Offer> =
        offers.iter().filter(|offer| offer.path.backend() != Backend::Emulator).cloned().collect();
    let gpu = offers.iter().any(|offer| offer.path.backend() == Backend::Cuda && offer.unavailable.is_none());
    let mut chosen = Chosen { paths: Vec::new(), left_out: Vec::new() };
    for Offer { path, unavailable } in paths::choose(&measured, on, named)? {
        match unavailable {
            Some(reason) => chosen.left_out.push((path, reason)),
            None if gpu && on.is_empty() && named.is_empty() && path.backend() == Backend::Cpu => {
                chosen.left_out.push((path, "there is a GPU; --on cuda,cpu measures both".to_owned()));
            }
            None => chosen.paths.push(path),
        }
    }
    if chosen.paths.is_empty() {
        let reasons: Vec<String> =
            chosen.left_out.iter().map(|(path, reason)| format!("\n  {path}: {reason}")).collect();
        bail!("no path to measure{}", reasons.concat());
    }
    Ok(chosen)
}

/// The numbers asked for, the largest first, each once; none without a GPU.
///
/// # Errors
/// If the GPU has not so many, or there is none and less than all were asked for.
fn multiprocessors(asked_for: &[Multiprocessors], gpu: Option<Gpu>) -> anyhow::Result<Vec<u32>> {
    let Some(gpu) = gpu else {
        let all = asked_for.iter().all(|&count| count == Multiprocessors::All);
        ensure!(all, "--multiprocessors: there is no GPU whose multiprocessors could be held");
        return Ok(Vec::new());
    };
    let mut counts = Vec::new();
    for &count in asked_for {
        match count {
            Multiprocessors::All => counts.push(gpu.multiprocessors),
            Multiprocessors::So(count) if count <= gpu.multiprocessors => counts.push(count),
            Multiprocessors::So(count) => {
                bail!("--multiprocessors {count}: {} has {}", gpu.name, gpu.multiprocessors)
            }
        }
    }
    counts.sort_unstable_by(|a, b| b.cmp(a));
    counts.dedup();
    Ok(counts)
}

/// # Errors
/// If the longest prompt would take more memory than [`MOST_BYTES`].
fn require_memory(heads: &Heads, tokens: &[usize]) -> anyhow::Result<()> {
    let Heads { num_k_heads, num_v_heads, head_k_dim, head_v_dim, .. } = *heads;
    let longest = tokens.iter().copied().max().unwrap_or(0);
    // Per token q, k, v, and two outputs; with a reference another two of float64 while it runs.
    let floats = 2 * num_k_heads * head_k_dim + 7 * num_v_heads * head_v_dim;
    let bytes = 4 * floats as u128 * longest as u128;
    ensure!(
        bytes <= MOST_BYTES,
        "--tokens {longest} at {num_k_heads}/{num_v_heads} heads would take {} GiB of memory, the limit is {} GiB",
        bytes >> 30,
        MOST_BYTES >> 30
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use host::Kernel;
    use host::cpu;

    fn offers(gpu: bool) -> Vec<Offer> {
        let unavailable = |path: Path| (path.backend() == Backend::Cuda && !gpu).then(|| "no driver".to_owned());
        Path::all().into_iter().map(|path| Offer { path, unavailable: unavailable(path) }).collect()
    }

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn a_gpu_is_measured_where_there_is_one_and_the_cpu_otherwise() {
        let with = choose(&offers(true), &[], &[]).unwrap();
        assert!(with.paths.iter().all(|path| path.backend() == Backend::Cuda));
        assert_eq!(with.left_out.len(), cpu::Path::ALL.len());
        assert!(with.left_out.iter().all(|(_, reason)| reason.contains("--on cuda,cpu")));
        let without = choose(&offers(false), &[], &[]).unwrap();
        assert_eq!(without.paths, cpu::Path::ALL.map(Path::Cpu));
        assert!(without.left_out.iter().all(|(_, reason)| reason == "no driver") && !without.left_out.is_empty());
    }

    #[test]
    fn paths_are_chosen_by_name() {
        let chosen = choose(&offers(true), &[], &names(&["recurrent_by_column"])).unwrap();
        assert_eq!(chosen.paths, [Path::Cuda(Kernel::RecurrentByColumn)]);
        let chosen = choose(&offers(true), &[], &names(&["chunked"])).unwrap();
        assert_eq!(chosen.paths, [Path::Cuda(Kernel::Chunked), Path::Cpu(cpu::Path::Chunked)]);
        let error = choose(&offers(true), &[], &names(&["by_row"])).unwrap_err().to_string();
        assert!(error.contains("cuda recurrent_by_key_head") && error.contains("cpu"), "{error}");
        assert!(choose(&offers(true), &[], &names(&["emulator"])).is_err(), "its time says nothing");
        let error = choose(&offers(false), &[], &names(&["recurrent_by_column"])).unwrap_err().to_string();
        assert!(error.contains("no driver"), "{error}");
    }

    #[test]
    fn multiprocessors_are_those_of_the_gpu() {
        use Multiprocessors::{All, So};
        let gpu = Gpu {
            name: "a card".to_owned(),
            driver: (12, 8),
            capability: 90,
            multiprocessors: 132,
            shared_bytes_optin: 232_448,
            memory_bytes: 1 << 30,
        };
        assert_eq!(multiprocessors(&[So(32), All, So(132), So(64)], Some(gpu.clone())).unwrap(), [132, 64, 32]);
        let error = multiprocessors(&[So(133)], Some(gpu)).unwrap_err().to_string();
        assert_eq!(error, "--multiprocessors 133: a card has 132");
        assert!(multiprocessors(&[All], None).unwrap().is_empty());
        assert!(multiprocessors(&[So(32)], None).is_err());
    }

    #[test]
    fn the_emulator_is_not_measured() {
        assert!(choose(&offers(true), &[Backend::Emulator], &[]).is_err());
    }
}
