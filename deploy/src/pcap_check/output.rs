//! Output of results as text or as JSON lines.

use super::{FileSummary, PacketReport};
use crate::streams::ascii;
use serde::Serialize;
use std::io::{self, Write};
use trunkline_softrdma::link::printable;

pub(super) struct Output<W> {
    to: W,
    json: bool,
    quiet: bool,
    has_faults: bool,
}

/// A line of JSON, which contains its kind and then the fields of its value.
#[derive(Serialize)]
struct Line<'a, T> {
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<&'a str>,
    #[serde(flatten)]
    value: &'a T,
}

impl<W: Write> Output<W> {
    pub(super) const fn new(to: W, json: bool, quiet: bool) -> Self {
        Self { to, json, quiet, has_faults: false }
    }

    /// Returns true if a packet or a file had a fault, even if printing it failed.
    pub(super) const fn has_faults(&self) -> bool {
        self.has_faults
    }

    pub(super) fn packet(&mut self, file: &str, packet: &PacketReport) -> io::Result<()> {
        self.has_faults |= !packet.faults.is_empty();
        if self.quiet && packet.faults.is_empty() {
            return Ok(());
        }
        if self.json {
            return self.line("packet", Some(file), packet);
        }
        if self.quiet {
            // In this mode, no other line contains the file's name.
            write!(self.to, "{}: ", printable(file))?;
        }
        writeln!(self.to, "{packet}")
    }

    /// Prints the summary of a file, after its packets.
    pub(super) fn file(&mut self, summary: &FileSummary) -> io::Result<()> {
        self.has_faults |= !summary.is_good();
        match (self.json, self.quiet) {
            (true, _) => self.line("file", None, summary)?,
            (false, true) if summary.is_good() => {}
            (false, _) => writeln!(self.to, "{summary}")?,
        }
        self.to.flush()
    }

    pub(super) fn summary(&mut self, total: &FileSummary, files: usize) -> io::Result<()> {
        self.has_faults |= !total.is_good();
        if self.json {
            self.line("summary", None, total)?;
        } else if files > 1 || self.quiet || !total.is_good() {
            writeln!(self.to, "{total}")?;
        }
        self.to.flush()
    }

    fn line<T: Serialize>(&mut self, kind: &'static str, file: Option<&str>, value: &T) -> io::Result<()> {
        writeln!(self.to, "{}", ascii(&serde_json::to_string(&Line { kind, file, value })?))
    }
}
