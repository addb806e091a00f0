//! A call of a balanced channel: an attempt that fails without having run is followed by one at another server.
//!
//! The arguments are kept until the call ends. Nothing here waits: the next attempt begins when the future of the call is
//! polled and finds that the last one has failed.

use super::new_call::check_inbox;
use crate::call::{Outcome, Submission, too_many};
use crate::client::routes::{Balanced, Chosen, Tried};
use crate::executor::inbox::{Inbox, Work};
use crate::status::Status;
use crate::status::reason::{Origin, Reason};
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use trunkline_machine::mutant;
use trunkline_machine::rings::cell::Getter;
use trunkline_verbs::{Clock, Time};

/// The last cause of a call that may have run and was not made again. `Status` says that it may have run.
const NOT_REPEATED: &str = "no other server was tried, because only #[idempotent] methods are repeated";

/// The attempts at one call.
#[derive(Debug)]
pub(super) struct Attempts {
    balance: Arc<Balanced>,
    clock: Clock,
    /// The call without its completion, to be made again.
    call: Submission<()>,
    tried: Tried,
    /// Attempt in progress; `None` once the call has ended.
    current: Option<(Chosen, Getter<Outcome>)>,
    /// True if an earlier attempt may have run.
    may_have_run: bool,
    /// Last refusal by a server. It says more than the failure to reach another one.
    refusal: Option<Status>,
}

impl Attempts {
    /// Makes the first attempt at a call.
    ///
    /// # Errors
    /// The inbox is full.
    pub(super) fn begin(
        balance: &Arc<Balanced>,
        clock: &Clock,
        call: Submission<()>,
        inbox: &Inbox,
    ) -> Result<Self, Status> {
        let (balance, clock, tried) =
            (Arc::clone(balance), clock.clone(), Tried::new(call.connect, call.method.service.name));
        let mut attempts =
            Self { balance, clock, call, tried, current: None, may_have_run: false, refusal: None };
        match attempts.make(inbox, attempts.clock.now()) {
            Ok(true) => Ok(attempts),
            // The first attempt always has a server.
            Ok(false) | Err(()) => Err(too_many(Inbox::DEPTH)),
        }
    }

    /// Makes the next attempt. Returns false if there is no server for it.
    fn make(&mut self, inbox: &Inbox, now: Time) -> Result<bool, ()> {
        let Some(chosen) = self.balance.choose(&mut self.tried, now) else { return Ok(false) };
        let (setter, getter) = inbox.cell();
        let (server, route) = chosen.to;
        let submission = Submission { server, route, ..self.call.copy(inbox.buffer(), Some(setter)) };
        self.current = Some((chosen, getter));
        if inbox.push(Work::Call(submission)).is_err() {
            self.give_up();
            return Err(());
        }
        Ok(true)
    }

    /// Polls the attempt in progress, and makes the next one if that has failed in a way that allows it.
    pub(super) fn poll(&mut self, context: &mut Context<'_>, inbox: &Inbox) -> Poll<Outcome> {
        loop {
            let Some((_, getter)) = &mut self.current else { return Poll::Pending };
            let Poll::Ready(outcome) = Pin::new(getter).poll(context) else {
                return inbox.lifecycle().pending();
            };
            let outcome = outcome.unwrap_or_else(|_| Err(super::shut_down()));
            let now = self.clock.now();
            if let Some((chosen, getter)) = self.current.take() {
                inbox.rest_cell(getter);
                self.balance.ended(&chosen, outcome.as_ref().map(|_| ()), now);
            }
            let status = match outcome {
                Ok(response) => return Poll::Ready(Ok(response)),
                Err(status) => status,
            };
            let is_over = self.call.deadline <= now || check_inbox(inbox).is_err();
            let ended = if is_over {
                Err(status)
            } else if self.allows_another(&status) {
                self.make_another(inbox, now, status)
            } else {
                Err(self.without_repeat(status, now))
            };
            match ended {
                Ok(may_have_run) => self.may_have_run |= may_have_run,
                Err(status) => return Poll::Ready(Err(self.last_of(status))),
            }
        }
    }

    /// Returns the status of the call, whose last attempt ended with this one.
    fn last_of(&mut self, status: Status) -> Status {
        let is_away = !status.may_have_run() && status.reason() == Some(Reason::Unreachable);
        let status = self.refusal.take().filter(|_| is_away).unwrap_or(status);
        if self.may_have_run { status.after_run() } else { status }
    }

    /// Makes another attempt if there is a server for it and the budget allows it. Returns true if the last one may have
    /// run.
    ///
    /// # Errors
    /// Returns the status of the call, which ends.
    fn make_another(&mut self, inbox: &Inbox, now: Time, status: Status) -> Result<bool, Status> {
        self.tried.refused(&status);
        // A server that leaves is no sign of overload, a call that has not left loads none, and each server gets one attempt
        // at most, unless the call waits again.
        let is_free = !status.may_have_run()
            && !self.tried.has_waited()
            && match status.reason() {
                Some(Reason::Draining) => true,
                Some(Reason::Unreachable) => status.origin() == Origin::Local,
                _ => false,
            };
        if !is_free && !self.balance.take_retry() {
            return Err(self.balance.without_retry(status, &self.tried, now));
        }
        if self.make(inbox, now) == Ok(true) {
            let may_have_run = status.may_have_run();
            if !may_have_run && status.origin() == Origin::Peer {
                self.refusal = Some(status);
            }
            return Ok(may_have_run);
        }
        if !is_free {
            self.balance.return_retry();
        }
        Err(status)
    }

    /// Returns the status of a call that is not made again. It names the rule if another server would have got the call, had
    /// its method been idempotent.
    fn without_repeat(&self, status: Status, now: Time) -> Status {
        let is_lost = status.origin() != Origin::Handler
            && status.may_have_run()
            && matches!(status.reason(), Some(Reason::Unreachable | Reason::Draining));
        if is_lost && self.balance.has_another(&self.tried, now) {
            status.with_cause(NOT_REPEATED)
        } else {
            status
        }
    }

    /// Returns true if another server may do better, and the call cannot run twice unless that does no harm.
    fn allows_another(&self, status: &Status) -> bool {
        if status.origin() == Origin::Handler {
            return false;
        }
        if status.may_have_run() {
            let may_run_twice = self.call.method.idempotent || mutant!(calls_that_may_have_run_move_on);
            return may_run_twice && matches!(status.reason(), Some(Reason::Unreachable | Reason::Draining));
        }
        match status.reason() {
            Some(Reason::Unreachable | Reason::Draining) => true,
            // This node's own limits are the same for every server.
            Some(Reason::Overloaded) => status.origin() == Origin::Peer,
            _ => false,
        }
    }

    /// Gives the call up. Returns true if an attempt was in progress.
    pub(super) fn give_up(&mut self) -> bool {
        // The getter is dropped first: a sweep finds the calls whose getter is gone.
        let current = mem::take(&mut self.current);
        if let Some((chosen, _)) = &current {
            self.balance.given_up(chosen);
        }
        current.is_some()
    }
}
