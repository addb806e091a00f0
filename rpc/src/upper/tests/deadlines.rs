//! Time limits along a chain of calls, in virtual time.

use super::{PORT, sent, server};
use crate::call::context::PollerContext;
use crate::client::{CallOptions, LocalChannel};
use crate::executor::sleep;
use crate::node::budgets::Limits;
use crate::server::{Failure, Service};
use crate::status::Status;
use crate::upper::fake::Rig;
use crate::wire::frame::{Header, RequestHeader};
use crate::wire::name::{MethodName, ServiceName, Streams};
use bytes::Bytes;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use trunkline_transport::Upper as _;
use trunkline_verbs::{Clock, Time, VirtualClock};

static SERVICE: ServiceName =
    ServiceName { name: "chain", version: 1, oldest: 1, codec: 0, codec_name: "bincode", hash: 0x5e42 };
/// Works for 50 ms, and then asks the second server.
static ASK: MethodName = MethodName {
    service: &SERVICE,
    name: "ask",
    hash: 1,
    one_way: false,
    idempotent: false,
    streams: Streams::Neither,
    shapes: None,
};
/// Returns the time left in microseconds.
static LEFT: MethodName = MethodName {
    service: &SERVICE,
    name: "left",
    hash: 2,
    one_way: false,
    idempotent: false,
    streams: Streams::Neither,
    shapes: None,
};

const WORK: Duration = Duration::from_millis(50);
const SECOND: u16 = 18;

fn service() -> Service {
    Service::new(&SERVICE, |_, methods| {
        methods.add(&ASK, |_| async {
            sleep(WORK).await;
            let poller = PollerContext::current().ok_or_else(|| failed("no poller"))?;
            let channel = LocalChannel::connect(&poller, SocketAddr::from(([127, 0, 0, 1], SECOND)));
            let channel = channel.map_err(Failure::Handler)?;
            let answer = channel.call(&CallOptions::new(), &LEFT, &(), Bytes::new()).await;
            let _answer = answer.map_err(Failure::Handler)?;
            Err(failed("nobody answers here"))
        });
        methods.add(&LEFT, |request| async move {
            let left = request.context().time_left().ok_or_else(|| failed("no deadline"))?;
            request.replier().bytes(Bytes::copy_from_slice(&left.as_micros().to_le_bytes()))
        });
        Ok(())
    })
}

fn failed(text: &str) -> Failure {
    Failure::Handler(Status::internal(text))
}

/// Nodes whose messages the test carries, and their time.
struct Chain {
    clock: Arc<VirtualClock>,
    nodes: [Rig; 3],
}

impl Chain {
    fn new() -> Self {
        let clock = VirtualClock::new();
        let node = || Rig::serving(service(), Clock::simulated(Arc::clone(&clock)), Limits::default(), None);
        let mut chain = Self { nodes: [node(), node(), node()], clock };
        chain.at(Duration::from_secs(1));
        chain
    }

    /// Sets the time, and gives each node a turn.
    fn at(&mut self, time: Duration) {
        self.clock.set(Time(0) + time);
        for node in &mut self.nodes {
            node.carrier.now = self.clock.now();
            let _here = node.poller.enter();
            node.run();
        }
    }

    /// Carries the only request of a node to the next one. Returns its header.
    fn carry(&mut self, from: usize) -> RequestHeader {
        let [(given, header)] = sent(&mut self.nodes[from]).try_into().expect("one message");
        let Header::Request(header) = header else { panic!("{header:?} is no request") };
        let to = &mut self.nodes[from + 1];
        let _here = to.poller.enter();
        to.message(server(), given.bytes);
        header
    }
}

#[test]
fn a_second_server_has_the_rest_of_the_clients_time() {
    let mut chain = Chain::new();
    let second = Duration::from_secs(1);
    let _call = chain.nodes[0].submit(PORT, &ASK, Duration::from_millis(200), false);
    chain.at(second);
    assert_eq!(chain.carry(0).time_left_us, 200_000);
    chain.at(second + WORK - Duration::from_millis(1));
    assert!(sent(&mut chain.nodes[1]).is_empty(), "the handler works for 50 ms");
    chain.at(second + WORK);
    chain.at(second + WORK);
    assert_eq!(chain.carry(1).time_left_us, 150_000);
    let [(reply, _)] = sent(&mut chain.nodes[2]).try_into().expect("a reply");
    let left_us = reply.bytes.last_chunk().copied().map(u128::from_le_bytes);
    assert_eq!(left_us, Some(150_000), "what the second handler reads from its context");
}
