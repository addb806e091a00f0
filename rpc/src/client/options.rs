//! The options of single calls.

use std::time::Duration;
use trunkline_transport::Connect;

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
}

impl CallOptions {
    /// The time limit of the client, and [`Connect::FailFast`].
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the time limit of a call, in place of the client's. It counts from the moment a call is made,
    /// which is when the client's method is called.
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

    /// The time limit of a call through a client that has this one.
    pub(super) fn limit(&self, of_client: Duration) -> Duration {
        self.timeout.unwrap_or(of_client)
    }

    pub(super) fn connects(&self) -> Connect {
        self.connect
    }
}
