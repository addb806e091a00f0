//! The options of single calls.

use crate::admission::Admission;
use crate::context::ambient_deadline;
use std::time::Duration;
use trunkline_transport::Connect;
use trunkline_verbs::Time;

/// Time limit of a call for which neither its options nor its client nor a handler's own call sets one.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);

/// Options of single calls, for the `with` of generated clients, which borrows them:
///
/// ```no_run
/// # use trunkline::{CallOptions, Connect, Node, Status};
/// # use std::time::Duration;
/// # #[trunkline::service]
/// # pub trait Greeter {
/// #     async fn greet(&self, name: String) -> Result<String, Status>;
/// # }
/// # async fn call(client: GreeterClient) -> Result<(), Status> {
/// // Starts together with the server: waits for it, for half a minute.
/// let patient = CallOptions::new().timeout(Duration::from_secs(30)).connect(Connect::Wait);
/// println!("{}", client.with(&patient).greet("trunk".into()).await?);
/// # Ok(())
/// # }
/// ```
///
/// A call is made when the client's method is called, and not when its future is first polled: its time limit counts from
/// then, and its handler may run although the future never is. Dropping the future cancels the call, polled or not.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CallOptions {
    timeout: Option<Duration>,
    connect: Connect,
    admission: Admission,
}

impl CallOptions {
    /// The time limit of the client, [`Connect::FailFast`] and [`Admission::Wait`]. A client without a time limit has that of
    /// the call whose handler makes the call ([`Context`](crate::Context)), or 10 s.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the time limit of a call, in place of the client's. It counts from the moment a call is made,
    /// which is when the client's method is called. A call that a handler makes ends with the handler's own call at the
    /// latest, unless it is made in the scope of [`Context::detached`](crate::Context::detached).
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Sets what a call does when its server cannot be reached. With [`Connect::FailFast`] it waits for the attempt to
    /// connect that is under way, if there is one, and fails as `Unavailable` with that attempt, or at once while the
    /// next one is not due. With [`Connect::Wait`] it waits for a connection, at most until its time limit; it fails
    /// earlier if no waiting can help, because this node shuts down or has no address to call the server from, and if
    /// the connection breaks before it could leave through it.
    #[must_use]
    pub fn connect(mut self, connect: Connect) -> Self {
        self.connect = connect;
        self
    }

    /// Sets what a call does that is made while its node has no room for it: as many calls are under way, or as much
    /// waits to be sent, as [`NodeBuilder::call_limit`](crate::NodeBuilder::call_limit), `queued_messages` or
    /// `queued_bytes` allow to its server's node, its host or all.
    ///
    /// With [`Admission::Wait`] it waits until other calls have ended, and after those to the same node that wait already.
    /// That counts against its time limit: when it has waited in vain it ends with [`Code::DeadlineExceeded`] and
    /// [`Reason::Expired`], has not run, and its text names what it waited for. With [`Admission::Try`] it fails at once,
    /// with [`Code::ResourceExhausted`] and [`Reason::Overloaded`]; so it does while 4,096 calls wait for a poller of this node to
    /// take them, which no limit changes.
    ///
    /// A call that a handler makes never waits, whatever this is: the handler's own caller may be what it would wait
    /// for. Others leave it an eighth of each limit, at least 1 unless the limit is 1. Beyond that it fails
    /// as with `Try`. What a handler hands to another executor, or to a task of `run_on`, is not made by the handler.
    ///
    /// [`Code::DeadlineExceeded`]: crate::Code::DeadlineExceeded
    /// [`Code::ResourceExhausted`]: crate::Code::ResourceExhausted
    /// [`Reason::Expired`]: crate::Reason::Expired
    /// [`Reason::Overloaded`]: crate::Reason::Overloaded
    #[must_use]
    pub fn admission(mut self, admission: Admission) -> Self {
        self.admission = admission;
        self
    }

    /// When a call ends that is made at `now` through a client with this time limit: by the time limit, or by the deadline of
    /// the call for which it is made if that is earlier.
    #[inline]
    pub(super) fn deadline(&self, of_client: Option<Duration>, now: Time) -> Time {
        let limit = self.timeout.or(of_client);
        let Some(inherited) = ambient_deadline() else { return now + limit.unwrap_or(DEFAULT_TIMEOUT) };
        limit.map_or(inherited, |limit| inherited.min(now + limit))
    }

    pub(super) fn connects(&self) -> Connect {
        self.connect
    }

    pub(super) fn admits(&self) -> Admission {
        self.admission
    }
}
