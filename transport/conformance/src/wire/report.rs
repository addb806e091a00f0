//! What is said about an exchange: a line for each check, and the sums.

use crate::check::{Deviation, Verdict};
use std::fmt::{Debug, Formatter};
use std::io::Write;

/// Where lines go, and what was counted.
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

    /// Says something at once; whoever reads it may wait for it.
    pub(super) fn note(&mut self, text: &str) {
        // A reader that has gone can be told nothing; the verdict is the exit status.
        let _ = writeln!(self.out, "{text}").and_then(|()| self.out.flush());
    }

    /// Counts bytes that were checked, at either end.
    pub(super) fn count(&mut self, bytes: usize, wrong: u64) {
        self.bytes += bytes as u64;
        self.wrong += wrong;
    }

    /// One line for a check.
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

    /// The sums; whether all was well.
    pub(super) fn end(&mut self) -> bool {
        let Self { bytes, wrong, failures, .. } = *self;
        self.note(&format!("{bytes} bytes, {wrong} of them wrong; {failures} failures"));
        wrong == 0 && failures == 0
    }
}
