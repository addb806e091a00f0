//! A map from peers to values, for a poller's thread. The hint in a peer's key is the usual place of the value.
#![forbid(unsafe_code)]

use crate::PeerKey;
use std::collections::{BTreeMap, BTreeSet};

/// A map keyed by peer. A lookup with a key from the map's poller costs a few comparisons. Other keys give the same
/// results through a search.
#[derive(Debug)]
pub struct PeerMap<T> {
    /// Entries, each at the place of its key's hint unless that place was taken.
    entries: Vec<Option<(PeerKey, T)>>,
    places: BTreeMap<PeerKey, usize>,
    vacant: BTreeSet<usize>,
}

/// Maximum usable hint. Higher ones would leave the table mostly empty.
const MOST_PLACES: usize = 1 << 20;

impl<T> Default for PeerMap<T> {
    fn default() -> Self {
        Self { entries: Vec::new(), places: BTreeMap::new(), vacant: BTreeSet::new() }
    }
}

impl<T> PeerMap<T> {
    /// Returns the value of a peer.
    #[must_use]
    #[inline]
    pub fn get(&self, peer: PeerKey) -> Option<&T> {
        match self.entries.get(peer.hint()) {
            Some(Some((key, value))) if *key == peer => Some(value),
            _ => self.search(peer).and_then(|place| self.at(place)),
        }
    }

    /// Returns the value of a peer, mutably.
    #[must_use]
    #[inline]
    pub fn get_mut(&mut self, peer: PeerKey) -> Option<&mut T> {
        let is_there = matches!(self.entries.get(peer.hint()), Some(Some((key, _))) if *key == peer);
        let place = if is_there { peer.hint() } else { self.search(peer)? };
        self.entries.get_mut(place)?.as_mut().map(|(_, value)| value)
    }

    /// Returns the value of a peer if it is at the place of the key's hint.
    #[inline(always)]
    pub(crate) fn hinted(&mut self, peer: PeerKey) -> Option<&mut T> {
        match self.entries.get_mut(peer.hint()) {
            Some(Some((key, value))) if *key == peer => Some(value),
            _ => None,
        }
    }

    /// Returns the value of a peer, inserted if missing.
    pub fn get_or_insert_with(&mut self, peer: PeerKey, value: impl FnOnce() -> T) -> &mut T {
        let place = self.search(peer).unwrap_or_else(|| self.vacancy(peer));
        self.places.insert(peer, place);
        let (_, value) = self.entries[place].get_or_insert_with(|| (peer, value()));
        value
    }

    /// Sets the value of a peer.
    pub fn insert(&mut self, peer: PeerKey, value: T) {
        self.remove(peer);
        self.get_or_insert_with(peer, || value);
    }

    /// Removes the value of a peer, and returns it.
    pub fn remove(&mut self, peer: PeerKey) -> Option<T> {
        let place = self.places.remove(&peer)?;
        self.vacant.insert(place);
        self.entries.get_mut(place)?.take().map(|(_, value)| value)
    }

    /// Iterates over all peers, in the order of their keys.
    pub fn iter(&self) -> impl Iterator<Item = (PeerKey, &T)> {
        self.places.iter().filter_map(|(key, place)| Some((*key, self.at(*place)?)))
    }

    #[inline]
    fn at(&self, place: usize) -> Option<&T> {
        self.entries.get(place)?.as_ref().map(|(_, value)| value)
    }

    #[cold]
    fn search(&self, peer: PeerKey) -> Option<usize> {
        self.places.get(&peer).copied()
    }

    /// Returns a place for a new peer.
    fn vacancy(&mut self, peer: PeerKey) -> usize {
        let hint = peer.hint();
        if hint < MOST_PLACES && hint >= self.entries.len() {
            self.vacant.extend(self.entries.len()..=hint);
            self.entries.resize_with(hint + 1, || None);
        }
        if self.vacant.remove(&hint) {
            return hint;
        }
        self.vacant.pop_first().unwrap_or_else(|| {
            self.entries.push(None);
            self.entries.len() - 1
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Neither correct nor wrong hints change the results.
        #[test]
        fn map_matches_btree_map(steps in proptest::collection::vec((0..4_u8, 0..6_u32, 0..8_usize), 1..200)) {
            let (mut map, mut model) = (PeerMap::default(), BTreeMap::new());
            for (index, (what, number, hint)) in steps.into_iter().enumerate() {
                let key = PeerKey::numbered(number);
                let key = if hint < 7 { key.at(hint) } else { key };
                match what {
                    0 => {
                        map.insert(key, index);
                        model.insert(key, index);
                    }
                    1 => prop_assert_eq!(map.remove(key), model.remove(&key)),
                    2 => {
                        let other = *model.entry(key).or_insert(index);
                        prop_assert_eq!(*map.get_or_insert_with(key, || index), other);
                    }
                    _ => prop_assert_eq!(map.get_mut(key).copied(), model.get(&key).copied()),
                }
                prop_assert_eq!(map.get(key), model.get(&key));
                prop_assert!(map.iter().eq(model.iter().map(|(key, value)| (*key, value))));
            }
            prop_assert!(map.entries.len() <= 7 + 6, "vacant places are used again");
        }
    }

    #[test]
    fn peer_is_stored_at_its_hint() {
        let mut map = PeerMap::default();
        for place in [5, 2, 9] {
            map.insert(PeerKey::numbered(place).at(place as usize), place);
        }
        assert_eq!(map.entries[5].as_ref().map(|(_, value)| *value), Some(5));
        assert_eq!(map.get(PeerKey::numbered(9).at(2)), Some(&9), "a stale hint");
        map.insert(PeerKey::numbered(7).at(usize::MAX), 7);
        assert_eq!((map.entries.len(), map.get(PeerKey::numbered(7))), (10, Some(&7)));
    }
}
