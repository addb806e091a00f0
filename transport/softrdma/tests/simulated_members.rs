//! Several processes at one address, in virtual time. The tests cover the successor of a dead holder of port
//! 4791, a shared TGT whose executor dies between two stores, and memory that processes share. Each runs on one
//! thread and depends only on its seed.

mod forged;
mod hostile;
mod memory;
pub(crate) mod world;

use crate::common::node::{Node, bring_up_with, post, post_to};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use trunkline_testkit::{Folder, runs_alone};
use trunkline_verbs::{
    CmChannel, CmEvent, CmEventKind, CmId, CompletionStatus, Device, QpType, QueuePair, RejectReason,
    SendData, SendOperation,
};
use world::{Process, World};

const NEAR: [u8; 4] = [10, 0, 0, 1];
const FAR: [u8; 4] = [10, 0, 0, 2];
/// Length of a message in bytes.
const BYTES: u32 = 512;

fn cm_event(world: &mut World, channel: &dyn CmChannel) -> CmEvent {
    world.until("a connection event", || channel.next_event())
}

/// A listener at a node's address, and the events of peers that connect to it.
struct Listener {
    id: Arc<dyn CmId>,
    channel: Arc<dyn CmChannel>,
}

fn listen(node: &Node) -> Listener {
    let channel = node.cm_channel();
    Listener { id: node.listen(SocketAddr::new(node.address, 0), &channel).unwrap(), channel }
}

/// An INI, and the ids that keep it connected.
struct Connected {
    ini: Arc<dyn QueuePair>,
    /// Events of the side that requested the connection.
    channel: Arc<dyn CmChannel>,
    _ids: [Arc<dyn CmId>; 2],
    tgt: Arc<dyn QueuePair>,
}

/// Connects an INI of `from` to a TGT of `to` through the listener.
fn connect(world: &mut World, from: &Node, to: &Node, listener: &Listener) -> Connected {
    let remote = SocketAddr::new(to.address, listener.id.local_address().port());
    let channel = from.cm_channel();
    let (active, ini) = from.ask(remote, &channel);
    let id = loop {
        // An event of the previous connection may arrive first.
        if let CmEventKind::ConnectRequest { id, .. } = cm_event(world, &*listener.channel).kind {
            break id;
        }
    };
    let tgt = to.accept(&*id);
    let event = cm_event(world, &*channel);
    assert!(matches!(event.kind, CmEventKind::Established), "{event:?}");
    Connected { ini, channel, _ids: [active, id], tgt }
}

/// Sends a message and waits until both sides have completed.
fn exchange(world: &mut World, connected: &Connected, from: &Process, to: &Process, number: u64) {
    to.node.receive(number, 8192, BYTES);
    post(&*connected.ini, SendOperation::Send, &[from.node.sge(0, BYTES)], &*to.node.srq);
    let received = world.completion(&to.node);
    assert_eq!((received.wr_id, received.status), (number, CompletionStatus::Success));
    assert_eq!(world.completion(&from.node).status, CompletionStatus::Success);
    world.note(format!("message {number} by QP {:?}", received.qp_number));
}

#[test]
fn marks_of_requests_are_echoed_by_process_behind_holder() {
    let mut world = World::new(5);
    let (near, far) = (world.host(NEAR), world.host(FAR));
    let from = world.process(&near);
    let [_holder, to] = [(); 2].map(|()| world.process(&far));
    let listener = listen(&to.node);
    let connected = connect(&mut world, &from.node, &to.node, &listener);
    let counts = || {
        let of_receiver = ["packets_marked", "ecn_echoes_sent"].map(|name| to.node.counter(name));
        (of_receiver, from.node.counter("ecn_echoes_received"))
    };
    exchange(&mut world, &connected, &from, &to, 1);
    assert_eq!(counts(), ([0, 0], 0));
    world.mark_datagrams();
    for number in 2..20 {
        exchange(&mut world, &connected, &from, &to, number);
    }
    let ([marked, echoed], heard) = counts();
    assert!(marked >= 18 && echoed > 9 && heard > 9 && heard <= echoed, "{marked} {echoed} {heard}");
}

/// Returns the eventfds and epolls of this process.
fn event_descriptors() -> Vec<PathBuf> {
    let open = std::fs::read_dir("/proc/self/fd").unwrap();
    let all = open.filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok());
    let is_one = |path: &PathBuf| {
        let text = path.to_string_lossy();
        text.contains("[eventfd]") || text.contains("[eventpoll]")
    };
    all.filter(is_one).collect()
}

/// Kills the holder of port 4791 while its peers send, and starts another process at its address. Returns the
/// log of events.
fn holder_dies(seed: u64) -> Vec<String> {
    let mut world = World::new(seed);
    let (near, far) = (world.host(NEAR), world.host(FAR));
    let [holder, one, two] = [(); 3].map(|()| world.process(&near));
    let peer = world.process(&far);
    // The first process at the address holds port 4791.
    let listens_at_4791 = listen(&holder.node);
    let to_holder = connect(&mut world, &peer.node, &holder.node, &listens_at_4791);
    let listeners = [&one, &two].map(|process| listen(&process.node));
    let to_one = connect(&mut world, &peer.node, &one.node, &listeners[0]);
    let among = connect(&mut world, &two.node, &one.node, &listeners[0]);
    assert!(holder.node.counter("relayed_to_members") > 0);
    for number in 0..40 {
        exchange(&mut world, &to_one, &peer, &one, number);
        if number == 15 {
            world.kill(&holder);
        }
        exchange(&mut world, &among, &two, &one, 1000 + number);
    }
    // Connection requests go to port 4791 and reach the listener through the new holder.
    let to_two = connect(&mut world, &peer.node, &two.node, &listeners[1]);
    exchange(&mut world, &to_two, &peer, &two, 41);
    let to_one = connect(&mut world, &peer.node, &one.node, &listeners[0]);
    exchange(&mut world, &to_one, &peer, &one, 42);
    // The new process gets the slot of the dead one, and with it the DREQ for the dead process.
    let successor = world.process(&near);
    let listener = listen(&successor.node);
    drop(to_holder);
    for (number, from) in [(43, &peer), (44, &two)] {
        let to_successor = connect(&mut world, &from.node, &successor.node, &listener);
        exchange(&mut world, &to_successor, from, &successor, number);
    }
    let counted = |name| [&one, &two].map(|process| process.node.counter(name));
    assert_eq!(counted("port_taken_over").iter().sum::<u64>(), 1);
    assert_eq!(event_descriptors(), Vec::<PathBuf>::new(), "nobody waits on descriptors in a simulation");
    assert!(counted("relayed_to_members").iter().sum::<u64>() > 0, "by the new holder");
    for process in [&one, &two, &peer] {
        world.note(format!("{:?}", process.node.device.counters()));
    }
    world.into_log()
}

#[test]
fn members_continue_after_holder_of_port_4791_is_killed() {
    // The test inspects the descriptors of the process, so it runs alone.
    if !runs_alone(module_path!(), "members_continue_after_holder_of_port_4791_is_killed") {
        return;
    }
    let runs = [1, 2, 3].map(holder_dies);
    assert_eq!(runs[0], holder_dies(1), "a seed decides everything");
    assert_ne!(runs[0], runs[1]);
}

/// Lets a process connect to another process at its address, perhaps disconnect, and exit. One of the two holds
/// port 4791. Returns true if the other process detects the exit.
fn learns_of_exit(seed: u64) -> bool {
    let mut world = World::new(seed);
    world.use_loopback();
    let near = world.host(NEAR);
    let [first, second] = [(); 2].map(|()| world.process(&near));
    let _listens_at_4791 = listen(&first.node);
    let (exits, other) = if world.below(2) == 0 { (first, second) } else { (second, first) };
    let listener = listen(&other.node);
    let connected = connect(&mut world, &exits.node, &other.node, &listener);
    for _ in 0..world.below(20) {
        world.turn();
    }
    if world.below(2) == 0 {
        connected._ids[0].disconnect().unwrap();
    }
    for _ in 0..world.below(4) {
        world.turn();
    }
    exits.node.device.disconnect_all();
    world.kill(&exits);
    for _ in 0..20_000 {
        let ended = |event: CmEvent| matches!(event.kind, CmEventKind::Disconnected { .. });
        if listener.channel.next_event().is_some_and(ended) {
            return true;
        }
        world.turn();
    }
    false
}

/// The last message of the process is not repeated. If it were lost, the peer would wait for the event forever.
#[test]
fn exiting_process_disconnects_peers_at_its_address() {
    let missed: Vec<u64> = (0..200).filter(|seed| !learns_of_exit(*seed)).collect();
    assert!(missed.is_empty(), "seeds {missed:?}");
}

/// Returns true if the waiting events include the end of a connection of this channel.
fn has_ended(channel: &dyn CmChannel) -> bool {
    let events = std::iter::from_fn(|| channel.next_event());
    events.filter(|event| matches!(event.kind, CmEventKind::Disconnected { .. })).count() > 0
}

/// Maximum time until the death of a process on the host is detected, without the help of retries.
const NOTICED: Duration = Duration::from_millis(200);

/// Runs until a connection of the channel has ended because of a death.
fn is_told(world: &mut World, channel: &dyn CmChannel) {
    let died = world.now();
    world.until("the end of a connection", || has_ended(channel).then_some(()));
    assert!(world.now() - died < NOTICED, "after {:?}", world.now() - died);
    for _ in 0..2000 {
        world.turn();
    }
    assert!(!has_ended(channel), "it ended twice");
}

#[test]
fn process_death_ends_connections_of_same_host_only() {
    for seed in 0..20 {
        let mut world = World::new(seed);
        let (near, far) = (world.host(NEAR), world.host(FAR));
        let [one, two, three] = [(); 3].map(|()| world.process(&near));
        let elsewhere = world.process(&far);
        let listener = listen(&one.node);
        let to_listener_of_two = listen(&two.node);
        let made = connect(&mut world, &one.node, &two.node, &to_listener_of_two);
        let of_three = connect(&mut world, &three.node, &one.node, &listener);
        let of_elsewhere = connect(&mut world, &elsewhere.node, &one.node, &listener);
        let _established = has_ended(&*listener.channel);
        exchange(&mut world, &made, &one, &two, 1);
        world.kill(&two);
        is_told(&mut world, &*made.channel);
        world.kill(&elsewhere);
        for _ in 0..2000 {
            world.turn();
        }
        assert!(!has_ended(&*listener.channel), "no registry knows of another host");
        world.kill(&three);
        is_told(&mut world, &*listener.channel);
        drop((of_three, of_elsewhere));
    }
}

#[test]
fn death_of_requesting_peer_withdraws_its_request() {
    let mut world = World::new(1);
    world.use_loopback();
    let near = world.host(NEAR);
    let [one, two] = [(); 2].map(|()| world.process(&near));
    let listener = listen(&one.node);
    let remote = SocketAddr::new(one.node.address, listener.id.local_address().port());
    let channel = two.node.cm_channel();
    let _asked = two.node.ask(remote, &channel);
    let event = cm_event(&mut world, &*listener.channel);
    let CmEventKind::ConnectRequest { id, .. } = event.kind else { panic!("{event:?}") };
    world.kill(&two);
    let event = cm_event(&mut world, &*listener.channel);
    assert!(matches!(event.kind, CmEventKind::Rejected(RejectReason::TIMEOUT)), "{event:?}");
    assert_eq!(event.id, id.number());
}

/// The connection to a TGT that several processes share ends when the last of them has died.
#[test]
fn connection_outlives_executor_while_another_process_has_handle() {
    let mut world = World::new(1);
    let near = world.host(NEAR);
    let file = Folder::new().unwrap().create("domain").unwrap();
    let [executor, successor] = [(); 2].map(|()| sharing(world.process(&near), &file));
    let peer = world.process(&near);
    let listener = listen(&executor.node);
    let connected = connect(&mut world, &peer.node, &executor.node, &listener);
    let _handle = successor.node.device.open_qp(&successor.node.xrcd, connected.tgt.number()).unwrap();
    exchange(&mut world, &connected, &peer, &executor, 1);
    world.kill(&executor);
    exchange(&mut world, &connected, &peer, &successor, 2);
    assert!(!has_ended(&*connected.channel), "the successor has it");
    world.kill(&successor);
    is_told(&mut world, &*connected.channel);
}

/// Replaces a process's node with a node in the domain of a file.
fn sharing(process: Process, file: &std::fs::File) -> Process {
    let Node { device, address, .. } = process.node;
    Process { node: Node::in_domain(device, address, 1 << 16, Some(file.as_fd())), ..process }
}

/// Kills the executor of a shared TGT after `stores` stores to shared memory, while it handles messages for
/// another process's SRQ. Returns true if it died before the messages ended.
fn home_dies(seed: u64, stores: u64) -> bool {
    const MESSAGES: u64 = 12;
    let mut world = World::new(seed);
    let (near, far) = (world.host(NEAR), world.host(FAR));
    let file = Folder::new().unwrap().create("domain").unwrap();
    let [executor, successor] = [(); 2].map(|()| sharing(world.process(&near), &file));
    let peer = world.process(&far);
    let tgt = executor.node.qp(QpType::XrcTgt);
    let _handle = successor.node.device.open_qp(&successor.node.xrcd, tgt.number()).unwrap();
    let ini = peer.node.qp(QpType::XrcIni);
    bring_up_with(&*tgt, peer.node.address, ini.number());
    bring_up_with(&*ini, executor.node.address, tgt.number());
    for number in 0..MESSAGES {
        successor.node.receive(number, 8192 + 512 * usize::try_from(number).unwrap(), BYTES);
    }
    let to = successor.node.srq.number().unwrap();
    for number in 0..MESSAGES {
        if number == 3 {
            executor.process.kill_after_stores(stores);
        }
        peer.node.memory.write(0, &[u8::try_from(number).unwrap(); BYTES as usize]).unwrap();
        post_to(&*ini, SendOperation::Send, SendData::Gather(&[peer.node.sge(0, BYTES)]), to);
        let received = world.completion(&successor.node);
        assert_eq!((received.wr_id, received.status), (number, CompletionStatus::Success), "{stores}");
        assert_eq!(world.completion(&peer.node).status, CompletionStatus::Success, "{stores}");
    }
    for _ in 0..1000 {
        world.turn();
    }
    assert!(world.next_completion(&successor.node).is_none(), "none arrived twice: {stores}");
    let has_died = !executor.process.is_alive();
    assert_eq!(successor.node.counter("targets_taken_over"), u64::from(has_died), "{stores}");
    has_died
}

#[test]
fn messages_arrive_once_if_executor_is_killed_between_any_two_stores() {
    let mut deaths = 0;
    for stores in (0..400).step_by(9) {
        deaths += u32::from(home_dies(7 + stores, stores));
    }
    assert!(deaths > 30, "{deaths}");
}

#[test]
fn only_processes_of_same_host_prove_user() {
    let mut world = World::new(1);
    let [here, there] = [NEAR, FAR].map(|address| world.host(address));
    let [server, near] = [(); 2].map(|()| world.process(&here));
    let far = world.process(&there);
    let listener = listen(&server.node);
    let [of_near, of_far] = [&near, &far].map(|client| {
        let connected = connect(&mut world, &client.node, &server.node, &listener);
        connected._ids.map(|id| id.local_user())
    });
    assert_eq!((of_near, of_far), ([Some(nix::unistd::geteuid().as_raw()); 2], [None; 2]));
}
