//! Nodes that do not understand each other: refused at once, with what one of them has to change.

#![allow(clippy::tests_outside_test_module, reason = "an integration test is a test module of its own")]
#![expect(clippy::disallowed_methods, reason = "nodes in real time, and a listener on a thread of its own")]

mod protocol;
mod settings;

use std::time::Duration;
use trunkline::Status;

/// So soon a call has its refusal.
const SOON: Duration = Duration::from_millis(100);

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
