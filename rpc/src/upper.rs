//! The RPC half of a poller: takes work from its queues, calls and dispatches, runs tasks.
//!
//! It lives on the poller's thread, and only that thread calls it. The state of a call is in
//! `client::Table` (calls made here) or `server::Dispatch` (calls that run here); this file only routes.
//! It never blocks and never reads a clock: the carrier passes the time in.

use crate::budgets::Budgets;
use crate::client::Table;
use crate::context::PollerContext;
use crate::executor::{Ready, TaskId, Tasks, Turn};
use crate::frame::{FrameError, Header, NOBODY, Unread};
use crate::inbox::{Inbox, Work};
use crate::on_poller::OnPoller;
use crate::server::{Dispatch, MethodNumbers, Service};
use std::mem;
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
    /// An empty list, for its room.
    woken: Vec<TaskId>,
    table: Table,
    dispatch: Dispatch,
    tasks: Tasks,
    /// It has reported that its handlers have ended.
    is_drained: bool,
}

impl RpcPoller {
    pub(crate) fn new(
        index: PollerIndex,
        inbox: Arc<Inbox>,
        (services, numbers): (&[Service], &MethodNumbers),
        clock: Clock,
        budgets: &Budgets,
    ) -> Self {
        let _here = OnPoller::enter(inbox.lifecycle());
        let context = PollerContext::new(index, clock);
        let ready = Ready::new(Arc::clone(&inbox));
        let (handlers, arguments) = (budgets.handlers(index), budgets.arguments(index));
        let shares = (handlers, arguments, budgets.waiting_replies(index));
        let dispatch = Dispatch::new(services, numbers, &context, shares, &inbox);
        Self {
            inbox,
            context,
            ready,
            woken: Vec::new(),
            table: Table::new(budgets.calls(index), budgets.most_decoded),
            dispatch,
            tasks: Tasks::default(),
            is_drained: false,
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
                    self.table.start(carrier, submission.of_any(), |buffer| self.inbox.rest(buffer));
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
        let mut woken = mem::take(&mut self.woken);
        self.ready.take_woken(&mut woken);
        for _ in 0..count {
            let Some(task) = self.ready.pop() else { break };
            self.poll(carrier, task);
        }
        let any = count > 0 || !woken.is_empty();
        woken.drain(..).for_each(|task| self.poll(carrier, task));
        self.woken = woken;
        any
    }

    fn poll(&mut self, carrier: &mut dyn Carrier, task: TaskId) {
        if task.table == TaskId::SPAWNED {
            self.inbox.occupant().task();
            self.tasks.poll(task.slot);
        } else {
            self.dispatch.poll(carrier, task);
        }
    }

    /// A message that is not a frame, or one of which too much is unknown: who waits for an answer gets one.
    fn unread(&mut self, carrier: &mut dyn Carrier, from: Origin, message: &[u8], error: FrameError) {
        match Header::unread(message) {
            Some(Unread::Request { call, one_way }) => {
                self.dispatch.refuse(carrier, from, (call, one_way), error);
            }
            Some(Unread::Reply { call }) => self.table.unread(from.peer, call, error),
            // Not a warning, because a peer could fill the log with them.
            None => {
                tracing::debug!(peer = ?from.peer, %error, "a message that is not an RPC frame was dropped");
            }
        }
    }

    /// Whether the node drains, and this poller's handlers have ended since.
    fn has_drained(&self) -> bool {
        !self.is_drained && self.inbox.lifecycle().is_draining() && self.dispatch.len() == 0
    }

    fn report_drained(&mut self) {
        if self.has_drained() {
            self.is_drained = true;
            self.inbox.lifecycle().poller_drained();
        }
    }
}

impl Upper for RpcPoller {
    type Here = (Turn, OnPoller);

    fn enter(&self) -> Self::Here {
        (self.ready.enter(), OnPoller::enter(self.inbox.lifecycle()))
    }

    fn message(&mut self, carrier: &mut dyn Carrier, from: Origin, message: Message) {
        let (header, encoded) = match Header::parse(message.as_slice()) {
            Ok(parsed) => parsed,
            Err(error) => {
                return self.unread(carrier, from, message.as_slice(), error);
            }
        };
        match header {
            Header::Request(request) => {
                self.dispatch.request(carrier, from, request, message, encoded, &self.ready);
            }
            Header::Reply { call, code, by, number } => {
                number.into_iter().for_each(|number| self.table.learn(from, number));
                self.table.reply(from.peer, (call, code, by), message, encoded);
            }
            Header::Number { number, .. } => self.table.learn(from, number),
            Header::Cancel { call } => self.dispatch.cancel(from, call),
        }
        self.inbox.occupant().nobody();
    }

    fn given_up(&mut self, from: Origin, frame: &[u8], bytes: usize) {
        // The sender of a request knows.
        if let Some(Unread::Reply { call }) = Header::unread(frame) {
            self.table.given_up(from.peer, call, bytes);
        }
        self.inbox.occupant().nobody();
    }

    fn sent(&mut self, carrier: &mut dyn Carrier, token: Token, outcome: SendOutcome) {
        if token != NOBODY {
            self.table.sent(carrier, token, outcome);
        }
    }

    fn peer(&mut self, carrier: &mut dyn Carrier, peer: PeerKey, event: PeerEvent) {
        match event {
            PeerEvent::Up { pollers, .. } => self.table.up(peer, pollers),
            PeerEvent::Down { cause } => {
                self.table.down(carrier, peer, cause);
                self.dispatch.down(peer);
            }
        }
        self.inbox.occupant().nobody();
    }

    fn run(&mut self, carrier: &mut dyn Carrier) -> bool {
        let took = self.take_work(carrier);
        let ran = self.run_ready(carrier);
        let expired = self.table.expire(carrier) | self.dispatch.expire(carrier.now());
        let replied = self.dispatch.send_waiting(carrier);
        let admitted = self.table.admit(carrier, |buffer| self.inbox.rest(buffer));
        self.inbox.occupant().nobody();
        self.report_drained();
        took | ran | expired | replied | admitted
    }

    fn next_timer(&self) -> Option<Time> {
        [self.table.next_timer(), self.dispatch.next_deadline()].into_iter().flatten().min()
    }

    fn is_ready(&self) -> bool {
        self.inbox.has_work()
            || !self.ready.is_empty()
            || self.context.calls().has_work()
            || self.table.is_ready()
            || self.has_drained()
    }

    fn shutdown(&mut self, _: &mut dyn Carrier) {
        // Already done, unless the node ends because another poller has panicked.
        self.inbox.lifecycle().begin_end();
        self.table.close_to_outside();
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
            budgets: self.dispatch.budgets().into_iter().chain([self.table.budget()]).collect(),
        }
    }
}

impl Drop for RpcPoller {
    fn drop(&mut self) {
        let _here = OnPoller::enter(self.inbox.lifecycle());
        self.inbox.close();
        if !self.is_drained {
            let lifecycle = self.inbox.lifecycle();
            if self.dispatch.len() == 0 { lifecycle.poller_drained() } else { lifecycle.poller_cut() }
        }
        // A poller may end without a shutdown; nobody knows then whether its calls have run.
        self.table.close();
        self.dispatch.close();
        self.inbox.occupant().task();
        self.tasks.close();
        // Now, while calls that it waits for are refused: nobody would make them.
        self.dispatch.drop_services();
        self.inbox.occupant().nobody();
    }
}

#[cfg(test)]
mod tests;
