//! Event counters of a device.

/// One counter of a device: a stable name (`rnr_nak_sent`, `drop_bad_icrc`, ...) and its value
/// since the device was opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counter {
    /// Name in snake case; the same cause has the same name on every provider.
    pub name: &'static str,
    /// Number of events since the device was opened.
    pub value: u64,
}
