//! Streams of running calls. Charges streams to their peers, and passes the callers' frames to the streams.

use super::Dispatch;
use crate::executor::TaskId;
use crate::node::budgets::{ARGUMENTS, DECODED_BYTES};
use crate::server::caller::{Caller, Key};
use crate::server::{ArgumentMemory, Failure};
use crate::status::reason::Reason;
use crate::status::{Code, Status};
use crate::stream::{Address, CallStream, Item, MOST_IN_REPLY, Misuse, first_charge};
use crate::wire::frame::StreamPart;
use std::rc::Rc;
use std::sync::Arc;
use trunkline_transport::{Destination, Origin, PeerKey, Transport};
use trunkline_verbs::Time;

/// Maximum size of the headers of a reply, in bytes, without metadata.
const HEADERS_BYTES: usize = 64;

impl Dispatch {
    /// Returns the caller's peer for each running handler, and true if the call streams items.
    pub(crate) fn callers(&self) -> impl Iterator<Item = (PeerKey, bool)> {
        let callers = self.running.values().map(|running| &running.caller);
        callers.map(|caller| (caller.key.peer, caller.streams.has_client_items()))
    }

    /// Charges the stream of a call, if any, to the call's peer.
    #[inline]
    pub(super) fn admit_stream(&mut self, now: Time, caller: &Caller) -> Result<(), Status> {
        if caller.streams.any() { self.charge_stream(now, caller) } else { Ok(()) }
    }

    #[cold]
    fn charge_stream(&mut self, now: Time, caller: &Caller) -> Result<(), Status> {
        if let Some(earlier) = self.by_key.get(&caller.key).copied() {
            // Both calls have the same number and end with one reply.
            self.ended(caller.key.peer, caller.table);
            self.drop_counted(now, earlier, Code::Aborted);
            return Err(Misuse::SAME_NUMBER.status());
        }
        if self.arguments.recharge(caller.key.peer, 0, first_charge(caller.streams)) {
            return Ok(());
        }
        self.ended(caller.key.peer, caller.table);
        let text = format!(
            "the caller's streams and arguments take all of its {ARGUMENTS} (setting {DECODED_BYTES} of the server)"
        );
        Err(Status::not_run(Code::ResourceExhausted, text).because(Reason::Overloaded))
    }

    /// Creates the stream of an admitted call.
    #[cold]
    pub(super) fn open(&self, transport: &Transport, caller: &Caller) -> Arc<CallStream> {
        let Key { peer, session, poller, call } = caller.key;
        let address =
            Address { peer, destination: Destination::Poller(poller), session: Some(session), call };
        let charged = first_charge(caller.streams);
        // The reply also contains the metadata for the start and the end of the response.
        let others = 2 * self.most_metadata + HEADERS_BYTES;
        let most = transport.max_message_to(peer).saturating_sub(others).min(MOST_IN_REPLY);
        self.current.set_most_in_reply(most);
        CallStream::of_server(Arc::clone(&self.inbox) as _, caller.streams, address, charged, most)
    }

    /// Handles a frame that a caller sent for its stream.
    pub(crate) fn stream_frame(
        &mut self,
        transport: &mut Transport,
        from: Origin,
        call: u64,
        part: StreamPart,
        item: Item<'_>,
    ) {
        let Some(task) = self.by_key.get(&Key::new(from, call)).copied() else { return };
        let Some(running) = self.running.get(&task) else { return };
        let charge = |peer, from, to| self.arguments.recharge(peer, from, to);
        let taken = match &running.stream {
            Some(stream) => stream.frame(transport.now(), part, item, &charge),
            None => Err(Misuse::NO_STREAM.status()),
        };
        if let Err(status) = taken {
            self.fail(transport, task, status);
        }
    }

    /// Ends a caller's stream because this node had no memory for a large item in time.
    pub(crate) fn stream_gap(&mut self, transport: &mut Transport, from: Origin, call: u64, bytes: usize) {
        let Some(task) = self.by_key.get(&Key::new(from, call)).copied() else { return };
        if self.running.get(&task).is_some_and(|running| running.stream.is_some()) {
            let text = format!("the server had no memory free in time for an item of {bytes} bytes");
            self.fail(
                transport,
                task,
                Status::ran(Code::ResourceExhausted, text).because(Reason::Overloaded),
            );
        }
    }

    /// Ends the stream of a running call whose number the caller reused for another call.
    #[cold]
    pub(super) fn end_replaced(&mut self, transport: &mut Transport, earlier: TaskId) {
        if self.running.get(&earlier).is_some_and(|running| running.stream.is_some()) {
            self.fail(transport, earlier, Misuse::SAME_NUMBER.status());
        }
    }

    /// Ends a running call with a status.
    pub(super) fn fail(&mut self, transport: &mut Transport, task: TaskId, status: Status) {
        let caller = self.running.get(&task).map(|running| running.caller);
        self.drop_task(transport.now(), task);
        if let Some(caller) = caller {
            self.reply(transport, caller, Err(Failure::Node(status)), None);
        }
    }

    /// Returns the memory budget to which streams are charged.
    pub(crate) fn memory(&self) -> &Rc<ArgumentMemory> {
        &self.arguments
    }
}
