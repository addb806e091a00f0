//! Options for single calls.

use crate::call::Admission;
use crate::call::context::{Context, Inherited};
use crate::node::budgets::check_metadata;
use crate::status::Status;
use crate::wire::frame::Encoded;
use crate::wire::metadata::{Metadata, ResponseMetadata};
use std::time::Duration;
use trunkline_transport::Connect;
use trunkline_verbs::Time;

/// Time limit of a call if its options, its client and the calling handler set none.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);

/// Options for a single call, such as its time limit and metadata.
///
/// Passed to `with` of a generated client:
///
/// ```no_run
/// # use trunkline::{CallOptions, Connect, Node, Status};
/// # use std::time::Duration;
/// # #[trunkline::service]
/// # pub trait Greeter {
/// #     async fn greet(&self, name: String) -> Result<String, Status>;
/// # }
/// # async fn call(client: GreeterClient) -> Result<(), Status> {
/// // The server may be starting, so the call waits up to 30 s for it.
/// let patient = CallOptions::new().timeout(Duration::from_secs(30)).connect(Connect::Wait);
/// println!("{}", client.with(&patient).greet("trunk".into()).await?);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallOptions {
    timeout: Option<Duration>,
    idle_timeout: Option<Duration>,
    connect: Connect,
    /// `None` for internal calls of the node.
    admission: Option<Admission>,
    metadata: Metadata,
    response: Option<ResponseMetadata>,
}

impl Default for CallOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl CallOptions {
    /// Creates the default options, with [`Connect::FailFast`], [`Admission::Wait`] and the client's time limit.
    ///
    /// If the client has no time limit, the call has the deadline of the calling handler ([`Context`](crate::Context)).
    /// Elsewhere it times out after 10 s, unless it is a stream.
    #[must_use]
    pub const fn new() -> Self {
        let (connect, admission) = (Connect::FailFast, Some(Admission::Wait));
        let metadata = Metadata::new();
        Self { timeout: None, idle_timeout: None, connect, admission, metadata, response: None }
    }

    /// Returns the options of an internal call of the node, which is exempt from the limits on the program's calls.
    pub(super) fn beyond_limits() -> Self {
        Self { admission: None, ..Self::new() }
    }

    /// Sets the time limit of a call, which overrides the client's limit. The limit starts when the client's method is
    /// called.
    ///
    /// A call made by a handler never outlives the handler's own call, unless it is made in the scope of
    /// [`Context::detached`](crate::Context::detached).
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Sets the idle timeout, after which a stream that receives no frames fails with
    /// [`Code::DeadlineExceeded`](crate::Code::DeadlineExceeded). Streams have no idle timeout by default.
    ///
    /// Each frame from the server restarts the timer. A frame is an item, the end of the server's items, or a window update
    /// after the server has consumed items. The timer does not run before the request is sent, or while the server cannot
    /// send because the reader takes no items. The idle timeout has no effect on calls without streams, and does not replace
    /// [`timeout`](Self::timeout).
    ///
    /// ```no_run
    /// # use trunkline::{CallOptions, Status, Stream};
    /// # use std::time::Duration;
    /// # #[trunkline::service]
    /// # pub trait Feed {
    /// #     async fn watch(&self) -> Result<impl Stream<Item = Result<u64, Status>>, Status>;
    /// # }
    /// # async fn call(client: FeedClient) -> Result<(), Status> {
    /// let lively = CallOptions::new().idle_timeout(Duration::from_secs(30));
    /// let mut events = client.with(&lively).watch().await?;
    /// while let Some(event) = events.message().await? {
    ///     println!("{event}");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn idle_timeout(mut self, idle_timeout: Duration) -> Self {
        self.idle_timeout = Some(idle_timeout);
        self
    }

    /// Sets what a call does when its server cannot be reached.
    ///
    /// With [`Connect::FailFast`] the call waits for one attempt to connect, and fails with `Unavailable` if that attempt
    /// fails. The call fails at once while the node pauses before its next attempt.
    ///
    /// With [`Connect::Wait`] the call waits for a connection, at most until its time limit. The call fails earlier if this
    /// node shuts down or has no address from which the server can be reached. While the server shuts down, the call waits
    /// for the next connection, or for another server of the channel. A call that a server refuses because the server shuts
    /// down is repeated, with a copy of the arguments.
    ///
    /// Calls of an ordered channel, and streams that have already sent items, fail when their server shuts down.
    #[must_use]
    pub fn connect(mut self, connect: Connect) -> Self {
        self.connect = connect;
        self
    }

    /// Sets what a call does when a limit of the calling node is reached. The limits are
    /// [`NodeBuilder::call_limit`](crate::NodeBuilder::call_limit), `queued_messages` and `queued_bytes`, each per peer, per
    /// host and in total.
    ///
    /// With [`Admission::Wait`] the call waits until other calls have ended, behind earlier calls to the same node. If the
    /// call's deadline passes while it waits, it fails with [`Code::DeadlineExceeded`] and [`Reason::Expired`] without
    /// having run, and the message names the limit that was reached.
    ///
    /// With [`Admission::Try`] the call fails at once with [`Code::ResourceExhausted`] and [`Reason::Overloaded`]. It also
    /// fails in this way while the queue of its poller is full. The queue holds 4,096 calls, or 65,536 on a local channel.
    ///
    /// A nested call, which a handler makes, never waits, because it might wait for the handler's own caller. An eighth of
    /// each limit, but at least 1, is reserved for nested calls unless the limit is 1. When a limit is reached, nested calls
    /// fail as with `Try`. Calls from another executor or from a task of `run_on` do not count as nested.
    ///
    /// [`Code::DeadlineExceeded`]: crate::Code::DeadlineExceeded
    /// [`Code::ResourceExhausted`]: crate::Code::ResourceExhausted
    /// [`Reason::Expired`]: crate::Reason::Expired
    /// [`Reason::Overloaded`]: crate::Reason::Overloaded
    #[must_use]
    pub fn admission(mut self, admission: Admission) -> Self {
        self.admission = Some(admission);
        self
    }

    /// Sets the metadata of the request. The handler reads it through [`Context::metadata`](crate::Context::metadata).
    ///
    /// If the metadata exceeds [`NodeBuilder::metadata_bytes`](crate::NodeBuilder::metadata_bytes), `tracestate` is dropped
    /// first, and then `traceparent`. If it still exceeds the limit, the call fails with
    /// [`Code::ResourceExhausted`](crate::Code::ResourceExhausted) without having run.
    #[must_use]
    pub fn metadata(mut self, metadata: Metadata) -> Self {
        self.metadata = metadata;
        self
    }

    /// Sets where the metadata of the response is stored.
    #[must_use]
    pub fn response_metadata(mut self, place: &ResponseMetadata) -> Self {
        self.response = Some(place.clone());
        self
    }

    /// Appends the metadata, which precedes the arguments. Returns its size in bytes.
    #[inline]
    pub(super) fn put_metadata(
        &self,
        into: &mut Encoded,
        most: usize,
        inherited: Inherited,
    ) -> Result<u32, Status> {
        if self.metadata.is_empty() && !inherited.is_traced { Ok(0) } else { self.put(into, most, inherited) }
    }

    #[cold]
    #[inline(never)]
    fn put(&self, into: &mut Encoded, most: usize, inherited: Inherited) -> Result<u32, Status> {
        let trace = self.trace(inherited);
        let size = self.metadata.size() + trace.size();
        if size > most {
            let mut all = self.metadata.clone();
            all.extend(&trace);
            all.drop_trace_beyond(most);
            check_metadata(all.size(), most)?;
            into.buffer().extend_from_slice(all.block());
            return Ok(u32::try_from(all.size()).unwrap_or(u32::MAX));
        }
        into.buffer().extend_from_slice(self.metadata.block());
        into.buffer().extend_from_slice(trace.block());
        Ok(u32::try_from(size).unwrap_or(u32::MAX))
    }

    /// Returns the trace of the calling handler as metadata, or empty metadata if the options contain a trace.
    fn trace(&self, inherited: Inherited) -> Metadata {
        let mut metadata = Metadata::new();
        if inherited.is_traced && !self.metadata.has_trace() {
            let trace = Context::current().and_then(|context| context.trace());
            trace.inspect(|trace| trace.put_into(&mut metadata));
        }
        metadata
    }

    /// Adds the trace of the calling handler to the metadata, for interceptors.
    pub(super) fn continue_trace(&mut self, inherited: Inherited) {
        let trace = self.trace(inherited);
        self.metadata.extend(&trace);
    }

    pub(super) fn request_metadata(&self) -> &Metadata {
        &self.metadata
    }

    pub(super) fn request_metadata_mut(&mut self) -> &mut Metadata {
        &mut self.metadata
    }

    pub(super) fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = Some(timeout);
    }

    /// Returns where the metadata of the response is stored, if requested.
    #[inline]
    pub(super) fn response(&self) -> Option<&ResponseMetadata> {
        self.response.as_ref()
    }

    /// Returns the deadline of a call that starts at `now` through a client with this time limit, capped by the deadline of
    /// the calling handler.
    #[inline]
    pub(super) fn deadline(&self, of_client: Option<Duration>, inherited: Inherited, now: Time) -> Time {
        let limit = self.timeout.or(of_client);
        let Some(inherited) = inherited.deadline else { return now + limit.unwrap_or(DEFAULT_TIMEOUT) };
        limit.map_or(inherited, |limit| inherited.min(now + limit))
    }

    /// Returns the deadline of a call that streams items. Streams have no deadline by default.
    pub(super) fn stream_deadline(
        &self,
        of_client: Option<Duration>,
        inherited: Inherited,
        now: Time,
    ) -> Time {
        if self.timeout.or(of_client).is_none() && inherited.deadline.is_none() {
            return Time::MAX;
        }
        self.deadline(of_client, inherited, now)
    }

    /// Returns the idle timeout of a stream.
    pub(super) fn idle_limit(&self) -> Option<Duration> {
        self.idle_timeout
    }

    pub(super) fn connects(&self) -> Connect {
        self.connect
    }

    pub(super) fn admits(&self) -> Option<Admission> {
        self.admission
    }
}
