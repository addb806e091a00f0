//! The epochs of a node: numbers by which its peers tell its incarnations apart.
//!
//! Each peer is given a different number, which is always the same for that peer. A node that echoes an epoch
//! is that peer, or has seen its packets. A peer that knows its own epoch cannot echo another peer's.
//! `NodeShared` owns them.
#![forbid(unsafe_code)]

use crate::peer::secret::{Secret, octets};
use std::net::SocketAddr;
use trunkline_machine::Runtime;

/// Source of the epochs. See the module.
#[derive(Debug)]
pub(crate) struct Epochs(Option<Secret>);

impl Epochs {
    pub(crate) fn new(runtime: &Runtime) -> Self {
        Self(Some(Secret::new(runtime)))
    }

    /// Returns epochs that are the same for every peer and node: a deliberate fault.
    pub(crate) const fn constant() -> Self {
        Self(None)
    }

    /// Returns the epoch for the peer that listens at `address`; never 0.
    pub(crate) fn of(&self, address: SocketAddr) -> u64 {
        let Some(secret) = self.0 else { return 1 };
        let hash = secret.hash(&[&octets(address.ip()), &address.port().to_be_bytes()]);
        u64::try_from(hash >> 64).unwrap_or(1).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_peer_learns_the_epoch_of_another() {
        let runtime = Runtime::threads();
        let (one, other) = (Epochs::new(&runtime), Epochs::new(&runtime));
        let [a, b] = [7, 8].map(|port| SocketAddr::from(([10, 0, 0, 1], port)));
        let mapped = SocketAddr::new("::ffff:10.0.0.1".parse().unwrap(), 7);
        assert_eq!((one.of(a), one.of(a)), (one.of(mapped), one.of(a)));
        assert_ne!(one.of(a), one.of(b));
        assert_ne!(one.of(a), other.of(a), "of another incarnation");
    }
}
