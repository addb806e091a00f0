//! Limits of a service and its methods, which apply across all pollers of a node.

use crate::common::{LIMIT, node, until};
use crate::gate::Gate;
use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use trunkline::{Code, Limit, Node, NodeBuilder, Origin, ProviderChoice, Reason, Status, block_on};
use trunkline_softrdma::device::{LinkChoice, SoftOptions};
use trunkline_softrdma::link::Hub;
use trunkline_testkit::{Folder, fresh_address};
use trunkline_transport::NodeOptions;

#[trunkline::service]
trait Desk {
    async fn quick(&self, number: u32) -> u32;
    /// Waits at the gate.
    async fn slow(&self, number: u32) -> u32;
}

struct Clerk(Gate);

impl Desk for Clerk {
    async fn quick(&self, number: u32) -> u32 {
        number
    }
    async fn slow(&self, number: u32) -> u32 {
        self.0.pass().await;
        number
    }
}

fn desk(gate: &Gate) -> DeskServer {
    DeskServer::new(Clerk(gate.clone()))
}

type Held<'a> = Pin<Box<dyn Future<Output = Result<u32, Status>> + 'a>>;

/// Makes calls that wait at the gate. Each uses a separate client, so that both pollers of the server receive some.
fn hold<'a>(clients: &'a [DeskClient], gate: &Gate) -> Vec<Held<'a>> {
    let mut calls: Vec<Held<'_>> =
        clients.iter().zip(0..).map(|(client, number)| Box::pin(client.slow(number)) as Held<'_>).collect();
    for call in &mut calls {
        assert!(call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    }
    until("the handlers run", || (gate.arrived() == calls.len()).then_some(()));
    calls
}

fn clients(from: &Node, to: &Node, count: usize) -> Vec<DeskClient> {
    let client = || DeskClient::connect(from, to.local_address()).unwrap().with_timeout(LIMIT);
    (0..count).map(|_| client()).collect()
}

fn refusal(outcome: Result<u32, Status>) -> String {
    let status = outcome.unwrap_err();
    assert_eq!(
        (status.code(), status.reason()),
        (Code::ResourceExhausted, Some(Reason::Overloaded)),
        "{status}"
    );
    assert!(!status.may_have_run() && status.origin() == Origin::Peer, "{status}");
    status.message().to_owned()
}

#[test]
fn method_runs_at_most_as_many_calls_as_its_limit() {
    let gate = Gate::default();
    let server = node().pollers(2).serve(desk(&gate).limit_slow(4)).start().unwrap();
    let caller = node().start().unwrap();
    let clients = clients(&caller, &server, 5);
    let held = hold(&clients[..4], &gate);
    let told = format!("Desk.slow at {}: the server runs 4 calls of the method", server.local_address());
    for _ in 0..4 {
        // Calls go alternately to both pollers, and both refuse them.
        let text = refusal(block_on(clients[4].slow(9)));
        assert!(text.contains(&told), "{text}");
        assert!(text.contains("`limit_slow` of the server"), "{text}");
    }
    assert_eq!(block_on(clients[4].quick(3)), Ok(3), "other methods go on");
    let limits = server.report().limits;
    let [row] = &limits[..] else { panic!("{limits:?}") };
    assert_eq!((row.running, row.limit, row.refused), (4, 4, 4), "{row:?}");
    gate.open();
    for (call, number) in held.into_iter().zip(0..) {
        assert_eq!(block_on(call), Ok(number));
    }
    assert_eq!(block_on(clients[4].slow(9)), Ok(9));
    assert_eq!(server.report().limits[0].running, 0);
}

#[test]
fn dropped_call_makes_room_in_service_limit() {
    let gate = Gate::default();
    let server = node().pollers(2).serve(desk(&gate).limit(3)).start().unwrap();
    let caller = node().start().unwrap();
    let clients = clients(&caller, &server, 4);
    let mut held = hold(&clients[..3], &gate);
    let text = refusal(block_on(clients[3].quick(1)));
    assert!(text.contains("3 calls of the service") && text.contains("(`limit` of the server)"), "{text}");
    drop(held.pop());
    assert_eq!(until("there is room", || block_on(clients[3].quick(1)).ok()), 1);
    // The loss of the caller ends the handlers of its calls as well.
    drop(held);
    drop(caller);
    until("no call runs", || (server.report().limits[0].running == 0).then_some(()));
}

/// Limit on handlers. Each host may have 6.
const HANDLERS: Limit = Limit { per_peer: 3, in_all: 12 };

fn soft(device: SoftOptions, address: SocketAddr) -> NodeBuilder {
    Node::builder()
        .transport(NodeOptions::new().device(device))
        .provider(ProviderChoice::Soft)
        .allow_unauthenticated(true)
        .listen(address)
}

/// Starts a server and callers. Checks that the first three callers count as one host and that the last one does not.
fn three_callers_are_one_host(server: NodeBuilder, callers: [NodeBuilder; 4]) {
    let gate = Gate::default();
    let server = server.handler_limit(HANDLERS).serve(desk(&gate)).start().unwrap();
    let callers = callers.map(|caller| caller.start().unwrap());
    let clients = callers.each_ref().map(|caller| clients(caller, &server, 3));
    let [one, two, three, other] = &clients;
    let all = [&one[..], two, other].concat();
    let _held = hold(&all, &gate);
    let text = refusal(block_on(three[0].quick(1)));
    assert!(text.contains("one host's budget of running handlers (6)"), "{text}");
}

#[test]
fn local_addresses_of_another_registry_are_one_host() {
    let [own, others] = [(); 2].map(|()| Folder::new().unwrap());
    let at = |folder: &Folder| {
        let runtime_directory = Some(folder.join("run"));
        soft(SoftOptions { runtime_directory, ..SoftOptions::from_env().unwrap() }, fresh_address())
    };
    three_callers_are_one_host(at(&own), [at(&others), at(&others), at(&others), at(&own)]);
}

#[test]
fn addresses_of_ipv6_network_are_one_host() {
    let hub = Hub::new();
    let at = |address: &str| {
        let ip: IpAddr = address.parse().unwrap();
        let link = LinkChoice::InProcess(Arc::clone(&hub));
        soft(SoftOptions { addresses: vec![ip], link, ..SoftOptions::default() }, (ip, 7471).into())
    };
    three_callers_are_one_host(
        at("fd00:0:0:2::1"),
        [at("fd00::1"), at("fd00::2"), at("fd00::ffff:0:0:3"), at("fd00:0:0:1::1")],
    );
}
