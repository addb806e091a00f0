//! Nodes on an in-process network, which programs use in tests.

use crate::common::fresh_address;
use std::net::{IpAddr, UdpSocket};
use trunkline::{Code, InProcessNetwork, Node, Status, block_on};
use trunkline_testkit::same_test;

#[trunkline::service]
trait Greeter {
    async fn greet(&self, name: String) -> String;
}

struct Polite;

impl Greeter for Polite {
    async fn greet(&self, name: String) -> String {
        format!("Good day, {name}!")
    }
}

/// Environment variable with the listen address, for a process that runs the test again.
const CHILD: &str = "TRUNKLINE_TEST_IN_PROCESS";
/// The UDP port of RoCEv2.
const PORT: u16 = 4791;

/// Runs a client and a server in a test that a user might write.
fn client_and_server() {
    let (server, node) = Node::in_process(GreeterServer::new(Polite)).unwrap();
    let client = GreeterClient::new(node.channel(server.local_address()));
    assert_eq!(block_on(client.greet("trunk".into())), Ok("Good day, trunk!".to_owned()));
    assert_eq!([&server, &node].map(|node| node.report().link), ["in-process", "in-process"]);
}

/// Runs the same test with custom settings and two pollers.
fn nodes_with_settings(listen: IpAddr) {
    let network = InProcessNetwork::new();
    let server = Node::builder().in_process(&network).listen((listen, 0)).pollers(2);
    let server = server.serve(GreeterServer::new(Polite)).start().unwrap();
    let node = Node::builder().in_process(&network);
    let channel = node.channel("127.0.0.1:7/4791");
    assert!(format!("{channel:?}").contains("Address(127.0.0.1:7)"), "{channel:?}");
    let node = node.start().unwrap();
    let client = GreeterClient::connect(&node, server.local_address()).unwrap();
    assert_eq!(block_on(client.greet("trunk".into())), Ok("Good day, trunk!".to_owned()));
}

#[test]
fn in_process_nodes_run_without_udp_port_and_writable_directory() {
    if let Ok(listen) = std::env::var(CHILD) {
        client_and_server();
        return nodes_with_settings(listen.parse().unwrap());
    }
    let listen = fresh_address().ip();
    let taken = UdpSocket::bind((listen, PORT)).unwrap();
    // Over UDP, the node would not start.
    let refused = Node::builder().listen((listen, 0)).start().unwrap_err();
    assert!(refused.to_string().contains("4791"), "{refused}");
    let name = "in_process_nodes_run_without_udp_port_and_writable_directory";
    let mut child = same_test(module_path!(), name);
    child.env(CHILD, listen.to_string()).env("TRUNKLINE_PROVIDER", "require").env("TRUNKLINE_PORT", "4792");
    for directory in ["TRUNKLINE_RUNTIME_DIR", "XDG_RUNTIME_DIR", "TMPDIR", "HOME"] {
        child.env(directory, "/proc/nowhere");
    }
    let output = child.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"));
    drop(taken);
}

#[test]
fn in_process_networks_are_separate_and_keep_ports() {
    let networks = [InProcessNetwork::new(), InProcessNetwork::new()];
    let listen = fresh_address();
    let start = |network| {
        Node::builder()
            .in_process(network)
            .listen((listen.ip(), 7513))
            .serve(GreeterServer::new(Polite))
            .start()
            .unwrap()
    };
    let [one, two, apart] = [&networks[0], &networks[0], &networks[1]].map(start);
    assert_eq!((one.local_address().port(), two.local_address().port()), (7513, 7513));
    assert_ne!(one.local_address(), two.local_address());
    let greet = |from, to: &Node| {
        block_on(GreeterClient::connect(from, to.local_address()).unwrap().greet(String::new()))
    };
    assert!(greet(&one, &two).is_ok() && greet(&two, &one).is_ok() && greet(&apart, &apart).is_ok());
    let unreached: Status = greet(&apart, &two).unwrap_err();
    assert_eq!(unreached.code(), Code::Unavailable, "{unreached}");
}
