//! A client whose process was stopped, and the log of a client whose servers are all down.

use crate::common::{LIMIT, until};
use crate::logged::Logged;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use trunkline::{Node, ProviderChoice, block_on};
use trunkline_testkit::{Process, fresh_address, print_line, same_test};

#[trunkline::service]
trait Bench {
    async fn sit(&self) -> u32;
}

struct Sitter;

impl Bench for Sitter {
    async fn sit(&self) -> u32 {
        std::future::pending().await
    }
}

/// Environment variable with the server's address, for the client's process.
const SERVER: &str = "TRUNKLINE_TEST_SERVER_OF_STOPPED";

#[test]
fn error_names_stop_of_client_instead_of_server() {
    let node = || Node::builder().provider(ProviderChoice::Soft);
    if let Ok(server) = std::env::var(SERVER) {
        let client = node().start().unwrap();
        let bench = BenchClient::connect(&client, server.parse::<SocketAddr>().unwrap()).unwrap();
        let status = block_on(bench.with_timeout(10 * LIMIT).sit()).unwrap_err();
        return print_line(&format!("told: {status}"));
    }
    // The server detects a silent client within 2 s.
    let server = node().listen(fresh_address()).idle_keepalive(Duration::from_millis(500));
    let server = server.serve(BenchServer::new(Sitter)).start().unwrap();
    let test = "error_names_stop_of_client_instead_of_server";
    let mut command = same_test(module_path!(), test);
    let mut client =
        Process::start("client", command.env(SERVER, server.local_address().to_string())).unwrap();
    let calls = || server.report().served.iter().map(|row| row.running).sum::<u64>();
    until("the call runs", || (calls() == 1).then_some(()));
    client.stop();
    let stopped = Instant::now();
    until("the server has given the client up", || (calls() == 0).then_some(()));
    // A stop of at least 2 s is detected. It is measured from the end of a sleep, which may take half a second.
    std::thread::sleep(Duration::from_secs(4).saturating_sub(stopped.elapsed()));
    client.resume();
    let told = client.after("told: ").unwrap();
    assert!(told.contains("because this node was stopped for"), "{told}");
}

#[test]
fn log_of_failed_attempts_is_limited() {
    let log = Logged::by_all();
    let client = Node::builder().provider(ProviderChoice::Soft).start().unwrap();
    let started = Instant::now();
    // Nothing listens at these addresses.
    let servers: Vec<_> = (0..40).map(|_| fresh_address()).map(|at| SocketAddr::new(at.ip(), 9)).collect();
    for server in &servers {
        let bench = BenchClient::connect(&client, *server).unwrap().with_timeout(LIMIT);
        let status = block_on(bench.sit()).unwrap_err();
        assert!(!status.may_have_run(), "{status}");
    }
    let is_ours = |line: &&String| {
        line.contains("session not established") && servers.iter().any(|at| line.contains(&format!("={at} ")))
    };
    let lines: Vec<_> = log.lines().iter().filter(is_ours).cloned().collect();
    let seconds = usize::try_from(started.elapsed().as_secs()).unwrap();
    assert!(!lines.is_empty() && lines.len() <= 9 + seconds, "{} lines in {seconds} s", lines.len());
    assert!(lines.iter().all(|line| line.contains("pause_ms=") && line.contains("suppressed=")), "{lines:?}");
}
