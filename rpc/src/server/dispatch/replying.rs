//! Sends replies, queues them until there is room, or replaces them with a refusal.

use super::Dispatch;
use crate::node::budgets::check_metadata;
use crate::server::Failure;
use crate::server::caller::{Caller, Key};
use crate::server::method::Outcome;
use crate::server::replies::{Parts, WaitingReply, is_large};
use crate::status::reason::Reason;
use crate::status::{Code, Status};
use crate::wire::frame::{
    Encoded, FrameError, HANDLER_ERROR, Header, Joined, MethodRef, NOBODY, Number, RepliedBy, Short, join,
    send, status_body,
};
use crate::wire::metadata::{MetadataBytes, ReplyMetadata};
use std::mem;
use trunkline_machine::mutant;
use trunkline_transport::{
    Body, Connect, Destination, Leaves, Origin, PeerKey, Report, SendError, Transport,
};
use trunkline_verbs::Time;

impl Dispatch {
    /// Replies to a call whose handler ended in its first poll.
    #[inline]
    pub(super) fn reply_at_once(&mut self, transport: &mut Transport, caller: &Caller, mut parts: Parts) {
        let waits = waits_for_room(caller, &parts);
        let short = Short::reply(caller.key.call, 0, RepliedBy::Handler);
        if !waits && self.join(transport, caller, Some(short), &mut parts) {
            return;
        }
        let metadata = MetadataBytes::default();
        let header =
            Header::Reply { call: caller.key.call, code: 0, by: RepliedBy::Handler, number: None, metadata };
        let sent = if waits {
            self.send_or_wait(transport, *caller, header, parts)
        } else {
            self.send(transport, caller, &header, &mut parts)
        };
        if let Err(error) = sent {
            self.count_unsent(caller, &error);
            self.reply_with_refusal(transport, *caller, true, error);
        }
    }

    /// Replies to a call, or logs the failure of a one-way call.
    #[inline(never)]
    pub(super) fn reply(
        &mut self,
        transport: &mut Transport,
        caller: Caller,
        mut outcome: Outcome,
        metadata: Option<Box<ReplyMetadata>>,
    ) {
        let (now, Caller { key, one_way, number, .. }) = (transport.now(), caller);
        if one_way {
            outcome.as_ref().err().into_iter().for_each(|failure| self.failed(now, &caller, failure));
            return self.one_way_ended(now, key.peer, outcome);
        }
        let metadata = self.metadata_of(metadata, &mut outcome);
        outcome.as_ref().err().into_iter().for_each(|failure| self.failed(now, &caller, failure));
        let (code, by, mut encoded, body) = match outcome {
            Ok(reply) => (0, RepliedBy::Handler, reply.encoded, reply.body),
            Err(failure) => self.of_failure(failure),
        };
        let metadata = metadata.map_or_else(MetadataBytes::default, |metadata| {
            encoded.prepend(metadata.trailing.block());
            encoded.prepend(metadata.initial.block());
            metadata.bytes()
        });
        let header = Header::Reply { call: key.call, code, by, number, metadata };
        let mut parts = (encoded, body);
        let waits = waits_for_room(&caller, &parts);
        if !waits && self.join(transport, &caller, header.short(), &mut parts) {
            return;
        }
        let sent = if waits {
            self.send_or_wait(transport, caller, header, parts)
        } else {
            self.send(transport, &caller, &header, &mut parts)
        };
        if let Err(error) = sent {
            if code == 0 {
                self.count_unsent(&caller, &error);
            }
            let ran = !matches!(by, RepliedBy::Node { ran: false, .. });
            self.reply_with_refusal(transport, caller, ran, error);
        }
    }

    /// Returns the metadata of a reply, including the metadata of the handler's status. If it is too large, the outcome
    /// becomes a refusal without metadata.
    fn metadata_of(
        &self,
        metadata: Option<Box<ReplyMetadata>>,
        outcome: &mut Outcome,
    ) -> Option<Box<ReplyMetadata>> {
        let of_status = match outcome {
            Err(Failure::Handler(status) | Failure::Node(status)) => {
                Some(status.metadata()).filter(|metadata| !metadata.is_empty())
            }
            _ => None,
        };
        if metadata.is_none() && of_status.is_none() {
            return None;
        }
        let mut metadata = metadata.unwrap_or_default();
        of_status.into_iter().for_each(|more| metadata.trailing.extend(more));
        if let Err(status) = check_metadata(metadata.size(), self.most_metadata) {
            *outcome = Err(Failure::Node(status.after_run()));
            return None;
        }
        Some(metadata)
    }

    /// Sends a reply. Queues it if there is no room and it may wait.
    #[inline(never)]
    fn send_or_wait(
        &mut self,
        transport: &mut Transport,
        caller: Caller,
        header: Header,
        mut parts: Parts,
    ) -> Result<(), SendError> {
        // Small replies do not wait behind large ones.
        if !is_large(&parts) || !self.replies.has_any_to(caller.key.peer) {
            match self.send(transport, &caller, &header, &mut parts) {
                Err(SendError::QueueFull(_)) if !mutant!(replies_do_not_wait_for_room) => {}
                sent => return sent,
            }
        }
        let reply = WaitingReply::new(caller, header, parts);
        self.replies.add(reply, transport.now()).map_err(SendError::QueueFull)
    }

    /// Sends waiting replies while there is room, up to the limit of a turn. Returns true if a turn began.
    pub(crate) fn send_waiting(&mut self, transport: &mut Transport) -> bool {
        let now = transport.now();
        if !self.replies.begin_turn(now) {
            return false;
        }
        while let Some(mut reply) = self.replies.next(now) {
            let caller = reply.caller;
            match self.send(transport, &caller, &reply.header, &mut reply.parts) {
                Err(SendError::QueueFull(full)) => self.replies.put_back(reply, now, full),
                sent => {
                    self.replies.left(&reply);
                    if let Err(error) = sent {
                        self.reply_with_refusal(transport, caller, true, error);
                    }
                }
            }
        }
        self.unanswered.extend(self.replies.take_late());
        true
    }

    /// Refuses a request that cannot be parsed.
    pub(crate) fn refuse(
        &mut self,
        transport: &mut Transport,
        from: Origin,
        call: u64,
        one_way: bool,
        error: FrameError,
    ) {
        let (code, reason) = match error {
            FrameError::UnknownExtension(_) => {
                self.inbox.lifecycle().counters.unknown_extensions.add();
                (Code::Unimplemented, Reason::UnknownExtension)
            }
            FrameError::Kind(_) | FrameError::Flags(_) => (Code::Unimplemented, Reason::OtherProtocol),
            FrameError::MethodKind(_) => (Code::Unimplemented, Reason::NoMethod),
            _ => (Code::InvalidArgument, Reason::BadArguments),
        };
        // The level is debug, because a peer could otherwise fill the log.
        tracing::debug!(peer = %from.peer, one_way, %error, "malformed request refused");
        let caller = Caller { one_way, ..Caller::of_one_way(Key::new(from, call)) };
        let status = Status::not_run(code, error.to_string()).because(reason);
        self.refuse_call(transport, caller, status);
    }

    /// Refuses a request whose method was not found, or which arrived while the node drains.
    pub(super) fn refuse_unfound(
        &mut self,
        transport: &mut Transport,
        caller: Caller,
        method_ref: MethodRef,
        status: Status,
    ) {
        if caller.one_way && status.reason() != Some(Reason::Draining) {
            self.count_refused(caller.table, caller.key.peer, &status);
            self.not_served(transport, caller.key, method_ref, &status);
        } else {
            self.refuse_call(transport, caller, status);
        }
    }

    /// Drops a one-way request to a method that this node does not serve. Counts the request, logs each such service and
    /// method once, and notifies the caller's node, which counts it too. The notification is omitted if that node accepts
    /// too few frames.
    #[cold]
    fn not_served(&mut self, transport: &mut Transport, key: Key, method_ref: MethodRef, status: &Status) {
        let lifecycle = self.inbox.lifecycle();
        let service = match method_ref {
            MethodRef::Method(method) => self.services.get(&method.service),
            MethodRef::Number(_) => None,
        };
        let hash = match (method_ref, service) {
            (MethodRef::Method(method), None) => method.service,
            (MethodRef::Method(method), Some(_)) => method.method,
            (MethodRef::Number(number), _) => u64::from(number),
        };
        if lifecycle.count_not_served(hash) {
            let service = service.map_or("unknown", |service| service.name);
            tracing::warn!(
                peer = %key.peer,
                service,
                hash = format_args!("{hash:016x}"),
                %status,
                counter = "one_way_requests_not_served",
                "one-way call to an unknown method dropped"
            );
        }
        if transport.has_reply_room(key.peer).is_err() {
            return;
        }
        let by = RepliedBy::Node { reason: status.reason(), ran: false };
        let header = Header::Reply {
            call: key.call,
            code: status.code().number(),
            by,
            number: None,
            metadata: MetadataBytes::default(),
        };
        // If the frame is lost, the caller's count is too low by one.
        let _ =
            self.send(transport, &Caller::of_one_way(key), &header, &mut (Encoded::default(), Body::new()));
    }

    /// Reports the number of a one-way call's method to the caller, unless the caller accepts too few frames.
    pub(super) fn report(&mut self, transport: &mut Transport, key: Key, number: Number) {
        if transport.has_reply_room(key.peer).is_err() {
            return;
        }
        let header = Header::Number { call: key.call, number };
        // If the frame is lost, the next call identifies the method by its hash again.
        let _ =
            self.send(transport, &Caller::of_one_way(key), &header, &mut (Encoded::default(), Body::new()));
    }

    /// Counts and logs the failure of a one-way call, which has no reply. Requests refused by a draining node have a
    /// separate counter.
    fn one_way_ended(&mut self, now: Time, peer: PeerKey, outcome: Outcome) {
        let Err(failure) = outcome else { return };
        if !failure.is_of_drain() {
            self.inbox.lifecycle().counters.one_way_failed.add();
        }
        if let Failure::Node(status) = failure
            && status.reason() != Some(Reason::Panicked)
            && let Some(suppressed) = self.log.one_way.line(now)
        {
            tracing::warn!(
                %peer,
                %status,
                counter = "one_way_requests_failed",
                suppressed,
                "one-way call failed; its caller is not notified"
            );
        }
    }

    /// Replaces a reply that could not be sent.
    #[cold]
    fn reply_with_refusal(&mut self, transport: &mut Transport, caller: Caller, ran: bool, error: SendError) {
        let (reason, text) = match error {
            SendError::TooLarge { .. } => (Reason::TooLarge, format!("the reply is too large: {error}")),
            SendError::QueueFull(exhausted) => {
                (Reason::Overloaded, format!("the caller takes too few replies: {exhausted}"))
            }
            // The peer is lost.
            _ => {
                self.unanswered.insert(caller.key.peer);
                return;
            }
        };
        let code = Code::ResourceExhausted;
        let status = if ran { Status::ran(code, text) } else { Status::not_run(code, text) };
        let Caller { key, number, .. } = caller;
        let (code, by, encoded, body) = self.of_failure(Failure::Node(status.because(reason)));
        let header = Header::Reply { call: key.call, code, by, number, metadata: MetadataBytes::default() };
        if self.send(transport, &caller, &header, &mut (encoded, body)).is_err() {
            self.unanswered.insert(key.peer);
            tracing::debug!(
                peer = %key.peer,
                call = ?key.call,
                cause = "the caller accepts no reply",
                "reply not sent"
            );
        }
    }

    /// Sends a frame to the poller that sent the request. On an error, the parts are unchanged.
    #[inline(never)]
    fn send(
        &mut self,
        transport: &mut Transport,
        caller: &Caller,
        header: &Header,
        parts: &mut Parts,
    ) -> Result<(), SendError> {
        let (encoded, body) = parts;
        let mut out = address(caller).outgoing(Connect::FailFast, mem::take(body), Leaves::Nothing);
        let sent = send(transport, header, encoded, &mut self.scratch, &mut out);
        sent.inspect_err(|_| *body = mem::take(&mut out.body))?;
        self.poller.buffers().keep(mem::take(encoded));
        Ok(())
    }

    /// Bundles a reply with the last frame, if possible. Returns true on success.
    #[inline]
    fn join(
        &mut self,
        transport: &mut Transport,
        caller: &Caller,
        header: Option<Short>,
        (encoded, body): &mut Parts,
    ) -> bool {
        let joins = join(transport, header, encoded, body, &address(caller)).is_some();
        if joins {
            *body = Body::new();
            self.poller.buffers().keep(mem::take(encoded));
        }
        joins
    }

    /// Returns the code, origin, encoded part and body of a failed call's reply.
    fn of_failure(&self, failure: Failure) -> (u8, RepliedBy, Encoded, Body) {
        let (by, status) = match failure {
            Failure::Error(error) => return (HANDLER_ERROR, RepliedBy::Handler, error.0, Body::new()),
            Failure::Handler(status) if !status.may_have_run() && mutant!(forwarded_status_is_trusted) => {
                (RepliedBy::Node { reason: status.reason(), ran: false }, status)
            }
            Failure::Handler(status) => (RepliedBy::Handler, status),
            Failure::Node(status) => {
                (RepliedBy::Node { reason: status.reason(), ran: status.may_have_run() }, status)
            }
        };
        let status = status.within_limits();
        let mut texts = self.poller.buffers().take();
        status_body::emit(&status, texts.buffer());
        (status.code().number(), by, texts, status.details().clone().into())
    }
}

/// Returns the destination of a reply.
#[inline]
fn address(caller: &Caller) -> Joined {
    let key = caller.key;
    Joined {
        peer: key.peer,
        destination: Destination::Poller(key.poller),
        session: Some(key.session),
        // The reply that ends a stream must follow the stream's items.
        ordered: caller.streams.any() && !caller.overtakes,
        token: NOBODY,
        report: Report::Never,
        deadline: None,
    }
}

/// Returns true if a reply may wait for room in the message queue, because it is large or ends a stream without a deadline.
#[inline]
fn waits_for_room(caller: &Caller, parts: &Parts) -> bool {
    is_large(parts) || (caller.streams.any() && caller.deadline.is_none())
}
