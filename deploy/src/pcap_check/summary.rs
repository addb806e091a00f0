//! Summary of one file or of all files.

use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use trunkline_roce::pcap::Skip;
use trunkline_softrdma::link::printable;

/// Counters for one file.
#[derive(Debug, Clone, Serialize)]
pub(super) struct FileSummary {
    pub(super) file: String,
    pub(super) frames: u64,
    pub(super) packets: u64,
    /// Number of RoCE packets with faults.
    pub(super) faulty: u64,
    /// Number of UDP datagrams that are not RoCE.
    pub(super) other_udp: u64,
    /// Frames without a UDP datagram, by cause.
    pub(super) skipped: BTreeMap<&'static str, u64>,
    /// Error that ended the reading, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<String>,
}

impl FileSummary {
    pub(super) const fn new(file: String) -> Self {
        Self { file, frames: 0, packets: 0, faulty: 0, other_udp: 0, skipped: BTreeMap::new(), error: None }
    }

    /// Returns true if neither the file nor its packets have faults.
    #[must_use]
    pub(super) const fn is_good(&self) -> bool {
        self.faulty == 0 && self.error.is_none()
    }

    pub(super) fn skip(&mut self, skip: Skip) {
        *self.skipped.entry(skip.name()).or_default() += 1;
    }

    pub(super) fn add(&mut self, file: &Self) {
        self.frames += file.frames;
        self.packets += file.packets;
        self.faulty += file.faulty;
        self.other_udp += file.other_udp;
        for (cause, count) in &file.skipped {
            *self.skipped.entry(cause).or_default() += count;
        }
        if let (None, Some(error)) = (&self.error, &file.error) {
            self.error = Some(format!("{}: {error}", file.file));
        }
    }
}

impl fmt::Display for FileSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.is_good() { "good" } else { "BAD" };
        write!(f, "{}: {verdict}: {} RoCE packets", printable(&self.file), self.packets)?;
        write!(f, ", {} with faults, {} frames", self.faulty, self.frames)?;
        let mut others: Vec<_> =
            self.skipped.iter().map(|(cause, count)| format!("{count} {cause}")).collect();
        if self.other_udp > 0 {
            others.push(format!("{} other UDP", self.other_udp));
        }
        if !others.is_empty() {
            write!(f, " (passed over: {})", others.join(", "))?;
        }
        match &self.error {
            Some(error) => write!(f, "; {}", printable(error)),
            None => Ok(()),
        }
    }
}
