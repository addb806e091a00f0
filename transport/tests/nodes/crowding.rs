//! Hosts with many sessions, complete or not, do not shut out other hosts.

use super::hostile::hello;
use crate::common::{ECHO, Happened, LIMIT, TestNode, fresh_address, over_udp};
use bytes::Bytes;
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;
use trunkline_softrdma::device::{SoftDevice, SoftOptions};
use trunkline_transport::{NodeOptions, ProviderChoice, SendError, SendOutcome};
use trunkline_verbs::{
    CmChannel, CmEventKind, CmId, CmIdNumber, ConnectParameters, CqInit, Device, EndpointRequest,
    EndpointSide, PortSpace, QpInit, QpType, QueueCapacities, QueuePair, RejectReason, SendData, SendFlags,
    SendOperation, SendRequest, SrqNumber,
};

/// The shallowest SRQ: 15 base credits.
const DEPTH: u32 = 16;
/// Number of sessions that the crowding host requests.
const ASKED: u16 = 280;

/// A host that listens on many ports, dials from each, returns the cookies that it gets, and never answers a
/// dial-back.
struct Crowd {
    node: SocketAddr,
    host: IpAddr,
    /// Channel of the dials.
    channel: Arc<dyn CmChannel>,
    /// Channel of the listeners. It is never read, so the dial-backs stay undecided.
    _unread: Arc<dyn CmChannel>,
    _listeners: Vec<Arc<dyn CmId>>,
    /// Endpoints that are connecting or connected, by their port.
    dials: HashMap<CmIdNumber, (u16, Arc<dyn CmId>)>,
    /// QP of each dial.
    qps: HashMap<CmIdNumber, Arc<dyn QueuePair>>,
    /// Frames that each session sends as soon as it is half-open.
    frames: Vec<Vec<u8>>,
    device: Arc<SoftDevice>,
}

impl Crowd {
    fn dial(node: SocketAddr, host: IpAddr, frames: Vec<Vec<u8>>) -> Self {
        let device =
            SoftDevice::open(SoftOptions { addresses: vec![host], ..SoftOptions::default() }).unwrap();
        let manager = device.connection_manager();
        let [channel, unread] = [(); 2].map(|()| manager.create_channel().unwrap());
        let listen = |port| {
            let side = EndpointSide::Passive { local: SocketAddr::new(host, port) };
            let request = EndpointRequest { side, port_space: PortSpace::Ib, qp_type: QpType::XrcTgt };
            let listener = manager.create_endpoint(&request, &unread).unwrap();
            listener.listen(8).unwrap();
            listener
        };
        let listeners = (1000..1000 + ASKED).map(listen).collect();
        let (dials, qps) = (HashMap::new(), HashMap::new());
        let mut crowd =
            Self { node, host, channel, _unread: unread, _listeners: listeners, dials, qps, frames, device };
        (1000..1000 + ASKED).for_each(|port| crowd.ask(port, &[0; 16]));
        crowd
    }

    fn ask(&mut self, port: u16, cookie: &[u8]) {
        let side = EndpointSide::Active { remote: self.node, source: Some(self.host) };
        let request = EndpointRequest { side, port_space: PortSpace::Ib, qp_type: QpType::XrcIni };
        let id = self.device.connection_manager().create_endpoint(&request, &self.channel).unwrap();
        let init = QpInit {
            pd: Some(self.device.alloc_pd().unwrap()),
            send_cq: Some(self.device.create_cq(CqInit { capacity_cqe: 64, ..CqInit::default() }).unwrap()),
            capacities: QueueCapacities {
                max_send_wr: 16,
                max_send_sge: 1,
                max_inline_data: 64,
                ..QueueCapacities::default()
            },
            ..QpInit::new(QpType::XrcIni)
        };
        let qp = self.device.create_qp(init).unwrap();
        id.attach(Arc::clone(&qp)).unwrap();
        let private_data = hello(port, port.into(), false, cookie);
        id.connect(&ConnectParameters { private_data, ..ConnectParameters::default() }).unwrap();
        self.qps.insert(id.number(), qp);
        self.dials.insert(id.number(), (port, id));
    }

    fn send(&self, dial: CmIdNumber, srq: SrqNumber) {
        for frame in &self.frames {
            let request = SendRequest {
                wr_id: 1,
                operation: SendOperation::Send,
                data: SendData::Inline(frame),
                flags: SendFlags::SIGNALED,
                remote_srq: srq,
            };
            // The node may have ended the session meanwhile.
            let _ = self.qps[&dial].post_send(&[request]);
        }
    }

    /// Waits until each dial was accepted or refused. Returns the number accepted.
    fn accepted(&mut self) -> usize {
        let (until, mut accepted, mut refused) = (Instant::now() + LIMIT, 0, 0);
        while accepted + refused < usize::from(ASKED) {
            assert!(Instant::now() < until, "{accepted} accepted, {refused} refused");
            let Some(event) = self.channel.next_event() else {
                std::thread::yield_now();
                continue;
            };
            match event.kind {
                CmEventKind::Established => {
                    accepted += 1;
                    let srq = u32::from_be_bytes(event.private_data[20..24].try_into().unwrap());
                    self.send(event.id, SrqNumber::new(srq));
                }
                CmEventKind::Rejected(RejectReason::CONSUMER) => {
                    let (port, _id) = self.dials.remove(&event.id).unwrap();
                    self.qps.remove(&event.id);
                    match event.private_data[..6] {
                        // Repeated with a cookie.
                        [b'T', b'R', b'N', b'K', 4, 11] => self.ask(port, &event.private_data[8..24]),
                        // "Crowded", after which a node tries again.
                        [b'T', b'R', b'N', b'K', 4, 8] => refused += 1,
                        ref other => panic!("{other:?}"),
                    }
                }
                CmEventKind::Disconnected { .. } | CmEventKind::TimewaitExit => {}
                other => panic!("{other:?}"),
            }
        }
        accepted
    }
}

/// Builds a frame with a list of entries of an unknown type, and the grant with which each pair begins.
fn frame(kind: u8, entries: usize) -> Vec<u8> {
    let mut frame = vec![kind, 0, 0, 0];
    frame.extend((u16::MAX - 998).to_le_bytes());
    frame.extend([0; 2]);
    frame.extend([9, 0, 0, 0].repeat(entries));
    frame
}

#[test]
fn frames_of_half_made_sessions_take_nothing_from_those_that_are_up() {
    const CREDIT: u8 = 1;
    const SETTINGS: u8 = 3;
    // Frames that a peer may send before it hears of us, and frames that it may not send.
    for frames in [vec![frame(SETTINGS, 8)], [vec![frame(SETTINGS, 8)], vec![frame(CREDIT, 0); 7]].concat()] {
        let node = TestNode::start(over_udp().srq_depth(DEPTH), 1);
        let mut honest = TestNode::start(over_udp(), 1);
        let peer = honest.connect(0, node.address);
        let mut crowd = Crowd::dial(node.address, fresh_address().ip(), frames);
        let accepted = crowd.accepted();
        // Sessions that end because of their frames make room for more.
        assert!(accepted >= 200, "{accepted}");
        for token in 0..200 {
            honest.send(0, peer, &[ECHO], Bytes::from_static(b"still there?"), token);
            honest.message();
            assert_eq!(honest.outcome(token), SendOutcome::Delivered);
        }
    }
}

#[test]
fn nodes_of_one_host_take_at_most_half_of_an_srq() {
    /// Pollers of each node. The SRQ has room for 15 of other nodes.
    const POLLERS: u16 = 4;
    // Only the software device tells this user's nodes on other addresses from strangers of this host.
    let soft = || over_udp().provider(ProviderChoice::Soft);
    let node = TestNode::start(soft().srq_depth(DEPTH).srq_depth_limit(DEPTH), 1);
    let address = fresh_address();
    let at =
        |port| NodeOptions::new().provider(ProviderChoice::Soft).listen(SocketAddr::new(address.ip(), port));
    let [mut first, mut second] =
        [address.port(), address.port() + 1].map(|port| TestNode::start(at(port), POLLERS));
    first.connect(0, node.address);
    let peer = second.name(0, node.address);
    second.send(0, peer, &[ECHO], Bytes::from_static(b"?"), 1);
    let cause = second.wait("a refusal", |_, event| match event {
        Happened::Sent(1, SendOutcome::Failed(failure)) => Some(failure.cause),
        Happened::Sent(1, SendOutcome::Delivered) => panic!("the second session of the host is up"),
        Happened::Refused(1, SendError::BackingOff { cause, .. }) => Some(*cause),
        _ => None,
    });
    assert!(cause.to_string().contains("this host has too many sessions with it"), "{cause}");
    let mut elsewhere = TestNode::start(soft(), POLLERS);
    elsewhere.echoes(&node, &[100]);
    first.stop();
    second.send_waiting(peer, &[ECHO], 2, LIMIT);
    assert_eq!(second.outcome(2), SendOutcome::Delivered);
}
