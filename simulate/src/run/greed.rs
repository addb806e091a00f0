//! Peers that exhaust their budgets. Further calls from them are refused, while other peers are served.

use super::{Checked, QUIET, Run, TRY, Tally};
use crate::plan::HANDLERS;
use crate::workload::client::{Ask, TEXTS};
use std::time::Duration;
use trunkline::{Code, Status};
use trunkline_verbs::Time;

/// Time limit of the calls that hold handlers.
const HELD: Duration = Duration::from_millis(200);
/// Number of calls beyond a limit.
const BEYOND: usize = 2;
/// Number of calls that keep texts. The last one exceeds the memory budget of one peer.
const KEEPING: usize = 3;
/// Number of concurrent calls from the greedy caller.
const FLOOD: usize = 300;
/// Number of sequential calls from the other caller.
const BESIDE: usize = 6;
/// Number of times that a handler blocks a poller of the server.
const BLOCKS: usize = 5;
/// Duration for which a handler blocks a poller, in microseconds.
const BLOCKED_US: u64 = 300;

/// A server, peers that exhaust their limits on it, and a peer that must still be served.
struct Greed {
    server: usize,
    greedy: Vec<usize>,
    /// Total limit on running handlers of the greedy peers.
    allowed: usize,
    honest: Option<usize>,
}

impl Run {
    /// Lets a caller use all handlers and then all memory that its limits allow, and finally send many calls at the same
    /// time. Further calls from this caller are refused; calls from another caller are not.
    pub(super) fn one_is_greedy(&mut self) -> Checked {
        let honest = Some(self.nodes.len() - 1).filter(|honest| *honest != 1);
        let greed = Greed { server: 0, greedy: vec![1], allowed: HANDLERS.per_peer, honest };
        self.hold(&greed)?;
        self.keep(&greed)?;
        self.flood_one(&greed)
    }

    /// Lets callers on one host exhaust the handler limit of the host while a caller on another host makes calls. Does
    /// nothing in runs without such callers.
    pub(super) fn a_host_is_greedy(&mut self) -> Checked {
        let host = |node: usize| self.nodes[node].address.ip();
        let all = 0..self.nodes.len();
        let others = |server: usize| all.clone().filter(move |node| *node != server);
        let pairs = all.clone().flat_map(|server| others(server).map(move |first| (server, first)));
        let mut crowds = pairs.map(|(server, first)| Greed {
            server,
            greedy: others(server).filter(|node| host(*node) == host(first)).collect(),
            allowed: HANDLERS.per_host(),
            honest: others(server).find(|node| host(*node) != host(first)),
        });
        let crowd = crowds.find(|greed| greed.greedy.len() > 1);
        crowd.map_or(Ok(()), |greed| self.hold(&greed))
    }

    fn hold(&mut self, greed: &Greed) -> Checked {
        let address = self.nodes[greed.server].address;
        let (refused, began) = (Tally::default(), self.scheduler.now());
        for greedy in &greed.greedy {
            let client = self.client(*greedy)?;
            for _ in 0..HANDLERS.per_peer + BEYOND {
                let (client, refused) = (client.clone(), refused.clone());
                self.scheduler.tasks.add(client.process, async move {
                    match client.call(address, HELD, Ask::Hang).await {
                        Some(status) if is_refusal(&status) => refused.add(),
                        Some(status) if status.code() == Code::DeadlineExceeded => {}
                        other => {
                            client.oracle.fail(format!("a call that holds a handler ended with {other:?}"));
                        }
                    }
                });
            }
        }
        let beyond = greed.greedy.len() * (HANDLERS.per_peer + BEYOND) - greed.allowed;
        let why = "callers may hold other than as many handlers as their budget allows";
        self.by(began + HELD / 2, why, |_| refused.get() == beyond)?;
        self.count_credits()?;
        if let Some(honest) = greed.honest {
            let client = self.client(honest)?;
            let served = self.program(client.process, async move {
                for wait_us in [0, 500] {
                    let ask = Ask::Echo { there: 100, back: 100, wait_us };
                    if let Some(status) = client.call(address, TRY, ask).await {
                        client.oracle.fail(format!("a call failed while other peers are greedy: {status}"));
                    }
                }
            });
            let why = "a call waits for peers that are at their budget";
            self.by(began + HELD, why, |_| served.get() == 1)?;
        }
        self.ends_within(greed, began + HELD + QUIET)
    }

    /// Lets one caller exhaust its memory limit for decoded arguments.
    fn keep(&mut self, greed: &Greed) -> Checked {
        let address = self.nodes[greed.server].address;
        let (refused, began) = (Tally::default(), self.scheduler.now());
        let wait_us = HELD.as_micros().try_into().unwrap_or(u64::MAX) / 2;
        let callers = [greed.greedy[0]; KEEPING].into_iter().chain(greed.honest);
        for (call, caller) in callers.enumerate() {
            let (client, refused) = (self.client(caller)?, refused.clone());
            self.scheduler.tasks.add(client.process, async move {
                match client.call(address, HELD, Ask::Keep { wait_us, texts: TEXTS }).await {
                    Some(status) if is_out_of_memory(&status) && call < KEEPING => refused.add(),
                    Some(status) => {
                        client.oracle.fail(format!("a call that keeps memory ended with {status}"));
                    }
                    None => {}
                }
            });
        }
        self.ends_within(greed, began + HELD + QUIET)?;
        if refused.get() != 1 {
            let why = "a caller may hold more or less memory of arguments than its budget allows";
            return Err(why.to_owned());
        }
        Ok(())
    }

    /// Sends many concurrent calls from one caller, and sequential calls from another caller. The ledgers contain the
    /// time for which the other caller's messages waited.
    fn flood_one(&mut self, greed: &Greed) -> Checked {
        let address = self.nodes[greed.server].address;
        let (greedy, honest) = (greed.greedy[0], self.nodes.len() - 1);
        let began = self.scheduler.now();
        // Many other calls arrive while the poller is busy.
        let blocks = (greedy, 1, BLOCKS, Ask::Block(BLOCKED_US));
        let small = Ask::echo(20, 20);
        for (caller, tasks, calls, ask) in
            [blocks, (greedy, FLOOD, BESIDE, small), (honest, 1, BESIDE, small)]
        {
            let client = self.client(caller)?;
            for _ in 0..tasks {
                let client = client.clone();
                self.scheduler.tasks.add(client.process, async move {
                    for _ in 0..calls {
                        let failure = client.call(address, TRY, ask).await;
                        if let Some(status) = failure.filter(|one| caller != greedy || !is_overload(one)) {
                            client.oracle.fail(format!("a call beside many others failed: {status}"));
                        }
                    }
                });
            }
        }
        self.ends_within(greed, began + TRY + QUIET)
    }

    /// Checks that all calls and handlers end by the time limit.
    fn ends_within(&mut self, greed: &Greed, limit: Time) -> Checked {
        let why = "handlers that greedy peers held do not end";
        self.by(limit, why, |scheduler| scheduler.tasks.len() == 0)?;
        self.has_handlers_by(limit, greed.server, 0, why)?;
        self.count_credits()
    }
}

fn is_refusal(status: &Status) -> bool {
    status.code() == Code::ResourceExhausted
        && !status.may_have_run()
        && ["one peer's", "one host's"]
            .iter()
            .any(|whose| status.message().contains(&format!("{whose} budget of running handlers")))
}

/// Returns true if a status reports that a call exceeds the capacity of a small node.
fn is_overload(status: &Status) -> bool {
    matches!(status.code(), Code::ResourceExhausted | Code::DeadlineExceeded)
}

fn is_out_of_memory(status: &Status) -> bool {
    status.code() == Code::ResourceExhausted
        && !status.may_have_run()
        && status.message().contains("one peer's budget of bytes of decoded arguments")
}
