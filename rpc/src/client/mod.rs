//! The calling side: channels for stubs, and the calls in flight.

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

use crate::client::routes::Target;
use crate::status::reason::Reason;
use crate::status::{Code, Status};

/// Returns the status of a call whose arguments cannot be encoded.
fn cannot_encode(error: String) -> Status {
    let text = format!("the arguments cannot be encoded: {error}");
    Status::not_run(Code::Internal, text).because(Reason::BadArguments)
}

/// Returns the status of a call made after the node has shut down.
fn shut_down() -> Status {
    Status::not_run(Code::Unavailable, "this node has shut down").because(Reason::Draining)
}

/// Returns the target, or a status if it has no usable address.
fn checked(server: impl Into<Target>) -> Result<Target, Status> {
    let not_run = |why| Status::not_run(Code::InvalidArgument, why).because(Reason::Misuse);
    server.into().checked().map_err(not_run)
}
