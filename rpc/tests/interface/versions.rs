//! Nodes that cannot understand each other are refused at once, with the change that one of them needs.

mod protocol;
mod settings;

use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use trunkline::Status;
use trunkline_testkit::wait_until;

/// Time limit of each wait, for a loaded machine.
const LIMIT: Duration = Duration::from_secs(60);
/// Time limit of calls that must end long before it.
const HOUR: Duration = Duration::from_secs(3600);

/// Returns the outcome of a call, which must end long before [`HOUR`].
fn early<T>(call: impl Future<Output = T>) -> T {
    let mut call = pin!(call);
    wait_until("the call ends early", LIMIT, || {
        match call.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(outcome) => Some(outcome),
            Poll::Pending => None,
        }
    })
}

#[trunkline::service]
trait Ping {
    async fn ping(&self) -> Result<(), Status>;
}

struct Pong;

impl Ping for Pong {
    async fn ping(&self) -> Result<(), Status> {
        Ok(())
    }
}
