//! Attempts at a call on a balanced channel. If an attempt has not run, another server is tried. A call to an
//! `#[idempotent]` method is also retried if an attempt was lost or failed at its server.
//!
//! The arguments are kept until the call ends. This module never blocks. The next attempt begins when the call's future is
//! polled after an attempt has failed.
//!
//! A hedged call has two attempts in progress. A timer on the call's poller wakes the future to start the second attempt.
//! The first final outcome ends the call and drops the other attempt. If an attempt ends with another outcome, the call
//! waits for the other attempt.

use super::new_call::check_inbox;
use crate::call::{Outcome, Submission, too_many};
use crate::client::routes::{Balanced, Chosen, Tried, is_away, is_fault};
use crate::executor::Sleep;
use crate::executor::inbox::{Inbox, Work};
use crate::status::reason::{Origin, Reason};
use crate::status::{Code, Status};
use std::iter;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use trunkline_machine::mutant;
use trunkline_machine::rings::cell::Getter;
use trunkline_verbs::{Clock, Time};

/// Last cause in the status of a call that may have run and was not retried.
const NOT_REPEATED: &str = "no other server was tried, because only #[idempotent] methods are repeated";

/// An attempt in progress.
type Attempt = (Chosen, Getter<Outcome>);

/// The second attempt of a hedged call, sent if the first has no outcome after a delay.
#[derive(Debug)]
struct Hedge {
    /// Time until the second attempt; `None` once it has passed.
    delay: Option<Sleep>,
    /// The second attempt while it is in progress.
    attempt: Option<Attempt>,
}

/// The attempts at one call.
#[derive(Debug)]
pub(super) struct Attempts {
    balance: Arc<Balanced>,
    clock: Clock,
    /// The call without its completion, kept for further attempts.
    call: Submission<()>,
    tried: Tried,
    /// First or latest attempt, while it is in progress.
    current: Option<Attempt>,
    /// Second attempt of a call that is or may be hedged.
    hedge: Option<Box<Hedge>>,
    /// True if an earlier attempt may have run.
    may_have_run: bool,
    /// True if an earlier attempt failed at its server.
    has_failed: bool,
    /// Last error from a server. It is more specific than a failure to reach another server.
    answer: Option<Status>,
}

impl Attempts {
    /// Starts the first attempt at a call.
    ///
    /// # Errors
    /// Returns a status if the inbox is full.
    pub(super) fn begin(
        balance: &Arc<Balanced>,
        clock: &Clock,
        call: Submission<()>,
        inbox: &Inbox,
    ) -> Result<Self, Status> {
        let (balance, clock, tried) =
            (Arc::clone(balance), clock.clone(), Tried::new(call.connect, call.method.service.name));
        let now = clock.now();
        // Start the timer before the call is queued, so that the poller sees the timer.
        let hedge = balance.hedge_after.and_then(|delay| Hedge::begin(&call, inbox, now + delay));
        let (current, may_have_run, has_failed, answer) = (None, false, false, None);
        let mut attempts =
            Self { balance, clock, call, tried, current, hedge, may_have_run, has_failed, answer };
        // The first attempt always has a server.
        if attempts.make(inbox, now) { Ok(attempts) } else { Err(too_many(Inbox::DEPTH)) }
    }

    /// Starts the next attempt. Returns false if no server is left, or the inbox is full.
    fn make(&mut self, inbox: &Inbox, now: Time) -> bool {
        let chosen = self.balance.choose(&mut self.tried, now);
        self.current = chosen.and_then(|chosen| self.send(inbox, chosen));
        self.current.is_some()
    }

    /// Passes an attempt to the poller. Returns `None` if the inbox is full.
    fn send(&self, inbox: &Inbox, chosen: Chosen) -> Option<Attempt> {
        let (setter, getter) = inbox.cell();
        let (server, route) = chosen.to;
        let connect = self.tried.connect;
        let submission =
            Submission { server, route, connect, ..self.call.copy(inbox.buffer(), Some(setter)) };
        if inbox.push(Work::Call(submission)).is_err() {
            self.balance.given_up(&chosen);
            return None;
        }
        Some((chosen, getter))
    }

    /// Starts the second attempt of a hedged call once its delay has passed. Returns true if an attempt was started.
    fn makes_hedge(&mut self, context: &mut Context<'_>, inbox: &Inbox) -> bool {
        let Some(hedge) = &mut self.hedge else { return false };
        if hedge.delay.as_mut().is_none_or(|delay| Pin::new(delay).poll(context).is_pending()) {
            return false;
        }
        hedge.delay = None;
        let now = self.clock.now();
        let Some((first, _)) = &self.current else { return false };
        if self.call.deadline <= now || check_inbox(inbox).is_err() {
            return false;
        }
        let Some(chosen) = self.balance.choose_hedge(first, &mut self.tried, now) else { return false };
        let Some(attempt) = self.send(inbox, chosen) else {
            self.balance.return_retry();
            return false;
        };
        inbox.lifecycle().counters.hedged.add();
        self.hedge.as_mut().map(|hedge| hedge.attempt.insert(attempt)).is_some()
    }

    /// Returns an attempt that has ended, and true if it is the second attempt of a hedged call.
    fn poll_attempts(&mut self, context: &mut Context<'_>) -> Option<(Attempt, Outcome, bool)> {
        let hedged = self.hedge.as_mut().map(|hedge| &mut hedge.attempt);
        for (attempt, is_hedge) in iter::once((&mut self.current, false)).chain(hedged.map(|at| (at, true))) {
            if let Some((_, getter)) = attempt
                && let Poll::Ready(outcome) = Pin::new(getter).poll(context)
                && let Some(ended) = attempt.take()
            {
                return Some((ended, outcome.unwrap_or_else(|_| Err(super::shut_down())), is_hedge));
            }
        }
        None
    }

    fn is_in_progress(&self) -> bool {
        self.current.is_some() || self.hedge.as_ref().is_some_and(|hedge| hedge.attempt.is_some())
    }

    /// Polls the attempts in progress, and starts another one after a failure that allows it.
    pub(super) fn poll(&mut self, context: &mut Context<'_>, inbox: &Inbox) -> Poll<Outcome> {
        if !self.is_in_progress() {
            return Poll::Pending;
        }
        loop {
            let Some(((chosen, getter), outcome, is_hedge)) = self.poll_attempts(context) else {
                if self.makes_hedge(context, inbox) {
                    continue;
                }
                return inbox.lifecycle().pending();
            };
            let now = self.clock.now();
            inbox.rest_cell(getter);
            self.balance.ended(&chosen, outcome.as_ref().map(|_| ()), now);
            let is_final = |status: &Status| status.origin() == Origin::Handler && !is_failure(status);
            if is_hedge && outcome.as_ref().err().is_none_or(is_final) {
                inbox.lifecycle().counters.hedges_won.add();
            }
            let status = match outcome {
                Ok(response) => {
                    self.drop_other(inbox);
                    return Poll::Ready(Ok(response));
                }
                Err(status) => status,
            };
            let is_over = self.call.deadline <= now || check_inbox(inbox).is_err();
            let ended = if is_over {
                Err(status)
            } else if !self.allows_another(&status) {
                Err(self.without_repeat(status, now))
            } else if self.is_in_progress() {
                self.tried.refused(&status);
                Ok(self.note(status))
            } else {
                self.make_another(inbox, now, status)
            };
            match ended {
                Ok(may_have_run) => self.may_have_run |= may_have_run,
                Err(status) => {
                    self.drop_other(inbox);
                    return Poll::Ready(Err(self.last_of(status)));
                }
            }
        }
    }

    /// Drops the other attempt after one attempt has ended the call.
    fn drop_other(&mut self, inbox: &Inbox) {
        let Some(hedge) = self.hedge.take() else { return };
        let first =
            self.current.take().inspect(|(chosen, _)| self.balance.superseded(chosen, self.clock.now()));
        let second = hedge.attempt.inspect(|(chosen, _)| self.balance.given_up(chosen));
        if let Some((_, getter)) = first.or(second) {
            getter.supersede();
            if !inbox.lifecycle().is_forked() {
                inbox.ask_for_sweep();
            }
        }
    }

    /// Records a failed attempt at a call that continues. Returns true if the attempt may have run.
    fn note(&mut self, status: Status) -> bool {
        self.has_failed |= is_failure(&status);
        let may_have_run = status.may_have_run();
        if status.origin() != Origin::Local {
            self.answer = Some(status);
        }
        may_have_run
    }

    /// Returns the status of a call whose last attempt ended with `status`.
    fn last_of(&mut self, status: Status) -> Status {
        let is_unreached = !status.may_have_run()
            && (status.reason() == Some(Reason::Unreachable) || status.code() == Code::DeadlineExceeded);
        let status = self.answer.take().filter(|_| is_unreached).unwrap_or(status);
        if self.may_have_run { status.after_run() } else { status }
    }

    /// Starts another attempt if a server is left and the budget allows it. Returns true if the last attempt may have run.
    ///
    /// # Errors
    /// Returns the final status of the call.
    fn make_another(&mut self, inbox: &Inbox, now: Time, status: Status) -> Result<bool, Status> {
        self.tried.refused(&status);
        // A retry uses no budget if a draining server refused the attempt, which does not indicate overload, or if the call
        // has not left this node. Each server gets at most one attempt, unless the call waits again.
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
        if self.make(inbox, now) {
            return Ok(self.note(status));
        }
        if !is_free {
            self.balance.return_retry();
        }
        Err(status)
    }

    /// Returns the status of a call that is not retried. A cause is added if the only reason is that the method is not
    /// idempotent.
    fn without_repeat(&self, status: Status, now: Time) -> Status {
        let is_lost = is_away(&status) && status.may_have_run();
        if is_lost && self.balance.has_another(&self.tried, now) {
            status.with_cause(NOT_REPEATED)
        } else {
            status
        }
    }

    /// Returns true if another server may succeed, and repeating the call is safe.
    fn allows_another(&self, status: &Status) -> bool {
        let may_run_twice = self.call.method.idempotent || mutant!(calls_that_may_have_run_move_on);
        if status.may_have_run() && !may_run_twice {
            return false;
        }
        if is_failure(status) {
            // Allow one further attempt, because the arguments may fail at every server.
            let is_first = !self.has_failed && !mutant!(failed_calls_are_not_made_again);
            return is_first || self.is_in_progress();
        }
        // Another server does not help if a limit of this node is reached.
        let has_no_room = status.origin() == Origin::Peer && status.reason() == Some(Reason::Overloaded);
        is_away(status) || has_no_room && !status.may_have_run()
    }

    /// Gives up the call. Returns true if an attempt was in progress.
    pub(super) fn give_up(&mut self) -> bool {
        // Drop the getters before the sweep, which looks for calls with a dropped getter.
        let attempts = [self.current.take(), self.hedge.take().and_then(|hedge| hedge.attempt)];
        let mut any = false;
        for (chosen, getter) in attempts.into_iter().flatten() {
            // Two attempts count as one call.
            if mem::replace(&mut any, true) {
                getter.supersede()
            } else {
                drop(getter)
            }
            self.balance.given_up(&chosen);
        }
        any
    }
}

impl Hedge {
    /// Starts the timer for the second attempt, if the call may be hedged.
    fn begin(call: &Submission<()>, inbox: &Inbox, at: Time) -> Option<Box<Self>> {
        let may_run_twice = call.method.idempotent && !call.one_way;
        let timers = inbox.timers().filter(|_| may_run_twice && at < call.deadline)?;
        Some(Box::new(Self { delay: Some(Sleep::with_timers(timers, at)), attempt: None }))
    }
}

/// Returns true if a call failed at its server and another server may succeed. A call that timed out, at the client or in
/// the handler, is not retried.
fn is_failure(status: &Status) -> bool {
    is_fault(status) && !is_away(status) && status.code() != Code::DeadlineExceeded
}
