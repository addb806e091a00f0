//! Endpoints of port space UDP, which resolve a service to a QP without a connection.

use crate::common;
use crate::common::side::Side;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use trunkline_softrdma::device::SoftOptions;
use trunkline_verbs::{
    CmEvent, CmEventKind, CmId, CmOption, ConnectParameters, Device, PortSpace, QpNumber, QpType, UDP_Q_KEY,
    VerbsError,
};

fn at(address: IpAddr) -> Side {
    Side::with(PortSpace::Udp, SoftOptions { addresses: vec![address], ..SoftOptions::default() })
}

/// Creates an id that has sent its request to a peer.
fn asking(side: &Side, remote: SocketAddr, private_data: &[u8]) -> Arc<dyn CmId> {
    let id = side.resolved(QpType::Rc, remote);
    id.connect(&with(private_data)).unwrap();
    assert!(
        matches!(id.connect(&with(private_data)), Err(VerbsError::Invalid(_))),
        "the program sends requests"
    );
    id
}

fn with(private_data: &[u8]) -> ConnectParameters {
    ConnectParameters { private_data: private_data.to_vec(), ..ConnectParameters::default() }
}

fn naming(number: u32, private_data: &[u8]) -> ConnectParameters {
    ConnectParameters { qp_number: Some(QpNumber::new(number)), ..with(private_data) }
}

/// Sends a request and its reply, and checks the events of both ends.
fn ask_and_answer(near: &Side, far: &Side) {
    let listener = far.listener(QpType::Rc);
    let near_id = asking(near, listener.local_address(), b"which");
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
fn sidr_requests_and_replies_reach_addressed_member() {
    let address = common::address();
    // The first member holds port 4791 and forwards datagrams to the second.
    let (holder, other) = (at(address), at(address));
    ask_and_answer(&holder, &other);
    ask_and_answer(&other, &holder);
    let third = at(address);
    ask_and_answer(&third, &other);
    let outside = Side::new(PortSpace::Udp);
    ask_and_answer(&outside, &other);
    ask_and_answer(&other, &outside);
}

/// The rule of `cma_check_port` in Linux applies to ids of one process and of two.
#[test]
fn taken_service_gives_addrnotavail_if_either_id_is_wildcard() {
    let address = common::address();
    let (one, two) = (at(address), at(address));
    let everywhere = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    for (first, second, errno) in [
        (everywhere, everywhere, libc::EADDRNOTAVAIL),
        (everywhere, address, libc::EADDRNOTAVAIL),
        (address, everywhere, libc::EADDRNOTAVAIL),
        (address, address, libc::EADDRINUSE),
    ] {
        for other in [&one, &two] {
            let (bound, id) = (one.id(QpType::Rc), other.id(QpType::Rc));
            bound.bind(SocketAddr::new(first, 0)).unwrap();
            let port = bound.local_address().port();
            let error = id.bind(SocketAddr::new(second, port)).unwrap_err();
            assert_eq!(error.errno(), errno, "{first} and {second}: {error}");
            id.bind(SocketAddr::new(second, 0)).unwrap();
            assert_ne!(id.local_address().port(), port);
        }
    }
    // There is no conflict if `::` is restricted to its family, or if both ids reuse the address.
    let every_v6 = IpAddr::V6(Ipv6Addr::UNSPECIFIED);
    for (second, option) in
        [(every_v6, CmOption::AddressFamilyOnly(true)), (everywhere, CmOption::ReuseAddress(true))]
    {
        let [bound, id] = [(); 2].map(|()| one.id(QpType::Rc));
        bound.set_option(option).unwrap();
        bound.bind(SocketAddr::new(everywhere, 0)).unwrap();
        let taken = SocketAddr::new(second, bound.local_address().port());
        assert_eq!(id.bind(taken).unwrap_err().errno(), libc::EADDRNOTAVAIL, "{option:?}");
        id.set_option(option).unwrap();
        id.bind(taken).unwrap();
    }
    // A port of another port space is another service.
    let listener = one.listener(QpType::Rc);
    for side in [&one, &two] {
        let manager = side.node.device.connection_manager();
        let other = manager.create_id(PortSpace::Tcp, QpType::Rc, &side.channel).unwrap();
        other.bind(listener.local_address()).unwrap();
    }
}

#[test]
fn endpoints_of_port_space_udp_refuse_qps() {
    let side = Side::new(PortSpace::Udp);
    let id = side.id(QpType::Rc);
    let attached = id.attach(side.node.qp(QpType::XrcIni));
    assert!(matches!(attached, Err(VerbsError::Invalid(why)) if why.contains("UDP")));
    assert!(matches!(id.connect(&with(b"")), Err(VerbsError::Invalid(_))), "it has no peer");
    assert!(matches!(id.accept(&naming(7, b"")), Err(VerbsError::Invalid(_))));
    assert!(matches!(id.reject(b""), Err(VerbsError::Invalid(_))));
    let manager = side.node.device.connection_manager();
    let xrc = manager.create_id(PortSpace::Udp, QpType::XrcIni, &side.channel);
    assert!(matches!(xrc, Err(VerbsError::Invalid(_))));
}
