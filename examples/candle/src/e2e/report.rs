//! What is said at the end, as text and as JSON.
#![forbid(unsafe_code)]
use super::{Difference, Pair, Request};
use comfy_table::{CellAlignment, Table, presets};
use host::Kernel;
use serde::Serialize;
use std::fmt;

/// Everything.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// What the model is.
    pub model: String,
    /// The GPU, if one was used.
    pub gpu: Option<String>,
    /// One for each prompt and place.
    pub sections: Vec<Section>,
    /// What did not run.
    pub skipped: Vec<Skip>,
}

/// One prompt, and paths against one of them.
#[derive(Clone, Debug, Serialize)]
pub struct Section {
    /// Of the prompt.
    pub tokens: usize,
    /// What the others are compared with.
    pub base: String,
    /// Of the others. The first is the same path in another order.
    pub rows: Vec<Row>,
}

/// One path.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Its name.
    pub path: String,
    /// How far it is from the base.
    pub difference: Difference,
    /// Its time beside the base's, where that means anything.
    pub times: Option<Pair>,
}

/// Paths that did not run.
#[derive(Clone, Debug, Serialize)]
pub struct Skip {
    /// Their names.
    pub paths: Vec<String>,
    /// Of the prompt; none for every prompt.
    pub tokens: Option<usize>,
    /// Why not.
    pub reason: String,
}

impl Report {
    /// With nothing in it but what is there.
    pub(super) fn new(request: &Request, gpu: host::Result<String>) -> Self {
        let config = &request.config;
        let attention = (0..config.layers).filter(|&layer| config.is_attention(layer)).count();
        let model = format!(
            "{} layers of Gated DeltaNet with {}/{} heads, {attention} of attention, hidden {}, vocabulary {}, f32, weights of \
             seed {}; candle on the {}",
            config.layers - attention,
            config.key_heads,
            config.value_heads,
            config.hidden,
            config.vocabulary,
            request.seed,
            if request.device.is_cpu() { "CPU" } else { "GPU" }
        );
        let skipped = gpu.as_ref().err().map(|error| Skip {
            paths: Kernel::ALL.map(|kernel| format!("cuda {}", kernel.name())).to_vec(),
            tokens: None,
            reason: error.to_string(),
        });
        let skipped = skipped.into_iter().collect();
        Self { model, gpu: gpu.ok(), sections: Vec::new(), skipped }
    }
}

/// What the columns are.
const LEGEND: &str = "\
KL: divergence of the logits from the base's in nats, of the first generated token, mean and largest over the prompt's
positions; of noise: the mean, in means of the same path in another order. top-1: positions with the same most likely token.
greedy: generated tokens up to the first that differs. Times in ms, medians of prompts taken in turn in both orders:
recurrence: its calls, those of a GPU without the copies to it and back; prompt: all of it, copies included.
";

impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(formatter, "Model: {}", self.model)?;
        writeln!(formatter, "GPU: {}", self.gpu.as_deref().unwrap_or("none"))?;
        for section in &self.sections {
            writeln!(formatter, "\n{} tokens, against {}\n{}", section.tokens, section.base, section.table())?;
        }
        write!(formatter, "\n{LEGEND}")?;
        for Skip { paths, tokens, reason } in &self.skipped {
            let tokens = tokens.map(|tokens| format!(" at {tokens} tokens")).unwrap_or_default();
            writeln!(formatter, "Not run{tokens}: {}: {reason}", paths.join(", "))?;
        }
        Ok(())
    }
}

impl Section {
    fn table(&self) -> String {
        let mut table = Table::new();
        table.load_style(presets::NOTHING).set_header([
            "path",
            "KL first",
            "mean",
            "largest",
            "of noise",
            "top-1",
            "greedy",
            "recurrence",
            "base",
            "ratio",
            "prompt",
            "base",
            "ratio",
            "samples",
        ]);
        let noise = self.rows.first().map_or(0.0, |row| row.difference.mean_divergence);
        for Row { path, difference, times } in &self.rows {
            let mut cells = vec![
                path.clone(),
                short(difference.first_divergence),
                short(difference.mean_divergence),
                short(difference.largest_divergence),
                short(difference.mean_divergence / noise),
                format!("{}/{}", difference.same_top, difference.positions),
                format!("{}/{}", difference.same_generated, difference.generated),
            ];
            if let Some(Pair { base, other, samples }) = times {
                cells.extend([
                    format!("{:.3}", other.recurrence),
                    format!("{:.3}", base.recurrence),
                    format!("{:.2}", other.recurrence / base.recurrence),
                    format!("{:.1}", other.prompt),
                    format!("{:.1}", base.prompt),
                    format!("{:.2}", other.prompt / base.prompt),
                    samples.to_string(),
                ]);
            }
            table.add_row(cells);
        }
        for column in 1..14 {
            if let Some(column) = table.column_mut(column) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        table.trim_fmt()
    }
}

/// Two digits, whatever its size.
fn short(value: f64) -> String {
    match value {
        0.0 => "0".to_owned(),
        _ if (0.1..100.0).contains(&value) => format!("{value:.1}"),
        _ => format!("{value:.1e}"),
    }
}
