//! Event counters of a device.

/// A counter of a device with a stable name, such as `rnr_nak_sent` or `drop_bad_icrc`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counter {
    /// Name in snake case; the same cause has the same name on every provider.
    pub name: &'static str,
    /// Number of events since the device was opened.
    pub value: u64,
}
