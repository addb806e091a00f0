//! Trace of a run, with one readable line per event, and a checksum for comparing runs.
//!
//! Owns the trace file and its line format: time in seconds since the start of the run, actor, event. All parts of a run,
//! including the log of the nodes, write to the trace in the order of events. Lines may depend only on virtual time and
//! the seed, so that the same seed gives the same file. Write errors do not fail a run. [`Trace::close`] returns the
//! first error.

use std::cell::RefCell;
use std::fmt;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::rc::Rc;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};
use trunkline_verbs::Time;

/// Virtual time at which a run begins. It is not 0, because times before 0 would then go undetected.
pub(crate) const START: Time = Time(1_000_000_000);

/// A second subscriber, which receives nothing, next to the subscriber of the run. `tracing` decides once per process
/// whether a log line is enabled. With a single subscriber, the first thread that reaches the line decides. If this
/// thread had no subscriber, the line would be disabled in all runs. With two subscribers, `tracing` asks both.
static OTHER: LazyLock<tracing::Dispatch> =
    LazyLock::new(|| tracing::Dispatch::new(tracing_subscriber::registry().with(LevelFilter::INFO)));

/// A time in the format of traces, in seconds since the start of the run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Since(pub(crate) Time);

impl fmt::Display for Since {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ns = self.0.since(START);
        write!(f, "{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000)
    }
}

/// Trace of a run. Clones write to the same trace.
#[derive(Debug, Clone)]
pub(crate) struct Trace(Rc<Inner>);

#[derive(Debug)]
struct Inner {
    pen: Option<Pen>,
    checksum: RefCell<crc32fast::Hasher>,
    ended: EndedSessions,
}

impl Trace {
    pub(crate) fn checksum_only() -> Self {
        Self::new(None)
    }

    /// Creates a trace that is also written to a file.
    pub(crate) fn to_file(path: &Path) -> io::Result<Self> {
        Ok(Self::new(Some(Pen::new(BufWriter::new(File::create(path)?)))))
    }

    fn new(pen: Option<Pen>) -> Self {
        Self(Rc::new(Inner {
            pen,
            checksum: RefCell::new(crc32fast::Hasher::new()),
            ended: EndedSessions::default(),
        }))
    }

    /// Returns true if lines are kept. Callers check this before they format an expensive line.
    pub(crate) fn is_kept(&self) -> bool {
        self.0.pen.is_some()
    }

    /// Returns a writer for lines from outside the run's thread, or `None` if lines are not kept.
    pub(crate) fn pen(&self) -> Option<Pen> {
        self.0.pen.clone()
    }

    pub(crate) fn line(&self, now: Time, who: &str, what: fmt::Arguments<'_>) {
        if let Some(pen) = &self.0.pen {
            pen.line(now, who, what);
        }
    }

    /// Sets the time and the name for subsequent log lines.
    pub(crate) fn enter(&self, now: Time, who: &str) {
        if let Some(pen) = &self.0.pen {
            let mut sheet = pen.lock();
            sheet.now = now;
            who.clone_into(&mut sheet.who);
        }
    }

    pub(crate) fn lines(&self) -> u64 {
        self.0.pen.as_ref().map_or(0, |pen| pen.lock().lines)
    }

    /// Writes the outcome of the run, at the time of the last line.
    pub(crate) fn verdict(&self, what: fmt::Arguments<'_>) {
        if let Some(pen) = &self.0.pen {
            let now = pen.lock().now;
            pen.line(now, "verdict", what);
        }
    }

    /// Adds a number to the checksum. The number must be equal in two runs of one seed.
    pub(crate) fn mix(&self, number: u64) {
        self.0.checksum.borrow_mut().update(&number.to_le_bytes());
    }

    /// Returns the checksum of all numbers added.
    pub(crate) fn checksum(&self) -> u32 {
        self.0.checksum.borrow().clone().finalize()
    }

    /// Captures the log of the nodes while the guard exists. Records the ends of sessions, and writes all lines to the
    /// trace.
    pub(crate) fn capture_log(&self) -> tracing::subscriber::DefaultGuard {
        LazyLock::force(&OTHER);
        let ended = self.0.ended.clone();
        let Some(pen) = self.0.pen.clone() else {
            let subscriber = tracing_subscriber::registry().with(ended).with(LevelFilter::INFO);
            return tracing::subscriber::set_default(subscriber);
        };
        let subscriber = tracing_subscriber::fmt()
            .without_time()
            .with_ansi(false)
            .with_max_level(tracing::Level::DEBUG)
            .with_writer(move || LogLine(pen.clone()))
            .finish()
            .with(ended);
        tracing::subscriber::set_default(subscriber)
    }

    /// Returns the sessions that have ended since the last call, each as the lost peer and the logged cause.
    pub(crate) fn ended_sessions(&self) -> Vec<(SocketAddr, String)> {
        self.0.ended.take()
    }

    /// Flushes the file. Returns the first write error, if any.
    pub(crate) fn close(&self) -> io::Result<()> {
        let Some(pen) = &self.0.pen else { return Ok(()) };
        let mut sheet = pen.lock();
        match sheet.error.take() {
            Some(error) => Err(error),
            None => sheet.file.flush(),
        }
    }
}

/// Writer of trace lines that can be used on any thread. Clones write to the same trace.
#[derive(Debug, Clone)]
pub(crate) struct Pen(Arc<Mutex<Sheet>>);

struct Sheet {
    file: BufWriter<File>,
    lines: u64,
    /// First write error. Lines after it are not written.
    error: Option<io::Error>,
    /// Time of the last line, and name of the machine that was running.
    now: Time,
    who: String,
}

impl fmt::Debug for Sheet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sheet").field("lines", &self.lines).finish_non_exhaustive()
    }
}

impl Pen {
    fn new(file: BufWriter<File>) -> Self {
        let sheet = Sheet { file, lines: 0, error: None, now: START, who: "run".to_owned() };
        Self(Arc::new(Mutex::new(sheet)))
    }

    pub(crate) fn line(&self, now: Time, who: &str, what: fmt::Arguments<'_>) {
        let mut sheet = self.lock();
        sheet.now = now;
        sheet.write(now, who, what);
    }

    fn lock(&self) -> MutexGuard<'_, Sheet> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sheet {
    fn write(&mut self, now: Time, who: &str, what: fmt::Arguments<'_>) {
        self.lines += 1;
        if self.error.is_none()
            && let Err(error) = writeln!(self.file, "{:>14} {who:<24} {what}", Since(now).to_string())
        {
            self.error = Some(error);
        }
    }
}

/// A line in a node's log. Write errors are kept in the trace, because otherwise the logging library would report an
/// error for each line.
struct LogLine(Pen);

impl Write for LogLine {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut sheet = self.0.lock();
        let (now, who) = (sheet.now, sheet.who.clone());
        for line in String::from_utf8_lossy(bytes).lines() {
            sheet.write(now, &who, format_args!("log: {}", line.trim()));
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Ends of sessions that have not been taken, each as the address of the peer and the cause in the node's log. The rules
/// for hostile peers check the log because it reports the cause to operators. Clones share the list.
#[derive(Debug, Clone, Default)]
struct EndedSessions(Arc<Mutex<Vec<(SocketAddr, String)>>>);

impl EndedSessions {
    fn take(&self) -> Vec<(SocketAddr, String)> {
        std::mem::take(&mut *self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(SocketAddr, String)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S: Subscriber> Layer<S> for EndedSessions {
    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        let mut line = Fields::default();
        event.record(&mut line);
        if line.message == "session down"
            && let Ok(peer) = line.peer.parse()
        {
            self.lock().push((peer, line.cause));
        }
    }
}

#[derive(Default)]
struct Fields {
    message: String,
    peer: String,
    cause: String,
}

impl Fields {
    fn field(&mut self, name: &str) -> Option<&mut String> {
        match name {
            "message" => Some(&mut self.message),
            "peer" => Some(&mut self.peer),
            "cause" => Some(&mut self.cause),
            _ => None,
        }
    }
}

impl Visit for Fields {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_since_start_of_run() {
        assert_eq!(Since(START).to_string(), "0.000000000");
        assert_eq!(Since(START.plus_ns(1_189_945_003)).to_string(), "1.189945003");
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "another thread is what is tested")]
    fn thread_without_trace_does_not_silence_log_lines() {
        let log = || tracing::warn!("line of a node");
        let file = std::env::temp_dir().join(format!("trunkline-simulate-{}-log", std::process::id()));
        let trace = Trace::to_file(&file).unwrap();
        let captured = trace.capture_log();
        std::thread::spawn(log).join().unwrap();
        log();
        drop(captured);
        trace.close().unwrap();
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        assert_eq!(text.matches("line of a node").count(), 1, "{text}");
    }

    #[test]
    fn full_disk_is_reported_at_end() {
        let trace = Trace::to_file(Path::new("/dev/full")).unwrap();
        for _ in 0..10_000 {
            trace.line(START, "test", format_args!("a line that fills the buffer"));
        }
        assert_eq!(trace.close().unwrap_err().kind(), io::ErrorKind::StorageFull);
        let short = Trace::to_file(Path::new("/dev/full")).unwrap();
        short.line(START, "test", format_args!("a line that stays in the buffer"));
        assert_eq!(short.close().unwrap_err().kind(), io::ErrorKind::StorageFull);
    }
}
