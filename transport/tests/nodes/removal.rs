//! The device of a node is removed and restored while the node continues.
//!
//! Threads and clocks are real, and clocks only bound waits. `cargo simulate` tests removal under calls in
//! virtual time.

use crate::common::{Happened, LIMIT, TestNode, fresh_address, over_udp, pattern};
use bytes::Bytes;
use std::collections::{BTreeMap, HashSet};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use trunkline_softrdma::device::{Slot, SoftOptions};
use trunkline_testkit::runs_alone;
use trunkline_transport::{
    Connections, NodeOptions, PeerDown, PeerKey, ProviderChoice, SendError, SendFailure, SendOutcome,
};

/// Starts a node on the device in a slot.
fn node_in(slot: &Slot, pollers: u16) -> TestNode {
    node_over(Connections::Xrc, slot, pollers)
}

fn node_over(connections: Connections, slot: &Slot, pollers: u16) -> TestNode {
    let device = SoftOptions { slot: Some(slot.clone()), ..SoftOptions::default() };
    let options = NodeOptions::new()
        .listen(fresh_address())
        .provider(ProviderChoice::Soft)
        .connections(connections)
        .device(device);
    TestNode::start(options, pollers)
}

fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    trunkline_testkit::wait_until(what, LIMIT, || holds().then_some(()));
}

/// Removes the device, and waits until all of its objects are released.
fn remove(slot: &Slot) {
    slot.remove();
    wait_until("everything of the removed device is freed", || slot.devices() == 0);
}

/// Sends until a message is delivered, which shows that the node has reconnected.
fn reach(node: &mut TestNode, poller: usize, peer: PeerKey, token: &mut u64) {
    let until = Instant::now() + LIMIT;
    loop {
        *token += 1;
        node.send(poller, peer, b"again", Bytes::new(), *token);
        let (of, outcome) = next_outcome(node);
        assert_eq!(of, *token);
        match outcome {
            SendOutcome::Delivered => return,
            SendOutcome::Failed(failure) => assert!(Instant::now() < until, "{failure:?}"),
        }
    }
}

/// Returns the outcome of the next message. The message is sent, or refused because the node pauses before it
/// reconnects.
fn next_outcome(node: &mut TestNode) -> (u64, SendOutcome) {
    node.wait("an outcome", |_, event| match event {
        Happened::Sent(token, outcome) => Some((*token, *outcome)),
        Happened::Refused(token, SendError::BackingOff { cause, .. }) => {
            let failure = SendFailure { may_have_arrived: false, cause: *cause };
            Some((*token, SendOutcome::Failed(failure)))
        }
        Happened::Refused(token, error) => panic!("{token} was not taken: {error}"),
        _ => None,
    })
}

/// Takes all events of a node until all outcomes have arrived. Returns outcomes by token.
fn outcomes(node: &mut TestNode, tokens: &HashSet<u64>) -> BTreeMap<u64, SendOutcome> {
    let mut found = BTreeMap::new();
    while found.len() < tokens.len() {
        let (token, outcome) = next_outcome(node);
        assert!(tokens.contains(&token), "{token} was never sent");
        assert!(found.insert(token, outcome).is_none(), "{token} has two outcomes");
    }
    found
}

/// Returns a test's message that begins with its token.
fn numbered(token: u64, large: bool) -> Bytes {
    let mut bytes = token.to_le_bytes().to_vec();
    bytes.extend(pattern(if large { 300_000 } else { 900 }, 1));
    bytes.into()
}

fn under_load(connections: Connections, client_loses: bool) {
    const POLLERS: u16 = 3;
    const ROUNDS: u64 = 150;
    let server_loses = !client_loses;
    let (client_slot, server_slot) = (Slot::new(), Slot::new());
    let mut client = node_over(connections, &client_slot, POLLERS);
    let mut server = node_over(connections, &server_slot, POLLERS);
    let keys: Vec<PeerKey> =
        (0..POLLERS).map(|poller| client.connect(usize::from(poller), server.address)).collect();

    let mut tokens = HashSet::new();
    let mut load = |client: &TestNode, from: u64, to: u64| {
        for token in from..to {
            let poller = usize::try_from(token).unwrap() % keys.len();
            // The probe does not answer this kind of message.
            client.send(poller, keys[poller], b"x", numbered(token, token % 7 == 0), token);
            tokens.insert(token);
        }
    };
    load(&client, 1, ROUNDS);
    let first = server.message();
    if client_loses {
        client_slot.remove();
    }
    if server_loses {
        server_slot.remove();
    }
    load(&client, ROUNDS, 2 * ROUNDS);
    for (slot, loses) in [(&client_slot, client_loses), (&server_slot, server_loses)] {
        if loses {
            wait_until("everything of the removed device is freed", || slot.devices() == 0);
        }
    }
    let found = outcomes(&mut client, &tokens);

    // Received messages other than the first.
    let mut received = HashSet::from([u64::from_le_bytes(first.1[1..9].try_into().unwrap())]);
    client_slot.restore();
    server_slot.restore();
    let mut token = 10_000;
    for (poller, key) in keys.iter().enumerate() {
        reach(&mut client, poller, *key, &mut token);
    }
    let mut ends = 0;
    while ends < keys.len() {
        let (_, bytes) = server.message();
        if bytes.starts_with(b"again") {
            ends += 1;
            continue;
        }
        let of = u64::from_le_bytes(bytes[1..9].try_into().unwrap());
        assert_eq!(bytes[1..], numbered(of, of % 7 == 0), "message {of}");
        assert!(received.insert(of), "message {of} came twice");
    }
    for (token, outcome) in found {
        match outcome {
            SendOutcome::Delivered => assert!(received.contains(&token), "{token} is lost"),
            SendOutcome::Failed(failure) => {
                assert!(failure.may_have_arrived || !received.contains(&token), "{token}: {failure:?}");
                if client_loses {
                    assert_eq!(failure.cause, PeerDown::DeviceRemoved, "{token}");
                }
            }
        }
    }
    for (node, loses) in [(&client, client_loses), (&server, server_loses)] {
        let report = node.report();
        assert_eq!((report.incarnations, report.removed_since), (1 + u64::from(loses), None));
    }
    client.stop();
    server.stop();
    assert_eq!((client_slot.devices(), server_slot.devices()), (0, 0));
}

#[test]
fn client_continues_after_its_device_returns_under_load() {
    under_load(Connections::Xrc, true);
    under_load(Connections::Rc, true);
}

#[test]
fn server_continues_after_its_device_returns_under_load() {
    under_load(Connections::Xrc, false);
    under_load(Connections::Rc, false);
}

#[test]
fn send_without_device_fails_with_reason() {
    let slot = Slot::new();
    let mut client = node_in(&slot, 1);
    let mut server = TestNode::start(over_udp(), 1);
    let peer = client.connect(0, server.address);
    let listened: SocketAddr = client.address;
    remove(&slot);
    assert_eq!(client.down(peer), PeerDown::DeviceRemoved);
    let report = client.report();
    assert!(report.removed_since.is_some() && report.incarnations == 1, "{report:?}");
    assert_eq!((report.ini, report.tgt, report.srqs), (0, 0, 0));
    assert_eq!(report.provider, "softrdma");
    assert!(client.node.as_ref().unwrap().buffer(100).is_none(), "nothing can be registered");
    for token in 1..6 {
        client.send(0, peer, b"x", Bytes::new(), token);
        let SendOutcome::Failed(failure) = client.outcome(token) else { panic!("delivered by nothing") };
        assert_eq!((failure.may_have_arrived, failure.cause), (false, PeerDown::DeviceRemoved));
        assert_eq!(client.down(peer), PeerDown::DeviceRemoved);
    }
    slot.restore();
    let mut token = 100;
    reach(&mut client, 0, peer, &mut token);
    assert_eq!(server.message().1, &b"again"[..]);
    assert_eq!(client.report().address, listened, "it listens where it did");

    // The server can also dial the client at the client's old address.
    let back = server.connect(0, listened);
    server.send(0, back, b"hello", Bytes::new(), 1);
    assert_eq!(server.outcome(1), SendOutcome::Delivered);
    client.stop();
    server.stop();
}

#[test]
fn memory_of_application_outlives_device() {
    let slot = Slot::new();
    let mut client = node_in(&slot, 1);
    let mut server = node_in(&slot, 1);
    let peer = client.connect(0, server.address);
    let mut token = 1;
    let content = pattern(200_000, 9);
    let make = |client: &TestNode| {
        let mut buffer = client.node.as_ref().unwrap().buffer(content.len()).unwrap();
        buffer.copy_from_slice(&content);
        buffer
    };
    let (frozen, unfrozen) = (make(&client).freeze(), make(&client));
    // One message occupies a receive slot, and the other a block filled by a READ.
    let mut held = Vec::new();
    for length in [5000, 200_000] {
        client.send(0, peer, b"", pattern(length, 3), token);
        held.push((server.message().1, pattern(length, 3)));
        assert_eq!(client.outcome(token), SendOutcome::Delivered);
        token += 1;
    }
    remove(&slot);
    for (bytes, expected) in &held {
        assert_eq!(bytes, expected);
    }
    assert_eq!(frozen, content);
    slot.restore();
    reach(&mut client, 0, peer, &mut token);
    assert_eq!(server.message().1, &b"again"[..]);
    for body in [frozen, unfrozen.freeze(), make(&client).freeze()] {
        token += 1;
        client.send(0, peer, b"", body, token);
        assert_eq!(server.message().1, content);
        assert_eq!(client.outcome(token), SendOutcome::Delivered);
    }
    for (bytes, expected) in held {
        assert_eq!(bytes, expected);
    }
    client.stop();
    server.stop();
    assert_eq!(slot.devices(), 0);
}

#[test]
fn node_can_end_while_its_device_is_away() {
    let slot = Slot::new();
    let mut client = node_in(&slot, 2);
    let mut server = TestNode::start(over_udp(), 1);
    let peer = client.connect(0, server.address);
    remove(&slot);
    client.send_to(0, peer, None, b"x", Bytes::new(), 1, Some(Duration::from_secs(600)));
    client.stop();
    let SendOutcome::Failed(failure) = client.outcome(1) else { panic!("delivered by nothing") };
    assert!(!failure.may_have_arrived);
    server.stop();
}

/// Returns the number of this process's descriptors, and of its threads for nodes and devices.
fn holdings() -> (usize, usize) {
    let fds = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    let is_ours = |task: &std::fs::DirEntry| {
        std::fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name.starts_with("trunkline"))
    };
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    (fds, tasks.filter(is_ours).count())
}

#[test]
fn repeated_device_removals_do_not_leak() {
    // The test counts resources of the whole process.
    if !runs_alone(module_path!(), "repeated_device_removals_do_not_leak") {
        return;
    }
    let slot = Slot::new();
    let mut client = node_in(&slot, 2);
    let mut server = node_in(&slot, 2);
    let peer = client.connect(0, server.address);
    let mut token = 0;
    let mut before = None;
    for round in 0..12 {
        reach(&mut client, 0, peer, &mut token);
        client.send(0, peer, b"x", pattern(100_000, 2), 1_000_000 + round);
        client.outcome(1_000_000 + round);
        remove(&slot);
        if round == 4 {
            before = Some(holdings());
        }
        slot.restore();
    }
    reach(&mut client, 0, peer, &mut token);
    remove(&slot);
    let (fds, threads) = before.unwrap();
    // The system lists a joined thread for a moment longer.
    wait_until("no more descriptors and threads are held than before", || {
        let after = holdings();
        after.0 <= fds + 2 && after.1 <= threads
    });
    assert_eq!(client.report().incarnations, 13);
    client.stop();
    server.stop();
}
