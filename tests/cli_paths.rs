//! `--path` as a user gives it, and the families of inputs whose ranges a path may lose.
#![forbid(unsafe_code)]
use std::collections::BTreeSet;
use std::process::Command;

use serde_json::Value;
use tests::gpu;

use crate::cli::{binary, host, refused, report, text};

/// Every path but those that are not chosen unasked.
const SAFE: &str = "cpu,recurrent_by_key_head,recurrent_by_column,chunked";

fn paths_of(report: &Value) -> BTreeSet<String> {
    let cases = report["cases"].as_array().unwrap().iter();
    let rows = cases.flat_map(|case| case["rows"].as_array().unwrap());
    rows.map(|row| row["path"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn parity_runs_the_paths_that_are_named_and_no_other() {
    let run = |named| {
        let arguments = ["parity", "--tokens", "5", "--heads", "1/2", "--path", named, "--json"];
        paths_of(&report(&arguments))
    };
    let expected = |names: &[&str], on_gpu: &[&str]| -> BTreeSet<String> {
        let on_gpu = if gpu().is_some() { on_gpu } else { &[] };
        names.iter().chain(on_gpu).map(|&name| name.to_owned()).collect()
    };
    assert_eq!(run("chunked"), expected(&["cpu chunked", "emulator chunked"], &["cuda chunked"]));
    assert_eq!(run("cpu"), expected(&["cpu chunked", "cpu recurrent"], &[]));
    assert_eq!(run("emulator chunked,cpu recurrent"), expected(&["emulator chunked", "cpu recurrent"], &[]));
    assert_eq!(run("chunked_tensor"), expected(&["emulator chunked_tensor"], &["cuda chunked_tensor"]));
}

#[test]
fn a_path_that_does_not_run_is_an_error_with_the_reason() {
    refused(
        &["parity", "--tokens", "1", "--path", "chunk"],
        &["--path chunk:", "recurrent_by_column", "chunked_tensor", "cpu", "cuda recurrent_by_key_head"],
    );
    refused(&["parity", "--tokens", "1", "--on", "cpu", "--path", "chunked_tensor"], &["--path", "not on cpu"]);
    // A kernel that is not for five value heads per key head, beside a path that is.
    refused(
        &["parity", "--tokens", "1", "--heads", "1/5", "--path", "emulator chunked,cpu recurrent"],
        &["--path emulator chunked", "did not run", "5 value heads"],
    );
    // More than the emulator runs unasked.
    refused(
        &["parity", "--tokens", "9000", "--heads", "1/1", "--path", "emulator chunked,cpu"],
        &["--path emulator chunked", "slow"],
    );
    refused(&["check", "no/such/file", "--path", "chunked"], &["no/such/file"]);
    refused(&["bench", "--tokens", "1", "--path", "emulator"], &["--path emulator"]);
    refused(&["bench", "--tokens", "1", "--path", "by_column"], &["--path by_column", "recurrent_by_column"]);
    for command in [&["parity", "--tokens", "1"][..], &["bench", "--tokens", "1"]] {
        let arguments = [command, &["--path", "cuda recurrent_by_column"]].concat();
        let output = Command::new(binary()).args(arguments).env("CUDA_VISIBLE_DEVICES", "").output().unwrap();
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{message}");
        assert!(message.contains("--path cuda recurrent_by_column: ") && output.stdout.is_empty(), "{message}");
    }
}

#[test]
fn check_and_bench_take_the_paths_that_are_named() {
    let files = crate::golden::files();
    let file = files[0].to_str().unwrap();
    let checked = report(&["check", file, "--path", "cpu recurrent,emulator chunked", "--json"]);
    assert_eq!(paths_of(&checked), ["cpu recurrent", "emulator chunked"].map(str::to_owned).into());
    let bench = ["bench", "--tokens", "3", "--heads", "1/1", "--samples", "1", "--path", "cpu chunked", "--json"];
    let measured = report(&bench);
    let paths: Vec<&str> =
        measured["rows"].as_array().unwrap().iter().map(|row| row["path"].as_str().unwrap()).collect();
    assert_eq!(paths, ["cpu chunked"]);
}

#[test]
fn reruns_take_the_paths_that_are_named() {
    let output = host(&["parity", "--reruns", "2", "--tokens", "33", "--heads", "1/1", "--path", "cpu chunked"]);
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{said}{}", text(&output.stderr));
    assert!(said.contains("cpu chunked") && !said.contains("recurrent") && said.contains("2 reruns, 0"), "{said}");
}

/// Values and states of any size, values that jump, and states that are forgotten: on every path that is chosen unasked, the
/// chunked ones within 3e-6 and 4e-6 of float64.
#[test]
fn ranges_agree_on_every_path() {
    let families = "tiny,small,large,huge,vanishing,jump,forgotten,forgetting";
    let arguments = ["parity", "--tokens", "33,130", "--heads", "1/3", "--gates", families, "--path", SAFE, "--json"];
    let report = report(&arguments);
    assert_eq!(report["cases"].as_array().unwrap().len(), 8, "{report}");
    let rows = report["cases"].as_array().unwrap().iter().flat_map(|case| case["rows"].as_array().unwrap());
    let chunked = |row: &&Value| row["against"] == "float64" && row["path"].as_str().unwrap().contains(" chunked");
    let chunked: Vec<&Value> = rows.filter(chunked).collect();
    assert!(chunked.len() >= 8 * 2 * 2, "{report}");
    for row in chunked {
        let relative = |tensor: &str| row[tensor]["relative_by_head"].as_f64().unwrap();
        assert!(relative("out") <= 3e-6 && relative("state") <= 4e-6, "{row}");
    }
}

/// The path on tensor cores, by its name, over ranges.
#[test]
fn ranges_agree_on_tensor_cores() {
    let families = "tiny,large,huge,vanishing,jump";
    let report = report(&[
        "parity",
        "--tokens",
        "130",
        "--heads",
        "1/1",
        "--gates",
        families,
        "--path",
        "chunked_tensor",
        "--json",
    ]);
    assert_eq!(report["agreed"], true, "{report}");
}
