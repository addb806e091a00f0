//! Eight nodes that connect to each other at the same time, while they also connect to dead addresses and to a peer
//! that never answers. These do not delay the sessions between the nodes.
//!
//! The test runs on the software device by default. With the feature `rdma-core` it runs on the NIC whose
//! address is in `TRUNKLINE_MESH_ADDRESS`. `TRUNKLINE_MESH_DEAD` is an unused address on its network, and
//! `TRUNKLINE_MESH_POLLERS` makes the nodes smaller or larger.
//!
//! It uses real time, because it also runs on a NIC.
#![allow(clippy::tests_outside_test_module, reason = "an integration test is a test module of its own")]
#![expect(clippy::disallowed_methods, reason = "in real time, see above")]

mod common;

use bytes::Bytes;
use common::{ECHO, Happened, LIMIT, TestNode, fresh_address};
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Instant;
use trunkline_softrdma::device::{SoftDevice, SoftOptions};
use trunkline_softrdma::link::ROCE_PORT;
use trunkline_transport::{
    NodeOptions, PeerDown, PeerEvent, PeerKey, PollerIndex, ProviderChoice, SendOutcome,
};
use trunkline_verbs::{
    CmChannel, CmId, Device, DeviceCapabilities, EndpointRequest, EndpointSide, PortSpace, QpType,
};

const NODES: usize = 8;
/// Number of each node's pollers. Each session has that many connections in each direction.
const POLLERS: u16 = 2;
/// Number of dead addresses on the software device. A peer that does not answer is abandoned after 5 s, so
/// waiting for one after the other takes longer than [`LIMIT`].
const DEAD: usize = 16;

/// A peer whose connection manager receives requests and never answers them.
struct Mute {
    address: SocketAddr,
    _listener: Arc<dyn CmId>,
    /// Never read.
    _unread: Arc<dyn CmChannel>,
    _device: Arc<dyn Device>,
}

impl Mute {
    fn at(ip: IpAddr, device: Arc<dyn Device>) -> Self {
        let has_xrc = device.attributes().capabilities.contains(DeviceCapabilities::XRC);
        let manager = device.connection_manager();
        let unread = manager.create_channel().unwrap();
        let side = EndpointSide::Passive { local: SocketAddr::new(ip, 0) };
        let qp_type = if has_xrc { QpType::XrcTgt } else { QpType::Rc };
        let request = EndpointRequest { side, port_space: PortSpace::Ib, qp_type };
        let listener = manager.create_endpoint(&request, &unread).unwrap();
        listener.listen(64).unwrap();
        Self { address: listener.local_address(), _listener: listener, _unread: unread, _device: device }
    }
}

/// Addresses of the nodes and of the other peers.
struct MeshAddresses {
    /// Options of a node.
    options: fn() -> NodeOptions,
    mute: Mute,
    /// Addresses that do not answer.
    dead: Vec<SocketAddr>,
    /// Unread sockets. Without a socket, the software device refuses requests to an address of its host.
    _unread: Vec<UdpSocket>,
}

fn on_software() -> MeshAddresses {
    let ip = fresh_address().ip();
    let device = SoftDevice::open(SoftOptions { addresses: vec![ip], ..SoftOptions::default() }).unwrap();
    let options = || NodeOptions::new().provider(ProviderChoice::Soft).listen(fresh_address());
    let dead: Vec<_> = (0..DEAD).map(|_| fresh_address()).collect();
    let unread = dead.iter().map(|address| UdpSocket::bind((address.ip(), ROCE_PORT)).unwrap()).collect();
    MeshAddresses { options, mute: Mute::at(ip, device), dead, _unread: unread }
}

#[cfg(feature = "rdma-core")]
fn nic_addresses() -> Option<MeshAddresses> {
    use trunkline_verbs::Provider;
    fn address(name: &str) -> Option<IpAddr> {
        std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name}: {text}")))
    }
    let ip = address("TRUNKLINE_MESH_ADDRESS")?;
    let name = trunkline_rdma_core::device_for(ip).unwrap();
    let device = trunkline_rdma_core::RdmaCore.open(&name).unwrap();
    let dead = address("TRUNKLINE_MESH_DEAD").map_or(fresh_address(), |ip| SocketAddr::new(ip, 7471));
    // An address of another host cannot be bound, and needs no socket.
    let unread = UdpSocket::bind((dead.ip(), ROCE_PORT)).ok();
    let options = || {
        let ip = address("TRUNKLINE_MESH_ADDRESS").unwrap();
        let options =
            NodeOptions::new().provider(ProviderChoice::Require).allow_unauthenticated(true).srq_depth(128);
        options.listen(SocketAddr::new(ip, 0)).or_from_env().unwrap()
    };
    Some(MeshAddresses {
        options,
        mute: Mute::at(ip, device),
        dead: vec![dead],
        _unread: unread.into_iter().collect(),
    })
}

/// Waits until a session is up or down at a node's first poller.
fn next(node: &mut TestNode) -> (PeerKey, Result<(), PeerDown>) {
    node.wait("session up or down", |at, event| match event {
        Happened::Peer(peer, PeerEvent::Up { .. }) if at == PollerIndex(0) => Some((*peer, Ok(()))),
        Happened::Peer(peer, PeerEvent::Down { cause }) if at == PollerIndex(0) => Some((*peer, Err(*cause))),
        _ => None,
    })
}

fn mesh(place: &MeshAddresses) {
    let pollers = std::env::var("TRUNKLINE_MESH_POLLERS").map_or(POLLERS, |text| text.parse().unwrap());
    let mut nodes: Vec<TestNode> = (0..NODES).map(|_| TestNode::start((place.options)(), pollers)).collect();
    let addresses: Vec<SocketAddr> = nodes.iter().map(|node| node.address).collect();
    let began = Instant::now();
    let mut lost = Vec::new();
    for node in &mut nodes {
        // Name the peers that do not answer first, so that they would delay the other peers.
        let silent = place.dead.iter().chain([&place.mute.address]);
        lost.push(silent.map(|address| node.name(0, *address)).collect::<Vec<_>>());
        for address in &addresses {
            if *address != node.address {
                node.name(0, *address);
            }
        }
    }
    let mut peers = Vec::new();
    let mut given_up = Vec::new();
    for (node, lost) in nodes.iter_mut().zip(&lost) {
        let (mut up, mut down) = (BTreeSet::new(), BTreeSet::new());
        while up.len() < NODES - 1 {
            match next(node) {
                (peer, Ok(())) => assert!(up.insert(peer), "{peer:?} came up twice"),
                (peer, Err(cause)) if lost.contains(&peer) => {
                    assert_eq!(cause, PeerDown::Unreachable);
                    down.insert(peer);
                }
                (peer, Err(cause)) => panic!("{peer:?} is down, which lives: {cause}"),
            }
        }
        peers.push(up);
        given_up.push(down);
    }
    let took = began.elapsed();
    println!("all up after {took:.2?} on {}", nodes[0].report().provider);
    assert!(took < LIMIT, "the living waited for the dead");
    for (node, peers) in nodes.iter_mut().zip(&peers) {
        for (token, peer) in (0..).zip(peers) {
            node.send(usize::from(pollers - 1), *peer, &[ECHO], Bytes::from_static(b"there?"), token);
            assert_eq!(node.outcome(token), SendOutcome::Delivered);
        }
        for _ in peers {
            assert_eq!(&node.message().1[..], b"!there?");
        }
    }
    for ((node, lost), mut down) in nodes.iter_mut().zip(&lost).zip(given_up) {
        while down.len() < lost.len() {
            let (peer, outcome) = next(node);
            assert!(lost.contains(&peer), "{peer:?} {outcome:?}");
            assert_eq!(outcome, Err(PeerDown::Unreachable));
            down.insert(peer);
        }
    }
    println!("the others were given up after {:.2?}", began.elapsed());
    // The state of unresponsive peers is freed, and messages do not wait for them.
    let sessions = u32::try_from(NODES - 1).unwrap() * u32::from(pollers);
    for node in &nodes {
        let report = node.report();
        assert_eq!((report.ini, report.tgt), (sessions, sessions));
    }
    nodes.iter_mut().for_each(TestNode::stop);
}

#[test]
fn on_software_device() {
    mesh(&on_software());
}

#[cfg(feature = "rdma-core")]
#[test]
fn on_nic() {
    match nic_addresses() {
        Some(place) => mesh(&place),
        None => println!("skip on_nic: no address in TRUNKLINE_MESH_ADDRESS"),
    }
}
