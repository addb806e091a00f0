//! The progress bar of a run, on a terminal, and the line at its end.

use crate::failure::Failure;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::path::PathBuf;
use std::time::Instant;
use trunkline_testkit::output;

/// Creates a bar of the given number of steps, hidden if the run is quiet.
pub(crate) fn bar(is_quiet: bool, steps: u64) -> ProgressBar {
    if is_quiet {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} eta {eta} {msg}");
    ProgressBar::with_draw_target(Some(steps), ProgressDrawTarget::stderr())
        .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// Prints the last line of a successful run, unless it is quiet: short results, elapsed time, written files.
///
/// # Errors
/// Fails if standard output cannot be written.
pub(crate) fn end<'a>(
    is_quiet: bool,
    what: &str,
    began: Instant,
    written: impl IntoIterator<Item = &'a PathBuf>,
) -> Result<(), Failure> {
    if is_quiet {
        return Ok(());
    }
    let files = written.into_iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(" and ");
    let files = if files.is_empty() { files } else { format!("; wrote {files}") };
    Ok(output::out(&format!("{what}; took {:.1} s{files}", began.elapsed().as_secs_f64()))?)
}
