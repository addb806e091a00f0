//! Hosts that ask for many sessions and complete none do not shut out the others.

use crate::common::{ECHO, LIMIT, TestNode, fresh_address, over_udp};
use bytes::Bytes;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;
use trunkline_softrdma::device::{SoftDevice, SoftOptions};
use trunkline_transport::SendOutcome;
use trunkline_verbs::{
    CmChannel, CmEventKind, CmId, ConnectParameters, CqInit, Device, EndpointRequest, EndpointSide,
    PortSpace, QpInit, QpType, QueueCapacities, RejectReason,
};

/// The shallowest SRQ: 15 base credits.
const DEPTH: u32 = 16;
/// Sessions that the crowding host asks for.
const ASKED: u16 = 40;

/// A host that listens at many ports, dials from each, and never answers a dial-back.
struct Crowd {
    /// Of the dials.
    channel: Arc<dyn CmChannel>,
    /// Of the listeners; nobody reads it, so the dial-backs stay undecided.
    _unread: Arc<dyn CmChannel>,
    _ids: Vec<Arc<dyn CmId>>,
    _device: Arc<SoftDevice>,
}

impl Crowd {
    fn dial(node: SocketAddr, host: IpAddr) -> Self {
        let device =
            SoftDevice::open(SoftOptions { addresses: vec![host], ..SoftOptions::default() }).unwrap();
        let manager = device.connection_manager();
        let [channel, unread] = [(); 2].map(|()| manager.create_channel().unwrap());
        let cq = device.create_cq(CqInit { capacity_cqe: 64, ..CqInit::default() }).unwrap();
        let pd = device.alloc_pd().unwrap();
        let mut ids = Vec::new();
        for port in 1000..1000 + ASKED {
            let side = EndpointSide::Passive { local: SocketAddr::new(host, port) };
            let request = EndpointRequest { side, port_space: PortSpace::Ib, qp_type: QpType::XrcTgt };
            let listener = manager.create_endpoint(&request, &unread).unwrap();
            listener.listen(8).unwrap();
            let side = EndpointSide::Active { remote: node, source: Some(host) };
            let request = EndpointRequest { side, port_space: PortSpace::Ib, qp_type: QpType::XrcIni };
            let id = manager.create_endpoint(&request, &channel).unwrap();
            let capacities =
                QueueCapacities { max_send_wr: 1, max_send_sge: 1, ..QueueCapacities::default() };
            let init = QpInit {
                pd: Some(Arc::clone(&pd)),
                send_cq: Some(Arc::clone(&cq)),
                capacities,
                ..QpInit::new(QpType::XrcIni)
            };
            id.attach(device.create_qp(init).unwrap()).unwrap();
            let mut hello = b"TRNK\x02\x00".to_vec();
            hello.extend(port.to_be_bytes());
            hello.extend(u64::from(port).to_be_bytes());
            hello.extend(1u32.to_be_bytes());
            hello.extend([0; 12]);
            hello.extend([0, 0, 0, 1, 1]);
            id.connect(&ConnectParameters { private_data: hello, ..ConnectParameters::default() }).unwrap();
            ids.extend([listener, id]);
        }
        Self { channel, _unread: unread, _ids: ids, _device: device }
    }

    /// Waits until each dial was accepted or refused; answers how many were accepted.
    fn accepted(&self) -> usize {
        let (until, mut accepted, mut refused) = (Instant::now() + LIMIT, 0, 0);
        while accepted + refused < usize::from(ASKED) {
            assert!(Instant::now() < until, "{accepted} accepted, {refused} refused");
            let Some(event) = self.channel.next_event() else {
                std::thread::yield_now();
                continue;
            };
            match event.kind {
                CmEventKind::Established => accepted += 1,
                CmEventKind::Rejected(reason) => {
                    assert_eq!(reason, RejectReason::CONSUMER);
                    // "Crowded", which a node takes as word to try again.
                    assert_eq!(event.private_data[..6], *b"TRNK\x02\x08");
                    refused += 1;
                }
                CmEventKind::Disconnected { .. } | CmEventKind::TimewaitExit => {}
                other => panic!("{other:?}"),
            }
        }
        accepted
    }
}

#[test]
fn hosts_with_many_half_made_sessions_leave_room_for_others() {
    let node = TestNode::start(over_udp().srq_depth(DEPTH), 1);
    // Together more sessions than the SRQ has credits: half-made ones hold none.
    let crowds: Vec<_> = (0..6).map(|_| Crowd::dial(node.address, fresh_address().ip())).collect();
    let accepted: Vec<_> = crowds.iter().map(Crowd::accepted).collect();
    assert!(accepted.iter().all(|accepted| (1..=8).contains(accepted)), "{accepted:?} of {DEPTH} credits");
    assert!(accepted.iter().sum::<usize>() > 15, "{accepted:?}");

    let mut honest = TestNode::start(over_udp(), 1);
    let peer = honest.connect(0, node.address);
    honest.send(0, peer, &[ECHO], Bytes::from_static(b"still there?"), 1);
    assert_eq!(honest.outcome(1), SendOutcome::Delivered);
    honest.message();
}
