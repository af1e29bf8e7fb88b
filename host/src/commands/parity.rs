//! `host parity`: every path of this machine against float64 and against each other, on seeded inputs.
#![forbid(unsafe_code)]
use std::time::Instant;

use anyhow::{bail, ensure};

use super::paths::{self, Machine, Path};
use super::report::{Against, Case, Report};
use super::runs::{Expectation, Runner, Standard, progress};
use super::schedule::{Request, Section, schedule};
use super::{Verdict, print, print_json, table};
use crate::cli::{Families, ParityArguments};
use host::Heads;
use host::inputs::{Family, Inputs};
use host::reference::reference_f64_at;

/// Memory that a run may take: above it the arguments are a mistake, and an allocation would abort.
const MOST_BYTES: u128 = 1 << 36;

/// Runs the command.
///
/// # Errors
/// If a backend asked for cannot run, or nothing was compared.
pub fn run(arguments: &ParityArguments) -> anyhow::Result<Verdict> {
    if let Some(reruns) = arguments.reruns {
        return super::reruns::run(arguments, reruns);
    }
    let started = Instant::now();
    let machine = Machine::open();
    let on = &arguments.output.on;
    let offers = paths::choose(&machine.offers(), on, &arguments.output.named.path)?;
    let heads = Heads::new(arguments.heads.keys, arguments.heads.values, arguments.map.into())?;
    let request = Request { heads, tokens: arguments.tokens.clone(), on: on.clone() };
    let sections = schedule(&request, &offers)?;
    sections.iter().try_for_each(require_memory)?;

    let families = Families::named_by(&arguments.gates);
    let mut report = Report::new("parity", Some(arguments.seed), &machine, offers);
    report.skipped = sections.iter().flat_map(|section| section.skipped.clone()).collect();
    let steps = families.len() * sections.iter().map(steps).sum::<usize>();
    let runner = Runner { machine: &machine, order: arguments.seed, progress: progress(steps) };
    for section in sections.iter().filter(|section| !section.lengths.is_empty()) {
        for &family in &families {
            let case = run_family(&runner, section, family, arguments.seed, &mut report)?;
            report.cases.push(case);
        }
    }
    runner.progress.finish_and_clear();

    let ran: Vec<Path> = report.cases.iter().flat_map(|case| &case.rows).map(|row| row.path).collect();
    paths::require_ran(&arguments.output.named.path, &ran, &report.skipped)?;
    let verdict = report.finish(started.elapsed().as_secs_f64());
    ensure!(report.compared > 0, "nothing was compared: every run was left out\n{}", table::text(&report));
    if arguments.output.json {
        print_json(&report)?
    } else {
        print(&table::text(&report))?
    }
    Ok(verdict)
}

/// The inputs, the reference, and each run.
fn steps(section: &Section) -> usize {
    2 + section.lengths.iter().map(|length| length.paths.len()).sum::<usize>()
}

fn run_family(
    runner: &Runner<'_>,
    section: &Section,
    family: Family,
    seed: u64,
    report: &mut Report,
) -> anyhow::Result<Case> {
    let mut case = Case { name: family.to_string(), heads: (&section.heads).into(), rows: Vec::new() };
    runner.progress.set_message(format!("inputs of {family}"));
    let longest = section.lengths.iter().map(|length| length.tokens).max().unwrap_or(0);
    let inputs = Inputs::seeded(section.heads, longest, family, seed);
    runner.progress.inc(1);
    runner.progress.set_message("float64 reference");
    let reference = reference_f64_at(&inputs, &section.reference_lengths());
    runner.progress.inc(1);
    for length in &section.lengths {
        let bar = family.bar();
        let expected = reference.at(length.tokens).map(|(out, state)| Expectation {
            against: Against::Float64,
            out: Some((out, bar)),
            state: Some((state, bar)),
        });
        let (chunked_out, chunked_state) = family.chunked_bars();
        let chunked = reference.at(length.tokens).map(|(out, state)| Expectation {
            against: Against::Float64,
            out: Some((out, chunked_out)),
            state: Some((state, chunked_state)),
        });
        let standard = Standard { expected, chunked, paths: bar };
        runner.run(&inputs, length.tokens, &length.paths, &standard, &mut case, &mut report.skipped)?;
    }
    Ok(case)
}

/// # Errors
/// If a length would take more memory than [`MOST_BYTES`].
fn require_memory(section: &Section) -> anyhow::Result<()> {
    let Heads { num_k_heads, num_v_heads, head_k_dim, head_v_dim, .. } = section.heads;
    for length in &section.lengths {
        let (keys, values) = ((num_k_heads * head_k_dim) as u128, (num_v_heads * head_v_dim) as u128);
        // Per token q, k, v, an output for each path and, where there is a reference, two float64 ones while it runs.
        let floats =
            2 * keys + values * (1 + length.paths.len() as u128) + if length.reference { 4 * values } else { 0 };
        let bytes = 4 * floats * length.tokens as u128;
        if bytes > MOST_BYTES {
            bail!(
                "--tokens {} at {num_k_heads}/{num_v_heads} heads would take {} GiB of memory, the limit is {} GiB",
                length.tokens,
                bytes >> 30,
                MOST_BYTES >> 30
            );
        }
    }
    Ok(())
}
