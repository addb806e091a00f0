//! Collects the lines logged by a node.

use std::fmt::Debug;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, OnceLock, PoisonError};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Dispatch, Event, Level, Metadata, Subscriber};

/// Collected log lines of some levels, with their levels and fields. Clones share the lines.
#[derive(Clone)]
pub(crate) struct Logged {
    /// The least severe and the most severe level that are collected.
    levels: [Level; 2],
    lines: Arc<Mutex<Vec<String>>>,
}

impl Logged {
    /// Creates an empty collection for lines of one level.
    pub(crate) fn at(level: Level) -> Self {
        // While there is only one subscriber, the first thread that reaches a log line decides permanently whether the line
        // is enabled. A thread of another test has no subscriber and would disable the line. If there are two subscribers,
        // `tracing` asks both.
        static OTHER: LazyLock<Dispatch> =
            LazyLock::new(|| Dispatch::new(Logged { levels: [Level::ERROR; 2], lines: Arc::default() }));
        LazyLock::force(&OTHER);
        Self { levels: [level; 2], lines: Arc::default() }
    }

    /// Returns the lines of all threads of this process at level `INFO` and above, collected since the first call.
    pub(crate) fn by_all() -> &'static Self {
        static ALL: OnceLock<Logged> = OnceLock::new();
        ALL.get_or_init(|| {
            let all = Self { levels: [Level::INFO, Level::ERROR], ..Self::at(Level::WARN) };
            tracing::subscriber::set_global_default(all.clone()).unwrap();
            all
        })
    }

    /// Returns the number of lines that contain a text.
    pub(crate) fn count(&self, text: &str) -> usize {
        self.lines().iter().filter(|line| line.contains(text)).count()
    }

    /// Returns the lines so far.
    pub(crate) fn lines(&self) -> MutexGuard<'_, Vec<String>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0 += &format!(" {field}={value:?}");
    }
}

impl Subscriber for Logged {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        self.levels[1] <= *metadata.level() && *metadata.level() <= self.levels[0]
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        let mut line = Line(event.metadata().level().to_string());
        event.record(&mut line);
        self.lines().push(line.0);
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}
