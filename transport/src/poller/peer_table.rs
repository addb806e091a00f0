//! The peers of one poller, in a table whose places are the hints of their keys.
#![forbid(unsafe_code)]

use crate::PeerKey;
use crate::peer_hash::PeerHash;
use slab::Slab;
use std::collections::HashMap;

/// Number of remembered places of peers that were named by address.
const RECENT: usize = 64;

/// A value for each peer. Keys returned by the table are found by their hints; others, such as keys made of
/// addresses, are looked up.
#[derive(Debug)]
pub(super) struct PeerTable<T> {
    entries: Slab<(PeerKey, T)>,
    places: HashMap<PeerKey, usize, PeerHash>,
    /// Places that [`PeerTable::entry`] looked up, indexed by some bits of the key. A place may belong to
    /// another peer by now.
    recent: [usize; RECENT],
}

impl<T: Default> PeerTable<T> {
    pub(super) fn new(hash: PeerHash) -> Self {
        Self { entries: Slab::new(), places: HashMap::with_hasher(hash), recent: [0; RECENT] }
    }

    /// Returns the place of a peer, which does not change until the peer is removed.
    #[inline(always)]
    pub(super) fn place(&self, peer: PeerKey) -> Option<usize> {
        match self.entries.get(peer.hint()) {
            Some((key, _)) if *key == peer => Some(peer.hint()),
            _ => self.look_up(peer),
        }
    }

    #[inline(never)]
    fn look_up(&self, peer: PeerKey) -> Option<usize> {
        self.places.get(&peer).copied()
    }

    /// Returns the value at a place that [`PeerTable::place`] has just returned.
    #[inline]
    pub(super) fn at(&mut self, place: usize) -> Option<&mut T> {
        self.entries.get_mut(place).map(|(_, value)| value)
    }

    #[inline]
    pub(super) fn get(&self, peer: PeerKey) -> Option<&T> {
        self.entries.get(self.place(peer)?).map(|(_, value)| value)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, peer: PeerKey) -> Option<&mut T> {
        self.at(self.place(peer)?)
    }

    /// Returns the value of a peer, inserted if missing, and the key by which it is found fastest. Also
    /// accepts keys made of addresses.
    #[inline]
    pub(super) fn entry(&mut self, peer: PeerKey) -> (PeerKey, &mut T) {
        let place = peer.hint();
        if self.entries.get(place).is_some_and(|(key, _)| *key == peer) {
            let (key, value) = &mut self.entries[place];
            return (*key, value);
        }
        self.search(peer)
    }

    #[inline(never)]
    fn search(&mut self, peer: PeerKey) -> (PeerKey, &mut T) {
        let recent = peer.mix() % RECENT;
        let mut place = self.recent[recent];
        if self.entries.get(place).is_none_or(|(key, _)| *key != peer) {
            place = self.look_up(peer).unwrap_or_else(|| self.add(peer));
            self.recent[recent] = place;
        }
        let (key, value) = &mut self.entries[place];
        (*key, value)
    }

    #[cold]
    fn add(&mut self, peer: PeerKey) -> usize {
        let entry = self.entries.vacant_entry();
        let place = entry.key();
        let key = peer.at(place);
        entry.insert((key, T::default()));
        self.places.insert(key, place);
        place
    }

    pub(super) fn remove(&mut self, peer: PeerKey) {
        if let Some(place) = self.places.remove(&peer) {
            self.entries.remove(place);
        }
    }

    /// Iterates over all peers, in the order of their places.
    pub(super) fn iter(&self) -> impl Iterator<Item = (PeerKey, &T)> {
        self.entries.iter().map(|(_, (key, value))| (*key, value))
    }

    /// Iterates mutably over all peers, in the order of their places.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (PeerKey, &mut T)> {
        self.entries.iter_mut().map(|(_, (key, value))| (*key, value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trunkline_machine::Runtime;

    #[test]
    fn a_key_finds_its_peer_and_no_other_at_its_place() {
        let mut table = PeerTable::<u32>::new(PeerHash::new(&Runtime::threads()));
        let named = PeerKey::numbered;
        for number in 0..10 {
            *table.entry(named(number)).1 = number;
        }
        let (old, _) = table.entry(named(4));
        assert_eq!((table.place(old), table.get(old), table.get(named(4))), (Some(4), Some(&4), Some(&4)));
        table.remove(named(4));
        assert_eq!((table.get(old), table.get(named(4))), (None, None));
        *table.entry(named(11)).1 = 11;
        assert_eq!(table.place(named(11)), Some(4), "the place is taken by another");
        assert_eq!(table.get(old), None);
        *table.entry(old).1 = 40;
        assert_eq!(
            (table.get(old), table.get(named(4)), table.get(named(11))),
            (Some(&40), Some(&40), Some(&11))
        );
        assert_eq!(table.iter().map(|(_, value)| *value).sum::<u32>(), 45 - 4 + 11 + 40);
    }
}
