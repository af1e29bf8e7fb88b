//! Files good and bad. Each bad one has to say which tensor it is about.
#![forbid(unsafe_code)]
use std::collections::HashMap;
use std::path::Path;

use half::{bf16, f16};
use safetensors::Dtype;
use safetensors::tensor::TensorView;

use super::super::{File, Precision, read, write};
use super::parse;
use host::inputs::{Family, Inputs};
use host::{HeadMap, Heads};

/// A tensor to be written: name, type, shape, bytes.
type Raw = (&'static str, Dtype, Vec<usize>, Vec<u8>);

fn inputs() -> Inputs {
    Inputs::seeded(Heads::new(1, 2, HeadMap::Tiled).unwrap(), 3, Family::Bench, 1)
}

fn raw(inputs: &Inputs, dtype: Dtype) -> Vec<Raw> {
    let bytes = |values: &[f32]| -> Vec<u8> {
        let bytes = |&value: &f32| match dtype {
            Dtype::F32 => value.to_le_bytes().to_vec(),
            Dtype::BF16 => bf16::from_f32(value).to_le_bytes().to_vec(),
            Dtype::F16 => f16::from_f32(value).to_le_bytes().to_vec(),
            _ => f64::from(value).to_le_bytes().to_vec(),
        };
        values.iter().flat_map(bytes).collect()
    };
    vec![
        ("q", dtype, vec![3, 1, 128], bytes(&inputs.q)),
        ("k", dtype, vec![3, 1, 128], bytes(&inputs.k)),
        ("v", dtype, vec![3, 2, 128], bytes(&inputs.v)),
        ("g", dtype, vec![3, 2], bytes(&inputs.g)),
        ("beta", dtype, vec![3, 2], bytes(&inputs.beta)),
        ("state", dtype, vec![2, 128, 128], bytes(&inputs.state)),
    ]
}

fn file_of(tensors: &[Raw], metadata: &[(&str, &str)]) -> Vec<u8> {
    let views = tensors
        .iter()
        .map(|(name, dtype, shape, bytes)| (*name, TensorView::new(*dtype, shape.clone(), bytes).unwrap()));
    let metadata: HashMap<String, String> =
        metadata.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect();
    safetensors::serialize(views, Some(metadata)).unwrap()
}

fn message(bytes: &[u8]) -> String {
    parse(bytes).unwrap_err().to_string()
}

#[test]
fn float32_comes_back_bit_for_bit() {
    let bytes = file_of(&raw(&inputs(), Dtype::F32), &[("head_map", "tiled"), ("note", "three tokens")]);
    assert_eq!(parse(&bytes).unwrap(), File { inputs: inputs(), out: None, state_out: None });
}

#[test]
fn sixteen_bits_are_widened() {
    let all = |values: &[f32], round: fn(f32) -> f32| values.iter().map(|&value| round(value)).collect::<Vec<_>>();
    let to_bf16: fn(f32) -> f32 = |value| bf16::from_f32(value).to_f32();
    let to_f16: fn(f32) -> f32 = |value| f16::from_f32(value).to_f32();
    for (dtype, round) in [(Dtype::BF16, to_bf16), (Dtype::F16, to_f16)] {
        let read = parse(&file_of(&raw(&inputs(), dtype), &[])).unwrap().inputs;
        assert_eq!(read.v, all(&inputs().v, round));
        assert_eq!(read.g, all(&inputs().g, round));
        assert_eq!(read.heads.map, HeadMap::Grouped);
    }
}

#[test]
fn state_batch_axis_and_scale_are_optional() {
    let mut tensors = raw(&inputs(), Dtype::F32);
    tensors.pop();
    for (_, _, shape, _) in &mut tensors {
        shape.insert(0, 1);
    }
    let read = parse(&file_of(&tensors, &[("scale", "0.5"), ("format", "pt")])).unwrap().inputs;
    assert_eq!((read.tokens, read.scale), (3, 0.5));
    assert!(read.state.iter().all(|&value| value == 0.0) && read.state.len() == inputs().state.len());
}

#[test]
fn results_keep_their_precision() {
    let mut tensors = raw(&inputs(), Dtype::F32);
    let out = vec![0.5_f64; 3 * 2 * 128];
    tensors.push(("out", Dtype::F64, vec![3, 2, 128], out.iter().flat_map(|value| value.to_le_bytes()).collect()));
    let read = parse(&file_of(&tensors, &[])).unwrap().out.unwrap();
    assert_eq!((read.values, read.precision), (out, Precision::F64));
}

#[test]
fn a_truncated_file_is_refused_at_every_length() {
    let bytes = file_of(&raw(&inputs(), Dtype::F32), &[]);
    for length in [0, 7, 8, 100, bytes.len() / 2, bytes.len() - 1] {
        assert!(message(&bytes[..length]).contains("not a whole safetensors file"), "{length}");
    }
}

#[test]
fn whatever_is_wrong_names_the_tensor() {
    let good = raw(&inputs(), Dtype::F32);
    for name in ["q", "k", "v", "g", "beta"] {
        let tensors: Vec<Raw> = good.iter().filter(|tensor| tensor.0 != name).cloned().collect();
        assert!(message(&file_of(&tensors, &[])).starts_with(&format!("tensor {name} is missing")));
    }
    for index in 0..good.len() {
        let mut tensors = good.clone();
        let name = tensors[index].0;
        tensors[index] = raw(&inputs(), Dtype::F64).swap_remove(index);
        let says = message(&file_of(&tensors, &[]));
        assert_eq!(says, format!("tensor {name} is F64, expected F32, BF16 or F16"));

        // One row more than the others have.
        let mut tensors = good.clone();
        let (_, _, shape, bytes) = &mut tensors[index];
        let row = bytes.len() / shape[0];
        bytes.extend_from_within(..row);
        shape[0] += 1;
        let says = message(&file_of(&tensors, &[]));
        // The number of tokens is q's: a longer q makes k wrong.
        let expected = if name == "q" { "k" } else { name };
        assert!(says.starts_with(&format!("tensor {expected} has shape [")), "{says}");
    }
    let mut tensors = good.clone();
    tensors[5].0 = "initial_state";
    assert!(message(&file_of(&tensors, &[])).starts_with("tensor \"initial_state\" is unknown; known are q, k"));
    let mut tensors = good.clone();
    tensors.push(("out", Dtype::F32, vec![3, 128, 2], vec![0; 3 * 2 * 128 * 4]));
    assert_eq!(message(&file_of(&tensors, &[])), "tensor out has shape [3, 128, 2], expected [3, 2, 128]");
}

#[test]
fn head_counts_and_sizes_are_checked() {
    let mut tensors = raw(&inputs(), Dtype::F32);
    tensors[0].2 = vec![3, 2, 64];
    assert_eq!(message(&file_of(&tensors, &[])), "tensor q has shape [3, 2, 64], expected [T, heads, 128]");
    let mut tensors = raw(&inputs(), Dtype::F32);
    tensors[0].2 = vec![1, 3, 128];
    assert!(message(&file_of(&tensors, &[])).contains("a multiple of num_k_heads = 3"));
    tensors[0] = ("q", Dtype::F32, vec![3, 0, 128], Vec::new());
    assert!(message(&file_of(&tensors, &[])).contains("num_k_heads"));
}

#[test]
fn numbers_are_checked() {
    let linear = Inputs { g: inputs().g.iter().map(|g| g.exp()).collect(), ..inputs() };
    let says = message(&file_of(&raw(&linear, Dtype::F32), &[]));
    assert!(says.starts_with("tensor g holds 0.9") && says.contains("the log of a forget gate"), "{says}");
    let mut bad = inputs();
    bad.v[5] = f32::NAN;
    let says = message(&file_of(&raw(&bad, Dtype::F32), &[]));
    assert_eq!(says, "tensor v holds NaN at element 5, expected a finite number");
    let forgets = Inputs { g: vec![f32::NEG_INFINITY; 6], ..inputs() };
    assert!(parse(&file_of(&raw(&forgets, Dtype::F32), &[])).is_ok());
}

#[test]
fn metadata_is_checked() {
    let tensors = raw(&inputs(), Dtype::F32);
    for (key, value) in [("head_map", "interleaved"), ("scale", "one"), ("scale", "inf"), ("chunk", "64")] {
        let says = message(&file_of(&tensors, &[(key, value)]));
        assert!(says.starts_with(&format!("metadata {key:?} is {value:?}, expected")), "{says}");
    }
}

#[test]
fn what_is_written_can_be_read_and_nothing_is_left_beside_it() {
    let folder = std::env::temp_dir().join(format!("gdn-tensors-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("results.safetensors");
    let (out, state) = (vec![0.25_f32; 3 * 2 * 128], inputs().state);
    write(&file, &inputs(), &out, &state).unwrap();
    let bytes = std::fs::read(&file).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let read_back = super::result(&tensors, "state_out", &[2, 128, 128]).unwrap().unwrap();
    assert!(read_back.values.iter().zip(&state).all(|(&a, &b)| a == f64::from(b)));
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1);
    // Results alone are no inputs, and the error says which file it is about.
    let says = read(&file).unwrap_err().to_string();
    assert!(says.contains("results.safetensors: tensor q is missing"), "{says}");
    assert!(write(&folder.join("missing/results.safetensors"), &inputs(), &out, &state).is_err());
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(read(Path::new("/nonexistent")).unwrap_err().to_string().starts_with("/nonexistent: reading: "));
}
