//! Measurements between nodes, each of which is a process with a separate address: patterns, lost nodes, rejected
//! requests. No test checks a time.

use serde_json::Value;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::Duration;
use trunkline_testkit::{Folder, fresh_ip, wait_until};

const PATIENCE: Duration = Duration::from_secs(60);

/// A `trunkline-bench node` process, which is killed on drop.
struct Host {
    child: Child,
    address: String,
}

impl Host {
    fn start() -> Self {
        let mut child = program()
            .args(["node", "--port", "0", "--address", &fresh_ip().to_string()])
            .stdout(Stdio::piped())
            .spawn()
            .expect("a node");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("its output")).read_line(&mut line).expect("a line");
        let address = line.trim().strip_prefix("listening ").expect("its address").to_owned();
        Self { child, address }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // The process may already have been killed.
        let _ended = self.child.kill();
        let _status = self.child.wait();
    }
}

fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_trunkline-bench"))
}

fn run(hosts: &[Host], rest: &str) -> Command {
    let nodes = hosts.iter().map(|host| host.address.as_str()).collect::<Vec<_>>().join(",");
    let mut command = program();
    command.args(["run", "--quiet", "--nodes", &nodes, "--outstanding", "4"]).args(rest.split_whitespace());
    command
}

fn short(hosts: &[Host]) -> Output {
    run(hosts, "--pattern ring --seconds 0.1 --repetitions 1").output().expect("it runs")
}

/// Starts a coordinator. Returns when its nodes are busy and reject another coordinator.
fn at_work(hosts: &[Host], rest: &str) -> Child {
    wait_until("nodes at work", PATIENCE, || {
        let mut coordinator = run(hosts, rest).stderr(Stdio::piped()).spawn().expect("it runs");
        thread::sleep(Duration::from_secs(1));
        let refused = short(hosts);
        if told(&refused).contains("another run") && coordinator.try_wait().expect("its status").is_none() {
            assert_eq!(refused.status.code(), Some(2), "{}", told(&refused));
            return Some(coordinator);
        }
        // The other coordinator was first.
        let _ended = coordinator.kill();
        coordinator.wait().expect("it ends");
        None
    })
}

fn told(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn pattern_run_reports_results_by_node_and_in_total() {
    let _alone = crate::alone();
    let hosts: [Host; 3] = std::array::from_fn(|_| Host::start());
    let folder = Folder::new().expect("a temporary directory");
    let (path, page) = (folder.join("out.json"), folder.join("out.html"));
    let files = format!("--json {} --html {}", path.display(), page.display());
    let options =
        format!("--pattern all-to-all --seconds 0.1 --repetitions 2 --size 1K --small-beside-bulk {files}");
    let output = run(&hosts, &options).output().expect("it runs");
    assert!(output.status.success(), "{}", told(&output));
    let json: Value = serde_json::from_slice(&std::fs::read(&path).expect("the file")).expect("JSON");
    for key in ["rtt_p50_ns", "rtt_p99_ns", "calls_per_s", "bytes_per_s"] {
        assert!(json[key].as_f64().is_some_and(|value| value > 0.0), "{key}: {json}");
    }
    for row in [&json].into_iter().chain(json["nodes"].as_array().expect("nodes")) {
        let row = &row["comparison"];
        for key in ["/goodput_bytes_per_s", "/tcp_bytes_per_s", "/tcp_ratio", "/jain", "/small/calls"] {
            assert!(
                row.pointer(key).and_then(Value::as_f64).is_some_and(|value| value > 0.0),
                "{key}: {row}"
            );
        }
        assert!(row["verdict"]["goodput"].is_boolean() && row["losses"]["retransmits"].is_u64(), "{row}");
    }
    let shown = std::fs::read_to_string(&page).expect("the page");
    let caller = &hosts[2].address;
    assert!(shown.contains("<svg") && shown.contains(caller.as_str()), "{caller}");
    let nodes = json["nodes"].as_array().expect("nodes");
    let measured = nodes.iter().filter_map(|node| node["pairs"].as_array()).map(Vec::len).sum::<usize>();
    assert_eq!((nodes.len(), measured, &json["partial"]), (3, 6, &false.into()), "{json}");
}

#[test]
fn strict_run_has_exit_code_of_verdict() {
    let _alone = crate::alone();
    let hosts: [Host; 2] = std::array::from_fn(|_| Host::start());
    let folder = Folder::new().expect("a temporary directory");
    let path = folder.join("out.json");
    let options = "--pattern pairs --seconds 0.1 --repetitions 1 --size 1 --strict";
    let output = run(&hosts, &format!("{options} --json {}", path.display())).output().expect("it runs");
    let json: Value = serde_json::from_slice(&std::fs::read(&path).expect("the file")).expect("JSON");
    // With one-byte payloads, TCP usually has the higher goodput. No test checks a rate.
    let passed = json["comparison"]["verdict"]["passed"].as_bool().expect("a verdict");
    assert_eq!(output.status.code(), Some(if passed { 0 } else { 4 }), "{}", told(&output));
    assert_eq!(passed, !told(&output).contains("all: failed: goodput"), "{}", told(&output));
    let output = run(&hosts, &format!("{options} --no-tcp")).output().expect("it runs");
    assert!(output.status.success(), "{}", told(&output));
}

#[test]
fn nodes_are_freed_after_coordinator_is_killed() {
    let _alone = crate::alone();
    let mut hosts = (0..4).map(|_| Host::start()).collect::<Vec<_>>();
    let mut idle = hosts.split_off(2);
    let mut coordinator = at_work(&hosts, "--pattern ring --seconds 600");
    // A run that one node rejects does not occupy the other nodes.
    idle.push(hosts.remove(0));
    let refused = short(&idle);
    assert!(told(&refused).contains("another run"), "{}", told(&refused));
    hosts.extend(idle.pop());
    let output = short(&idle);
    assert!(output.status.success(), "{}", told(&output));
    coordinator.kill().expect("it is killed");
    coordinator.wait().expect("it ends");
    wait_until("free nodes", PATIENCE, || short(&hosts).status.success().then_some(()));
}

#[test]
fn failed_runs_name_node_and_reason() {
    let _alone = crate::alone();
    let host = Host::start();
    let address = host.address.clone();
    let absent = fresh_ip().to_string();
    for (nodes, rest, words) in [
        (
            format!("{address},{absent}"),
            "--pattern ring",
            [absent.as_str(), "does `trunkline-bench node` run there"],
        ),
        (format!("{address},{address}"), "--pattern ring", [address.as_str(), "twice"]),
        (address.clone(), "--pattern ring", ["two nodes at least", "1 are named"]),
        (format!("{address},a,b"), "--pattern pairs", ["an even number", "3 are named"]),
        (format!("{address},{absent}"), "--pattern ring --size 1,2", ["--size", "one size"]),
    ] {
        let output = program().args(["run", "--nodes", &nodes]).args(rest.split_whitespace()).output();
        let output = output.expect("it runs");
        assert_eq!(output.status.code(), Some(2), "{}", told(&output));
        assert!(words.iter().all(|word| told(&output).contains(word)), "{words:?}: {}", told(&output));
    }
}
