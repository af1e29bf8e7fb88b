//! What is said at the end, as text and as JSON.
#![forbid(unsafe_code)]
use super::{Difference, Pair, Request};
use crate::on_device::Gpu;
use comfy_table::{CellAlignment, Table, presets};
use host::Kernel;
use serde::Serialize;
use std::fmt;
use std::rc::Rc;

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
    /// Its time beside the base's.
    pub times: Pair,
}

/// A path that did not run.
#[derive(Clone, Debug, Serialize)]
pub struct Skip {
    /// Its name.
    pub path: String,
    /// Of the prompt; 0 for all.
    pub tokens: usize,
    /// Why not.
    pub reason: String,
}

impl Report {
    /// With nothing in it but what is there.
    pub(super) fn new(request: &Request, gpu: &host::Result<Rc<Gpu>>) -> Self {
        let config = &request.config;
        let attention = (0..config.layers).filter(|&layer| config.is_attention(layer)).count();
        let model = format!(
            "{} layers of Gated DeltaNet with {}/{} heads, {attention} of attention, hidden {}, vocabulary {}, f32, weights of \
             seed {}",
            config.layers - attention,
            config.key_heads,
            config.value_heads,
            config.hidden,
            config.vocabulary,
            request.seed
        );
        let skipped = gpu.as_ref().err().map_or_else(Vec::new, |error| {
            let skip =
                |kernel: Kernel| Skip { path: format!("cuda {}", kernel.name()), tokens: 0, reason: error.to_string() };
            Kernel::ALL.into_iter().map(skip).collect()
        });
        let gpu = gpu.as_ref().ok().map(|gpu| gpu.name().to_owned());
        Self { model, gpu, sections: Vec::new(), skipped }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(formatter, "Model: {}; candle on the CPU", self.model)?;
        writeln!(formatter, "GPU: {}", self.gpu.as_deref().unwrap_or("none"))?;
        for section in &self.sections {
            writeln!(formatter, "\n{} tokens, against {}\n{}", section.tokens, section.base, section.table())?;
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
            "KL mean",
            "KL max",
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
            let (other, base) = (&times.other, &times.base);
            table.add_row([
                path.clone(),
                format!("{:.1e}", difference.first_divergence),
                format!("{:.1e}", difference.mean_divergence),
                format!("{:.1e}", difference.largest_divergence),
                format!("{:.2}", difference.mean_divergence / noise),
                format!("{}/{}", difference.same_top, difference.positions),
                format!("{}/{}", difference.same_generated, difference.generated),
                format!("{:.3}", other.recurrence),
                format!("{:.3}", base.recurrence),
                format!("{:.2}", other.recurrence / base.recurrence),
                format!("{:.1}", other.prompt),
                format!("{:.1}", base.prompt),
                format!("{:.2}", other.prompt / base.prompt),
                times.samples.to_string(),
            ]);
        }
        for column in 1..14 {
            if let Some(column) = table.column_mut(column) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        table.trim_fmt()
    }
}
