//! `host parity --reruns N`: the same inputs give the same bits every time, alone and beside other work on the device.
#![forbid(unsafe_code)]
use std::fmt::Write;

use anyhow::ensure;
use serde::Serialize;

use super::paths::{self, Machine, Path};
use super::{Verdict, print, print_json};
use crate::cli::{Backend, Families, ParityArguments};
use host::Heads;
use host::inputs::{Family, Inputs};

/// Lengths with ragged chunks, whole ones, and one past a segment of 2,048.
const LENGTHS: [usize; 7] = [130, 200, 512, 1000, 2048, 4099, 8192];

/// The longest of them that the CPU paths run unasked: they share no memory with anybody.
const LONGEST_ON_CPU: usize = 200;

#[derive(Debug, Serialize)]
struct Row {
    path: Path,
    tokens: usize,
    /// Reruns alone, outputs and scratch NaN before every other one, and how many of them differed.
    alone: u32,
    alone_differed: u32,
    /// The same beside other inputs on a second stream; none where the path has no streams.
    beside: u32,
    beside_differed: u32,
}

/// Runs the command.
///
/// # Errors
/// If a backend asked for cannot run, or nothing was run.
pub fn run(arguments: &ParityArguments, reruns: u32) -> anyhow::Result<Verdict> {
    let machine = Machine::open();
    let on = &arguments.output.on;
    let offers = paths::choose(&machine.offers(), on, &arguments.output.named.path)?;
    let heads = Heads::new(arguments.heads.keys, arguments.heads.values, arguments.map.into())?;
    let usual = arguments.tokens.is_empty();
    let lengths = if usual { LENGTHS.to_vec() } else { arguments.tokens.clone() };
    let family = Families::named_by(&arguments.gates).first().copied().unwrap_or_default();
    let mut rows = Vec::new();
    let (mut skipped, mut skips) = (Vec::new(), 0);
    for offer in &offers {
        let mut left_out: Vec<(String, Vec<String>)> = Vec::new();
        let mut leave_out = |reason: &str, tokens: usize| match left_out.iter_mut().find(|(known, _)| known == reason) {
            Some((_, lengths)) => lengths.push(tokens.to_string()),
            None => left_out.push((reason.to_owned(), vec![tokens.to_string()])),
        };
        for &tokens in &lengths {
            let backend = offer.path.backend();
            let unasked = usual && !on.contains(&backend);
            let slow = backend == Backend::Emulator || (backend == Backend::Cpu && tokens > LONGEST_ON_CPU);
            if let Some(reason) = &offer.unavailable {
                leave_out(reason, tokens);
            } else if unasked && slow {
                leave_out("slow, runs where it is asked for", tokens);
            } else {
                rows.push(rerun(&machine, offer.path, heads, tokens, family, arguments.seed, reruns)?);
            }
        }
        for (reason, lengths) in left_out {
            skips += lengths.len();
            skipped.push(format!("{}, T = {}: {reason}", offer.path, lengths.join(", ")));
        }
    }
    for name in &arguments.output.named.path {
        let ran = rows.iter().any(|row| row.path.is_named(name));
        ensure!(ran, "--path {name}: it did not run: {}", skipped.join("; "));
    }
    ensure!(!rows.is_empty(), "nothing was run: {}", skipped.join("; "));
    if arguments.output.json {
        print_json(&rows)?
    } else {
        print(&text(&rows, &skipped, skips))?
    }
    let differed = rows.iter().any(|row| row.alone_differed + row.beside_differed > 0);
    Ok(if differed { Verdict::Disagreed } else { Verdict::Agreed })
}

/// One path at one length.
fn rerun(
    machine: &Machine,
    path: Path,
    heads: Heads,
    tokens: usize,
    family: Family,
    seed: u64,
    reruns: u32,
) -> anyhow::Result<Row> {
    let inputs = Inputs::seeded(heads, tokens, family, seed);
    let mut row = Row { path, tokens, alone: reruns, alone_differed: 0, beside: 0, beside_differed: 0 };
    #[cfg(feature = "cuda")]
    if let (Path::Cuda(kernel), Some(device)) = (path, machine.device()) {
        let other = Inputs::seeded(heads, tokens, family, seed.wrapping_add(1));
        row.alone_differed = device.count_differing_reruns(&inputs, None, kernel, reruns)?;
        row.beside_differed = device.count_differing_reruns(&inputs, Some(&other), kernel, reruns)?;
        row.beside = reruns;
        return Ok(row);
    }
    let once = |order| -> anyhow::Result<(Vec<u32>, Vec<u32>)> {
        let (mut out, mut state) = (vec![f32::NAN; inputs.out_len(tokens)], vec![f32::NAN; inputs.state_len()]);
        machine.run(path, inputs.call_first(tokens, &mut out, &mut state), order)?;
        let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect();
        Ok((bits(out), bits(state)))
    };
    let first = once(seed)?;
    for turn in 0..reruns {
        if once(seed.wrapping_add(u64::from(turn)))? != first {
            row.alone_differed += 1;
        }
    }
    Ok(row)
}

fn text(rows: &[Row], skipped: &[String], skips: usize) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    for Row { path, tokens, alone, alone_differed, beside, beside_differed } in rows {
        let _ = writeln!(
            text,
            "{tokens:6}  {path:32}  {alone} reruns alone: {alone_differed} differed   {beside} beside a second stream: \
             {beside_differed} differed"
        );
    }
    if !skipped.is_empty() {
        let _ = writeln!(text, "\nNot run:");
        skipped.iter().for_each(|line| {
            let _ = writeln!(text, "  {line}");
        });
    }
    let differed: u32 = rows.iter().map(|row| row.alone_differed + row.beside_differed).sum();
    let runs: u32 = rows.iter().map(|row| row.alone + row.beside).sum();
    let _ = writeln!(text, "\n{runs} reruns, {differed} with other bits, {skips} cases skipped");
    text
}
