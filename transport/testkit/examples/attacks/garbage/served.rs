//! Connections that a side has accepted: windows of memory for their peers, and their messages.

use super::group::Group;
use crate::Outcome;
use std::sync::Arc;
use trunkline_softrdma::device::SoftDevice;
use trunkline_testkit::{bytes_of, key};
use trunkline_verbs::{
    Access, CmId, ConnectParameters, IoAddress, Memory, MemoryRegion, QpModify, QpType, QueuePair,
    RemoteAddress, Rkey, SrqNumber,
};

/// Length of the memory that one connection may read and write, in bytes.
pub(super) const WINDOW: usize = 16_384;
/// First word of the private data of both sides.
const MAGIC: u32 = 0x6a75_6e6b;
/// `min_rnr_timer`: 0.64 ms; the connection manager sets 655 ms (contract J12).
const RNR_TIMER: u8 = 12;

/// The private data of the initiator.
#[derive(Debug, Clone, Copy)]
pub(super) struct Hello {
    /// True if the connection is a bystander.
    pub(super) bystander: bool,
    /// Seeds the bytes of its messages.
    pub(super) nonce: u64,
}

/// The private data of the accepting side: the memory to which it grants access.
#[derive(Debug, Clone, Copy)]
pub(super) struct Grant {
    pub(super) srq: SrqNumber,
    pub(super) window: RemoteAddress,
    pub(super) read_only: RemoteAddress,
}

impl Hello {
    pub(super) fn to_bytes(self) -> Vec<u8> {
        let mut bytes = MAGIC.to_be_bytes().to_vec();
        bytes.push(u8::from(self.bystander));
        bytes.extend(self.nonce.to_be_bytes());
        bytes
    }

    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let (magic, rest) = bytes.split_first_chunk::<4>()?;
        let (bystander, rest) = rest.split_first()?;
        let nonce = u64::from_be_bytes(*rest.first_chunk()?);
        (u32::from_be_bytes(*magic) == MAGIC && *bystander < 2)
            .then_some(Self { bystander: *bystander == 1, nonce })
    }
}

impl Grant {
    fn to_bytes(self) -> Vec<u8> {
        let mut bytes = MAGIC.to_be_bytes().to_vec();
        bytes.extend(self.srq.get().to_be_bytes());
        for remote in [self.window, self.read_only] {
            bytes.extend(remote.rkey.0.to_be_bytes());
            bytes.extend(remote.address.0.to_be_bytes());
        }
        bytes
    }

    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let word = |at: usize| Some(u32::from_be_bytes(*bytes.get(at..)?.first_chunk()?));
        let remote = |at: usize| {
            let address = IoAddress(u64::from_be_bytes(*bytes.get(at + 4..)?.first_chunk()?));
            Some(RemoteAddress { address, rkey: Rkey(word(at)?) })
        };
        let grant = Self { srq: SrqNumber::new(word(4)?), window: remote(8)?, read_only: remote(20)? };
        (word(0)? == MAGIC).then_some(grant)
    }
}

/// Returns the head and the body of message `round` of a connection.
pub(super) fn message(nonce: u64, round: u64, length: usize) -> Vec<u8> {
    let mut bytes = nonce.to_be_bytes().to_vec();
    bytes.extend(round.to_be_bytes());
    bytes.extend(bytes_of(key(&[nonce, round, 0x5e]), length.saturating_sub(bytes.len())));
    bytes
}

/// An accepted connection.
#[derive(Debug)]
pub(super) struct Served {
    pub(super) id: Arc<dyn CmId>,
    pub(super) qp: Arc<dyn QueuePair>,
    pub(super) hello: Hello,
    window: Arc<dyn MemoryRegion>,
    next_round: u64,
}

impl Served {
    /// Accepts a request.
    pub(super) fn accept(
        device: &SoftDevice,
        group: &Group,
        id: Arc<dyn CmId>,
        qp_type: QpType,
        hello: Hello,
    ) -> Outcome<Self> {
        let rights = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let window = group.pd.register(Memory::zeroed(WINDOW)?, rights)?;
        let qp = group.qp(device, qp_type)?;
        id.attach(Arc::clone(&qp))?;
        let grant = Grant {
            srq: group.srq.number()?,
            window: RemoteAddress { address: window.memory().address(0), rkey: window.rkey() },
            read_only: group.read_only(),
        };
        id.accept(&ConnectParameters { private_data: grant.to_bytes(), ..ConnectParameters::default() })?;
        qp.modify(&QpModify { min_rnr_timer: Some(RNR_TIMER), ..QpModify::default() })?;
        Ok(Self { id, qp, hello, window, next_round: 0 })
    }

    /// Returns true if a message is the next one of this connection, byte for byte.
    pub(super) fn is_next(&mut self, bytes: &[u8], immediate: u32) -> bool {
        let round = self.next_round;
        self.next_round += 1;
        round.to_le_bytes()[..4] == immediate.to_le_bytes()
            && bytes == message(self.hello.nonce, round, bytes.len())
    }

    /// Returns the window that its peer may access.
    pub(super) fn window(&self) -> RemoteAddress {
        RemoteAddress { address: self.window.memory().address(0), rkey: self.window.rkey() }
    }

    /// Ends the connection.
    pub(super) fn end(self) {
        let _left = self.id.detach();
        let _qp = self.qp.destroy();
        let _window = self.window.destroy();
    }
}
