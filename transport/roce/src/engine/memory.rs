//! Access of the requester to registered local memory.

use trunkline_verbs::Sge;

/// A piece of local memory cannot be used: unknown lkey, another PD, out of range, or no right to
/// write. The work request ends in `LocalProtectionError`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an lkey, range or right of an SGE is wrong; check the memory region that it names")]
pub struct LocalFault;

/// Local memory as a requester uses it. The device implements it over the PD of the QP.
///
/// The engine walks gather lists itself: a `piece` is a part of one posted SGE, with `address` and
/// `length` already narrowed to the bytes of one packet.
pub trait LocalMemory {
    /// Appends the bytes of `piece` to `out`, exactly `piece.length` of them, or copies them to where the device
    /// assembles the packet, after the bytes that `out` already has.
    ///
    /// # Errors
    /// [`LocalFault`]. `out` may then have grown; the engine truncates it.
    fn read(&self, piece: Sge, out: &mut Vec<u8>) -> Result<(), LocalFault>;

    /// Writes `bytes` to `piece`; the lengths are equal. Needs local write access.
    ///
    /// # Errors
    /// [`LocalFault`], without a write.
    fn write(&mut self, piece: Sge, bytes: &[u8]) -> Result<(), LocalFault>;
}
