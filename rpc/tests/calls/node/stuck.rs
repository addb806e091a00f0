//! Nodes that end although handlers do not return, and that report these handlers.

use crate::common::{Guard, LIMIT, Reporter, events, node, until};
use crate::gate::Gate;
use crate::logged::Logged;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tracing::Level;
use trunkline::{Code, Node, PollerIndex, Reason, Status, block_on};

#[trunkline::service(name = "test.Stuck")]
trait Stuck {
    async fn plain(&self) -> Result<u8, Status>;
    /// Blocks its thread until the test sends a value.
    async fn block(&self) -> Result<(), Status>;
    /// Spins until the test ends it.
    async fn spin(&self) -> Result<(), Status>;
    async fn wait(&self) -> Result<(), Status>;
    /// Blocks its worker until the test sends a value.
    #[blocking]
    async fn occupy(&self) -> Result<(), Status>;
}

#[derive(Clone)]
struct StuckState {
    reporter: Reporter<&'static str>,
    blocked: Arc<Mutex<Receiver<()>>>,
    spins: Arc<AtomicBool>,
    gate: Gate,
}

struct Handler(StuckState);

impl Stuck for Handler {
    async fn plain(&self) -> Result<u8, Status> {
        Ok(1)
    }
    async fn block(&self) -> Result<(), Status> {
        let _guard = Guard(self.0.reporter.clone());
        self.0.reporter.tell("started");
        let _released = self.0.blocked.lock().unwrap().recv();
        Ok(())
    }
    async fn spin(&self) -> Result<(), Status> {
        let _guard = Guard(self.0.reporter.clone());
        self.0.reporter.tell("started");
        while self.0.spins.load(Ordering::Relaxed) {
            std::thread::yield_now();
        }
        Ok(())
    }
    async fn wait(&self) -> Result<(), Status> {
        self.0.gate.pass().await;
        Ok(())
    }
    async fn occupy(&self) -> Result<(), Status> {
        self.block().await
    }
}

fn serve(shared: &StuckState, pollers: u16, grace: Duration) -> Node {
    let shared = shared.clone();
    let service = StuckServer::new(Handler(shared));
    node().pollers(pollers).grace(grace).serve(service).start().unwrap()
}

/// Runs a closure on a separate thread, and fails if it does not return. Returns the errors that it has logged.
fn returns(what: &str, run: impl FnOnce() + Send + 'static) -> Vec<String> {
    let (done, ended) = channel();
    let errors = Logged::at(Level::ERROR);
    let subscriber = errors.clone();
    std::thread::spawn(move || {
        tracing::subscriber::with_default(subscriber, run);
        let _ = done.send(());
    });
    ended.recv_timeout(LIMIT).expect(what);
    std::mem::take(&mut *errors.lines())
}

#[test]
fn node_ends_and_names_blocked_or_spinning_handler() {
    for (is_dropped, spins) in [(false, false), (true, true)] {
        let (release, blocked) = channel();
        let (reporter, reported) = events();
        let spinning = Arc::new(AtomicBool::new(true));
        let shared = StuckState {
            reporter,
            blocked: Arc::new(Mutex::new(blocked)),
            spins: Arc::clone(&spinning),
            gate: Gate::default(),
        };
        let server = Arc::new(serve(&shared, 2, Duration::from_millis(50)));
        let caller = node().start().unwrap();
        let client =
            StuckClient::connect(&caller, server.local_address()).unwrap().with_timeout(LIMIT + LIMIT);
        let waiting =
            std::thread::spawn(
                move || {
                    if spins { block_on(client.spin()) } else { block_on(client.block()) }
                },
            );
        assert_eq!(reported.next(), "started");
        let errors = if is_dropped {
            returns("dropping the node returns", move || drop(server))
        } else {
            let ends = Arc::clone(&server);
            let errors = returns("the shutdown returns", move || ends.shutdown());
            // Everything else ends as in an ordinary shutdown.
            assert_eq!(server.report().pollers, 2);
            for poller in [0, 1] {
                let task = server.run_on(PollerIndex(poller), |_| async {});
                assert_eq!(block_on(task).unwrap_err().code(), Code::Unavailable);
            }
            errors
        };
        let method = if spins { "test.Stuck.spin" } else { "test.Stuck.block" };
        assert!(errors.iter().any(|line| line.contains(method) && line.contains("abandoned")), "{errors:?}");
        assert_eq!(waiting.join().unwrap().unwrap_err().code(), Code::Unavailable, "its caller is told");
        // The thread has kept all its resources, and can end normally.
        assert!(reported.is_empty(), "the handler still runs");
        spinning.store(false, Ordering::Relaxed);
        release.send(()).unwrap();
        assert_eq!(reported.next(), "dropped");
    }
}

#[test]
fn node_ends_and_names_handler_of_blocked_worker() {
    let (release, blocked) = channel();
    let (reporter, reported) = events();
    let blocked = Arc::new(Mutex::new(blocked));
    let shared = StuckState { reporter, blocked, spins: Arc::default(), gate: Gate::default() };
    let server = serve(&shared, 1, Duration::from_millis(50));
    let caller = node().start().unwrap();
    let client = StuckClient::connect(&caller, server.local_address()).unwrap();
    let call = client.occupy();
    assert_eq!(reported.next(), "started");
    let errors = returns("the shutdown returns", move || server.shutdown());
    let names_it = |line: &String| line.contains("test.Stuck.occupy") && line.contains("abandoned");
    assert!(errors.iter().any(names_it), "{errors:?}");
    assert_eq!(block_on(call).unwrap_err().code(), Code::Unavailable, "its caller is told");
    assert!(reported.is_empty(), "the handler still runs");
    release.send(()).unwrap();
    assert_eq!(reported.next(), "dropped");
}

#[test]
fn shorter_shutdown_shortens_shutdown_in_progress() {
    for stuck in [None, Some("block"), Some("occupy")] {
        // A poller that is preempted for 50 ms is late, so its calls end with the session. Repeat the attempt until this
        // does not happen.
        let is_told = || {
            let (release, blocked) = channel();
            let (reporter, reported) = events();
            let (blocked, gate) = (Arc::new(Mutex::new(blocked)), Gate::default());
            let shared = StuckState { reporter, blocked, spins: Arc::default(), gate: gate.clone() };
            // The grace period exceeds the time limit of the test, so only the second, shorter shutdown can end in time.
            let server = serve(&shared, 2, 10 * LIMIT);
            let caller = node().start().unwrap();
            let client =
                StuckClient::connect(&caller, server.local_address()).unwrap().with_timeout(20 * LIMIT);
            assert_eq!(block_on(client.plain()), Ok(1));
            let call: Pin<Box<dyn Future<Output = _>>> = match stuck {
                Some("block") => Box::pin(client.block()),
                Some(_) => Box::pin(client.occupy()),
                None => Box::pin(client.wait()),
            };
            if stuck.is_some() {
                assert_eq!(reported.next(), "started");
            } else {
                until("the handler runs", || (gate.arrived() > 0).then_some(()));
            }
            let first = server.shutdown_async();
            let drained = server.drain_async();
            returns("dropping the node returns", move || drop(server));
            returns("the first end returns, and a drain", move || {
                block_on(first);
                assert!(!block_on(drained), "a handler was cut");
            });
            let status = block_on(call).unwrap_err();
            drop(release);
            assert_eq!(status.code(), Code::Unavailable, "{stuck:?}: {status}");
            status.reason() == Some(Reason::Draining)
        };
        if stuck == Some("block") {
            assert!(!is_told(), "a blocked poller cannot tell");
        } else {
            assert!((0..5).any(|_| is_told()), "{stuck:?}: the call does not learn the reason");
        }
    }
}

#[test]
fn report_does_not_wait_for_shutdown() {
    let gate = Gate::default();
    let shared = StuckState {
        reporter: events().0,
        blocked: Arc::new(Mutex::new(channel().1)),
        spins: Arc::default(),
        gate: gate.clone(),
    };
    // The shutdown lasts until the gate opens. Its limit exceeds the test's wait for a report.
    let server = Arc::new(serve(&shared, 1, 4 * LIMIT));
    let caller = node().start().unwrap();
    let client = StuckClient::connect(&caller, server.local_address()).unwrap().with_timeout(4 * LIMIT);
    let of_thread = client.clone();
    let waiting = std::thread::spawn(move || block_on(of_thread.wait()));
    until("the handler runs", || (gate.arrived() > 0).then_some(()));
    let ends = Arc::clone(&server);
    let shutdown = std::thread::spawn(move || ends.shutdown());
    until("the shutdown begins", || block_on(client.plain()).err());
    let reports = Arc::clone(&server);
    returns("the report returns", move || assert_eq!(reports.report().pollers, 1));
    assert!(!shutdown.is_finished(), "the handler still runs");
    gate.open();
    assert_eq!(waiting.join().unwrap(), Ok(()));
    shutdown.join().unwrap();
}
