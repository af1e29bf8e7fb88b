//! `host bench --varlen` and `--decode`: batches on the GPU, after their results have been compared.
#![forbid(unsafe_code)]
use super::super::paths::Machine;
use super::super::{Verdict, print, print_json};
use super::FAMILY;
use crate::cli::BenchArguments;
use anyhow::{Context, bail, ensure};
use host::cuda::{Gdn, Part, ResidentBatch};
use host::inputs::Inputs;
use host::{Heads, Kernel, Sequences};
use serde::Serialize;

/// Samples that are not counted.
const WARM_UP: usize = 3;

/// What a batch took.
#[derive(Debug, Serialize)]
struct Row {
    what: String,
    kernel: &'static str,
    sequences: usize,
    tokens: usize,
    shortest: usize,
    longest: usize,
    launches: usize,
    scratch_bytes: usize,
    /// Whether each sequence has the bits that it has alone.
    agreed: bool,
    /// Medians, in microseconds.
    microseconds: f64,
    nanoseconds_per_token: f64,
    /// One sequence of all the tokens, or a copy of all the states.
    other_microseconds: f64,
    /// Times a token in the long sequence; or the share of the copy's bandwidth.
    ratio: f64,
    /// States read and written each second, of a batch of single tokens.
    gigabytes_per_second: Option<f64>,
}

/// Runs the command.
///
/// # Errors
/// Without a GPU, or where a kernel cannot run.
pub fn run(arguments: &BenchArguments, heads: Heads) -> anyhow::Result<Verdict> {
    let machine = Machine::open();
    let Some(device) = machine.device() else { bail!("batches are measured on a GPU: {:?}", machine.gpu().err()) };
    let mut rows = Vec::new();
    if let Some(count) = arguments.varlen {
        for &tokens in &arguments.tokens {
            rows.push(varlen(device, arguments, heads, count as usize, tokens)?);
        }
    }
    for &batch in &arguments.decode {
        rows.push(decode(device, arguments, heads, batch as usize)?);
    }
    if arguments.json {
        print_json(&rows)?;
    } else {
        print(&rows.iter().map(text).collect::<String>())?;
    }
    Ok(if rows.iter().all(|row| row.agreed) { Verdict::Agreed } else { Verdict::Disagreed })
}

/// `count` lengths of at least one token and at most four times their mean, `tokens` in all, few long and many short ones.
fn lengths(count: usize, tokens: usize, seed: u64) -> Vec<usize> {
    let mut state = seed;
    let weights: Vec<f64> = (0..count)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((state >> 11) as f64 / (1u64 << 53) as f64).powi(3)
        })
        .collect();
    let sum: f64 = weights.iter().sum();
    let spread = tokens - count;
    let most = (4 * tokens).div_ceil(count);
    let length = |weight: &f64| (1 + (weight / sum * spread as f64) as usize).min(most);
    let mut lengths: Vec<usize> = weights.iter().map(length).collect();
    // What rounding and the limit have left.
    let mut rest = tokens.saturating_sub(lengths.iter().sum());
    for index in (0..count).cycle() {
        if rest == 0 {
            break;
        }
        if lengths[index] < most {
            lengths[index] += 1;
            rest -= 1;
        }
    }
    lengths
}

fn varlen(device: &Gdn, arguments: &BenchArguments, heads: Heads, count: usize, tokens: usize) -> anyhow::Result<Row> {
    ensure!(tokens >= count, "--varlen {count}: a sequence has at least one token, --tokens {tokens} are too few");
    let kernel = kernel(arguments)?;
    let lengths = lengths(count, tokens, arguments.seed);
    let mut cu_seqlens = vec![0u32];
    lengths.iter().for_each(|&length| cu_seqlens.push(cu_seqlens[cu_seqlens.len() - 1] + length as u32));
    let inputs = Inputs::seeded(heads, tokens, FAMILY, arguments.seed);
    let mut resident = device.resident_batch(&inputs, count)?;
    let batch = Part { first: [0, 0], sequences: Sequences::Varlen { cu_seqlens: &cu_seqlens } };
    let long = Part { first: [0, 0], sequences: Sequences::from(tokens) };
    let launch = resident.run(kernel, batch)?;
    let agreed = bits_alone(&mut resident, &inputs, &lengths, (kernel, kernel), batch)?;
    resident.run(kernel, long)?;
    let [microseconds, other] = medians(
        arguments,
        [&mut |resident| resident.time(kernel, batch), &mut |resident| resident.time(kernel, long)],
        &mut resident,
    )?;
    Ok(Row {
        what: "varlen".to_owned(),
        kernel: launch.kernel.name(),
        sequences: count,
        tokens,
        shortest: lengths.iter().copied().min().unwrap_or(0),
        longest: lengths.iter().copied().max().unwrap_or(0),
        launches: launch.launches,
        scratch_bytes: launch.scratch_bytes,
        agreed,
        microseconds,
        nanoseconds_per_token: microseconds * 1e3 / tokens as f64,
        other_microseconds: other,
        ratio: microseconds / other,
        gigabytes_per_second: None,
    })
}

fn decode(device: &Gdn, arguments: &BenchArguments, heads: Heads, batch: usize) -> anyhow::Result<Row> {
    let kernel = Kernel::Decode;
    let inputs = Inputs::seeded(heads, batch, FAMILY, arguments.seed);
    let mut resident = device.resident_batch(&inputs, batch)?;
    let all = Part { first: [0, 0], sequences: Sequences::Uniform { batch, tokens: 1 } };
    let launch = resident.run(kernel, all)?;
    let agreed = bits_alone(&mut resident, &inputs, &vec![1; batch], (kernel, Kernel::RecurrentByColumn), all)?;
    let (_, bytes) = resident.time_copy()?;
    let [microseconds, copy] = medians(
        arguments,
        [&mut |resident| resident.time(kernel, all), &mut |resident| Ok(resident.time_copy()?.0)],
        &mut resident,
    )?;
    Ok(Row {
        what: "decode".to_owned(),
        kernel: launch.kernel.name(),
        sequences: batch,
        tokens: batch,
        shortest: 1,
        longest: 1,
        launches: launch.launches,
        scratch_bytes: launch.scratch_bytes,
        agreed,
        microseconds,
        nanoseconds_per_token: microseconds * 1e3 / batch as f64,
        other_microseconds: copy,
        ratio: copy / microseconds,
        gigabytes_per_second: Some(bytes as f64 / microseconds / 1e3),
    })
}

/// The kernel that is named, or the chunked one on tensor cores.
fn kernel(arguments: &BenchArguments) -> anyhow::Result<Kernel> {
    match &arguments.named.path[..] {
        [] => Ok(Kernel::ChunkedTensor),
        [name] => {
            Kernel::ALL.into_iter().find(|kernel| kernel.name() == name).with_context(|| format!("--path {name}"))
        }
        _ => bail!("--varlen measures one path"),
    }
}

/// Whether every sequence of a batch by one kernel has the bits that the other gives it alone.
fn bits_alone(
    resident: &mut ResidentBatch,
    inputs: &Inputs,
    lengths: &[usize],
    (kernel, alone): (Kernel, Kernel),
    batch: Part<'_>,
) -> anyhow::Result<bool> {
    resident.run(kernel, batch)?;
    let mut out = vec![0.0; inputs.out_len(inputs.tokens)];
    resident.read_out(0, &mut out)?;
    let mut states = vec![vec![0.0; inputs.state_len()]; lengths.len()];
    for (slot, state) in states.iter_mut().enumerate() {
        resident.read_state(slot, state)?;
    }
    let same = |a: &[f32], b: &[f32]| a.iter().map(|x| x.to_bits()).eq(b.iter().map(|x| x.to_bits()));
    let (mut first, mut agreed) = (0, true);
    for (slot, &tokens) in lengths.iter().enumerate() {
        resident.run(alone, Part { first: [first, slot], sequences: Sequences::from(tokens) })?;
        let (mut own, mut state) = (vec![0.0; inputs.out_len(tokens)], vec![0.0; inputs.state_len()]);
        resident.read_out(first, &mut own)?;
        resident.read_state(slot, &mut state)?;
        let start = inputs.out_len(first);
        agreed &= same(&own, &out[start..start + own.len()]) && same(&state, &states[slot]);
        first += tokens;
    }
    Ok(agreed)
}

/// A sample of what is measured.
type Sample<'a> = &'a mut dyn FnMut(&mut ResidentBatch) -> host::Result<f64>;

/// The medians of two measurements in turn.
fn medians(
    arguments: &BenchArguments,
    mut of: [Sample<'_>; 2],
    resident: &mut ResidentBatch,
) -> anyhow::Result<[f64; 2]> {
    let mut samples = [Vec::new(), Vec::new()];
    for round in 0..WARM_UP + arguments.samples as usize {
        for (sample, samples) in of.iter_mut().zip(&mut samples) {
            let microseconds = sample(resident)?;
            if round >= WARM_UP {
                samples.push(microseconds);
            }
        }
    }
    Ok(samples.map(|mut samples| {
        samples.sort_by(f64::total_cmp);
        samples[samples.len() / 2]
    }))
}

fn text(row: &Row) -> String {
    let Row { what, kernel, sequences, tokens, shortest, longest, launches, microseconds, .. } = row;
    let agreed = if row.agreed { "bits as alone" } else { "OTHER BITS THAN ALONE" };
    let scratch = row.scratch_bytes >> 20;
    let head = format!(
        "{what} {kernel}: {sequences} sequences of {shortest}..{longest}, {tokens} tokens, {launches} launches, {scratch} MiB of scratch, {agreed}\n  {microseconds:.1} us, {:.1} ns a token",
        row.nanoseconds_per_token
    );
    match row.gigabytes_per_second {
        None => format!(
            "{head}; one sequence of {tokens}: {:.1} us; {:.3} times its time a token\n",
            row.other_microseconds, row.ratio
        ),
        Some(bandwidth) => format!(
            "{head}; states at {bandwidth:.0} GB/s, {:.1} % of a copy's ({:.1} us)\n",
            100.0 * row.ratio,
            row.other_microseconds
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::lengths;

    #[test]
    fn lengths_are_as_many_tokens_as_asked_for() {
        for (count, tokens) in [(1, 1), (3, 3), (64, 65_536), (7, 100)] {
            let lengths = lengths(count, tokens, 1);
            assert_eq!((lengths.len(), lengths.iter().sum()), (count, tokens));
            assert!(lengths.iter().all(|&length| length > 0));
        }
        assert!((2049..=4096).contains(lengths(64, 65_536, 1).iter().max().unwrap()));
    }
}
