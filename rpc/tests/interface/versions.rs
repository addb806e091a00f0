//! Nodes that do not understand each other: refused at once, with what one of them has to change.

mod protocol;
mod settings;

use std::time::Duration;
use trunkline::Status;

/// So soon a call has its refusal.
const SOON: Duration = Duration::from_millis(500);

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
