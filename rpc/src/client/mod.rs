//! The calling side: channels that stubs call through, and the calls in flight.

mod attempts;
mod calls;
mod cancels;
mod channel;
mod health_watch;
mod held;
mod interceptor;
mod local;
mod methods;
mod new_call;
mod options;
mod peer_queue;
mod pending_call;
pub(crate) mod routes;
mod statuses;
mod waiting;

pub(crate) use calls::Calls;
pub use channel::{Channel, SharedWait};
pub(crate) use health_watch::follow_health;
pub use interceptor::{ClientCall, ClientInterceptor};
pub use local::{LocalChannel, LocalWait};
pub use options::CallOptions;
pub(crate) use pending_call::is_one_way;

use crate::client::routes::misuse;
use crate::status::reason::Reason;
use crate::status::{Code, Status};
use std::net::{SocketAddr, ToSocketAddrs};

/// Returns the status of a call whose arguments the codec refuses.
fn cannot_encode(error: String) -> Status {
    let text = format!("the arguments cannot be encoded: {error}");
    Status::not_run(Code::Internal, text).because(Reason::BadArguments)
}

/// Returns the status of a call made after the node has shut down.
fn shut_down() -> Status {
    Status::not_run(Code::Unavailable, "this node has shut down").because(Reason::Draining)
}

/// Returns the first address that `server` names. Blocks only to resolve a host name.
fn resolve(server: impl ToSocketAddrs) -> Result<SocketAddr, Status> {
    let not_run = |text: String| Status::not_run(Code::InvalidArgument, text).because(Reason::Misuse);
    let mut addresses = server.to_socket_addrs().map_err(|error| {
        not_run(format!("the server's address, as HOST:PORT or IP:PORT, cannot be resolved: {error}"))
    })?;
    match addresses.next() {
        Some(address) => misuse(address).map_or(Ok(address), |why| Err(not_run(why))),
        None => Err(not_run("the server's name has no address".to_owned())),
    }
}
