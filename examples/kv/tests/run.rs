//! Runs the two programs as their README does.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Command, Output, Stdio};

/// A running server; killed at the end of the test, however it ends.
struct Server {
    child: Child,
    address: String,
    ip: String,
}

impl Server {
    /// Each test has a number, and so an address of its own, which both programs share.
    fn start(test: u8) -> Self {
        let id = std::process::id().to_be_bytes();
        let ip = format!("127.{}.{}.{test}", 64 + id[2] % 64, id[3]);
        let mut child = Command::new(env!("CARGO_BIN_EXE_kv-server"))
            .args(["--listen", &format!("{ip}:0"), "--pollers", "2"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("the server starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("a line");
        let address = line.trim().strip_prefix("listening ").expect("the address").to_owned();
        Self { child, address, ip }
    }

    fn client(&self, args: &[&str], input: &[u8]) -> Output {
        let mut child = Command::new(env!("CARGO_BIN_EXE_kv-client"))
            .args(["--server", &self.address, "--address", &self.ip])
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the client starts");
        child.stdin.take().expect("piped").write_all(input).expect("input is taken");
        child.wait_with_output().expect("the client ends")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_put_listed_read_and_removed() {
        let server = Server::start(1);
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
    fn load_is_told_of_and_every_answer_is_right() {
        let server = Server::start(3);
        let output = server.client(&["load", "--for", "2", "--workers", "3", "--json"], b"");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{text}");
        let last = text.lines().last().unwrap_or_default();
        assert!(last.contains("\"unavailable\":0,\"late\":0,\"other\":0,\"wrong\":0,"), "{last}");
        assert!(last.contains("\"device\":\"there\",\"incarnations\":1,"), "{last}");
    }

    #[test]
    fn a_client_without_a_server_says_so() {
        let mut server = Server::start(2);
        server.child.kill().expect("it runs");
        server.child.wait().expect("it ends");
        let output = server.client(&["--timeout-ms", "3000", "get", "colour"], b"");
        assert_eq!(output.status.code(), Some(2));
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(error.contains("kv-client: "), "{error}");
    }
}
