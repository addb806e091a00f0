//! The user at the other end of a connection, between devices of this process.

use crate::common;
use crate::common::host::{Host, provable_user};
use crate::common::node::{Node, join, next_event, next_request};
use nix::unistd::geteuid;
use std::net::SocketAddr;
use trunkline_softrdma::device::{LinkChoice, LinkFactory, SoftOptions};
use trunkline_softrdma::link::{Hub, Link};
use trunkline_verbs::{CmEventKind, ConnectParameters, Device, PortSpace, QpType};

#[test]
fn devices_of_one_registry_prove_their_user() {
    let host = Host::new();
    let shm = || SoftOptions { runtime_directory: Some(host.runtime()), ..common::memory() };
    for options in [[host.options(), host.options()], [shm(), shm()]] {
        let [near, far] = options.map(|options| Node::open(options, 4096));
        let joined = join(&near, &far);
        assert_eq!([joined.near_id.local_user(), joined.far_id.local_user()], [provable_user(); 2]);
    }
}

#[test]
fn device_proves_user_to_itself_and_on_in_process_network() {
    let host = Host::new();
    let alone = Node::open(host.options(), 4096);
    let [near, far] = common::in_process().map(|options| Node::open(options, 4096));
    let user = Some(geteuid().as_raw());
    for joined in [join(&alone, &alone), join(&near, &far)] {
        assert_eq!([joined.near_id.local_user(), joined.far_id.local_user()], [user; 2]);
    }
}

#[test]
fn devices_of_different_registries_or_on_custom_network_do_not_prove_user() {
    let hosts = [Host::new(), Host::new()];
    let hub = Hub::new();
    let factory = LinkFactory::new(move || Ok(Box::new(hub.link()?) as Box<dyn Link>));
    let custom = || SoftOptions { link: LinkChoice::Custom(factory.clone()), ..common::udp() };
    for options in [[hosts[0].options(), hosts[1].options()], [custom(), custom()]] {
        let [near, far] = options.map(|options| Node::open(options, 4096));
        let joined = join(&near, &far);
        assert_eq!([joined.near_id.local_user(), joined.far_id.local_user()], [None; 2]);
    }
}

/// A member names another member's QP in its request, from the same address and another port.
#[test]
fn request_with_number_of_foreign_qp_does_not_prove_user() {
    let host = Host::new();
    let [owner, far] = [(); 2].map(|()| Node::open(host.options(), 4096));
    let at_owner = SoftOptions { addresses: vec![owner.address], ..host.options() };
    let other = Node::open(at_owner, 4096);
    // The owner holds a port at the address.
    let joined = join(&owner, &far);
    assert_eq!(joined.far_id.local_user(), provable_user());
    let [channel, far_channel] = [&other, &far].map(Node::cm_channel);
    let listener = far.listen(SocketAddr::new(far.address, 0), &far_channel).unwrap();
    let remote = SocketAddr::new(far.address, listener.local_address().port());
    let ask = |qp_number| {
        let manager = other.device.connection_manager();
        let id = manager.create_id(PortSpace::Ib, QpType::XrcIni, &channel).unwrap();
        id.resolve_address(None, remote).unwrap();
        assert!(matches!(next_event(&*channel).kind, CmEventKind::AddressResolved));
        id.resolve_route().unwrap();
        assert!(matches!(next_event(&*channel).kind, CmEventKind::RouteResolved));
        id.connect(&ConnectParameters { qp_number: Some(qp_number), ..ConnectParameters::default() })
            .unwrap();
        let request = next_request(&*far_channel);
        assert_eq!(id.local_user(), None, "no reply has come");
        request.local_user()
    };
    let [foreign, its_own] = [&owner, &other].map(|node| node.qp(QpType::XrcIni));
    assert_eq!([ask(foreign.number()), ask(its_own.number())], [None, provable_user()]);
}
