//! The counters of requests, by method.

use super::{Caller, Dispatch};
use crate::counted::MethodCounters;
use crate::executor::TaskId;
use crate::frame::Asked;
use crate::server::Failure;
use crate::status::{Code, Status};
use trunkline_transport::{Carrier, SendError};
use trunkline_verbs::Time;

/// Stands for the index of a method that is not served.
pub(super) const NOT_SERVED: u32 = u32::MAX;

impl Dispatch {
    /// Returns the counters of a method.
    pub(super) fn counters(&self, table: u32) -> &MethodCounters {
        self.served(table).map_or(&self.others, |served| &served.counters)
    }

    /// Returns the index of the method that a refused request asks for.
    #[cold]
    pub(super) fn refused_method(&self, asked: Asked) -> u32 {
        let table = match asked {
            Asked::Method(method) => self.index.get(&method.method).map(|(table, _)| *table),
            Asked::Number(number) => self.by_number.get(usize::from(number)).copied().flatten(),
        };
        table.unwrap_or(NOT_SERVED)
    }

    /// Replies to a call whose handler is not started.
    #[cold]
    #[inline(never)]
    pub(super) fn refuse_call(&mut self, carrier: &mut dyn Carrier, caller: Caller, status: Status) {
        let failure = Failure::Node(status);
        if !failure.is_of_drain() {
            self.counters(caller.table).refused();
        }
        self.reply(carrier, caller, Err(failure), None);
    }

    /// Counts the failure of a call. A request that a draining node refuses is not a call of its method: the caller may make
    /// it elsewhere.
    pub(super) fn count_failure(&self, table: u32, failure: &Failure) {
        match failure {
            failure if failure.is_of_drain() => {}
            Failure::Error(_) => self.counters(table).failed_by_error(),
            Failure::Handler(status) | Failure::Node(status) => self.counters(table).failed(status.code()),
        }
    }

    /// Counts a call whose reply was not sent and is replaced by a refusal.
    #[cold]
    pub(super) fn count_unsent(&self, table: u32, error: &SendError) {
        if matches!(error, SendError::TooLarge { .. } | SendError::QueueFull(_)) {
            self.counters(table).failed(Code::ResourceExhausted);
        }
    }

    /// Drops a handler whose caller gets no reply.
    pub(super) fn drop_counted(&mut self, now: Time, task: TaskId, code: Code) {
        if self.drop_task(now, task) {
            self.counters(task.table).failed(code);
        }
    }
}
