//! Peers at their budgets: refused by name, while others are served.

use super::{QUIET, Run, TRY};
use crate::client::TEXTS;
use crate::node::HANDLERS;
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;
use trunkline::{Code, Status};
use trunkline_verbs::Time;

/// Time limit of the calls that hold handlers.
const HELD: Duration = Duration::from_millis(200);
/// Calls beyond the limit.
const BEYOND: usize = 2;
/// Calls that keep texts. The last one exceeds the memory of one peer.
const KEEPING: usize = 3;
/// Calls that one caller makes at once, and calls of another, one after the other.
const FLOOD: usize = 300;
const BESIDE: usize = 6;
/// Number of times that a handler blocks their poller, and the time of each, in microseconds.
const BLOCKS: usize = 5;
const BLOCKED_US: u64 = 300;

/// A peer that holds all handlers that it may, and the peers that must be served meanwhile.
struct Greed {
    server: usize,
    greedy: Vec<usize>,
    /// Handlers that the greedy peers may hold together.
    allowed: usize,
    honest: Option<usize>,
}

impl Run {
    /// Makes a caller hold all handlers that it may. Further calls of it are refused, and another's are not.
    pub(super) fn one_is_greedy(&mut self) -> bool {
        let honest = Some(self.nodes.len() - 1).filter(|honest| *honest != 1);
        let greed = Greed { server: 0, greedy: vec![1], allowed: HANDLERS.per_peer, honest };
        self.hold(&greed) && self.one_keeps_memory() && self.one_floods()
    }

    /// Does the same with several callers of one host and one of another host, if the run has them.
    pub(super) fn a_host_is_greedy(&mut self) -> bool {
        let host = |node: usize| self.nodes[node].address.ip();
        let all = 0..self.nodes.len();
        let others = |server: usize| all.clone().filter(move |node| *node != server);
        let crowd = all.clone().flat_map(|server| others(server).map(move |first| (server, first))).find_map(
            |(server, first)| {
                let greedy = others(server).filter(|node| host(*node) == host(first)).collect::<Vec<_>>();
                let honest = others(server).find(|node| host(*node) != host(first));
                (greedy.len() > 1).then_some((server, greedy, honest))
            },
        );
        let Some((server, greedy, honest)) = crowd else { return true };
        let allowed = HANDLERS.per_host();
        self.hold(&Greed { server, greedy, allowed, honest })
    }

    fn hold(&mut self, greed: &Greed) -> bool {
        let &Greed { server, ref greedy, allowed, honest } = greed;
        let address = self.nodes[server].address;
        self.scheduler.run_until(self.scheduler.now() + QUIET, |_| false);
        let refused = Rc::new(Cell::new(0));
        let began = self.scheduler.now();
        for greedy in greedy {
            let Some(client) = self.client(*greedy) else { return self.fail("a node is not running") };
            for _ in 0..HANDLERS.per_peer + BEYOND {
                let (client, refused) = (client.clone(), Rc::clone(&refused));
                self.scheduler.tasks.add(client.process, async move {
                    match client.hang_for(address, HELD).await {
                        Some(status) if is_refusal(&status) => refused.set(refused.get() + 1),
                        Some(status) if status.code() == Code::DeadlineExceeded => {}
                        other => {
                            client.oracle.fail(format!("a call that holds a handler ended with {other:?}"));
                        }
                    }
                });
            }
        }
        let beyond = greedy.len() * (HANDLERS.per_peer + BEYOND) - allowed;
        if !self.scheduler.run_until(began + HELD / 2, |_| refused.get() == beyond) {
            return self.fail("callers may hold other than as many handlers as their budget allows");
        }
        self.count_credits();
        if let Some(honest) = honest {
            let Some(client) = self.client(honest) else { return self.fail("a node is not running") };
            let served = Rc::new(Cell::new(false));
            let noted = Rc::clone(&served);
            self.scheduler.tasks.add(client.process, async move {
                for wait_us in [0, 500] {
                    if let Some(status) = client.late_echo_of(address, TRY, (100, 100), wait_us).await {
                        client.oracle.fail(format!("a call failed while other peers are greedy: {status}"));
                    }
                }
                noted.set(true);
            });
            if !self.scheduler.run_until(began + HELD, |_| served.get()) {
                return self.fail("a call waits for peers that are at their budget");
            }
        }
        self.ends_within(server, began + HELD + QUIET)
    }

    /// Makes a caller hold all memory for decoded arguments that it may. One more call of it is refused, and
    /// another's is not.
    fn one_keeps_memory(&mut self) -> bool {
        let (server, greedy, honest) = (0, 1, self.nodes.len() - 1);
        let address = self.nodes[server].address;
        let began = self.scheduler.now();
        let refused = Rc::new(Cell::new(0));
        let callers = [greedy; KEEPING].into_iter().chain((honest != greedy).then_some(honest));
        for (call, caller) in callers.enumerate() {
            let Some(client) = self.client(caller) else { return self.fail("a node is not running") };
            let refused = Rc::clone(&refused);
            self.scheduler.tasks.add(client.process, async move {
                let wait = HELD.as_micros().try_into().unwrap_or(u64::MAX) / 2;
                match client.keep_at(address, HELD, wait, TEXTS).await {
                    Some(status) if is_out_of_memory(&status) && call < KEEPING => {
                        refused.set(refused.get() + 1);
                    }
                    Some(status) => {
                        client.oracle.fail(format!("a call that keeps memory ended with {status}"))
                    }
                    None => {}
                }
            });
        }
        if !self.ends_within(server, began + HELD + QUIET) {
            return false;
        }
        if refused.get() != 1 {
            return self.fail("a caller may hold more or less memory of arguments than its budget allows");
        }
        true
    }

    /// Makes many calls by one caller at once, while another makes one after the other. The ledgers tell how long its
    /// messages waited for their turn.
    fn one_floods(&mut self) -> bool {
        let (server, greedy, honest) = (0, 1, self.nodes.len() - 1);
        let address = self.nodes[server].address;
        let began = self.scheduler.now();
        let Some(client) = self.client(greedy) else { return self.fail("a node is not running") };
        let blocker = client.clone();
        self.scheduler.tasks.add(client.process, async move {
            for _ in 0..BLOCKS {
                // Many others arrive while the poller is busy.
                let outcome = blocker.block_at(address, TRY, BLOCKED_US).await;
                if let Some(status) = outcome.filter(|status| !is_overload(status)) {
                    blocker.oracle.fail(format!("a call that blocks its poller failed: {status}"));
                }
            }
        });
        for (caller, tasks, calls) in [(greedy, FLOOD, BESIDE), (honest, 1, BESIDE)] {
            let Some(client) = self.client(caller) else { return self.fail("a node is not running") };
            for _ in 0..tasks {
                let client = client.clone();
                self.scheduler.tasks.add(client.process, async move {
                    for _ in 0..calls {
                        match client.late_echo_of(address, TRY, (20, 20), 0).await {
                            Some(status) if caller != greedy || !is_overload(&status) => {
                                client.oracle.fail(format!("a call beside many others failed: {status}"));
                            }
                            _ => {}
                        }
                    }
                });
            }
        }
        self.ends_within(server, began + TRY + QUIET)
    }

    /// Checks that all calls and handlers end by the time limit.
    fn ends_within(&mut self, server: usize, limit: Time) -> bool {
        if !self.scheduler.run_until(limit, |scheduler| scheduler.tasks.len() == 0)
            || !self.has_handlers_by(server, 0, limit)
        {
            return self.fail("handlers that greedy peers held do not end");
        }
        self.count_credits();
        self.is_unbroken()
    }
}

fn is_refusal(status: &Status) -> bool {
    status.code() == Code::ResourceExhausted
        && !status.may_have_run()
        && ["one peer's", "one host's"]
            .iter()
            .any(|whose| status.message().contains(&format!("{whose} budget of running handlers")))
}

/// Returns true for the failures of calls that are more than a small node handles in time.
fn is_overload(status: &Status) -> bool {
    matches!(status.code(), Code::ResourceExhausted | Code::DeadlineExceeded)
}

fn is_out_of_memory(status: &Status) -> bool {
    status.code() == Code::ResourceExhausted
        && !status.may_have_run()
        && status.message().contains("one peer's budget of bytes of decoded arguments")
}
