//! The RPC half of a poller: takes work from its queues, calls and dispatches, runs tasks.
//!
//! It lives on the poller's thread, and only that thread calls it. The state of a call is in
//! `client::Table` (calls made here) or `server::Dispatch` (calls that run here); this file only routes.
//! It never blocks and never reads a clock: the carrier passes the time in.

use crate::budgets::Budgets;
use crate::client::Table;
use crate::context::PollerContext;
use crate::executor::{Ready, TaskId, Tasks};
use crate::frame::{Header, NOBODY};
use crate::inbox::{Inbox, Work};
use crate::server::{Dispatch, Service};
use std::sync::Arc;
use trunkline_transport::ledger::UpperLedger;
use trunkline_transport::{
    Carrier, Message, Origin, PeerEvent, PeerKey, PollerIndex, SendOutcome, Token, Upper,
};
use trunkline_verbs::{Clock, Time};

/// Most calls taken from each queue in one turn, so that messages do not wait for long.
const TURN: usize = 256;

#[derive(Debug)]
pub(crate) struct RpcPoller {
    inbox: Arc<Inbox>,
    context: PollerContext,
    ready: Arc<Ready>,
    table: Table,
    dispatch: Dispatch,
    tasks: Tasks,
}

impl RpcPoller {
    pub(crate) fn new(
        index: PollerIndex,
        inbox: Arc<Inbox>,
        services: &[Service],
        clock: Clock,
        budgets: &Budgets,
    ) -> Self {
        let context = PollerContext::new(index, clock);
        let ready = Ready::new(Arc::clone(&inbox));
        let dispatch = Dispatch::new(services, &context, budgets.handlers(index));
        Self {
            inbox,
            context,
            ready,
            table: Table::new(budgets.calls(index)),
            dispatch,
            tasks: Tasks::default(),
        }
    }

    /// Calls in flight, and handlers that run.
    pub(crate) fn sizes(&self) -> (usize, usize) {
        (self.table.len(), self.dispatch.len())
    }

    fn take_work(&mut self, carrier: &mut dyn Carrier) -> bool {
        let mut any = false;
        for _ in 0..TURN {
            let Some(work) = self.inbox.pop() else { break };
            any = true;
            match work {
                Work::Call(submission) => {
                    self.table.start(carrier, submission, |buffer| self.inbox.rest(buffer));
                }
                Work::Spawn(spawn) => self.tasks.add(spawn(&self.context), &self.ready),
            }
        }
        let local = self.context.calls();
        for _ in 0..TURN {
            let Some(submission) = local.pop() else { break };
            any = true;
            self.table.start(carrier, submission, |buffer| local.spare().rest(buffer));
        }
        // Both are read, so that neither flag stays set.
        let sweep = local.take_sweep() | self.inbox.take_sweep();
        if sweep {
            self.table.sweep(carrier);
        }
        any | sweep
    }

    fn run_ready(&mut self, carrier: &mut dyn Carrier) -> bool {
        // Tasks that are woken meanwhile wait for the next turn.
        let count = self.ready.len();
        for _ in 0..count {
            let Some(task) = self.ready.pop() else { break };
            if task.table == TaskId::SPAWNED {
                self.tasks.poll(task.slot);
            } else {
                self.dispatch.poll(carrier, task);
            }
        }
        count > 0
    }
}

impl Upper for RpcPoller {
    fn message(&mut self, carrier: &mut dyn Carrier, from: Origin, message: Message) {
        let (header, encoded) = match Header::parse(message.as_slice()) {
            Ok(parsed) => parsed,
            Err(error) => {
                // Not a warning, because a peer could fill the log with them.
                tracing::debug!(peer = ?from.peer, %error, "a message that is not an RPC frame was dropped");
                return;
            }
        };
        match header {
            Header::Request(request) => {
                self.dispatch.request(carrier, from, request, message, encoded, &self.ready);
            }
            Header::Reply { call, code, reason } => {
                self.table.reply(from.peer, (call, code, reason), message, encoded);
            }
            Header::Cancel { call } => self.dispatch.cancel(from, call),
        }
    }

    fn sent(&mut self, _: &mut dyn Carrier, token: Token, outcome: SendOutcome) {
        if token != NOBODY {
            self.table.sent(token, outcome);
        }
    }

    fn peer(&mut self, _: &mut dyn Carrier, peer: PeerKey, event: PeerEvent) {
        match event {
            PeerEvent::Up { pollers, .. } => self.table.up(peer, pollers),
            PeerEvent::Down { cause } => {
                self.table.down(peer, cause);
                self.dispatch.down(peer);
            }
        }
    }

    fn run(&mut self, carrier: &mut dyn Carrier) -> bool {
        let took = self.take_work(carrier);
        let ran = self.run_ready(carrier);
        let expired = self.table.expire(carrier) | self.dispatch.expire(carrier.now());
        took | ran | expired
    }

    fn next_timer(&self) -> Option<Time> {
        [self.table.next_deadline(), self.dispatch.next_deadline()].into_iter().flatten().min()
    }

    fn is_ready(&self) -> bool {
        self.inbox.has_work() || !self.ready.is_empty() || self.context.calls().has_work()
    }

    fn shutdown(&mut self, _: &mut dyn Carrier) {
        self.table.close();
    }

    fn is_drained(&self) -> bool {
        self.dispatch.len() == 0
    }

    fn ledger(&self) -> UpperLedger {
        let (calls, handlers) = self.sizes();
        UpperLedger {
            calls,
            handlers,
            slots: self.dispatch.slots(),
            has_timer: self.next_timer().is_some(),
            budgets: vec![self.dispatch.budget(), self.table.budget()],
        }
    }
}

impl Drop for RpcPoller {
    fn drop(&mut self) {
        self.inbox.close();
        // A poller may end without a shutdown; nobody knows then whether its calls have run.
        self.table.close();
        self.dispatch.close();
        self.tasks.close();
    }
}

#[cfg(test)]
mod tests;
