//! Peers at their budgets: refused by name, while others are served.

use super::{QUIET, Run, TRY};
use crate::node::HANDLERS;
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;
use trunkline::{Code, Status};

/// Time limit of the calls that hold handlers.
const HELD: Duration = Duration::from_millis(200);
/// Calls beyond the limit.
const BEYOND: usize = 2;

impl Run {
    /// A caller holds all handlers that it may; more calls of it are refused, and another's are not.
    pub(super) fn one_is_greedy(&mut self) -> bool {
        let (server, greedy, honest) = (0, 1, self.nodes.len() - 1);
        let address = self.nodes[server].address;
        let Some(client) = self.client(greedy) else { return self.fail("a node is not running") };
        self.scheduler.run_until(self.scheduler.now() + QUIET, |_| false);
        let refused = Rc::new(Cell::new(0));
        let began = self.scheduler.now();
        for _ in 0..HANDLERS.per_peer + BEYOND {
            let (client, refused) = (client.clone(), Rc::clone(&refused));
            self.scheduler.tasks.add(client.process, async move {
                match client.hang_for(address, HELD).await {
                    Some(status) if is_refusal(&status) => refused.set(refused.get() + 1),
                    Some(status) if status.code() == Code::DeadlineExceeded => {}
                    other => client.oracle.fail(format!("a call that holds a handler ended with {other:?}")),
                }
            });
        }
        if !self.scheduler.run_until(began + HELD / 2, |_| refused.get() == BEYOND) {
            return self.fail("a caller may hold more handlers than its budget allows");
        }
        self.count_credits();
        if honest != greedy {
            let Some(client) = self.client(honest) else { return self.fail("a node is not running") };
            let served = Rc::new(Cell::new(false));
            let noted = Rc::clone(&served);
            self.scheduler.tasks.add(client.process, async move {
                for wait_us in [0, 500] {
                    if let Some(status) = client.late_echo_of(address, TRY, (100, 100), wait_us).await {
                        client.oracle.fail(format!("a call failed while another peer is greedy: {status}"));
                    }
                }
                noted.set(true);
            });
            if !self.scheduler.run_until(began + HELD, |_| served.get()) {
                return self.fail("a call waits for a peer that is at its budget");
            }
        }
        let limit = began + HELD + QUIET;
        if !self.scheduler.run_until(limit, |scheduler| scheduler.tasks.len() == 0)
            || !self.has_handlers_by(server, 0, limit)
        {
            return self.fail("handlers that a greedy peer held do not end");
        }
        self.count_credits();
        self.is_unbroken()
    }
}

fn is_refusal(status: &Status) -> bool {
    status.code() == Code::ResourceExhausted
        && !status.may_have_run()
        && status.message().contains("one peer's budget of running handlers")
}
