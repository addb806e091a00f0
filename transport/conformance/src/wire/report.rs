//! The output of a run: one line per check, and the totals.

use crate::check::{Deviation, Verdict};
use std::fmt::{Debug, Formatter};
use std::io::Write;

/// Prints lines, and counts bytes and failures.
pub(super) struct Report<'a> {
    out: &'a mut dyn Write,
    bytes: u64,
    wrong: u64,
    failures: u32,
}

impl Debug for Report<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Report").field("failures", &self.failures).finish_non_exhaustive()
    }
}

impl<'a> Report<'a> {
    pub(super) fn new(out: &'a mut dyn Write) -> Self {
        Self { out, bytes: 0, wrong: 0, failures: 0 }
    }

    /// Prints a line and flushes it. A script may wait for the line.
    pub(super) fn note(&mut self, text: &str) {
        // Errors are ignored, because the exit status still reports the result.
        let _ = writeln!(self.out, "{text}").and_then(|()| self.out.flush());
    }

    /// Adds bytes that either end has checked to the totals.
    pub(super) fn count(&mut self, bytes: usize, wrong: u64) {
        self.bytes += bytes as u64;
        self.wrong += wrong;
    }

    /// Prints the line for a check. Returns true if the check passed.
    pub(super) fn verdict(&mut self, name: &str, verdict: Verdict) -> bool {
        match verdict {
            Ok(()) => self.note(&format!("pass {name}")),
            Err(Deviation::Skipped(why)) => self.note(&format!("skip {name}: {why}")),
            Err(error) => {
                self.fail(name, &error);
                return false;
            }
        }
        true
    }

    pub(super) fn fail(&mut self, name: &str, error: &Deviation) {
        let (Deviation::Failed(why) | Deviation::Skipped(why)) = error;
        self.note(&format!("fail {name}: {why}"));
        self.failures += 1;
    }

    /// Prints the totals. Returns true if every check passed.
    pub(super) fn end(&mut self) -> bool {
        let Self { bytes, wrong, failures, .. } = *self;
        self.note(&format!("{bytes} bytes, {wrong} of them wrong; {failures} failures"));
        wrong == 0 && failures == 0
    }
}
