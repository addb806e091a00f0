//! The requester's access to registered local memory.

use trunkline_verbs::Sge;

/// Error for a piece of local memory that cannot be used, because of an unknown lkey, another PD, an invalid range, or a
/// missing right to write. The work request ends in `LocalProtectionError`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an lkey, range or right of an SGE is wrong; check the memory region that it names")]
pub struct LocalFault;

/// Local memory of a requester. The device implements this trait for the PD of the QP.
///
/// The engine walks gather lists itself. A `piece` is a part of one posted SGE, whose `address` and `length` cover only the
/// bytes of one packet.
pub trait LocalMemory {
    /// Appends exactly `piece.length` bytes of `piece` to `out`. A device may instead copy them to where it assembles the
    /// packet, after the bytes already in `out`.
    ///
    /// # Errors
    /// [`LocalFault`]. `out` may then have grown; the engine truncates it.
    fn read(&self, piece: Sge, out: &mut Vec<u8>) -> Result<(), LocalFault>;

    /// Writes `bytes` to `piece`; the lengths are equal. Requires local write access.
    ///
    /// # Errors
    /// [`LocalFault`]. In this case nothing is written.
    fn write(&mut self, piece: Sge, bytes: &[u8]) -> Result<(), LocalFault>;
}
