//! Connections accepted by a side, with their messages and the memory windows that they offer to their peers.

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
const MAGIC: u64 = 0x6a75_6e6b;
/// `min_rnr_timer` of 0.64 ms. The connection manager sets 655 ms (contract J12).
const RNR_TIMER: u8 = 12;

/// The private data of the initiator.
#[derive(Debug, Clone, Copy)]
pub(super) struct Hello {
    /// True if the connection is a bystander.
    pub(super) bystander: bool,
    /// Seed for the bytes of the connection's messages.
    pub(super) nonce: u64,
}

/// The private data of the accepting side. It contains the memory that the initiator may access.
#[derive(Debug, Clone, Copy)]
pub(super) struct Grant {
    pub(super) srq: SrqNumber,
    pub(super) window: RemoteAddress,
    pub(super) read_only: RemoteAddress,
}

impl Hello {
    pub(super) fn to_bytes(self) -> Vec<u8> {
        to_bytes([self.bystander.into(), self.nonce])
    }

    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let [bystander, nonce] = parse(bytes)?;
        (bystander < 2).then_some(Self { bystander: bystander == 1, nonce })
    }
}

impl Grant {
    fn to_bytes(self) -> Vec<u8> {
        let Self { srq, window, read_only } = self;
        let [window, read_only] =
            [window, read_only].map(|remote| [u64::from(remote.rkey.0), remote.address.0]);
        to_bytes([srq.get().into(), window[0], window[1], read_only[0], read_only[1]])
    }

    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let [srq, words @ ..] = parse::<5>(bytes)?;
        let remote = |at: usize| {
            let rkey = Rkey(u32::try_from(words[at]).ok()?);
            Some(RemoteAddress { address: IoAddress(words[at + 1]), rkey })
        };
        Some(Self { srq: SrqNumber::new(srq.try_into().ok()?), window: remote(0)?, read_only: remote(2)? })
    }
}

/// Builds private data from words.
fn to_bytes<const N: usize>(words: [u64; N]) -> Vec<u8> {
    std::iter::once(MAGIC).chain(words).flat_map(u64::to_be_bytes).collect()
}

/// Returns the words in private data.
fn parse<const N: usize>(bytes: &[u8]) -> Option<[u64; N]> {
    let (words, _) = bytes.as_chunks::<8>();
    let (magic, words) = words.split_first()?;
    let words = words.first_chunk::<N>()?.map(u64::from_be_bytes);
    (u64::from_be_bytes(*magic) == MAGIC).then_some(words)
}

/// Returns message `round` of a connection, which consists of a header and a body.
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
    /// Accepts a connection request.
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

    /// Returns true if `bytes` and `immediate` are exactly the next message of this connection.
    pub(super) fn is_next(&mut self, bytes: &[u8], immediate: u32) -> bool {
        let round = self.next_round;
        self.next_round += 1;
        round.to_le_bytes()[..4] == immediate.to_le_bytes()
            && bytes == message(self.hello.nonce, round, bytes.len())
    }

    /// Returns the window that the connection's peer may access.
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
