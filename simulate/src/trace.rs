//! What happened, line by line, for a reader; and a checksum of all of it, to compare runs.

use std::cell::RefCell;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use trunkline_verbs::Time;

/// A run's trace. Clones write to the same.
#[derive(Debug, Clone)]
pub(crate) struct Trace(Rc<Inner>);

#[derive(Debug)]
struct Inner {
    file: Option<Arc<Mutex<BufWriter<File>>>>,
    checksum: RefCell<crc32fast::Hasher>,
    last: RefCell<Time>,
}

impl Trace {
    /// A trace that keeps only its checksum.
    pub(crate) fn checksum_only() -> Self {
        Self::new(None)
    }

    /// A trace that is written to a file, too.
    pub(crate) fn to_file(path: &Path) -> std::io::Result<Self> {
        Ok(Self::new(Some(Arc::new(Mutex::new(BufWriter::new(File::create(path)?))))))
    }

    fn new(file: Option<Arc<Mutex<BufWriter<File>>>>) -> Self {
        let checksum = RefCell::new(crc32fast::Hasher::new());
        Self(Rc::new(Inner { file, checksum, last: RefCell::default() }))
    }

    /// Whether lines are kept; whoever has much to compute for a line asks first.
    pub(crate) fn is_kept(&self) -> bool {
        self.0.file.is_some()
    }

    /// Adds a line.
    pub(crate) fn line(&self, now: Time, who: &str, what: std::fmt::Arguments<'_>) {
        *self.0.last.borrow_mut() = now;
        if let Some(file) = &self.0.file {
            let line = format!("{:>12}.{:03}us {who:<10} {what}\n", now.0 / 1000, now.0 % 1000);
            let _full_disk = file.lock().unwrap_or_else(PoisonError::into_inner).write_all(line.as_bytes());
        }
    }

    /// Mixes something that must be equal in two runs of one seed into the checksum.
    pub(crate) fn mix(&self, number: u64) {
        self.0.checksum.borrow_mut().update(&number.to_le_bytes());
    }

    /// The checksum of all that was mixed in so far.
    pub(crate) fn checksum(&self) -> u32 {
        self.0.checksum.borrow().clone().finalize()
    }

    /// Writes the log of a node's own code into the trace, while the guard lives.
    pub(crate) fn capture_log(&self) -> Option<tracing::subscriber::DefaultGuard> {
        let file = self.0.file.clone()?;
        let subscriber = tracing_subscriber::fmt()
            .without_time()
            .with_ansi(false)
            .with_max_level(tracing::Level::DEBUG)
            .with_writer(move || LogLine(Arc::clone(&file)))
            .finish();
        Some(tracing::subscriber::set_default(subscriber))
    }

    /// Everything is in the file now.
    pub(crate) fn flush(&self) {
        if let Some(file) = &self.0.file {
            let _full_disk = file.lock().unwrap_or_else(PoisonError::into_inner).flush();
        }
    }
}

/// A line of a node's log.
struct LogLine(Arc<Mutex<BufWriter<File>>>);

impl Write for LogLine {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
