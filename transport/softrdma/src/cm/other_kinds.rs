//! Peers that are refused because they ask for another kind of connection than what listens takes.
//!
//! They are told so, in no more words than a reject has; here nobody would notice. So each is named once.
//! Owned by the machine, filled by its passive side. Who asks is a stranger: past a bound they are counted
//! only.

use super::Transport;
use std::collections::{HashSet, VecDeque};
use std::net::IpAddr;

/// Peers that are named at most.
const NAMED: usize = 64;

/// A peer of another kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OtherKind {
    /// Its address.
    pub peer: IpAddr,
    /// What it has asked for.
    pub asked: Transport,
    /// What is listened for.
    pub listening: Transport,
}

#[derive(Debug, Default)]
pub(super) struct OtherKinds {
    known: HashSet<IpAddr>,
    unnamed: VecDeque<OtherKind>,
}

impl OtherKinds {
    /// One was refused.
    pub(super) fn refused(&mut self, other: OtherKind) {
        if self.known.len() < NAMED && self.known.insert(other.peer) {
            self.unnamed.push_back(other);
        }
    }

    /// The next that nobody was told of.
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
