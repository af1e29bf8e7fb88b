//! The model on paths of this machine: where a prompt is cut, which path it takes, what is reported.
use crate::altered::{Alteration, Altered};
use crate::config::Config;
use crate::e2e::{self, Request};
use crate::gated_delta_net::heads;
use crate::model::Model;
use crate::on_candle::{OnCandle, Prefill};
use crate::recurrence::Recurrence;
use candle_core::{Device, Result};
use host::cpu::Path;
use std::io::Write;

const CONFIG: Config = Config::TINY;
/// Enough for chunks of 32 and a rest.
const TOKENS: usize = 40;

fn prompt() -> Vec<u32> {
    (0..TOKENS).map(|place| (place * 17 % CONFIG.vocabulary) as u32).collect()
}

fn on_cpu(path: Path) -> Result<OnCandle> {
    OnCandle::new(&heads(&CONFIG)?, CONFIG.layers, Prefill::Cpu(path), &Device::Cpu)
}

/// The logits of the last token of the prompt, given in pieces up to these places.
fn logits(model: &Model, ends: &[usize], recurrence: &mut dyn Recurrence) -> Result<Vec<f32>> {
    let (mut cache, prompt) = (model.cache()?, prompt());
    recurrence.reset()?;
    let (mut start, mut last) = (0, Vec::new());
    for &end in ends {
        last = model.forward(&prompt[start..end], 1, &mut cache, recurrence)?.get(0)?.to_vec1()?;
        start = end;
    }
    Ok(last)
}

fn largest_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[test]
fn a_prompt_and_single_tokens_are_one_long_prompt() -> Result<()> {
    let model = Model::new(&CONFIG, 1, &Device::Cpu)?;
    let by_one: Vec<usize> = (33..=TOKENS).collect();
    for path in Path::ALL {
        let whole = logits(&model, &[TOKENS], &mut on_cpu(path)?)?;
        for ends in [&by_one[..], &[1, TOKENS], &[31, 34, TOKENS], &[TOKENS - 1, TOKENS]] {
            let pieces = logits(&model, ends, &mut on_cpu(path)?)?;
            let difference = largest_difference(&whole, &pieces);
            assert!(difference < 1e-5, "{path:?} {ends:?}: {difference}");
        }
        assert!(whole.iter().copied().fold(0.0, f32::max) > 0.1);
    }
    Ok(())
}

#[test]
fn a_new_sequence_knows_nothing_of_the_last() -> Result<()> {
    let model = Model::new(&CONFIG, 1, &Device::Cpu)?;
    let mut recurrence = on_cpu(Path::Recurrent)?;
    let first = logits(&model, &[TOKENS], &mut recurrence)?;
    assert_eq!(logits(&model, &[TOKENS], &mut recurrence)?, first);
    Ok(())
}

#[test]
fn another_order_of_sums_is_other_bits_and_little_else() -> Result<()> {
    let model = Model::new(&CONFIG, 1, &Device::Cpu)?;
    let by = |alteration| logits(&model, &[TOKENS], &mut Altered::new(on_cpu(Path::Recurrent)?, alteration));
    let plain = logits(&model, &[TOKENS], &mut on_cpu(Path::Recurrent)?)?;
    let (order, bf16) = (by(Alteration::order(&Device::Cpu)?)?, by(Alteration::Bf16)?);
    let (order, bf16) = (largest_difference(&plain, &order), largest_difference(&plain, &bf16));
    assert!(order > 0.0 && order < 1e-5, "{order}");
    assert!(bf16 > 1e-4, "{bf16}");
    Ok(())
}

#[test]
fn generation_goes_on_from_the_prompt() -> Result<()> {
    let model = Model::new(&CONFIG, 1, &Device::Cpu)?;
    let mut recurrence = on_cpu(Path::Chunked)?;
    let (mut cache, mut prompt) = (model.cache()?, prompt());
    recurrence.reset()?;
    let logits = model.forward(&prompt, TOKENS, &mut cache, &mut recurrence)?;
    let generated = model.generate(&logits, 4, &mut cache, &mut recurrence)?;
    // The same tokens one prompt after the other, each of the whole text so far.
    for &token in &generated {
        recurrence.reset()?;
        let logits = model.forward(&prompt, 1, &mut model.cache()?, &mut recurrence)?;
        assert_eq!(logits.get(0)?.argmax(0)?.to_scalar::<u32>()?, token);
        prompt.push(token);
    }
    Ok(())
}

#[test]
fn e2e_of_a_short_prompt_reports_agreement() -> Result<()> {
    // No driver is no error here: the report says so.
    let _ = libcuda_loader::load();
    let request =
        Request { config: CONFIG, seed: 1, device: Device::Cpu, tokens: vec![TOKENS], generated: 5, rounds: 1 };
    let report = e2e::run(&request)?;
    let text = report.to_string();
    if report.gpu.is_none() {
        assert!(std::env::var_os("GDN_REQUIRE_GPU").is_none_or(|value| value != "1"), "{text}");
        assert!(text.contains("Not run: cuda recurrent_by_key_head, "), "{text}");
        // Past the test harness, which captures what is printed: a skip has to be seen.
        let _ = writeln!(std::io::stderr(), "skipped: no device (1 case): e2e on the GPU");
    } else {
        assert!(report.skipped.is_empty(), "{text}");
        assert_eq!(report.sections.len(), 2, "{text}");
    }
    for row in report.sections.iter().flat_map(|section| &section.rows) {
        let difference = &row.difference;
        assert_eq!(difference.positions, TOKENS, "{text}");
        if row.path.contains("bf16") {
            assert!((1e-7..1e-2).contains(&difference.mean_divergence), "{text}");
        } else {
            assert!(difference.mean_divergence < 1e-8, "{text}");
            assert_eq!((difference.same_top, difference.same_generated), (TOKENS, 5), "{text}");
        }
        // Kernels that go token by token have each other's bits.
        if ["cuda recurrent_by_column", "cuda decode"].contains(&row.path.as_str()) {
            assert_eq!(difference.largest_divergence, 0.0, "{text}");
        }
    }
    let agreement = text.lines().find(|line| line.trim_start().starts_with("cpu chunked")).unwrap();
    assert!(agreement.contains("40/40") && agreement.contains("5/5"), "{text}");
    Ok(())
}
