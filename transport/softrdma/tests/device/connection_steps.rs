//! Connections opened step by step, as by programs with librdmacm. They use unbound ids, resolution with events,
//! and QPs that the program itself moves to RTS.

use crate::common::node::post;
use crate::common::side::Side;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use trunkline_verbs::{
    CmEvent, CmEventKind, CmId, CompletionStatus, ConnectParameters, Device, PortSpace, QpState, QpType,
    QueuePair, SendOperation, VerbsError,
};

/// Returns the IPv4-mapped IPv6 address.
fn mapped(address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(v4) => SocketAddr::new(v4.to_ipv6_mapped().into(), address.port()),
        IpAddr::V6(_) => address,
    }
}

#[test]
fn mapped_addresses_are_treated_as_ipv4_addresses() {
    let side = Side::new(PortSpace::Ib);
    let listener = side.id(QpType::XrcTgt);
    listener.bind(mapped(side.at(0))).unwrap();
    let at = listener.local_address();
    assert_eq!(at.ip(), side.node.address);
    listener.listen(4).unwrap();
    let id = side.id(QpType::XrcIni);
    id.resolve_address(Some(mapped(side.at(0))), mapped(at)).unwrap();
    assert!(matches!(side.next().kind, CmEventKind::AddressResolved));
    assert_eq!((id.local_address().ip(), id.peer_address()), (side.node.address, Some(at)));
}

fn bring_up(id: &Arc<dyn CmId>, qp: &Arc<dyn QueuePair>, states: &[QpState]) {
    for state in states {
        qp.modify(&id.qp_changes(*state).unwrap()).unwrap();
    }
}

fn named(qp: &Arc<dyn QueuePair>, private_data: &[u8]) -> ConnectParameters {
    ConnectParameters {
        qp_number: Some(qp.number()),
        private_data: private_data.to_vec(),
        ..ConnectParameters::default()
    }
}

const ALL: [QpState; 3] = [QpState::Init, QpState::ReadyToReceive, QpState::ReadyToSend];

#[test]
fn program_modifying_its_own_qps_connects() {
    let (near, far) = (Side::new(PortSpace::Ib), Side::new(PortSpace::Ib));
    let listener = far.listener(QpType::XrcTgt);
    let near_id = near.resolved(QpType::XrcIni, listener.local_address());
    let ini = near.node.qp(QpType::XrcIni);
    assert!(matches!(near_id.qp_changes(QpState::ReadyToReceive), Err(VerbsError::Invalid(_))));
    near_id.connect(&named(&ini, b"asked")).unwrap();

    let (far_id, asked) = far.requested();
    assert!(asked.private_data.starts_with(b"asked"));
    assert_eq!(asked.qp_number, Some(ini.number()));
    let tgt = far.node.qp(QpType::XrcTgt);
    bring_up(&far_id, &tgt, &ALL);
    far_id.accept(&named(&tgt, b"answered")).unwrap();

    let CmEvent { kind: CmEventKind::ConnectResponse { parameters }, private_data, .. } = near.next() else {
        panic!("the reply is reported")
    };
    assert!(private_data.starts_with(b"answered") && private_data.len() == 196);
    assert_eq!(parameters.qp_number, Some(tgt.number()));
    assert!(parameters.srq, "contract J5");
    bring_up(&near_id, &ini, &ALL);
    near_id.establish().unwrap();
    assert!(matches!(far.next().kind, CmEventKind::Established));

    far.node.receive(1, 0, 64);
    post(&*ini, SendOperation::Send, &[near.node.sge(0, 64)], &*far.node.srq);
    assert_eq!(near.node.completion().status, CompletionStatus::Success);
    assert_eq!(far.node.completion().status, CompletionStatus::Success);

    near_id.disconnect().unwrap();
    assert!(matches!(near.next().kind, CmEventKind::Disconnected { .. }), "and no event for `establish`");
    assert!(matches!(far.next().kind, CmEventKind::Disconnected { .. }));
    assert_eq!(tgt.query().unwrap().state, QpState::ReadyToSend, "a QP that was only named is left alone");
}

/// If the RTU is lost, the peer's first message establishes the connection before the reply is repeated.
#[test]
fn first_message_replaces_lost_rtu() {
    let (near, far) = (Side::new(PortSpace::Ib), Side::new(PortSpace::Ib));
    let listener = far.listener(QpType::XrcTgt);
    let near_id = near.resolved(QpType::XrcIni, listener.local_address());
    let ini = near.node.qp(QpType::XrcIni);
    near_id.connect(&named(&ini, b"")).unwrap();
    let (far_id, _) = far.requested();
    let tgt = far.node.qp(QpType::XrcTgt);
    far_id.attach(Arc::clone(&tgt)).unwrap();
    far_id.accept(&ConnectParameters::default()).unwrap();
    assert!(matches!(near.next().kind, CmEventKind::ConnectResponse { .. }));
    bring_up(&near_id, &ini, &ALL);
    assert!(far.channel.next_event().is_none(), "nothing was said yet");
    far.node.receive(1, 0, 64);
    post(&*ini, SendOperation::Send, &[near.node.sge(0, 64)], &*far.node.srq);
    assert!(matches!(far.next().kind, CmEventKind::Established));
    assert_eq!(far.node.completion().status, CompletionStatus::Success);
    // The late RTU has no effect.
    near_id.establish().unwrap();
    near_id.disconnect().unwrap();
    assert!(matches!(far.next().kind, CmEventKind::Disconnected { .. }));
}

#[test]
fn out_of_order_steps_of_id_are_refused() {
    let (near, far) = (Side::new(PortSpace::Ib), Side::new(PortSpace::Ib));
    let id = near.id(QpType::XrcIni);
    assert!(matches!(id.resolve_route(), Err(VerbsError::Invalid(_))));
    assert!(matches!(id.connect(&ConnectParameters::default()), Err(VerbsError::Invalid(_))));
    let id = near.resolved(QpType::XrcIni, far.at(9));
    assert!(matches!(id.bind(near.at(0)), Err(VerbsError::Invalid(_))));
    assert!(matches!(id.listen(1), Err(VerbsError::Invalid(_))));
    assert!(matches!(id.connect(&ConnectParameters::default()), Err(VerbsError::Invalid(_))), "no QP");
    let tcp = near.node.device.connection_manager().create_id(PortSpace::Tcp, QpType::XrcIni, &near.channel);
    assert!(matches!(tcp, Err(VerbsError::Invalid(_))), "contract J1");
}

#[test]
fn peer_of_unreachable_family_is_reported_as_event() {
    let near = Side::new(PortSpace::Ib);
    let id = near.id(QpType::XrcIni);
    id.resolve_address(None, "[::1]:9".parse().unwrap()).unwrap();
    assert!(matches!(near.next().kind, CmEventKind::AddressError(VerbsError::AddressNotAvailable(_))));
    // The program can still try another address with the id.
    id.resolve_address(None, near.at(9)).unwrap();
    assert!(matches!(near.next().kind, CmEventKind::AddressResolved));
}
