//! Whole runs: repeatable, readable, and a few that must pass.

use super::*;

/// A file for a trace, gone at the end.
struct TraceFile(std::path::PathBuf);

impl TraceFile {
    fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("trunkline-simulate-{}-{name}", std::process::id())))
    }

    fn run(&self, seed: u64) -> (Outcome, Vec<u8>) {
        let trace = Trace::to_file(&self.0).unwrap();
        let outcome = run(seed, None, trace.clone());
        trace.close().unwrap();
        (outcome, std::fs::read(&self.0).unwrap())
    }
}

impl Drop for TraceFile {
    fn drop(&mut self) {
        let _gone = std::fs::remove_file(&self.0);
    }
}

#[test]
fn the_same_seed_gives_the_same_trace_and_another_does_not() {
    let (first, second) = (TraceFile::new("a"), TraceFile::new("b"));
    let (one, trace) = first.run(7);
    let (same, again) = second.run(7);
    assert!(trace == again, "the traces of one seed differ");
    assert_eq!(one.checksum, same.checksum);
    assert_eq!(run(7, None, Trace::checksum_only()).checksum, one.checksum, "tracing changes the run");
    assert_ne!(run(8, None, Trace::checksum_only()).checksum, one.checksum);
}

#[test]
fn a_trace_tells_what_happened_to_each_call() {
    let (outcome, trace) = TraceFile::new("calls").run(7);
    let trace = String::from_utf8(trace).unwrap();
    let made = outcome.coverage.of(Kind::CallMade);
    for id in 1..=made {
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

#[test]
fn a_few_runs_break_no_rule() {
    for seed in 1..=20 {
        let outcome = run(seed, None, Trace::checksum_only());
        assert_eq!(outcome.broken, None, "seed {seed}: cargo simulate --seed {seed} --trace FILE");
    }
}
