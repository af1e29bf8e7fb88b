//! What a command found, in the form that JSON reports have.
#![forbid(unsafe_code)]
use std::fmt;

use serde::Serialize;

use super::Verdict;
use super::paths::{Gpu, Machine, Offer, Path};
use host::compare::{Bar, Comparison, Place};
use host::{HeadMap, Heads};

/// Head counts and map, as reports write them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HeadsReport {
    pub key: usize,
    pub value: usize,
    pub map: &'static str,
}

impl From<&Heads> for HeadsReport {
    fn from(heads: &Heads) -> Self {
        let map = match heads.map {
            HeadMap::Grouped => "grouped",
            HeadMap::Tiled => "tiled",
        };
        Self { key: heads.num_k_heads, value: heads.num_v_heads, map }
    }
}

impl fmt::Display for HeadsReport {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{} heads, {}", self.key, self.value, self.map)
    }
}

/// What a path was compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Against {
    Float64,
    File,
    Path(Path),
}

impl fmt::Display for Against {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Float64 => formatter.write_str("float64"),
            Self::File => formatter.write_str("file"),
            Self::Path(path) => path.fmt(formatter),
        }
    }
}

impl Serialize for Against {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// What a comparison has to meet.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Requirement {
    /// Every bit of output and state.
    Bits,
    /// A bar for each tensor that is compared.
    Bars { out: Option<Bar>, state: Option<Bar> },
}

/// One comparison.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub tokens: usize,
    pub path: Path,
    pub against: Against,
    pub requirement: Requirement,
    pub out: Option<Comparison>,
    pub state: Option<Comparison>,
    /// Where two paths are compared: the first element whose bits differ, null if none does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bit_difference: Option<Option<Place>>,
    /// What the emulator found wrong with the kernel; nothing is compared then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
    pub agreed: bool,
}

/// The comparisons of one set of inputs.
#[derive(Clone, Debug, Serialize)]
pub struct Case {
    /// The family of inputs or the file.
    pub name: String,
    pub heads: HeadsReport,
    pub rows: Vec<Row>,
}

/// What was not run. A skipped check is not a passed one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Skip {
    /// The family or the file; where it is not there, every family of the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    pub heads: HeadsReport,
    pub path: Path,
    pub tokens: Vec<usize>,
    pub reason: String,
}

/// Everything a command found.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub command: &'static str,
    pub version: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    pub gpu: Option<Gpu>,
    /// Why there is none.
    pub no_gpu: Option<String>,
    pub paths: Vec<Offer>,
    pub cases: Vec<Case>,
    pub skipped: Vec<Skip>,
    pub compared: usize,
    pub disagreed: usize,
    /// Runs that were left out.
    pub skips: usize,
    pub agreed: bool,
    pub seconds: f64,
}

impl Report {
    pub fn new(command: &'static str, seed: Option<u64>, machine: &Machine, paths: Vec<Offer>) -> Self {
        let gpu = machine.gpu();
        Self {
            command,
            version: env!("CARGO_PKG_VERSION"),
            seed,
            no_gpu: gpu.as_ref().err().cloned(),
            gpu: gpu.ok(),
            paths,
            cases: Vec::new(),
            skipped: Vec::new(),
            compared: 0,
            disagreed: 0,
            skips: 0,
            agreed: true,
            seconds: 0.0,
        }
    }

    /// Counts. Call it once everything is in.
    pub fn finish(&mut self, seconds: f64) -> Verdict {
        let rows = || self.cases.iter().flat_map(|case| &case.rows);
        (self.compared, self.disagreed) = (rows().count(), rows().filter(|row| !row.agreed).count());
        self.skips = self.skipped.iter().map(|skip| skip.tokens.len()).sum();
        self.agreed = self.disagreed == 0;
        self.seconds = seconds;
        if self.agreed { Verdict::Agreed } else { Verdict::Disagreed }
    }
}
