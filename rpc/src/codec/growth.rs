//! Growth of collections while they are decoded, and the heap that they use meanwhile.
//!
//! serde reserves memory for as many elements as the bytes claim, but for no more than 1 MiB of them, before it
//! decodes the first one. Later a collection doubles, and has both its old and its new memory while it moves.
//! The reservation is counted with the first element, whose type has its size; so one collection per thread
//! has some memory that is not counted yet.

use super::heap::block;
use super::limits::Limits;
use serde::de::Error;
use std::any::type_name;

/// Bytes for which serde reserves memory at most.
const RESERVED: usize = 1 << 20;
/// Names of collections, as `type_name` begins.
const VEC: &str = "alloc::vec::Vec<";
const TABLES: [&str; 2] = ["std::collections::hash::map::HashMap<", "std::collections::hash::set::HashSet<"];
/// Bytes of a table besides its buckets.
const TABLE: usize = 64;
/// Elements in a leaf of a B-tree, and its other bytes.
const LEAF: usize = 11;
const NODE: usize = 64;
/// Memory per element of another collection: a multiple of its size (a table that moves has up to 3.43 places per
/// element), and bytes besides (a node of a list, or hash and index of an ordered map that moves).
const TIMES: usize = 4;
const BESIDES: usize = 56;

/// A kind of collection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Collection {
    /// `Vec`, exactly.
    Vec,
    /// `HashMap` and `HashSet`, exactly.
    Table,
    /// Another collection of the standard library, or an ordered map: an upper bound for all of them.
    Other,
    /// A value with a fixed number of elements, which takes nothing for them.
    Fixed,
}

impl Collection {
    fn of<T>() -> Self {
        let name = type_name::<T>();
        if name.starts_with(VEC) {
            Self::Vec
        } else if TABLES.iter().any(|table| name.starts_with(table)) {
            Self::Table
        } else {
            Self::Other
        }
    }

    /// Returns the new room, after `room` elements of `size` bytes were not enough and the bytes claim `claimed` more.
    fn grown(self, room: usize, claimed: usize, size: usize) -> usize {
        let reserved = || claimed.min(RESERVED / size.max(1)).max(1);
        match self {
            Self::Fixed => usize::MAX,
            Self::Vec if size == 0 => usize::MAX,
            Self::Vec if room == 0 => reserved(),
            Self::Vec => room.saturating_mul(2).max(if size <= 1024 { 4 } else { 1 }),
            Self::Table => {
                let least = if room == 0 { reserved() } else { room.saturating_add(1) };
                match buckets(least) {
                    few @ ..=8 => few - 1,
                    many => many / 8 * 7,
                }
            }
            Self::Other if room == 0 => reserved(),
            Self::Other => room.saturating_add(room / 4 + 4),
        }
    }

    /// Returns the heap memory with room for `room` elements of `size` bytes.
    fn bytes(self, room: usize, size: usize) -> usize {
        match self {
            Self::Fixed => 0,
            Self::Vec => block(room.saturating_mul(size)),
            Self::Table => block(buckets(room).saturating_mul(size + 1).saturating_add(TABLE)),
            Self::Other => room
                .saturating_mul(size.saturating_mul(TIMES).saturating_add(BESIDES))
                .saturating_add(LEAF * size + NODE),
        }
    }
}

/// Returns the number of buckets of a table with room for `room` elements.
fn buckets(room: usize) -> usize {
    match room {
        ..=3 => 4,
        4..=7 => 8,
        _ => (room.min(usize::MAX / 16) * 8).div_ceil(7).next_power_of_two(),
    }
}

/// The growth of one collection.
#[derive(Debug)]
pub(super) struct Growth {
    collection: Collection,
    len: usize,
    room: usize,
    /// Length at which the collection grows or releases its old memory.
    next: usize,
    taken: usize,
    /// Bytes of the old memory while the collection moves to a larger one, until the next element.
    old: usize,
}

impl Growth {
    /// Returns the growth of a collection of this type.
    pub(super) fn of<T>() -> Self {
        Self { collection: Collection::of::<T>(), len: 0, room: 0, next: 0, taken: 0, old: 0 }
    }

    /// Returns the growth of a value with a fixed number of elements inside it.
    pub(super) fn none() -> Self {
        Self { collection: Collection::Fixed, len: 0, room: usize::MAX, next: usize::MAX, taken: 0, old: 0 }
    }

    /// Returns true if the elements are inside the value.
    pub(super) fn is_fixed(&self) -> bool {
        self.collection == Collection::Fixed
    }

    /// Makes room for another element of `size` bytes that is about to be decoded, if `claimed` returns more than 0.
    #[inline]
    pub(super) fn element<E: Error>(
        &mut self,
        size: usize,
        claimed: impl FnOnce() -> Option<usize>,
        limits: &Limits<'_>,
    ) -> Result<(), E> {
        if self.len >= self.next {
            self.grow(size, claimed(), limits)?;
        }
        self.len += 1;
        Ok(())
    }

    fn grow<E: Error>(&mut self, size: usize, claimed: Option<usize>, limits: &Limits<'_>) -> Result<(), E> {
        limits.put_back(std::mem::take(&mut self.old));
        if claimed == Some(0) {
            return Ok(());
        }
        if self.len >= self.room {
            let room = self.collection.grown(self.room, claimed.unwrap_or(0), size);
            let bytes = self.collection.bytes(room, size);
            limits.take(bytes)?;
            self.old = std::mem::replace(&mut self.taken, bytes);
            self.room = room;
        }
        self.next = if self.old > 0 { self.len + 1 } else { self.room };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeMap, HashMap, HashSet};

    /// The names are the compiler's: with others, the dearest collection is assumed.
    #[test]
    fn collections_are_recognized_by_their_names() {
        assert_eq!(Collection::of::<Vec<u8>>(), Collection::Vec);
        assert_eq!(Collection::of::<HashMap<u8, u8>>(), Collection::Table);
        assert_eq!(Collection::of::<HashSet<String>>(), Collection::Table);
        assert_eq!(Collection::of::<BTreeMap<u8, u8>>(), Collection::Other);
    }

    #[test]
    fn tables_and_vectors_grow_as_those_of_the_standard_library() {
        let (mut vec, mut table) = (Vec::with_capacity(5), HashMap::with_capacity(5));
        let mut rooms = [Collection::Vec, Collection::Table].map(|kind| kind.grown(0, 5, 8));
        for element in 0..10_000_u64 {
            vec.push(element);
            table.insert(element, ());
            for (room, kind) in rooms.iter_mut().zip([Collection::Vec, Collection::Table]) {
                if vec.len() > *room {
                    *room = kind.grown(*room, 1, 8);
                }
            }
            assert_eq!((vec.capacity(), table.capacity()), (rooms[0], rooms[1]), "{element}");
        }
    }

    #[test]
    fn sizes_beyond_memory_do_not_overflow() {
        for kind in [Collection::Vec, Collection::Table, Collection::Other] {
            for (room, size) in [(usize::MAX, 1), (usize::MAX / 2, 48), (1, 1 << 62), (1 << 40, 1 << 40)] {
                assert!(kind.bytes(room, size.min(1 << 40)) > 0);
                assert!(kind.grown(room, usize::MAX, size) >= room.min(usize::MAX / 16));
            }
        }
    }
}
