//! Runs the two programs as the README does.
//!
//! Runs in real time, because the programs are separate processes.

use std::net::Ipv4Addr;
use std::process::{Command, Output};
use std::time::{Duration, Instant};
use trunkline_testkit::{Process, fresh_ip, run};

/// A running server at an address used only by the server and its clients.
struct Server {
    process: Process,
    address: String,
    ip: Ipv4Addr,
}

impl Server {
    fn start() -> Self {
        let ip = fresh_ip();
        let mut command = Command::new(env!("CARGO_BIN_EXE_feed-serve"));
        command.args(["--listen", &format!("{ip}:0")]);
        let mut process = Process::start("feed-serve", &mut command).expect("the server starts");
        let address = process.after("listening ").expect("the address");
        Self { process, address, ip }
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_feed"));
        command.args(["--server", &self.address, "--address", &self.ip.to_string()]);
        // The time limit is long enough for a loaded machine.
        command.args(["--timeout-ms", "60000"]).args(args);
        command
    }

    /// Waits up to a minute until `totals` prints `wanted`. A one-way call ends before its handler has run.
    fn wait_for_totals(&self, wanted: &str) {
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            let text = printed(&self.run(&["totals"], b""));
            if text == wanted {
                return;
            }
            assert!(Instant::now() < until, "{text}");
        }
    }

    fn run(&self, args: &[&str], input: &[u8]) -> Output {
        run(&mut self.command(args), input).expect("the client runs")
    }
}

fn printed(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use trunkline_testkit::Folder;

    #[test]
    fn events_reach_watchers_of_their_topic_in_order() {
        let server = Server::start();
        let mut watcher = Process::start("feed watch", &mut server.command(&["watch", "lamp"])).unwrap();
        assert_eq!(watcher.line().expect("it watches"), "watching");
        let lines: String = (0..2000).map(|number| format!("event {number}\n")).collect();
        assert_eq!(printed(&server.run(&["publish", "mill"], b"turns\n")), "published 1\n");
        // Wait until each block has reached the watcher, so that the watcher is not dropped as too slow.
        for block in lines.lines().collect::<Vec<_>>().chunks(500) {
            let text = block.join("\n") + "\n";
            assert_eq!(printed(&server.run(&["publish", "lamp/east"], text.as_bytes())), "published 500\n");
            for line in block {
                assert_eq!(watcher.line().expect("an event"), format!("lamp/east: {line}"));
            }
        }
    }

    #[test]
    fn one_way_events_arrive_in_order_and_are_counted() {
        let server = Server::start();
        let mut watcher = Process::start("feed watch", &mut server.command(&["watch", "mill"])).unwrap();
        assert_eq!(watcher.line().expect("it watches"), "watching");
        let lines: String = (0..500).map(|number| format!("event {number}\n")).collect();
        assert_eq!(printed(&server.run(&["emit", "mill"], lines.as_bytes())), "");
        assert_eq!(printed(&server.run(&["emit", "lamp"], b"lit\nout")), "");
        server.wait_for_totals("lamp 2 0\nmill 500 0\n");
        for line in lines.lines() {
            assert_eq!(watcher.line().expect("an event"), format!("mill: {line}"));
        }
    }

    #[test]
    fn closed_pipe_does_not_fail() {
        let server = Server::start();
        assert_eq!(printed(&server.run(&["publish", "lamp"], b"lit\n")), "published 1\n");
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let output = server.command(&["totals"]).stdout(writer).output().expect("the client runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    #[test]
    fn file_is_uploaded_whole() {
        let server = Server::start();
        let folder = Folder::new().unwrap();
        let file = folder.join("file");
        std::fs::write(&file, vec![7; 3_000_000]).unwrap();
        let output = server.run(&["upload", file.to_str().unwrap()], b"");
        assert_eq!(printed(&output), "sent 3000000 bytes in 12 chunks\n");
    }

    #[test]
    fn killed_server_is_error_for_its_watchers() {
        let mut server = Server::start();
        let output = std::thread::scope(|scope| {
            let mut command = server.command(&["watch"]);
            let (reader, writer) = std::io::pipe().expect("a pipe");
            let watcher = scope.spawn(move || command.stdout(writer).output());
            let mut lines = std::io::BufReader::new(reader);
            let mut line = String::new();
            std::io::BufRead::read_line(&mut lines, &mut line).expect("it watches");
            assert_eq!(line, "watching\n");
            server.process.kill().expect("it runs");
            watcher.join().expect("no panic").expect("the client runs")
        });
        assert_eq!(output.status.code(), Some(1));
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(error.contains("Unavailable"), "{error}");
    }
}
