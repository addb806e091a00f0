//! Counters of requests per method.

use super::Dispatch;
use crate::executor::TaskId;
use crate::observe::counted::{CallFailure, MethodCounters};
use crate::server::Failure;
use crate::server::caller::{Caller, NOT_SERVED};
use crate::server::method::Outcome;
use crate::status::reason::Reason;
use crate::status::{Code, Status};
use crate::wire::frame::MethodRef;
use trunkline_transport::{LogLimit, PeerKey, SendError, Transport};
use trunkline_verbs::Time;

/// Rate limits for log lines about failed calls. Panics have a separate limit from errors of handlers.
#[derive(Debug, Default)]
pub(super) struct FailureLog {
    pub(super) one_way: LogLimit,
    panics: LogLimit,
    errors: LogLimit,
}

impl Dispatch {
    pub(super) fn counters(&self, table: u32) -> &MethodCounters {
        self.served(table).map_or(&self.others, |served| &served.counters)
    }

    /// Returns the index of the method named in a refused request.
    #[cold]
    pub(super) fn refused_method(&self, method_ref: MethodRef) -> u32 {
        let table = match method_ref {
            MethodRef::Method(method) => self.index.get(&method.method).map(|(table, _)| *table),
            MethodRef::Number(number) => self.by_number.get(usize::from(number)).copied().flatten(),
        };
        table.unwrap_or(NOT_SERVED)
    }

    /// Replies to a call whose handler has not started.
    #[cold]
    #[inline(never)]
    pub(super) fn refuse_call(&mut self, transport: &mut Transport, caller: Caller, status: Status) {
        let failure = Failure::Node(status);
        if !failure.is_of_drain() {
            self.counters(caller.table).refused();
        }
        self.reply(transport, caller, Err(failure), None);
    }

    /// Counts the failure of a call, and logs it if the handler failed. A request refused by a draining node does not count
    /// as a call to its method, because the caller may send it elsewhere.
    #[cold]
    pub(super) fn failed(&mut self, now: Time, caller: &Caller, failure: &Failure) {
        let (peer, table) = (caller.key.peer, caller.table);
        match failure {
            failure if failure.is_of_drain() => return,
            Failure::Error(_) => self.count_failed(table, peer, CallFailure::ERROR),
            Failure::Node(status) if !status.may_have_run() => {
                self.counters(table).failed(status.into());
                self.inbox.recorder().refused(self.counters(table), peer, status.into());
            }
            Failure::Handler(status) | Failure::Node(status) => self.count_failed(table, peer, status.into()),
        }
        let name = self.served(table).map(|served| served.name);
        let method = || name.map_or_else(|| "_OTHER".to_owned(), ToString::to_string);
        match failure {
            Failure::Node(status) if status.reason() == Some(Reason::Panicked) => {
                if let Some(suppressed) = self.log.panics.line(now) {
                    tracing::error!(%peer, method = method(), %status, suppressed, "handler panicked");
                }
            }
            Failure::Node(_) => {}
            Failure::Error(_) | Failure::Handler(_) => {
                if let Some(suppressed) = self.log.errors.line(now) {
                    let code = match failure {
                        Failure::Handler(status) => format!("{:?}", status.code()),
                        _ => "error of the method's own type".to_owned(),
                    };
                    tracing::info!(%peer, method = method(), code, suppressed, "handler returned an error");
                }
            }
        }
    }

    /// Counts a call whose reply could not be sent and is replaced by a refusal.
    #[cold]
    pub(super) fn count_unsent(&self, caller: &Caller, error: &SendError) {
        let reason = match error {
            SendError::TooLarge { .. } => Reason::TooLarge,
            SendError::QueueFull(_) => Reason::Overloaded,
            _ => return,
        };
        let failure = CallFailure::because(Code::ResourceExhausted, reason);
        self.count_failed(caller.table, caller.key.peer, failure);
    }

    /// Counts and records the failure of a call.
    #[cold]
    pub(super) fn count_failed(&self, table: u32, peer: PeerKey, failure: CallFailure) {
        let counters = self.counters(table);
        counters.failed(failure);
        self.inbox.recorder().failed(counters, peer, failure, None);
    }

    /// Counts and records a call that failed before its handler started.
    #[cold]
    pub(super) fn count_refused(&self, table: u32, peer: PeerKey, status: &Status) {
        let counters = self.counters(table);
        counters.refused();
        counters.failed(status.into());
        self.inbox.recorder().refused(counters, peer, status.into());
    }

    /// Counts a call whose handler ended in its first poll.
    #[inline]
    pub(super) fn count_ended_at_once(&self, table: u32, peer: PeerKey) {
        let counters = self.counters(table);
        if counters.ended_at_once() {
            self.inbox.recorder().call(counters, peer, 0);
        }
    }

    /// Drops a handler without a reply to its caller, and counts the call.
    pub(super) fn drop_counted(&mut self, now: Time, task: TaskId, code: Code) {
        let peer = self.running.get(&task).map(|running| running.caller.key.peer);
        if let Some(peer) = peer
            && self.drop_task(now, task)
        {
            self.count_failed(task.table, peer, CallFailure::because(code, Reason::Cancelled));
        }
    }
}

/// Returns true if the node was draining and the handler has not run.
#[inline]
pub(super) fn is_of_drain(outcome: &Outcome) -> bool {
    outcome.as_ref().is_err_and(Failure::is_of_drain)
}
