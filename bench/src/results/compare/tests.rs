use super::*;
use serde_json::{Value, json};

/// Returns a run with one point per size, in which call times are the given multiple of the floor's time.
fn run(sizes: &[u64], times: f64) -> Value {
    let floor = [1000.0, 1100.0, 900.0, 1050.0, 1000.0];
    let point = |size: &u64| {
        json!({"size_bytes": size, "outstanding": 1, "rtt_p50_ns": 5.0, "floors": {},
            "each_repetition": {"rtt_p50_ns": floor.map(|floor| floor * times), "floor_p50_ns": floor}})
    };
    json!({"command": "latency", "settings": {"link": "udp"}, "machine": {"cores": 2},
        "points": sizes.iter().map(point).collect::<Vec<_>>()})
}

fn outcome(before: Value, after: Value, absolute: bool) -> Outcome {
    let parsed = |name, value| Saved::parse(name, value).unwrap();
    Outcome::between(&parsed("A.json", before), &parsed("B.json", after), 10.0, absolute).unwrap()
}

fn verdicts(outcome: &Outcome) -> Vec<Verdict> {
    outcome.rows.iter().map(|row| row.verdict).collect()
}

#[test]
fn run_compared_with_itself_has_no_change() {
    let same = outcome(run(&[8, 64], 2.0), run(&[8, 64], 2.0), false);
    assert_eq!(verdicts(&same), [Verdict::NoChange; 2]);
    assert_eq!(same.rows[0].key, "rtt_p50_ns / floor_p50_ns");
    same.verdict().unwrap();
}

#[test]
fn slower_run_is_regression_and_faster_run_is_improvement() {
    let worse = outcome(run(&[8], 2.0), run(&[8], 2.5), false);
    assert_eq!(verdicts(&worse), [Verdict::Worse]);
    let failure = worse.verdict().unwrap_err();
    assert_eq!((failure.code(), failure.to_string().contains("1 of 1")), (4, true), "{failure}");
    let better = outcome(run(&[8], 2.5), run(&[8], 2.0), false);
    assert_eq!(verdicts(&better), [Verdict::Better]);
    better.verdict().unwrap();
}

#[test]
fn p99_bound_is_doubled() {
    let tail = |ns: f64| {
        json!({"command": "latency", "settings": {}, "machine": {}, "outstanding": 1,
            "each_repetition": {"rtt_p99_ns": vec![ns; 5], "floor_p50_ns": vec![100.0; 5]}})
    };
    assert_eq!(verdicts(&outcome(tail(100.0), tail(119.0), false)), [Verdict::NoChange]);
    assert_eq!(verdicts(&outcome(tail(100.0), tail(121.0), false)), [Verdict::Worse]);
}

#[test]
fn higher_rate_is_better() {
    let rates = |per_s: f64| {
        json!({"command": "rate", "settings": {}, "machine": {}, "outstanding": 1,
            "each_repetition": {"calls_per_s": vec![per_s; 5], "floor_calls_per_s": vec![1e6; 5]}})
    };
    assert_eq!(verdicts(&outcome(rates(1e5), rates(2e5), false)), [Verdict::Better]);
    assert_eq!(verdicts(&outcome(rates(2e5), rates(1e5), false)), [Verdict::Worse]);
}

#[test]
fn slower_machine_changes_absolute_values_only() {
    let mut slow = run(&[8], 2.0);
    let lists = slow["points"][0]["each_repetition"].as_object_mut().unwrap();
    for value in lists.values_mut().flat_map(|list| list.as_array_mut().unwrap()) {
        *value = json!(value.as_f64().unwrap() * 1.5);
    }
    assert_eq!(verdicts(&outcome(run(&[8], 2.0), slow.clone(), false)), [Verdict::NoChange]);
    let absolute = outcome(run(&[8], 2.0), slow, true);
    assert_eq!(verdicts(&absolute), [Verdict::Worse; 2]);
    // A worse floor is not a regression.
    assert!(absolute.verdict().unwrap_err().to_string().contains("1 of 2"));
    assert!(absolute.table().contains("a worse floor"));
}

#[test]
fn change_under_load_of_other_programs_is_undecided() {
    let with = |times, cores: f64| {
        let mut run = run(&[8, 64], times);
        run["others_cores"] = json!(cores);
        run["points"][1]["each_repetition"]["rtt_p50_ns"] = json!(vec![2000.0; 5]);
        run
    };
    for (one, other) in [(0.5, 0.0), (0.0, 0.5)] {
        let busy = outcome(with(2.0, one), with(3.0, other), false);
        assert_eq!(verdicts(&busy), [Verdict::Undecided, Verdict::NoChange]);
        assert!(busy.table().contains("other programs used 0.5 cores"), "{}", busy.table());
        let failure = busy.verdict().unwrap_err();
        assert_eq!((failure.code(), failure.to_string().contains("measure again")), (2, true), "{failure}");
    }
    let calm = outcome(with(2.0, 0.1), with(3.0, 0.1), false);
    assert_eq!(verdicts(&calm), [Verdict::Worse, Verdict::NoChange]);
}

#[test]
fn changed_floor_counts_only_between_different_machines() {
    let mut fast = run(&[8], 2.0);
    let floor = &mut fast["points"][0]["each_repetition"]["floor_p50_ns"];
    *floor = json!([500.0, 550.0, 450.0, 525.0, 500.0]);
    assert_eq!(verdicts(&outcome(run(&[8], 2.0), fast.clone(), false)), [Verdict::NoChange]);
    fast["machine"]["cores"] = json!(3);
    assert_eq!(verdicts(&outcome(run(&[8], 2.0), fast, false)), [Verdict::Worse]);
}

#[test]
fn points_without_counterpart_are_named() {
    let mut before = run(&[8, 64, 64], 2.0);
    before["points"][0]["each_repetition"]["other_ns"] = json!([5.0]);
    let mut after = run(&[8, 64, 512], 2.0);
    after["settings"]["link"] = json!("process");
    after["error"] = json!("the server died");
    let outcome = outcome(before, after, false);
    assert_eq!(outcome.rows.len(), 2);
    assert_eq!(outcome.only_before, ["8 B, 1 under way: other_ns", "64 B, 1 under way (number 2)"]);
    assert_eq!(outcome.only_after, ["512 B, 1 under way"]);
    let table = outcome.table();
    for part in [
        "only in A.json: 64 B",
        "link, \"udp\" and then \"process\"",
        "B.json is of a run that ended early: the server died",
    ] {
        assert!(table.contains(part), "{table}");
    }
}

#[test]
fn incomparable_results_are_refused() {
    let mut rate = run(&[8], 2.0);
    rate["command"] = json!("rate");
    let parsed = |value| Saved::parse("file", value).unwrap();
    let error = Outcome::between(&parsed(run(&[8], 2.0)), &parsed(rate), 10.0, false).unwrap_err();
    assert!(error.contains("`latency`") && error.contains("`rate`"), "{error}");
    let nothing = outcome(run(&[8], 2.0), run(&[64], 2.0), false);
    assert_eq!(nothing.verdict().unwrap_err().code(), 2);
    let mut short = run(&[8], 2.0);
    for key in ["rtt_p50_ns", "floor_p50_ns"] {
        short["points"][0]["each_repetition"][key] = json!([1.0, 2.0, 3.0, 4.0]);
    }
    let undecided = outcome(short, run(&[8], 2.0), false);
    assert_eq!(verdicts(&undecided), [Verdict::Undecided]);
    assert!(undecided.verdict().unwrap_err().to_string().contains("fewer than 5"));
}

#[test]
fn scale_points_are_compared_by_dimension() {
    let point = |(dimension, rate): (&str, &str)| {
        json!({"dimension": dimension, "count": 4, "each_repetition": {
            "rtt_p50_ns": vec![1e4; 5], "rtt_p99_ns": vec![3e4; 5], rate: vec![1e5; 5]}})
    };
    let points = [("peers", "calls_per_s"), ("sessions, at once", "sessions_per_s")].map(point);
    let scale = json!({"command": "scale", "machine": {}, "link": "udp", "points": points});
    let same = outcome(scale.clone(), scale, false);
    assert_eq!(verdicts(&same), [Verdict::NoChange; 6]);
    assert!(same.rows.iter().any(|row| row.key == "sessions_per_s"));
}
