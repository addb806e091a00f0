//! A log that tests can read.

use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Stores the events of the software device up to a level, each as a line with its level and fields. Clones share
/// the events.
#[derive(Clone)]
pub(crate) struct Log {
    most: Level,
    text: Arc<Mutex<String>>,
}

impl Log {
    pub(crate) fn new(most: Level) -> Self {
        Self { most, text: Arc::default() }
    }

    pub(crate) fn text(&self) -> String {
        self.text.lock().unwrap().clone()
    }

    /// Returns the events of a level.
    pub(crate) fn lines(&self, level: Level) -> Vec<String> {
        let start = level.to_string();
        self.text().lines().filter(|line| line.starts_with(&start)).map(str::to_owned).collect()
    }
}

/// The fields of one event.
struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0 += &format!(" {field}={value:?}");
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= self.most && metadata.target().starts_with("trunkline_softrdma")
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        let mut line = Line(event.metadata().level().to_string());
        event.record(&mut line);
        *self.text.lock().unwrap() += &(line.0 + "\n");
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}
