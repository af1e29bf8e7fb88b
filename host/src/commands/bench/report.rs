//! What a measurement found, in the form that JSON reports have.
#![forbid(unsafe_code)]
use serde::Serialize;

use super::super::paths::{Gpu, Path};
use super::super::report::{HeadsReport, Skip};
use super::agreement::Agreement;
use super::circumstances::{Circumstances, Clocks};
use super::statistics::{Sample, Statistics};

/// One path at one length.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub tokens: usize,
    pub path: Path,
    /// How many of the GPU's multiprocessors were not held; null for a CPU.
    pub multiprocessors: Option<u32>,
    pub agreement: Agreement,
    /// Microseconds a call; null for a path whose result is wrong.
    pub time: Option<Statistics>,
    /// Of the median.
    pub nanoseconds_per_token: Option<f64>,
    /// The median of the sequential path of the same backend, length and multiprocessors over this one: above 1 is faster.
    pub times_sequential: Option<f64>,
    /// In raw.csv.
    #[serde(skip)]
    pub samples: Vec<Sample>,
}

/// Everything a measurement found.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub command: &'static str,
    pub version: &'static str,
    pub circumstances: Circumstances,
    pub seed: u64,
    /// Of inputs.
    pub family: String,
    pub heads: HeadsReport,
    pub gpu: Option<Gpu>,
    /// Why there is none.
    pub no_gpu: Option<String>,
    /// Null where nvidia-smi is not there, or no GPU was measured.
    pub clocks: Option<Clocks>,
    pub cpu_threads: usize,
    pub rows: Vec<Row>,
    pub skipped: Vec<Skip>,
    pub agreed: bool,
    pub seconds: f64,
}
