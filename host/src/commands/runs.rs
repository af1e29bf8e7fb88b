//! Runs one set of inputs on several paths and compares each with what is expected and with another path.
#![forbid(unsafe_code)]
use std::time::Duration;

use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};

use super::paths::{Machine, Path};
use super::report::{Against, Requirement, Row, Skip};
use host::compare::{Bar, Tensor, bars, compare, first_bit_difference};
use host::inputs::Inputs;
use host::{Error, Kernel};

/// What the paths should give, as far as it is known: elements and the bar they are held to.
#[derive(Clone, Copy, Debug)]
pub struct Expectation<'a> {
    pub against: Against,
    pub out: Option<(&'a [f64], Bar)>,
    pub state: Option<(&'a [f64], Bar)>,
}

/// What a path gave.
pub struct Output {
    pub path: Path,
    pub out: Vec<f32>,
    pub state: Vec<f32>,
}

/// Runs calls on a machine and says on standard error how far it is.
pub struct Runner<'a> {
    pub machine: &'a Machine,
    /// Seed of the emulator's thread order.
    pub order: u64,
    pub progress: ProgressBar,
}

/// A bar on standard error that counts steps. It is not there when that is not a terminal.
pub fn progress(steps: usize) -> ProgressBar {
    let bar = ProgressBar::new(steps as u64);
    if let Ok(style) = ProgressStyle::with_template("[{elapsed}] {bar:40} {pos}/{len} {msg}") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(250));
    bar
}

impl Runner<'_> {
    /// The first `tokens` tokens of `inputs` on each of `paths`. Rows and skips go to the given lists; the outputs come
    /// back in order.
    ///
    /// # Errors
    /// If a path could not run, save for two cases: a kernel that refuses the problem is a skip, and a kernel that the
    /// emulator stops is a failed row.
    pub fn run(
        &self,
        inputs: &Inputs,
        tokens: usize,
        paths: &[Path],
        expected: Option<&Expectation<'_>>,
        rows: &mut Vec<Row>,
        skipped: &mut Vec<Skip>,
    ) -> anyhow::Result<Vec<Output>> {
        let mut outputs: Vec<Output> = Vec::new();
        for &path in paths {
            self.progress.set_message(format!("T = {tokens} {path}"));
            match self.run_one(inputs, tokens, path) {
                Ok(output) => {
                    rows.extend(expected.map(|expected| against_expected(inputs, tokens, &output, expected)));
                    rows.extend(partner(path, &outputs).map(|other| against_path(inputs, tokens, &output, other)));
                    outputs.push(output);
                }
                Err(Error::Refused { reason, .. }) => {
                    let (heads, reason) = ((&inputs.heads).into(), reason.to_string());
                    skipped.push(Skip { heads, path, tokens: vec![tokens], reason });
                }
                Err(error @ Error::Emulator { .. }) => {
                    let against = expected.map_or(Against::Float64, |expected| expected.against);
                    let row = row(tokens, path, against, Requirement::Bars { out: None, state: None });
                    rows.push(Row { fault: Some(error.to_string()), agreed: false, ..row });
                }
                Err(error) => return Err(error).with_context(|| format!("{path}, {tokens} tokens")),
            }
            self.progress.inc(1);
        }
        Ok(outputs)
    }

    fn run_one(&self, inputs: &Inputs, tokens: usize, path: Path) -> host::Result<Output> {
        // An element that is not written stays NaN, and NaN fails every bar.
        let (mut out, mut state) = (vec![f32::NAN; inputs.out_len(tokens)], vec![f32::NAN; inputs.state_len()]);
        self.machine.run(path, inputs.call_first(tokens, &mut out, &mut state), self.order)?;
        Ok(Output { path, out, state })
    }
}

/// What a path is compared with: the other kernel where the two promise the same bits, or else the first path that ran.
fn partner(path: Path, outputs: &[Output]) -> Option<&Output> {
    outputs.iter().find(|other| same_bits(path, other.path)).or(outputs.first())
}

/// The recurrent kernels add the same sums in the same order.
fn same_bits(a: Path, b: Path) -> bool {
    const SAME: [Option<Kernel>; 2] = [Some(Kernel::RecurrentByKeyHead), Some(Kernel::RecurrentByColumn)];
    a.backend() == b.backend() && SAME.contains(&a.kernel()) && SAME.contains(&b.kernel())
}

fn row(tokens: usize, path: Path, against: Against, requirement: Requirement) -> Row {
    Row { tokens, path, against, requirement, out: None, state: None, bit_difference: None, fault: None, agreed: true }
}

fn against_expected(inputs: &Inputs, tokens: usize, output: &Output, expected: &Expectation<'_>) -> Row {
    let heads = &inputs.heads;
    let out = expected.out.map(|(values, bar)| (compare(Tensor::Out, heads, values, &output.out), bar));
    let state = expected.state.map(|(values, bar)| (compare(Tensor::State, heads, values, &output.state), bar));
    let requirement = Requirement::Bars { out: out.map(|(_, bar)| bar), state: state.map(|(_, bar)| bar) };
    Row {
        out: out.map(|(tensor, _)| tensor),
        state: state.map(|(tensor, _)| tensor),
        agreed: out.iter().chain(&state).all(|(tensor, bar)| tensor.meets(bar)),
        ..row(tokens, output.path, expected.against, requirement)
    }
}

fn against_path(inputs: &Inputs, tokens: usize, output: &Output, other: &Output) -> Row {
    let heads = &inputs.heads;
    let out = compare(Tensor::Out, heads, &other.out, &output.out);
    let state = compare(Tensor::State, heads, &other.state, &output.state);
    let difference = first_bit_difference(Tensor::Out, heads, &other.out, &output.out)
        .or_else(|| first_bit_difference(Tensor::State, heads, &other.state, &output.state));
    // Two paths that both give NaN agree with each other; that must not pass for a result.
    let finite = output.out.iter().chain(&output.state).all(|value| value.is_finite());
    let bar = bars::SEQUENTIAL;
    let (requirement, agreed) = if same_bits(output.path, other.path) {
        (Requirement::Bits, difference.is_none())
    } else {
        (Requirement::Bars { out: Some(bar), state: Some(bar) }, out.meets(&bar) && state.meets(&bar))
    };
    Row {
        out: Some(out),
        state: Some(state),
        bit_difference: Some(difference),
        agreed: agreed && finite,
        ..row(tokens, output.path, Against::Path(other.path), requirement)
    }
}
