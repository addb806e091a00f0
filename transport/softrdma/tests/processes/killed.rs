//! Deaths of connected processes of one host. The others get `Disconnected` immediately, on either side of a
//! connection, although retries do not run out, and their own messages continue. A stopped process is not dead.
//!
//! The tests start this binary again as the peers.

use super::memory::options;
use crate::common;
use crate::common::host::{Host, part};
use crate::common::node::{BOUND, Node, exchange, join, next_event, next_request, post_to};
use nix::sys::signal::Signal;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;
use trunkline_softrdma::device::{PathChoice, SoftOptions};
use trunkline_softrdma::link::ROCE_PORT;
use trunkline_testkit::{Input, NextLine, Process, bytes_of, print_line, same_test};
use trunkline_verbs::{
    CmChannel, CmEventKind, CmId, CompletionStatus, ConnectParameters, Device, EndpointRequest, EndpointSide,
    PortSpace, QpNumber, QpState, QpType, QueuePair, SendData, SendOperation, SrqNumber, UnreachableCause,
};

const PEER: &str = "TRUNKLINE_TEST_CONNECTED_PEER";
/// Number of connections to a peer, which is more than the device ends in one turn.
const CONNECTIONS: usize = 150;
/// ACK timeout of 4.096 us * 2^31 = 2.4 hours, with which retries do not run out.
const NEVER: u8 = 31;
/// Length of the messages that a peer sends, in bytes. Each takes several packets.
const LENGTH: u32 = 12_000;
/// Number of receives posted for these messages.
const RECEIVES: usize = 16;

/// Entry point of a peer. It connects to the address in [`PEER`], and accepts connection requests until
/// its input ends. A line of the input is the number of an SRQ, to which the peer sends messages from then
/// on.
#[test]
fn peer() {
    if part().as_deref() != Some("connected") {
        return;
    }
    let value = std::env::var(PEER).unwrap();
    let (path, remote) = value.split_once(' ').unwrap();
    let path = if path == "udp" { PathChoice::Udp } else { PathChoice::Auto };
    let runtime_directory = std::env::var_os("TRUNKLINE_RUNTIME_DIR").map(Into::into);
    let node = Node::open(SoftOptions { path, runtime_directory, ..common::udp() }, 1 << 16);
    let channel = node.cm_channel();
    let listener = node.listen(SocketAddr::new(node.address, 0), &channel).unwrap();
    let asks = node.cm_channel();
    let (_id, ini) = node.ask_with(remote.parse().unwrap(), &asks, NEVER);
    assert!(matches!(next_event(&*asks).kind, CmEventKind::Established));
    print_line(&format!("AT {} {}", listener.local_address(), node.srq.number().unwrap().get()));
    let (mut accepted, input, mut srq, mut sent) = (Vec::new(), Input::open(), None, 0);
    loop {
        match input.next_line() {
            NextLine::Line(number) => srq = Some(SrqNumber::new(number.parse().unwrap())),
            NextLine::NotYet => {}
            NextLine::End => return,
        }
        while let Some(event) = channel.next_event() {
            if let CmEventKind::ConnectRequest { id, .. } = event.kind {
                accepted.push((node.accept(&*id), id));
            }
        }
        let Some(srq) = srq else {
            std::thread::sleep(Duration::from_millis(1));
            continue;
        };
        node.memory.write(0, &bytes_of(sent, LENGTH as usize)).unwrap();
        post_to(&*ini, SendOperation::Send, SendData::Gather(&[node.sge(0, LENGTH)]), srq);
        if !node.completion().status.is_success() {
            return;
        }
        sent += 1;
    }
}

/// A peer, the connections to it, and the connection that it opened.
struct Peer {
    process: Process,
    /// Address of the peer's listener.
    remote: SocketAddr,
    srq: SrqNumber,
    channel: Arc<dyn CmChannel>,
    made: Vec<(Arc<dyn CmId>, Arc<dyn QueuePair>)>,
    of_peer: (Arc<dyn CmId>, Arc<dyn QueuePair>),
    from_peer: Arc<dyn CmChannel>,
    _listener: Arc<dyn CmId>,
}

impl Peer {
    fn start(host: &Host, node: &Node, path: &str, connections: usize) -> Self {
        let [channel, from_peer] = [(); 2].map(|()| node.cm_channel());
        let listener = node.listen(SocketAddr::new(node.address, 0), &from_peer).unwrap();
        let mut command = same_test(module_path!(), "peer");
        let value = format!("{path} {}", listener.local_address());
        let mut process = host.start("connected", &mut command, &[(PEER, &value)]);
        let id = next_request(&*from_peer);
        let tgt = node.accept(&*id);
        assert!(matches!(next_event(&*from_peer).kind, CmEventKind::Established));
        let line = process.after("AT ").unwrap();
        let (remote, srq) = line.split_once(' ').unwrap();
        let remote: SocketAddr = remote.parse().unwrap();
        let made: Vec<_> = (0..connections)
            .map(|_| {
                let made = node.ask_with(remote, &channel, NEVER);
                assert!(matches!(next_event(&*channel).kind, CmEventKind::Established));
                made
            })
            .collect();
        let srq = SrqNumber::new(srq.parse().unwrap());
        Self { process, remote, srq, channel, made, of_peer: (id, tgt), from_peer, _listener: listener }
    }

    /// Waits until each connection has ended once.
    fn is_disconnected(&self) {
        let mut ended = BTreeSet::new();
        while ended.len() < self.made.len() {
            let event = next_event(&*self.channel);
            assert!(matches!(event.kind, CmEventKind::Disconnected { is_answered: true }), "{event:?}");
            assert!(ended.insert(event.id), "it ended twice");
        }
        let event = next_event(&*self.from_peer);
        assert!(matches!(event.kind, CmEventKind::Disconnected { is_answered: true }), "{event:?}");
        assert_eq!(event.id, self.of_peer.0.number());
    }

    fn has_events(&self) -> bool {
        [&self.channel, &self.from_peer].iter().any(|channel| channel.next_event().is_some())
    }
}

/// Kills a peer while a message to it is outstanding.
fn peer_is_killed(near: PathChoice, path: &str) {
    let host = Host::new();
    let node = Node::open(options(&host, near), 1 << 16);
    let mut peer = Peer::start(&host, &node, path, CONNECTIONS);
    assert!(!peer.has_events());
    // The peer does not have a receive for this message and cannot answer it.
    peer.process.signal(Signal::SIGSTOP);
    post_to(&*peer.made[0].1, SendOperation::Send, SendData::Gather(&[node.sge(0, 64)]), peer.srq);
    peer.process.kill().unwrap();
    peer.is_disconnected();
    assert_ne!(node.completion().status, CompletionStatus::Success);
}

#[test]
fn killed_process_disconnects_its_peers_over_udp() {
    peer_is_killed(PathChoice::Udp, "udp");
}

#[test]
fn killed_process_disconnects_its_peers_with_shared_memory() {
    peer_is_killed(PathChoice::Auto, "auto");
}

/// Receives a message from a peer, which must be complete and in order. Counts the messages by the QP at which
/// they arrive.
fn receive_next(node: &Node, counts: &mut BTreeMap<QpNumber, u64>) {
    let completion = node.completion();
    let count = counts.entry(completion.qp_number).or_default();
    let slot = usize::try_from(completion.wr_id).unwrap();
    let mut bytes = vec![0; LENGTH as usize];
    node.memory.read(slot * LENGTH as usize, &mut bytes).unwrap();
    // The receive of a message whose sender dies is flushed.
    if completion.status != CompletionStatus::WorkRequestFlushed {
        assert_eq!(completion.status, CompletionStatus::Success);
        assert!(bytes == bytes_of(*count, LENGTH as usize), "message {count} is not the next one");
        *count += 1;
    }
    node.receive(completion.wr_id, slot * LENGTH as usize, LENGTH);
}

/// Kills one of two processes that send.
fn sender_is_killed(near: PathChoice, path: &str) {
    let host = Host::new();
    let node = Node::open(options(&host, near), RECEIVES * LENGTH as usize);
    let [mut victim, mut other] = [(); 2].map(|()| Peer::start(&host, &node, path, 1));
    for slot in 0..RECEIVES {
        node.receive(slot as u64, slot * LENGTH as usize, LENGTH);
    }
    for peer in [&mut victim, &mut other] {
        peer.process.tell(&node.srq.number().unwrap().get().to_string()).unwrap();
    }
    let [of_victim, of_other] = [&victim, &other].map(|peer| peer.of_peer.1.number());
    let mut counts = BTreeMap::from([(of_victim, 0), (of_other, 0)]);
    while counts[&of_victim] < 20 || counts[&of_other] < 20 {
        receive_next(&node, &mut counts);
    }
    victim.process.kill().unwrap();
    victim.is_disconnected();
    let mut again = |more| {
        let until = counts[&of_other] + more;
        while counts[&of_other] < until {
            receive_next(&node, &mut counts);
        }
    };
    again(2 * RECEIVES as u64);
    let client = Node::open(options(&host, near), 4096);
    let successor = SoftOptions { addresses: vec![victim.remote.ip()], ..options(&host, near) };
    let successor = Node::open(successor, 4096);
    let joined = join(&client, &successor);
    exchange(&*joined.ini, &client, &successor, 64);
    again(2 * RECEIVES as u64);
    assert!(!other.has_events());
}

#[test]
fn messages_continue_when_another_sender_is_killed_over_udp() {
    sender_is_killed(PathChoice::Udp, "udp");
}

#[test]
fn messages_continue_when_another_sender_is_killed_with_shared_memory() {
    sender_is_killed(PathChoice::Auto, "auto");
}

/// Returns true if an address refuses a request because nothing listens there; false if the request is not
/// answered.
fn refuses(channel: &dyn CmChannel) -> bool {
    match next_event(channel).kind {
        CmEventKind::Unreachable(UnreachableCause::Port) => true,
        CmEventKind::Unreachable(UnreachableCause::NoAnswer) => false,
        other => panic!("{other:?}"),
    }
}

/// Returns true if an address refuses another request.
fn refuses_another(node: &Node, remote: SocketAddr, channel: &Arc<dyn CmChannel>) -> bool {
    let _asked = node.ask_with(remote, channel, NEVER);
    refuses(&**channel)
}

/// Without the refusal, the next call of a client would wait until all repetitions of its request have timed
/// out.
#[test]
fn request_to_address_of_killed_process_is_refused() {
    let host = Host::new();
    let node = Node::open(options(&host, PathChoice::Auto), 1 << 16);
    let mut peer = Peer::start(&host, &node, "auto", 1);
    let (remote, [before, after]) = (peer.remote, [(); 2].map(|()| node.cm_channel()));
    // The peer is killed before it can answer this request.
    peer.process.signal(Signal::SIGSTOP);
    let _asked = node.ask_with(remote, &before, NEVER);
    peer.process.kill().unwrap();
    peer.is_disconnected();
    assert!(refuses(&*before));
    // A member that joins later does not take the place of the dead holder's record.
    let later = Node::open(options(&host, PathChoice::Auto), 1 << 16);
    let _listener = later.listen(SocketAddr::new(later.address, 0), &later.cm_channel()).unwrap();
    assert!(refuses_another(&node, remote, &after));
    let side = EndpointSide::Active { remote, source: None };
    let request = EndpointRequest { side, port_space: PortSpace::Udp, qp_type: QpType::Rc };
    let service = node.device.connection_manager().create_endpoint(&request, &after).unwrap();
    service.connect(&ConnectParameters::default()).unwrap();
    assert!(refuses(&*after));
    // A program that is not a member, such as a program of another user.
    let other = UdpSocket::bind((remote.ip(), ROCE_PORT)).unwrap();
    // The host's sockets are listed at most ten times per second.
    while refuses_another(&node, remote, &after) {}
    drop(other);
    let options = SoftOptions { addresses: vec![remote.ip()], ..options(&host, PathChoice::Auto) };
    let successor = Node::open(options, 1 << 16);
    let requests = successor.cm_channel();
    let _listener = successor.listen(remote, &requests).unwrap();
    let _asked = node.ask_with(remote, &after, NEVER);
    let _request = next_request(&*requests);
}

#[test]
fn request_to_address_of_exited_process_is_refused() {
    let host = Host::new();
    let node = Node::open(options(&host, PathChoice::Auto), 1 << 16);
    let mut peer = Peer::start(&host, &node, "auto", 1);
    peer.process.close_input();
    assert!(peer.process.wait(BOUND).is_some_and(|status| status.success()));
    let channel = node.cm_channel();
    assert!(refuses_another(&node, peer.remote, &channel));
    // A server that starts again is found even after requests were refused.
    let options = SoftOptions { addresses: vec![peer.remote.ip()], ..options(&host, PathChoice::Auto) };
    let successor = Node::open(options, 1 << 16);
    let requests = successor.cm_channel();
    let _listener = successor.listen(peer.remote, &requests).unwrap();
    let _asked = node.ask_with(peer.remote, &channel, NEVER);
    let _request = next_request(&*requests);
}

#[test]
fn stopped_process_is_not_reported_as_dead() {
    let host = Host::new();
    let node = Node::open(options(&host, PathChoice::Auto), 1 << 16);
    let [mut stopped, mut killed] = [(); 2].map(|()| Peer::start(&host, &node, "auto", 2));
    stopped.process.signal(Signal::SIGSTOP);
    killed.process.kill().unwrap();
    killed.is_disconnected();
    assert!(!stopped.has_events(), "it can go on");
    stopped.process.signal(Signal::SIGCONT);
    let more = Peer::start(&host, &node, "auto", 1);
    assert!(!stopped.has_events() && !more.has_events());
    stopped.process.kill().unwrap();
    stopped.is_disconnected();
    trunkline_testkit::wait_until("the QP is in ERR", BOUND, || {
        let attributes = stopped.made[0].1.query().unwrap();
        (attributes.state == QpState::Error).then_some(())
    });
}
