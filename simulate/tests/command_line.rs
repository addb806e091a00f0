//! Tests of the program as a process: exit codes and output.

#![forbid(unsafe_code)]
#![cfg(target_os = "linux")]
#![allow(clippy::tests_outside_test_module, reason = "an integration test is a test module of its own")]

use std::fs::File;
use std::process::{Command, Output, Stdio};

fn simulate(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trunkline-simulate"));
    command.args(arguments);
    command
}

fn run(arguments: &[&str]) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = simulate(arguments).output().unwrap();
    (status.code(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

#[test]
fn one_seed_prints_one_json_document() {
    let (code, stdout, stderr) = run(&["--seed", "7", "--json"]);
    assert_eq!(code, Some(0), "{stderr}");
    let document = serde_json::from_str::<serde_json::Value>(&stdout).unwrap();
    assert_eq!(document["runs"], 1);
    assert_eq!(stderr, "seed 7 passed\n");
}

#[test]
fn campaign_ends_with_its_result() {
    let (code, stdout, _) = run(&["--seed", "7", "--runs", "2"]);
    assert_eq!(code, Some(0));
    assert!(stdout.starts_with("2 runs in "), "{stdout}");
    assert!(stdout.contains("not judged: "), "{stdout}");
    assert!(stdout.ends_with("all 2 runs passed\n"), "{stdout}");
}

#[test]
fn unwritable_trace_is_one_error() {
    let (code, _, stderr) = run(&["--seed", "7", "--trace", "/dev/full"]);
    assert_eq!(code, Some(2));
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(stderr.starts_with("error: cannot write the trace /dev/full: "), "{stderr}");
}

#[test]
fn full_standard_output_is_one_error() {
    let full = File::create("/dev/full").unwrap();
    let output = simulate(&["--mutant", "list"]).stdout(Stdio::from(full)).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(stderr.starts_with("error: cannot write to standard output: "), "{stderr}");
}

#[test]
fn closed_pipe_does_not_fail() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = simulate(&["--mutant", "list"]).stdout(writer).stderr(Stdio::piped()).output().unwrap();
    assert_eq!((output.status.code(), String::from_utf8(output.stderr).unwrap().as_str()), (Some(0), ""));
}

#[test]
fn invalid_usage_gives_exit_code_2() {
    for wrong in [
        &["--runs", "0"][..],
        &["--mutant", "unknown", "--seed", "1"],
        &["--mutant", "unknown"],
        &["--trace", "run.txt"],
        &["--seed", "18446744073709551615", "--runs", "3"],
    ] {
        assert_eq!(run(wrong).0, Some(2), "{wrong:?}");
    }
}
