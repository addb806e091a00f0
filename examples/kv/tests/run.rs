//! Runs the two programs as the README does.

use std::net::Ipv4Addr;
use std::process::{Command, Output, Stdio};
use trunkline_testkit::{Process, fresh_ip, run};

/// A running server at an address that only its clients share.
struct Server {
    process: Process,
    address: String,
    ip: Ipv4Addr,
}

impl Server {
    fn start() -> Self {
        let ip = fresh_ip();
        let mut command = Command::new(env!("CARGO_BIN_EXE_kv-server"));
        command.args(["--listen", &format!("{ip}:0"), "--pollers", "2"]);
        let mut process = Process::start("kv-server", &mut command).expect("the server starts");
        let address = process.after("listening ").expect("the address");
        Self { process, address, ip }
    }

    fn client(&self, args: &[&str], input: &[u8]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kv-client"));
        command.args(["--server", &self.address, "--address", &self.ip.to_string()]);
        // The time limit suits a loaded machine.
        command.args(["--timeout-ms", "60000"]).args(args);
        run(&mut command, input).expect("the client runs")
    }
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
    fn a_closed_pipe_is_no_error() {
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
    fn load_reports_its_counts_and_reads_only_right_values() {
        let server = Server::start();
        let output = server.client(&["load", "--for", "1", "--workers", "3", "--json"], b"");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{text}");
        let last = text.lines().last().unwrap_or_default();
        assert!(last.contains("\"unavailable\":0,\"late\":0,\"other\":0,\"wrong\":0,"), "{last}");
        assert!(last.contains("\"device\":\"there\",\"incarnations\":1,"), "{last}");
    }

    #[test]
    fn a_client_without_a_server_reports_an_error() {
        let mut server = Server::start();
        server.process.kill().expect("it runs");
        let output = server.client(&["get", "colour"], b"");
        assert_eq!(output.status.code(), Some(2));
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(error.contains("kv-client: "), "{error}");
    }
}
