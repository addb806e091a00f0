//! Properties of the machine that affect measured times, and the memory of this process.

use serde::Serialize;
use std::fs;

/// The machine as the operating system reports it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Machine {
    processor: String,
    cores: usize,
    /// True if the system runs on a hypervisor.
    is_virtual: bool,
    kernel: String,
}

/// Version of the program and time of the run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Stamp {
    pub(crate) version: &'static str,
    /// Date and time in UTC, to the minute, such as `2026-01-31 18:05 UTC`.
    pub(crate) date: String,
}

impl Stamp {
    /// Returns the version and a time in the format of `trunkline_transport::utc`.
    pub(crate) fn at(utc: &str) -> Self {
        Self { version: env!("CARGO_PKG_VERSION"), date: format!("{} {} UTC", &utc[..10], &utc[11..16]) }
    }
}

impl Machine {
    /// Describes the machine in a few words, such as `AMD EPYC 7B13, 2 cores, virtual machine, Linux 6.1.0`.
    pub(crate) fn class(&self) -> String {
        let Self { processor, cores, is_virtual, kernel } = self;
        let kind = if *is_virtual { "virtual machine" } else { "no virtual machine" };
        format!("{processor}, {cores} cores, {kind}, Linux {kernel}")
    }

    /// Describes this machine. Unknown properties have the value "unknown".
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

/// Returns the resident memory of this process in bytes, which is the current size (`VmRSS:`) or the peak (`VmHWM:`).
///
/// # Errors
/// Returns an error if the operating system does not report the value.
pub(crate) fn memory(field: &str) -> Result<u64, String> {
    let status = fs::read_to_string("/proc/self/status")
        .map_err(|error| format!("cannot read /proc/self/status: {error}"))?;
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.map(|kib| kib << 10).ok_or_else(|| format!("/proc/self/status has no {field}"))
}
