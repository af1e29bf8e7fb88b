//! What another path of the recurrence changes about a whole model: its tokens, and its time.
#![forbid(unsafe_code)]
mod difference;
mod pairs;
mod report;

pub use difference::{Difference, Outcome};
pub use pairs::{Pair, Times};
pub use report::{Report, Row, Section, Skip};

use crate::altered::{Alteration, Altered};
use crate::config::Config;
use crate::gated_delta_net::heads;
use crate::model::{Cache, Model};
use crate::on_candle::{OnCandle, Prefill};
use crate::on_device::{Gpu, OnDevice};
use crate::recurrence::Recurrence;
use candle_core::{Device, Result, Tensor};
use host::{Heads, Kernel, cpu};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use rand_distr::{Distribution, Uniform};
use std::time::Instant;

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Request {
    /// The model.
    pub config: Config,
    /// Of its weights and of the prompts.
    pub seed: u64,
    /// Where candle's tensors are.
    pub device: Device,
    /// Lengths of prompts.
    pub tokens: Vec<usize>,
    /// Tokens to generate after each.
    pub generated: usize,
    /// Rounds of timing, at most.
    pub rounds: usize,
}

/// A path in a comparison.
#[derive(Debug)]
struct Arm {
    path: Box<dyn Recurrence>,
    is_timed: bool,
}

impl Arm {
    fn timed(path: impl Recurrence + 'static) -> Self {
        Self { path: Box::new(path), is_timed: true }
    }

    fn untimed(path: impl Recurrence + 'static) -> Self {
        Self { path: Box::new(path), is_timed: false }
    }
}

/// Paths that are compared with the first of them.
#[derive(Debug)]
struct Group {
    /// The first is what the others are compared with, the second the same in another order.
    arms: Vec<Arm>,
}

/// Runs every path of this machine.
///
/// # Errors
/// Whatever the device says. A path that does not run is none, but is in the report.
pub fn run(request: &Request) -> Result<Report> {
    let Request { config, device, .. } = request;
    let model = Model::new(config, request.seed, device)?;
    let heads = heads(config)?;
    let (gpu, mut groups) = groups(&heads, config, device)?;
    let mut report = Report::new(request, gpu);
    for &tokens in &request.tokens {
        let prompt = prompt(request, tokens);
        for group in &mut groups {
            let section = group.compare(&model, &prompt, request, &mut report.skipped)?;
            report.sections.extend(section);
        }
    }
    Ok(report)
}

/// What can be compared where candle's tensors are, and the GPU's name.
fn groups(heads: &Heads, config: &Config, device: &Device) -> Result<(host::Result<String>, Vec<Group>)> {
    #[cfg(feature = "cuda")]
    if device.is_cuda() {
        let gdn = host::cuda::Gdn::new(0).map_err(candle_core::Error::wrap)?;
        let path = |kernel| OnCandle::new(heads, config.layers, Prefill::Gpu(gdn.clone(), kernel), device);
        return Ok((Ok(gdn.facts().name.clone()), vec![Group::by_kernels(path, device)?]));
    }
    let path = |path| OnCandle::new(heads, config.layers, Prefill::Cpu(path), device);
    let mut on_cpu = Group::new(|| path(cpu::Path::Recurrent), device)?;
    on_cpu.arms.push(Arm::timed(path(cpu::Path::Chunked)?));
    let gpu = match Gpu::open() {
        Ok(gpu) => gpu,
        Err(error) => return Ok((Err(error), vec![on_cpu])),
    };
    let mut on_gpu = Group::by_kernels(|kernel| OnDevice::new(&gpu, heads, config.layers, kernel), device)?;
    on_gpu.arms.push(Arm::untimed(path(cpu::Path::Recurrent)?));
    Ok((Ok(gpu.name().to_owned()), vec![on_cpu, on_gpu]))
}

/// Tokens without any meaning.
fn prompt(request: &Request, tokens: usize) -> Vec<u32> {
    let mut generator = ChaCha8Rng::seed_from_u64(request.seed);
    generator.set_stream(1);
    let any = Uniform::new(0, request.config.vocabulary as u32).expect("a vocabulary");
    (0..tokens).map(|_| any.sample(&mut generator)).collect()
}

impl Group {
    /// A path and its alterations.
    fn new<R: Recurrence + 'static>(path: impl Fn() -> Result<R>, device: &Device) -> Result<Self> {
        Ok(Self {
            arms: vec![
                Arm::timed(path()?),
                Arm::timed(Altered::new(path()?, Alteration::order(device)?)),
                Arm::untimed(Altered::new(path()?, Alteration::Bf16)),
            ],
        })
    }

    /// The token-by-token kernel for one sequence, its alterations, and every other kernel.
    fn by_kernels<R: Recurrence + 'static>(path: impl Fn(Kernel) -> Result<R>, device: &Device) -> Result<Self> {
        let base = Kernel::RecurrentByKeyHead;
        let mut group = Self::new(|| path(base), device)?;
        for kernel in Kernel::ALL.into_iter().filter(|&kernel| kernel != base) {
            group.arms.push(Arm::timed(path(kernel)?));
        }
        Ok(group)
    }

    /// None where the first path does not run.
    fn compare(
        &mut self,
        model: &Model,
        prompt: &[u32],
        request: &Request,
        skipped: &mut Vec<Skip>,
    ) -> Result<Option<Section>> {
        let mut skip = |path: &dyn Recurrence, error: candle_core::Error| {
            let reason = error.to_string();
            skipped.push(Skip { paths: vec![path.name()], tokens: Some(prompt.len()), reason });
        };
        let Some((Arm { path: base, .. }, others)) = self.arms.split_first_mut() else {
            return Ok(None);
        };
        let expected = match outcome(model, prompt, request.generated, &mut **base) {
            Ok(outcome) => outcome,
            Err(error) => {
                skip(&**base, error);
                return Ok(None);
            }
        };
        let mut rows = Vec::new();
        for Arm { path, is_timed } in others {
            let found = match outcome(model, prompt, request.generated, &mut **path) {
                Ok(outcome) => outcome,
                Err(error) => {
                    skip(&**path, error);
                    continue;
                }
            };
            let mut sample = |is_other| {
                let turn = if is_other { &mut **path } else { &mut **base };
                Ok::<_, candle_core::Error>(prefill(model, prompt, 1, turn)?.2)
            };
            let times = is_timed.then(|| pairs::interleaved(request.rounds, &mut sample)).transpose()?;
            rows.push(Row { path: path.name(), difference: Difference::of(&expected, &found), times });
        }
        Ok(Some(Section { tokens: prompt.len(), base: base.name(), rows }))
    }
}

/// The logits after each token of the prompt, and the tokens that follow it.
fn outcome(model: &Model, prompt: &[u32], generated: usize, recurrence: &mut dyn Recurrence) -> Result<Outcome> {
    let (logits, mut cache, _) = prefill(model, prompt, prompt.len(), recurrence)?;
    let generated = model.generate(&logits, generated, &mut cache, recurrence)?;
    Ok(Outcome { logits: logits.to_vec2()?, generated })
}

/// A new sequence's prompt: the logits after its last `wanted` tokens.
fn prefill(
    model: &Model,
    prompt: &[u32],
    wanted: usize,
    recurrence: &mut dyn Recurrence,
) -> Result<(Tensor, Cache, Times)> {
    recurrence.reset()?;
    let mut cache = model.cache()?;
    let start = Instant::now();
    let logits = model.forward(prompt, wanted, &mut cache, recurrence)?;
    let prompt = start.elapsed();
    let milliseconds = |time: std::time::Duration| time.as_secs_f64() * 1e3;
    Ok((logits, cache, Times { recurrence: milliseconds(recurrence.elapsed()), prompt: milliseconds(prompt) }))
}
