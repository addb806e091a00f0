//! The end of calls that outlast the grace period of their node.
//!
//! A call that runs, or whose reply waits for room, ends by a small reply while the session is still open, so that its
//! caller learns the reason. The handlers of one-way calls, which have no reply, end with them.

use super::Dispatch;
use crate::server::Failure;
use crate::server::caller::Caller;
use crate::status::reason::Reason;
use crate::status::{Code, Status};
use trunkline_transport::Transport;

impl Dispatch {
    /// Ends all calls because the grace period of this node is over. Returns true if there was one with a reply.
    #[cold]
    pub(crate) fn end_all(&mut self, transport: &mut Transport) -> bool {
        let waiting = self.replies.take_all();
        let mut has_told = !waiting.is_empty();
        for reply in waiting {
            // Items that the peer does not take would keep the reply.
            let caller = Caller { overtakes: true, ..reply.caller };
            self.reply(transport, caller, Err(Failure::Node(outlasted("its reply was taken"))), None);
        }
        let running = self.running.iter().map(|(task, running)| (*task, running.caller));
        for (task, caller) in running.collect::<Vec<_>>() {
            has_told |= !caller.one_way;
            self.fail(
                transport,
                task,
                outlasted(if caller.streams.any() { "the stream" } else { "the call" }),
            );
        }
        has_told
    }
}

/// Returns the status of a call that the grace period of this node has cut.
fn outlasted(what: &str) -> Status {
    let text = format!("the server shuts down, and its grace period ended before {what}");
    Status::ran(Code::Unavailable, text).because(Reason::Draining)
}
