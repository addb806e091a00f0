//! Path changes without other faults. Calls must not fail.

use super::{Checked, QUIET, Run, Tally, rings};
use crate::coverage::EventKind;
use crate::plan::Fault;
use crate::workload::client::{Ask, Client};
use std::collections::BTreeSet;
use std::time::Duration;
use trunkline_verbs::Time;

/// Number of calls that each client makes during the disturbances.
const CALLS: usize = 8;
/// Longest pause between two of these calls, in nanoseconds.
const THINK_NS: u64 = 2_000_000;
/// Number of disturbances of shared memory.
const TIMES: usize = 6;
/// Time in which the disturbances occur, in nanoseconds.
const WITHIN_NS: u64 = 12_000_000;
/// Maximum duration of a call. A lost packet is retransmitted immediately or after a timeout.
const LIMIT: Duration = Duration::from_millis(50);
/// Time limit set for the calls. It must never be reached.
const PATIENCE: Duration = Duration::from_secs(2);

impl Run {
    /// Writes invalid words into the memory of nodes that share it. Packets of these nodes move to the network, and later
    /// back to shared memory.
    pub(super) fn paths_change(&mut self) -> Checked {
        self.memory_is_used()?;
        self.memory_makes_sense()?;
        let forgers = self.forgers();
        let mut forged = BTreeSet::new();
        if !forgers.is_empty() {
            self.disturb_calls(|run| {
                let forger = forgers[run.random.usize(..forgers.len())];
                run.put_forged(forger, &mut forged)
            })?;
        }
        self.disturb_calls(|run| {
            let node = run.random.usize(..run.nodes.len());
            run.scribble(node)
        })?;
        self.memory_is_released()
    }

    /// Disturbs the memory of the nodes [`TIMES`] times while all of them call each other.
    fn disturb_calls(&mut self, mut disturb: impl FnMut(&mut Self) -> Checked) -> Checked {
        let (ended, nodes) = (Tally::default(), self.nodes.len());
        for index in 0..nodes {
            let client = self.client(index)?;
            let random = self.random.fork();
            self.add(&ended, client.process, calls(client, random));
        }
        let mut times = (0..TIMES)
            .map(|_| self.scheduler.now().plus_ns(self.random.u64(..WITHIN_NS)))
            .collect::<Vec<_>>();
        times.sort_unstable();
        for time in times {
            self.scheduler.run_until(time, |_| false);
            disturb(self)?;
        }
        let why = "calls do not end while packets change their path";
        self.within(PATIENCE * 20, why, |_| ended.get() == nodes)
    }

    /// Returns the nodes that share memory with at least two other nodes on their host.
    fn forgers(&self) -> Vec<usize> {
        let share = |index: &usize| self.nodes[*index].plan.shares_memory;
        let others = |index: usize| self.others_of_host(index).filter(share).count();
        (0..self.nodes.len()).filter(share).filter(|index| others(*index) >= 2).collect()
    }

    fn others_of_host(&self, node: usize) -> impl Iterator<Item = usize> {
        let host = self.nodes[node].address.ip();
        (0..self.nodes.len()).filter(move |other| *other != node && self.nodes[*other].address.ip() == host)
    }

    /// Puts the last packets sent by other nodes on the host, with the next PSN, into a node's own memory. This also
    /// breaks the node's own rings.
    ///
    /// `forged` contains the packets forged so far, at most one per disturbance and area of the host. Forged packets are
    /// not copied, because they may be derived from packets of this node, which the node may legitimately send.
    fn put_forged(&mut self, node: usize, forged: &mut BTreeSet<Vec<u8>>) -> Checked {
        // Later invalid words are expected.
        self.memory_makes_sense()?;
        let own = self.nodes[node].areas();
        let produced = || own.iter().map(|area| rings::produced(area)).collect::<Vec<_>>();
        let before = produced();
        // Wait until the node has put a packet into its own ring. A receiver then checks this ring.
        self.scheduler.run_until(self.scheduler.now().plus_ns(WITHIN_NS), |_| produced() != before);
        let others = self.others_of_host(node).flat_map(|other| self.nodes[other].areas());
        let packets =
            others.filter_map(|area| rings::repeated(rings::last_send(&area, forged)?)).collect::<Vec<_>>();
        for area in &own {
            for packet in &packets {
                rings::append(area, packet);
                self.scheduler.coverage.count(EventKind::MemoryForged);
            }
        }
        forged.extend(packets);
        Ok(())
    }

    /// Writes invalid words into the memory that a node's process shares with others.
    pub(super) fn scribble(&mut self, node: usize) -> Checked {
        // Later invalid words are expected.
        self.memory_makes_sense()?;
        let random = &mut self.random;
        let areas = self.nodes[node].scribble(|_| nonsense(random));
        if areas > 0 {
            self.scheduler.coverage.count(EventKind::MemoryScribbled);
        }
        Ok(())
    }

    /// Checks that shared memory contained no invalid words before any were written deliberately, although processes died
    /// between two stores.
    fn memory_makes_sense(&self) -> Checked {
        let written = [EventKind::MemoryScribbled, EventKind::MemoryForged];
        if written.iter().any(|kind| self.scheduler.coverage.of(*kind) > 0) {
            return Ok(());
        }
        for (index, node) in self.nodes.iter().enumerate() {
            let count = node.counter("drop_shm_nonsense");
            if count > 0 {
                return Err(format!("node {index} found nonsense in shared memory, {count} times"));
            }
        }
        Ok(())
    }

    /// Checks that nodes on one host use shared memory on each of their shards, if all of them share memory. Runs with
    /// invalid words are not checked, because their nodes may return to shared memory much later.
    fn memory_is_used(&self) -> Checked {
        if self.plan.faults.iter().any(|(_, fault)| matches!(fault, Fault::Scribble { .. })) {
            return Ok(());
        }
        for (index, node) in self.nodes.iter().enumerate() {
            let mut of_host = self.nodes.iter().filter(|other| other.address.ip() == node.address.ip());
            if !of_host.all(|other| other.plan.shares_memory) {
                continue;
            }
            let paths = node.paths_to(node.address.ip());
            if let Some(path) = paths.iter().find(|path| path.path != "shm") {
                return Err(format!("node {index} shares no memory with one of its host: {path:?}"));
            }
        }
        Ok(())
    }

    /// Checks that memory shared with ended processes is released. Each process has at most one pair of areas for each
    /// combination of one of its shards and a shard of a running process.
    fn memory_is_released(&mut self) -> Checked {
        self.pass(QUIET);
        for (index, node) in self.nodes.iter().enumerate() {
            let own = node.shards();
            let of_host = self.nodes.iter().filter(|other| other.address.ip() == node.address.ip());
            let most = of_host
                .filter(|other| other.plan.shares_memory)
                .map(|other| other.shards() * own)
                .sum::<usize>();
            let pairs = node.counter("shm_peers");
            if pairs > most as u64 {
                return Err(format!("node {index} shares memory {pairs} times; {most} times at most it can"));
            }
        }
        Ok(())
    }
}

/// Returns the offset of a word in an area, and an invalid value for the word.
fn nonsense(random: &mut fastrand::Rng) -> (usize, u64) {
    let wild = random.u64(..) | 1 << 40;
    match random.u8(..3) {
        // Number of bytes produced.
        0 => (0, if random.bool() { wild } else { random.u64(..1 << 17) }),
        // Number of bytes consumed.
        1 => (8, wild),
        // Mark of the receiver.
        _ => (16, wild | 1),
    }
}

async fn calls(client: Client, mut random: fastrand::Rng) {
    for _ in 0..CALLS {
        for server in client.servers.clone() {
            client.timers.sleep(Duration::from_nanos(random.u64(..THINK_NS))).await;
            let began: Time = client.timers.now();
            let bytes = match random.u8(..6) {
                0 => 40 << 10,
                1 | 2 => 4 << 10,
                _ => 64,
            };
            let failure = client.call(server, PATIENCE, Ask::echo(bytes, bytes)).await;
            let took = client.timers.now() - began;
            client.coverage.count(EventKind::PathChanged);
            if let Some(status) = failure {
                client.oracle.fail(format!("a call failed while packets change their path: {status}"));
            } else if took > LIMIT {
                client.oracle.fail(format!("a call took {took:?} while packets change their path"));
            }
        }
    }
}
