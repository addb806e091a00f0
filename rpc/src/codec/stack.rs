//! Limits the stack use of decoding and encoding deeply nested values.
//!
//! [`Limits`](super::limits::Limits) checks the stack before each level. A level that might not fit is refused. A larger
//! stack for decoding would not help, because the value is dropped on the original stack.

use serde::de::Error;
use std::cell::Cell;

/// Stack, in bytes, reserved for values without nested values, for types' own code, and for dropping the decoded part after
/// a refusal.
const MARGIN: usize = 128 << 10;
/// Reserve for the first [`TOP`] levels, which need little stack when dropped. A thread may have a stack of only 64 KiB.
const TOP_MARGIN: usize = 32 << 10;

// The stack use of one level was measured with serde 1.0, bincode 2.0 and rustc without optimisation. From each level to the
// next one, it is 1.5 to 3.5 KB, plus
// - 10 to 18.4 times the size of the level's type, with the highest factors for maps and generic structs,
// - 180 to 200 bytes for each field,
// - 50 bytes and 1.03 times the size of the type for each variant of an enum.
// A struct of 22 fields and 408 bytes takes 8.6 KB, and an enum of 8 bytes that boxes itself 2.1 KB. An optimised build
// takes a fifth or less. The constants include a reserve for other compilers. The 3.5 KB are part of the margin.

/// Number of copies of a value on the stack of one level.
const COPIES: usize = 24;
/// Stack use per field, in bytes.
const FIELD: usize = 384;
/// Stack use per variant of an enum, in bytes, without copies of the value.
const VARIANT: usize = 96;
/// Number of copies of the value per variant of an enum.
const COPIES_FOR_VARIANT: usize = 2;
/// Maximum expected stack use of one level. An unoptimised build may use more if a type of more than 56 KiB contains itself.
/// With a higher limit, a thread with the usual 2 MiB could not decode even one such value.
const MOST: usize = 1 << 20;

// Types that serde buffers were measured in the same way. From one container to the next, they take 2 to 6 KB and 10 to 15
// times the size of the type, plus twice this size for each variant that holds it. At the outermost level, they take 22
// times the size.

/// Number of copies of a buffered type on the stack of one level.
const COPIES_OF_BUFFERED: usize = 32;
/// Expected stack use of one level of a buffered type, with a reserve for larger parts in a `Box`.
const BUFFERED: usize = 64 << 10;
/// Maximum number of containers for which the stack use of a buffered type is estimated from its size alone, because a
/// thread may have a stack of only 64 KiB.
const FLAT: usize = 1;

/// Number of top levels of a value that are not checked if they are modest. Most values have no more levels, and a check
/// takes two percent of the time to decode a small struct. Together these levels use less than [`TOP_MARGIN`].
pub(super) const TOP: usize = 4;
/// Maximum expected stack use of a modest level.
const MODEST: usize = 4 << 10;

/// Stack use of one level, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Level(usize);

impl Level {
    /// Returns the stack use of a `T` with this number of fields.
    #[inline]
    pub(super) fn of_fields<T>(fields: usize) -> Self {
        Self(size_of::<T>().saturating_mul(COPIES).saturating_add(fields.saturating_mul(FIELD)).min(MOST))
    }

    /// Returns the stack use of an enum with this number of variants.
    #[inline]
    pub(super) fn of_variants<T>(variants: usize) -> Self {
        let copies = COPIES.saturating_add(variants.saturating_mul(COPIES_FOR_VARIANT));
        let variants = variants.saturating_mul(VARIANT);
        Self(size_of::<T>().saturating_mul(copies).saturating_add(variants).min(MOST))
    }

    /// Returns true if the level needs no check when it is one of the first [`TOP`] levels.
    #[inline]
    pub(super) fn is_modest(self) -> bool {
        self.0 <= MODEST
    }
}

/// Maximum number of copies of a value that a type's own conversion creates in one level of encoding.
const COPIES_TO_ENCODE: usize = 4;

/// Maximum stack use for encoding one value, in addition to [`MARGIN`].
#[derive(Debug, Clone, Copy)]
pub(super) struct Encoded(usize);

impl Encoded {
    #[inline]
    pub(super) fn of<T: ?Sized>(value: &T) -> Self {
        Self(size_of_val(value).saturating_mul(COPIES_TO_ENCODE))
    }
}

/// Returns true if the stack has room to encode one more level inside `levels` levels.
#[inline]
pub(super) fn admits(levels: usize, encoded: Encoded) -> bool {
    let is_top = levels < TOP;
    (is_top && encoded.0 <= MODEST) || has_room(is_top, encoded)
}

// Not inlined, because flat values do not need this check.
#[inline(never)]
fn has_room(is_top: bool, Encoded(bytes): Encoded) -> bool {
    stacker::remaining_stack().is_none_or(|left| left >= margin(is_top) + bytes.min(MOST))
}

/// Returns the number of stack bytes that must remain after a level.
const fn margin(is_top: bool) -> usize {
    if is_top { TOP_MARGIN } else { MARGIN }
}

/// Stack use of the values in one message.
#[derive(Debug, Default)]
pub(super) struct Stack {
    /// Largest known stack use of a level in this message. The size of a recursive type is known only when the type occurs
    /// again, when half of its level has been entered.
    most: Cell<usize>,
}

impl Stack {
    /// Checks that the stack has room for the level. `is_top` is true in the first [`TOP`] levels. Inlining would slow down
    /// the decoding of flat values, which need no check.
    #[inline(never)]
    pub(super) fn admit<E: Error>(&self, is_top: bool, level: Level) -> Result<(), E> {
        let most = self.most.get().max(level.0);
        self.most.set(most);
        require(margin(is_top) + most)
    }

    /// Checks that the stack has room for a collected value inside `depth` containers, and for decoding it without further
    /// checks. `size` is the size of its type in bytes, as far as known.
    pub(super) fn admit_buffered<E: Error>(&self, is_top: bool, depth: usize, size: usize) -> Result<(), E> {
        let known = size.saturating_mul(COPIES_OF_BUFFERED).min(MOST).max(self.most.get());
        if depth > FLAT {
            require(margin(is_top) + (depth + 1) * known.max(BUFFERED))
        } else if is_top && Level(known).is_modest() {
            Ok(())
        } else {
            require(margin(is_top) + (depth + 1) * known)
        }
    }
}

/// Checks that at least this number of stack bytes remains.
#[inline]
fn require<E: Error>(needed: usize) -> Result<(), E> {
    // The remaining stack is unknown for some threads.
    let fits = stacker::remaining_stack().is_none_or(|left| left >= needed);
    if fits { Ok(()) } else { Err(shortage(needed)) }
}

/// Returns the error for a level that does not fit.
#[cold]
fn shortage<E: Error>(needed: usize) -> E {
    E::custom(format_args!(
        "values are nested too deep, or too large, for what is left of the thread's stack: the next level needs \
         {needed} bytes"
    ))
}

#[cfg(test)]
mod tests {
    use super::super::Unlimited;
    use super::super::{Bincode, Codec as _, CodecFor, DecodeError, decode_by};
    use serde::de::DeserializeOwned;
    use serde::{Deserialize, Serialize};
    use std::collections::BTreeMap;
    use std::mem::ManuallyDrop;

    /// Type whose levels take 10 KB or more, even with some optimisation. A stack of [`STACK`] bytes has no room for
    /// [`DEEP`] levels.
    type Wide = [[[u64; 16]; 8]; 2];
    const DEEP: usize = 100;
    const STACK: usize = 768 << 10;

    #[derive(Debug, Default, Serialize, Deserialize)]
    struct Page {
        wide: Wide,
        below: Vec<Self>,
    }

    #[derive(Debug, Serialize, Deserialize)]
    #[allow(clippy::large_enum_variant, reason = "its size is the point")]
    enum Boxed {
        Leaf,
        Wide(Wide),
        Below(Box<Self>),
        Named { name: String, below: Box<Self> },
    }

    #[derive(Debug, Default, Serialize, Deserialize)]
    struct Wrapped(Option<Box<(Self, Wide)>>);

    #[derive(Debug, Default, Serialize, Deserialize)]
    struct Map {
        wide: Wide,
        below: BTreeMap<u8, Self>,
    }

    fn page(depth: usize) -> Page {
        (0..depth).fold(Page::default(), |page, _| Page { below: vec![page], ..Page::default() })
    }

    fn boxed(depth: usize) -> Boxed {
        (0..depth).fold(Boxed::Leaf, |below, level| {
            let below = Box::new(below);
            if level % 2 == 0 { Boxed::Below(below) } else { Boxed::Named { name: String::new(), below } }
        })
    }

    fn wrapped(depth: usize) -> Wrapped {
        (0..depth).fold(Wrapped::default(), |below, _| Wrapped(Some(Box::new((below, Wide::default())))))
    }

    fn map(depth: usize) -> Map {
        (0..depth)
            .fold(Map::default(), |below, _| Map { below: BTreeMap::from([(0, below)]), ..Map::default() })
    }

    /// Runs `code` on a stack of this size. A new thread may have a larger stack, because glibc reuses the stacks of threads
    /// that have ended.
    fn on_stack<T>(bytes: usize, code: impl FnOnce() -> T) -> T {
        stacker::grow(bytes, code)
    }

    /// Asserts that deep values are refused where they would overflow the stack, and that flat values are not refused.
    fn judge<T: Serialize + DeserializeOwned>(make: fn(usize) -> T) {
        let encoded = |depth| {
            on_stack(64 << 20, || {
                // Encodes without limits.
                ::bincode::serde::encode_to_vec(make(depth), ::bincode::config::standard())
            })
        };
        let decoded = |depth, stack| {
            let bytes = encoded(depth).unwrap();
            on_stack(stack, || decode_by(Bincode::decode_value::<T>, &bytes, &Unlimited).map(drop))
        };
        for depth in [DEEP, DEEP - 1] {
            let Err(DecodeError::Malformed(text)) = decoded(depth, STACK) else {
                panic!("{}: {depth} levels fit", std::any::type_name::<T>());
            };
            assert!(text.contains("nested") && text.contains("stack"), "{text}");
            assert_eq!(decoded(depth / 2, 64 << 20), Ok(()), "a larger stack has room");
        }
        assert_eq!(decoded(3, STACK), Ok(()));
    }

    #[test]
    fn deep_value_is_refused_before_stack_overflows() {
        judge(page);
        judge(boxed);
        judge(wrapped);
        judge(map);
    }

    /// Encodes a value for the first time, which also decodes it, and then encodes and decodes it again, on a stack of 64
    /// KiB. The value works or is refused with a reason.
    fn survives<C: CodecFor<T>, T: Serialize + DeserializeOwned>(make: fn(usize) -> T) {
        for depth in [1, 2, 3, 4, 5, 50] {
            let mut bytes = on_stack(64 << 20, || {
                ::bincode::serde::encode_to_vec(make(depth), ::bincode::config::standard()).unwrap()
            });
            let value = ManuallyDrop::new(on_stack(64 << 20, || Box::new(make(depth))));
            let encoded = |into: &mut Vec<u8>| on_stack(64 << 10, || C::encode(&value, into));
            for _ in 0..2 {
                let mut sent = Vec::new();
                if let Err(error) = encoded(&mut sent) {
                    assert!(error.contains("stack"), "{error}");
                } else {
                    bytes = sent;
                }
            }
            let decoded = on_stack(64 << 10, || super::super::decode::<C, T>(&bytes, &Unlimited).map(drop));
            if let Err(error) = decoded {
                let text = error.to_string();
                assert!(C::ID != Bincode::ID || text.contains("stack"), "{text}");
            }
            on_stack(64 << 20, || drop(ManuallyDrop::into_inner(value)));
        }
    }

    #[test]
    fn no_value_overflows_stack_of_64_kib() {
        /// The tests choose parameters for which the values are near the maximum size at unchecked and at checked levels.
        #[derive(Debug, Default, Serialize, Deserialize)]
        struct Sized<const WORDS: usize, T: Default>([[u64; 8]; WORDS], Vec<Self>, T)
        where
            [[u64; 8]; WORDS]: Serialize + DeserializeOwned + Default;
        macro_rules! survive {
            ($($words:literal)*) => {
                $(
                    survives::<Bincode, _>(|depth| {
                        let leaf = || Sized::<$words, (u8, String)>::default();
                        (0..depth).fold(leaf(), |below, _| Sized(Default::default(), vec![below], Default::default()))
                    });
                )*
            };
        }
        survive!(1 2 4 8 12 16 32);
        survives::<Bincode, _>(page);
        survives::<Bincode, _>(boxed);
        survives::<Bincode, _>(wrapped);
        survives::<Bincode, _>(map);
        #[cfg(feature = "message-pack")]
        {
            use super::super::MessagePack;
            survives::<MessagePack, _>(page);
            survives::<MessagePack, _>(boxed);
            survives::<MessagePack, _>(map);
        }
    }

    #[test]
    fn moderate_value_round_trips_on_stack_of_64_kib() {
        #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
        struct Order {
            number: u64,
            address: [u64; 32],
            items: Vec<(u32, String)>,
        }
        let order = Order { number: 1, address: [7; 32], items: vec![(1, "salt".to_owned())] };
        for _ in 0..2 {
            let mut bytes = Vec::new();
            assert_eq!(on_stack(64 << 10, || Bincode::encode(&order, &mut bytes)), Ok(()));
            let decoded = on_stack(64 << 10, || super::super::decode::<Bincode, Order>(&bytes, &Unlimited));
            assert_eq!(decoded.as_ref(), Ok(&order));
        }
    }

    #[test]
    fn large_value_is_decoded_on_stack_of_2_mib() {
        type Large = [[[u64; 32]; 32]; 2];
        let mut bytes = Vec::new();
        Bincode::encode_value(&Large::default(), &mut bytes).unwrap();
        assert_eq!(
            on_stack(2 << 20, || decode_by(Bincode::decode_value::<Large>, &bytes, &Unlimited).map(drop)),
            Ok(())
        );
    }
}
