//! Counters that a device keeps.

/// One counter of a device: a stable name (`rnr_nak_sent`, `drop_bad_icrc`, ...) and its value
/// since the device was opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counter {
    /// Name in snake case; the same cause has the same name on every provider.
    pub name: &'static str,
    /// Events since open.
    pub value: u64,
}
