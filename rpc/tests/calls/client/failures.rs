//! Calls that fail.

use crate::common::{Events, Guard, LIMIT, Reporter, events, node, until};
use crate::logged::Logged;
use std::cell::Cell;
use std::future::{pending, poll_fn};
use std::task::Poll;
use std::time::Duration;
use trunkline::{Code, Node, Origin, PollerIndex, Reason, Status, block_on};

/// Fails in every way that a handler can.
#[trunkline::service(name = "tests.Trouble", version = 3)]
trait Trouble {
    #[oneway]
    async fn hang_quietly(&self);
    async fn panic(&self, polls: u32) -> Result<u32, Status>;
    async fn panic_when_dropped(&self) -> Result<(), Status>;
    async fn panic_twice(&self) -> Result<(), Status>;
    async fn echo(&self, number: u64) -> Result<u64, Status>;
}

struct Troubled {
    reporter: Reporter<&'static str>,
    calls: Cell<u64>,
}

/// A future whose destructor panics.
struct Bomb(Reporter<&'static str>);

impl Drop for Bomb {
    fn drop(&mut self) {
        self.0.tell("dropped");
        // A panic during another panic would abort the process.
        if !std::thread::panicking() {
            panic!("a destructor panics on purpose");
        }
    }
}

async fn yield_once() {
    let mut first = true;
    poll_fn(|context| {
        if std::mem::take(&mut first) {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(())
    })
    .await;
}

impl Trouble for Troubled {
    async fn hang_quietly(&self) {
        let _guard = Guard(self.reporter.clone());
        self.reporter.tell("started");
        pending().await
    }
    async fn panic(&self, polls: u32) -> Result<u32, Status> {
        let _guard = Guard(self.reporter.clone());
        for _ in 0..polls {
            yield_once().await;
        }
        panic!("a handler panics on purpose");
    }
    async fn panic_when_dropped(&self) -> Result<(), Status> {
        let _bomb = Bomb(self.reporter.clone());
        self.reporter.tell("started");
        pending().await
    }
    async fn panic_twice(&self) -> Result<(), Status> {
        std::panic::panic_any(Bomb(self.reporter.clone()))
    }
    async fn echo(&self, number: u64) -> Result<u64, Status> {
        self.calls.set(self.calls.get() + 1);
        Ok(number)
    }
}

/// A server for `Trouble`, a node that calls it, and the events from the handler.
struct Setting {
    server: Node,
    node: Node,
    reported: Events<&'static str>,
}

impl Setting {
    fn new() -> Self {
        let (reporter, reported) = events();
        let service = TroubleServer::per_poller(move |_| {
            Ok::<_, Status>(Troubled { reporter: reporter.clone(), calls: Cell::new(0) })
        });
        // Handlers that never end must not outlast the time limits of their calls.
        let server = node().grace(Duration::from_millis(200)).serve(service).start().unwrap();
        Self { server, node: node().start().unwrap(), reported }
    }

    fn client(&self) -> TroubleClient {
        TroubleClient::connect(&self.node, self.server.local_address()).unwrap()
    }

    /// Asserts that the server still replies.
    fn assert_alive(&self) {
        assert_eq!(block_on(self.client().echo(12)), Ok(12));
    }
}

/// Polls a future once, which must not complete it.
fn begin<F: Future>(future: std::pin::Pin<&mut F>) {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(future.poll(&mut context).is_pending());
}

#[test]
fn zero_time_limit_expires_at_once_and_maximum_never() {
    let setting = Setting::new();
    let status = block_on(setting.client().with_timeout(Duration::ZERO).echo(1)).unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
    let forever = setting.client().with_timeout(Duration::MAX);
    assert_eq!(block_on(forever.echo(1)), Ok(1), "a limit beyond the clock's range means no limit");
}

#[test]
fn one_way_handler_is_dropped_at_its_deadline() {
    until("a handler starts before the time limit of its call", || {
        let setting = Setting::new();
        setting.assert_alive();
        block_on(setting.client().with_timeout(Duration::from_millis(300)).hang_quietly()).ok()?;
        setting.assert_alive();
        assert_eq!(setting.reported.try_next()?, "started");
        assert_eq!(setting.reported.next(), "dropped");
        Some(())
    });
}

#[test]
fn panic_ends_its_call_as_internal_and_poller_continues() {
    let setting = Setting::new();
    for polls in [0, 1, 3] {
        let status = block_on(setting.client().panic(polls)).unwrap_err();
        assert_eq!(status.code(), Code::Internal);
        assert!(status.message().contains("panicked"), "{status}");
        assert!(status.may_have_run());
        assert_eq!(setting.reported.next(), "dropped");
        setting.assert_alive();
    }
}

#[test]
fn panic_with_panicking_payload_ends_only_its_call() {
    let setting = Setting::new();
    for _ in 0..3 {
        let status = block_on(setting.client().panic_twice()).unwrap_err();
        assert_eq!((status.code(), status.may_have_run()), (Code::Internal, true), "{status}");
        assert_eq!(setting.reported.next(), "dropped");
        setting.assert_alive();
    }
}

#[test]
fn panic_in_drop_affects_only_its_call() {
    let setting = Setting::new();
    for _ in 0..3 {
        let client = setting.client();
        let mut call = Box::pin(client.panic_when_dropped());
        begin(call.as_mut());
        assert_eq!(setting.reported.next(), "started");
        drop(call);
        assert_eq!(setting.reported.next(), "dropped");
        setting.assert_alive();
    }
}

#[test]
fn panic_in_drop_at_shutdown_does_not_delay_peers() {
    let setting = Setting::new();
    let client = setting.client().with_timeout(LIMIT);
    let mut call = Box::pin(client.panic_when_dropped());
    begin(call.as_mut());
    assert_eq!(setting.reported.next(), "started");
    setting.server.shutdown();
    assert_eq!(setting.reported.next(), "dropped");
    let status = block_on(call).unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "before its deadline: {status}");
}

/// The same service with methods that the server lacks or whose arguments the server defines differently.
#[trunkline::service(name = "tests.Trouble", version = 3)]
trait Other {
    async fn unknown(&self) -> Result<(), Status>;
    async fn echo(&self, number: String, more: Vec<u64>) -> Result<u64, Status>;
}

/// A later version of the service.
#[trunkline::service(name = "tests.Trouble", version = 4)]
trait Later {
    async fn echo(&self, number: u64) -> Result<u64, Status>;
}

/// A service that no server provides.
#[trunkline::service(name = "tests.Nowhere")]
trait Nowhere {
    async fn echo(&self, number: u64) -> Result<u64, Status>;
}

#[test]
fn errors_name_unknown_service_or_method() {
    let setting = Setting::new();
    let address = setting.server.local_address();
    let check = |outcome: Status, code: Code, reason: Reason, words: &[&str]| {
        assert_eq!((outcome.code(), outcome.reason()), (code, Some(reason)), "{outcome}");
        assert_eq!(outcome.origin(), Origin::Peer, "{outcome}");
        assert!(!outcome.may_have_run(), "{outcome}");
        words.iter().for_each(|word| assert!(outcome.message().contains(word), "{word} in {outcome}"));
    };
    let nowhere = NowhereClient::connect(&setting.node, address).unwrap();
    let status = block_on(nowhere.echo(1)).unwrap_err();
    check(status, Code::Unimplemented, Reason::NoService, &["tests.Nowhere.echo", "no such service"]);
    let other = OtherClient::connect(&setting.node, address).unwrap();
    let status = block_on(other.unknown()).unwrap_err();
    check(status, Code::Unimplemented, Reason::NoMethod, &["tests.Trouble.unknown", "no such method"]);
    let later = LaterClient::connect(&setting.node, address).unwrap();
    let status = block_on(later.echo(1)).unwrap_err();
    check(
        status,
        Code::FailedPrecondition,
        Reason::OtherSchema,
        &["tests.Trouble.echo", "version 4", "has 3"],
    );
    let status = block_on(other.echo("long enough to be none".into(), vec![1])).unwrap_err();
    check(
        status,
        Code::FailedPrecondition,
        Reason::OtherShape,
        &["tests.Trouble.echo", "argument 1 `number`", "`string` here and `u64` at the server"],
    );
    setting.assert_alive();
}

#[test]
fn polling_finished_call_returns_error() {
    let setting = Setting::new();
    let client = setting.client();
    let mut call = client.echo(1);
    assert_eq!(block_on(&mut call), Ok(1));
    let status = block_on(&mut call).unwrap_err();
    assert_eq!(status.code(), Code::Internal, "{status}");
}

/// An application error type.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
struct SoldOut;

/// Fails in ways that are logged by its node.
#[trunkline::service(name = "tests.Loud")]
trait Loud {
    async fn panic_here(&self) -> Result<(), Status>;
    #[blocking]
    async fn panic_in_the_pool(&self) -> Result<(), Status>;
    #[oneway]
    async fn panic_unheard(&self);
    async fn not_found(&self) -> Result<(), Status>;
    async fn sold_out(&self) -> Result<(), SoldOut>;
}

struct Failing;

impl Loud for Failing {
    async fn panic_here(&self) -> Result<(), Status> {
        panic!("a handler panics on purpose");
    }
    async fn panic_in_the_pool(&self) -> Result<(), Status> {
        panic!("a handler panics on purpose");
    }
    async fn panic_unheard(&self) {
        panic!("a handler panics on purpose");
    }
    async fn not_found(&self) -> Result<(), Status> {
        Err(Status::not_found("on purpose"))
    }
    async fn sold_out(&self) -> Result<(), SoldOut> {
        Err(SoldOut)
    }
}

#[test]
fn panics_and_errors_of_handlers_are_logged_once_with_their_method() {
    let log = Logged::by_all();
    let server = node().serve(LoudServer::new(Failing)).start().unwrap();
    let caller = node().start().unwrap();
    let client = LoudClient::connect(&caller, server.local_address()).unwrap().with_timeout(LIMIT);
    block_on(client.panic_here()).unwrap_err();
    block_on(client.panic_in_the_pool()).unwrap_err();
    block_on(client.panic_unheard()).unwrap();
    block_on(client.not_found()).unwrap_err();
    block_on(client.sold_out()).unwrap_err();
    let task = server.run_on(PollerIndex(0), |_| async { panic!("a task panics on purpose") });
    let ended: Result<(), _> = block_on(task);
    assert_eq!(ended.unwrap_err().reason(), Some(Reason::Panicked));
    let lines_of = |method: &str| {
        let lines = log.lines().iter().filter(|line| line.contains(method)).cloned().collect::<Vec<_>>();
        (!lines.is_empty()).then_some(lines)
    };
    for (method, level, text) in [
        ("tests.Loud.panic_here", "ERROR", "the handler panicked"),
        ("tests.Loud.panic_in_the_pool", "ERROR", "the handler panicked"),
        ("tests.Loud.panic_unheard", "ERROR", "the handler panicked"),
        ("tests.Loud.not_found", "INFO", "NotFound"),
        ("tests.Loud.sold_out", "INFO", "error of the method's own type"),
        ("spawned task panicked", "ERROR", ""),
    ] {
        let lines = until(method, || lines_of(method));
        assert!(lines.iter().all(|line| line.starts_with(level) && line.contains(text)), "{lines:?}");
        assert!(lines.len() == 1 || text.is_empty(), "once: {lines:?}");
    }
}
