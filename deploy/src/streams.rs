//! Writes to standard output and standard error.

use std::fmt::{Display, Write as _};
use std::io::{self, Write as _};
use std::process::ExitCode;
use trunkline_softrdma::link::printable;

/// Writes an escaped line to standard error. A write error is ignored, because the exit status reports the result.
/// `eprintln!` would panic.
pub(crate) fn warn(text: impl Display) {
    let text = printable(&text.to_string());
    let _unwritten = writeln!(io::stderr(), "trunkctl: {text}");
}

/// Prints a text and a newline to standard output.
///
/// # Errors
/// Returns the exit status: 0 if the reader has closed the pipe, or 1 after another error, which is reported.
pub(crate) fn print(text: &str) -> Result<(), u8> {
    writeln!(io::stdout(), "{text}").map_err(|error| {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return 0;
        }
        warn(format_args!("the output cannot be written: {error}"));
        1
    })
}

/// Prints the last text. Returns `status`, or 1 if `status` is 0 and the text cannot be written.
pub(crate) fn finish(text: &str, status: u8) -> ExitCode {
    status.max(print(text).err().unwrap_or_default()).into()
}

/// Writes a failure to standard error, and with `is_json` also as a line of JSON to standard output. Returns `status`.
pub(crate) fn fail(text: impl Display, is_json: bool, status: u8) -> ExitCode {
    let text = text.to_string();
    warn(&text);
    if is_json {
        // Programs that read the output get the exit status in each case.
        let _printed = print(&ascii(&serde_json::json!({ "error": text }).to_string()));
    }
    status.into()
}

/// Escapes non-ASCII characters and DEL in JSON. Strings may come from peers, and terminals interpret some characters.
pub(crate) fn ascii(json: &str) -> String {
    let mut escaped = String::with_capacity(json.len());
    for letter in json.chars() {
        if letter.is_ascii() && letter != '\x7f' {
            escaped.push(letter);
        } else {
            for unit in letter.encode_utf16(&mut [0; 2]) {
                // Writing to a string cannot fail.
                let _written = write!(escaped, "\\u{unit:04x}");
            }
        }
    }
    escaped
}
