//! Several members at one address. Each can be reached, regardless of the member that holds port 4791.
//!
//! The members are devices of this process, except for a holder that is stopped.

use super::stopped_holder::start_holder;
use crate::common;
use crate::common::host::Host;
use crate::common::node::{Joined, Node, exchange, join, join_at, join_rc, post};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use trunkline_roce::pcap::{Datagram, PcapReader};
use trunkline_roce::wire::icrc;
use trunkline_softrdma::device::{PathChoice, SoftOptions};
use trunkline_testkit::{bytes_of, key};
use trunkline_verbs::{
    CompletionOpcode, CompletionStatus, QpType, ReceiveRequest, SendOperation, VerbsError,
};

/// Lengths of messages in bytes. The longest takes several packets.
const LENGTHS: [usize; 4] = [40, 1000, 3000, 6001];
const ROOM: usize = 8192;
/// Size of a node's memory, in bytes. It has room for the messages and the receives of twelve connections.
const MEMORY: usize = 2 * 12 * LENGTHS.len() * ROOM;

/// Opens devices of this process that share a separate runtime directory.
fn devices(host: &Host, addresses: &[IpAddr], count: usize) -> Vec<Node> {
    let options = SoftOptions {
        addresses: addresses.to_vec(),
        runtime_directory: Some(host.runtime()),
        path: PathChoice::Udp,
        ..SoftOptions::default()
    };
    (0..count).map(|_| Node::open(options.clone(), MEMORY)).collect()
}

/// Connects each node to each other node over RC and XRC, and sends 300 messages over each connection.
fn talk_all_to_all(nodes: &[Node]) -> Vec<Joined> {
    let mut connections = Vec::new();
    for connect in [join, join_rc] {
        for near in 0..nodes.len() {
            for far in (0..nodes.len()).filter(|far| *far != near) {
                connections.push((near, far, connect(&nodes[near], &nodes[far])));
            }
        }
    }
    let mut next = vec![0; connections.len()];
    for number in (0..300).step_by(LENGTHS.len()) {
        for (index, (near, far, joined)) in connections.iter().enumerate() {
            let (near, far) = (&nodes[*near], &nodes[*far]);
            for (part, length) in LENGTHS.into_iter().enumerate() {
                let slot = LENGTHS.len() * index + part;
                receive(far, joined, MEMORY / 2 + slot * ROOM);
                let bytes = bytes_of(key(&[index as u64, number + part as u64]), length);
                near.memory.write(slot * ROOM, &bytes).unwrap();
                let data = [near.sge(slot * ROOM, u32::try_from(length).unwrap())];
                post(&*joined.ini, SendOperation::Send, &data, &*far.srq);
            }
        }
        for (at, node) in nodes.iter().enumerate() {
            let of_node = |(near, far, _): &&(usize, usize, Joined)| *near == at || *far == at;
            for _ in 0..LENGTHS.len() * connections.iter().filter(of_node).count() {
                let completion = node.completion();
                assert_eq!(completion.status, CompletionStatus::Success);
                if completion.opcode != CompletionOpcode::Receive {
                    continue;
                }
                // QP numbers differ between members.
                let by_qp = |(_, _, joined): &(_, _, Joined)| joined.tgt.number() == completion.qp_number;
                let index = connections.iter().position(by_qp).unwrap();
                let mut bytes = vec![0; completion.byte_length as usize];
                node.memory.read(usize::try_from(completion.wr_id).unwrap(), &mut bytes).unwrap();
                let length = LENGTHS[usize::try_from(next[index]).unwrap() % LENGTHS.len()];
                assert!(bytes == bytes_of(key(&[index as u64, next[index]]), length), "not the next message");
                next[index] += 1;
            }
        }
    }
    connections.into_iter().map(|(_, _, joined)| joined).collect()
}

/// Posts a receive for a message of a connection. The id of the receive is its offset in the node's memory.
fn receive(node: &Node, joined: &Joined, offset: usize) {
    let scatter = [node.sge(offset, u32::try_from(ROOM).unwrap())];
    let request = [ReceiveRequest { wr_id: offset as u64, scatter: &scatter }];
    match joined.tgt.qp_type() {
        QpType::Rc => joined.tgt.post_receive(&request).unwrap(),
        _ => node.srq.post_receive(&request).unwrap(),
    }
}

/// Lets three members exchange messages, reconnect, and exchange messages again. Fails if another program
/// holds port 4791.
fn three_talk_at(address: IpAddr) -> Result<(), VerbsError> {
    let host = Host::new();
    let nodes = devices(&host, &[address], 3);
    let channel = nodes[0].cm_channel();
    let _holder = nodes[0].listen(SocketAddr::new(address, 0), &channel)?;
    let _connected = [(); 2].map(|()| talk_all_to_all(&nodes));
    assert!(nodes[0].counter("relayed_to_members") > 0);
    for node in &nodes[1..] {
        assert!(node.counter("relayed_from_members") > 0);
        assert_eq!((node.counter("port_taken_over"), node.counter("drop_relayed_nonsense")), (0, 0));
    }
    Ok(())
}

#[test]
fn three_members_talk_all_to_all_and_connect_again() {
    three_talk_at(common::address()).unwrap();
}

#[test]
fn several_members_share_ipv6_loopback() {
    // Other tests and programs may hold the port. Do not probe it, since the result would be out of date immediately,
    // and the probe would occupy the port.
    match three_talk_at("::1".parse().unwrap()) {
        Err(VerbsError::AddressInUse(why)) => eprintln!("SKIPPED: [::1]:4791: {why}"),
        done => done.unwrap(),
    }
}

#[test]
fn stopped_holder_does_not_delay_connected_members() {
    let (host, address) = (Host::new(), common::address());
    let holder = start_holder(&host, address);
    let nodes = devices(&host, &[address], 2);
    let connected = [join(&nodes[0], &nodes[1]), join(&nodes[1], &nodes[0])];
    let exchange_both = || {
        exchange(&*connected[0].ini, &nodes[0], &nodes[1], 6001);
        exchange(&*connected[1].ini, &nodes[1], &nodes[0], 6001);
    };
    exchange_both();
    holder.stop();
    for _ in 0..200 {
        exchange_both();
    }
    assert_eq!(nodes[0].counter("port_taken_over") + nodes[1].counter("port_taken_over"), 0);
}

#[test]
fn holder_with_idle_program_forwards_datagrams() {
    let (host, address) = (Host::new(), common::address());
    let nodes = devices(&host, &[address], 3);
    let channel = nodes[0].cm_channel();
    let _holder = nodes[0].listen(SocketAddr::new(address, 0), &channel).unwrap();
    // After this, the first device is used only to read its counters.
    let joined = join(&nodes[1], &nodes[2]);
    exchange(&*joined.ini, &nodes[1], &nodes[2], 64);
    let handed_on = nodes[0].counter("relayed_to_members");
    // REQ, REP, RTU and the first packet, some of which may be repeated.
    assert!(handed_on >= 4, "{handed_on}");
    for _ in 0..100 {
        exchange(&*joined.ini, &nodes[1], &nodes[2], 64);
    }
    assert!(nodes[0].counter("relayed_to_members") < handed_on + 50, "later ones go straight");
}

#[test]
fn capture_of_receiver_contains_forwarded_datagrams_with_port_4791() {
    let (host, address) = (Host::new(), common::address());
    let holder = devices(&host, &[address], 1).remove(0);
    let file = host.path("capture.pcap");
    let near = devices(&host, &[address], 1).remove(0);
    let far = Node::open(
        SoftOptions {
            addresses: vec![address],
            runtime_directory: Some(host.runtime()),
            capture: Some(file.clone()),
            ..SoftOptions::default()
        },
        1 << 16,
    );
    // Takes port 4791.
    let _held = join(&holder, &holder);
    let joined = join(&near, &far);
    exchange(&*joined.ini, &near, &far, 64);
    // The member's endpoints keep the device open, and an open device may still be appending a record.
    drop((joined, far));
    let bytes = std::fs::read(&file).unwrap();
    let _gone = std::fs::remove_file(&file);
    let mut reader = PcapReader::new(&*bytes).unwrap();
    let mut kinds = Vec::new();
    while let Some(frame) = reader.next_frame().unwrap() {
        let datagram = Datagram::from_frame(&frame).unwrap();
        assert!(icrc::check(&datagram.headers, datagram.payload), "as its sender made it");
        let ports = (datagram.headers.source.port(), datagram.headers.destination.port());
        kinds.push((datagram.payload[0], ports));
    }
    const UD_SEND_ONLY: u8 = 0x64;
    const XRC_SEND_ONLY: u8 = 0xa4;
    for opcode in [UD_SEND_ONLY, XRC_SEND_ONLY] {
        let received = kinds.iter().any(|(of, (from, to))| *of == opcode && *from != 4791 && *to == 4791);
        assert!(received, "{opcode:#x} in {kinds:x?}");
    }
}

#[test]
fn wildcard_listener_is_reachable_at_addresses_held_by_another_device() {
    let (host, addresses) = (Host::new(), [common::address(), common::address()]);
    let holder = devices(&host, &addresses, 1).remove(0);
    let held = addresses.map(|address| join_at(&holder, &holder, address, address));
    let nodes = devices(&host, &addresses, 2);
    for to in addresses {
        let joined = join_at(&nodes[0], &nodes[1], Ipv4Addr::UNSPECIFIED.into(), to);
        exchange(&*joined.ini, &nodes[0], &nodes[1], 64);
    }
    assert!(holder.counter("relayed_to_members") >= 8);
    drop(held);
}
