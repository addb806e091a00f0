//! Tests of `trunkctl ping`, `health`, `top` and `record` with nodes in this process.

#[cfg(test)]
mod tests {
    use serde_json::Value;
    use std::fs::File;
    use std::net::SocketAddr;
    use std::process::Command;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc;
    use std::thread;
    use trunkline::health::{HealthClient, HealthReporter, ServingStatus};
    #[cfg(feature = "identity")]
    use trunkline::report::EventKind;
    use trunkline::{Node, PollerIndex, block_on};
    use trunkline_testkit::{Folder, Process, fresh_ip, is_in_network_namespace, print_line, same_test};

    /// Environment variable that contains the listen address of the process that holds a port.
    const HOLDER: &str = "TRUNKLINE_TEST_HOLDER";

    /// Runs `trunkctl`, and returns the exit status and standard output.
    fn trunkctl(arguments: &[&str]) -> (i32, String) {
        let output = Command::new(env!("CARGO_BIN_EXE_trunkctl"))
            .args(arguments)
            .output()
            .expect("the program starts");
        let text = String::from_utf8(output.stdout).expect("UTF-8");
        (output.status.code().expect("no signal"), text)
    }

    fn ping(arguments: &[&str]) -> (i32, Value) {
        let (exit, text) = trunkctl(&[&["ping", "--json", "--interval-ms", "0"], arguments].concat());
        (exit, serde_json::from_str(&text).expect("JSON"))
    }

    fn steps(of: &Value) -> Vec<&str> {
        let steps = of["steps"].as_array().expect("an array");
        steps.iter().map(|step| step["step"].as_str().expect("a name")).collect()
    }

    #[test]
    fn ping_reports_session_steps_and_round_trips() {
        let server = Node::builder().listen("127.0.0.1:0").start().unwrap();
        let (exit, result) = ping(&["-c", "3", &format!("localhost:{}", server.local_address().port())]);
        assert_eq!(exit, 0, "{result}");
        let steps = steps(&result);
        assert_eq!(steps[..3], ["names looked up", "node started", "request sent"], "{result}");
        assert!(["answered", "dialled back"].iter().all(|step| steps.contains(step)), "{result}");
        assert_eq!(steps.last(), Some(&"session up"), "{result}");
        // This node answers although it has no health service.
        assert_eq!(result["round_trips_us"].as_array().map(Vec::len), Some(3), "{result}");
        assert!(["cause", "code", "reason"].iter().all(|name| result[name].is_null()), "{result}");
        assert_eq!((&result["server"]["level"], &result["server"]["issuer"]), (&"none".into(), &Value::Null));
    }

    #[test]
    fn ping_without_identity_uses_address_of_environment() {
        let test = "ping_without_identity_uses_address_of_environment";
        let own = "10.99.0.1";
        if !is_in_network_namespace(module_path!(), test, &format!("ip address add {own}/32 dev lo")) {
            return;
        }
        let server = Node::builder().listen("127.0.0.1:0").start().unwrap();
        let output = Command::new(env!("CARGO_BIN_EXE_trunkctl"))
            .args(["ping", "--json", "-c", "1", &server.local_address().to_string()])
            .env("TRUNKLINE_ADDRESS", own)
            .output()
            .expect("the program starts");
        let result: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert!(output.status.success(), "{result}");
        let step = &result["steps"][0];
        assert_eq!(step["step"], "node started", "{result}");
        assert!(
            step["detail"].as_str().is_some_and(|detail| detail.contains(&format!(", {own}:"))),
            "{result}"
        );
    }

    #[test]
    fn ping_names_last_step_and_cause() {
        let server = Node::builder().listen("127.0.0.1:0").start().unwrap();
        let address = server.local_address();
        drop(server);
        let (exit, result) = ping(&[&address.to_string()]);
        assert_eq!(exit, 1);
        assert_eq!(result["failed_after"], "request sent", "{result}");
        assert!(
            result["cause"].as_str().is_some_and(|cause| cause.contains(&address.to_string())),
            "{result}"
        );
        assert_eq!(
            (&result["code"], &result["reason"]),
            (&"UNAVAILABLE".into(), &"Unreachable".into()),
            "{result}"
        );
        let (exit, result) = ping(&["no-such-host.invalid:7000"]);
        assert_eq!((exit, &result["steps"]), (1, &Value::Array(Vec::new())), "{result}");
        assert!(["code", "reason", "server"].iter().all(|name| result[name].is_null()), "{result}");
    }

    #[test]
    fn route_that_refuses_server_is_cause() {
        let setup = "ip link add near type veth peer name far && ip address add 10.9.0.1/24 dev near && ip link set near up && \
                     ip route add blackhole 10.1.0.0/24 && ip route add unreachable 10.2.0.0/24 && ip route add prohibit 10.3.0.0/24";
        if !is_in_network_namespace(module_path!(), "route_that_refuses_server_is_cause", setup) {
            return;
        }
        for server in ["10.1.0.7", "10.2.0.7", "10.3.0.7", "10.4.0.7"] {
            for own in ["", "10.9.0.1"] {
                let output = Command::new(env!("CARGO_BIN_EXE_trunkctl"))
                    .args(["ping", "--json", "--timeout-ms", "60000", &format!("{server}:7000")])
                    .env("TRUNKLINE_ADDRESS", own)
                    .output()
                    .expect("the program starts");
                let result: Value = serde_json::from_slice(&output.stdout).expect("JSON");
                let cause = result["cause"].as_str().expect("a cause");
                assert!(cause.contains(&format!("no route to {server}: ")), "{own} {cause}");
                assert!(
                    cause.ends_with(&format!("check the address and the routes (ip route get {server})")),
                    "{own} {cause}"
                );
                assert_eq!(result["reason"], "Unreachable", "{result}");
            }
        }
    }

    #[cfg(feature = "identity")]
    #[test]
    fn ping_proves_names_and_shows_servers() {
        let folder = Folder::new().expect("a temporary directory");
        let at = |name: &str| folder.path().join(name).display().to_string();
        assert_eq!(trunkctl(&["keys", "init", &at("ca")]).0, 0);
        for name in ["shop.example", "ops.example"] {
            assert_eq!(trunkctl(&["keys", "issue", &at("ca"), name, "--out", &at(name)]).0, 0);
        }
        let (root, [shop, shop_key, ops, ops_key]) = (
            at("ca/root.pem"),
            ["shop.example.pem", "shop.example.key", "ops.example.pem", "ops.example.key"].map(at),
        );
        let server =
            Node::builder().listen("127.0.0.1:0").identity_files(&shop, &shop_key).trust_files(&root);
        let server = server.exempt_local_user(false).start().unwrap();
        let address = server.local_address().to_string();
        let proof = ["--identity", &ops, "--key", &ops_key, "--trust", &root, "--no-exemption"];
        let (exit, result) = ping(&[&proof[..], &["--name", "shop.example", &address]].concat());
        assert_eq!(exit, 0, "{result}");
        let named = result["steps"].as_array().unwrap().iter().find(|step| step["step"] == "name proved");
        assert!(
            named.is_some_and(|step| step["detail"].as_str().unwrap().contains("shop.example")),
            "{result}"
        );
        let (_, shown) = trunkctl(&["keys", "show", "--json", &shop]);
        let shown: Value = serde_json::from_str(&shown).expect("JSON");
        let certificate = &shown["files"][0]["certificates"][0];
        assert_eq!(result["server"]["level"], "encrypted", "{result}");
        for field in ["names", "issuer", "not_after"] {
            assert_eq!(result["server"][field], certificate[field], "{result}");
        }
        let (_, text) =
            trunkctl(&[&["ping", "-c", "0"], &proof[..], &["--name", "shop.example", &address]].concat());
        assert!(text.contains("encrypted, certificate of shop.example issued by CN="), "{text}");
        let (exit, result) = ping(&[&proof[..], &[&address]].concat());
        let cause = result["cause"].as_str().expect("a cause");
        assert!(
            exit == 1
                && cause.ends_with("or give the name of the server: Target::named, or --name of trunkctl"),
            "{cause}"
        );
        let (exit, result) = ping(&[&proof[..], &["--name", "till.example", &address]].concat());
        assert_eq!(exit, 1, "{result}");
        assert!(result["cause"].as_str().is_some_and(|cause| cause.contains("till.example")), "{result}");
        assert_eq!(
            (&result["code"], &result["server"]["names"][0]),
            (&"UNAUTHENTICATED".into(), &"shop.example".into())
        );
        assert_eq!(ping(&[&address]).0, 1, "a client without an identity");
    }

    /// The first attempt reports the cause, so a short time limit is sufficient.
    #[cfg(feature = "identity")]
    #[test]
    fn ping_and_health_name_refused_certificate_after_first_attempt() {
        let folder = Folder::new().expect("a temporary directory");
        let at = |name: &str| folder.path().join(name).display().to_string();
        for root in ["ca", "other"] {
            assert_eq!(trunkctl(&["keys", "init", &at(root)]).0, 0);
        }
        for name in ["shop", "ops"] {
            assert_eq!(trunkctl(&["keys", "issue", &at("ca"), name, "--out", &at(name)]).0, 0);
        }
        let server = Node::builder()
            .listen("127.0.0.1:0")
            .identity_files(at("shop.pem"), at("shop.key"))
            .trust_files(at("ca/root.pem"));
        let server = server.exempt_local_user(false).start().unwrap();
        let address = server.local_address().to_string();
        let (identity, key, root) = (at("ops.pem"), at("ops.key"), at("other/root.pem"));
        let proof = ["--identity", &identity, "--key", &key, "--trust", &root, "--no-exemption"];
        let proof = [&proof[..], &["--name", "shop", &address]].concat();
        let mut before = 0;
        for (command, option) in [("ping", "--timeout-ms"), ("health", "--connect-timeout-ms")] {
            let (_, text) = trunkctl(&[&[command, "--json", option, "60000"], &proof[..]].concat());
            let result: Value = serde_json::from_str(&text).expect("JSON");
            assert!(result["cause"].as_str().expect("a cause").contains("certificate"), "{result}");
            assert_eq!(result["code"], "UNAUTHENTICATED", "{result}");
            let count =
                server.record().iter().filter(|event| event.kind == EventKind::SessionNotMade).count();
            assert!(count - before <= 2, "{count} attempts, {before} before {command}");
            before = count;
        }
    }

    /// A second process at the address uses the port bound by the first.
    #[test]
    fn nodes_names_holder_and_users_of_port() {
        let server = Node::builder().listen((fresh_ip(), 0)).start().unwrap();
        let address = server.local_address();
        let mut command = Command::new(env!("CARGO_BIN_EXE_trunkctl"));
        command.args(["ping", "-c", "2", "--interval-ms", "60000", &address.to_string()]);
        let mut client =
            Process::start("ping", command.env("TRUNKLINE_ADDRESS", address.ip().to_string())).unwrap();
        client.after("  call 0").unwrap();
        // Nodes of other tests may end at the same time and not answer.
        let (_, text) = trunkctl(&["nodes", "--json", "--interval-ms", "0"]);
        let list: Value = serde_json::from_str(&text).expect("JSON");
        let ports = list["ports"].as_array().unwrap();
        let port = ports.iter().find(|port| port["address"] == address.ip().to_string()).expect("the port");
        assert_eq!((&port["pid"], &port["port"]), (&std::process::id().into(), &4791.into()), "{port}");
        assert_eq!(port["senders"], serde_json::json!([client.id()]), "{port}");
        assert!(port["uid"].is_u64() && port["since"].as_str().is_some_and(|at| at.ends_with('Z')), "{port}");
    }

    #[test]
    fn nodes_and_top_name_stopped_holder_of_port_and_fail() {
        let test = "nodes_and_top_name_stopped_holder_of_port_and_fail";
        if let Ok(address) = std::env::var(HOLDER) {
            let node = Node::builder().listen(address).start().unwrap();
            print_line(&format!("listens at {}", node.local_address()));
            return thread::park();
        }
        let folder = Folder::new().expect("a temporary directory");
        let (at, directory) = (fresh_ip(), folder.join("run"));
        let mut command = same_test(module_path!(), test);
        let command = command.env(HOLDER, format!("{at}:0")).env("TRUNKLINE_RUNTIME_DIR", &directory);
        let mut holder = Process::start("holder", command).unwrap();
        holder.after("listens at ").unwrap();
        holder.stop();
        let run = |arguments: &[&str]| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_trunkctl"));
            let command = command.args(arguments);
            let output =
                command.env("TRUNKLINE_RUNTIME_DIR", &directory).output().expect("the program starts");
            (output.status.code(), String::from_utf8(output.stdout).expect("UTF-8"))
        };
        let nodes = |arguments: &[&str]| run(&[&["nodes", "--interval-ms", "0"], arguments].concat());
        let pid = holder.id();
        let (exit, text) = nodes(&[]);
        let begin = format!("UDP port 4791 at {at}: process {pid} (");
        let line = text.lines().find(|line| line.starts_with(&begin));
        let end = format!("; is stopped: kill -CONT {pid}, or end it");
        assert!(exit == Some(1) && line.is_some_and(|line| line.ends_with(&end)), "{exit:?} {text}");
        let (exit, text) = nodes(&["--json"]);
        let list: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!((exit, &list["silent_pids"]), (Some(1), &serde_json::json!([pid])), "{list}");
        let port = &list["ports"][0];
        assert_eq!((&port["pid"], &port["is_stopped"]), (&pid.into(), &true.into()), "{list}");
        let (exit, text) = run(&["top", "-n", "1", "--interval-ms", "10"]);
        assert!(exit == Some(1) && text.lines().any(|line| line.ends_with(&end)), "{exit:?} {text}");
        let silent =
            format!("process {pid} does not answer: it is stopped, too busy, ending, or of another version");
        assert!(text.contains(&silent), "{text}");
        let (exit, text) = run(&["top", "--json", "-n", "1", "--interval-ms", "10"]);
        let list: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!((exit, &list["silent_pids"]), (Some(1), &serde_json::json!([pid])), "{list}");
        assert!(list["ports"][0]["is_stopped"] == true && list["not_visible"].is_string(), "{list}");
    }

    #[test]
    fn ping_reports_held_poller_as_missing_answer() {
        let server = Node::builder().listen("127.0.0.1:0").pollers(1).start().unwrap();
        let address = server.local_address().to_string();
        let (release, held) = mpsc::channel::<()>();
        let (begin, begun) = mpsc::channel();
        let task = server.run_on(PollerIndex(0), move |_| async move {
            begin.send(()).unwrap();
            held.recv().unwrap_err();
        });
        begun.recv().unwrap();
        let (exit, result) = ping(&["--timeout-ms", "5000", &address]);
        let cause = result["cause"].as_str().expect("a cause");
        assert_eq!(exit, 1, "{result}");
        assert!(cause.starts_with(&format!("no answer after 5s: {address}: the session is up, ")), "{cause}");
        drop(release);
        block_on(task).unwrap();
    }

    #[test]
    fn failed_write_of_answer_is_error() {
        let server = Node::builder().listen("127.0.0.1:0").health(&HealthReporter::new()).start().unwrap();
        for command in [&["ping", "-c", "1"][..], &["ping", "--json", "-c", "1"], &["health"]] {
            let full = File::options().write(true).open("/dev/full").unwrap();
            let output = Command::new(env!("CARGO_BIN_EXE_trunkctl"))
                .args(command)
                .arg(server.local_address().to_string())
                .stdout(full)
                .output()
                .expect("the program starts");
            let error = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{command:?}: {error}");
            assert!(error.contains("cannot be written: No space left on device"), "{command:?}: {error}");
        }
    }

    #[test]
    fn health_returns_exit_statuses_of_probes() {
        let health = HealthReporter::new();
        let server = Node::builder().listen("127.0.0.1:0").health(&health).start().unwrap();
        let address = server.local_address().to_string();
        let probe = |arguments: &[&str]| {
            let limits = ["health", "--connect-timeout-ms", "30000", "--call-timeout-ms", "30000"];
            trunkctl(&[&limits, arguments].concat())
        };
        assert_eq!(probe(&[&address]), (0, "serving\n".to_owned()));
        let (exit, text) = probe(&[&address, "shop.Orders"]);
        assert!(exit == 3 && text.contains("NotFound"), "{exit} {text}");
        health.set("shop.Orders", ServingStatus::NotServing);
        assert_eq!(probe(&[&address, "shop.Orders"]), (4, "not serving\n".to_owned()));
        let (exit, text) = probe(&[&address, "Orders"]);
        assert!(exit == 3 && text.contains("\"Orders\": give its full name"), "{exit} {text}");
        server.drain();
        let (exit, text) = probe(&["--json", &address]);
        let result: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!((exit, &result["status"]), (4, &"not serving".into()), "{result}");
        assert_eq!(
            (&result["code"], &result["reason"]),
            (&"UNAVAILABLE".into(), &"Draining".into()),
            "{result}"
        );
        let (exit, text) = probe(&[&address]);
        assert!(exit == 4 && text.starts_with("not serving: "), "{exit} {text}");
        drop(server);
        let (exit, text) = probe(&[&address]);
        assert!(exit == 2 && text.contains(&format!("`trunkctl ping {address}`")), "{exit} {text}");
        assert_eq!(probe(&["--no-such-option"]).0, 1);
    }

    #[test]
    fn record_lists_calls_failures_and_sessions_of_node() {
        let health = HealthReporter::new();
        let server = Node::builder().listen("127.0.0.1:0").health(&health).start().unwrap();
        let address = server.local_address();
        let node = Node::builder().start().unwrap();
        let client = HealthClient::new(node.channel(address));
        block_on(client.check(String::new())).unwrap();
        block_on(client.check("no.Such".to_owned())).unwrap_err();
        let (exit, text) = trunkctl(&["record", "--json", &address.to_string()]);
        assert_eq!(exit, 0, "{text}");
        let record: Value = serde_json::from_str(&text).expect("JSON");
        let [node] = &record["nodes"].as_array().unwrap()[..] else { panic!("{record}") };
        assert_eq!(node["address"], address.to_string());
        let events = node["events"].as_array().unwrap();
        let names: Vec<_> = events.iter().map(|event| event["event"].as_str().unwrap()).collect();
        assert_eq!(names, ["session up", "call", "call failed"], "{record}");
        let failed = &events[2];
        assert_eq!((&failed["side"], &failed["code"]), (&"server".into(), &"NOT_FOUND".into()), "{failed}");
        assert!(failed["method"].as_str().is_some_and(|method| method.ends_with(".check")), "{failed}");
        assert!(events[1]["took_us"].is_f64() && failed["cause"].is_null(), "{record}");
        let (exit, text) = trunkctl(&["record", &address.to_string()]);
        assert!(exit == 0 && text.contains("  call failed, poller 0, server, "), "{text}");
        drop(server);
        let output = Command::new(env!("CARGO_BIN_EXE_trunkctl"))
            .args(["record", "--json", &address.to_string()])
            .output()
            .unwrap();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(error.contains(&format!("no node at {address} gives a record")), "{error}");
        let record: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let text = record["error"].as_str().expect("an error");
        assert!(error.contains(text) && record["nodes"] == serde_json::json!([]), "{record}");
    }

    /// The list also contains the nodes of other tests.
    #[test]
    fn top_shows_rates_of_methods_and_peers() {
        let health = HealthReporter::new();
        let server = Node::builder().listen("127.0.0.1:0").health(&health).start().unwrap();
        let address = server.local_address();
        let node = Node::builder().start().unwrap();
        let client = HealthClient::new(node.channel(address));
        let is_over = AtomicBool::new(false);
        let (exit, text) = thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    block_on(client.check(String::new())).unwrap();
                }
            });
            let result = trunkctl(&["top", "--json", "-n", "2", "--interval-ms", "300"]);
            is_over.store(true, Ordering::Relaxed);
            result
        });
        assert_eq!((exit, text.lines().count()), (0, 2), "{text}");
        let last: Value = serde_json::from_str(text.lines().last().unwrap()).expect("JSON");
        let of = |address: SocketAddr| {
            let nodes = last["nodes"].as_array().unwrap();
            nodes.iter().find(|node| node["address"] == address.to_string()).expect("the node")
        };
        for (node, side) in [(of(address), "server"), (of(node.local_address()), "client")] {
            let methods = node["methods"].as_array().unwrap();
            let method = methods.iter().find(|method| method["method"] == "check" && method["side"] == side);
            let method = method.expect("the method");
            assert!(method["calls_per_s"].as_f64().is_some_and(|rate| rate > 0.0), "{method}");
            assert!(method["failed_per_s"] == 0.0 && method["p99_us"].is_f64(), "{method}");
            assert!(node["peers"][0]["sent_per_s"].as_f64().is_some_and(|rate| rate > 0.0), "{node}");
        }
    }
}
