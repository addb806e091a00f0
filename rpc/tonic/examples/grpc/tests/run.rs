//! Runs the two programs over both transports.
//!
//! The programs are processes, so the test runs in real time.

use nix::sys::signal::Signal;
use std::process::Command;
use std::time::Duration;
use trunkline_testkit::{Process, fresh_ip, run};

/// Time limit after which the server is considered hung.
const BOUND: Duration = Duration::from_secs(120);
const PRINTED: &str = "\
Good day, trunk!
nearest: bridge
within: bridge
within: mill
recorded: 3 points, 15 m
read: nothing yet
read: ducks
";

fn client_prints_the_answers(options: &[&str]) {
    let address = format!("{}:0", fresh_ip());
    let mut command = Command::new(env!("CARGO_BIN_EXE_grpc-server"));
    let mut server = Process::start("grpc-server", command.args(options).arg(address)).expect("it starts");
    let address = server.after("listening ").expect("the address");
    let mut command = Command::new(env!("CARGO_BIN_EXE_grpc-client"));
    let output = run(command.args(options).arg(address), b"").expect("the client runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(String::from_utf8_lossy(&output.stdout), PRINTED);
    server.signal(Signal::SIGTERM);
    let status = server.wait(BOUND).expect("it ends");
    assert!(status.success(), "{status}");
}

#[test]
fn client_prints_answers_over_trunkline() {
    client_prints_the_answers(&[]);
}

#[test]
fn client_prints_answers_over_tcp() {
    client_prints_the_answers(&["--tcp"]);
}
