//! Signals to the process. A program that blocks a signal can read it, because all threads of a node block it as well.

use crate::common::{LIMIT, node};
use crate::gate::Gate;
use std::fs;
use trunkline::{Resolve, Resolving, Target, block_on};
use trunkline_testkit::{Folder, wait_until};

/// Numbers of SIGILL, SIGTRAP, SIGABRT, SIGBUS, SIGFPE, SIGSEGV and SIGSYS, which faults raise.
const FAULTS: [u32; 7] = [4, 5, 6, 7, 8, 11, 31];
/// Numbers of signals that programs block in order to read them: SIGHUP, SIGINT, SIGUSR1, SIGUSR2, SIGPIPE, SIGALRM,
/// SIGTERM, SIGCHLD, SIGPROF, and the first and the last real-time signal.
const READ: [u32; 11] = [1, 2, 10, 12, 13, 14, 15, 17, 27, 34, 64];

#[trunkline::service]
trait Waiting {
    async fn wait(&self);
    #[blocking]
    async fn work(&self);
}

struct Waits(Gate);

impl Waiting for Waits {
    async fn wait(&self) {
        self.0.pass().await;
    }
    async fn work(&self) {}
}

/// A resolver that returns no addresses, after the gate has opened.
#[derive(Debug)]
struct SlowNames(Gate);

impl Resolve for SlowNames {
    fn resolve(&self) -> Resolving<'_> {
        Box::pin(async {
            self.0.pass().await;
            Ok(Vec::new())
        })
    }
}

/// Returns the names of the library's threads, with the signals that each thread blocks.
fn internal_threads() -> Vec<(String, u64)> {
    let tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
    let of_task = |task: fs::DirEntry| {
        // The thread may have exited.
        let status = fs::read_to_string(task.path().join("status")).ok()?;
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let blocked = u64::from_str_radix(field("SigBlk:")?, 16).ok()?;
        Some((field("Name:")?.to_owned(), blocked))
    };
    tasks.filter_map(of_task).filter(|(name, _)| name.starts_with("trunkline-")).collect()
}

#[test]
fn every_thread_of_node_blocks_signals() {
    let gate = Gate::default();
    let folder = Folder::new().unwrap();
    let policy = folder.join("policy.toml");
    fs::write(&policy, "[[allow]]\npeers = ['unproven']\ncalls = ['*']\n").unwrap();
    let server = node().serve(WaitingServer::new(Waits(gate.clone()))).policy_file(policy).start().unwrap();
    let node = node().start().unwrap();
    let client = WaitingClient::connect(&node, server.local_address()).unwrap();
    let channel = node.channel(Target::resolver(SlowNames(gate.clone())));
    let waiting = client.wait();
    wait_until("the handler runs", LIMIT, || (gate.arrived() == 1).then_some(()));
    // This occupies a thread that waits for the handler.
    let ended = server.drain_async();
    std::thread::scope(|scope| {
        // This occupies a resolver thread.
        let seeking = scope.spawn(|| block_on(channel.ready()));
        let kinds = [
            "trunkline-poll",
            "trunkline-cm",
            "trunkline-card",
            "trunkline-work",
            "trunkline-resol",
            "trunkline-drain",
            "trunkline-files",
        ];
        let threads = wait_until("all threads run", LIMIT, || {
            let threads = internal_threads();
            let runs = |kind: &&str| threads.iter().any(|(name, _)| name.starts_with(*kind));
            kinds.iter().all(runs).then_some(threads)
        });
        let is_blocked = |blocked: u64, signal: u32| blocked >> (signal - 1) & 1 == 1;
        for (name, blocked) in threads {
            let takes_none = READ.into_iter().all(|signal| is_blocked(blocked, signal));
            assert!(takes_none, "{name} takes signals: {blocked:x}");
        }
        // A thread blocks all signals just before it exits. Threads of other tests may be doing so now.
        wait_until("no thread blocks the signals of faults", LIMIT, || {
            let blocks = |blocked| FAULTS.into_iter().any(|signal| is_blocked(blocked, signal));
            (!internal_threads().into_iter().any(|(_, blocked)| blocks(blocked))).then_some(())
        });
        gate.open();
        assert!(seeking.join().unwrap().is_err(), "there is no address");
    });
    assert!(block_on(waiting).is_ok() && block_on(ended));
}
