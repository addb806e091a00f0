//! How far a run is, on a terminal.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A bar of so many steps, unless nothing is to be printed.
pub(crate) fn bar(is_quiet: bool, steps: u64) -> ProgressBar {
    if is_quiet {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} eta {eta} {msg}");
    ProgressBar::with_draw_target(Some(steps), ProgressDrawTarget::stderr())
        .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}
