//! The machine that a run was on, as far as its times depend on it, and this process's memory.

use serde::Serialize;
use std::fs;

/// What the operating system reports.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Machine {
    processor: String,
    cores: usize,
    kernel: String,
}

impl Machine {
    /// This one. What cannot be found out is "unknown".
    pub(crate) fn here() -> Self {
        let processors = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let processor = processors.lines().find(|line| line.starts_with("model name"));
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Self {
            processor: named(processor.and_then(|line| line.split_once(':')).map_or("", |(_, name)| name)),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: named(&kernel),
        }
    }
}

fn named(text: &str) -> String {
    let text = text.trim();
    if text.is_empty() { "unknown".to_owned() } else { text.to_owned() }
}

/// Resident memory of this process in bytes: now (`VmRSS:`) or at its peak (`VmHWM:`).
///
/// # Errors
/// That the operating system does not say.
pub(crate) fn memory(field: &str) -> Result<u64, String> {
    let status = fs::read_to_string("/proc/self/status")
        .map_err(|error| format!("cannot read /proc/self/status: {error}"))?;
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.map(|kib| kib << 10).ok_or_else(|| format!("/proc/self/status has no {field}"))
}
