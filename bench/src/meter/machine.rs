//! The properties of the machine that affect times, and the memory of this process.

use serde::Serialize;
use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

/// The machine as the operating system reports it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Machine {
    processor: String,
    cores: usize,
    /// True if a hypervisor runs this system.
    is_virtual: bool,
    kernel: String,
}

/// The program's version and the time of the run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Stamp {
    pub(crate) version: &'static str,
    /// Day and minute in UTC, such as `2026-01-31 18:05 UTC`.
    pub(crate) date: String,
}

impl Stamp {
    /// Returns the version and the current time.
    pub(crate) fn now() -> Self {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { version: env!("CARGO_PKG_VERSION"), date: date(since_1970.as_secs()) }
    }
}

/// Formats seconds since 1970 in the Gregorian calendar, in which years begin with March so that the leap day is the last.
fn date(seconds: u64) -> String {
    let (days, minutes) = (seconds / 86_400 + 719_468, seconds % 86_400 / 60);
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (year, month) = if month < 10 { (year, month + 3) } else { (year + 1, month - 9) };
    format!("{:04}-{month:02}-{day:02} {:02}:{:02} UTC", era * 400 + year, minutes / 60, minutes % 60)
}

impl Machine {
    /// Describes the machine in a few words, such as `AMD EPYC 7B13, 2 cores, virtual machine, Linux 6.1.0`.
    pub(crate) fn class(&self) -> String {
        let Self { processor, cores, is_virtual, kernel } = self;
        let kind = if *is_virtual { "virtual machine" } else { "no virtual machine" };
        format!("{processor}, {cores} cores, {kind}, Linux {kernel}")
    }

    /// Describes this machine. Properties that cannot be determined are "unknown".
    pub(crate) fn here() -> Self {
        let processors = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let processor = processors.lines().find(|line| line.starts_with("model name"));
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Self {
            processor: named(processor.and_then(|line| line.split_once(':')).map_or("", |(_, name)| name)),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            is_virtual: processors
                .lines()
                .any(|line| line.starts_with("flags") && line.split(' ').any(|flag| flag == "hypervisor")),
            kernel: named(&kernel),
        }
    }
}

fn named(text: &str) -> String {
    let text = text.trim();
    if text.is_empty() { "unknown".to_owned() } else { text.to_owned() }
}

/// Returns the resident memory of this process in bytes: now (`VmRSS:`) or at its peak (`VmHWM:`).
///
/// # Errors
/// Fails if the operating system does not report it.
pub(crate) fn memory(field: &str) -> Result<u64, String> {
    let status = fs::read_to_string("/proc/self/status")
        .map_err(|error| format!("cannot read /proc/self/status: {error}"))?;
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.map(|kib| kib << 10).ok_or_else(|| format!("/proc/self/status has no {field}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, expected) in [
            (0, "1970-01-01 00:00 UTC"),
            (951_782_399, "2000-02-28 23:59 UTC"),
            (951_782_400, "2000-02-29 00:00 UTC"),
            (951_868_800, "2000-03-01 00:00 UTC"),
            (1_735_689_599, "2024-12-31 23:59 UTC"),
            (4_107_542_400, "2100-03-01 00:00 UTC"),
        ] {
            assert_eq!(date(seconds), expected);
        }
    }
}
