//! The calling side: channels that stubs call through, and the table of calls in flight.

mod answer;
mod call;
mod channel;
mod local;
mod response;
mod table;

pub(crate) use answer::{Answer, Outcome};
pub use call::{Call, Wait};
pub(crate) use channel::Submission;
pub use channel::{Channel, SharedWait};
pub(crate) use local::LocalQueue;
pub use local::{LocalChannel, LocalWait};
pub use response::Response;
pub(crate) use table::{Frame, NOBODY, Table};

use crate::Status;
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

/// Time limit of a call when its client has none of its own.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);

/// The first address that `server` names.
fn resolve(server: impl ToSocketAddrs) -> Result<SocketAddr, Status> {
    let not_run = |text: String| Status::not_run(crate::Code::InvalidArgument, text);
    let mut addresses =
        server.to_socket_addrs().map_err(|error| not_run(format!("the server's address: {error}")))?;
    addresses.next().ok_or_else(|| not_run("the server's name has no address".to_owned()))
}
