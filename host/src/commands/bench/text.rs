//! A report as text for people.
#![forbid(unsafe_code)]
use std::fmt::Write;

use comfy_table::{CellAlignment, Table, TableStyle, presets};

use super::super::report::Skip;
use super::report::{Report, Row};
use super::statistics::Statistics;

pub const HEADER: [&str; 13] =
    ["T", "path", "SMs", "median", "min", "quartiles", "max", "ns/token", "ratio", "samples", "error", "against", ""];

/// What the columns are.
pub const LEGEND: &str = "Microseconds a call.\n\
     SMs: the GPU's multiprocessors that were not held by a waiting kernel.\n\
     Ratio: the median of the sequential path, the first of its backend, over this one.\n\
     Error: largest |difference| / largest |value| of the worst value head.";

/// The whole report.
pub fn text(report: &Report) -> String {
    let mut text = String::new();
    match (&report.gpu, &report.no_gpu) {
        (Some(gpu), _) => text += &format!("GPU: {gpu}\n"),
        (None, reason) => text += &format!("No GPU: {}\n", reason.as_deref().unwrap_or("none found")),
    }
    if let Some(clocks) = &report.clocks {
        let _ = writeln!(text, "Clocks: {clocks}");
    }
    let _ = writeln!(text, "CPU: {}, {} threads", report.circumstances.processor, report.cpu_threads);
    let _ = writeln!(
        text,
        "{}, family {}, seed {}\n\n{}\n\n{LEGEND}",
        report.heads,
        report.family,
        report.seed,
        table(&report.rows, presets::NOTHING)
    );
    text += &left_out(&report.skipped);
    let wrong = report.rows.iter().filter(|row| !row.agreement.agreed).count();
    let verdict = if report.agreed { "Agreed" } else { "DISAGREED" };
    let _ = writeln!(
        text,
        "\n{verdict}: {} compared and measured, {wrong} outside their bar and not measured, {:.1} s",
        report.rows.len() - wrong,
        report.seconds
    );
    text
}

/// The rows as a table of the given style.
pub fn table(rows: &[Row], style: TableStyle) -> String {
    let mut table = Table::new();
    table.load_style(style).set_header(HEADER);
    for row in rows {
        let of = |of: fn(&Statistics) -> f64| row.time.as_ref().map(|time| number(of(time))).unwrap_or_default();
        let quartiles =
            row.time.map(|time| format!("{} - {}", number(time.lower_quartile), number(time.upper_quartile)));
        table.add_row([
            row.tokens.to_string(),
            row.path.to_string(),
            row.multiprocessors.map(|count| count.to_string()).unwrap_or_default(),
            of(|time| time.median),
            of(|time| time.minimum),
            quartiles.unwrap_or_default(),
            of(|time| time.maximum),
            row.nanoseconds_per_token.map(number).unwrap_or_default(),
            row.times_sequential.map(|ratio| format!("{ratio:.2}")).unwrap_or_default(),
            row.samples.len().to_string(),
            format!("{:.1e}", row.agreement.relative()),
            row.agreement.against.to_string(),
            if row.agreement.agreed { "ok" } else { "FAILED" }.to_owned(),
        ]);
    }
    for column in [0, 2, 3, 4, 5, 6, 7, 8, 9, 10] {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.trim_fmt()
}

/// Four digits, or all before the point.
fn number(value: f64) -> String {
    let decimals = match value {
        1000.0.. => 0,
        100.0.. => 1,
        10.0.. => 2,
        _ => 3,
    };
    format!("{value:.decimals$}")
}

/// What was not run, by reason.
pub fn left_out(skipped: &[Skip]) -> String {
    let mut text = String::new();
    let mut reasons: Vec<&str> = Vec::new();
    for skip in skipped {
        if !reasons.contains(&skip.reason.as_str()) {
            reasons.push(&skip.reason);
        }
    }
    for reason in reasons {
        let _ = writeln!(text, "\nNot run: {reason}");
        for Skip { path, tokens, .. } in skipped.iter().filter(|skip| skip.reason == reason) {
            let tokens: Vec<String> = tokens.iter().map(ToString::to_string).collect();
            let _ = writeln!(text, "  {path}, T = {}", tokens.join(", "));
        }
    }
    text
}
