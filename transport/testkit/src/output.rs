//! Writes to standard output and standard error. They do not panic if the stream is closed or full, and a closed pipe is
//! not an error.
//!
//! Developer tools such as the simulation use this module.

use std::io::{self, Write as _};

/// Writes text to standard output. A reader that has closed the pipe, such as `head`, is not an error.
///
/// # Errors
/// Returns the cause of the failure, such as a full disk.
pub fn out(text: &str) -> Result<(), String> {
    let mut stdout = io::stdout().lock();
    let written = writeln!(stdout, "{}", text.trim_end()).and_then(|()| stdout.flush());
    if written.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::BrokenPipe) {
        return Ok(());
    }
    written.map_err(|error| format!("cannot write to standard output: {error}"))
}

/// Writes a line to standard error. A failure is ignored, because there is no place to report it.
pub fn err(text: &str) {
    let _closed = writeln!(io::stderr(), "{text}");
}
