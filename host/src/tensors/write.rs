//! Writes results, all or nothing.
#![forbid(unsafe_code)]
use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use safetensors::Dtype;
use safetensors::tensor::TensorView;

use super::{TensorError, What};
use host::inputs::Inputs;
use host::{HEAD_DIM, HeadMap};

/// Writes `out` and `state_out` as float32, with the head map and the scale they were computed with. The file appears
/// whole or not at all: it is written beside its place and renamed.
///
/// # Errors
/// If the system refuses. What was at `file` before is still there then.
pub fn write(file: &Path, inputs: &Inputs, out: &[f32], state: &[f32]) -> Result<(), TensorError> {
    let fail = |what| TensorError { file: file.to_owned(), what };
    let bytes = serialize(inputs, out, state).map_err(fail)?;
    let beside = beside(file);
    fs::write(&beside, bytes).and_then(|()| fs::rename(&beside, file)).map_err(|because| {
        // It may not exist; the first error is the one to report.
        let _ = fs::remove_file(&beside);
        fail(What::System { doing: "writing", because })
    })
}

/// A name in the same folder, so that renaming does not copy, and of this process only.
fn beside(file: &Path) -> PathBuf {
    let mut name = file.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.partial", std::process::id()));
    file.with_file_name(name)
}

fn serialize(inputs: &Inputs, out: &[f32], state: &[f32]) -> Result<Vec<u8>, What> {
    let heads = inputs.heads;
    let map = match heads.map {
        HeadMap::Grouped => "grouped",
        HeadMap::Tiled => "tiled",
    };
    let metadata =
        HashMap::from([("head_map".to_owned(), map.to_owned()), ("scale".to_owned(), inputs.scale.to_string())]);
    let bytes = |values: &[f32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
    let (out, state) = (bytes(out), bytes(state));
    let (out_shape, state_shape) =
        (vec![inputs.tokens, heads.num_v_heads, HEAD_DIM], vec![heads.num_v_heads, HEAD_DIM, HEAD_DIM]);
    let tensors = [
        ("out", TensorView::new(Dtype::F32, out_shape, &out).map_err(What::Format)?),
        ("state_out", TensorView::new(Dtype::F32, state_shape, &state).map_err(What::Format)?),
    ];
    safetensors::serialize(tensors, Some(metadata)).map_err(What::Format)
}
