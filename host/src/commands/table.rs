//! A report as text for people.
#![forbid(unsafe_code)]
use std::fmt::Write;

use comfy_table::{CellAlignment, Table, presets};

use super::report::{Report, Requirement, Row, Skip};
use host::compare::{Comparison, Place};

/// The whole report.
pub fn text(report: &Report) -> String {
    let mut text = String::new();
    match (&report.gpu, &report.no_gpu) {
        (Some(gpu), _) => text += &format!("GPU: {gpu}\n"),
        (None, reason) => text += &format!("No GPU: {}\n", reason.as_deref().unwrap_or("none found")),
    }
    for case in &report.cases {
        text += &format!("\n{}, {}\n{}\n", case.name, case.heads, table(&case.rows));
    }
    text += "\nErrors are largest |difference| / largest |value|, of the whole tensor and of the worst value head by \
             itself.\nWorst element: out[token, head, column] or state[head, row, column].\n";
    for row in report.cases.iter().flat_map(|case| &case.rows) {
        if let Some(fault) = &row.fault {
            let _ = writeln!(text, "{} at {} tokens: {fault}", row.path, row.tokens);
        }
    }
    text += &left_out(&report.skipped);
    let verdict = if report.agreed { "Agreed" } else { "DISAGREED" };
    let _ = writeln!(
        text,
        "\n{verdict}: {} comparisons, {} outside their bar, {} runs skipped, {:.1} s",
        report.compared, report.disagreed, report.skips, report.seconds
    );
    text
}

/// More inputs than these are only counted, where one reason left them out.
const MOST_LINES: usize = 4;

/// What was left out, by reason.
fn left_out(skipped: &[Skip]) -> String {
    let mut text = String::new();
    let mut reasons = Vec::new();
    skipped.iter().for_each(|skip| push_new(&mut reasons, &skip.reason));
    for reason in reasons {
        let (mut runs, mut paths, mut inputs) = (0, Vec::new(), Vec::new());
        for Skip { name, heads, path, tokens, .. } in skipped.iter().filter(|skip| skip.reason == *reason) {
            runs += tokens.len();
            let name = name.as_ref().map_or_else(String::new, |name| format!("{name}, "));
            push_new(&mut inputs, format!("{name}{heads}, T = {}", list(tokens)));
            push_new(&mut paths, path.to_string());
        }
        let _ = writeln!(text, "\nNot run ({runs}): {reason}\n  {}", list(&paths));
        if inputs.len() <= MOST_LINES {
            inputs.iter().for_each(|inputs| text += &format!("  {inputs}\n"));
        }
    }
    text
}

fn push_new<T: PartialEq>(items: &mut Vec<T>, item: T) {
    if !items.contains(&item) {
        items.push(item);
    }
}

fn list(items: &[impl ToString]) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn table(rows: &[Row]) -> String {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_header(["T", "path", "against", "out", "by head", "state", "by head", "worst", "bar", ""]);
    for row in rows {
        let bar = match row.requirement {
            Requirement::Bits => "bits".to_owned(),
            Requirement::Bars { out, state } => {
                let bars = out.into_iter().chain(state).map(|bar| bar.relative);
                bars.reduce(f64::min).map_or_else(String::new, ratio)
            }
        };
        table.add_row([
            row.tokens.to_string(),
            row.path.to_string(),
            row.against.to_string(),
            measure(row.out.as_ref(), |tensor| tensor.relative),
            measure(row.out.as_ref(), |tensor| tensor.relative_by_head),
            measure(row.state.as_ref(), |tensor| tensor.relative),
            measure(row.state.as_ref(), |tensor| tensor.relative_by_head),
            worst(row).map(|place| place.to_string()).unwrap_or_default(),
            bar,
            if row.agreed { "ok" } else { "FAILED" }.to_owned(),
        ]);
    }
    for column in [0, 3, 4, 5, 6] {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.trim_fmt()
}

/// The worst element of whichever tensor is worse; where bits are asked for, the first that differs.
fn worst(row: &Row) -> Option<Place> {
    if let (Requirement::Bits, Some(Some(place))) = (row.requirement, row.bit_difference) {
        return Some(place);
    }
    let tensors = [row.out.as_ref(), row.state.as_ref()].into_iter().flatten();
    let wrong = tensors.filter(|tensor| tensor.not_finite > 0 || tensor.relative_by_head > 0.0);
    let worse = |a: &&Comparison, b: &&Comparison| {
        a.not_finite.cmp(&b.not_finite).then(a.relative_by_head.total_cmp(&b.relative_by_head))
    };
    wrong.max_by(worse)?.worst
}

fn measure(tensor: Option<&Comparison>, of: fn(&Comparison) -> f64) -> String {
    match tensor {
        None => String::new(),
        Some(tensor) if tensor.not_finite > 0 => format!("{} not finite", tensor.not_finite),
        Some(tensor) => ratio(of(tensor)),
    }
}

fn ratio(value: f64) -> String {
    if value == 0.0 { "0".to_owned() } else { format!("{value:.1e}") }
}
