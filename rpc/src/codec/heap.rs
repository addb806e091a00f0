//! Estimates the heap use of a decoded value from the name and size of its type, and the heap use of a collection as it
//! grows.
//!
//! A deserializer cannot observe allocations, only the type that a seed or a visitor produces. The type determines whether a
//! value is stored inside its container or in a separate allocation:
//!
//! | the value is decoded into | separate allocation if |
//! |---|---|
//! | a `Box`, `Rc` or `Arc`, or an `Option` of one | always |
//! | another type | that type has another size |
//! | an `Option` of another type | it is larger than the `Option` |
//! | a newtype struct | that has another size, or the size of a pointer, and the value is not a number |
//!
//! Some allocations are not counted: a number of eight bytes in a `Box` in a newtype struct, allocations by hand-written
//! `Deserialize` code, and values created by `#[serde(default)]` or `#[serde(skip)]`.

use super::buffering::Buffer;
use super::limits::{Limits, block};
use serde::de::Error;
use std::any::type_name;

/// Prefixes, as in `type_name`, of types that consist of one pointer to an owned value.
const POINTERS: [&str; 3] = ["alloc::boxed::Box<", "alloc::rc::Rc<", "alloc::sync::Arc<"];
const OPTION: &str = "core::option::Option<";
/// Size of the reference counts of an `Rc` or `Arc`, in bytes.
const COUNTS: usize = 2 * size_of::<usize>();

fn is_pointer(name: &str) -> bool {
    POINTERS.iter().any(|pointer| name.starts_with(pointer))
}

/// Destination of a decoded value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Slot {
    /// Space for a type of this size.
    Of(usize),
    /// An allocation behind a pointer.
    Pointer,
    /// The content of an `Option` of this size, including any tag.
    Option(usize),
    /// The content of a newtype struct of this size.
    Newtype(usize),
}

impl Slot {
    /// Returns the slot for the value of a seed.
    pub(super) fn of<T>() -> Self {
        if is_pointer(type_name::<T>()) { Self::Pointer } else { Self::Of(size_of::<T>()) }
    }

    /// Returns the slot for the value in an `Option`.
    pub(super) fn in_option<T>() -> Self {
        let is_of_pointer = type_name::<T>().strip_prefix(OPTION).is_some_and(is_pointer);
        if is_of_pointer { Self::Pointer } else { Self::Option(size_of::<T>()) }
    }

    /// Returns the slot for the value in a newtype struct.
    pub(super) fn in_newtype<T>() -> Self {
        Self::Newtype(size_of::<T>())
    }

    /// Returns the size of the type in this slot, in bytes, or 0 if it is unknown.
    pub(super) fn size(self) -> usize {
        match self {
            Self::Of(size) | Self::Option(size) | Self::Newtype(size) => size,
            Self::Pointer => 0,
        }
    }

    /// Charges the memory of a value of type `T` that is decoded into this slot.
    #[inline]
    pub(super) fn fill<T, E: Error>(self, is_number: bool, limits: &Limits<'_>) -> Result<(), E> {
        let own = size_of::<T>();
        let is_outside = match self {
            Self::Of(size) => size != own,
            Self::Pointer => true,
            Self::Option(size) => own > size,
            Self::Newtype(size) => size != own || (size == size_of::<usize>() && !is_number),
        };
        if is_outside { limits.take(block(own + COUNTS)) } else { Ok(()) }
    }
}

/// Maximum memory that serde reserves at once, in bytes.
const RESERVED: usize = 1 << 20;
/// Maximum size of a decoded element, in bytes, that the memory of its buffered value covers.
const SMALL: usize = 64;
/// Prefixes of collections, as in `type_name`.
const VEC: &str = "alloc::vec::Vec<";
const TABLES: [&str; 2] = ["std::collections::hash::map::HashMap<", "std::collections::hash::set::HashSet<"];
/// Size of a table without its buckets, in bytes.
const TABLE: usize = 64;
/// Number of elements in a leaf of a B-tree.
const LEAF: usize = 11;
/// Size of a leaf of a B-tree without its elements, in bytes.
const NODE: usize = 64;
/// Memory per element of another collection, as a multiple of the element's size. The factor covers a table that is being
/// moved, which has up to 3.43 places per element.
const TIMES: usize = 4;
/// Additional memory per element, in bytes. It covers a node of a list, or the hash and index of an ordered map that is
/// being moved.
const BESIDES: usize = 56;

/// A kind of collection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Collection {
    /// `Vec`, estimated exactly.
    Vec,
    /// `HashMap` and `HashSet`, estimated exactly.
    Table,
    /// Any other collection of the standard library, or an ordered map. The estimate is an upper bound.
    Other,
    /// A collection of values buffered by serde, with this number of copies, and a collection of unknown type decoded from
    /// it, with elements of at most this size.
    Buffered { copies: usize, size: usize },
    /// A value that contains a fixed number of elements.
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

    /// Returns the new capacity when `room` elements of `size` bytes are not enough and the bytes claim `claimed` more.
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
            Self::Other | Self::Buffered { .. } if room == 0 => reserved(),
            Self::Other | Self::Buffered { .. } => room.saturating_add(room / 4 + 4),
        }
    }

    /// Returns the heap memory for a capacity of `room` elements of `size` bytes each.
    fn bytes(self, room: usize, size: usize) -> usize {
        match self {
            Self::Fixed => 0,
            Self::Vec => block(room.saturating_mul(size)),
            Self::Table => block(buckets(room).saturating_mul(size + 1).saturating_add(TABLE)),
            Self::Other => room
                .saturating_mul(size.saturating_mul(TIMES).saturating_add(BESIDES))
                .saturating_add(LEAF * size + NODE),
            Self::Buffered { copies, size: decoded } => {
                // A `Vec` that is being moved has up to three places per element.
                let places = room.saturating_mul(3).saturating_add(LEAF);
                Self::Other
                    .bytes(room, size)
                    .saturating_add(copies.saturating_mul(block(room.saturating_mul(size))))
                    .saturating_add(places.saturating_mul(decoded.saturating_sub(SMALL)))
            }
        }
    }
}

/// Returns the number of buckets of a table with a capacity of `room` elements.
fn buckets(room: usize) -> usize {
    match room {
        ..=3 => 4,
        4..=7 => 8,
        _ => (room.min(usize::MAX / 16) * 8).div_ceil(7).next_power_of_two(),
    }
}

/// The growth of one collection.
///
/// serde reserves memory for the claimed number of elements, at most 1 MiB, before it decodes the first one. Later the
/// capacity doubles, and the collection holds both the old and the new memory while it is moved. The reservation is counted
/// with the first element, which determines the size. Therefore one collection per thread can have uncounted memory.
#[derive(Debug)]
pub(super) struct Growth {
    collection: Collection,
    len: usize,
    room: usize,
    /// Length at which the collection grows or releases its old memory.
    next: usize,
    taken: usize,
    /// Size of the old memory while the collection is being moved, until the next element, in bytes.
    old: usize,
}

impl Growth {
    /// Returns the growth of a collection of this type.
    pub(super) fn of<T>() -> Self {
        Self { collection: Collection::of::<T>(), len: 0, room: 0, next: 0, taken: 0, old: 0 }
    }

    /// Returns the growth of a collection for values buffered by serde.
    pub(super) fn of_buffered(buffer: &Buffer) -> Self {
        let collection = Collection::Buffered { copies: buffer.copies(), size: buffer.size() };
        Self { collection, len: 0, room: 0, next: 0, taken: 0, old: 0 }
    }

    /// Returns the growth of a value that contains a fixed number of elements.
    pub(super) fn none() -> Self {
        Self { collection: Collection::Fixed, len: 0, room: usize::MAX, next: usize::MAX, taken: 0, old: 0 }
    }

    /// Returns true if the elements are stored inside the value.
    pub(super) fn is_fixed(&self) -> bool {
        self.collection == Collection::Fixed
    }

    /// Charges another element of `size` bytes that is about to be decoded, if `claimed` returns more than 0.
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
    use std::rc::Rc;
    use std::sync::Arc;

    /// The compiler chooses the names. If they differ, pointers are taken for other types.
    #[test]
    fn pointers_are_recognized_by_their_names() {
        assert_eq!(Slot::of::<Box<u64>>(), Slot::Pointer);
        assert_eq!(Slot::of::<Rc<u64>>(), Slot::Pointer);
        assert_eq!(Slot::of::<Arc<str>>(), Slot::Pointer);
        assert_eq!(Slot::of::<u64>(), Slot::Of(8));
        assert_eq!(Slot::in_option::<Option<Box<u8>>>(), Slot::Pointer);
        assert_eq!(Slot::in_option::<Option<u64>>(), Slot::Option(16));
    }

    /// The compiler chooses the names. If they differ, the most expensive collection is assumed.
    #[test]
    fn collections_are_recognized_by_their_names() {
        assert_eq!(Collection::of::<Vec<u8>>(), Collection::Vec);
        assert_eq!(Collection::of::<HashMap<u8, u8>>(), Collection::Table);
        assert_eq!(Collection::of::<HashSet<String>>(), Collection::Table);
        assert_eq!(Collection::of::<BTreeMap<u8, u8>>(), Collection::Other);
    }

    #[test]
    fn tables_and_vectors_grow_like_standard_library() {
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
