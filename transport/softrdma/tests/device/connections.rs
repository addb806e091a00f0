//! Addresses and channels of connection endpoints, and their state after an object is dropped.

use crate::common;
use crate::common::node::{Node, exchange, join, next_event, next_request, wait_readable};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use trunkline_softrdma::device::{LinkChoice, SoftOptions};
use trunkline_softrdma::link::Hub;
use trunkline_verbs::{
    CmChannel, CmEvent, CmEventKind, CmId, Device, EndpointRequest, EndpointSide, PortSpace, QpType,
    VerbsError,
};

fn next(channel: &Arc<dyn CmChannel>) -> CmEvent {
    next_event(&**channel)
}

/// Listens on a free port of an address.
fn listen(node: &Node, at: IpAddr, on: &Arc<dyn CmChannel>) -> Arc<dyn CmId> {
    node.listen(SocketAddr::new(at, 0), on).unwrap()
}

macro_rules! assert_kind {
    ($event:expr, $kind:pat) => {{
        let event = $event;
        assert!(matches!(event.kind, $kind), "{event:?}");
    }};
}

#[test]
fn detached_qp_outlives_its_connection() {
    let [near, far] = common::in_process().map(|options| Node::open(options, 4096));
    let joined = join(&near, &far);
    assert_eq!(joined.far_id.peer_address().map(|address| address.ip()), Some(near.address));
    assert_eq!(joined.near_id.detach().map(|qp| qp.number()), Some(joined.ini.number()));
    assert_eq!(joined.far_id.detach().map(|qp| qp.number()), Some(joined.tgt.number()));
    assert!(joined.far_id.detach().is_none());
    joined.near_id.disconnect().unwrap();
    assert_kind!(next(&joined.far_channel), CmEventKind::Disconnected { .. });
    exchange(&*joined.ini, &near, &far, 64);
}

#[test]
fn dropping_initiator_id_disconnects_peer() {
    let [near, far] = common::in_process().map(|options| Node::open(options, 64));
    let joined = join(&near, &far);
    drop(joined.near_id);
    assert_kind!(next(&joined.far_channel), CmEventKind::Disconnected { .. });
}

#[test]
fn pending_request_is_refused_when_its_channel_is_dropped() {
    let [near, far] = common::in_process().map(|options| Node::open(options, 64));
    let (near_channel, far_channel) = (near.cm_channel(), far.cm_channel());
    let listener = listen(&far, far.address, &far_channel);
    let (_id, _ini) = near.ask(listener.local_address(), &near_channel);
    wait_readable(&*far_channel);
    drop((listener, far_channel));
    assert_kind!(next(&near_channel), CmEventKind::Rejected(_));
}

#[test]
fn waiting_events_move_with_endpoint_to_another_channel() {
    let [near, far] = common::in_process().map(|options| Node::open(options, 64));
    let (near_channel, far_channel, other) = (near.cm_channel(), far.cm_channel(), near.cm_channel());
    let listener = listen(&far, far.address, &far_channel);
    let (id, _ini) = near.ask(listener.local_address(), &near_channel);
    let far_id = next_request(&*far_channel);
    let _tgt = far.accept(&*far_id);
    wait_readable(&*near_channel);
    id.migrate(&other).unwrap();
    assert!(near_channel.next_event().is_none());
    assert_kind!(next(&other), CmEventKind::Established);
    assert!(matches!(id.migrate(&far_channel), Err(VerbsError::Invalid(_))), "another device's");
}

#[test]
fn wildcard_listener_accepts_requests_to_every_address() {
    let hub = Hub::new();
    let link = LinkChoice::InProcess(hub);
    let addresses: Vec<IpAddr> = vec![common::address(), common::address()];
    let far =
        Node::open(SoftOptions { addresses: addresses.clone(), link: link.clone(), ..common::udp() }, 64);
    let near = Node::open(SoftOptions { link, ..common::udp() }, 64);
    let (near_channel, far_channel) = (near.cm_channel(), far.cm_channel());
    let listener = listen(&far, IpAddr::from([0, 0, 0, 0]), &far_channel);
    for address in addresses {
        let (_id, _ini) = near.ask(SocketAddr::new(address, listener.local_address().port()), &near_channel);
        let far_id = next_request(&*far_channel);
        assert_eq!(far_id.local_address().ip(), address);
        let _tgt = far.accept(&*far_id);
        assert_kind!(next(&near_channel), CmEventKind::Established);
        assert_kind!(next(&far_channel), CmEventKind::Established);
    }
}

#[test]
fn client_uses_another_address_when_its_first_is_held_by_server() {
    // Two devices without given addresses use the same addresses. The server was opened first.
    let hub = Hub::new();
    let open = || {
        let link = LinkChoice::InProcess(Arc::clone(&hub));
        // `Node` uses the first address by default, which does not matter here.
        let device =
            trunkline_softrdma::device::SoftDevice::open(SoftOptions { link, ..SoftOptions::default() });
        Node::with_device(device.unwrap(), IpAddr::from([127, 0, 0, 1]), 4096)
    };
    let (far, near) = (open(), open());
    let (near_channel, far_channel) = (near.cm_channel(), far.cm_channel());
    let listener = listen(&far, far.address, &far_channel);
    let (near_id, ini) = near.ask(listener.local_address(), &near_channel);
    let local = near_id.local_address().ip();
    assert!(local.is_loopback() && local != far.address, "{local}");
    let far_id = next_request(&*far_channel);
    let _tgt = far.accept(&*far_id);
    assert_kind!(next(&near_channel), CmEventKind::Established);
    exchange(&*ini, &near, &far, 64);
}

/// GIDs and the connection manager's messages do not contain an interface.
#[test]
fn link_local_addresses_are_refused() {
    let [hub, _] = common::in_process();
    for options in [hub, common::udp()] {
        let node = Node::open(options, 4096);
        let channel = node.cm_channel();
        let there: SocketAddr = "[fe80::1%1]:7".parse().unwrap();
        let sides = [
            EndpointSide::Passive { local: there },
            EndpointSide::Active { remote: there, source: None },
            EndpointSide::Active { remote: there, source: Some(node.address) },
        ];
        for side in sides {
            let request = EndpointRequest { side, port_space: PortSpace::Tcp, qp_type: QpType::Rc };
            let refused = node.device.connection_manager().create_endpoint(&request, &channel).unwrap_err();
            assert!(refused.to_string().contains("is link-local"), "{side:?}: {refused}");
        }
    }
}
