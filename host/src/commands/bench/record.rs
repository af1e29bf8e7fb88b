//! A record of a measurement: every sample, the summary for programs and for people, and a picture.
#![forbid(unsafe_code)]
use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::Context;
use comfy_table::presets;

use super::circumstances::UNKNOWN;
use super::report::{Report, Row};
use super::{plot, text};

/// Fewer samples are no record.
pub const LEAST_SAMPLES: usize = 30;

/// Writes raw.csv, summary.json, summary.md and time.svg into `folder`, which is made if it is not there. Each appears
/// whole or not at all.
///
/// # Errors
/// If the system refuses.
pub fn write(folder: &Path, report: &Report) -> anyhow::Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("--record: making {}", folder.display()))?;
    put(folder, "raw.csv", &csv(&report.rows))?;
    put(folder, "summary.json", &(serde_json::to_string_pretty(report)? + "\n"))?;
    put(folder, "summary.md", &markdown(report))?;
    if report.rows.iter().any(|row| row.time.is_some()) {
        let picture = plot::svg(&report.rows).map_err(|error| anyhow::anyhow!("drawing time.svg: {error}"))?;
        put(folder, "time.svg", &picture)?;
    }
    Ok(())
}

/// Writes beside the place and renames.
pub fn put(folder: &Path, name: &str, content: &str) -> anyhow::Result<()> {
    let beside = folder.join(format!("{name}.{}.partial", std::process::id()));
    let written = fs::write(&beside, content).and_then(|()| fs::rename(&beside, folder.join(name)));
    if written.is_err() {
        // It may not exist; the first error is the one to report.
        let _ = fs::remove_file(&beside);
    }
    written.with_context(|| format!("writing {}", folder.join(name).display()))
}

/// Every sample, a line each.
pub fn csv(rows: &[Row]) -> String {
    let mut csv = "path,tokens,multiprocessors,round,position,microseconds\n".to_owned();
    for row in rows {
        let multiprocessors = row.multiprocessors.map(|count| count.to_string()).unwrap_or_default();
        for sample in &row.samples {
            let _ = writeln!(
                csv,
                "{},{},{multiprocessors},{},{},{:.3}",
                row.path, row.tokens, sample.round, sample.position, sample.microseconds
            );
        }
    }
    csv
}

/// A line a sentence, as everywhere in Markdown here.
fn markdown(report: &Report) -> String {
    let mut text = String::new();
    let circumstances = &report.circumstances;
    let _ = writeln!(text, "# `host bench`, {}\n", circumstances.date);
    let gpu = match (&report.gpu, &report.no_gpu) {
        (Some(gpu), _) => gpu.to_string(),
        (None, reason) => format!("none ({})", reason.as_deref().unwrap_or(UNKNOWN)),
    };
    let clocks = report.clocks.as_ref().map_or_else(|| UNKNOWN.to_owned(), ToString::to_string);
    for (name, value) in [
        ("Command", format!("`{}`", circumstances.command)),
        ("Commit", circumstances.commit.clone()),
        ("GPU", gpu),
        ("Clocks", clocks),
        ("Processor", format!("{}, {} threads", circumstances.processor, report.cpu_threads)),
        ("Inputs", format!("{}, family {}, seed {}", report.heads, report.family, report.seed)),
    ] {
        let _ = writeln!(text, "- {name}: {value}");
    }
    let _ = writeln!(text, "\n{}\n\n{}", text::table(&report.rows, presets::ASCII_MARKDOWN), text::LEGEND);
    if !report.skipped.is_empty() {
        let _ = writeln!(text, "\n```text\n{}\n```", text::left_out(&report.skipped).trim());
    }
    text += "\n![Time and ratio against tokens](time.svg)\n";
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::bench::circumstances::Circumstances;
    use crate::commands::bench::measure::{FAMILY, Request, measure};
    use crate::commands::paths::{Machine, Path as Way};
    use crate::commands::runs::progress;
    use host::{HeadMap, Heads};

    fn report() -> Report {
        let heads = Heads::new(1, 1, HeadMap::Grouped).unwrap();
        let request = Request {
            heads,
            tokens: vec![2, 5],
            multiprocessors: Vec::new(),
            samples: 2,
            seed: 7,
            paths: vec![Way::Cpu(host::cpu::Path::Recurrent)],
        };
        let found = measure(&request, &Machine::open(), &progress(2)).unwrap();
        Report {
            command: "bench",
            version: "0",
            circumstances: Circumstances::here(),
            seed: 7,
            family: FAMILY.to_string(),
            heads: (&heads).into(),
            gpu: None,
            no_gpu: Some("no driver".to_owned()),
            clocks: None,
            cpu_threads: 1,
            rows: found.rows,
            skipped: found.skipped,
            agreed: true,
            seconds: 0.0,
        }
    }

    #[test]
    fn a_record_has_every_sample_and_leaves_nothing_else() {
        let report = report();
        let folder = std::env::temp_dir().join(format!("host-bench-record-{}", std::process::id()));
        write(&folder, &report).unwrap();
        let mut names: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["raw.csv", "summary.json", "summary.md", "time.svg"]);
        let read = |name| fs::read_to_string(folder.join(name)).unwrap();
        let [csv, json, markdown, picture] = ["raw.csv", "summary.json", "summary.md", "time.svg"].map(read);
        fs::remove_dir_all(&folder).unwrap();

        let lines: Vec<&str> = csv.lines().collect();
        assert_eq!(lines.len(), 1 + 2 * 2, "{csv}");
        assert_eq!(lines[0], "path,tokens,multiprocessors,round,position,microseconds");
        assert!(
            lines[1].starts_with("cpu recurrent,2,,0,0,") && lines[4].starts_with("cpu recurrent,5,,1,0,"),
            "{csv}"
        );

        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(json["rows"][1]["tokens"], 5);
        assert_eq!(json["rows"][1]["time"]["samples"], 2);
        assert_eq!(json["no_gpu"], "no driver");

        assert!(markdown.contains("- GPU: none (no driver)\n") && markdown.contains("family bench, seed 7\n"));
        let row = markdown.lines().find(|line| line.starts_with('|') && line.contains(" cpu recurrent ")).unwrap();
        assert_eq!(row.matches('|').count(), text::HEADER.len() + 1, "{row}");
        assert!(picture.starts_with("<svg") && picture.ends_with("</svg>\n"));
    }

    #[test]
    fn a_place_that_cannot_be_written_is_named() {
        let file = std::env::temp_dir().join(format!("host-bench-no-folder-{}", std::process::id()));
        fs::write(&file, "").unwrap();
        let error = write(&file, &report()).unwrap_err().to_string();
        fs::remove_file(&file).unwrap();
        assert!(error.contains("host-bench-no-folder"), "{error}");
    }
}
