//! A call that exceeds a limit, and its final status.

use crate::call::Entry;
use crate::status::reason::Reason;
use crate::status::{Code, Status};
use trunkline_transport::Exhausted;

/// The limit that a call exceeds.
#[derive(Debug, Clone, Copy)]
pub(super) enum NoRoom {
    /// Limit of calls in flight.
    Calls(Exhausted),
    /// Limit of messages that wait to be sent.
    Queue(Exhausted),
}

impl NoRoom {
    /// Returns the status of a call that does not wait.
    pub(super) fn refusal(self, entry: Entry) -> Status {
        Status::not_run(Code::ResourceExhausted, self.told(entry)).because(Reason::Overloaded)
    }

    /// Returns the status of a call whose deadline passed while it waited.
    pub(super) fn expired(self) -> Status {
        let why = self.told(Entry::Waits);
        let text = format!("the deadline passed while the call waited for room: {why}");
        Status::not_run(Code::DeadlineExceeded, text).because(Reason::Expired)
    }

    /// Describes the limit and the remedy.
    fn told(self, entry: Entry) -> String {
        let part = match entry {
            Entry::Reserved => "",
            Entry::Waits | Entry::Tries => {
                ", but for the part that is reserved for calls of handlers and for replies"
            }
        };
        match self {
            Self::Calls(exhausted) => {
                let part = part.strip_suffix(" and for replies").unwrap_or(part);
                format!("{exhausted}{part}; call_limit raises it")
            }
            Self::Queue(exhausted) => {
                let setting = exhausted.name().replace(' ', "_");
                format!("too much waits to be sent: {exhausted}{part}; {setting} raises it")
            }
        }
    }
}
