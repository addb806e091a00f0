//! Tests of the command line: missing valgrind and wrong usage.

#![allow(clippy::tests_outside_test_module, reason = "an integration test is a test module of its own")]

use std::process::{Command, Output};

fn counts(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trunkline-counts"));
    command.args(arguments).env("PATH", "/nowhere").output().unwrap()
}

#[test]
fn missing_valgrind_names_package() {
    let output = counts(&[]);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(error.contains("apt-get install valgrind"), "{error}");
    assert!(output.stdout.is_empty());
}

#[test]
fn invalid_usage_has_exit_code_2() {
    for arguments in [&["--check", "--bless"][..], &["--nonsense"], &["steps", "pigeons", "1", "1"]] {
        assert_eq!(counts(arguments).status.code(), Some(2), "{arguments:?}");
    }
}
