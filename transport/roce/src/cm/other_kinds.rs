//! Peers that were refused because they requested RC from an XRC listener, or XRC from an RC listener.
//!
//! The peer receives only a REJ, so each such host is reported once for the local log. Any host can cause an entry, so
//! beyond a limit refusals are only counted.

use super::Transport;
use std::collections::{BTreeSet, VecDeque};
use std::net::IpAddr;
use trunkline_verbs::PeerHost;

/// Maximum number of hosts that are reported.
const NAMED: usize = 64;

/// A peer that requested the other kind of connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OtherKind {
    /// The peer's address.
    pub peer: IpAddr,
    /// The requested kind.
    pub asked: Transport,
    /// The kind that the listener accepts.
    pub listening: Transport,
}

#[derive(Debug, Default)]
pub(super) struct OtherKinds {
    known: BTreeSet<PeerHost>,
    unnamed: VecDeque<OtherKind>,
}

impl OtherKinds {
    /// Records a peer that was refused, and its host.
    pub(super) fn refused(&mut self, host: PeerHost, other: OtherKind) {
        if self.known.len() < NAMED && self.known.insert(host) {
            self.unnamed.push_back(other);
        }
    }

    pub(super) fn poll(&mut self) -> Option<OtherKind> {
        self.unnamed.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trunkline_verbs::AddressOwner;

    fn refuse(kinds: &mut OtherKinds, number: u32, owner: AddressOwner) -> OtherKind {
        let peer = IpAddr::from(number.to_be_bytes());
        let other = OtherKind { peer, asked: Transport::Rc, listening: Transport::Xrc };
        kinds.refused(PeerHost::new(peer, owner), other);
        other
    }

    #[test]
    fn each_host_is_named_once_up_to_limit() {
        let mut kinds = OtherKinds::default();
        let [one, two, ..] =
            [1, 2, 1, 2, 2].map(|number| refuse(&mut kinds, number, AddressOwner::OtherHost));
        assert_eq!([kinds.poll(), kinds.poll(), kinds.poll()], [Some(one), Some(two), None]);
        refuse(&mut kinds, 1, AddressOwner::OtherHost);
        assert_eq!(kinds.poll(), None);
        for number in 0..100_000 {
            refuse(&mut kinds, number, AddressOwner::OtherHost);
        }
        assert_eq!((kinds.unnamed.len(), kinds.known.len()), (NAMED - 2, NAMED));
    }

    #[test]
    fn addresses_of_another_local_user_are_named_as_one_host() {
        let mut kinds = OtherKinds::default();
        let first = refuse(&mut kinds, 0x7f00_0001, AddressOwner::ThisHost);
        for number in 2..1000 {
            refuse(&mut kinds, 0x7f00_0000 + number, AddressOwner::ThisHost);
        }
        let far = refuse(&mut kinds, 0x0a00_0001, AddressOwner::OtherHost);
        assert_eq!([kinds.poll(), kinds.poll(), kinds.poll()], [Some(first), Some(far), None]);
    }
}
