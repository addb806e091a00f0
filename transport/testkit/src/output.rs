//! Standard output and standard error, without a panic when either is closed or full, and without an error when a reader has closed the pipe.
//!
//! Used by the tools that developers run, such as the simulation: only these write there.

use std::io::{self, Write as _};

/// Writes a line, or several, to standard output. A reader that has closed the pipe, such as `head`, has read enough.
///
/// # Errors
/// The cause, such as a full disk.
pub fn out(text: &str) -> Result<(), String> {
    let mut stdout = io::stdout().lock();
    let written = writeln!(stdout, "{}", text.trim_end()).and_then(|()| stdout.flush());
    if written.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::BrokenPipe) {
        return Ok(());
    }
    written.map_err(|error| format!("cannot write to standard output: {error}"))
}

/// Writes a line to standard error. Nobody is left to tell when that fails.
pub fn err(text: &str) {
    let _closed = writeln!(io::stderr(), "{text}");
}
