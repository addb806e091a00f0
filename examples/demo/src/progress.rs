//! Progress bars on a terminal, or one line per phase otherwise.

use indicatif::{ProgressBar, ProgressStyle};
use std::io::{IsTerminal as _, Write as _};

/// Progress bar of one phase.
pub(crate) struct Progress {
    bar: ProgressBar,
    name: &'static str,
}

impl Progress {
    /// Creates the bar of a phase that counts bytes.
    pub(crate) fn bytes(name: &'static str, total: u64) -> Self {
        Self::new(name, total, "{msg:9} {bar:32} {bytes}/{total_bytes} {bytes_per_sec} eta {eta}")
    }

    /// Creates the bar of a phase that counts calls.
    pub(crate) fn calls(name: &'static str, total: u64) -> Self {
        Self::new(name, total, "{msg:9} {bar:32} {pos}/{len} {per_sec} eta {eta}")
    }

    pub(crate) fn add(&self, more: u64) {
        self.bar.inc(more);
    }

    /// Ends the bar after a successful phase.
    pub(crate) fn done(self) {
        self.bar.finish_and_clear();
        if !std::io::stderr().is_terminal() {
            let _closed = writeln!(std::io::stderr(), "demo: {} done", self.name);
        }
    }

    fn new(name: &'static str, total: u64, template: &str) -> Self {
        let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
        let bar = ProgressBar::new(total).with_style(style).with_message(name);
        Self { bar, name }
    }
}
