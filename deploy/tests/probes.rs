//! Runs `trunkctl ping` and `trunkctl health` against nodes of this process.

#[cfg(test)]
mod tests {
    use serde_json::Value;
    use std::process::Command;
    use trunkline::Node;
    use trunkline::health::{HealthReporter, ServingStatus};
    #[cfg(feature = "identity")]
    use trunkline_testkit::Folder;

    /// Returns the exit status and standard output.
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
    fn ping_has_the_steps_of_a_session_and_its_round_trips() {
        let server = Node::builder().listen("127.0.0.1:0").start().unwrap();
        let (exit, result) = ping(&["-c", "3", &format!("localhost:{}", server.local_address().port())]);
        assert_eq!(exit, 0, "{result}");
        let steps = steps(&result);
        assert_eq!(steps[..3], ["names looked up", "node started", "request sent"], "{result}");
        assert!(["answered", "dialled back"].iter().all(|step| steps.contains(step)), "{result}");
        assert_eq!(steps.last(), Some(&"session up"), "{result}");
        // This node has no health service, and answers.
        assert_eq!(result["round_trips_us"].as_array().map(Vec::len), Some(3), "{result}");
        assert!(result["cause"].is_null());
    }

    #[test]
    fn ping_names_the_last_step_and_the_cause() {
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
        let (exit, result) = ping(&["no-such-host.invalid:7000"]);
        assert_eq!((exit, &result["steps"]), (1, &Value::Array(Vec::new())), "{result}");
    }

    #[cfg(feature = "identity")]
    #[test]
    fn ping_proves_names_and_shows_the_servers() {
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
        let (exit, result) = ping(&[&proof[..], &["--name", "till.example", &address]].concat());
        assert_eq!(exit, 1, "{result}");
        assert!(result["cause"].as_str().is_some_and(|cause| cause.contains("till.example")), "{result}");
        assert_eq!(ping(&[&address]).0, 1, "a client without an identity");
    }

    #[test]
    fn health_has_the_exit_statuses_of_probes() {
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
        drop(server);
        assert_eq!(probe(&[&address]).0, 2);
        assert_eq!(probe(&["--no-such-option"]).0, 1);
    }
}
