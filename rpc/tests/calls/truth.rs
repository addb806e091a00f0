//! Statuses that a handler forwards.

use crate::common::{Reporter, events, node};
use std::net::SocketAddr;
use trunkline::{Code, Origin, PollerContext, Status, block_on};

/// Writes, and then asks another server.
#[trunkline::service]
trait Ledger {
    async fn write(&self, then: Option<SocketAddr>) -> Result<(), Status>;
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
    // This port of the server's address has no listener.
    let nobody = SocketAddr::new(server.local_address().ip(), 1);
    let status = block_on(client.write(Some(nobody))).unwrap_err();
    assert_eq!(reported.next(), "written");
    assert_eq!((status.code(), status.origin()), (Code::Unavailable, Origin::Handler), "{status}");
    assert_eq!(status.reason(), None);
    assert!(status.may_have_run(), "the handler has written: {status}");
}
