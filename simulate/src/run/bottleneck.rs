//! A link with low bandwidth. Senders use its full bandwidth with few losses, and sessions stay up.
//!
//! Several additional nodes, each on a separate host, send large arguments to the first node, which READs them through
//! the link. The link has either no delay and a short queue, or a long delay and a longer queue.

use super::{Checked, Run, Tally};
use crate::coverage::EventKind;
use crate::network::Bottleneck;
use crate::plan::NodePlan;
use crate::workload::client::{Ask, Client, MINUTE};
use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

/// Size of a large argument, in bytes.
const LARGE: usize = 64 << 10;
/// Size of a small argument, in bytes.
const SMALL: usize = 64;
/// Number of concurrent calls per sender.
const OUTSTANDING: usize = 4;
/// Number of consecutive calls.
const IN_A_ROW: usize = 6;
/// Number of full queues in the time limit for nine of ten small calls that run beside large ones. The limit also
/// includes [`ROUND_TRIPS`] and [`MARGIN`]. Lost packets may delay the other calls further.
const QUEUES: u32 = 2;
const ROUND_TRIPS: u32 = 2;
const MARGIN: Duration = Duration::from_millis(1);
/// Factor between the time limit of a round and the transmission time of its arguments. The limit also includes [`BEGIN`]
/// and [`GROWING`].
const USED: u32 = 2;
const BEGIN: Duration = Duration::from_secs(1);
/// Number of round trips in which windows grow.
const GROWING: u32 = 60;
/// After the first round, one in this many datagrams may be dropped on a link without delay.
const DROPPED: u64 = 50;
/// Like [`DROPPED`], for a link with a long delay, where only losses limit a window.
const DROPPED_FAR: u64 = 20;
/// Divisor of the queue size that gives the length from which datagrams are marked, if the link marks them.
const MARKED: u64 = 4;
/// Like [`DROPPED`], for a link without delay that marks datagrams. With a long delay, the first marks arrive after the
/// queue is full.
const DROPPED_MARKED: u64 = 200;

impl Run {
    /// Lets several nodes send large arguments through one link.
    pub(super) fn a_link_is_shared(&mut self) -> Checked {
        let is_far = self.random.bool();
        let byte_ns = self.random.u64(8..=40);
        let (delay, queue) = if is_far {
            (Duration::from_millis(self.random.u64(5..=40)), 400_000)
        } else {
            (Duration::ZERO, self.random.u64(120_000..=250_000))
        };
        let server = self.nodes[0].address;
        let count = self.random.usize(2..=5);
        let marks_from = self.random.bool().then_some(queue / MARKED);
        let bottleneck = Bottleneck { host: server.ip(), byte_ns, queue, marks_from, delay };
        let _none = self.scheduler.network.set_bottleneck(Some(bottleneck));
        let mut senders = Vec::new();
        for _ in 0..count {
            senders.push(self.start_extra(|node| NodePlan { is_client: true, ..node })?);
        }
        // Before the load starts, all sessions are up and have measured the delay of the link.
        let reached = Tally::default();
        for at in &senders {
            let client = self.client_of(&self.extra[*at], vec![server])?;
            self.add(&reached, client.process, client.until_reached(server));
        }
        self.within(MINUTE, "a sender does not reach a node", |_| reached.get() == count)?;
        let most = match marks_from {
            _ if is_far => DROPPED_FAR,
            Some(_) => DROPPED_MARKED,
            None => DROPPED,
        };
        let (mut sent_datagrams, mut dropped) = (0, 0);
        // In the third round, small calls run beside large calls.
        for round in ["first", "second", "third"] {
            let _before = self.scheduler.network.set_bottleneck(Some(bottleneck));
            let began = self.scheduler.now();
            let (ended, beside, small) = (Tally::default(), Tally::default(), Small::default());
            for at in &senders {
                let client = self.client_of(&self.extra[*at], vec![server])?;
                for _ in 0..OUTSTANDING {
                    self.add(&ended, client.process, large_calls(client.clone(), server));
                }
                if round == "third" {
                    let all = count * OUTSTANDING;
                    let calls = small_calls(client.clone(), server, (ended.clone(), all), small.clone());
                    self.add(&beside, client.process, calls);
                }
            }
            let calls = count * OUTSTANDING * IN_A_ROW;
            let sent = Duration::from_nanos(byte_ns * u64::try_from(calls * LARGE).unwrap_or(u64::MAX));
            let limit = sent * USED + BEGIN + delay * GROWING;
            let why = format!("calls through a bottleneck take more than {limit:?} in the {round} round");
            self.within(limit, &why, |_| ended.get() == count * OUTSTANDING)?;
            let took = self.scheduler.now() - began;
            let callers = if round == "third" { count } else { 0 };
            self.within(limit, "small calls do not end", |_| beside.get() == callers)?;
            let passed = self.scheduler.network.set_bottleneck(None);
            let waited = small.most();
            self.scheduler.trace.line(
                self.scheduler.now(),
                "bottleneck",
                format_args!(
                    "{round} round of {count} senders: {byte_ns} ns per byte, queue {queue}, marks from {marks_from:?}, delay {delay:?}, \
                     {took:?} of {sent:?}, {passed:?}, small calls in {waited:?}"
                ),
            );
            // In the first round, windows still double.
            if round != "first" {
                sent_datagrams += passed.all;
                dropped += passed.dropped;
            }
            let full = Duration::from_nanos(byte_ns * queue);
            if waited > full * QUEUES + delay * ROUND_TRIPS + MARGIN {
                return Err(format!("one of ten small calls takes {waited:?} or more beside large ones"));
            }
        }
        if dropped > sent_datagrams / most {
            return Err(format!("{dropped} of {sent_datagrams} datagrams found no room"));
        }
        self.scheduler.coverage.count(EventKind::BottleneckShared);
        self.count_credits()
    }
}

/// Sends calls with a large argument, each of which must succeed.
async fn large_calls(client: Client, server: SocketAddr) {
    for _ in 0..IN_A_ROW {
        if let Some(status) = client.call(server, MINUTE, Ask::echo(LARGE, 8)).await {
            client.oracle.fail(format!("a call through a bottleneck failed: {status}"));
        }
    }
}

/// Durations of small calls. Clones share them.
#[derive(Debug, Clone, Default)]
struct Small(Rc<RefCell<Vec<Duration>>>);

impl Small {
    /// Returns the time within which nine of ten calls ended.
    fn most(&self) -> Duration {
        let mut times = self.0.borrow_mut();
        times.sort_unstable();
        times.get(times.len() * 9 / 10).copied().unwrap_or_default()
    }
}

/// Sends small calls, one at a time, until the given number of programs has ended.
async fn small_calls(client: Client, server: SocketAddr, (ended, all): (Tally, usize), small: Small) {
    while ended.get() < all {
        let began = client.timers.now();
        if let Some(status) = client.call(server, MINUTE, Ask::echo(SMALL, 8)).await {
            client.oracle.fail(format!("a small call through a bottleneck failed: {status}"));
        }
        small.0.borrow_mut().push(client.timers.now() - began);
    }
}
