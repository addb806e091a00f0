//! The device on interfaces whose MTUs and addresses differ or change. Each test runs in a separate network
//! namespace.

use crate::common::node::{BOUND, Node, exchange, join};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};
use trunkline_softrdma::device::{PathChoice, SoftDevice, SoftOptions};
use trunkline_testkit::{is_in_network_namespace, wait_until};
use trunkline_verbs::{
    AddressOwner, CmChannel, CmEventKind, CmId, Device, EndpointRequest, EndpointSide, Mtu, PortSpace, QpType,
};

const NEAR: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 9, 0, 1));
const FAR: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 9, 1, 1));

/// Returns true in a network namespace that has a pair of interfaces, `near` and `far`. Elsewhere, runs the
/// test again in such a namespace, or reports that the test is skipped.
fn is_inside(test: &str) -> bool {
    is_in_network_namespace(module_path!(), test, "ip link add near type veth peer name far")
}

/// Runs `ip` with arguments separated by spaces.
fn ip(words: &str) {
    let output = Command::new("ip").args(words.split(' ')).output().unwrap();
    assert!(output.status.success(), "ip {words}: {output:?}");
}

/// Opens a device at an address, without paths within the host.
fn at(address: IpAddr) -> Node {
    let options = SoftOptions { addresses: vec![address], path: PathChoice::Udp, ..SoftOptions::default() };
    Node::open(options, 1 << 20)
}

/// Connects an INI of `near` to a listener of `far`, and sends a large message. Returns the path MTUs of both
/// QPs.
fn path_mtus(near: &Node, far: &Node) -> [Mtu; 2] {
    let joined = join(near, far);
    exchange(&*joined.ini, near, far, 300_000);
    [joined.ini, joined.tgt].map(|qp| qp.query().unwrap().path_mtu)
}

#[test]
fn addresses_belong_to_this_user_while_held_by_member() {
    if !is_inside("addresses_belong_to_this_user_while_held_by_member") {
        return;
    }
    ip("link set near up");
    ip("link set far up");
    ip(&format!("addr add {NEAR}/24 dev near"));
    // Any program may send from an address in a local route.
    ip("route add local 10.8.0.0/24 dev lo");
    let listen = |node: &Node| {
        let channel = node.cm_channel();
        (node.listen(SocketAddr::new(node.address, 7471), &channel).unwrap(), channel)
    };
    let near = at(NEAR);
    let _near = listen(&near);
    let owner = |address: &str| near.device.address_owner(address.parse().unwrap());
    assert_eq!(owner("10.9.0.1"), AddressOwner::ThisUser);
    for address in ["127.0.0.1", "127.9.9.9", "::1", "10.8.0.7"] {
        assert_eq!(owner(address), AddressOwner::ThisHost, "{address}");
    }
    for address in ["10.9.0.2", "10.9.1.1", "fd00::1"] {
        assert_eq!(owner(address), AddressOwner::OtherHost, "{address}");
    }
    ip(&format!("addr add {FAR}/24 dev far"));
    assert_eq!(owner("10.9.1.1"), AddressOwner::ThisHost);
    let far = at(FAR);
    let listening = listen(&far);
    assert_eq!(owner("10.9.1.1"), AddressOwner::ThisUser);
    drop((listening, far));
    assert_eq!(owner("10.9.1.1"), AddressOwner::ThisHost);
}

#[test]
fn path_mtu_is_smaller_of_both_interfaces() {
    if !is_inside("path_mtu_is_smaller_of_both_interfaces") {
        return;
    }
    ip("link set near mtu 9000 up");
    ip("link set far mtu 1500 up");
    ip(&format!("addr add {NEAR}/24 dev near"));
    ip(&format!("addr add {FAR}/24 dev far"));
    let [near, far] = [NEAR, FAR].map(at);
    assert_eq!(path_mtus(&near, &far), [Mtu::Mtu1024; 2], "the passive side has the smaller MTU");
    assert_eq!(path_mtus(&far, &near), [Mtu::Mtu1024; 2], "the active side has it");
    // Each new connection has the MTU at the time of its creation.
    ip("link set far mtu 600");
    assert_eq!(path_mtus(&near, &far), [Mtu::Mtu256; 2]);
    ip("link set far mtu 9000");
    assert_eq!(path_mtus(&near, &far), [Mtu::Mtu4096; 2]);
}

/// Opens a device with all addresses of the namespace, and listens on `0.0.0.0`. Also returns the port.
fn wildcard() -> (Node, Arc<dyn CmChannel>, Arc<dyn CmId>, u16) {
    let options = SoftOptions { path: PathChoice::Udp, ..SoftOptions::default() };
    let node = Node::with_device(SoftDevice::open(options).unwrap(), NEAR, 4096);
    let channel = node.cm_channel();
    let listener = node.listen(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0), &channel).unwrap();
    let port = listener.local_address().port();
    (node, channel, listener, port)
}

/// Sends requests to the listener at an address until one arrives there.
fn reach(from: &Node, to: SocketAddr, arrivals: &Arc<dyn CmChannel>) {
    let channel = from.cm_channel();
    let until = Instant::now() + BOUND;
    loop {
        let (_id, _ini) = from.ask(to, &channel);
        while Instant::now() < until {
            if let Some(event) = arrivals.next_event() {
                let CmEventKind::ConnectRequest { id, .. } = event.kind else { continue };
                assert_eq!(id.local_address().ip(), to.ip());
                return;
            }
            // The address did not have a listener yet.
            if channel.next_event().is_some() {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(Instant::now() < until, "nobody is reached at {to}");
    }
}

/// Addresses may come from DHCP, or move between hosts.
#[test]
fn wildcard_listener_follows_added_and_removed_addresses() {
    if !is_inside("wildcard_listener_follows_added_and_removed_addresses") {
        return;
    }
    ip("link set near up");
    ip("link set far up");
    ip(&format!("addr add {FAR}/24 dev far"));
    let (node, arrivals, _listener, port) = wildcard();
    let from = at(FAR);
    ip(&format!("addr add {NEAR}/24 dev near"));
    reach(&from, SocketAddr::new(NEAR, port), &arrivals);
    let has = || node.device.gid_table().iter().any(|entry| entry.gid.ip() == NEAR);
    assert!(has());
    ip(&format!("addr del {NEAR}/24 dev near"));
    let until = Instant::now() + BOUND;
    while has() {
        assert!(Instant::now() < until, "the GID of an address that has gone stays");
        std::thread::sleep(Duration::from_millis(1));
    }
    ip(&format!("addr add {NEAR}/24 dev near"));
    reach(&from, SocketAddr::new(NEAR, port), &arrivals);
}

/// A service may start before the network.
#[test]
fn wildcard_listener_starts_without_address_of_its_family() {
    if !is_inside("wildcard_listener_starts_without_address_of_its_family") {
        return;
    }
    ip("addr del 127.0.0.1/8 dev lo");
    let (_node, arrivals, _listener, port) = wildcard();
    ip("link set near up");
    ip("link set far up");
    ip(&format!("addr add {FAR}/24 dev far"));
    ip(&format!("addr add {NEAR}/24 dev near"));
    reach(&at(FAR), SocketAddr::new(NEAR, port), &arrivals);
}

/// Containers and temporary IPv6 addresses cause many changes of addresses.
#[test]
fn sockets_of_removed_addresses_are_closed() {
    if !is_inside("sockets_of_removed_addresses_are_closed") {
        return;
    }
    let (node, _arrivals, _listener, _port) = wildcard();
    let has_all = |net: u8| {
        let has = |host: u8| {
            let address = IpAddr::from([10, 9, net, host]);
            node.device.gid_table().iter().any(|entry| entry.gid.ip() == address)
        };
        (1..=100).all(has)
    };
    for net in 1..=4 {
        let each = |what: &str| {
            let all = format!("for i in $(seq 100); do ip addr {what} 10.9.{net}.$i/32 dev lo || exit; done");
            assert!(Command::new("sh").args(["-c", &all]).status().unwrap().success());
        };
        each("add");
        wait_until("the device has the addresses", BOUND, || has_all(net).then_some(()));
        each("del");
        // The sockets at addresses in the table stay open.
        let sockets = || std::fs::read_to_string("/proc/net/udp").unwrap().matches(":12B7 ").count();
        let is_closed = || (sockets() <= 128).then_some(());
        wait_until("sockets at the addresses before are closed", BOUND, is_closed);
    }
}

/// Another user may always hold port 4791 at 127.0.0.1.
#[test]
fn clients_share_substitute_for_occupied_loopback_address() {
    if !is_inside("clients_share_substitute_for_occupied_loopback_address") {
        return;
    }
    let _other = UdpSocket::bind("127.0.0.1:4791").unwrap();
    let device = SoftDevice::open(SoftOptions { path: PathChoice::Udp, ..SoftOptions::default() }).unwrap();
    let channel = device.connection_manager().create_channel().unwrap();
    let dial = || {
        let side = EndpointSide::Active { remote: "127.0.0.2:7".parse().unwrap(), source: None };
        let request = EndpointRequest { side, port_space: PortSpace::Ib, qp_type: QpType::XrcIni };
        let id = device.connection_manager().create_endpoint(&request, &channel).unwrap();
        id.local_address().ip()
    };
    let first = dial();
    assert!(first.is_loopback() && first != IpAddr::V4(Ipv4Addr::LOCALHOST), "{first}");
    for _ in 0..300 {
        assert_eq!(dial(), first);
    }
    assert!(device.gid_table().iter().any(|entry| entry.gid.ip() == first));
}
