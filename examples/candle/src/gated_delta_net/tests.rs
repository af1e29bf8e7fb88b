//! The layer against itself in float64, written out.
use super::*;
use crate::on_candle::{OnCandle, Prefill};
use candle_core::{DType, Device};
use host::cpu::Path;

const TOKENS: usize = 7;
const SIZE: usize = HEAD_DIM;

type Rows = Vec<Vec<f64>>;

fn rows(tensor: &Tensor) -> Rows {
    tensor.to_dtype(DType::F64).unwrap().to_vec2().unwrap()
}

fn numbers(tensor: &Tensor) -> Vec<f64> {
    tensor.to_dtype(DType::F64).unwrap().to_vec1().unwrap()
}

fn project(x: &[f64], projection: &Linear) -> Vec<f64> {
    let dot = |row: &Vec<f64>| row.iter().zip(x).map(|(weight, x)| weight * x).sum();
    rows(projection.weight()).iter().map(dot).collect()
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn unit(row: &[f64]) -> Vec<f64> {
    let length = (row.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
    row.iter().map(|x| x / length).collect()
}

/// Every token's output, from the start of a sequence.
fn naive(layer: &GatedDeltaNet, inputs: &Rows) -> Rows {
    let GatedDeltaNet { heads, convolution, a_log, dt_bias, norm, .. } = layer;
    let (convolution, a_log, dt_bias, norm) = (rows(convolution), numbers(a_log), numbers(dt_bias), numbers(norm));
    let (keys, values) = (heads.num_k_heads * SIZE, heads.num_v_heads);
    let mixed: Rows = inputs.iter().map(|x| project(x, &layer.qkv)).collect();
    let mut states = vec![vec![vec![0.0; SIZE]; SIZE]; values];
    let mut outputs = Vec::new();
    for (token, x) in inputs.iter().enumerate() {
        let convolved: Vec<f64> = (0..mixed[0].len())
            .map(|channel| {
                let seen = (0..CONVOLUTION).filter(|age| *age <= token);
                let sum: f64 =
                    seen.map(|age| convolution[CONVOLUTION - 1 - age][channel] * mixed[token - age][channel]).sum();
                sum * sigmoid(sum)
            })
            .collect();
        let (a, b, z) = (project(x, &layer.a), project(x, &layer.b), project(x, &layer.z));
        let mut gated = Vec::new();
        for (head, state) in states.iter_mut().enumerate() {
            let key_head = head * heads.num_k_heads / values;
            let q = unit(&convolved[key_head * SIZE..][..SIZE]);
            let k = unit(&convolved[keys + key_head * SIZE..][..SIZE]);
            let v = &convolved[2 * keys + head * SIZE..][..SIZE];
            let keep = (-a_log[head].exp() * (a[head] + dt_bias[head]).exp().ln_1p()).exp();
            let mut out = vec![0.0; SIZE];
            for column in 0..SIZE {
                let known: f64 = (0..SIZE).map(|row| keep * state[row][column] * k[row]).sum();
                let delta = sigmoid(b[head]) * (v[column] - known);
                for row in 0..SIZE {
                    state[row][column] = keep * state[row][column] + k[row] * delta;
                    out[column] += state[row][column] * q[row] / (SIZE as f64).sqrt();
                }
            }
            let mean = out.iter().map(|x| x * x).sum::<f64>() / SIZE as f64;
            gated.extend((0..SIZE).map(|column| {
                let gate = z[head * SIZE + column];
                out[column] / (mean + 1e-6).sqrt() * norm[column] * gate * sigmoid(gate)
            }));
        }
        outputs.push(project(&gated, &layer.out));
    }
    outputs
}

#[test]
fn it_is_what_is_written_in_float64() {
    let config = Config { value_heads: 4, key_heads: 2, ..Config::TINY };
    let mut weights = Weights::new(3, &Device::Cpu);
    let layer = GatedDeltaNet::new(&config, &mut weights).unwrap();
    let x = weights.normal(&[TOKENS, config.hidden], 0.0, 1.0).unwrap();
    let expected = naive(&layer, &rows(&x));
    let largest = expected.iter().flatten().fold(0.0, |largest: f64, x| largest.max(x.abs()));
    for (path, ends) in
        [(Path::Recurrent, vec![TOKENS]), (Path::Chunked, vec![TOKENS]), (Path::Recurrent, vec![2, 3, TOKENS])]
    {
        let mut recurrence = OnCandle::new(&layer.heads, 1, Prefill::Cpu(path), &Device::Cpu).unwrap();
        let (mut tail, mut start, mut found) = (layer.tail().unwrap(), 0, Vec::new());
        for &end in &ends {
            let piece = x.narrow(0, start, end - start).unwrap();
            found.extend(rows(&layer.forward(&piece, &mut tail, &mut recurrence, 0).unwrap()));
            start = end;
        }
        let pairs = expected.iter().flatten().zip(found.iter().flatten());
        let difference = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f64::max) / largest;
        assert!(difference < 2e-6, "{path:?} {ends:?}: {difference}");
    }
}
