//! Many pollers of many processes at one node whose SRQ begins small: all join, and all exchange.

#![allow(clippy::tests_outside_test_module, reason = "an integration test is a test module of its own")]
#![expect(clippy::disallowed_methods, reason = "in real time, like the nodes")]

mod common;

use bytes::Bytes;
use common::{ECHO, TestNode, over_udp};
use std::net::SocketAddr;
use std::time::Duration;
use trunkline_testkit::{Input, Process, print_line, same_test};
use trunkline_transport::{NodeOptions, SendOutcome};

const PROCESSES: u64 = 16;
/// Pollers of each; together 512.
const POLLERS: u16 = 32;
/// Receives that the node begins with.
const DEPTH: u32 = 64;
/// Where a process of the crowd finds the node.
const NODE: &str = "TRUNKLINE_TEST_CROWDED_NODE";

/// The crowd has far more threads than a machine has processors: nobody is given up because it waits for one.
fn options() -> NodeOptions {
    over_udp().srq_depth(DEPTH).keepalive(Duration::from_secs(5)).ack_timeout(18)
}

#[test]
fn five_hundred_pollers_of_sixteen_processes_join_a_node_of_small_depth() {
    let server = TestNode::start(options(), 1);
    let start = |number| {
        let mut command = same_test(module_path!(), "process_of_the_crowd");
        command.env(NODE, server.address.to_string());
        Process::start(format!("process {number}"), &mut command).expect("it starts")
    };
    let mut crowd = (0..PROCESSES).map(start).collect::<Vec<_>>();
    for process in &mut crowd {
        process.after("exchanged").expect("its pollers exchange");
    }
    let report = server.report();
    let joined = PROCESSES * u64::from(POLLERS);
    assert_eq!(u64::from(report.tgt), joined, "all are joined at the same time");
    for process in &mut crowd {
        // Again, now that each of the others holds its credit.
        process.tell("again").expect("it listens");
        process.after("exchanged").expect("its pollers exchange");
    }
    // Settings use no credit, so those of a crowd may have been sent again. Messages never are.
    assert_eq!(server.report().rnr, report.rnr, "credit keeps within the depth");
    for process in crowd {
        process.finish().expect("it ends");
    }
}

/// Not a test but a process of the one above; by itself it does nothing.
#[test]
fn process_of_the_crowd() {
    let Ok(server) = std::env::var(NODE) else { return };
    let server: SocketAddr = server.parse().expect("an address");
    let input = Input::open();
    let mut node = TestNode::start(options(), POLLERS);
    let peers = (0..usize::from(POLLERS)).map(|poller| node.connect(poller, server)).collect::<Vec<_>>();
    loop {
        for (token, (poller, &peer)) in (0..).zip(peers.iter().enumerate()) {
            node.send(poller, peer, &[ECHO], Bytes::from_static(b"are you there"), token);
        }
        for token in 0..u64::from(POLLERS) {
            assert_eq!(node.outcome(token), SendOutcome::Delivered);
            assert_eq!(&node.message().1[..], b"!are you there");
        }
        print_line("exchanged");
        if input.wait().is_none() {
            return;
        }
    }
}
