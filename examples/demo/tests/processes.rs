//! Runs the demo as a user does, undisturbed and with either side killed or stopped.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use trunkline_testkit::{Folder, Process, fresh_ip};

/// Time limit of each wait on a loaded machine. The simulation checks that deaths are detected within 3 s.
const PATIENCE: Duration = Duration::from_secs(60);

/// A directory with a small tree, removed on drop.
struct Scene {
    root: Folder,
    addresses: [String; 2],
    /// True if the client has a separate address.
    apart: bool,
}

impl Scene {
    /// Creates a scene in which both sides have the same address.
    fn new() -> Self {
        let root = Folder::new().expect("a directory");
        std::fs::create_dir_all(root.join("tree/below")).expect("a directory");
        let bytes: Vec<u8> =
            (0..3_000_000_u32).map(|i| i.wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect();
        for (name, length) in [("empty", 0), ("small", 7), ("below/page", 4096), ("below/large", bytes.len())]
        {
            std::fs::write(root.join("tree").join(name), &bytes[..length]).expect("a file");
        }
        Self { root, addresses: [fresh_ip().to_string(), fresh_ip().to_string()], apart: false }
    }

    /// Creates a scene in which each side has a separate address.
    fn apart() -> Self {
        let mut scene = Self::new();
        scene.apart = true;
        scene
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// Returns the command that runs the demo with this scene's tree and addresses and the arguments `more`.
    fn command(&self, more: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_trunkline-demo"));
        command
            .args(["--tree", path_text(&self.root.join("tree"))])
            .args(["--server-address", &self.addresses[0]])
            .args(["--client-address", &self.addresses[usize::from(self.apart)]])
            .args(more)
            .env("TRUNKLINE_LOG", "info")
            .env("TRUNKLINE_XRC", "on");
        command
    }

    fn demo(&self, more: &[&str]) -> Process {
        Process::start_program("the demo", &mut self.command(more)).expect("it starts")
    }

    fn server(&self) -> Server {
        let mut command = self.command(&["server"]);
        let process = Process::start_program("the server", &mut command).expect("it starts");
        let mut process = process.with_bound(PATIENCE);
        let address = process.after("listening ").expect("the server listens");
        Server { process, address }
    }

    fn client(&self, server: &Server, calls: u64) -> Process {
        let calls = calls.to_string();
        let mut command = self.command(&["--calls", &calls, "client", "--server", &server.address]);
        Process::start_program("the client", &mut command).expect("it starts")
    }
}

fn path_text(path: &Path) -> &str {
    path.to_str().expect("temporary paths are text")
}

struct Server {
    process: Process,
    /// Address on which the server listens.
    address: String,
}

/// Returns the exit code of a process if it exits within the given time.
fn exit_code(process: &mut Process, within: Duration) -> Option<i32> {
    process.wait(within).and_then(|status| status.code())
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::signal::Signal;
    use serde_json::Value;
    use std::process::Stdio;

    fn run(scene: &Scene, more: &[&str]) -> Value {
        let json = scene.path("out.json");
        let mut args = vec!["--json", path_text(&json)];
        args.extend(more);
        let mut demo = scene.demo(&args);
        assert_eq!(exit_code(&mut demo, 2 * PATIENCE), Some(0), "the demo ends well");
        serde_json::from_slice(&std::fs::read(&json).expect("a report")).expect("JSON")
    }

    /// Returns true if the test uses NICs. The drop-in libraries count as NICs. They are used with the feature
    /// `rdma-core`, and with `LD_LIBRARY_PATH` and `TRUNKLINE_PROVIDER=require` in the environment.
    fn on_nic() -> bool {
        std::env::var("TRUNKLINE_PROVIDER").is_ok_and(|provider| provider == "require")
    }

    fn check(report: &Value, calls: u64) {
        let mut paths =
            report["paths"].as_array().into_iter().flatten().filter_map(|path| path["path"].as_str());
        let provider = if on_nic() { "rdma-core" } else { "softrdma" };
        let link = if on_nic() { "ethernet" } else { paths.next().expect("a path to the server") };
        assert_eq!(report["provider"], provider);
        assert_eq!(report["device"], "trunkline0");
        assert!(report["gid_index"].is_u64(), "{report}");
        assert_eq!(report["link"], link);
        assert_eq!(report["files"], 4);
        assert_eq!(report["bytes"], 3_004_103);
        assert_eq!(report["mismatches"], 0);
        assert_eq!(report["calls"], calls);
        assert!(
            report["p50_ns"].as_u64() > Some(0) && report["p99_ns"].as_u64() >= report["p50_ns"].as_u64()
        );
    }

    #[test]
    fn one_poller_per_node_uses_two_queue_pairs() {
        let report = run(&Scene::new(), &["--calls", "3000"]);
        check(&report, 3000);
        assert_eq!(report["qps_per_node"], 2);
        assert_eq!(report["connections"], "xrc");
        assert_eq!(report["rnr"], 0);
    }

    #[test]
    fn closed_pipe_does_not_fail() {
        let scene = Scene::new();
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let output = scene.command(&["--calls", "300"]).stdout(writer).stderr(Stdio::piped()).output();
        let output = output.expect("it starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    #[test]
    fn two_pollers_per_node_use_four_queue_pairs() {
        let report = run(&Scene::apart(), &["--calls", "3000", "--pollers", "2"]);
        check(&report, 3000);
        assert_eq!(report["qps_per_node"], 4);
        each_poller_calls_its_counterpart(&report, 2);
    }

    /// Checks that each trunk has lanes to all pollers of the server, and that its calls use the lane to the poller with
    /// the same index.
    fn each_poller_calls_its_counterpart(report: &Value, pollers: usize) {
        let ways = report["messages"].as_array().expect("a table");
        assert_eq!(ways.len(), pollers * pollers);
        for way in ways {
            assert_eq!(way["sent"].as_u64() > Some(0), way["trunk"] == way["to_poller"], "{ways:?}");
        }
    }

    #[test]
    fn faults_on_link_do_not_reach_calls() {
        let faults = ["--drop", "0.01", "--reorder", "0.01", "--duplicate", "0.01", "--corrupt", "0.001"];
        let report = run(&Scene::new(), &[&faults[..], &["--calls", "3000", "--seed", "7"]].concat());
        check(&report, 3000);
        // The C interface has no counters.
        assert!(on_nic() || report["retransmits"].as_u64() > Some(0), "{report}");
    }

    #[test]
    fn rc_connections_complete_calls_despite_loss() {
        let more =
            ["--connections", "rc", "--drop", "0.005", "--seed", "8", "--calls", "1500", "--pollers", "3"];
        let report = run(&Scene::apart(), &more);
        check(&report, 1500);
        assert_eq!((report["connections"].as_str(), report["rnr"].as_u64()), (Some("rc"), Some(0)));
        assert_eq!(report["qps_per_node"], 6);
        each_poller_calls_its_counterpart(&report, 3);
    }

    #[test]
    fn sigterm_ends_both_processes() {
        let scene = Scene::new();
        let mut demo = scene.demo(&["--calls", "100000000"]);
        demo.find(PATIENCE, |line| line.contains("files done")).expect("it got to the calls");
        demo.signal(Signal::SIGTERM);
        assert_eq!(exit_code(&mut demo, PATIENCE), Some(1));
        // Both sides have ended; otherwise their addresses would still be in use.
        check(&run(&scene, &["--calls", "100"]), 100);
    }

    /// Number of calls that is too high to complete before a side is killed or stopped.
    const ENDLESS: u64 = 1_000_000_000;

    /// Starts a server, and a client that is making calls.
    fn running(scene: &Scene) -> (Server, Process) {
        let server = scene.server();
        let mut client = scene.client(&server, ENDLESS);
        client.find(PATIENCE, |line| line.contains("files done")).expect("the client got to its calls");
        (server, client)
    }

    fn is_unavailable(line: &str) -> bool {
        line.starts_with("demo client: ") && line.contains("Unavailable")
    }

    fn names_the_peer(line: &str) -> bool {
        line.contains("stopped answering")
    }

    /// Returns true if a line reports a dead peer. On the same host, the device closes the connections of a dead process,
    /// so the line may also report a normal end.
    fn names_the_dead(line: &str) -> bool {
        names_the_peer(line) || line.contains("closed the session") || line.contains("ended the session")
    }

    fn completes(scene: &Scene, server: &Server) {
        let mut client = scene.client(server, 100);
        assert_eq!(exit_code(&mut client, PATIENCE), Some(0), "a new client works at once");
    }

    #[test]
    fn killed_server_is_reported_and_its_restart_works() {
        let scene = Scene::new();
        let (server, mut client) = running(&scene);
        server.process.signal(Signal::SIGKILL);
        client.find(PATIENCE, is_unavailable).expect("it is reported");
        assert_eq!(exit_code(&mut client, PATIENCE), Some(1));
        drop((server, client));
        completes(&scene, &scene.server());
    }

    #[test]
    fn killed_client_is_reported_and_its_restart_works() {
        let scene = Scene::new();
        let (mut server, client) = running(&scene);
        client.signal(Signal::SIGKILL);
        server.process.find(PATIENCE, names_the_dead).expect("it is reported");
        drop(client);
        completes(&scene, &server);
    }

    #[test]
    fn stopped_server_is_reported() {
        let scene = Scene::new();
        let (server, mut client) = running(&scene);
        server.process.signal(Signal::SIGSTOP);
        client.find(PATIENCE, is_unavailable).expect("it is reported");
        assert_eq!(exit_code(&mut client, PATIENCE), Some(1));
        server.process.signal(Signal::SIGCONT);
        drop(client);
        completes(&scene, &server);
    }

    #[test]
    fn stopped_client_is_reported_and_recovers_or_reports_why_not() {
        let scene = Scene::new();
        let (mut server, mut client) = running(&scene);
        client.signal(Signal::SIGSTOP);
        server.process.find(PATIENCE, names_the_peer).expect("it is reported");
        client.signal(Signal::SIGCONT);
        // A call that is in flight at the stop fails. If no call is in flight, the next call opens a new session.
        let came = client.find(PATIENCE, |line| is_unavailable(line) || line.contains("session up"));
        if is_unavailable(&came.expect("the client learns that its session is over")) {
            assert_eq!(exit_code(&mut client, PATIENCE), Some(1));
        }
        drop(client);
        completes(&scene, &server);
    }
}
