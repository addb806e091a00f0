//! Heap use of a decoded value, judged by the name and the size of its type.
//!
//! A deserializer does not see allocations. It sees the type that a seed or a visitor makes, and from that
//! follows whether a value lies inside its container or in a separate allocation:
//!
//! | the value is decoded into | separate allocation if |
//! |---|---|
//! | a `Box`, `Rc` or `Arc`, or an `Option` of one | always |
//! | another type | that type has another size |
//! | an `Option` of another type | it is larger than the `Option` |
//! | a newtype struct | that has another size, or the size of a pointer, and the value is not a number |
//!
//! Not counted: a number of eight bytes in a `Box` in a newtype struct, allocations of hand-written `Deserialize`
//! code, and values made by `#[serde(default)]` or `#[serde(skip)]`.

use super::limits::Limits;
use serde::de::Error;
use std::any::type_name;

/// Types of one pointer to a value of their own, as `type_name` begins.
const POINTERS: [&str; 3] = ["alloc::boxed::Box<", "alloc::rc::Rc<", "alloc::sync::Arc<"];
const OPTION: &str = "core::option::Option<";
/// The counts of an `Rc` or `Arc`.
const COUNTS: usize = 2 * size_of::<usize>();

/// Returns the heap memory of an allocation of `bytes` bytes, as glibc rounds it.
pub(crate) fn block(bytes: usize) -> usize {
    match bytes {
        0 => 0,
        // Rust allocates no more than this.
        _ => bytes.min(isize::MAX.cast_unsigned() - 32).next_multiple_of(16) + 16,
    }
}

fn is_pointer(name: &str) -> bool {
    POINTERS.iter().any(|pointer| name.starts_with(pointer))
}

/// Place of a value that is about to be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Slot {
    /// Room for a type of this size.
    Of(usize),
    /// Behind a pointer.
    Pointer,
    /// The content of an `Option` of this size, with or without a tag.
    Option(usize),
    /// The content of a newtype struct of this size.
    Newtype(usize),
}

impl Slot {
    /// Returns the slot of a seed's value.
    pub(super) fn of<T>() -> Self {
        if is_pointer(type_name::<T>()) { Self::Pointer } else { Self::Of(size_of::<T>()) }
    }

    /// Returns the slot of the value in an `Option`.
    pub(super) fn in_option<T>() -> Self {
        let is_of_pointer = type_name::<T>().strip_prefix(OPTION).is_some_and(is_pointer);
        if is_of_pointer { Self::Pointer } else { Self::Option(size_of::<T>()) }
    }

    /// Returns the slot of the value in a newtype struct.
    pub(super) fn in_newtype<T>() -> Self {
        Self::Newtype(size_of::<T>())
    }

    /// Takes the memory of a value of type `T` that is decoded into this slot.
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;
    use std::sync::Arc;

    /// The names are the compiler's: a new one may choose others, and then pointers are taken for other types.
    #[test]
    fn pointers_are_recognized_by_their_names() {
        assert_eq!(Slot::of::<Box<u64>>(), Slot::Pointer);
        assert_eq!(Slot::of::<Rc<u64>>(), Slot::Pointer);
        assert_eq!(Slot::of::<Arc<str>>(), Slot::Pointer);
        assert_eq!(Slot::of::<u64>(), Slot::Of(8));
        assert_eq!(Slot::in_option::<Option<Box<u8>>>(), Slot::Pointer);
        assert_eq!(Slot::in_option::<Option<u64>>(), Slot::Option(16));
    }

    #[test]
    fn a_block_is_as_large_as_malloc_makes_it() {
        for (bytes, least) in [(0, 0), (1, 32), (24, 32), (25, 48), (4096, 4112)] {
            assert!((least..least + 17).contains(&block(bytes)), "{bytes}: {}", block(bytes));
        }
        assert!(block(usize::MAX) > 1 << 62);
    }
}
