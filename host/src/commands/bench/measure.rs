//! The measurement: at each length the paths of a backend are compared, then timed in turn.
#![forbid(unsafe_code)]
use std::time::{Duration, Instant};

use anyhow::Context;
use indicatif::ProgressBar;

use super::super::paths::{Machine, Path};
use super::super::report::Skip;
use super::super::runs::Output;
use super::agreement::{Agreement, REFERENCE_TOKENS};
use super::bed::Bed;
use super::circumstances::{Clocks, clocks};
use super::report::Row;
use super::statistics::{Sample, Statistics, order};
use crate::cli::Backend;
use host::inputs::{Family, Inputs};
use host::reference::{Prefixes, reference_f64_at};
use host::{Error, Heads, Kernel};

/// The family of inputs that speeds are measured on.
pub const FAMILY: Family = Family::Bench;

/// Rounds before the first sample: until both have been reached, or the last time is up.
const WARM_UP_ROUNDS: usize = 3;
const WARM_UP: Duration = Duration::from_millis(200);
const MOST_WARM_UP: Duration = Duration::from_secs(1);

/// What the samples of one length may take. Where that is not enough for all of them there are fewer, but at least
/// [`LEAST_SAMPLES`].
const MOST_SAMPLING: Duration = Duration::from_secs(20);
const LEAST_SAMPLES: usize = 3;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Request {
    pub heads: Heads,
    /// At least one each.
    pub tokens: Vec<usize>,
    /// With how many of a GPU's multiprocessors; at least one number where there is a path on a GPU.
    pub multiprocessors: Vec<u32>,
    pub samples: usize,
    pub seed: u64,
    /// On the CPU or on a GPU that is there.
    pub paths: Vec<Path>,
}

/// What was found.
#[derive(Clone, Debug, Default)]
pub struct Found {
    pub rows: Vec<Row>,
    pub skipped: Vec<Skip>,
    /// Of the GPU, if it was measured.
    pub clocks: Option<Clocks>,
}

impl Request {
    /// The paths of each backend: paths of one are compared with each other, those of another are another measurement.
    /// The sequential path is the first, so that the others can be compared with it.
    pub fn groups(&self) -> Vec<(Backend, Vec<Path>)> {
        let mut groups: Vec<(Backend, Vec<Path>)> = Vec::new();
        for &path in &self.paths {
            match groups.iter_mut().find(|(backend, _)| *backend == path.backend()) {
                Some((_, paths)) => paths.push(path),
                None => groups.push((path.backend(), vec![path])),
            }
        }
        for (_, paths) in &mut groups {
            paths.sort_by_key(|path| path.kernel() != Some(Kernel::RecurrentByKeyHead));
        }
        groups
    }

    /// Lengths with a float64 reference: those that it is quick enough for, and every one for a path without another.
    fn reference_lengths(&self) -> Vec<usize> {
        let alone = self.groups().iter().any(|(_, paths)| paths.len() == 1);
        self.tokens.iter().map(|&tokens| if alone { tokens } else { tokens.min(REFERENCE_TOKENS) }).collect()
    }
}

/// Measures.
///
/// # Errors
/// If a path could not run. A kernel that refuses the problem is a skip.
pub fn measure(request: &Request, machine: &Machine, progress: &ProgressBar) -> anyhow::Result<Found> {
    let longest = request.tokens.iter().copied().max().context("no length to measure")?;
    progress.set_message("inputs");
    let inputs = Inputs::seeded(request.heads, longest, FAMILY, request.seed);
    progress.set_message("float64 reference");
    let reference = reference_f64_at(&inputs, &request.reference_lengths());
    let mut found = Found::default();
    for (backend, paths) in request.groups() {
        let bed = Bed::new(machine, backend, &inputs).with_context(|| format!("inputs of {longest} tokens"))?;
        let mut bench = Bench { request, inputs: &inputs, reference: &reference, bed, progress };
        for &tokens in &request.tokens {
            bench.length(&paths, tokens, &mut found).with_context(|| format!("{tokens} tokens"))?;
            progress.inc(1);
        }
        let last = found.rows.iter().rfind(|row| row.time.is_some() && row.path.backend() == backend);
        if let (Some(address), Some(row)) = (bench.bed.address(), last) {
            found.clocks = clocks(&address, || bench.bed.sample(row.path, row.tokens, None).map(drop))?;
        }
    }
    Ok(found)
}

/// A backend with its inputs in place.
struct Bench<'a> {
    request: &'a Request,
    inputs: &'a Inputs,
    reference: &'a Prefixes,
    bed: Bed<'a>,
    progress: &'a ProgressBar,
}

impl Bench<'_> {
    /// One length: every path is compared before the first is timed, and one that is wrong is not timed.
    fn length(&mut self, paths: &[Path], tokens: usize, found: &mut Found) -> anyhow::Result<()> {
        let agreements = self.compare(paths, tokens, &mut found.skipped)?;
        let right: Vec<Path> =
            agreements.iter().filter(|(_, agreement)| agreement.agreed).map(|&(path, _)| path).collect();
        for multiprocessors in self.multiprocessors(paths) {
            let samples = self.time(&right, tokens, multiprocessors)?;
            let samples_of = |path: Path| right.iter().position(|&other| other == path).map(|index| &samples[index]);
            let first = agreements.first().and_then(|&(first, _)| samples_of(first));
            let sequential = first.and_then(|samples| Statistics::of(samples));
            for (path, agreement) in &agreements {
                let samples = samples_of(*path).cloned().unwrap_or_default();
                let time = Statistics::of(&samples);
                found.rows.push(Row {
                    tokens,
                    path: *path,
                    multiprocessors,
                    agreement: agreement.clone(),
                    time,
                    nanoseconds_per_token: time.map(|time| time.median * 1e3 / tokens as f64),
                    times_sequential: time.zip(sequential).map(|(time, first)| first.median / time.median),
                    samples,
                });
            }
        }
        Ok(())
    }

    /// With how many multiprocessors these paths are measured.
    fn multiprocessors(&self, paths: &[Path]) -> Vec<Option<u32>> {
        match paths.first().map(|path| path.backend()) {
            Some(Backend::Cuda) => self.request.multiprocessors.iter().copied().map(Some).collect(),
            _ => vec![None],
        }
    }

    /// Who is right. Kernels that refuse the problem go to `skipped`.
    fn compare(
        &mut self,
        paths: &[Path],
        tokens: usize,
        skipped: &mut Vec<Skip>,
    ) -> anyhow::Result<Vec<(Path, Agreement)>> {
        let mut agreements = Vec::new();
        let mut sequential: Option<Output> = None;
        for &path in paths {
            self.progress.set_message(format!("T = {tokens} {path}"));
            let output = match self.bed.output(path, tokens) {
                Ok(output) => output,
                Err(Error::Refused { reason, .. }) => {
                    let (heads, reason) = ((&self.request.heads).into(), reason.to_string());
                    skipped.push(Skip { name: None, heads, path, tokens: vec![tokens], reason });
                    continue;
                }
                Err(error) => return Err(error).with_context(|| path.to_string()),
            };
            let bar = FAMILY.bar();
            let agreement = match &sequential {
                Some(other) if self.reference.at(tokens).is_none() => {
                    Agreement::with_path(self.inputs, tokens, other, &output, bar)
                }
                _ => Agreement::with_float64(self.inputs, self.reference, tokens, &output, bar),
            };
            agreements.push((path, agreement));
            sequential.get_or_insert(output);
        }
        Ok(agreements)
    }

    /// The samples of each path, taken in turn.
    fn time(
        &mut self,
        paths: &[Path],
        tokens: usize,
        multiprocessors: Option<u32>,
    ) -> anyhow::Result<Vec<Vec<Sample>>> {
        let mut samples = vec![Vec::new(); paths.len()];
        if paths.is_empty() {
            return Ok(samples);
        }
        self.progress.set_message(format!("T = {tokens}, times"));
        let rounds = self.warm_up(paths, tokens, multiprocessors)?;
        for round in 0..rounds {
            for (position, path) in order(round, paths.len()).into_iter().enumerate() {
                let microseconds =
                    self.bed.sample(paths[path], tokens, multiprocessors).with_context(|| paths[path].to_string())?;
                samples[path].push(Sample { round, position, microseconds });
            }
        }
        Ok(samples)
    }

    /// Runs rounds that are not counted; how many are worth their time then.
    fn warm_up(&mut self, paths: &[Path], tokens: usize, multiprocessors: Option<u32>) -> anyhow::Result<usize> {
        let started = Instant::now();
        let mut rounds = 0;
        while (rounds < WARM_UP_ROUNDS || started.elapsed() < WARM_UP) && started.elapsed() < MOST_WARM_UP {
            for &path in paths {
                self.bed.sample(path, tokens, multiprocessors).with_context(|| path.to_string())?;
            }
            rounds += 1;
        }
        let round = started.elapsed().as_secs_f64() / rounds as f64;
        let affordable = (MOST_SAMPLING.as_secs_f64() / round) as usize;
        Ok(affordable.max(LEAST_SAMPLES).min(self.request.samples))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::runs::progress;
    use host::HeadMap;
    use host::cpu;
    use host::inputs::Inputs;

    fn request(tokens: &[usize], paths: &[Path]) -> Request {
        let heads = Heads::new(1, 1, HeadMap::Grouped).unwrap();
        Request { heads, tokens: tokens.to_vec(), multiprocessors: vec![8], samples: 1, seed: 1, paths: paths.to_vec() }
    }

    #[test]
    fn one_sample_on_the_cpu() {
        let found =
            measure(&request(&[4, 1], &[Path::Cpu(cpu::Path::Recurrent)]), &Machine::open(), &progress(2)).unwrap();
        let [four, one] = &found.rows[..] else { panic!("{:?}", found.rows) };
        assert_eq!((four.tokens, one.tokens, four.path), (4, 1, Path::Cpu(cpu::Path::Recurrent)));
        assert!(four.agreement.agreed && four.agreement.state.is_some());
        assert_eq!((four.samples.len(), four.time.unwrap().samples), (1, 1));
        assert_eq!(four.multiprocessors, None, "it has none");
        assert_eq!(four.times_sequential, Some(1.0), "it is the sequential path itself");
        assert_eq!(four.nanoseconds_per_token, Some(four.samples[0].microseconds * 250.0));
    }

    #[test]
    fn a_wrong_path_has_no_time_and_nobody_is_measured_against_it() {
        let request = request(&[2], &[Path::Cpu(cpu::Path::Recurrent)]);
        let inputs = Inputs::seeded(request.heads, 2, FAMILY, 1);
        // The reference of other inputs: whatever runs is wrong.
        let reference = reference_f64_at(&Inputs::seeded(request.heads, 2, FAMILY, 2), &[2]);
        let bed = Bed::new(&Machine::open(), Backend::Cpu, &inputs).unwrap();
        let progress = progress(1);
        let mut bench = Bench { request: &request, inputs: &inputs, reference: &reference, bed, progress: &progress };
        let mut found = Found::default();
        bench.length(&[Path::Cpu(cpu::Path::Recurrent)], 2, &mut found).unwrap();
        let row = &found.rows[0];
        assert!(!row.agreement.agreed && row.samples.is_empty());
        assert_eq!((row.time, row.nanoseconds_per_token, row.times_sequential), (None, None, None));
    }

    #[test]
    fn the_sequential_path_comes_first_in_its_backend() {
        let (by_column, by_key_head) = (Path::Cuda(Kernel::RecurrentByColumn), Path::Cuda(Kernel::RecurrentByKeyHead));
        let groups = request(&[1], &[by_column, Path::Cpu(cpu::Path::Recurrent), by_key_head]).groups();
        assert_eq!(
            groups,
            [(Backend::Cuda, vec![by_key_head, by_column]), (Backend::Cpu, vec![Path::Cpu(cpu::Path::Recurrent)])]
        );
    }

    #[test]
    fn a_long_prompt_has_a_reference_where_nothing_else_vouches_for_a_path() {
        let two =
            request(&[32, 32_768], &[Path::Cuda(Kernel::RecurrentByColumn), Path::Cuda(Kernel::RecurrentByKeyHead)]);
        assert_eq!(two.reference_lengths(), [32, REFERENCE_TOKENS]);
        assert_eq!(request(&[32_768], &[Path::Cpu(cpu::Path::Recurrent)]).reference_lengths(), [32_768]);
    }
}
