//! Two processes over UDP, connected by the connection manager.
//!
//! The test starts itself again as the serving process, which sleeps between messages.

use crate::common;
use crate::common::node::{Node, next_event, post_to, wait_readable};
use std::net::SocketAddr;
use std::sync::Arc;
use trunkline_softrdma::device::SoftOptions;
use trunkline_testkit::{Process, print_line, same_test};
use trunkline_verbs::{
    CmChannel, CmEventKind, CmId, Completion, CompletionStatus, ConnectParameters, Device, EndpointRequest,
    EndpointSide, IoAddress, Notify, PortSpace, QpModify, QpType, QueuePair, RemoteAddress, Rkey, SendData,
    SendOperation, SrqNumber,
};

const SERVE: &str = "TRUNKLINE_TEST_SERVE";
const MESSAGES: u64 = 2_000;
const DEPTH: u64 = 64;
const SIZE: u32 = 100;

/// The entry point of the serving process. Without the variable it is a test that does nothing.
#[test]
fn serve() {
    let Ok(address) = std::env::var(SERVE) else { return };
    let options = SoftOptions { addresses: vec![address.parse().unwrap()], ..SoftOptions::default() };
    let node = Node::open(options, 1 << 16);
    node.memory.write(0, b"read me").unwrap();
    for wr_id in 0..DEPTH {
        node.receive(wr_id, 4096, SIZE);
    }
    let manager = node.device.connection_manager();
    let channel = manager.create_channel().unwrap();
    let side = EndpointSide::Passive { local: SocketAddr::new(node.address, 0) };
    let request = EndpointRequest { side, port_space: PortSpace::Ib, qp_type: QpType::XrcTgt };
    let listener = manager.create_endpoint(&request, &channel).unwrap();
    listener.listen(4).unwrap();
    print_line(&format!("LISTENING {}", listener.local_address()));

    let event = next_event(&*channel);
    let CmEventKind::ConnectRequest { id, .. } = event.kind else { panic!("{event:?}") };
    let tgt = node.qp(QpType::XrcTgt);
    id.attach(Arc::clone(&tgt)).unwrap();
    let parameters = ConnectParameters { private_data: introduction(&node), ..ConnectParameters::default() };
    id.accept(&parameters).unwrap();
    // The connection manager sets a timer of 655 ms (contract J12).
    tgt.modify(&QpModify { min_rnr_timer: Some(12), ..QpModify::default() }).unwrap();
    let event = next_event(&*channel);
    assert!(matches!(event.kind, CmEventKind::Established), "{event:?}");

    let mut received = 0;
    while received < MESSAGES {
        let completion = next_completion(&node);
        assert_eq!(completion.status, CompletionStatus::Success);
        assert_eq!((completion.byte_length, u64::from(completion.immediate)), (SIZE, received));
        assert_eq!(completion.qp_number, tgt.number());
        received += 1;
        node.receive(received, 4096, SIZE);
    }
    let event = next_event(&*channel);
    assert!(matches!(event.kind, CmEventKind::Disconnected { .. }), "{event:?}");
    println!("SERVED {received}");
}

/// SRQ number, and rkey and address of the memory that may be read.
fn introduction(node: &Node) -> Vec<u8> {
    let remote = node.remote(0);
    let mut bytes = node.srq.number().unwrap().get().to_be_bytes().to_vec();
    bytes.extend(remote.rkey.0.to_be_bytes());
    bytes.extend(remote.address.0.to_be_bytes());
    bytes
}

fn introduced(bytes: &[u8]) -> (SrqNumber, RemoteAddress) {
    let srq = u32::from_be_bytes(bytes[..4].try_into().unwrap());
    let rkey = u32::from_be_bytes(bytes[4..8].try_into().unwrap());
    let address = u64::from_be_bytes(bytes[8..16].try_into().unwrap());
    (SrqNumber::new(srq), RemoteAddress { address: IoAddress(address), rkey: Rkey(rkey) })
}

/// Sleeps until a completion arrives, like a program without other work.
fn next_completion(node: &Node) -> Completion {
    let mut one = [Completion::default()];
    loop {
        if node.cq.poll(&mut one) == 1 {
            return one[0];
        }
        node.cq.request_notify(Notify::Any).unwrap();
        if node.cq.poll(&mut one) == 1 {
            return one[0];
        }
        wait_readable(&*node.channel);
        while node.channel.next_event().is_some() {}
    }
}

/// Starts the serving process; returns the address that it listens at.
fn start_server() -> (Process, SocketAddr) {
    let mut command = same_test(module_path!(), "serve");
    command.env(SERVE, common::address().to_string());
    let mut server = Process::start("the server", &mut command).unwrap();
    let address = server.after("LISTENING ").unwrap().parse().unwrap();
    (server, address)
}

struct Connected {
    node: Node,
    ini: Arc<dyn QueuePair>,
    id: Arc<dyn CmId>,
    channel: Arc<dyn CmChannel>,
    srq: SrqNumber,
    remote: RemoteAddress,
}

fn connect(to: SocketAddr) -> Connected {
    let node = Node::open(common::udp(), 1 << 16);
    let manager = node.device.connection_manager();
    let channel = manager.create_channel().unwrap();
    let side = EndpointSide::Active { remote: to, source: None };
    let request = EndpointRequest { side, port_space: PortSpace::Ib, qp_type: QpType::XrcIni };
    let id = manager.create_endpoint(&request, &channel).unwrap();
    let ini = node.qp(QpType::XrcIni);
    id.attach(Arc::clone(&ini)).unwrap();
    id.connect(&ConnectParameters { ack_timeout: 14, ..ConnectParameters::default() }).unwrap();
    let event = next_event(&*channel);
    assert!(matches!(event.kind, CmEventKind::Established), "{event:?}");
    let (srq, remote) = introduced(&event.private_data);
    Connected { node, ini, id, channel, srq, remote }
}

#[test]
fn messages_cross_from_process_to_process() {
    let (mut server, address) = start_server();
    let Connected { node, ini, id, channel, srq, remote } = connect(address);

    post_to(&*ini, SendOperation::RdmaRead(remote), SendData::Gather(&[node.sge(0, 7)]), srq);
    assert_eq!(node.completion().status, CompletionStatus::Success);
    let mut read = [0; 7];
    node.memory.read(0, &mut read).unwrap();
    assert_eq!(&read, b"read me");

    for number in 0..MESSAGES {
        if number >= DEPTH / 2 {
            assert_eq!(node.completion().status, CompletionStatus::Success);
        }
        let operation = SendOperation::SendWithImmediate(u32::try_from(number).unwrap());
        post_to(&*ini, operation, SendData::Gather(&[node.sge(0, SIZE)]), srq);
    }
    for _ in 0..DEPTH / 2 {
        assert_eq!(node.completion().status, CompletionStatus::Success);
    }
    id.disconnect().unwrap();
    let event = next_event(&*channel);
    assert!(matches!(event.kind, CmEventKind::Disconnected { .. }), "{event:?}");
    assert_eq!(server.after("SERVED ").unwrap(), MESSAGES.to_string());
    server.finish().unwrap();
}

#[test]
fn a_killed_peer_ends_in_retry_exceeded() {
    let (mut server, address) = start_server();
    let Connected { node, ini, srq, id: _id, .. } = connect(address);
    post_to(&*ini, SendOperation::SendWithImmediate(0), SendData::Gather(&[node.sge(0, SIZE)]), srq);
    assert_eq!(node.completion().status, CompletionStatus::Success);
    server.kill().unwrap();
    post_to(&*ini, SendOperation::SendWithImmediate(1), SendData::Gather(&[node.sge(0, SIZE)]), srq);
    assert_eq!(node.completion().status, CompletionStatus::RetryExceeded);
}
