//! Nodes of the same version, one of which sends a critical setting that the other does not know.

use super::{HOUR, LIMIT, PingClient, PingServer, Pong, early};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use trunkline::{CallOptions, Code, Connect, Node, ProviderChoice, Reason, Status};
use trunkline_softrdma::device::{LinkChoice, LinkFactory, SoftOptions};
use trunkline_softrdma::link::{Datagram, Hub, InProcessLink, Link, LinkError, ReceiveBatch, SendBatch};
use trunkline_testkit::{HostilePeer, Hostility, Random, fresh_address, wait_until};
use trunkline_transport::NodeOptions;
use trunkline_verbs::{Counter, Time};

/// A link that adds the setting to its node's settings.
#[derive(Debug)]
struct AdvancedLink(InProcessLink, HostilePeer);

impl Link for AdvancedLink {
    fn name(&self) -> &'static str {
        "advanced"
    }

    fn open(&mut self, address: IpAddr) -> Result<(), LinkError> {
        self.0.open(address)
    }

    fn close(&mut self, address: IpAddr) {
        self.0.close(address);
    }

    fn mtu(&self, address: IpAddr) -> Result<u32, LinkError> {
        self.0.mtu(address)
    }

    fn send(&mut self, batch: &mut SendBatch, now: Time) {
        let mut changed = SendBatch::new();
        for Datagram { source, destination, bytes } in batch.iter() {
            let other = self.1.outgoing(source, destination, bytes);
            changed.push(Datagram { source, destination, bytes: other.as_deref().unwrap_or(bytes) });
        }
        self.0.send(&mut changed, now);
        batch.remove_first(batch.len() - changed.len());
    }

    fn receive(&mut self, batch: &mut ReceiveBatch) -> usize {
        self.0.receive(batch)
    }

    fn arm(&mut self) -> bool {
        self.0.arm()
    }

    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        self.0.fds()
    }

    fn counters(&self, into: &mut Vec<Counter>) {
        self.0.counters(into);
    }
}

/// Starts a node with two pollers and the service, on a network inside this process.
fn node(hub: &Arc<Hub>, is_advanced: bool) -> Node {
    let address = fresh_address();
    let link = if is_advanced {
        let hub = Arc::clone(hub);
        LinkChoice::Custom(LinkFactory::new(move || {
            let peer = HostilePeer::new(Hostility::Advanced, Random(1));
            Ok(Box::new(AdvancedLink(hub.link()?, peer)))
        }))
    } else {
        LinkChoice::InProcess(Arc::clone(hub))
    };
    let device = SoftOptions { addresses: vec![address.ip()], link, ..SoftOptions::default() };
    Node::builder()
        .transport(NodeOptions::new().device(device))
        .provider(ProviderChoice::Soft)
        .listen(address)
        .pollers(2)
        .serve(PingServer::new(Pong))
        .start()
        .unwrap()
}

/// Returns the status of a call that fails long before its deadline.
fn refusal(node: &Node, server: SocketAddr, connect: Connect) -> Status {
    let client = PingClient::connect(node, server).unwrap();
    early(client.with(&CallOptions::new().timeout(HOUR).connect(connect)).ping()).unwrap_err()
}

/// Checks that all calls of the node that does not know the setting are refused with the setting's number.
fn all_are_refused(node: &Node, server: SocketAddr) {
    // Long enough for several attempts to connect.
    let begun = Instant::now();
    let mut calls = 0;
    while begun.elapsed() < Duration::from_secs(2) || calls < 20 {
        let connect = if calls % 2 == 0 { Connect::FailFast } else { Connect::Wait };
        let status = refusal(node, server, connect);
        assert_eq!(
            (status.code(), status.reason(), status.may_have_run()),
            (Code::FailedPrecondition, Some(Reason::OtherProtocol), false),
            "call {calls}: {status}"
        );
        assert!(status.message().contains(&Hostility::SETTING.to_string()), "{status}");
        calls += 1;
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_server_with_an_unknown_critical_setting_is_refused_by_its_number_at_once() {
    let hub = Hub::new();
    let (server, client) = (node(&hub, true), node(&hub, false));
    all_are_refused(&client, server.local_address());
}

#[test]
fn a_client_with_an_unknown_critical_setting_is_told_its_number_at_once() {
    let hub = Hub::new();
    let (server, client) = (node(&hub, false), node(&hub, true));
    // The session made by the first call is closed when the setting arrives, of which each poller learns
    // separately. The server remembers the cause, and refuses the next session.
    wait_until("the refusal by the setting", LIMIT, || {
        let status = refusal(&client, server.local_address(), Connect::FailFast);
        let is_refused = status.code() == Code::FailedPrecondition;
        assert!(is_refused || status.code() == Code::Unavailable, "{status}");
        is_refused.then_some(())
    });
    all_are_refused(&client, server.local_address());
    // The calls of the server are refused, too.
    all_are_refused(&server, client.local_address());
}
