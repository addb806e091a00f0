//! A progress bar on a terminal.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::Read;
use std::time::{Duration, Instant};
use trunkline_softrdma::link::printable;

/// Time after which the bar is shown.
const SHOW_AFTER: Duration = Duration::from_secs(2);

/// Progress bar for the bytes read, hidden at first.
pub(super) struct Progress {
    bar: ProgressBar,
    wanted: bool,
    began: Instant,
}

impl Progress {
    pub(super) fn new(wanted: bool) -> Self {
        // The length can grow later only if the bar is created with one.
        let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::hidden());
        if let Ok(style) = ProgressStyle::with_template("{bar:40} {bytes} of {total_bytes}, {eta} left {msg}")
        {
            bar.set_style(style);
        }
        Self { bar, wanted, began: Instant::now() }
    }

    /// Counts the bytes read from `file`, whose length is known unless it is a pipe.
    pub(super) fn watch<R: Read>(&self, file: R, name: &str, length: Option<u64>) -> impl Read + use<R> {
        self.bar.set_message(printable(name));
        self.bar.inc_length(length.unwrap_or(0));
        self.bar.wrap_read(file)
    }

    /// Updates the bar, and shows it after [`SHOW_AFTER`]. Call it regularly.
    pub(super) fn tick(&self) {
        if self.wanted && self.bar.is_hidden() && self.began.elapsed() > SHOW_AFTER {
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
    }

    pub(super) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
