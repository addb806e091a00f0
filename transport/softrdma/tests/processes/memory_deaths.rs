//! Peers that are killed or stopped at random moments, while messages go to them through shared memory. The
//! sender is told in time, others notice nothing, a successor works at once, and nothing of the dead peer is
//! left.

use super::memory::{SIZE, options, start_peer};
use crate::common::host::{Host, count_files};
use crate::common::node::{BOUND, Node};
use nix::sys::signal::Signal;
use std::sync::Arc;
use std::time::{Duration, Instant};
use trunkline_softrdma::device::PathChoice;
use trunkline_testkit::{Process, Random};
use trunkline_verbs::{
    Completion, CompletionStatus, QueuePair, SendData, SendFlags, SendOperation, SendRequest, SrqNumber,
};

/// Number of concurrent peers.
const PEERS: usize = 8;
/// Number of peers that die in all rounds; the variable sets another number.
const DEATHS: usize = 24;
const DEATHS_VARIABLE: &str = "TRUNKLINE_TEST_DEATHS";
/// Maximum number of unacknowledged messages to a peer.
const WINDOW: u32 = 8;
/// Maximum number of acknowledged messages after which a peer dies.
const MOST_LIFE: usize = 400;

/// A peer, and the messages sent to it.
struct Target {
    ini: Arc<dyn QueuePair>,
    process: Process,
    srq: SrqNumber,
    sent: u32,
    acknowledged: u32,
    /// Number of acknowledged messages after which it dies.
    dies: u32,
    is_stopped: bool,
    died: Option<Instant>,
    told: Option<CompletionStatus>,
}

impl Target {
    /// Sends as many messages as the window has room for.
    fn send(&mut self, node: &Node, index: usize) {
        while self.told.is_none() && self.sent - self.acknowledged < WINDOW {
            let slot = index * WINDOW as usize + (self.sent % WINDOW) as usize;
            let place = slot * SIZE as usize;
            node.memory.write(place, &[self.sent.to_le_bytes()[0]; SIZE as usize]).unwrap();
            let request = SendRequest {
                wr_id: index as u64,
                operation: SendOperation::SendWithImmediate(self.sent),
                data: SendData::Gather(&[node.sge(place, SIZE)]),
                flags: SendFlags::SIGNALED,
                remote_srq: self.srq,
            };
            self.ini.post_send(&[request]).unwrap();
            self.sent += 1;
        }
    }

    /// Kills or stops the process once it has taken its messages.
    fn die(&mut self) {
        if self.died.is_some() || self.acknowledged < self.dies {
            return;
        }
        self.process.signal(if self.is_stopped { Signal::SIGSTOP } else { Signal::SIGKILL });
        self.died = Some(Instant::now());
    }

    fn completed(&mut self, completion: &Completion) {
        match completion.status {
            CompletionStatus::Success => self.acknowledged += 1,
            status if self.told.is_none() => {
                let died = self.died.expect("who lives takes all messages");
                assert!(died.elapsed() < BOUND, "told of a death after {:?}", died.elapsed());
                self.told = Some(status);
            }
            _ => {}
        }
    }
}

/// Sends to peers until all have died and each death was reported.
fn round(host: &Host, node: &Node, random: &mut Random) -> u32 {
    let mut targets: Vec<Target> = (0..PEERS)
        .map(|_| {
            let (ini, process, srq) = start_peer(host, node, "auto");
            let dies = u32::try_from(random.below(MOST_LIFE)).unwrap();
            let is_stopped = random.below(3) == 0;
            Target { ini, process, srq, sent: 0, acknowledged: 0, dies, is_stopped, died: None, told: None }
        })
        .collect();
    let mut some = [Completion::default(); 16];
    while targets.iter().any(|target| target.told.is_none()) {
        for (index, target) in targets.iter_mut().enumerate() {
            target.send(node, index);
            target.die();
            let since = target.died.map_or(Duration::ZERO, |died| died.elapsed());
            assert!(target.told.is_some() || since < BOUND, "nobody is told of a death");
        }
        let count = node.cq.poll(&mut some);
        for completion in &some[..count] {
            targets[usize::try_from(completion.wr_id).unwrap()].completed(completion);
        }
        std::thread::yield_now();
    }
    assert!(targets.iter().all(|target| target.told == Some(CompletionStatus::RetryExceeded)));
    // Stopped processes are killed when they are dropped.
    targets.into_iter().map(|target| target.acknowledged).sum()
}

#[test]
fn deaths_at_random_moments_are_reported_in_time_and_leave_nothing() {
    let all = std::env::var(DEATHS_VARIABLE).map_or(DEATHS, |text| text.parse().unwrap());
    let mut random = Random::from_entropy();
    let host = Host::new();
    let node = Node::open(options(&host, PathChoice::Auto), 1 << 18);
    let files = |host: &Host| count_files(&host.namespace_directory(), "");
    let mut most_files = 0;
    for number in 0..all.div_ceil(PEERS) {
        let acknowledged = round(&host, &node, &mut random);
        assert!(acknowledged > 0 && node.counter("shm_packets_sent") > 0);
        trunkline_testkit::wait_until("memory of the dead is released", BOUND, || {
            node.cq.poll(&mut [Completion::default()]);
            (node.counter("shm_peers") == 0).then_some(())
        });
        // Successors use the places of the dead peers.
        if number == 0 {
            most_files = files(&host);
        }
        assert!(files(&host) <= most_files + 1, "{} files, {most_files} after the first round", files(&host));
    }
    assert!(node.counter("shm_packets_sent") > 1000, "most went through memory");
}
