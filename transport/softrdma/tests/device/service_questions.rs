//! Endpoints of port space UDP, which resolve a service to a QP without a connection.

use crate::common;
use crate::common::node::{Node, next_event};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use trunkline_softrdma::device::SoftOptions;
use trunkline_verbs::{
    CmChannel, CmEvent, CmEventKind, CmId, ConnectParameters, Device, PortSpace, QpNumber, QpType, UDP_Q_KEY,
    VerbsError,
};

struct Side {
    node: Node,
    channel: Arc<dyn CmChannel>,
}

impl Side {
    fn new() -> Self {
        Self::with(common::udp())
    }

    fn at(address: IpAddr) -> Self {
        Self::with(SoftOptions { addresses: vec![address], ..SoftOptions::default() })
    }

    fn with(options: SoftOptions) -> Self {
        let node = Node::open(options, 4096);
        let channel = node.device.connection_manager().create_channel().unwrap();
        Self { node, channel }
    }

    fn id(&self) -> Arc<dyn CmId> {
        let manager = self.node.device.connection_manager();
        manager.create_id(PortSpace::Udp, QpType::Rc, &self.channel).unwrap()
    }

    fn next(&self) -> CmEvent {
        next_event(&*self.channel)
    }

    /// Creates an id that listens on a free port.
    fn listener(&self) -> Arc<dyn CmId> {
        let listener = self.id();
        listener.bind(SocketAddr::new(self.node.address, 0)).unwrap();
        listener.listen(4).unwrap();
        listener
    }

    /// Creates an id that has sent its request to a peer.
    fn asking(&self, remote: SocketAddr, private_data: &[u8]) -> Arc<dyn CmId> {
        let id = self.id();
        id.resolve_address(None, remote).unwrap();
        assert!(matches!(self.next().kind, CmEventKind::AddressResolved));
        id.resolve_route().unwrap();
        assert!(matches!(self.next().kind, CmEventKind::RouteResolved));
        id.connect(&with(private_data)).unwrap();
        assert!(
            matches!(id.connect(&with(private_data)), Err(VerbsError::Invalid(_))),
            "the program sends requests"
        );
        id
    }

    fn requested(&self) -> (Arc<dyn CmId>, ConnectParameters) {
        match self.next() {
            CmEvent { kind: CmEventKind::ConnectRequest { id, parameters }, .. } => (id, parameters),
            other => panic!("{other:?}"),
        }
    }
}

fn with(private_data: &[u8]) -> ConnectParameters {
    ConnectParameters { private_data: private_data.to_vec(), ..ConnectParameters::default() }
}

fn naming(number: u32, private_data: &[u8]) -> ConnectParameters {
    ConnectParameters { qp_number: Some(QpNumber::new(number)), ..with(private_data) }
}

/// Sends a request and its reply, and checks the events of both ends.
fn ask_and_answer(near: &Side, far: &Side) {
    let listener = far.listener();
    let near_id = near.asking(listener.local_address(), b"which");
    let (far_id, asked) = far.requested();
    assert_eq!((asked.private_data.len(), asked.qp_number), (180, None));
    assert!(asked.private_data.starts_with(b"which\0"));
    assert_eq!(far_id.peer_address(), Some(near_id.local_address()));
    assert_eq!(far_id.local_address(), listener.local_address());
    far_id.accept(&naming(0x4711, b"this")).unwrap();
    let CmEvent { kind: CmEventKind::ServiceResolved { parameters }, private_data, id } = near.next() else {
        panic!("not answered")
    };
    assert_eq!((id, parameters.qp_number), (near_id.number(), Some(QpNumber::new(0x4711))));
    assert_eq!((parameters.q_key, private_data.len()), (UDP_Q_KEY, 136));
    assert!(private_data.starts_with(b"this\0") && parameters.private_data == private_data);
    // No other event arrives.
    assert!(matches!(near_id.connect(&with(b"")), Err(VerbsError::Invalid(_))));
    assert!(matches!(far_id.accept(&naming(1, b"")), Err(VerbsError::Invalid(_))));
    assert!(near_id.disconnect().is_err() && far_id.disconnect().is_err());
    drop((near_id, far_id, listener));
    assert!(near.channel.next_event().is_none() && far.channel.next_event().is_none());
}

#[test]
fn requests_and_replies_reach_the_right_member_of_an_address() {
    let address = common::address();
    // The first member holds port 4791 and forwards datagrams to the second.
    let (holder, other) = (Side::at(address), Side::at(address));
    ask_and_answer(&holder, &other);
    ask_and_answer(&other, &holder);
    let third = Side::at(address);
    ask_and_answer(&third, &other);
    let outside = Side::new();
    ask_and_answer(&outside, &other);
    ask_and_answer(&other, &outside);
}

/// The rule is the same as for endpoints of one device.
#[test]
fn a_taken_service_is_not_available_if_one_of_both_members_is_at_every_address() {
    let address = common::address();
    let (one, two) = (Side::at(address), Side::at(address));
    let everywhere = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    for (first, second, errno) in [
        (everywhere, everywhere, libc::EADDRNOTAVAIL),
        (everywhere, address, libc::EADDRNOTAVAIL),
        (address, everywhere, libc::EADDRNOTAVAIL),
        (address, address, libc::EADDRINUSE),
    ] {
        let bound = one.id();
        bound.bind(SocketAddr::new(first, 0)).unwrap();
        let error = two.id().bind(SocketAddr::new(second, bound.local_address().port())).unwrap_err();
        assert_eq!(error.errno(), errno, "{first} and {second}: {error}");
    }
    // A port of another port space is another service.
    let listener = one.listener();
    let manager = two.node.device.connection_manager();
    let other = manager.create_id(PortSpace::Tcp, QpType::Rc, &two.channel).unwrap();
    other.bind(listener.local_address()).unwrap();
}

#[test]
fn endpoints_of_port_space_udp_have_no_qp() {
    let side = Side::new();
    let id = side.id();
    let attached = id.attach(side.node.qp(QpType::XrcIni));
    assert!(matches!(attached, Err(VerbsError::Invalid(why)) if why.contains("UDP")));
    assert!(matches!(id.connect(&with(b"")), Err(VerbsError::Invalid(_))), "it has no peer");
    assert!(matches!(id.accept(&naming(7, b"")), Err(VerbsError::Invalid(_))));
    assert!(matches!(id.reject(b""), Err(VerbsError::Invalid(_))));
    let manager = side.node.device.connection_manager();
    let xrc = manager.create_id(PortSpace::Udp, QpType::XrcIni, &side.channel);
    assert!(matches!(xrc, Err(VerbsError::Invalid(_))));
}
