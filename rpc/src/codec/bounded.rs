//! A serde deserializer that wraps another one and limits the memory, zero-sized elements and nesting that hostile bytes can
//! cause.
//!
//! Codecs wrap their decoders in this deserializer. A level is entered when its contents are visited. Values are passed on
//! unchanged or rejected.

use super::buffering::is_collector;
use super::heap::{Growth, Slot};
use super::limits::{Limits, block};
use super::shapes::{FieldsRead, Kind};
use super::stack::Level;
use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, EnumAccess, Error, MapAccess, SeqAccess, VariantAccess,
    Visitor,
};
use std::fmt;
use std::marker::PhantomData;

/// Number of values for which a map allocates memory at once, unless it requests memory for whole entries. The first leaf of
/// a B-tree is the largest case.
const PLACES: usize = 11;

/// Number of fields of the longest tuple. Longer types are arrays, which are decoded in a loop.
const LONGEST_TUPLE: usize = 16;

/// A deserializer that enforces the limits, and the slot for its value.
struct Bounded<'l, D> {
    inner: D,
    limits: &'l Limits<'l>,
    slot: Slot,
}

impl Limits<'_> {
    /// Decodes a value with serde, within these limits. The deserializer must pass strings and bytes as borrowed data,
    /// because the memory of owned data is not counted.
    ///
    /// # Errors
    /// Returns the deserializer's error.
    pub fn deserialize<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
        &self,
        deserializer: D,
    ) -> Result<T, D::Error> {
        self.seed::<T>().deserialize(deserializer)
    }

    /// Returns a seed for a value within these limits.
    #[inline]
    pub(super) fn seed<T>(&self) -> Seed<'_, PhantomData<T>> {
        Seed { inner: PhantomData, limits: self }
    }
}

/// A seed that enforces the limits.
pub(super) struct Seed<'l, S> {
    inner: S,
    limits: &'l Limits<'l>,
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Seed<'_, S> {
    type Value = S::Value;

    #[inline]
    fn deserialize<D: Deserializer<'de>>(self, inner: D) -> Result<S::Value, D::Error> {
        let Self { inner: seed, limits } = self;
        limits.admit_large::<S::Value, _>()?;
        let decoded = seed.deserialize(Bounded { inner, limits, slot: Slot::of::<S::Value>() });
        if decoded.is_err() {
            limits.note_failure::<S::Value>();
        }
        decoded
    }
}

/// Generates the `deserialize_*` methods for values without nested values.
macro_rules! pass_on {
    ($($name:ident $($kind:ident)?;)*) => {
        $(
            #[inline]
            fn $name<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
                $(self.limits.list(|lists| lists.add(Kind::$kind));)?
                self.slot.fill::<V::Value, _>(true, self.limits)?;
                self.inner.$name(visitor)
            }
        )*
    };
}

/// Generates the `deserialize_*` methods for texts and bytes. Both are borrowed from the message, because an owned value
/// would be allocated with the claimed length before the length is checked.
macro_rules! borrow {
    ($($name:ident $borrowed:ident $contents:ident;)*) => {
        $(
            fn $name<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
                let Self { inner, limits, slot } = self;
                limits.list(|lists| lists.add(Kind::Bytes));
                slot.fill::<V::Value, _>(false, limits)?;
                inner.$borrowed(Visit { visitor, limits, level: None, contents: Contents::$contents })
            }
        )*
    };
}

/// Generates the `deserialize_*` methods for values with nested values.
macro_rules! go_deeper {
    ($($name:ident($($argument:ident: $type:ty),*) $contents:ident $level:ident($parts:expr)
        $($list:ident($($listed:expr),*))?;)*) => {
        $(
            fn $name<V: Visitor<'de>>(self, $($argument: $type,)* visitor: V) -> Result<V::Value, D::Error> {
                let Self { inner, limits, slot } = self;
                slot.fill::<V::Value, _>(false, limits)?;
                $(limits.list(|lists| lists.$list($($listed),*));)?
                let level = Some(Level::$level::<V::Value>($parts));
                inner.$name($($argument,)* Visit { visitor, limits, level, contents: Contents::$contents })
            }
        )*
    };
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Bounded<'_, D> {
    type Error = D::Error;

    pass_on! {
        deserialize_bool Bool; deserialize_i8 I8; deserialize_i16 I16; deserialize_i32 I32; deserialize_i64 I64;
        deserialize_i128 I128; deserialize_u8 U8; deserialize_u16 U16; deserialize_u32 U32; deserialize_u64 U64;
        deserialize_u128 U128; deserialize_f32 F32; deserialize_f64 F64; deserialize_char Char; deserialize_unit;
        deserialize_identifier;
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        let Self { inner, limits, slot } = self;
        slot.fill::<V::Value, _>(false, limits)?;
        limits.note_any();
        if is_collector::<V>() {
            let visit = Visit::of_any(visitor, limits, Contents::Buffered);
            let admit = |depth, size| limits.admit_buffered(depth, size);
            limits.buffer().collect(slot.size(), admit, || inner.deserialize_any(visit))
        } else {
            inner.deserialize_any(Visit::of_any(visitor, limits, Contents::Any))
        }
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.inner.deserialize_ignored_any(Visit::of_any(visitor, self.limits, Contents::Skipped))
    }

    borrow! {
        deserialize_str deserialize_str OfType;
        deserialize_string deserialize_str Owned;
        deserialize_bytes deserialize_bytes OfType;
        deserialize_byte_buf deserialize_bytes Owned;
    }

    go_deeper! {
        deserialize_option() OfType of_fields(1) add(Kind::Option);
        deserialize_newtype_struct(name: &'static str) OfType of_fields(1);
        deserialize_seq() Claimed of_fields(0) add(Kind::List);
        deserialize_tuple(len: usize) OfType of_fields(len.min(LONGEST_TUPLE));
        deserialize_tuple_struct(name: &'static str, len: usize) OfType of_fields(len) add_tuple(name, len);
        deserialize_map() Claimed of_fields(0) add(Kind::Map);
        deserialize_struct(name: &'static str, fields: &'static [&'static str]) OfType of_fields(fields.len()) add_struct(name, fields);
        deserialize_enum(name: &'static str, variants: &'static [&'static str]) OfType of_variants(variants.len()) add_enum(name, variants);
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.slot.fill::<V::Value, _>(false, self.limits)?;
        self.inner.deserialize_unit_struct(name, visitor)
    }

    fn is_human_readable(&self) -> bool {
        self.inner.is_human_readable()
    }
}

/// Contents of a visited value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Contents {
    /// A borrowed text, borrowed bytes, or a fixed number of values given by the type.
    OfType,
    /// A text or bytes of which the visitor takes ownership.
    Owned,
    /// A number of values claimed by the bytes.
    Claimed,
    /// Contents whose type is determined only by the bytes.
    Any,
    /// Like [`Contents::Any`], but collected by serde for an untagged enum or a flattened struct, and possibly copied.
    Buffered,
    /// Like [`Contents::Any`], but skipped by the type, so that it takes no memory.
    Skipped,
}

/// A visitor that enforces the limits.
struct Visit<'l, V> {
    visitor: V,
    limits: &'l Limits<'l>,
    /// The level of nested values; `None` if there are none, or if the level was entered earlier.
    level: Option<Level>,
    contents: Contents,
}

impl<'l, V> Visit<'l, V> {
    /// Creates a visitor for a self-describing format, whose contents are known only when they are visited.
    fn of_any<'de>(visitor: V, limits: &'l Limits<'l>, contents: Contents) -> Self
    where
        V: Visitor<'de>,
    {
        Self { visitor, limits, level: Some(Level::of_fields::<V::Value>(1)), contents }
    }

    /// Charges the memory of a text or bytes.
    fn take<E: Error>(&self, bytes: usize) -> Result<(), E> {
        if self.contents == Contents::Skipped { Ok(()) } else { self.limits.take(block(bytes)) }
    }

    /// Charges the memory of a text or bytes that are not borrowed from the message and not shared between copies.
    fn take_owned<E: Error>(&self, bytes: usize) -> Result<(), E> {
        self.take(bytes)?;
        match self.contents {
            Contents::Buffered => {
                self.limits.take(block(bytes).saturating_mul(self.limits.buffer().copies()))
            }
            _ => Ok(()),
        }
    }

    /// Returns bounded access to the elements of a `T`. `elements` is the decoder's hint, which is the number claimed by the
    /// bytes.
    fn open<T, A, E: Error>(&self, inner: A, elements: Option<usize>) -> Result<Access<'l, A>, E> {
        let growth = match self.contents {
            Contents::Claimed => Growth::of::<T>(),
            Contents::Any => Growth::of::<V>(),
            Contents::Buffered => Growth::of_buffered(self.limits.buffer()),
            Contents::OfType | Contents::Owned | Contents::Skipped => Growth::none(),
        };
        if !matches!(self.contents, Contents::OfType) {
            self.limits.claim(elements)?;
        }
        Ok(Access { inner, limits: self.limits, growth })
    }
}

/// Generates the `visit_*` methods for values without nested values.
macro_rules! visit_leaves {
    ($($name:ident: $ty:ty;)*) => {
        $(
            fn $name<E: Error>(self, value: $ty) -> Result<V::Value, E> {
                self.visitor.$name(value)
            }
        )*
    };
}

/// Generates the `visit_*` methods for texts and bytes.
macro_rules! visit_bytes {
    ($($name:ident: $ty:ty;)*) => {
        $(
            fn $name<E: Error>(self, value: $ty) -> Result<V::Value, E> {
                self.take_owned(value.len())?;
                self.visitor.$name(value)
            }
        )*
    };
}

/// Generates the `visit_*` methods for values with nested values.
macro_rules! visit_inside {
    ($($name:ident: $bound:ident, |$visit:ident, $inner:ident| $bounded:expr;)*) => {
        $(
            fn $name<A: $bound<'de>>(self, $inner: A) -> Result<V::Value, A::Error> {
                let $visit = &self;
                let bounded = $bounded;
                self.limits.descend(self.level)?;
                let visited = self.visitor.$name(bounded);
                self.limits.ascend(self.level);
                visited
            }
        )*
    };
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Visit<'_, V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.visitor.expecting(f)
    }

    visit_leaves! {
        visit_bool: bool; visit_i8: i8; visit_i16: i16; visit_i32: i32; visit_i64: i64; visit_i128: i128; visit_u8: u8;
        visit_u16: u16; visit_u32: u32; visit_u64: u64; visit_u128: u128; visit_f32: f32; visit_f64: f64; visit_char: char;
    }

    visit_bytes! { visit_str: &str; visit_string: String; visit_bytes: &[u8]; visit_byte_buf: Vec<u8>; }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<V::Value, E> {
        self.take(text.len())?;
        match self.contents {
            Contents::Owned => self.visitor.visit_string(text.to_owned()),
            _ => self.visitor.visit_borrowed_str(text),
        }
    }

    fn visit_borrowed_bytes<E: Error>(self, bytes: &'de [u8]) -> Result<V::Value, E> {
        self.take(bytes.len())?;
        match self.contents {
            Contents::Owned => self.visitor.visit_byte_buf(bytes.to_owned()),
            _ => self.visitor.visit_borrowed_bytes(bytes),
        }
    }

    fn visit_unit<E: Error>(self) -> Result<V::Value, E> {
        self.visitor.visit_unit()
    }

    fn visit_none<E: Error>(self) -> Result<V::Value, E> {
        self.visitor.visit_none()
    }

    visit_inside! {
        visit_some: Deserializer, |visit, inner| {
            Bounded { inner, limits: visit.limits, slot: Slot::in_option::<V::Value>() }
        };
        visit_newtype_struct: Deserializer, |visit, inner| {
            Bounded { inner, limits: visit.limits, slot: Slot::in_newtype::<V::Value>() }
        };
        visit_seq: SeqAccess, |visit, inner| {
            let claimed = inner.size_hint();
            visit.open::<V::Value, _, _>(inner, claimed)?
        };
        visit_map: MapAccess, |visit, inner| {
            let claimed = inner.size_hint();
            visit.open::<V::Value, _, _>(inner, claimed)?
        };
        visit_enum: EnumAccess, |visit, inner| Enum { inner, limits: visit.limits };
    }
}

/// Access to the elements of a sequence, or to the entries of a map.
struct Access<'l, A> {
    inner: A,
    limits: &'l Limits<'l>,
    growth: Growth,
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for Access<'_, A> {
    type Error = A::Error;

    #[inline]
    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, A::Error> {
        let Self { inner, limits, growth } = self;
        growth.element(size_of::<S::Value>(), || inner.size_hint(), limits)?;
        inner.next_element_seed(Seed { inner: seed, limits })
    }

    fn size_hint(&self) -> Option<usize> {
        self.inner.size_hint()
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Access<'_, A> {
    type Error = A::Error;

    fn next_entry_seed<K: DeserializeSeed<'de>, V: DeserializeSeed<'de>>(
        &mut self,
        key: K,
        value: V,
    ) -> Result<Option<(K::Value, V::Value)>, A::Error> {
        let Self { inner, limits, growth } = self;
        growth.element(size_of::<(K::Value, V::Value)>(), || inner.size_hint(), limits)?;
        inner.next_entry_seed(Seed { inner: key, limits }, Seed { inner: value, limits })
    }

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, A::Error> {
        let Self { inner, limits, growth } = self;
        growth.element(size_of::<S::Value>(), || inner.size_hint(), limits)?;
        inner.next_key_seed(Seed { inner: seed, limits })
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        // The fields of a struct are stored inside it.
        if !self.growth.is_fixed() {
            self.limits.take(block(PLACES.saturating_mul(size_of::<S::Value>())))?;
        }
        self.inner.next_value_seed(Seed { inner: seed, limits: self.limits })
    }

    fn size_hint(&self) -> Option<usize> {
        self.inner.size_hint()
    }
}

/// Access to a variant of an enum and its contents.
struct Enum<'l, A> {
    inner: A,
    limits: &'l Limits<'l>,
}

impl<'de, 'l, A: EnumAccess<'de>> EnumAccess<'de> for Enum<'l, A> {
    type Error = A::Error;
    type Variant = Enum<'l, A::Variant>;

    fn variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<(S::Value, Self::Variant), A::Error> {
        let (value, inner) = self.inner.variant_seed(seed)?;
        Ok((value, Enum { inner, limits: self.limits }))
    }
}

impl<'de, A: VariantAccess<'de>> VariantAccess<'de> for Enum<'_, A> {
    type Error = A::Error;

    fn unit_variant(self) -> Result<(), A::Error> {
        self.limits.list(|lists| lists.set_fields(FieldsRead::Unnamed(0)));
        self.inner.unit_variant()
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, A::Error> {
        self.limits.list(|lists| lists.set_fields(FieldsRead::Unnamed(1)));
        self.inner.newtype_variant_seed(Seed { inner: seed, limits: self.limits })
    }

    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, A::Error> {
        let Self { inner, limits } = self;
        limits.list(|lists| lists.set_fields(FieldsRead::Unnamed(len)));
        limits.admit(Level::of_fields::<V::Value>(len))?;
        inner.tuple_variant(len, Visit { visitor, limits, level: None, contents: Contents::OfType })
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, A::Error> {
        let Self { inner, limits } = self;
        limits.list(|lists| lists.set_fields(FieldsRead::Named(fields)));
        limits.admit(Level::of_fields::<V::Value>(fields.len()))?;
        inner.struct_variant(fields, Visit { visitor, limits, level: None, contents: Contents::OfType })
    }
}
