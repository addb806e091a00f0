//! Whole runs: repeatable and readable.

use super::*;
use trunkline_testkit::Folder;

/// Runs seed 7 with a trace.
fn traced() -> (Outcome, String) {
    let folder = Folder::new().unwrap();
    let file = folder.join("trace");
    let trace = Trace::to_file(&file).unwrap();
    let outcome = run(7, None, trace.clone());
    trace.close().unwrap();
    let text = std::fs::read_to_string(&file).unwrap();
    (outcome, text)
}

#[test]
fn a_seed_has_one_trace_which_tells_what_happened_to_each_call() {
    let (outcome, trace) = traced();
    let (same, again) = traced();
    assert!(trace == again, "the traces of one seed differ");
    assert_eq!(outcome.checksum, same.checksum);
    assert_eq!(run(7, None, Trace::checksum_only()).checksum, outcome.checksum, "tracing changes the run");
    for id in 1..=outcome.coverage.of(Kind::CallMade) {
        let made = trace.find(&format!(" call {id} (")).expect("the call is made");
        let ended = trace.find(&format!(" call {id} ends: ")).expect("the call ends");
        assert!(made < ended, "call {id} ends before it is made");
    }
    assert!(trace.contains(": its handler starts in process "));
    assert!(trace.contains("127.7.7.1:7471") && trace.contains("RC SEND_ONLY"));
    assert!(!trace.contains("Opcode("), "an opcode is a number");
    assert!(trace.trim_end().ends_with("verdict                  seed 7 passed: no rule was broken"));
    let has_time =
        |line: &str| line.split_whitespace().next().is_some_and(|time| time.parse::<f64>().is_ok());
    assert!(trace.lines().all(has_time), "a line has no time");
}
