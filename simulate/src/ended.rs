//! Ends of sessions, as nodes log them: with the peer's address and the cause.
//!
//! Owns the list of ends not yet taken. The hostile-peer rules read it, because the log is where a node names
//! the cause to its operator.

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::layer::{Context, Layer};

/// Collects ends of sessions from the log. Clones share the list.
#[derive(Debug, Clone, Default)]
pub(crate) struct EndedSessions(Arc<Mutex<Vec<(SocketAddr, String)>>>);

impl EndedSessions {
    /// Returns the ends since the last call: the lost peer and the cause.
    pub(crate) fn take(&self) -> Vec<(SocketAddr, String)> {
        std::mem::take(&mut *self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(SocketAddr, String)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S: Subscriber> Layer<S> for EndedSessions {
    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        let mut line = Line::default();
        event.record(&mut line);
        if line.message == "session down"
            && let Ok(peer) = line.peer.parse()
        {
            self.lock().push((peer, line.cause));
        }
    }
}

/// Fields of a log line that matter.
#[derive(Default)]
struct Line {
    message: String,
    peer: String,
    cause: String,
}

impl Line {
    fn field(&mut self, name: &str) -> Option<&mut String> {
        match name {
            "message" => Some(&mut self.message),
            "peer" => Some(&mut self.peer),
            "cause" => Some(&mut self.cause),
            _ => None,
        }
    }
}

impl Visit for Line {
    fn record_str(&mut self, field: &Field, value: &str) {
        if let Some(kept) = self.field(field.name()) {
            value.clone_into(kept);
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if let Some(kept) = self.field(field.name()) {
            *kept = format!("{value:?}");
        }
    }
}
