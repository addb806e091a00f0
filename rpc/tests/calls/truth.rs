//! What a status says of its call: who ended it, why, and whether the handler may have run.

use crate::common::{Reporter, events, fresh_address, node};
use std::net::SocketAddr;
use std::time::Duration;
use trunkline::{Code, Origin, PollerContext, Reason, Status, block_on};

/// Writes, then asks another server.
#[trunkline::service]
trait Ledger {
    async fn write(&self, then: Option<SocketAddr>) -> Result<(), Status>;
    async fn panic(&self) -> Result<(), Status>;
}

/// The same service for a caller who knows other arguments and another method.
mod other {
    #[trunkline::service(name = "Ledger")]
    pub trait Ledger {
        async fn write(&self, number: u64) -> Result<(), trunkline::Status>;
        async fn erase(&self) -> Result<(), trunkline::Status>;
    }
}

struct Writer {
    context: PollerContext,
    reporter: Reporter<&'static str>,
}

impl Ledger for Writer {
    async fn write(&self, then: Option<SocketAddr>) -> Result<(), Status> {
        self.reporter.tell("written");
        match then {
            Some(next) => LedgerLocal::connect(&self.context, next)?.write(None).await,
            None => Ok(()),
        }
    }

    async fn panic(&self) -> Result<(), Status> {
        panic!("a handler panics on purpose");
    }
}

fn ledger(reporter: Reporter<&'static str>) -> LedgerServer {
    LedgerServer::per_poller(move |context| {
        Ok::<_, Status>(Writer { context: context.clone(), reporter: reporter.clone() })
    })
}

#[test]
fn a_handler_that_passes_on_a_status_has_run() {
    let (reporter, reported) = events();
    let server = node().serve(ledger(reporter)).start().unwrap();
    let client = LedgerClient::connect(&server, server.local_address()).unwrap();
    // Nobody listens on this port of the server's address.
    let nobody = SocketAddr::new(server.local_address().ip(), 1);
    let status = block_on(client.write(Some(nobody))).unwrap_err();
    assert_eq!(reported.next(), "written");
    assert_eq!((status.code(), status.origin()), (Code::Unavailable, Origin::Handler), "{status}");
    assert_eq!(status.reason(), None);
    assert!(status.may_have_run(), "the handler has written: {status}");
}

#[test]
fn a_call_that_never_left_has_not_run() {
    let node = node().start().unwrap();
    let client = LedgerClient::connect(&node, fresh_address()).unwrap();
    // Less than it takes to find out that nobody answers.
    let status = block_on(client.with_timeout(Duration::from_millis(500)).write(None)).unwrap_err();
    assert_eq!((status.code(), status.may_have_run()), (Code::DeadlineExceeded, false), "{status}");
    assert_eq!((status.origin(), status.reason()), (Origin::Local, Some(Reason::Expired)));
    let report = node.report();
    assert_eq!(report.traffic.iter().map(|lane| lane.sent).sum::<u64>(), 0, "the device has got nothing");
}

#[test]
fn a_status_names_who_ended_the_call_and_why() {
    let (reporter, _reported) = events();
    let server = node().serve(ledger(reporter)).start().unwrap();
    let client = LedgerClient::connect(&server, server.local_address()).unwrap();
    let stranger = other::LedgerClient::connect(&server, server.local_address()).unwrap();
    let closed = SocketAddr::new(server.local_address().ip(), 1);
    let nobody = LedgerClient::connect(&server, closed).unwrap();
    let cases = [
        (block_on(client.panic()), Origin::Peer, Reason::Panicked, true),
        (block_on(stranger.write(7)), Origin::Peer, Reason::BadArguments, false),
        (block_on(stranger.erase()), Origin::Peer, Reason::NoMethod, false),
        (block_on(nobody.write(None)), Origin::Local, Reason::Unreachable, false),
    ];
    for (outcome, origin, reason, may_have_run) in cases {
        let status = outcome.unwrap_err();
        assert_eq!((status.origin(), status.reason()), (origin, Some(reason)), "{status}");
        assert_eq!(status.may_have_run(), may_have_run, "{status}");
    }
}
