//! Hosts that ask for many sessions and complete none do not shut out the others.

use crate::common::{ECHO, LIMIT, TestNode, fresh_address, over_udp};
use bytes::Bytes;
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;
use trunkline_softrdma::device::{SoftDevice, SoftOptions};
use trunkline_transport::SendOutcome;
use trunkline_verbs::{
    CmChannel, CmEventKind, CmId, CmIdNumber, ConnectParameters, CqInit, Device, EndpointRequest,
    EndpointSide, PortSpace, QpInit, QpType, QueueCapacities, QueuePair, RejectReason,
};

/// The shallowest SRQ: 15 base credits.
const DEPTH: u32 = 16;
/// Connections that half-made sessions of one host may have.
const MOST: usize = 256;
/// Sessions that the crowding host asks for.
const ASKED: u16 = 280;

/// A host that listens at many ports, dials from each, returns the cookies that it gets, and never answers a
/// dial-back.
struct Crowd {
    node: SocketAddr,
    host: IpAddr,
    /// Of the dials.
    channel: Arc<dyn CmChannel>,
    /// Of the listeners; nobody reads it, so the dial-backs stay undecided.
    _unread: Arc<dyn CmChannel>,
    _listeners: Vec<Arc<dyn CmId>>,
    /// Those that are connecting or connected, by their port.
    dials: HashMap<CmIdNumber, (u16, Arc<dyn CmId>)>,
    /// Each dial's QP.
    qps: Vec<Arc<dyn QueuePair>>,
    device: Arc<SoftDevice>,
}

impl Crowd {
    fn dial(node: SocketAddr, host: IpAddr) -> Self {
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
        let (dials, qps) = (HashMap::new(), Vec::new());
        let mut crowd =
            Self { node, host, channel, _unread: unread, _listeners: listeners, dials, qps, device };
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
            capacities: QueueCapacities { max_send_wr: 1, max_send_sge: 1, ..QueueCapacities::default() },
            ..QpInit::new(QpType::XrcIni)
        };
        let qp = self.device.create_qp(init).unwrap();
        id.attach(Arc::clone(&qp)).unwrap();
        let mut hello = b"TRNK\x03\x00".to_vec();
        hello.extend(port.to_be_bytes());
        hello.extend(u64::from(port).to_be_bytes());
        hello.extend(1u32.to_be_bytes());
        hello.extend([0; 12]);
        hello.extend([0, 0, 0, 1, 1, 3]);
        hello.extend(cookie);
        id.connect(&ConnectParameters { private_data: hello, ..ConnectParameters::default() }).unwrap();
        self.dials.insert(id.number(), (port, id));
        self.qps.push(qp);
    }

    /// Waits until each dial was accepted or refused; returns how many were accepted.
    fn accepted(&mut self) -> usize {
        let (until, mut accepted, mut refused) = (Instant::now() + LIMIT, 0, 0);
        while accepted + refused < usize::from(ASKED) {
            assert!(Instant::now() < until, "{accepted} accepted, {refused} refused");
            let Some(event) = self.channel.next_event() else {
                std::thread::yield_now();
                continue;
            };
            match event.kind {
                CmEventKind::Established => accepted += 1,
                CmEventKind::Rejected(RejectReason::CONSUMER) => {
                    let (port, _id) = self.dials.remove(&event.id).unwrap();
                    match event.private_data[..6] {
                        // To be repeated with a cookie.
                        [b'T', b'R', b'N', b'K', 3, 11] => self.ask(port, &event.private_data[8..24]),
                        // "Crowded", which a node takes as word to try again.
                        [b'T', b'R', b'N', b'K', 3, 8] => refused += 1,
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

#[test]
fn a_host_with_many_half_made_sessions_leaves_room_for_others() {
    let node = TestNode::start(over_udp().srq_depth(DEPTH), 1);
    // Far more sessions than the SRQ has credits: half-made ones hold none.
    let mut crowd = Crowd::dial(node.address, fresh_address().ip());
    let accepted = crowd.accepted();
    assert!((200..=MOST).contains(&accepted), "{accepted}");

    let mut honest = TestNode::start(over_udp(), 1);
    let peer = honest.connect(0, node.address);
    honest.send(0, peer, &[ECHO], Bytes::from_static(b"still there?"), 1);
    assert_eq!(honest.outcome(1), SendOutcome::Delivered);
    honest.message();
}
