//! Handles replies and items that were queued but could not be sent. Their callers get a small reply instead.

use super::Dispatch;
use crate::server::Failure;
use crate::server::caller::{Caller, Key};
use crate::status::Status;
use crate::wire::name::Streams;
use trunkline_transport::{Origin, PeerDown, Transport};

impl Dispatch {
    /// Replaces the reply of a handler that has ended.
    #[cold]
    pub(crate) fn reply_not_sent(
        &mut self,
        transport: &mut Transport,
        to: Origin,
        call: u64,
        cause: PeerDown,
    ) {
        let failure = Failure::Node(Status::not_sent("the reply", cause));
        self.reply(transport, of_ended(Key::new(to, call)), Err(failure), None);
    }

    /// Ends a handler's stream. The handler may have ended after it sent the item. The reply overtakes the frames behind the
    /// item, because the caller would treat the gap as a protocol violation.
    #[cold]
    pub(crate) fn item_not_sent(
        &mut self,
        transport: &mut Transport,
        to: Origin,
        call: u64,
        cause: PeerDown,
    ) {
        let key = Key::new(to, call);
        let mut caller = of_ended(key);
        if let Some(task) = self.by_key.get(&key).copied()
            && let Some(running) = self.running.get(&task).filter(|running| running.stream.is_some())
        {
            caller = running.caller;
            self.drop_task(transport.now(), task);
        }
        let failure = Failure::Node(Status::not_sent("an item of the stream", cause));
        self.reply(transport, Caller { overtakes: true, ..caller }, Err(failure), None);
    }
}

/// Returns the caller of a call that has ended and may have had a stream.
fn of_ended(key: Key) -> Caller {
    Caller { one_way: false, streams: Streams::Both, ..Caller::of_one_way(key) }
}
