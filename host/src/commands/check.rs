//! `host check`: the recurrence on tensors from files.
#![forbid(unsafe_code)]
use std::path::Path as FilePath;
use std::time::Instant;

use anyhow::{Context, ensure};

use super::paths::{self, Machine, Offer, Path};
use super::report::{Against, Case, Report, Skip};
use super::runs::{Expectation, Runner, Standard, progress};
use super::schedule::emulator_takes;
use super::{Verdict, print, print_json, table};
use crate::cli::{Backend, CheckArguments};
use crate::tensors::{self, Precision, Stored};
use host::compare::{Bar, bars};
use host::reference::reference_f64;

/// Runs the command. Every file is read and checked before the first runs.
///
/// # Errors
/// If a file is not what it should be, a backend asked for cannot run, or the results cannot be written.
pub fn run(arguments: &CheckArguments) -> anyhow::Result<Verdict> {
    let started = Instant::now();
    let count = arguments.files.len();
    ensure!(arguments.out.is_none() || count == 1, "--out takes the results of one file, {count} were given");
    require_another_file(arguments)?;
    let files = arguments.files.iter().map(|file| tensors::read(file)).collect::<Result<Vec<_>, _>>()?;
    let machine = Machine::open();
    let offers = paths::choose(&machine.offers(), &arguments.output.on, &arguments.output.named.path)?;

    let mut report = Report::new("check", None, &machine, offers.clone());
    let runner = Runner { machine: &machine, order: 1, progress: progress(count * offers.len()) };
    for (name, file) in arguments.files.iter().zip(&files) {
        let case = check(&runner, arguments, &offers, name, file, &mut report)?;
        report.cases.push(case);
    }
    runner.progress.finish_and_clear();

    let verdict = report.finish(started.elapsed().as_secs_f64());
    let done = report.compared > 0 || arguments.out.is_some();
    ensure!(done, "nothing was compared: every run was left out\n{}", table::text(&report));
    if arguments.output.json {
        print_json(&report)?
    } else {
        print(&table::text(&report))?
    }
    Ok(verdict)
}

fn check(
    runner: &Runner<'_>,
    arguments: &CheckArguments,
    offers: &[Offer],
    name: &FilePath,
    file: &tensors::File,
    report: &mut Report,
) -> anyhow::Result<Case> {
    let inputs = &file.inputs;
    let mut case = Case { name: name.display().to_string(), heads: (&inputs.heads).into(), rows: Vec::new() };
    let mut paths: Vec<Path> = Vec::new();
    for offer in offers {
        match refusal(offer, arguments, file) {
            None => paths.push(offer.path),
            Some(reason) => report.skipped.push(Skip {
                name: Some(case.name.clone()),
                heads: case.heads.clone(),
                path: offer.path,
                tokens: vec![inputs.tokens],
                reason,
            }),
        }
    }

    let in_file = file.out.is_some() || file.state_out.is_some();
    let reference = (!in_file && arguments.out.is_none()).then(|| reference_f64(inputs));
    let expected = match &reference {
        Some(reference) => Some(Expectation {
            against: Against::Float64,
            out: Some((&reference.out, bars::SEQUENTIAL)),
            state: Some((&reference.state, bars::SEQUENTIAL)),
        }),
        None => in_file.then(|| Expectation {
            against: Against::File,
            out: file.out.as_ref().map(with_bar),
            state: file.state_out.as_ref().map(with_bar),
        }),
    };
    let standard = Standard { expected, chunked: None, paths: bars::SEQUENTIAL };
    let outputs = runner.run(inputs, inputs.tokens, &paths, &standard, &mut case, &mut report.skipped)?;
    let ran: Vec<Path> = outputs.iter().map(|output| output.path).chain(case.rows.iter().map(|row| row.path)).collect();
    paths::require_ran(&arguments.output.named.path, &ran, &report.skipped)?;
    if let Some(to) = &arguments.out {
        let first = outputs.first().context("no path could run, so that nothing was written")?;
        tensors::write(to, inputs, &first.out, &first.state).context("--out")?;
    }
    Ok(case)
}

/// That `--out` does not name a file that is read: its tensors would be gone.
fn require_another_file(arguments: &CheckArguments) -> anyhow::Result<()> {
    let Some(Ok(out)) = arguments.out.as_ref().map(|out| out.canonicalize()) else { return Ok(()) };
    for file in &arguments.files {
        ensure!(
            !file.canonicalize().is_ok_and(|file| file == out),
            "--out {}: it is one of the files that are checked; name another one",
            out.display()
        );
    }
    Ok(())
}

/// Why a path is left out.
fn refusal(offer: &Offer, arguments: &CheckArguments, file: &tensors::File) -> Option<String> {
    let by_name = arguments.output.on.contains(&Backend::Emulator);
    match (&offer.unavailable, offer.path.backend()) {
        (Some(reason), _) => Some(reason.clone()),
        (None, Backend::Emulator) if !by_name => emulator_takes(&file.inputs.heads, file.inputs.tokens).err(),
        _ => None,
    }
}

fn with_bar(stored: &Stored) -> (&[f64], Bar) {
    let bar = match stored.precision {
        Precision::F64 => bars::SEQUENTIAL,
        // Whoever computed them did so in float32 as well, in whichever form.
        Precision::F32 => bars::GENERAL,
        Precision::F16 => bars::STORED_F16,
        Precision::Bf16 => bars::STORED_BF16,
    };
    (&stored.values, bar)
}
