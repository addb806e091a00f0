//! Runs the program for a fraction of a second, in real time because it starts processes.

use std::process::Command;
use trunkline_testkit::run;

fn bench() -> Command {
    Command::new(env!("CARGO_BIN_EXE_trunkline-tonic-bench"))
}

#[test]
fn all_transports_are_measured() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("out.json");
    let mut command = bench();
    command.args(["--seconds", "0.005", "--repetitions", "1", "--pin", "off", "--json"]).arg(&json);
    let output = run(&mut command, b"").expect("it runs");
    let (table, progress) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{progress}");
    let rows = table.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| |"));
    let rows = rows.map(|line| line.trim_matches('|').split('|').skip(1).collect::<Vec<_>>());
    let rows = rows.collect::<Vec<_>>();
    assert_eq!(rows.len(), 28, "{table}");
    for cell in rows.iter().flatten() {
        let value = cell.replace(',', "").trim().parse::<f64>();
        assert!(value.is_ok_and(|value| value > 0.0), "{table}");
    }
    assert!(rows.iter().all(|row| row.len() == 4), "{table}");
    assert_eq!(progress.lines().filter(|line| line.starts_with("repetition 1 of 1: ")).count(), 4);
    let saved: serde_json::Value = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
    assert_eq!(saved["series"].as_array().unwrap().len(), 24);
}

#[test]
fn invalid_seconds_are_refused_with_range() {
    let output = run(bench().args(["--seconds", "0"]), b"").expect("it runs");
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("expected seconds from 0.001 to 60"));
}
