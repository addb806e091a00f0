//! Calls before their arguments are encoded, and the channel properties that apply to them. Shared by
//! [`Channel`](super::Channel) and [`LocalChannel`](super::LocalChannel).

use super::CallOptions;
use super::interceptor::{ClientInterceptor, ClientInterceptors};
use crate::call::context::{Inherited, inherited};
use crate::call::{Call, EndHooks, shutting_down};
use crate::client::routes::Link;
use crate::client::routes::id::{ExpectedId, RouteId};
use crate::codec::EncodeArguments;
use crate::executor::inbox::Inbox;
use crate::executor::on_poller;
use crate::node::lifecycle::{not_started, refused_in_child};
use crate::status::Status;
use crate::wire::frame::Encoded;
use crate::wire::name::MethodName;
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use trunkline_transport::PeerKey;
use trunkline_verbs::Time;

/// Server, time limit and interceptors of a channel.
#[derive(Debug, Clone)]
pub(super) struct ChannelCore {
    pub(super) server: PeerKey,
    /// Route of the calls; `None` if the target is a single address.
    pub(super) route: Option<RouteId>,
    /// Name that the server must prove.
    pub(super) expected: ExpectedId,
    pub(super) link: Arc<Link>,
    /// Time limit of calls; `None` for the inherited or default limit.
    pub(super) timeout: Option<Duration>,
    pub(super) interceptors: ClientInterceptors,
}

impl ChannelCore {
    pub(super) fn new(link: Arc<Link>) -> Self {
        let ((server, route), expected) = (link.server(), link.expected());
        Self { server, route, expected, link, timeout: None, interceptors: ClientInterceptors::NONE }
    }

    /// Returns a copy with another interceptor, which runs after the existing ones.
    pub(super) fn with_interceptor(&self, interceptor: impl ClientInterceptor) -> Self {
        Self { interceptors: self.interceptors.with(Arc::new(interceptor)), ..self.clone() }
    }

    /// Returns true if interceptors may change or refuse calls.
    #[inline]
    pub(super) fn is_intercepted(&self) -> bool {
        !self.interceptors.is_empty()
    }

    /// Starts a call. `submit` passes the call to a poller, and may add closures for the end of the call. It is called in
    /// one place, so that the compiler inlines it.
    #[inline]
    pub(super) fn make<A, W>(
        &self,
        call: NewCall<'_, A>,
        submit: impl FnOnce(NewCall<'_, A>, &mut EndHooks) -> Result<W, Status>,
    ) -> Call<W> {
        let (mut call, mut hooks, mut changed) = (call, EndHooks::default(), None);
        let method = call.method;
        let admitted = match self.is_intercepted() {
            false => Ok(()),
            true => self.intercept(&mut call.inherited, call.options, method, &mut changed, &mut hooks),
        };
        let options = changed.as_ref().unwrap_or(call.options);
        let call = NewCall { options, ..call };
        let made = match admitted {
            Ok(()) => submit(call, &mut hooks),
            Err(status) => Err(status),
        };
        Call::new(made, method, &*self.link, options.response()).with_hooks(hooks)
    }

    /// Runs the interceptors, which may change the options.
    #[cold]
    #[inline(never)]
    fn intercept(
        &self,
        inherited: &mut Inherited,
        options: &CallOptions,
        method: &'static MethodName,
        changed: &mut Option<CallOptions>,
        hooks: &mut EndHooks,
    ) -> Result<(), Status> {
        let started = self.link.routes().started().ok_or_else(not_started)?;
        let (admitted, options, left) =
            self.interceptors.admit(options, method, self.timeout, *inherited, &started.clock);
        (*changed, *hooks) = (Some(options), left);
        // The changed options contain the trace, unless an interceptor removed it.
        inherited.is_traced = false;
        admitted
    }
}

/// Kind of a call, by the messages in each direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CallKind {
    /// One request and one reply.
    Unary,
    /// One request without a reply.
    OneWay,
    /// Items in either direction or both.
    Stream,
}

/// A call through a channel, before its arguments are encoded.
#[derive(Debug)]
pub(super) struct NewCall<'c, A> {
    pub(super) kind: CallKind,
    pub(super) options: &'c CallOptions,
    pub(super) method: &'static MethodName,
    arguments: &'c A,
    pub(super) body: Bytes,
    inherited: Inherited,
}

impl<'c, A> NewCall<'c, A> {
    /// Creates a call from the current thread.
    #[inline]
    pub(super) fn new(
        kind: CallKind,
        options: &'c CallOptions,
        method: &'static MethodName,
        arguments: &'c A,
        body: Bytes,
    ) -> Self {
        Self { kind, options, method, arguments, body, inherited: inherited() }
    }

    /// Returns the deadline of the call if it starts now through a client with this time limit.
    #[inline]
    pub(super) fn deadline(&self, of_client: Option<Duration>, now: Time) -> Time {
        match self.kind {
            CallKind::Unary | CallKind::OneWay => self.options.deadline(of_client, self.inherited, now),
            CallKind::Stream => self.options.stream_deadline(of_client, self.inherited, now),
        }
    }

    /// Appends the metadata and the arguments to an empty buffer. Returns the buffer, and the size of the metadata in bytes.
    #[inline]
    pub(super) fn encode(&self, mut buffer: Encoded, most_metadata: usize) -> Result<(Encoded, u32), Status>
    where
        A: EncodeArguments,
    {
        let metadata = self.options.put_metadata(&mut buffer, most_metadata, self.inherited)?;
        self.arguments.encode(buffer.buffer()).map_err(super::cannot_encode)?;
        Ok((buffer, metadata))
    }
}

/// Returns true if this thread runs a handler or task of the inbox's node.
///
/// # Errors
/// Returns a status if calls are not allowed on this thread.
pub(super) fn check_inbox(inbox: &Inbox) -> Result<bool, Status> {
    if inbox.lifecycle().is_forked() {
        return Err(refused_in_child());
    }
    let nested = on_poller::is_of(inbox.lifecycle());
    if !nested && inbox.lifecycle().is_ending() {
        return Err(shutting_down());
    }
    Ok(nested)
}
