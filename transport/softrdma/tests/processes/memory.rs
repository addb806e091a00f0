//! Two processes that exchange messages through shared memory, and the effects when one is stopped or dies.
//!
//! The tests start this binary again as the peer.

use crate::common;
use crate::common::host::{Host, part};
use crate::common::node::{BOUND, Node, bring_up_with, connect, post, post_to, wait_readable};
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::Signal;
use std::sync::Arc;
use std::time::Duration;
use std::time::Instant;
use trunkline_softrdma::device::{PathChoice, SoftDevice, SoftOptions};
use trunkline_testkit::{Process, print_line, same_test};
use trunkline_verbs::{
    Completion, CompletionStatus, Notify, QpNumber, QpType, QueuePair, SendData, SendOperation, SrqNumber,
};

const PEER: &str = "TRUNKLINE_TEST_PEER";
const DEPTH: u64 = 64;
const SIZE: u32 = 3000;

pub(super) fn options(host: &Host, path: PathChoice) -> SoftOptions {
    SoftOptions { path, ..host.options() }
}

/// Returns the offset of a message in a node's memory.
fn place(index: u64) -> usize {
    usize::try_from(index).unwrap() * SIZE as usize
}

/// Entry point of the peer, which waits for messages on an SRQ. Its TGT is connected to the INI that
/// [`PEER`] names.
#[test]
fn peer() {
    if part().as_deref() != Some("peer") {
        return;
    }
    let value = std::env::var(PEER).unwrap();
    let [address, ini, path] = value.splitn(3, ' ').collect::<Vec<_>>().try_into().unwrap();
    if path == "small files" {
        setrlimit(Resource::RLIMIT_FSIZE, 32 << 10, 32 << 10).unwrap();
    }
    let path = if path == "udp" { PathChoice::Udp } else { PathChoice::Auto };
    let runtime_directory = std::env::var_os("TRUNKLINE_RUNTIME_DIR").map(Into::into);
    let node = Node::open(SoftOptions { path, runtime_directory, ..common::udp() }, 1 << 18);
    for wr_id in 0..DEPTH {
        node.receive(wr_id, place(wr_id), SIZE);
    }
    let tgt = node.qp(QpType::XrcTgt);
    bring_up_with(&*tgt, address.parse().unwrap(), QpNumber::new(ini.parse().unwrap()));
    print_line(&format!("PEER {} {} {}", node.address, tgt.number().get(), node.srq.number().unwrap().get()));
    let mut expected = 0;
    loop {
        let completion = sleep_for_completion(&node);
        assert_eq!(completion.status, CompletionStatus::Success);
        assert_eq!((completion.byte_length, completion.immediate), (SIZE, expected));
        let mut bytes = vec![0; SIZE as usize];
        node.memory.read(place(completion.wr_id), &mut bytes).unwrap();
        assert!(bytes.iter().all(|byte| *byte == expected.to_le_bytes()[0]), "message {expected}");
        node.receive(completion.wr_id, place(completion.wr_id), SIZE);
        expected += 1;
    }
}

fn sleep_for_completion(node: &Node) -> Completion {
    let mut one = [Completion::default()];
    loop {
        node.cq.request_notify(Notify::Any).unwrap();
        if node.cq.poll(&mut one) == 1 {
            return one[0];
        }
        wait_readable(&*node.channel);
        while node.channel.next_event().is_some() {}
    }
}

fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    trunkline_testkit::wait_until(what, BOUND, || holds().then_some(()));
}

struct PeeredNode {
    host: Host,
    node: Node,
    ini: Arc<dyn QueuePair>,
    peer: Process,
    srq: SrqNumber,
}

fn pair(near: PathChoice, far: &str) -> PeeredNode {
    let host = Host::new();
    let node = Node::open(options(&host, near), 1 << 18);
    let (ini, peer, srq) = start_peer(&host, &node, far);
    PeeredNode { host, node, ini, peer, srq }
}

/// Starts a peer with this path, and connects an INI to its TGT.
fn start_peer(host: &Host, node: &Node, path: &str) -> (Arc<dyn QueuePair>, Process, SrqNumber) {
    let ini = node.qp(QpType::XrcIni);
    let value = format!("{} {} {path}", node.address, ini.number().get());
    let mut command = same_test(module_path!(), "peer");
    let mut peer = host.start("peer", &mut command, &[(PEER, &value)]);
    let line = peer.after("PEER ").unwrap();
    let [address, tgt, srq] = line.split(' ').collect::<Vec<_>>().try_into().unwrap();
    bring_up_with(&*ini, address.parse().unwrap(), QpNumber::new(tgt.parse().unwrap()));
    (ini, peer, SrqNumber::new(srq.parse().unwrap()))
}

impl PeeredNode {
    fn send(&self, number: u32) {
        // Unacknowledged messages may be read again.
        let place = place(u64::from(number) % DEPTH);
        self.node.memory.write(place, &vec![number.to_le_bytes()[0]; SIZE as usize]).unwrap();
        let data = SendData::Gather(&[self.node.sge(place, SIZE)]);
        post_to(&*self.ini, SendOperation::SendWithImmediate(number), data, self.srq);
    }

    fn exchange(&self, numbers: std::ops::Range<u32>) {
        for number in numbers {
            self.send(number);
            assert_eq!(self.node.completion().status, CompletionStatus::Success, "message {number}");
        }
    }

    /// Returns true if a stopped peer receives this number of messages after it is resumed. On a loaded machine
    /// it may continue too late, since the sender leaves the path after half a second.
    fn continues(&self, messages: usize) -> bool {
        for _ in 0..messages {
            match self.node.completion().status {
                CompletionStatus::Success => {}
                status => {
                    assert_eq!(status, CompletionStatus::RetryExceeded);
                    return false;
                }
            }
        }
        true
    }

    fn path(&self) -> (&'static str, &'static str) {
        let path = self.ini.path().expect("the QP is here");
        (path.name, path.why)
    }

    /// Returns the number of pairs through which the test's device shares memory.
    fn pairs(&self) -> u64 {
        self.node.counter("shm_peers")
    }
}

#[test]
fn two_processes_send_only_through_memory_once_shared() {
    // After a time-out the sender retransmits over UDP. A loaded machine may stop the peer for that long, but
    // not in each attempt.
    wait_until("an attempt without a time-out", || {
        let pair = pair(PathChoice::Auto, "auto");
        pair.exchange(0..20);
        wait_until("the path is memory", || pair.path().0 == "shm");
        let [before, timeouts] = ["packets_sent", "ack_timeouts"].map(|name| pair.node.counter(name));
        pair.exchange(20..600);
        if pair.node.counter("ack_timeouts") > timeouts {
            return false;
        }
        assert_eq!(pair.path(), ("shm", ""));
        assert!(pair.node.counter("shm_packets_sent") >= 580 && pair.pairs() == 1);
        assert_eq!(pair.node.counter("packets_sent"), before, "nothing goes by UDP");
        true
    });
}

#[test]
fn process_set_to_udp_keeps_peers_on_udp_and_reports_reason() {
    let pair = pair(PathChoice::Auto, "udp");
    pair.exchange(0..20);
    wait_until("the peer has refused", || {
        pair.path().1 == "the peer has TRUNKLINE_LINK=udp (or setting link)"
    });
    pair.exchange(20..40);
    assert_eq!((pair.path().0, pair.node.counter("shm_packets_sent")), ("udp", 0));
}

#[test]
fn memory_only_device_refuses_udp_peers() {
    let pair = pair(PathChoice::Shm, "udp");
    pair.send(0);
    assert_eq!(pair.node.completion().status, CompletionStatus::WorkRequestFlushed);
    let elsewhere = pair.node.qp(QpType::XrcIni);
    let steps = common::node::steps([192, 0, 2, 1].into(), QpNumber::new(17), trunkline_verbs::Mtu::Mtu1024);
    elsewhere.modify(&steps[0]).unwrap();
    let refused = elsewhere.modify(&steps[1]).unwrap_err().to_string();
    assert!(refused.contains("TRUNKLINE_LINK=shm"), "{refused}");
}

/// The faults apply to packets, so a device with faults uses UDP, although shared memory is the default.
#[test]
fn device_with_faults_uses_udp() {
    let host = Host::new();
    let faulty = |path| SoftOptions { faults: "delay=1us,seed=3".parse().ok(), ..options(&host, path) };
    let refused = SoftDevice::open(faulty(PathChoice::Shm)).unwrap_err().to_string();
    assert!(refused.contains("TRUNKLINE_LINK=shm") && refused.contains("TRUNKLINE_FAULTS"), "{refused}");
    let default = SoftOptions::default().path;
    let nodes = [faulty(default), options(&host, default)].map(|options| Node::open(options, 1 << 16));
    let [(ini, tgt), (back, _other)] =
        [(&nodes[0], &nodes[1]), (&nodes[1], &nodes[0])].map(|(from, to)| connect(from, to));
    for (node, ini) in nodes.iter().zip([&ini, &back]) {
        post(&**ini, SendOperation::RdmaWrite(node.remote(0)), &[], &*node.srq);
    }
    let why = |qp: &dyn QueuePair| qp.path().map(|path| (path.name, path.why));
    wait_until("both know", || {
        why(&*ini) == Some(("udp", "packets have faults (setting faults, or TRUNKLINE_FAULTS)"))
            && why(&*back)
                == Some(("udp", "the peer's packets have faults (setting faults, or TRUNKLINE_FAULTS)"))
    });
    drop(tgt);
}

/// Writing beyond the limit on file sizes kills the process with SIGXFSZ.
#[test]
fn process_with_small_file_size_limit_stays_on_udp() {
    let pair = pair(PathChoice::Auto, "small files");
    pair.exchange(0..20);
    wait_until("the peer has refused", || {
        pair.path().1
            == "the peer has no room to share memory with this process; its own report names the limit"
    });
    pair.exchange(20..40);
    assert_eq!(pair.path().0, "udp");
}

/// The ring is not full, so the sender does not wait for room. Time-outs show that the peer does not read.
#[test]
fn unread_ring_is_replaced_by_udp() {
    wait_until("a peer that continues before it is given up", || {
        let pair = pair(PathChoice::Auto, "auto");
        pair.exchange(0..50);
        wait_until("the path is memory", || pair.path().0 == "shm");
        pair.peer.stop();
        for number in 50..53 {
            pair.send(number);
        }
        let stopped = ("udp", "the peer has stopped taking what is in shared memory");
        wait_until("the path is the network", || pair.path() == stopped);
        pair.peer.signal(Signal::SIGCONT);
        if !pair.continues(3) {
            return false;
        }
        pair.exchange(53..60);
        wait_until("the path is memory again", || pair.path().0 == "shm");
        true
    });
}

#[test]
fn resumed_process_receives_messages_sent_while_stopped() {
    wait_until("a peer that continues before it is given up", || {
        let pair = pair(PathChoice::Auto, "auto");
        pair.exchange(0..50);
        wait_until("the path is memory", || pair.path().0 == "shm");
        pair.exchange(50..60);
        pair.peer.stop();
        // Send more than the ring holds, so that some messages go over UDP.
        for number in 60..60 + 40 {
            pair.send(number);
        }
        let until = Instant::now() + Duration::from_millis(100);
        let mut one = [Completion::default()];
        while Instant::now() < until {
            if pair.node.cq.poll(&mut one) > 0 {
                let status = one[0].status;
                assert_eq!(
                    status,
                    CompletionStatus::RetryExceeded,
                    "nobody acknowledges while it is stopped"
                );
                return false;
            }
            std::thread::yield_now();
        }
        pair.peer.signal(Signal::SIGCONT);
        if !pair.continues(40) {
            return false;
        }
        // The peer ends at the first message that is not the expected one.
        pair.exchange(100..150);
        true
    });
}

#[test]
fn killed_process_is_reported_and_its_memory_released() {
    let mut pair = pair(PathChoice::Auto, "auto");
    pair.exchange(0..20);
    wait_until("the path is memory", || pair.path().0 == "shm");
    pair.exchange(20..40);
    pair.peer.kill().unwrap();
    pair.send(40);
    assert_eq!(pair.node.completion().status, CompletionStatus::RetryExceeded);
    wait_until("its areas are released", || {
        let mut nothing = [Completion::default()];
        pair.node.cq.poll(&mut nothing);
        pair.pairs() == 0
    });
    // Another process takes its place immediately.
    let (ini, peer, srq) = start_peer(&pair.host, &pair.node, "auto");
    let next = PeeredNode { ini, peer, srq, ..pair };
    next.exchange(0..20);
    wait_until("the path is memory again", || next.path().0 == "shm");
    next.exchange(20..30);
}

/// The peer's socket file is missing, so shared memory is offered rarely, and messages go over UDP.
#[test]
fn unreachable_process_is_offered_memory_at_limited_rate() {
    let host = Host::new();
    let nodes = [(); 2].map(|()| Node::open(options(&host, PathChoice::Auto), 1 << 16));
    for entry in std::fs::read_dir(host.namespace_directory()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "sock") {
            std::fs::remove_file(path).unwrap();
        }
    }
    let began = Instant::now();
    let (ini, _tgt) = connect(&nodes[0], &nodes[1]);
    for _ in 0..2000 {
        post(&*ini, SendOperation::RdmaWrite(nodes[1].remote(0)), &[nodes[0].sge(0, 64)], &*nodes[1].srq);
        assert_eq!(nodes[0].completion().status, CompletionStatus::Success);
    }
    let failed = nodes[0].counter("drop_local_gone");
    let most = 2 + began.elapsed().as_millis() / 100;
    assert!(failed > 0 && u128::from(failed) <= most, "{failed} offers, {most} at most");
    assert_eq!(ini.path().map(|path| path.why), Some("messages do not reach the peer's process"));
}
