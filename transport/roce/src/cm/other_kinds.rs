//! Peers that were refused because they asked for RC at an XRC listener, or the other way round.
//!
//! The peer sees only a REJ, and nothing here would show it, so each such peer is reported once for the log.
//! The machine owns the list and its passive side fills it. Any host can get onto it, so beyond a limit peers
//! are only counted.

use super::Transport;
use std::collections::{BTreeSet, VecDeque};
use std::net::IpAddr;

/// Maximum number of peers that are reported.
const NAMED: usize = 64;

/// A peer that asked for the other kind of connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OtherKind {
    /// The peer's address.
    pub peer: IpAddr,
    /// The kind that it asked for.
    pub asked: Transport,
    /// The kind that the listener accepts.
    pub listening: Transport,
}

#[derive(Debug, Default)]
pub(super) struct OtherKinds {
    known: BTreeSet<IpAddr>,
    unnamed: VecDeque<OtherKind>,
}

impl OtherKinds {
    /// Notes a refused peer.
    pub(super) fn refused(&mut self, other: OtherKind) {
        if self.known.len() < NAMED && self.known.insert(other.peer) {
            self.unnamed.push_back(other);
        }
    }

    /// Takes the next peer to report.
    pub(super) fn poll(&mut self) -> Option<OtherKind> {
        self.unnamed.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_peer_is_named_once_and_not_too_many_of_them() {
        let mut kinds = OtherKinds::default();
        let of = |number: u32| OtherKind {
            peer: IpAddr::from(number.to_be_bytes()),
            asked: Transport::Rc,
            listening: Transport::Xrc,
        };
        for number in [1, 2, 1, 2, 2] {
            kinds.refused(of(number));
        }
        assert_eq!([kinds.poll(), kinds.poll(), kinds.poll()], [Some(of(1)), Some(of(2)), None]);
        kinds.refused(of(1));
        assert_eq!(kinds.poll(), None);
        for number in 0..100_000 {
            kinds.refused(of(number));
        }
        assert_eq!((kinds.unnamed.len(), kinds.known.len()), (NAMED - 2, NAMED));
    }
}
