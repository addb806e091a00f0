//! The epochs of a node, which are numbers by which peers distinguish its incarnations.
//!
//! Each peer gets a different number, which is always the same for that peer. A node that echoes an epoch is the peer
//! to which it was given, or has read the packets to that peer. The epoch for one peer does not reveal the epoch for
//! another. `NodeShared` owns the epochs.
#![forbid(unsafe_code)]

use crate::PeerKey;
use crate::peer::secret::{Secret, octets};
use trunkline_machine::Runtime;

/// Source of a node's epochs.
#[derive(Debug)]
pub(crate) struct Epochs(Option<Secret>);

impl Epochs {
    pub(crate) fn new(runtime: &Runtime) -> Self {
        Self(Some(Secret::new(runtime)))
    }

    /// Returns epochs that are the same for every peer and node, as a deliberate fault.
    pub(crate) const fn constant() -> Self {
        Self(None)
    }

    /// Returns the epoch for a peer, which is never 0.
    pub(crate) fn of(&self, peer: PeerKey) -> u64 {
        let Some(secret) = self.0 else { return 1 };
        let ports = [peer.address().port(), peer.udp_port().unwrap_or(0)].map(u16::to_be_bytes);
        let hash = secret.hash(&[&octets(peer.host()), ports.as_flattened()]);
        u64::try_from(hash >> 64).unwrap_or(1).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epoch_for_one_peer_does_not_reveal_epoch_for_another() {
        let runtime = Runtime::threads();
        let (one, other) = (Epochs::new(&runtime), Epochs::new(&runtime));
        let key = |text: &str| text.parse::<PeerKey>().unwrap();
        let a = key("10.0.0.1:7");
        assert_eq!((one.of(a), one.of(a)), (one.of(key("[::ffff:10.0.0.1]:7")), one.of(a)));
        assert!(["10.0.0.1:8", "10.0.0.1:7/4792"].map(key).iter().all(|other| one.of(*other) != one.of(a)));
        assert_ne!(one.of(a), other.of(a), "of another incarnation");
    }
}
