//! `cargo xtask verify-ptx`: assembles every file for every architecture it serves and holds both, the PTX and what
//! the assembler makes of it, to the project's rules.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use cuda_std::kernel::EntryFacts;

use crate::ptx_audit;
use crate::ptx_text;
use crate::ptxas::{self, Usage};
use crate::sources;
use crate::targets::{TARGETS, Target};

#[derive(clap::Args)]
pub struct Arguments {
    /// NVIDIA's assembler; otherwise PTXAS, PATH, or .venv
    #[arg(long)]
    ptxas: Option<PathBuf>,
}

const COLUMNS: [&str; 9] =
    ["file", "arch", "entry", "registers", "shared", "stack", "spill st", "spill ld", "barriers"];

pub fn run(root: &Path, arguments: &Arguments) -> Result<()> {
    let ptxas = ptxas::find(root, arguments.ptxas.as_deref())?;
    let mut rows = vec![COLUMNS.map(str::to_owned)];
    let mut faults = Vec::new();
    for target in TARGETS {
        let file = target.path(root);
        let ptx = sources::read(&file).context("run `cargo xtask build-ptx`")?;
        let barriers = |facts: &EntryFacts| {
            let source = root.join("kernels-gpu/src/kernels").join(format!("{}.rs", facts.kernel));
            // A kernel whose source is elsewhere cannot match.
            std::fs::read_to_string(source).map_or(usize::MAX, |text| ptx_audit::barriers_in_source(&text))
        };
        let in_file = |fault: String| format!("{}: {fault}", target.file_name());
        faults.extend(ptx_audit::faults(&ptx, target, &barriers).into_iter().map(in_file));

        for architecture in target.assembled_for() {
            let (usages, complaints) = ptxas::assemble(&ptxas, &file, &architecture)?;
            let on_card = |fault: String| format!("{} for {architecture}: {fault}", target.file_name());
            faults.extend(complaints.into_iter().chain(usages.iter().filter_map(memory_fault)).map(on_card));
            rows.extend(table_rows(target, &architecture, &ptx, usages));
        }
    }
    print!("{}", aligned(&rows));
    if !faults.is_empty() {
        bail!("{} faults\n  {}", faults.len(), faults.join("\n  "));
    }
    println!("no faults");
    Ok(())
}

/// Registers that did not suffice, or an array that is not in registers: local memory in any case.
fn memory_fault(usage: &Usage) -> Option<String> {
    let Usage { entry, stack, spill_stores, spill_loads, .. } = usage;
    (stack + spill_stores + spill_loads > 0).then(|| {
        format!("{entry}: stack frame of {stack} bytes, spill stores of {spill_stores}, spill loads of {spill_loads}")
    })
}

/// One row an entry, in the table's order of kernels.
fn table_rows(target: Target, architecture: &str, ptx: &str, mut usages: Vec<Usage>) -> Vec<[String; 9]> {
    let (facts, entries) = (target.entries(), ptx_text::entries(ptx));
    let position = |usage: &Usage| facts.iter().position(|facts| facts.symbol == usage.entry);
    usages.sort_by_key(position);
    let row = |usage: &Usage| {
        let dynamic = position(usage).map_or(0, |position| facts[position].shared_bytes);
        let entry = entries.iter().find(|entry| entry.name == usage.entry);
        [
            target.file_name(),
            architecture.to_owned(),
            usage.entry.clone(),
            usage.registers.to_string(),
            (usage.shared + dynamic).to_string(),
            usage.stack.to_string(),
            usage.spill_stores.to_string(),
            usage.spill_loads.to_string(),
            entry.map_or(0, ptx_audit::barriers).to_string(),
        ]
    };
    usages.iter().map(row).collect()
}

/// Columns as wide as their widest cell: words to the left, numbers to the right.
fn aligned<const N: usize>(rows: &[[String; N]]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or_default();
    let widths: [usize; N] = std::array::from_fn(width);
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(widths).enumerate().map(|(column, (cell, width))| match column {
            0..=2 => format!("{cell:width$}"),
            _ => format!("{cell:>width$}"),
        });
        text += cells.collect::<Vec<_>>().join("  ").trim_end();
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spills_and_stack_frames_are_faults() {
        let usage = Usage { entry: "a".into(), registers: 255, ..Usage::default() };
        assert_eq!(memory_fault(&usage), None);
        assert!(memory_fault(&Usage { stack: 128, ..usage.clone() }).is_some());
        assert!(memory_fault(&Usage { spill_stores: 4, ..usage.clone() }).is_some());
        assert!(memory_fault(&Usage { spill_loads: 4, ..usage }).is_some());
    }

    #[test]
    fn columns_are_aligned() {
        let rows = [["a", "b", "c", "d"], ["long", "b", "c", "100"]].map(|row| row.map(str::to_owned));
        assert_eq!(aligned(&rows), "a     b  c    d\nlong  b  c  100\n");
    }
}
