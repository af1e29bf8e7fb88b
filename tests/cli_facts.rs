//! `host facts` as a user runs it: a report and a record on a card that it can ask, a reason and code 2 without one.
#![forbid(unsafe_code)]
use std::process::Command;

use serde_json::Value;
use tests::gpu_or_skip;

use crate::cli::{binary, host, refused, text};

#[test]
fn without_a_gpu_it_says_so_and_writes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let record = folder.path().join("record");
    let output = Command::new(binary())
        .args(["facts", "--record", record.to_str().unwrap()])
        .env("CUDA_VISIBLE_DEVICES", "")
        .output()
        .unwrap();
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert!(message.contains("facts are those of a GPU") && output.stdout.is_empty(), "{message}");
    assert!(!record.exists());
}

#[test]
fn bad_arguments_are_refused_by_name() {
    refused(&["facts", "--products", "31"], &["--products", "32"]);
    refused(&["facts", "--samples", "0"], &["--samples"]);
    refused(&["facts", "--seed", "x"], &["--seed"]);
}

/// On Hopper and later every bit of the emulation is the card's; on others the differences are a report.
#[test]
fn a_card_is_asked_and_its_answers_are_recorded() {
    let Some(gpu) = gpu_or_skip("facts of the card", 1) else { return };
    if gpu.facts().capability < 80 {
        refused(&["facts"], &["tensor_probe"]);
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let record = folder.path().join("record");
    let output = host(&["facts", "--products", "64", "--samples", "3", "--record", record.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{}{}", text(&output.stdout), text(&output.stderr));
    let words = std::fs::read_to_string(record.join("facts.txt")).unwrap();
    assert_eq!(words, text(&output.stdout));
    let facts: Value = serde_json::from_slice(&std::fs::read(record.join("facts.json")).unwrap()).unwrap();
    assert!(facts["exact"] == false || facts["agreed"] == true, "{words}");
    for rate in facts["rates"].as_array().unwrap() {
        assert!(rate["cycles_per_product"].as_f64().unwrap() > 1.0, "{words}");
        assert!(rate["megahertz"].as_f64().unwrap() > 100.0, "{words}");
    }
    let graphs = facts["launches"].as_array().unwrap().iter().filter(|cost| cost["how"] == "graph");
    assert!(graphs.clone().count() == 6 && graphs.clone().all(|cost| cost["refused"].is_null()), "{words}");
}
