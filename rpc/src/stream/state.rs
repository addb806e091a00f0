//! The state of one side of a stream, shared by its reader, its writer and its poller.
//!
//! Wakers are woken after the lock is released, because they may run code of the program.

use super::buffer::{Item, ItemBuffer, Next, ReceivedItems};
use super::{
    BATCH, CallEnd, Charge, ENOUGH_BYTES, FIRST, ITEMS_AHEAD, MOST, RETURNED_BYTES, StreamHost, Window,
};
use crate::call::response::Response;
use crate::executor::wakes;
use crate::node::budgets::{ARGUMENTS, DECODED_BYTES};
use crate::node::fork_lock::Lock;
use crate::node::lifecycle::lost_in_child;
use crate::status::reason::Reason;
use crate::status::{Code, Status};
use crate::wire::frame::{DATA_BYTES, Encoded, Header, StreamHeader, StreamPart, send, without_call};
use crate::wire::metadata::{Metadata, ReplyMetadata};
use crate::wire::name::Streams;
use bytes::Bytes;
use std::fmt;
use std::mem;
use std::sync::{Arc, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use trunkline_machine::mutant;
use trunkline_transport::{Destination, Leaves, Outgoing, PeerKey, SendError, SessionNumber, Transport};
use trunkline_verbs::Time;

/// The side of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Client,
    Server,
}

/// Destination of the frames of a stream.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Address {
    pub(crate) peer: PeerKey,
    pub(crate) destination: Destination,
    /// Session for the frames; `None` for the current session.
    pub(crate) session: Option<SessionNumber>,
    pub(crate) call: u64,
}

/// Violation of the stream protocol by a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Misuse(pub(crate) &'static str);

impl Misuse {
    /// A peer sent a stream frame for a call without streams.
    pub(crate) const NO_STREAM: Self = Self("a frame of a stream came for a call without one");
    /// A peer reused the number of a running call.
    pub(crate) const SAME_NUMBER: Self = Self("two calls have the same number");

    /// Returns the status that ends the stream.
    pub(crate) fn status(self) -> Status {
        Status::ran(Code::Internal, format!("the peer broke the protocol of streams: {}", self.0))
            .because(Reason::OtherProtocol)
    }
}

impl From<Misuse> for Status {
    fn from(misuse: Misuse) -> Self {
        misuse.status()
    }
}

/// The result of a flush.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flushed {
    All,
    /// The queue of messages to this peer is full.
    NoRoom(PeerKey),
}

/// The next step of a writer.
#[derive(Debug)]
pub(super) enum Room {
    /// Add items within this window.
    Window(Window),
    /// Wait for a wake-up.
    Wait,
    /// Stop, because all items were sent, the reader was dropped, or the call has ended.
    End,
    /// Stop, because the items cannot be sent.
    Failed(Status),
}

/// The result of a read.
pub(super) enum Read {
    /// The batch contains more items.
    Items,
    /// The writer has finished.
    Finished,
    Failed(Status),
    Wait,
}

/// The result of a stream's timer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expiry {
    /// The deadline of the call has passed.
    Deadline,
    /// The stream was idle for this time.
    Idle(Duration),
    /// The stream continues. Set the timer again, to this time.
    Later(Time),
}

/// Minimum idle limit, so that the timer does not expire continuously.
const SHORTEST_IDLE: Duration = Duration::from_millis(1);

/// Outcome of a call.
type Outcome = Result<Response, Status>;

/// One side of a stream.
pub(crate) struct CallStream {
    owner: Arc<dyn StreamHost>,
    side: Side,
    streams: Streams,
    /// Maximum size of an item in the reply, in bytes; 0 at a client.
    most_in_reply: usize,
    state: Lock<StreamState>,
}

#[derive(Default)]
struct StreamState {
    /// `None` until the request is sent.
    address: Option<Address>,
    /// True if the stream is queued for the poller.
    is_reported: bool,
    /// True if the call has ended.
    is_over: bool,
    /// True if the handler has returned its stream.
    is_accepted: bool,
    /// True if the caller dropped the call.
    is_dropped: bool,
    /// Maximum idle time.
    idle_limit: Option<Duration>,
    /// Deadline of the call, on the client.
    deadline: Time,
    /// Time of the peer's last frame, or the time from which the peer could send a frame.
    arrived: Time,
    /// Status with which this side ends the call.
    aborted: Option<Status>,
    /// The outcome of the call, for the caller.
    outcome: Option<Outcome>,
    /// Metadata received with the response, if any.
    metadata: Option<Box<ReplyMetadata>>,
    /// Work of the caller for the end of the stream.
    after: Option<Box<dyn CallEnd>>,
    /// Bytes charged to the peer.
    charged: usize,
    /// Part of the charged bytes that exceeds the window.
    beyond: usize,
    incoming: Incoming,
    sending: Sending,
}

#[derive(Default)]
struct Incoming {
    items: ReceivedItems,
    /// Part of the window that the peer may still use.
    left: Window,
    window: Window,
    /// Consumed part of the window, to be returned to the peer.
    consumed: Window,
    received: u64,
    /// Size of the largest received item, in bytes.
    largest: usize,
    has_ended: bool,
    /// True if the reader was dropped.
    is_closed: bool,
    /// True if a RESET must be sent to the peer because the reader was dropped.
    resets: bool,
    /// Waker of the reader, or of the caller that waits for the stream.
    waker: Option<Waker>,
}

#[derive(Default)]
struct Sending {
    buffer: ItemBuffer,
    left: Window,
    sent: u64,
    /// True if the reply contains the only item, without ACCEPT, DATA and END.
    is_in_reply: bool,
    /// Metadata for an ACCEPT frame to be sent to the peer.
    accepts: Option<Metadata>,
    /// True if the writer has no more items.
    is_finished: bool,
    has_ended: bool,
    is_reset: bool,
    failure: Option<Status>,
    /// True if the writer waits for the window or for the queue.
    waits: bool,
    waker: Option<Waker>,
}

impl CallStream {
    /// Creates a stream for an outgoing call on the poller of `owner`. The call ends after `idle_limit` without a frame.
    pub(crate) fn of_client(
        owner: Arc<dyn StreamHost>,
        streams: Streams,
        idle_limit: Option<Duration>,
    ) -> Arc<Self> {
        Self::new(owner, Side::Client, streams, None, idle_limit, 0, 0)
    }

    /// Creates a stream for an incoming call on the poller of `owner`. The memory is charged to the call's peer.
    pub(crate) fn of_server(
        owner: Arc<dyn StreamHost>,
        streams: Streams,
        to: Address,
        charged: usize,
        most_in_reply: usize,
    ) -> Arc<Self> {
        Self::new(owner, Side::Server, streams, Some(to), None, charged, most_in_reply)
    }

    /// Returns the maximum size of an item in the reply, in bytes.
    pub(super) fn most_in_reply(&self) -> usize {
        self.most_in_reply
    }

    fn new(
        owner: Arc<dyn StreamHost>,
        side: Side,
        streams: Streams,
        address: Option<Address>,
        idle_limit: Option<Duration>,
        charged: usize,
        most_in_reply: usize,
    ) -> Arc<Self> {
        let state = StreamState {
            address,
            idle_limit: idle_limit.map(|limit| limit.max(SHORTEST_IDLE)),
            deadline: Time::MAX,
            charged,
            incoming: Incoming { left: FIRST, window: FIRST, ..Incoming::default() },
            sending: Sending { left: FIRST, ..Sending::default() },
            ..StreamState::default()
        };
        Arc::new(Self { owner, side, streams, most_in_reply, state: Lock::new(state) })
    }

    /// Returns true if this side receives items.
    pub(crate) fn reads(&self) -> bool {
        match self.side {
            Side::Client => self.streams.has_server_items(),
            Side::Server => self.streams.has_client_items(),
        }
    }

    /// Returns true if this side sends items.
    fn writes(&self) -> bool {
        match self.side {
            Side::Client => self.streams.has_client_items(),
            Side::Server => self.streams.has_server_items(),
        }
    }

    /// Locks the state for code of the program. Returns `None` in a forked child, where a poller of the parent may hold the
    /// lock.
    fn lock_in_program(&self) -> Option<MutexGuard<'_, StreamState>> {
        (!self.owner.is_forked()).then(|| self.state.lock())
    }

    /// Tells the poller to process the stream.
    fn report(self: &Arc<Self>, mut state: MutexGuard<'_, StreamState>) {
        let is_new = !mem::replace(&mut state.is_reported, true);
        drop(state);
        if is_new {
            self.owner.stream_changed(Arc::clone(self));
        }
    }

    /// Allows frames to be sent, because the request has been sent.
    pub(crate) fn opened(self: &Arc<Self>, now: Time, address: Address) {
        let mut state = self.state.lock();
        state.address = Some(address);
        state.arrived = now;
        self.report(state);
    }

    /// Records that the server did not accept the request. Another request follows.
    pub(crate) fn withdrawn(&self) {
        self.state.lock().address = None;
    }

    /// Returns the stream's poller and peer; `None` until the request is sent, and in a forked child.
    pub(super) fn peer(&self) -> Option<(Arc<dyn StreamHost>, PeerKey)> {
        let peer = self.lock_in_program()?.address?.peer;
        Some((Arc::clone(&self.owner), peer))
    }

    /// Returns the maximum memory of one decoded item, in bytes.
    pub(super) fn most_decoded(&self) -> usize {
        self.owner.most_decoded()
    }

    /// Returns true if the request was sent.
    pub(crate) fn is_open(&self) -> bool {
        self.state.lock().address.is_some()
    }

    /// Returns true if the handler has returned its stream.
    pub(crate) fn is_accepted(&self) -> bool {
        self.state.lock().is_accepted
    }

    /// Starts the timer of a call when the request is sent. Returns the expiry time.
    pub(crate) fn begin_timer(&self, now: Time, deadline: Time) -> Option<Time> {
        let mut state = self.state.lock();
        (state.deadline, state.arrived) = (deadline, now);
        let due = state.idle_limit.map_or(deadline, |limit| deadline.min(now + limit));
        (due != Time::MAX).then_some(due)
    }

    /// Determines how an expired timer affects the call.
    pub(crate) fn expiry(&self, now: Time) -> Expiry {
        let mut state = self.state.lock();
        let Some(limit) = state.idle_limit.filter(|_| now < state.deadline) else { return Expiry::Deadline };
        let waits_for_reader = !state.incoming.left.is_open() && !state.incoming.has_ended;
        if state.address.is_none() || waits_for_reader {
            // The peer has not received the request, or must not send items.
            state.arrived = now;
        }
        let due = state.arrived + limit;
        if due <= now { Expiry::Idle(limit) } else { Expiry::Later(due.min(state.deadline)) }
    }

    /// Handles a frame from the peer.
    ///
    /// # Errors
    /// Returns a status if the peer violates the protocol, or if an item exceeds the peer's memory limit.
    pub(crate) fn frame(
        &self,
        now: Time,
        part: StreamPart,
        item: Item<'_>,
        charge: Charge<'_>,
    ) -> Result<(), Status> {
        let mut state = self.state.lock();
        if state.is_over {
            return Ok(());
        }
        if !mutant!(arrivals_leave_the_idle_timer) {
            state.arrived = now;
        }
        let bytes = item.as_slice();
        self.check(state.is_accepted, part, bytes)?;
        let woken = match part {
            StreamPart::Data { number } => {
                state.incoming.check(self.reads(), number)?;
                state.charge_beyond(charge, bytes.len())?;
                state.incoming.item(item)
            }
            StreamPart::End { items } => state.incoming.end(self.reads(), items)?,
            StreamPart::Window { bytes, items } => state.sending.more(bytes, items)?,
            StreamPart::Reset => state.sending.reset(),
            StreamPart::Accept => {
                let initial = Metadata::parse(bytes).map_err(|_| Misuse("its metadata cannot be read"))?;
                if !initial.is_empty() {
                    state.metadata.get_or_insert_default().initial = initial;
                }
                state.is_accepted = true;
                state.incoming.waker.take()
            }
        };
        drop(state);
        wake(woken);
        Ok(())
    }

    /// Returns an error if the peer must not send this frame, or must not send it yet.
    fn check(&self, is_accepted: bool, part: StreamPart, item: &[u8]) -> Result<(), Misuse> {
        let accepts = self.side == Side::Client && self.reads();
        let why = match part {
            StreamPart::Accept if !accepts => "a stream was accepted that the method does not have",
            StreamPart::Accept if is_accepted => "the stream was accepted twice",
            StreamPart::Data { .. } | StreamPart::End { .. } if accepts && !is_accepted => {
                "items came before the stream was accepted"
            }
            StreamPart::Window { .. } | StreamPart::Reset if !self.writes() => {
                "a window or a reset came for items that the method does not have"
            }
            StreamPart::Window { .. } | StreamPart::Reset | StreamPart::End { .. } if !item.is_empty() => {
                "bytes follow a frame that has no item"
            }
            _ => return Ok(()),
        };
        Err(Misuse(why))
    }

    /// Ends the stream with the outcome of the call, on the client.
    pub(crate) fn complete(&self, outcome: Outcome) {
        let mut state = self.state.lock();
        if !state.is_over {
            let received = match &outcome {
                Ok(response) => response.metadata(),
                Err(status) => status.reply_metadata().cloned().unwrap_or_default(),
            };
            if !received.is_empty() {
                let is_accepted = state.is_accepted;
                let metadata = state.metadata.get_or_insert_default();
                metadata.trailing = received.trailing;
                if !is_accepted {
                    metadata.initial = received.initial;
                }
            }
            // If the server sends a stream, the reply must not hold receive memory.
            let outcome = match outcome {
                Ok(response) if self.reads() && !response.is_error() => {
                    state.replied(response).map(|()| Response::empty()).map_err(Misuse::status)
                }
                outcome => outcome,
            };
            let aborted = state.aborted.take();
            state.outcome = Some(aborted.map_or(outcome, Err));
        }
        self.over(state);
    }

    /// Ends the stream on the server. Returns the charged bytes.
    pub(crate) fn close(&self) -> usize {
        let mut state = self.state.lock();
        let charged = mem::take(&mut state.charged);
        self.over(state);
        charged
    }

    fn over(&self, mut state: MutexGuard<'_, StreamState>) {
        state.is_over = true;
        let buffer = mem::take(&mut state.sending.buffer);
        let woken = [state.incoming.waker.take(), state.sending.waker.take()];
        drop(state);
        drop(buffer);
        woken.into_iter().for_each(wake);
    }

    /// Charges the peer for an item in a reply, like an item of an open stream.
    pub(crate) fn charge_answer(&self, bytes: usize, charge: Charge<'_>) -> Result<(), Status> {
        self.state.lock().charge_beyond(charge, bytes)
    }

    /// Releases the charge before the stream ends. Returns the bytes.
    pub(crate) fn release(&self) -> usize {
        mem::take(&mut self.state.lock().charged)
    }

    /// Returns the charged bytes.
    pub(crate) fn charged(&self) -> usize {
        self.state.lock().charged
    }

    /// Returns true if the caller dropped the call, or this side ended it.
    pub(crate) fn is_abandoned(&self) -> bool {
        let state = self.state.lock();
        state.is_dropped || state.aborted.is_some()
    }

    /// Returns the peer to which frames are sent, if frames may be sent.
    pub(super) fn destination(&self) -> Option<PeerKey> {
        self.state.lock().address.map(|address| address.peer)
    }

    /// Sends pending frames.
    pub(super) fn flush(
        &self,
        transport: &mut Transport,
        charge: Charge<'_>,
        scratch: &mut Vec<u8>,
    ) -> Flushed {
        let mut state = self.state.lock();
        state.is_reported = false;
        let Some(address) = state.address.filter(|_| !state.is_over) else { return Flushed::All };
        state.grow(charge, address.peer);
        let mut line = FrameSender { transport, address, from_caller: self.side == Side::Client, scratch };
        let was_open = state.incoming.left.is_open();
        let sent = state.send(&mut line);
        if !was_open && state.incoming.left.is_open() {
            state.arrived = line.transport.now();
        }
        state.put_back_beyond(charge, address.peer);
        let is_empty = state.sending.buffer.is_empty();
        let mut woken = None;
        let flushed = match sent {
            Ok(()) => Flushed::All,
            Err(SendError::QueueFull(_)) => {
                // The poller processes the stream in the next round anyway.
                state.is_reported = true;
                Flushed::NoRoom(address.peer)
            }
            // When the session ends, the call ends too.
            Err(SendError::SessionOver | SendError::NoPeer | SendError::BackingOff { .. }) => Flushed::All,
            Err(error) => {
                let text = format!("an item of the stream cannot be sent: {error}");
                state.sending.failure =
                    Some(Status::ran(Code::ResourceExhausted, text).because(Reason::TooLarge));
                woken = state.sending.waker.take();
                Flushed::All
            }
        };
        if is_empty && mem::take(&mut state.sending.waits) {
            woken = state.sending.waker.take();
        }
        drop(state);
        wake(woken);
        flushed
    }

    /// Accepts the call, because the handler has returned its stream. `initial` is the metadata for the start of the
    /// response.
    pub(super) fn accept(self: &Arc<Self>, initial: Metadata) {
        let mut state = self.state.lock();
        state.sending.accepts = Some(initial);
        self.report(state);
    }

    /// Stores the only item of the handler's stream, which is sent in the reply.
    pub(super) fn answer(&self, items: &mut ItemBuffer) {
        let Some(mut state) = self.lock_in_program() else { return };
        if !state.is_over && !state.sending.is_reset {
            mem::swap(&mut state.sending.buffer, items);
            state.sending.is_in_reply = true;
        }
    }

    /// Takes the item for the reply, if any. Appends it to `small`, or returns it if it is large.
    pub(crate) fn take_answer(&self, small: &mut Encoded) -> Option<Bytes> {
        let mut state = self.state.lock();
        state.sending.is_in_reply.then(|| state.sending.buffer.take_first(small.buffer()))
    }

    /// Returns the next step of the writer. The writer is woken when the step changes.
    pub(super) fn room(&self, task: &Context<'_>) -> Room {
        let _earlier;
        let Some(mut state) = self.lock_in_program() else { return Room::End };
        let is_over = state.is_over || state.aborted.is_some();
        let sending = &mut state.sending;
        if let Some(status) = sending.failure.take() {
            return Room::Failed(status);
        }
        if is_over || sending.is_reset || sending.has_ended {
            return Room::End;
        }
        _earlier = register(&mut sending.waker, task);
        if sending.is_finished || !sending.buffer.is_empty() || !sending.left.is_open() {
            sending.waits = true;
            return Room::Wait;
        }
        Room::Window(sending.left.at_most(BATCH))
    }

    /// Queues items for sending. If `waits` is true, the writer is woken when there is room.
    pub(super) fn hand_over(self: &Arc<Self>, items: &mut ItemBuffer, is_finished: bool, waits: bool) {
        let Some(mut state) = self.lock_in_program() else { return };
        if state.is_over || state.sending.is_reset {
            return;
        }
        mem::swap(&mut state.sending.buffer, items);
        state.sending.is_finished |= is_finished;
        state.sending.waits |= waits || is_finished;
        self.report(state);
    }

    /// Ends the call on the client, with this status.
    pub(crate) fn abort(&self, status: Status) {
        let Some(mut state) = self.lock_in_program() else { return };
        if state.is_over || state.is_dropped {
            return;
        }
        state.aborted.get_or_insert(status);
        drop(state);
        self.owner.stream_dropped();
    }

    /// Returns the outcome of the call. Returns `None` as soon as the handler has returned its stream.
    pub(crate) fn poll_opened(&self, task: &Context<'_>) -> Poll<Option<Outcome>> {
        let _earlier;
        self.owner.wake_others();
        let Some(mut state) = self.lock_in_program() else {
            return Poll::Ready(Some(Err(lost_in_child())));
        };
        if self.reads() && state.is_accepted {
            return Poll::Ready(None);
        }
        if let Some(outcome) = state.outcome.take() {
            return Poll::Ready(Some(outcome));
        }
        _earlier = register(&mut state.incoming.waker, task);
        Poll::Pending
    }

    /// Stores the work to be run when the reader reaches the end of the stream. In a forked child, the work is dropped.
    pub(crate) fn defer(&self, after: Box<dyn CallEnd>) {
        let Some(mut state) = self.lock_in_program() else { return };
        after.opened(state.metadata.as_deref().cloned().unwrap_or_default());
        state.after = Some(after);
    }

    /// Returns the metadata that arrived with the response. Empty in a forked child.
    pub(super) fn metadata(&self) -> ReplyMetadata {
        let state = self.lock_in_program();
        state.and_then(|state| state.metadata.as_deref().cloned()).unwrap_or_default()
    }

    /// Runs the stored work when the reader reaches the end of the stream. Does nothing in a forked child.
    ///
    /// # Errors
    /// Returns a status if an interceptor panics.
    pub(super) fn ended(&self, ended: Result<(), &Status>) -> Result<(), Status> {
        let Some(mut state) = self.lock_in_program() else { return Ok(()) };
        let Some(after) = state.after.take() else { return Ok(()) };
        let metadata = state.metadata.as_deref().cloned().unwrap_or_default();
        drop(state);
        after.closed(ended, metadata)
    }

    /// Returns the consumed window to the peer, and moves received items into the empty batch.
    pub(super) fn read(
        self: &Arc<Self>,
        batch: &mut ReceivedItems,
        consumed: &mut Window,
        task: &Context<'_>,
    ) -> Read {
        let mut earlier = None;
        self.owner.wake_others();
        let Some(mut state) = self.lock_in_program() else { return Read::Failed(lost_in_child()) };
        let incoming = &mut state.incoming;
        incoming.consumed.add(mem::replace(consumed, Window::NONE));
        let gives_back = incoming.gives_back();
        let read = if !incoming.items.is_empty() {
            mem::swap(&mut incoming.items, batch);
            Read::Items
        } else if incoming.is_closed {
            Read::Finished
        } else {
            self.end_of(&mut state, task, &mut earlier)
        };
        if gives_back && !state.is_over && !state.incoming.has_ended {
            self.report(state);
        }
        read
    }

    /// Returns the end of the received items, if it is reached. Otherwise registers the reader's waker, and moves the
    /// earlier waker to `earlier`.
    fn end_of(&self, state: &mut StreamState, task: &Context<'_>, earlier: &mut Option<Waker>) -> Read {
        if self.side == Side::Server {
            if state.incoming.has_ended {
                return Read::Finished;
            }
            if state.is_over {
                let text = "the call has ended before its caller has finished the stream";
                return Read::Failed(Status::ran(Code::Cancelled, text).because(Reason::Cancelled));
            }
        } else if state.is_over {
            return match state.outcome.take() {
                Some(Err(status)) if status.code() == Code::Unavailable && mutant!(lost_streams_finish) => {
                    Read::Finished
                }
                Some(Err(status)) => Read::Failed(status),
                Some(Ok(response)) if state.incoming.has_ended && !response.is_error() => Read::Finished,
                Some(Ok(_)) => Read::Failed(Misuse("the reply came without the end of the stream").status()),
                None => Read::Finished,
            };
        }
        *earlier = register(&mut state.incoming.waker, task);
        Read::Wait
    }

    /// Handles the drop of a reader, or of a caller that waits for the stream.
    pub(crate) fn drop_reader(self: &Arc<Self>) {
        let Some(mut state) = self.lock_in_program() else { return };
        state.incoming.is_closed = true;
        let items = mem::take(&mut state.incoming.items);
        // Dropping `after` runs closures, so it must happen without the lock.
        let _after = state.after.take();
        if state.is_over {
            drop(state);
            return;
        }
        if self.side == Side::Client {
            state.is_dropped = true;
            drop(state);
            self.owner.stream_dropped();
        } else if !state.incoming.has_ended {
            state.incoming.resets = true;
            self.report(state);
        }
        drop(items);
    }
}

impl StreamState {
    /// Doubles the window if the peer's memory limit allows it.
    fn grow(&mut self, charge: Charge<'_>, peer: PeerKey) {
        if !self.incoming.wants_more() {
            return;
        }
        let bytes = usize::try_from(self.incoming.window.bytes).unwrap_or_default();
        if charge(peer, self.charged, self.charged + bytes) {
            self.charged += bytes;
            self.incoming.double();
        }
    }

    /// Charges the peer for the part of a received item that exceeds the window.
    fn charge_beyond(&mut self, charge: Charge<'_>, item: usize) -> Result<(), Status> {
        let left = usize::try_from(self.incoming.left.bytes).unwrap_or_default();
        let more = item.saturating_sub(left);
        let Some(Address { peer, .. }) = self.address.filter(|_| more > 0 && !self.incoming.is_closed) else {
            return Ok(());
        };
        if !charge(peer, self.charged, self.charged + more) {
            let text = format!(
                "an item of {item} bytes exceeds its sender's budget of {ARGUMENTS} (setting {DECODED_BYTES} of the receiver)"
            );
            return Err(Status::ran(Code::ResourceExhausted, text).because(Reason::Overloaded));
        }
        self.charged += more;
        self.beyond += more;
        Ok(())
    }

    /// Releases the charge for bytes that no longer exceed the window because the reader has consumed items.
    fn put_back_beyond(&mut self, charge: Charge<'_>, peer: PeerKey) {
        let beyond = usize::try_from(-self.incoming.left.bytes).unwrap_or_default();
        let less = self.beyond.saturating_sub(beyond);
        if less > 0 {
            charge(peer, self.charged, self.charged - less);
            self.charged -= less;
            self.beyond -= less;
        }
    }

    /// Handles the contents of a successful reply. It contains the only item if the stream was not accepted before.
    fn replied(&mut self, response: Response) -> Result<(), Misuse> {
        if response.has_value() {
            if mem::replace(&mut self.is_accepted, true) {
                return Err(Misuse("the reply to a call with the server's stream has a value"));
            }
            response.with_item(|item| self.incoming.add(item));
            self.incoming.has_ended = true;
        }
        Ok(())
    }

    fn send(&mut self, line: &mut FrameSender<'_>) -> Result<(), SendError> {
        let Self { incoming, sending, .. } = self;
        if let Some(initial) = &sending.accepts {
            line.send_with(StreamPart::Accept, initial.block(), true)?;
            sending.accepts = None;
        }
        if incoming.resets {
            if !mutant!(resets_are_lost) {
                line.send(StreamPart::Reset, false)?;
            }
            incoming.resets = false;
        }
        let gives_back = incoming.gives_back() && !mutant!(windows_are_not_returned);
        if gives_back && !incoming.has_ended && !incoming.is_closed {
            let Window { bytes, items } = incoming.consumed;
            let [bytes, items] = [bytes, items].map(|more| u32::try_from(more).unwrap_or(u32::MAX));
            line.send(StreamPart::Window { bytes, items }, false)?;
            incoming.left.add(Window { bytes: bytes.into(), items: items.into() });
            incoming.consumed.add(Window { bytes: -i64::from(bytes), items: -i64::from(items) });
        }
        if sending.is_reset || sending.is_in_reply {
            return Ok(());
        }
        #[allow(clippy::cast_possible_truncation, reason = "the number of an item is modulo 2^16")]
        while let Some(next) = sending.buffer.next(line.address.call, line.from_caller, sending.sent as u16) {
            let bytes = next.head.len() + next.body.len() - DATA_BYTES;
            line.send_item(next)?;
            sending.left.spend(bytes);
            sending.sent += 1;
            sending.buffer.pop();
        }
        if sending.is_finished && !sending.has_ended {
            line.send(StreamPart::End { items: sending.sent }, !mutant!(ends_overtake_items))?;
            sending.has_ended = true;
        }
        Ok(())
    }
}

impl Incoming {
    /// Returns an error if an item violates the protocol.
    fn check(&self, reads: bool, number: u16) -> Result<(), Misuse> {
        if !reads || self.has_ended {
            return Err(Misuse("an item came that belongs to no stream"));
        }
        #[allow(clippy::cast_possible_truncation, reason = "the number of an item is modulo 2^16")]
        if number != self.received as u16 {
            return Err(Misuse("items are missing"));
        }
        if !self.left.is_open() {
            return Err(Misuse("an item came beyond the window"));
        }
        Ok(())
    }

    /// Adds a received item. Returns the reader's waker.
    fn item(&mut self, item: Item<'_>) -> Option<Waker> {
        self.add(item);
        if self.is_closed { None } else { self.waker.take() }
    }

    fn add(&mut self, item: Item<'_>) {
        let (left, bytes) = (usize::try_from(self.left.bytes).unwrap_or_default(), item.as_slice().len());
        self.left.spend(bytes);
        self.received += 1;
        self.largest = self.largest.max(bytes);
        if !self.is_closed {
            self.items.push(item, left);
        }
    }

    /// Handles the end of the peer's items. Returns the reader's waker.
    fn end(&mut self, reads: bool, items: u64) -> Result<Option<Waker>, Misuse> {
        if !reads || self.has_ended {
            return Err(Misuse("an end came that belongs to no stream"));
        }
        if items != self.received {
            return Err(Misuse("items are missing at the end"));
        }
        self.has_ended = true;
        Ok(self.waker.take())
    }

    /// Returns true if half of the window, or [`RETURNED_BYTES`], has been consumed.
    fn gives_back(&self) -> bool {
        let bytes = (self.window.bytes / 2).min(RETURNED_BYTES);
        self.consumed.bytes >= bytes || self.consumed.items * 2 >= self.window.items
    }

    /// Returns true if the window is used up fast enough to justify doubling it.
    fn wants_more(&self) -> bool {
        self.gives_back() && self.window.bytes < self.most_bytes() && !self.has_ended && !self.is_closed
    }

    /// Returns the maximum size of the window, in bytes.
    fn most_bytes(&self) -> i64 {
        let largest = i64::try_from(self.largest).unwrap_or(i64::MAX);
        largest.saturating_mul(ITEMS_AHEAD).clamp(ENOUGH_BYTES, MOST.bytes)
    }

    /// Doubles the window. The number of items is limited by [`MOST`].
    fn double(&mut self) {
        let items = self.window.items.min(MOST.items - self.window.items);
        let more = Window { items, ..self.window };
        self.consumed.add(more);
        self.window.add(more);
    }
}

impl Sending {
    /// Enlarges the window, to at most `MOST`.
    fn more(&mut self, bytes: u32, items: u32) -> Result<Option<Waker>, Misuse> {
        self.left.add(Window { bytes: bytes.into(), items: items.into() });
        if self.left != self.left.at_most(MOST) {
            return Err(Misuse("a window came that exceeds the largest one"));
        }
        let is_woken = self.waits && self.left.is_open() && self.buffer.is_empty();
        self.waits &= !is_woken;
        Ok(is_woken.then(|| self.waker.take()).flatten())
    }

    fn reset(&mut self) -> Option<Waker> {
        self.is_reset = true;
        self.buffer = ItemBuffer::default();
        self.waker.take()
    }
}

/// Sends the frames of one stream.
struct FrameSender<'a> {
    transport: &'a mut Transport,
    address: Address,
    from_caller: bool,
    scratch: &'a mut Vec<u8>,
}

impl FrameSender<'_> {
    fn out(&self, ordered: bool) -> Outgoing<'static> {
        without_call(self.address.peer, self.address.destination, self.address.session, ordered)
    }

    fn send(&mut self, part: StreamPart, ordered: bool) -> Result<(), SendError> {
        self.send_with(part, &[], ordered)
    }

    fn send_with(&mut self, part: StreamPart, block: &[u8], ordered: bool) -> Result<(), SendError> {
        let Address { call, .. } = self.address;
        let header = Header::Stream(StreamHeader { call, from_caller: self.from_caller, part });
        let (mut out, mut encoded) = (self.out(ordered), Encoded::default());
        if !block.is_empty() {
            encoded.prepend(block);
        }
        send(self.transport, &header, &mut encoded, self.scratch, &mut out).map(drop)
    }

    fn send_item(&mut self, Next { header, head, body }: Next<'_>) -> Result<(), SendError> {
        let out = Outgoing {
            header,
            head,
            announced: DATA_BYTES,
            body: body.into(),
            // Leaves room for requests and replies.
            leaves: Leaves::Quarter,
            ..self.out(true)
        };
        self.transport.send(&out).map(drop)
    }
}

/// Stores the waker of a task. Returns the earlier waker, which must be dropped without the lock, because dropping a waker
/// may run any code, including code that uses this stream.
#[must_use]
fn register(waker: &mut Option<Waker>, task: &Context<'_>) -> Option<Waker> {
    match waker {
        Some(known) if known.will_wake(task.waker()) => None,
        _ => waker.replace(task.waker().clone()),
    }
}

/// Wakes a task, which may belong to any executor.
fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        wakes::wake(waker);
    }
}

impl fmt::Debug for CallStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallStream")
            .field("side", &self.side)
            .field("streams", &self.streams)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;
    use std::thread;
    use std::time::Duration;

    /// The owner of a stream, in a forked child or in its parent.
    #[derive(Debug)]
    struct OfProcess {
        is_forked: bool,
    }

    impl StreamHost for OfProcess {
        fn stream_changed(&self, _: Arc<CallStream>) {
            panic!("a child reports to no poller");
        }

        fn stream_dropped(&self) {
            panic!("a child wakes no poller");
        }

        fn is_forked(&self) -> bool {
            self.is_forked
        }
    }

    /// Work for the end of a stream. It must not run.
    #[derive(Debug)]
    struct Dropped;

    impl CallEnd for Dropped {
        fn opened(&self, _: ReplyMetadata) {
            panic!("the stream is the parent's");
        }

        fn closed(self: Box<Self>, _: Result<(), &Status>, _: ReplyMetadata) -> Result<(), Status> {
            panic!("the stream is the parent's");
        }
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "the lock of a real thread is tested")]
    fn stream_in_forked_child_avoids_lock_held_by_poller() {
        let stream = CallStream::of_client(Arc::new(OfProcess { is_forked: true }), Streams::Both, None);
        let of_poller = stream.state.lock();
        let (done, wait) = channel();
        let program = Arc::clone(&stream);
        thread::spawn(move || {
            let task = &Context::from_waker(Waker::noop());
            assert!(matches!(program.poll_opened(task), Poll::Ready(Some(Err(_)))));
            let (mut batch, mut consumed) = (ReceivedItems::default(), Window::NONE);
            assert!(matches!(program.read(&mut batch, &mut consumed, task), Read::Failed(_)));
            assert!(matches!(program.room(task), Room::End));
            program.hand_over(&mut ItemBuffer::default(), true, true);
            program.abort(Status::aborted("no more"));
            program.defer(Box::new(Dropped));
            assert!(program.metadata().initial.is_empty());
            assert_eq!(program.ended(Err(&Status::aborted("no more"))), Ok(()));
            program.drop_reader();
            done.send(()).unwrap();
        });
        assert_eq!(wait.recv_timeout(Duration::from_mins(1)), Ok(()));
        drop(of_poller);
    }

    /// A waker whose task uses the stream when it ends.
    struct Uses(Arc<CallStream>);

    impl std::task::Wake for Uses {
        fn wake(self: Arc<Self>) {}
    }

    impl Drop for Uses {
        fn drop(&mut self) {
            drop(self.0.state.lock());
        }
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "the lock of a real thread is tested")]
    fn replaced_waker_may_use_stream() {
        let stream = CallStream::of_client(Arc::new(OfProcess { is_forked: false }), Streams::Both, None);
        let (done, wait) = channel();
        // A deadlock would block this thread.
        thread::spawn(move || {
            let uses = || Waker::from(Arc::new(Uses(Arc::clone(&stream))));
            let polls: [&dyn Fn(&Context<'_>); 3] = [
                &|task| assert!(stream.poll_opened(task).is_pending()),
                &|task| {
                    let (mut batch, mut consumed) = (ReceivedItems::default(), Window::NONE);
                    assert!(matches!(stream.read(&mut batch, &mut consumed, task), Read::Wait));
                },
                &|task| assert!(!matches!(stream.room(task), Room::End | Room::Failed(_))),
            ];
            for poll in polls {
                poll(&Context::from_waker(&uses()));
                poll(&Context::from_waker(Waker::noop()));
            }
            done.send(()).unwrap();
        });
        assert_eq!(wait.recv_timeout(Duration::from_mins(1)), Ok(()));
    }
}
