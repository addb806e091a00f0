//! Connections through librdmacm, on the first device of the host.
//!
//! The tests run in real time, because the device belongs to the kernel or another library.
#![cfg(feature = "rdma-core")]
#![allow(clippy::tests_outside_test_module, reason = "an integration test is a test module of its own")]

mod lab;

use lab::{BOUND, Lab, active, next, next_request, parameters};
use std::net::SocketAddr;
use std::sync::{Arc, mpsc};
use trunkline_rdma_core::device_for;
use trunkline_verbs::{
    CmChannel, CmEventKind, CmId, CmOption, ConnectParameters, EndpointRequest, EndpointSide, PortSpace,
    QpState, QpType, QueuePair, RejectReason, VerbsError,
};

macro_rules! assert_kind {
    ($event:expr, $id:expr, $kind:pat) => {{
        let event = $event;
        assert!(matches!(event.kind, $kind) && event.id == $id.number(), "{event:?}");
        event
    }};
}

fn state(qp: &Arc<dyn QueuePair>) -> QpState {
    qp.query().unwrap().state
}

#[test]
fn connections_of_all_types_open_and_close() {
    let Some(lab) = Lab::open() else { return };
    for (types, &address) in
        lab.types().into_iter().flat_map(|types| lab.addresses.iter().map(move |a| (types, a)))
    {
        let (near, far) = (lab.channel(), lab.channel());
        let listener = lab.listen(address, types.1, &far);
        assert_eq!(listener.local_address().ip(), address);
        let (near_id, near_qp) = lab.request(listener.local_address(), types.0, &near, b"hello");
        assert_eq!(near_id.peer_address(), Some(listener.local_address()));
        let (far_id, offer, asked) = next_request(&far);
        assert_eq!((asked.len(), &asked[..6]), (56, &b"hello\0"[..]), "the field's full size");
        assert_eq!(offer.initiator_depth, if types.0 == QpType::Rc { 4 } else { offer.initiator_depth });
        assert_eq!(far_id.peer_address(), Some(near_id.local_address()));
        assert_eq!(far_id.local_address(), listener.local_address());
        let far_qp = lab.accept(&far_id, types.1, b"welcome");
        let event = assert_kind!(next(&near), near_id, CmEventKind::Established);
        assert_eq!((event.private_data.len(), &event.private_data[..8]), (196, &b"welcome\0"[..]));
        assert_kind!(next(&far), far_id, CmEventKind::Established);
        assert_eq!((state(&near_qp), state(&far_qp)), (QpState::ReadyToSend, QpState::ReadyToSend));
        assert_eq!(near_qp.query().unwrap().destination_qp, far_qp.number());
        assert_eq!(far_qp.query().unwrap().destination_qp, near_qp.number());

        near_id.disconnect().unwrap();
        assert_eq!(state(&near_qp), QpState::Error);
        assert_kind!(next(&far), far_id, CmEventKind::Disconnected { .. });
        assert_eq!(state(&far_qp), QpState::Error);
        assert_kind!(next(&near), near_id, CmEventKind::Disconnected { .. });
    }
}

#[test]
fn detached_qp_outlives_its_connection() {
    let Some(lab) = Lab::open() else { return };
    for types in lab.types() {
        let (near, far) = (lab.channel(), lab.channel());
        let listener = lab.listen(lab.addresses[0], types.1, &far);
        let (near_id, near_qp) = lab.request(listener.local_address(), types.0, &near, b"");
        let (far_id, ..) = next_request(&far);
        let far_qp = lab.accept(&far_id, types.1, b"");
        assert_kind!(next(&near), near_id, CmEventKind::Established);
        assert_kind!(next(&far), far_id, CmEventKind::Established);
        assert!(matches!(near_id.attach(Arc::clone(&near_qp)), Err(VerbsError::Invalid(_))));
        assert_eq!(near_id.detach().map(|qp| qp.number()), Some(near_qp.number()));
        assert_eq!(far_id.detach().map(|qp| qp.number()), Some(far_qp.number()));
        assert!(far_id.detach().is_none());
        near_id.disconnect().unwrap();
        assert_kind!(next(&far), far_id, CmEventKind::Disconnected { .. });
        assert_eq!((state(&near_qp), state(&far_qp)), (QpState::ReadyToSend, QpState::ReadyToSend));
        drop((near_id, far_id));
        assert_eq!((state(&near_qp), state(&far_qp)), (QpState::ReadyToSend, QpState::ReadyToSend));
    }
}

#[test]
fn destroyed_qp_fails_pending_connection() {
    let Some(lab) = Lab::open() else { return };
    let (near, far) = (lab.channel(), lab.channel());
    let listener = lab.listen(lab.addresses[0], QpType::Rc, &far);
    let (near_id, near_qp) = lab.request(listener.local_address(), QpType::Rc, &near, b"");
    let (far_id, ..) = next_request(&far);
    near_qp.destroy().unwrap();
    let _far_qp = lab.accept(&far_id, QpType::Rc, b"");
    assert_kind!(next(&near), near_id, CmEventKind::ConnectError);
}

#[test]
fn rejection_reports_its_reason() {
    let Some(lab) = Lab::open() else { return };
    for types in lab.types() {
        let (near, far) = (lab.channel(), lab.channel());
        let listener = lab.listen(lab.addresses[0], types.1, &far);
        for reason in [RejectReason::CONSUMER, RejectReason::VENDOR_OPTION] {
            let (near_id, near_qp) = lab.request(listener.local_address(), types.0, &near, b"");
            let (far_id, ..) = next_request(&far);
            assert!(matches!(far_id.reject_for(RejectReason::NO_QP, b""), Err(VerbsError::NotSupported(_))));
            far_id.reject_for(reason, b"not you").unwrap();
            let event = assert_kind!(next(&near), near_id, CmEventKind::Rejected(_));
            assert!(matches!(event.kind, CmEventKind::Rejected(reported) if reported == reason), "{event:?}");
            assert_eq!((event.private_data.len(), &event.private_data[..8]), (148, &b"not you\0"[..]));
            assert_eq!(state(&near_qp), QpState::Error);
        }
        // Dropping a request also rejects it.
        let (near_id, _qp) = lab.request(listener.local_address(), types.0, &near, b"");
        drop(next_request(&far));
        assert_kind!(next(&near), near_id, CmEventKind::Rejected(_));
        // A request to a listener that has been dropped is rejected.
        let there = listener.local_address();
        drop(listener);
        let (near_id, _qp) = lab.request(there, types.0, &near, b"");
        let event = next(&near);
        let none = CmEventKind::Rejected(RejectReason::INVALID_SERVICE_ID);
        assert_eq!((event.id, format!("{:?}", event.kind)), (near_id.number(), format!("{none:?}")));
    }
}

#[test]
fn program_can_bring_its_qp_up_itself() {
    let Some(lab) = Lab::open() else { return };
    let (near, far) = (lab.channel(), lab.channel());
    let manager = lab.device.connection_manager();
    let listener = manager.create_id(PortSpace::Tcp, QpType::Rc, &far).unwrap();
    listener.set_option(CmOption::ReuseAddress(true)).unwrap();
    listener.bind(SocketAddr::new(lab.addresses[0], 0)).unwrap();
    assert!(matches!(listener.bind(SocketAddr::new(lab.addresses[0], 0)), Err(VerbsError::Invalid(_))));
    listener.listen(4).unwrap();

    let id = manager.create_id(PortSpace::Tcp, QpType::Rc, &near).unwrap();
    assert!(matches!(id.resolve_route(), Err(VerbsError::Invalid(_))), "before the address");
    id.set_option(CmOption::TypeOfService(32)).unwrap();
    id.set_option(CmOption::AckTimeout(14)).unwrap();
    assert!(matches!(id.set_option(CmOption::AckTimeout(32)), Err(VerbsError::Invalid(_))));
    id.resolve_address(None, listener.local_address()).unwrap();
    assert_kind!(next(&near), id, CmEventKind::AddressResolved);
    id.resolve_route().unwrap();
    assert_kind!(next(&near), id, CmEventKind::RouteResolved);
    let near_qp = lab.qp(QpType::Rc);
    near_qp.modify(&id.qp_changes(QpState::Init).unwrap()).unwrap();
    assert!(id.connect(&parameters(b"")).is_err(), "neither a QP nor a number");
    let with_number = |qp: &Arc<dyn QueuePair>| {
        let qp_number = Some(qp.number());
        ConnectParameters { qp_number, ..parameters(b"x") }
    };
    id.connect(&with_number(&near_qp)).unwrap();

    let (far_id, offer, _) = next_request(&far);
    assert_eq!(offer.qp_number, Some(near_qp.number()));
    let far_qp = lab.qp(QpType::Rc);
    for state in [QpState::Init, QpState::ReadyToReceive, QpState::ReadyToSend] {
        far_qp.modify(&far_id.qp_changes(state).unwrap()).unwrap();
    }
    far_id.accept(&with_number(&far_qp)).unwrap();
    let event = assert_kind!(next(&near), id, CmEventKind::ConnectResponse { .. });
    let CmEventKind::ConnectResponse { parameters } = event.kind else { unreachable!() };
    assert_eq!(parameters.qp_number, Some(far_qp.number()));
    for state in [QpState::ReadyToReceive, QpState::ReadyToSend] {
        near_qp.modify(&id.qp_changes(state).unwrap()).unwrap();
    }
    assert_eq!(near_qp.query().unwrap().timeout, 14);
    id.establish().unwrap();
    assert_kind!(next(&far), far_id, CmEventKind::Established);
    far_id.communication_established();
}

/// A connection whose active side has received the reply but not sent the RTU.
struct Answered {
    far: Arc<dyn CmChannel>,
    id: Arc<dyn CmId>,
    far_id: Arc<dyn CmId>,
    far_qp: Arc<dyn QueuePair>,
    _rest: (Arc<dyn CmChannel>, Arc<dyn CmId>, Arc<dyn QueuePair>),
}

fn answered(lab: &Lab, types: (QpType, QpType)) -> Answered {
    let (near, far) = (lab.channel(), lab.channel());
    let listener = lab.listen(lab.addresses[0], types.1, &far);
    let (id, qp) = lab.request_by_hand(listener.local_address(), types.0, &near);
    let (far_id, ..) = next_request(&far);
    let far_qp = lab.accept(&far_id, types.1, b"welcome");
    let event = assert_kind!(next(&near), id, CmEventKind::ConnectResponse { .. });
    assert_eq!(&event.private_data[..8], b"welcome\0");
    Answered { far, id, far_id, far_qp, _rest: (near, listener, qp) }
}

#[test]
fn initiator_can_reject_reply() {
    let Some(lab) = Lab::open() else { return };
    for types in lab.types() {
        let made = answered(&lab, types);
        let Answered { far, id, far_id, far_qp, .. } = &made;
        id.reject(b"not so").unwrap();
        let event = assert_kind!(next(far), far_id, CmEventKind::Rejected(RejectReason::CONSUMER));
        assert_eq!((event.private_data.len(), &event.private_data[..7]), (148, &b"not so\0"[..]));
        assert_eq!(state(far_qp), QpState::Error);
        assert!(id.establish().is_err(), "the reply is rejected");
    }
}

/// The RTU is lost. The first packet to the QP establishes the connection instead.
#[test]
fn communication_established_replaces_rtu() {
    let Some(lab) = Lab::open() else { return };
    for types in lab.types() {
        let made = answered(&lab, types);
        let Answered { far, far_id, .. } = &made;
        assert!(far.next_event().is_none(), "the RTU is not sent yet");
        far_id.communication_established();
        assert_kind!(next(far), far_id, CmEventKind::Established);
    }
}

#[test]
fn request_without_reply_is_unreachable() {
    let Some(lab) = Lab::open() else { return };
    let Some((nobody, _unread)) = lab.nobody() else { return };
    for types in lab.types() {
        let near = lab.channel();
        let (id, qp) = lab.request(nobody, types.0, &near, b"");
        assert_kind!(next(&near), id, CmEventKind::Unreachable(_));
        assert_ne!(state(&qp), QpState::ReadyToSend);
    }
}

#[test]
fn endpoints_migrate_with_their_events() {
    let Some(lab) = Lab::open() else { return };
    for types in lab.types() {
        let (near, far, other) = (lab.channel(), lab.channel(), lab.channel());
        let listener = lab.listen(lab.addresses[0], types.1, &far);
        let (near_id, _near_qp) = lab.request(listener.local_address(), types.0, &near, b"");
        let (far_id, ..) = next_request(&far);
        let _far_qp = lab.accept(&far_id, types.1, b"");
        // Wait until the reply has arrived, without taking its event.
        assert!(lab::wait_readable(&*near, BOUND));
        near_id.migrate(&other).unwrap();
        assert_kind!(next(&other), near_id, CmEventKind::Established);
        assert_kind!(next(&far), far_id, CmEventKind::Established);
        assert!(near.next_event().is_none());
        // Migrate a listener that has a separate descriptor and a pending request.
        let (late_id, _late_qp) = lab.request(listener.local_address(), types.0, &near, b"late");
        assert!(lab::wait_readable(&*far, BOUND));
        listener.migrate(&other).unwrap();
        assert!(far.next_event().is_none());
        let (late, _, asked) = next_request(&other);
        assert_eq!(&asked[..5], b"late\0");
        late.reject(b"").unwrap();
        assert_kind!(next(&near), late_id, CmEventKind::Rejected(_));
    }
}

#[test]
fn one_descriptor_announces_requests_of_all_listeners() {
    let Some(lab) = Lab::open() else { return };
    let (near, far) = (lab.channel(), lab.channel());
    let listeners: Vec<_> = (0..5).map(|_| lab.listen(lab.addresses[0], QpType::Rc, &far)).collect();
    let asking: Vec<_> =
        listeners.iter().map(|to| lab.request(to.local_address(), QpType::Rc, &near, b"")).collect();
    let mut asked: Vec<_> = asking.iter().map(|_| next_request(&far).0).collect();
    asked.sort_by_key(|id| id.local_address().port());
    let mut ports: Vec<u16> = listeners.iter().map(|listener| listener.local_address().port()).collect();
    ports.sort_unstable();
    assert_eq!(asked.iter().map(|id| id.local_address().port()).collect::<Vec<_>>(), ports);
}

/// Endpoints are destroyed while their events are pending, arriving or being read.
#[test]
fn endpoints_can_be_dropped_at_any_time() {
    let Some(lab) = Lab::open() else { return };
    for types in lab.types() {
        for round in 0..8 {
            let (near, far) = (lab.channel(), lab.channel());
            let listener = lab.listen(lab.addresses[0], types.1, &far);
            let to = listener.local_address();
            let asking: Vec<_> = (0..8).map(|_| lab.request(to, types.0, &near, b"")).collect();
            std::thread::scope(|scope| {
                let reader = scope.spawn(|| {
                    // Take events at the same time. This drops the endpoints of requests.
                    for _ in 0..200 {
                        drop((near.next_event(), far.next_event()));
                        std::thread::yield_now();
                    }
                });
                if round % 2 == 0 {
                    drop(listener);
                    drop(asking);
                } else {
                    drop(asking);
                    drop(listener);
                }
                reader.join().unwrap();
            });
        }
    }
}

#[test]
fn each_background_request_for_endpoint_finishes_once() {
    let Some(lab) = Lab::open() else { return };
    let (near, far) = (lab.channel(), lab.channel());
    for types in lab.types() {
        let listener = lab.listen(lab.addresses[0], types.1, &far);
        let (done, finished) = mpsc::channel();
        for number in 0..40 {
            let done = done.clone();
            let done = move |made: Result<Arc<dyn CmId>, VerbsError>| done.send((number, made)).unwrap();
            let request = active(listener.local_address(), types.0);
            lab.device.connection_manager().begin_endpoint(request, &near, Box::new(done));
        }
        drop(done);
        let mut made: Vec<_> = finished.iter().map(|(number, made)| (number, made.unwrap())).collect();
        made.sort_by_key(|(number, _)| *number);
        assert_eq!(made.iter().map(|(number, _)| *number).collect::<Vec<_>>(), (0..40).collect::<Vec<_>>());
        // The endpoints work like any other endpoint.
        let (_, id) = made.remove(0);
        let qp = lab.qp(types.0);
        id.attach(qp).unwrap();
        id.connect(&parameters(b"")).unwrap();
        drop(next_request(&far));
        assert_kind!(next(&near), id, CmEventKind::Rejected(_));
    }
    // Dead addresses and invalid requests are reported in the same way.
    let (done, finished) = mpsc::channel();
    let ask = |request: EndpointRequest| {
        let done = done.clone();
        let done = move |made: Result<Arc<dyn CmId>, VerbsError>| done.send(made.map(drop)).unwrap();
        lab.device.connection_manager().begin_endpoint(request, &near, Box::new(done));
        finished.recv_timeout(BOUND).unwrap()
    };
    let there = SocketAddr::new(lab.addresses[0], 1);
    assert!(ask(active(there, QpType::XrcTgt)).is_err());
    let tcp = EndpointRequest { port_space: PortSpace::Tcp, ..active(there, QpType::XrcIni) };
    assert!(matches!(ask(tcp), Err(VerbsError::Invalid(_))));
    // Addresses reserved for documentation do not belong to any host.
    let source = Some([198, 51, 100, 77].into());
    let foreign = EndpointSide::Active { remote: there, source };
    assert!(ask(EndpointRequest { side: foreign, ..active(there, QpType::Rc) }).is_err());
}

#[test]
fn dropping_device_finishes_all_background_requests() {
    let Some(lab) = Lab::open() else { return };
    let (near, far) = (lab.channel(), lab.channel());
    let listener = lab.listen(lab.addresses[0], QpType::Rc, &far);
    let (done, finished) = mpsc::channel();
    for _ in 0..100 {
        let done = done.clone();
        let done = move |made: Result<Arc<dyn CmId>, VerbsError>| done.send(made.map(drop)).unwrap();
        let request = active(listener.local_address(), QpType::Rc);
        lab.device.connection_manager().begin_endpoint(request, &near, Box::new(done));
    }
    drop(done);
    drop((near, far, listener, lab));
    assert_eq!(finished.iter().count(), 100, "each request finishes, with an endpoint or an error");
}

#[test]
fn device_for_finds_device_of_address() {
    let Some(lab) = Lab::open() else { return };
    for address in &lab.addresses {
        assert_eq!(device_for(*address).as_deref(), Ok(lab.device.attributes().name.as_str()));
    }
    assert!(matches!(device_for([198, 51, 100, 77].into()), Err(VerbsError::AddressNotAvailable(_))));
    assert!(device_for([0, 0, 0, 0].into()).is_err());
}

/// A command from the environment, such as `rdma link delete`, removes the device. The command ends when all objects of the
/// device are closed.
#[test]
fn every_endpoint_gets_event_when_device_is_removed() {
    let Ok(command) = std::env::var("TRUNKLINE_REMOVE_COMMAND") else {
        println!("skip removal: TRUNKLINE_REMOVE_COMMAND has no command that removes the device");
        return;
    };
    let Some(lab) = Lab::open() else { return };
    let (near, far) = (lab.channel(), lab.channel());
    let listener = lab.listen(lab.addresses[0], QpType::Rc, &far);
    let (near_id, near_qp) = lab.request(listener.local_address(), QpType::Rc, &near, b"");
    let (far_id, ..) = next_request(&far);
    let far_qp = lab.accept(&far_id, QpType::Rc, b"");
    assert_kind!(next(&near), near_id, CmEventKind::Established);
    assert_kind!(next(&far), far_id, CmEventKind::Established);
    let resolved = lab.endpoint(listener.local_address(), QpType::Rc, &near);
    let bound = lab.device.connection_manager().create_id(PortSpace::Tcp, QpType::Rc, &near).unwrap();
    bound.bind(SocketAddr::new(lab.addresses[0], 0)).unwrap();
    bound.listen(1).unwrap();

    let mut removal = std::process::Command::new("sh").args(["-c", &command]).spawn().unwrap();
    for (channel, ids) in [(&near, vec![&near_id, &resolved, &bound]), (&far, vec![&listener, &far_id])] {
        let mut without_event: Vec<_> = ids.iter().map(|id| id.number()).collect();
        while !without_event.is_empty() {
            let event = next(channel);
            if matches!(event.kind, CmEventKind::DeviceRemoval) {
                let found = without_event.iter().position(|number| *number == event.id);
                without_event.remove(found.unwrap_or_else(|| panic!("{event:?}, of {without_event:?}")));
            }
        }
    }
    // Later calls on the endpoints fail instead of hanging.
    assert!(resolved.connect(&parameters(b"")).is_err());
    drop((near_id, resolved, bound, far_id, listener, near_qp, far_qp, near, far, lab));
    let until = std::time::Instant::now() + BOUND;
    let status = loop {
        if let Some(status) = removal.try_wait().unwrap() {
            break status;
        }
        if std::time::Instant::now() > until {
            removal.kill().unwrap();
            removal.wait().unwrap();
            panic!("an object of the device is still open");
        }
        std::thread::yield_now();
    };
    assert!(status.success(), "{command}: {status}");
}
