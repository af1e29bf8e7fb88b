//! The command line as a user runs it: exit codes, messages, reports, files (case 39 and the golden cases).
#![forbid(unsafe_code)]
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use host::HeadMap;
use host::inputs::{Family, Inputs};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;
use tests::{bars, expected_of, gpu, heads};

/// The binary under test. `cargo test` does not build it for another package's tests, so that cargo is asked for it: the
/// profile and the folder are those of this test binary. A test binary that was carried to a machine without the sources
/// takes the `host` beside it.
pub(crate) fn binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| {
        let test = std::env::current_exe().expect("this test's own file");
        let name = format!("host{}", std::env::consts::EXE_SUFFIX);
        let (sources, cargo) = (Path::new(env!("CARGO_MANIFEST_DIR")), Path::new(env!("CARGO")));
        if !sources.is_dir() || !cargo.is_file() {
            return test.with_file_name(name);
        }
        // <target>/<profile>/deps/all-<hash>
        let profile = test.parent().and_then(Path::parent).expect("a folder for each profile");
        let target = profile.parent().expect("a target folder");
        let profile_name = match profile.file_name().and_then(|name| name.to_str()) {
            Some("debug") | None => "dev",
            Some(name) => name,
        };
        let built = Command::new(cargo)
            .args(["build", "--quiet", "--workspace", "--bin", "host", "--test", "all", "--profile", profile_name])
            .arg("--target-dir")
            .arg(target)
            .current_dir(sources)
            .status()
            .expect("cargo runs");
        assert!(built.success(), "cargo build --package host: {built}");
        profile.join(name)
    })
}

pub(crate) fn host(arguments: &[&str]) -> Output {
    Command::new(binary()).args(arguments).output().expect("the host binary runs")
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

/// Runs it, expects success and gives its JSON.
#[track_caller]
pub(crate) fn report(arguments: &[&str]) -> Value {
    let output = host(arguments);
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}{}", text(&output.stdout), text(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("one JSON document and nothing else on standard output")
}

/// Runs it and expects that it could not run: code 2, a message with these words, and nothing on standard output.
#[track_caller]
pub(crate) fn refused(arguments: &[&str], words: &[&str]) {
    let output = host(arguments);
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {message}");
    assert!(message.contains("error:"), "{arguments:?}: {message}");
    for word in words {
        assert!(message.contains(word), "{arguments:?}: no {word:?} in {message}");
    }
    assert!(output.stdout.is_empty(), "{arguments:?}: {}", text(&output.stdout));
}

/// The binary starts with and without a driver, and says which it found (case 39).
#[test]
fn device_says_what_was_found() {
    let output = host(&["device"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let said = text(&output.stdout);
    assert!(
        said.contains("cpu") && said.contains("can run") && said.contains("emulator recurrent_by_column"),
        "{said}"
    );
    let found = report(&["device", "--json"]);
    let unavailable = found["paths"].as_array().unwrap().iter().filter(|path| !path["unavailable"].is_null()).count();
    if gpu().is_some() {
        assert!(said.contains("GPU: "), "{said}");
        assert!(!found["gpus"].as_array().unwrap().is_empty());
    } else {
        assert!(said.contains("No GPU: ") && said.contains("cannot run"), "{said}");
        assert!(found["gpus"].as_array().unwrap().is_empty() && unavailable >= 2, "{found}");
    }
}

/// Devices that are hidden are a machine without a GPU, and no panic.
#[test]
fn hidden_devices_are_no_devices() {
    let output = Command::new(binary()).args(["device", "--json"]).env("CUDA_VISIBLE_DEVICES", "").output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(found["gpus"].as_array().unwrap().is_empty() && found["no_gpu"].is_string(), "{found}");
}

#[test]
fn parity_agrees_and_reports() {
    let output = host(&["parity", "--tokens", "1,33", "--heads", "2/6"]);
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{said}{}", text(&output.stderr));
    assert!(said.contains("Agreed") && said.contains("float64") && !said.contains("FAILED"), "{said}");

    let report = report(&["parity", "--tokens", "1,33", "--heads", "2/6", "--map", "tiled", "--seed", "9", "--json"]);
    assert_eq!((&report["agreed"], &report["seed"], &report["disagreed"]), (&true.into(), &9.into(), &0.into()));
    let rows = report["cases"][0]["rows"].as_array().unwrap();
    assert_eq!(report["compared"], rows.len());
    for tokens in [1, 33] {
        let paths: Vec<&str> = rows
            .iter()
            .filter(|row| row["tokens"] == tokens && row["against"] == "float64")
            .map(|row| row["path"].as_str().unwrap())
            .collect();
        for path in PATHS {
            assert!(paths.contains(&path), "{tokens} tokens: {paths:?}");
        }
    }
    for row in rows {
        for tensor in ["out", "state"] {
            let by_head = row[tensor]["relative_by_head"].as_f64().unwrap();
            assert!(by_head <= bars::SEQUENTIAL.relative, "{row}");
        }
    }
}

#[test]
fn parity_takes_every_family_and_no_tokens() {
    let mut arguments = vec!["parity", "--tokens", "0,2", "--heads", "1/2", "--gates", "all", "--on", "cpu,emulator"];
    arguments.extend(["--path", "cpu,recurrent_by_key_head,recurrent_by_column,chunked", "--json"]);
    let report = report(&arguments);
    assert!(report["cases"].as_array().unwrap().len() >= 19, "{report}");
    assert_eq!(report["agreed"], true);
    assert!(report["paths"].as_array().unwrap().iter().all(|path| !path["path"].as_str().unwrap().contains("cuda")));
}

#[test]
fn bad_arguments_are_refused_by_name() {
    for (arguments, words) in [
        (&["parity", "--heads", "3/4"][..], &["--heads", "3/4", "multiple"][..]),
        (&["parity", "--heads", "0/4"], &["--heads", "num_k_heads", "got 0"]),
        (&["parity", "--heads", "16"], &["--heads", "KEY/VALUE"]),
        (&["parity", "--heads", "65536/65536"], &["--heads", "65535"]),
        (&["parity", "--tokens", "many"], &["--tokens", "many"]),
        (&["parity", "--tokens=-1"], &["--tokens", "-1"]),
        (&["parity", "--tokens", "99999999999999999999"], &["--tokens"]),
        (&["parity", "--gates", "closed"], &["--gates", "closed"]),
        (&["parity", "--on", "tpu"], &["--on", "tpu"]),
        (&["parity", "--seed", "x"], &["--seed", "x"]),
        (&["parity", "--map", "round"], &["--map", "round"]),
        (&["parity", "--fast"], &["--fast"]),
        (&["parity", "surplus"], &["surplus"]),
        (&["check"], &["FILE"]),
        (&["march"], &["march"]),
    ] {
        refused(arguments, words);
    }
    let help = host(&[]);
    assert_eq!(help.status.code(), Some(2), "no command");
}

/// A backend that was asked for and cannot run is an error; so is a GPU that is not there.
#[test]
fn a_gpu_that_is_not_there_is_refused() {
    let arguments = ["parity", "--tokens", "1", "--heads", "1/1", "--on", "cuda"];
    let output = Command::new(binary()).args(arguments).env("CUDA_VISIBLE_DEVICES", "").output().unwrap();
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert!(message.contains("--on cuda"), "{message}");
}

/// All golden cases on every path, as a user checks a dumped layer.
#[test]
fn check_agrees_with_every_golden_case_on_every_path() {
    let files = crate::golden::files();
    let mut arguments =
        vec!["check", "--json", "--on", if gpu().is_some() { "cpu,emulator,cuda" } else { "cpu,emulator" }];
    arguments.extend(files.iter().map(|file| file.to_str().unwrap()));
    let report = report(&arguments);
    assert_eq!((&report["agreed"], &report["disagreed"]), (&true.into(), &0.into()));
    let cases = report["cases"].as_array().unwrap();
    assert_eq!(cases.len(), files.len());
    for case in cases {
        let rows = case["rows"].as_array().unwrap();
        let against_file: Vec<&str> =
            rows.iter().filter(|row| row["against"] == "file").map(|row| row["path"].as_str().unwrap()).collect();
        for path in PATHS {
            assert!(against_file.contains(&path), "{}: {against_file:?}", case["name"]);
        }
    }
}

/// The paths of a machine without a GPU, as reports name them.
const PATHS: [&str; 5] = [
    "cpu recurrent",
    "cpu chunked",
    "emulator recurrent_by_key_head",
    "emulator recurrent_by_column",
    "emulator chunked",
];

/// A tensor to write: name, type, shape, bytes.
type Tensor = (&'static str, Dtype, Vec<usize>, Vec<u8>);

fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// A small case that `check` takes: two key heads, four value heads, five tokens, float32, with its results.
fn case() -> (Inputs, Vec<Tensor>) {
    let inputs = Inputs::seeded(heads(2, 4, HeadMap::Grouped), 5, Family::Base, 1);
    let expected = expected_of(&inputs);
    let doubles = |values: &[f64]| values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let tensors = vec![
        ("q", Dtype::F32, vec![5, 2, 128], floats(&inputs.q)),
        ("k", Dtype::F32, vec![5, 2, 128], floats(&inputs.k)),
        ("v", Dtype::F32, vec![5, 4, 128], floats(&inputs.v)),
        ("g", Dtype::F32, vec![5, 4], floats(&inputs.g)),
        ("beta", Dtype::F32, vec![5, 4], floats(&inputs.beta)),
        ("state", Dtype::F32, vec![4, 128, 128], floats(&inputs.state)),
        ("out", Dtype::F64, vec![5, 4, 128], doubles(&expected.out)),
        ("state_out", Dtype::F64, vec![4, 128, 128], doubles(&expected.state)),
    ];
    (inputs, tensors)
}

/// A file in a folder of its own, which goes with the folder.
fn file(tensors: &[Tensor], metadata: &[(&str, &str)]) -> (tempfile::TempDir, String) {
    let views = tensors
        .iter()
        .map(|(name, dtype, shape, bytes)| (*name, TensorView::new(*dtype, shape.clone(), bytes).unwrap()));
    let metadata: HashMap<String, String> =
        metadata.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect();
    bytes_file(&safetensors::serialize(views, Some(metadata)).unwrap())
}

fn bytes_file(bytes: &[u8]) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("case.safetensors");
    std::fs::write(&path, bytes).unwrap();
    let path = path.to_str().unwrap().to_owned();
    (folder, path)
}

/// Replaces a tensor, or with `None` takes it out.
fn with(mut tensors: Vec<Tensor>, name: &str, tensor: Option<Tensor>) -> Vec<Tensor> {
    tensors.retain(|(this, ..)| *this != name);
    tensors.extend(tensor);
    tensors
}

#[test]
fn check_tells_right_results_from_wrong_ones() {
    let (_, right) = case();
    let (_folder, path) = file(&right, &[("head_map", "grouped")]);
    assert_eq!(host(&["check", &path]).status.code(), Some(0));
    // The other head map is another computation.
    let (_folder, path) = file(&right, &[("head_map", "tiled")]);
    let output = host(&["check", &path]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("DISAGREED"), "{}", text(&output.stdout));
    // One element of a result.
    for (name, element) in [("out", 2_000), ("state_out", 60_000)] {
        let mut tensor = right.iter().find(|(this, ..)| *this == name).unwrap().clone();
        let value = &mut tensor.3.as_chunks_mut().0[element];
        *value = (f64::from_le_bytes(*value) + 1e-3).to_le_bytes();
        let (_folder, path) = file(&with(right.clone(), name, Some(tensor)), &[]);
        assert_eq!(host(&["check", &path]).status.code(), Some(1), "{name}");
    }
}

/// Without results in the file each path is compared with float64; `--out` writes them, and they are right.
#[test]
fn check_writes_results() {
    let (inputs, tensors) = case();
    let tensors = with(with(tensors, "out", None), "state_out", None);
    let (folder, path) = file(&tensors, &[]);
    assert_eq!(host(&["check", &path]).status.code(), Some(0));
    let to = folder.path().join("result.safetensors");
    let output = host(&["check", &path, "--out", to.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let bytes = std::fs::read(&to).unwrap();
    let results = SafeTensors::deserialize(&bytes).unwrap();
    let read = |name: &str| -> Vec<f32> {
        results.tensor(name).unwrap().data().as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect()
    };
    let written = tests::Output { out: read("out"), state: read("state_out") };
    tests::agrees(&inputs.heads, &expected_of(&inputs), &written, &bars::SEQUENTIAL).unwrap();
}

/// bfloat16 inputs are numbers like any others.
#[test]
fn check_takes_16_bit_inputs() {
    let (inputs, tensors) = case();
    let halves = |values: &[f32]| -> Vec<u8> {
        values.iter().flat_map(|value| ((value.to_bits() >> 16) as u16).to_le_bytes()).collect()
    };
    let v = ("v", Dtype::BF16, vec![1, 5, 4, 128], halves(&inputs.v));
    let tensors = with(with(with(tensors, "out", None), "state_out", None), "v", Some(v));
    let (_folder, path) = file(&tensors, &[]);
    let output = host(&["check", &path]);
    assert_eq!(output.status.code(), Some(0), "{}{}", text(&output.stdout), text(&output.stderr));
}

/// Files that are not what they should be: named, with the tensor, and nothing written.
#[test]
fn bad_files_are_refused_by_name() {
    let (inputs, right) = case();
    let refuse = |tensors: Vec<Tensor>, metadata: &[(&str, &str)], words: &[&str]| {
        let (folder, path) = file(&tensors, metadata);
        let to = folder.path().join("result.safetensors");
        let words = [&["case.safetensors"], words].concat();
        refused(&["check", &path, "--out", to.to_str().unwrap()], &words);
        assert!(!to.exists(), "something was written for {words:?}");
    };
    for name in ["q", "k", "v", "g", "beta"] {
        refuse(with(right.clone(), name, None), &[], &["missing", name]);
    }
    let ints = ("k", Dtype::I32, vec![5, 2, 128], floats(&inputs.k));
    refuse(with(right.clone(), "k", Some(ints)), &[], &["k", "I32", "F32"]);
    let short = ("beta", Dtype::F32, vec![4, 4], floats(&inputs.beta[..16]));
    refuse(with(right.clone(), "beta", Some(short)), &[], &["beta", "[4, 4]", "[5, 4]"]);
    let narrow = ("q", Dtype::F32, vec![5, 4, 64], floats(&inputs.q));
    refuse(with(right.clone(), "q", Some(narrow)), &[], &["q", "64", "128"]);
    let three = ("v", Dtype::F32, vec![5, 3, 128], floats(&inputs.v[..5 * 3 * 128]));
    refuse(with(right.clone(), "v", Some(three)), &[], &["v", "multiple"]);
    let surplus = ("stat", Dtype::F32, vec![1], floats(&[0.0]));
    refuse(with(right.clone(), "", Some(surplus)), &[], &["stat", "unknown"]);
    let mut linear = inputs.g.clone();
    linear[7] = 0.9;
    let linear = ("g", Dtype::F32, vec![5, 4], floats(&linear));
    refuse(with(right.clone(), "g", Some(linear)), &[], &["g", "0.9", "element 7", "log"]);
    let mut nan = inputs.q.clone();
    nan[11] = f32::NAN;
    let nan = ("q", Dtype::F32, vec![5, 2, 128], floats(&nan));
    refuse(with(right.clone(), "q", Some(nan)), &[], &["q", "NaN", "element 11"]);
    refuse(right.clone(), &[("head_map", "round")], &["head_map", "round", "tiled"]);

    let (_folder, path) = file(&right, &[]);
    let whole = std::fs::read(&path).unwrap();
    for length in [0, 7, 100, whole.len() - 1] {
        let (_folder, path) = bytes_file(&whole[..length]);
        refused(&["check", &path], &["case.safetensors", "safetensors file"]);
    }
    let (_folder, path) = bytes_file(&[0xff; 4096]);
    refused(&["check", &path], &["case.safetensors", "safetensors file"]);
    refused(&["check", "no/such/file"], &["no/such/file"]);
    // A good file does not excuse a bad one, and two files have no one place for their results.
    let (_good, good) = file(&right, &[]);
    refused(&["check", &good, &path], &["case.safetensors"]);
    refused(&["check", &good, &good, "--out", "result.safetensors"], &["--out"]);
}
