//! Runs the two programs as the README does.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::process::{Command, Output, Stdio};
use std::time::Duration;
use trunkline_testkit::{Process, fresh_ip, parse_scrape, run};

/// A running server at an address used only by the server and its clients.
struct Server {
    process: Process,
    address: String,
    ip: Ipv4Addr,
}

impl Server {
    fn start() -> Self {
        let ip = fresh_ip();
        let mut command = Command::new(env!("CARGO_BIN_EXE_kv-server"));
        let any_port = format!("{ip}:0");
        command.args(["--listen", &any_port, "--metrics", &any_port, "--pollers", "2"]);
        let mut process = Process::start("kv-server", &mut command).expect("the server starts");
        let address = process.after("listening ").expect("the address");
        Self { process, address, ip }
    }

    fn client(&self, args: &[&str], input: &[u8]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kv-client"));
        command.args(["--server", &self.address, "--address", &self.ip.to_string()]);
        // The time limit is long enough for a loaded machine.
        command.args(["--timeout-ms", "60000"]).args(args);
        run(&mut command, input).expect("the client runs")
    }
}

/// Sends an HTTP request, and returns the head and the body of the response.
fn request(to: &str, text: &str) -> (String, String) {
    let mut server = TcpStream::connect(to).expect("it listens");
    server.set_read_timeout(Some(Duration::from_secs(60))).expect("a time limit");
    server.write_all(text.as_bytes()).expect("a request is sent");
    let mut answer = String::new();
    server.read_to_string(&mut answer).expect("an answer");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    assert!(head.contains(&format!("\r\nContent-Length: {}\r\n", body.len())), "{head}");
    (head.to_owned(), body.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_put_listed_read_and_removed() {
        let server = Server::start();
        assert_eq!(server.client(&["get", "colour"], b"").status.code(), Some(1));
        assert!(server.client(&["put", "colour", "green"], b"").status.success());
        let large: Vec<u8> = (0..1_000_000_u32).map(|i| i.to_le_bytes()[i as usize % 3]).collect();
        assert!(server.client(&["put", "large"], &large).status.success());
        assert_eq!(server.client(&["get", "colour"], b"").stdout, b"green");
        assert_eq!(server.client(&["get", "large"], b"").stdout, large);
        assert_eq!(server.client(&["list"], b"").stdout, b"colour\nlarge\n");
        assert_eq!(server.client(&["delete", "large"], b"").status.code(), Some(0));
        assert_eq!(server.client(&["delete", "large"], b"").status.code(), Some(1));
    }

    #[test]
    fn closed_pipe_does_not_fail() {
        let server = Server::start();
        assert!(server.client(&["put", "colour", "green"], b"").status.success());
        for args in [&["get", "colour"][..], &["list"], &["load", "--for", "1", "--workers", "1"]] {
            let (reader, writer) = std::io::pipe().expect("a pipe");
            drop(reader);
            let mut command = Command::new(env!("CARGO_BIN_EXE_kv-client"));
            command.args(["--server", &server.address, "--address", &server.ip.to_string()]).args(args);
            let output = command.stdout(writer).stderr(Stdio::piped()).output().expect("the client runs");
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{args:?}: {stderr}");
        }
    }

    #[test]
    fn load_reports_counts_without_failures_or_wrong_values() {
        let server = Server::start();
        let output = server.client(&["load", "--for", "1", "--workers", "3", "--json"], b"");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{text}");
        let last = text.lines().last().unwrap_or_default();
        assert!(last.contains("\"unavailable\":0,\"late\":0,\"other\":0,\"wrong\":0,"), "{last}");
        assert!(last.contains("\"device\":\"there\",\"incarnations\":1,"), "{last}");
    }

    #[test]
    fn scrape_contains_calls_and_each_line_parses() {
        let mut server = Server::start();
        let url = server.process.after("metrics http://").expect("the address for scrapes");
        let metrics = url.strip_suffix("/metrics").expect("a path");
        for key in ["colour", "shape"] {
            assert_eq!(server.client(&["get", key], b"").status.code(), Some(1));
        }
        let (head, body) = request(metrics, "GET /metrics HTTP/1.1\r\nHost: kv\r\n\r\n");
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        let samples = parse_scrape(&body);
        let calls = samples.iter().find(|sample| {
            sample.name == "rpc_server_call_duration_seconds_count"
                && sample.labels["rpc_method"] == "trunkline.example.Kv/get"
        });
        assert_eq!(calls.map(|sample| sample.value), Some(2.0), "{samples:?}");

        let (head, _) = request(metrics, "GET / HTTP/1.1\r\n\r\n");
        assert!(head.starts_with("HTTP/1.1 404 "), "{head}");
        let (head, _) = request(metrics, &"x".repeat(4096));
        assert!(head.starts_with("HTTP/1.1 431 "), "{head}");
    }

    #[test]
    fn scrapes_are_offered_on_loopback_only() {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kv-server"));
        let output = run(command.args(["--listen", "127.0.0.1:0", "--metrics", "0.0.0.0:0"]), b"").unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && text.contains("expected a loopback address"), "{text}");
    }

    #[test]
    fn client_without_server_reports_error() {
        let mut server = Server::start();
        server.process.kill().expect("it runs");
        let output = server.client(&["get", "colour"], b"");
        assert_eq!(output.status.code(), Some(2));
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(error.contains("kv-client: "), "{error}");
    }
}
