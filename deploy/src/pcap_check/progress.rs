//! Progress bar on a terminal.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::Read;
use std::time::{Duration, Instant};
use trunkline_softrdma::link::printable;

/// Delay after which the bar is shown.
const SHOW_AFTER: Duration = Duration::from_secs(2);

/// Progress bar that counts bytes. It is hidden at first.
pub(super) struct Progress {
    bar: ProgressBar,
    wanted: bool,
    began: Instant,
}

impl Progress {
    pub(super) fn new(wanted: bool) -> Self {
        // A bar created without a length cannot get one later.
        let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::hidden());
        if let Ok(style) = ProgressStyle::with_template("{bar:40} {bytes} of {total_bytes}, {eta} left {msg}")
        {
            bar.set_style(style);
        }
        Self { bar, wanted, began: Instant::now() }
    }

    /// Returns a reader that counts the bytes read from `file`. `length` is `None` for a pipe.
    pub(super) fn watch<R: Read>(&self, file: R, name: &str, length: Option<u64>) -> impl Read + use<R> {
        self.bar.set_message(printable(name));
        self.bar.inc_length(length.unwrap_or(0));
        self.bar.wrap_read(file)
    }

    /// Updates the bar, and shows it after [`SHOW_AFTER`]. Must be called regularly.
    pub(super) fn tick(&self) {
        if self.wanted && self.bar.is_hidden() && self.began.elapsed() > SHOW_AFTER {
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
    }

    pub(super) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
