//! A report of results as one self-contained HTML file, without scripts, fonts or other files.
//!
//! `figures` selects the plots, `plot` and `axis` draw one, `page` combines them with the tables. Called by `report`, and
//! after a measurement by `--html`; both pass the contents of a `--json` file.

mod axis;
mod figures;
mod page;
mod plot;

use crate::failure::Failure;
use crate::progress;
use crate::saved::Saved;
use crate::whole_file;
use clap::Args;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// One HTML page from the JSON files of several runs.
///
/// It has plots of distributions, sweeps over sizes and calls under way, and tables, with the floors next to the calls.
/// Runs with --arrivals are drawn together: time by the rate at which calls were due. The page needs no other file.
///
/// Examples:
///   trunkline-bench latency --size 0..1M --json latency.json
///   trunkline-bench rate --outstanding 1..256 --json rate.json
///   trunkline-bench report latency.json rate.json --html report.html
///
/// Exit codes: 0 written; 1 the page cannot be written; 2 a file is not a result of this program.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Files {
    /// Files that --json has written.
    #[arg(value_name = "RESULT.json", required = true)]
    results: Vec<PathBuf>,
    /// Output file for the page.
    #[arg(long, value_name = "FILE")]
    html: PathBuf,
}

/// Writes a page with the results of several files.
///
/// # Errors
/// Fails if a file is not a result, or if the page cannot be written.
pub(crate) fn report(files: &Files) -> Result<(), Failure> {
    let results = files.results.iter().map(|path| Saved::read(path)).collect::<Result<Vec<_>, _>>()?;
    let began = Instant::now();
    write(&results, &files.html).map_err(Failure::Unwritten)?;
    progress::end(false, &format!("report: {} files", results.len()), began, [&files.html])
}

/// Writes a page. An existing page is replaced only when the new one is complete.
///
/// # Errors
/// Fails with the reason if the page cannot be written.
pub(crate) fn write(results: &[Saved], path: &Path) -> Result<(), String> {
    whole_file::write(path, page::page(results)?.as_bytes())
}

#[cfg(test)]
mod tests;
