//! Runs one set of inputs on several paths and compares each with what is expected and with another path.
#![forbid(unsafe_code)]
use std::time::Duration;

use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};

use super::paths::{Machine, Path};
use super::report::{Against, Case, Requirement, Row, Skip};
use host::Error;
use host::compare::{Bar, Tensor, compare, first_bit_difference};
use host::inputs::Inputs;

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

/// What one length is compared with.
#[derive(Clone, Copy, Debug)]
pub struct Standard<'a> {
    pub expected: Option<Expectation<'a>>,
    /// For paths that take many tokens at a time, where that is another.
    pub chunked: Option<Expectation<'a>>,
    /// For paths against each other.
    pub paths: Bar,
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
    /// The first `tokens` tokens of `inputs` on each of `paths`. Rows go to `case`, skips to `skipped`; the outputs
    /// come back in order.
    ///
    /// # Errors
    /// If a path could not run, save for two cases: a kernel that refuses the problem is a skip, and a kernel that the
    /// emulator stops is a failed row.
    pub fn run(
        &self,
        inputs: &Inputs,
        tokens: usize,
        paths: &[Path],
        standard: &Standard<'_>,
        case: &mut Case,
        skipped: &mut Vec<Skip>,
    ) -> anyhow::Result<Vec<Output>> {
        let Standard { expected, chunked, paths: bar } = standard;
        let mut outputs: Vec<Output> = Vec::new();
        for &path in paths {
            self.progress.set_message(format!("T = {tokens} {path}"));
            let expected = if path.is_chunked() { chunked.as_ref().or(expected.as_ref()) } else { expected.as_ref() };
            match self.run_one(inputs, tokens, path) {
                Ok(output) => {
                    let row = expected.map(|expected| against_expected(inputs, tokens, &output, expected));
                    let other = partner(path, &outputs);
                    case.rows.extend(row);
                    case.rows.extend(other.map(|other| against_path(inputs, tokens, &output, other, *bar)));
                    outputs.push(output);
                }
                Err(Error::Refused { reason, .. }) => {
                    let (name, heads) = (Some(case.name.clone()), case.heads.clone());
                    skipped.push(Skip { name, heads, path, tokens: vec![tokens], reason: reason.to_string() });
                }
                Err(error @ Error::Emulator { .. }) => {
                    let against = expected.map_or(Against::Float64, |expected| expected.against);
                    let row = row(tokens, path, against, Requirement::Bars { out: None, state: None });
                    case.rows.push(Row { fault: Some(error.to_string()), agreed: false, ..row });
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

/// Kernels that go token by token add the same sums in the same order.
fn same_bits(a: Path, b: Path) -> bool {
    let is_sequential = |path: Path| path.kernel().is_some_and(|kernel| !kernel.is_chunked());
    a.backend() == b.backend() && is_sequential(a) && is_sequential(b)
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

fn against_path(inputs: &Inputs, tokens: usize, output: &Output, other: &Output, bar: Bar) -> Row {
    let heads = &inputs.heads;
    let out = compare(Tensor::Out, heads, &other.out, &output.out);
    let state = compare(Tensor::State, heads, &other.state, &output.state);
    let difference = first_bit_difference(Tensor::Out, heads, &other.out, &output.out)
        .or_else(|| first_bit_difference(Tensor::State, heads, &other.state, &output.state));
    // Two paths that both give NaN agree with each other; that must not pass for a result.
    let finite = output.out.iter().chain(&output.state).all(|value| value.is_finite());
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

#[cfg(test)]
mod tests {
    use super::*;
    use host::Kernel;
    use host::compare::bars;
    use host::cpu;
    use host::inputs::Family;
    use host::{HeadMap, Heads};

    const BY_KEY_HEAD: Path = Path::Emulator(Kernel::RecurrentByKeyHead);
    const BY_COLUMN: Path = Path::Emulator(Kernel::RecurrentByColumn);

    fn inputs() -> Inputs {
        Inputs::seeded(Heads::new(1, 1, HeadMap::Grouped).unwrap(), 2, Family::Bench, 1)
    }

    fn output(path: Path, value: f32) -> Output {
        Output { path, out: vec![value; 2 * 128], state: vec![value; 128 * 128] }
    }

    #[test]
    fn one_bit_fails_where_bits_are_asked_for_and_only_there() {
        let mut other = output(BY_COLUMN, 1.0);
        other.state[129] = 1.0_f32.next_up();
        let row = against_path(&inputs(), 2, &other, &output(BY_KEY_HEAD, 1.0), bars::SEQUENTIAL);
        assert_eq!(row.requirement, Requirement::Bits);
        assert_eq!(row.bit_difference.unwrap().unwrap().to_string(), "state[0, 1, 1]");
        assert!(!row.agreed);
        let row = against_path(&inputs(), 2, &other, &output(Path::Cpu(cpu::Path::Recurrent), 1.0), bars::SEQUENTIAL);
        assert!(row.agreed && row.bit_difference.unwrap().is_some());
    }

    #[test]
    fn two_paths_that_give_nan_do_not_agree() {
        let nan = |path| output(path, f32::NAN);
        for other in [BY_KEY_HEAD, Path::Cpu(cpu::Path::Recurrent)] {
            assert!(!against_path(&inputs(), 2, &nan(BY_COLUMN), &nan(other), bars::SEQUENTIAL).agreed);
        }
    }

    #[test]
    fn chunked_paths_have_an_expectation_of_their_own() {
        let (inputs, paths) = (inputs(), cpu::Path::ALL.map(Path::Cpu));
        let reference = host::reference::reference_f64(&inputs);
        let of = |bar| Expectation { against: Against::Float64, out: Some((&reference.out, bar)), state: None };
        let unreachable = Bar { relative: 0.0, derivation: "nothing rounds to so much" };
        let runner = Runner { machine: &Machine::open(), order: 1, progress: progress(2) };
        let agreed = |chunked| {
            let standard = Standard { expected: Some(of(bars::SEQUENTIAL)), chunked, paths: bars::SEQUENTIAL };
            let mut case = Case { name: String::new(), heads: (&inputs.heads).into(), rows: Vec::new() };
            runner.run(&inputs, 2, &paths, &standard, &mut case, &mut Vec::new()).unwrap();
            let rows = case.rows.into_iter().filter(|row| row.against == Against::Float64);
            rows.map(|row| (row.path, row.agreed)).collect::<Vec<_>>()
        };
        assert_eq!(agreed(None), [(paths[0], true), (paths[1], true)]);
        assert_eq!(agreed(Some(of(unreachable))), [(paths[0], true), (paths[1], false)]);
    }

    #[test]
    fn only_what_is_known_is_compared() {
        let state = vec![1.0_f64; 128 * 128];
        let expected = Expectation { against: Against::File, out: None, state: Some((&state, bars::SEQUENTIAL)) };
        let mut result = output(Path::Cpu(cpu::Path::Recurrent), 1.0);
        result.out.fill(7.0);
        let row = against_expected(&inputs(), 2, &result, &expected);
        assert!(row.agreed && row.out.is_none() && row.state.is_some());
        result.state[0] = f32::NAN;
        assert!(!against_expected(&inputs(), 2, &result, &expected).agreed);
    }

    #[test]
    fn the_other_kernel_of_the_same_backend_is_the_partner() {
        let outputs = [output(Path::Cpu(cpu::Path::Recurrent), 0.0), output(BY_KEY_HEAD, 0.0)];
        assert_eq!(partner(BY_COLUMN, &outputs).unwrap().path, BY_KEY_HEAD);
        assert_eq!(partner(BY_KEY_HEAD, &outputs[..1]).unwrap().path, Path::Cpu(cpu::Path::Recurrent));
        assert!(partner(Path::Cpu(cpu::Path::Recurrent), &[]).is_none());
    }
}
