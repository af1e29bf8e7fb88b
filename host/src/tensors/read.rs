//! Reads a file and checks everything about it.
#![forbid(unsafe_code)]
use std::collections::HashMap;
use std::path::Path;

use half::{bf16, f16};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};

use super::{File, Precision, Stored, TensorError, What};
use host::inputs::Inputs;
use host::{HEAD_DIM, HeadMap, Heads, default_scale};

/// Every tensor that a file may hold.
const KNOWN: [&str; 8] = ["q", "k", "v", "g", "beta", "state", "out", "state_out"];

/// Reads `file`.
///
/// # Errors
/// What is wrong with it.
pub fn read(file: &Path) -> Result<File, TensorError> {
    let fail = |what| TensorError { file: file.to_owned(), what };
    let bytes = std::fs::read(file).map_err(|because| fail(What::System { doing: "reading", because }))?;
    parse(&bytes).map_err(fail)
}

/// What is in the bytes of a file.
pub(super) fn parse(bytes: &[u8]) -> Result<File, What> {
    let (_, header) = SafeTensors::read_metadata(bytes).map_err(What::Format)?;
    let tensors = SafeTensors::deserialize(bytes).map_err(What::Format)?;
    if let Some(tensor) = tensors.names().into_iter().find(|name| !KNOWN.contains(name)) {
        return Err(What::Unknown { tensor: tensor.to_owned(), known: KNOWN.join(", ") });
    }
    let inputs = inputs(&tensors, header.metadata().as_ref().unwrap_or(&HashMap::new()))?;
    let heads = inputs.heads;
    let out = result(&tensors, "out", &[inputs.tokens, heads.num_v_heads, HEAD_DIM])?;
    let state_out = result(&tensors, "state_out", &[heads.num_v_heads, HEAD_DIM, HEAD_DIM])?;
    Ok(File { inputs, out, state_out })
}

fn inputs(tensors: &SafeTensors<'_>, metadata: &HashMap<String, String>) -> Result<Inputs, What> {
    let (map, scale) = settings(metadata)?;
    // The counts come from q and v; everything else has to agree with them.
    let (tokens, k_heads) = tokens_and_heads(tensors, "q")?;
    let (_, v_heads) = tokens_and_heads(tensors, "v")?;
    let heads = Heads::new(k_heads, v_heads, map).map_err(|error| What::Heads(Box::new(error)))?;
    let state_shape = [v_heads, HEAD_DIM, HEAD_DIM];
    let state = match tensors.tensor("state") {
        Ok(_) => input(tensors, "state", &state_shape)?,
        Err(_) => vec![0.0; state_shape.iter().product()],
    };
    let inputs = Inputs {
        heads,
        tokens,
        scale: scale.unwrap_or_else(|| default_scale(&heads)),
        q: input(tensors, "q", &[tokens, k_heads, HEAD_DIM])?,
        k: input(tensors, "k", &[tokens, k_heads, HEAD_DIM])?,
        v: input(tensors, "v", &[tokens, v_heads, HEAD_DIM])?,
        g: input(tensors, "g", &[tokens, v_heads])?,
        beta: input(tensors, "beta", &[tokens, v_heads])?,
        state,
    };
    for (tensor, values) in
        [("q", &inputs.q), ("k", &inputs.k), ("v", &inputs.v), ("beta", &inputs.beta), ("state", &inputs.state)]
    {
        require(tensor, values, "a finite number", |value| value.is_finite())?;
    }
    // Forget gates given as they are, between 0 and 1, have the same type and shape.
    require("g", &inputs.g, "the log of a forget gate, which is at most 0", |value| value <= 0.0)?;
    Ok(inputs)
}

fn settings(metadata: &HashMap<String, String>) -> Result<(HeadMap, Option<f32>), What> {
    let (mut map, mut scale) = (HeadMap::Grouped, None);
    for (key, got) in metadata {
        let fail = |expected| What::Metadata { key: key.clone(), got: got.clone(), expected };
        match key.as_str() {
            "head_map" => {
                map = match got.as_str() {
                    "grouped" => HeadMap::Grouped,
                    "tiled" => HeadMap::Tiled,
                    _ => return Err(fail("grouped or tiled")),
                };
            }
            "scale" => {
                let parsed = got.parse().ok().filter(|scale: &f32| scale.is_finite());
                scale = Some(parsed.ok_or_else(|| fail("a finite number"))?);
            }
            // `format` is what Python's writers add.
            "note" | "format" => {}
            _ => return Err(fail("one of head_map, scale, note and format as the key")),
        }
    }
    Ok((map, scale))
}

fn find<'a>(tensors: &SafeTensors<'a>, tensor: &'static str) -> Result<TensorView<'a>, What> {
    tensors.tensor(tensor).map_err(|_| What::Missing { tensor })
}

/// A tensor's shape without a batch axis of 1.
fn shape_of<'a>(view: &'a TensorView<'_>, rank: usize) -> &'a [usize] {
    match view.shape() {
        [1, rest @ ..] if rest.len() == rank => rest,
        shape => shape,
    }
}

/// Tokens and heads of a tensor `[T, heads, 128]`.
fn tokens_and_heads(tensors: &SafeTensors<'_>, tensor: &'static str) -> Result<(usize, usize), What> {
    let view = find(tensors, tensor)?;
    match *shape_of(&view, 3) {
        [tokens, heads, HEAD_DIM] => Ok((tokens, heads)),
        _ => Err(What::Shape { tensor, got: view.shape().to_vec(), expected: format!("[T, heads, {HEAD_DIM}]") }),
    }
}

fn require_shape(view: &TensorView<'_>, tensor: &'static str, shape: &[usize]) -> Result<(), What> {
    if shape_of(view, shape.len()) == shape {
        return Ok(());
    }
    Err(What::Shape { tensor, got: view.shape().to_vec(), expected: format!("{shape:?}") })
}

fn require(
    tensor: &'static str,
    values: &[f32],
    expected: &'static str,
    holds: impl Fn(f32) -> bool,
) -> Result<(), What> {
    match values.iter().position(|&value| !holds(value)) {
        None => Ok(()),
        Some(index) => Err(What::Value { tensor, index, value: values[index], expected }),
    }
}

fn input(tensors: &SafeTensors<'_>, tensor: &'static str, shape: &[usize]) -> Result<Vec<f32>, What> {
    let view = find(tensors, tensor)?;
    let data = view.data();
    let values = match view.dtype() {
        Dtype::F32 => numbers(data, f32::from_le_bytes),
        Dtype::BF16 => numbers(data, |bytes| bf16::from_le_bytes(bytes).to_f32()),
        Dtype::F16 => numbers(data, |bytes| f16::from_le_bytes(bytes).to_f32()),
        other => return Err(What::Dtype { tensor, got: format!("{other:?}"), expected: "F32, BF16 or F16" }),
    };
    require_shape(&view, tensor, shape)?;
    Ok(values)
}

fn result(tensors: &SafeTensors<'_>, tensor: &'static str, shape: &[usize]) -> Result<Option<Stored>, What> {
    let Ok(view) = tensors.tensor(tensor) else { return Ok(None) };
    let data = view.data();
    let (values, precision) = match view.dtype() {
        Dtype::F64 => (numbers(data, f64::from_le_bytes), Precision::F64),
        Dtype::F32 => (numbers(data, |bytes| f64::from(f32::from_le_bytes(bytes))), Precision::F32),
        Dtype::BF16 => (numbers(data, |bytes| bf16::from_le_bytes(bytes).to_f64()), Precision::Bf16),
        Dtype::F16 => (numbers(data, |bytes| f16::from_le_bytes(bytes).to_f64()), Precision::F16),
        other => return Err(What::Dtype { tensor, got: format!("{other:?}"), expected: "F64, F32, BF16 or F16" }),
    };
    require_shape(&view, tensor, shape)?;
    Ok(Some(Stored { values, precision }))
}

/// Numbers of N bytes, little-endian as the format has them.
fn numbers<const N: usize, T>(data: &[u8], from: impl Fn([u8; N]) -> T) -> Vec<T> {
    let (numbers, _) = data.as_chunks::<N>();
    numbers.iter().map(|&bytes| from(bytes)).collect()
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
