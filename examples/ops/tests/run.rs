//! Runs the program and scrapes it as a Prometheus server does.
//!
//! In real time: the program is a process.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::time::Duration;
use trunkline::{Node, block_on};
use trunkline_example_ops::{MOST_BYTES, OpsClient};
use trunkline_testkit::{Process, fresh_ip, parse_scrape, run};

const LIMIT: Duration = Duration::from_secs(60);

/// Sends a request, and returns the head and the body of the answer.
fn request(at: &str, text: &str) -> (String, String) {
    let mut server = TcpStream::connect(at).unwrap();
    server.set_read_timeout(Some(LIMIT)).unwrap();
    server.write_all(text.as_bytes()).unwrap();
    let mut answer = String::new();
    server.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.contains(&format!("\r\nContent-Length: {}\r\n", body.len())), "{head}");
    (head.to_owned(), body.to_owned())
}

fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_trunkline-example-ops"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scrape_has_the_calls_and_each_line_parses() {
        let ip = fresh_ip();
        let mut command = program();
        command.args(["--listen", &format!("{ip}:0"), "--metrics", &format!("{ip}:0")]);
        let mut process = Process::start("ops", &mut command).unwrap();
        let address: SocketAddr = process.after("listening ").unwrap().parse().unwrap();
        let url = process.after("metrics http://").unwrap();
        let metrics = url.strip_suffix("/metrics").unwrap();
        let node = Node::builder().listen((ip, 0)).start().unwrap();
        let client = OpsClient::new(node.channel(address)).with_timeout(LIMIT);
        for text in ["one", "two"] {
            assert_eq!(block_on(client.echo(text.to_owned())).unwrap(), text);
        }
        let (head, body) = request(metrics, "GET /metrics HTTP/1.1\r\nHost: ops\r\n\r\n");
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        let samples = parse_scrape(&body);
        let name = "rpc_server_call_duration_seconds_count";
        let calls = samples.iter().filter(|sample| sample.name == name).collect::<Vec<_>>();
        assert_eq!((calls.len(), calls[0].value), (1, 2.0), "{calls:?}");
        assert_eq!(calls[0].labels["rpc_method"], "trunkline.example.Ops/echo");

        let (head, _) = request(metrics, "GET / HTTP/1.1\r\n\r\n");
        assert!(head.starts_with("HTTP/1.1 404 "), "{head}");
        let (head, _) = request(metrics, &"x".repeat(MOST_BYTES));
        assert!(head.starts_with("HTTP/1.1 431 "), "{head}");
    }

    #[test]
    fn scrapes_are_offered_on_loopback_only() {
        let output = run(program().args(["--listen", "127.0.0.1:0", "--metrics", "0.0.0.0:0"]), b"").unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && text.contains("expected a loopback address"), "{text}");
    }
}
