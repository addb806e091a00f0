//! The whole demo on a small tree.

#[cfg(test)]
mod tests {
    use crate::scene::{PATIENCE, Scene, exit_code, path_text};
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

    /// Returns true on NICs, which here are the drop-in libraries: with the feature `rdma-core`, and
    /// `LD_LIBRARY_PATH` and `TRUNKLINE_PROVIDER=require` in the environment.
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
    fn one_poller_a_side() {
        let report = run(&Scene::new(), &["--calls", "3000"]);
        check(&report, 3000);
        assert_eq!(report["qps_per_node"], 2);
        assert_eq!(report["connections"], "xrc");
        assert_eq!(report["rnr"], 0);
    }

    #[test]
    fn a_closed_pipe_is_no_error() {
        let scene = Scene::new();
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let output = scene.command(&["--calls", "300"]).stdout(writer).stderr(Stdio::piped()).output();
        let output = output.expect("it starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    #[test]
    fn two_pollers_a_side_share_four_queue_pairs_and_reach_each_other() {
        let report = run(&Scene::apart(), &["--calls", "3000", "--pollers", "2"]);
        check(&report, 3000);
        assert_eq!(report["qps_per_node"], 4);
        let ways = report["messages"].as_array().expect("a table");
        for trunk in 0..2 {
            for poller in 0..2 {
                let reached = ways.iter().any(|way| {
                    way["trunk"] == trunk && way["to_poller"] == poller && way["sent"].as_u64() > Some(0)
                });
                assert!(reached, "trunk {trunk} reaches poller {poller}: {ways:?}");
            }
        }
    }

    #[test]
    fn faults_on_the_link_do_not_reach_the_calls() {
        let faults = ["--drop", "0.01", "--reorder", "0.01", "--duplicate", "0.01", "--corrupt", "0.001"];
        let report = run(&Scene::new(), &[&faults[..], &["--calls", "3000", "--seed", "7"]].concat());
        check(&report, 3000);
        // The C interface has no counters.
        assert!(on_nic() || report["retransmits"].as_u64() > Some(0), "{report}");
    }

    #[test]
    fn rc_connections_do_the_same_job() {
        let more =
            ["--connections", "rc", "--drop", "0.005", "--seed", "8", "--calls", "1500", "--pollers", "3"];
        let report = run(&Scene::apart(), &more);
        check(&report, 1500);
        assert_eq!((report["connections"].as_str(), report["rnr"].as_u64()), (Some("rc"), Some(0)));
        assert_eq!(report["qps_per_node"], 6);
        let ways = report["messages"].as_array().expect("a table");
        assert_eq!(ways.len(), 9);
        assert!(ways.iter().all(|way| way["sent"].as_u64() > Some(0)), "{ways:?}");
    }

    #[test]
    fn sigterm_ends_both_processes() {
        let scene = Scene::new();
        let mut demo = scene.demo(&["--calls", "100000000"]);
        demo.find(PATIENCE, |line| line.contains("files done")).expect("it got to the calls");
        demo.signal(Signal::SIGTERM);
        assert_eq!(exit_code(&mut demo, PATIENCE), Some(1));
        // The halves have ended; otherwise their addresses would still be in use.
        check(&run(&scene, &["--calls", "100"]), 100);
    }
}
