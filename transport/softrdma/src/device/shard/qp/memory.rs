//! Local memory of a QP's work requests.
//!
//! Combines the key table with the QP's protection domain for the requester.

use crate::device::shard::local::{ArrivedPayload, RingPayload};
use crate::device::tables::keys::{KeyRange, KeyView, PdNumber, Refused};
use trunkline_roce::engine::{LocalFault, LocalMemory};
use trunkline_verbs::{Access, Sge};

/// Memory to which a QP's lkeys refer.
#[derive(Debug)]
pub(in crate::device::shard) struct QpMemory<'a> {
    pub(in crate::device::shard) keys: KeyView<'a>,
    pub(in crate::device::shard) pd: PdNumber,
    /// Destination for the payload of the packet being written, if the packet goes through a ring.
    pub(in crate::device::shard) ring: Option<&'a RingPayload<'a>>,
    /// Payload, in a ring, of the packet being read. The engine then sees only the payload's length.
    pub(in crate::device::shard) arrived: Option<ArrivedPayload<'a>>,
}

impl LocalMemory for QpMemory<'_> {
    fn read(&self, piece: Sge, out: &mut Vec<u8>) -> Result<(), LocalFault> {
        let (key, length) = (piece.lkey.0, piece.length as usize);
        // An empty piece does not need a key.
        if length == 0 {
            return Ok(());
        }
        let found = self.keys.range(key, self.pd, piece.address, length, Access::empty());
        found.and_then(|found| append(&found, length, self.ring, out)).map_err(|_| LocalFault)
    }

    fn write(&mut self, piece: Sge, bytes: &[u8]) -> Result<(), LocalFault> {
        let written = match &mut self.arrived {
            Some(arrived) => {
                let (key, length) = (piece.lkey.0, bytes.len());
                let to = self.keys.range(key, self.pd, piece.address, length, Access::LOCAL_WRITE);
                to.and_then(|to| arrived.copy_next(&to, length))
            }
            None => self.keys.scatter(self.pd, piece, bytes),
        };
        written.map_err(|_| LocalFault)
    }
}

/// Appends `length` bytes from a checked range to a packet, or to the packet's payload in a ring.
pub(in crate::device::shard) fn append(
    range: &KeyRange<'_>,
    length: usize,
    ring: Option<&RingPayload<'_>>,
    packet: &mut Vec<u8>,
) -> Result<(), Refused> {
    match ring {
        Some(ring) => ring.append(packet.len(), range, length),
        None => range.memory.append_to(range.offset, length, packet).map_err(|_| Refused),
    }
}
