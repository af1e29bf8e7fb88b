//! The committed cases, which an independent program computed in float64: on every path, and on the reference itself.
#![forbid(unsafe_code)]
use std::path::PathBuf;

use host::compare::{Tensor, compare};
use host::inputs::Inputs;
use host::reference::Expected;
use host::{HeadMap, default_scale};
use safetensors::{Dtype, SafeTensors};
use tests::{agrees, bars, expected_of, heads, on_every_path, recurrent_kernels_have_the_same_bits};

/// How close two float64 programs are: a few hundred roundings of 2^-53.
const FLOAT64: f64 = 1e-12;

/// The files, beside this package's sources or, for a binary that was carried elsewhere, under the current directory.
pub fn files() -> Vec<PathBuf> {
    let places = [concat!(env!("CARGO_MANIFEST_DIR"), "/cases"), "tests/cases", "cases"];
    let folder = places.into_iter().map(PathBuf::from).find(|place| place.is_dir()).expect("tests/cases");
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = entries.filter(|path| path.extension().is_some_and(|e| e == "safetensors")).collect();
    files.sort();
    files
}

/// A tensor of floats of N bytes.
fn tensor<const N: usize, T>(file: &SafeTensors<'_>, name: &str, dtype: Dtype, from: fn([u8; N]) -> T) -> Vec<T> {
    let view = file.tensor(name).unwrap();
    assert_eq!(view.dtype(), dtype, "{name}");
    view.data().as_chunks().0.iter().map(|&bytes| from(bytes)).collect()
}

/// A case: read here and not by the command line's reader, so that each checks the other.
fn read(bytes: &[u8]) -> (Inputs, Expected) {
    let (_, header) = SafeTensors::read_metadata(bytes).unwrap();
    let file = SafeTensors::deserialize(bytes).unwrap();
    let map = match header.metadata().as_ref().unwrap()["head_map"].as_str() {
        "grouped" => HeadMap::Grouped,
        "tiled" => HeadMap::Tiled,
        other => panic!("head map {other}"),
    };
    let (q, v) = (file.tensor("q").unwrap(), file.tensor("v").unwrap());
    let heads = heads(q.shape()[1], v.shape()[1], map);
    let floats = |name| tensor(&file, name, Dtype::F32, f32::from_le_bytes);
    let doubles = |name| tensor(&file, name, Dtype::F64, f64::from_le_bytes);
    let inputs = Inputs {
        heads,
        tokens: q.shape()[0],
        scale: default_scale(&heads),
        q: floats("q"),
        k: floats("k"),
        v: floats("v"),
        g: floats("g"),
        beta: floats("beta"),
        state: floats("state"),
    };
    (inputs, Expected { out: doubles("out"), state: doubles("state_out") })
}

#[test]
fn every_case_agrees_on_every_path_and_with_the_reference() {
    let files = files();
    assert!(files.len() >= 17, "{} cases", files.len());
    for file in files {
        let (inputs, golden) = read(&std::fs::read(&file).unwrap());
        let name = file.file_stem().unwrap().to_string_lossy();

        // The reference has the float32 scale of a call, the golden results 1 / sqrt(128) itself.
        let reference = expected_of(&inputs);
        let exact = |scaled: &f64| scaled / f64::from(inputs.scale) / 128.0_f64.sqrt();
        let out: Vec<f64> = reference.out.iter().map(exact).collect();
        for (tensor, golden, reference) in
            [(Tensor::Out, &golden.out, &out), (Tensor::State, &golden.state, &reference.state)]
        {
            let comparison = compare(tensor, &inputs.heads, golden, reference);
            assert!(
                comparison.not_finite == 0 && comparison.relative_by_head <= FLOAT64,
                "{name}, reference, {tensor:?}: {comparison:?}"
            );
        }

        let outputs = on_every_path(&inputs);
        for (path, output) in &outputs {
            agrees(&inputs.heads, &golden, output, &bars::SEQUENTIAL)
                .unwrap_or_else(|e| panic!("{name}, {path:?}: {e}"));
        }
        recurrent_kernels_have_the_same_bits(&inputs.heads, &outputs).unwrap_or_else(|e| panic!("{name}, {e}"));
    }
}
