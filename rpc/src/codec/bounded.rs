//! A serde deserializer that wraps another one and bounds what hostile bytes can cost: memory, elements that
//! occupy no bytes, and nesting.
//!
//! The codec wraps its decoder in it. It never changes a value, it only rejects.

use super::any::Any;
use super::growth::Growth;
use super::heap::{Slot, block};
use super::limits::Limits;
use super::shapes::Kind;
use super::stack::Level;
use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, Error, MapAccess, SeqAccess, VariantAccess, Visitor,
};
use std::fmt;

/// Number of values that a map allocates room for at once, where the map does not ask for whole entries. The first leaf
/// of a B-tree has room for the most.
const PLACES: usize = 11;

/// Number of fields of the longest tuple. A longer one is an array, which is decoded in a loop.
const LONGEST_TUPLE: usize = 16;

/// A deserializer that enforces the limits, and the slot of its value.
pub(super) struct Bounded<'l, D> {
    inner: D,
    limits: &'l Limits<'l>,
    slot: Slot,
}

impl<'l, D> Bounded<'l, D> {
    /// Wraps the deserializer of a value within an `Option` or a newtype struct.
    pub(super) fn within(inner: D, limits: &'l Limits<'l>, slot: Slot) -> Self {
        Self { inner, limits, slot }
    }
}

/// A seed that enforces the limits.
pub(super) struct Seed<'l, S> {
    inner: S,
    limits: &'l Limits<'l>,
}

impl<'l, S> Seed<'l, S> {
    pub(super) fn new(inner: S, limits: &'l Limits<'l>) -> Self {
        Self { inner, limits }
    }
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

/// Values that contain no others.
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

/// Texts and bytes, which are all borrowed from the message: an owned one would be allocated with the
/// length that the bytes claim, before that is checked.
macro_rules! borrow {
    ($($name:ident $borrowed:ident $is_owned:literal;)*) => {
        $(
            fn $name<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
                let Self { inner, limits, slot } = self;
                limits.list(|lists| lists.add(Kind::Bytes));
                slot.fill::<V::Value, _>(false, limits)?;
                inner.$borrowed(Bytes { visitor, limits, is_owned: $is_owned })
            }
        )*
    };
}

/// Values that contain others.
macro_rules! go_deeper {
    ($($name:ident($($argument:ident: $type:ty),*) $length:ident $level:ident($parts:expr)
        $($list:ident($($listed:expr),*))?;)*) => {
        $(
            fn $name<V: Visitor<'de>>(self, $($argument: $type,)* visitor: V) -> Result<V::Value, D::Error> {
                let Self { inner, limits, slot } = self;
                slot.fill::<V::Value, _>(false, limits)?;
                $(limits.list(|lists| lists.$list($($listed),*));)?
                let visitor = Counted { visitor, limits, length: Length::$length };
                limits.deeper(Level::$level::<V::Value>($parts), || inner.$name($($argument,)* visitor))
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
        inner.deserialize_any(Any::kept(visitor, limits))
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.inner.deserialize_ignored_any(Any::ignored(visitor, self.limits))
    }

    borrow! {
        deserialize_str deserialize_str false;
        deserialize_string deserialize_str true;
        deserialize_bytes deserialize_bytes false;
        deserialize_byte_buf deserialize_bytes true;
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

/// A visitor of texts and bytes.
struct Bytes<'l, V> {
    visitor: V,
    limits: &'l Limits<'l>,
    /// True if the visitor takes them owned.
    is_owned: bool,
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Bytes<'_, V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.visitor.expecting(f)
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<V::Value, E> {
        self.limits.take(block(text.len()))?;
        if self.is_owned {
            self.visitor.visit_string(text.to_owned())
        } else {
            self.visitor.visit_borrowed_str(text)
        }
    }

    fn visit_borrowed_bytes<E: Error>(self, bytes: &'de [u8]) -> Result<V::Value, E> {
        self.limits.take(block(bytes.len()))?;
        if self.is_owned {
            self.visitor.visit_byte_buf(bytes.to_owned())
        } else {
            self.visitor.visit_borrowed_bytes(bytes)
        }
    }
}

/// Source of the number of values inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Length {
    /// The type.
    OfType,
    /// The bytes.
    Claimed,
}

/// A visitor of values that contain others.
struct Counted<'l, V> {
    visitor: V,
    limits: &'l Limits<'l>,
    length: Length,
}

impl<'l, V> Counted<'l, V> {
    /// Returns the visitor, and bounded access to the elements. `elements` is the decoder's hint.
    fn open<T, A, E: Error>(self, inner: A, elements: Option<usize>) -> Result<(V, Access<'l, A>), E> {
        let Self { visitor, limits, length } = self;
        let growth = if length == Length::Claimed {
            // The decoder's hint is exactly what the bytes claim.
            limits.claim(elements)?;
            Growth::of::<T>()
        } else {
            Growth::none()
        };
        Ok((visitor, Access::new(inner, limits, growth)))
    }
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Counted<'_, V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.visitor.expecting(f)
    }

    fn visit_none<E: Error>(self) -> Result<V::Value, E> {
        self.visitor.visit_none()
    }

    fn visit_some<D: Deserializer<'de>>(self, inner: D) -> Result<V::Value, D::Error> {
        let Self { visitor, limits, .. } = self;
        visitor.visit_some(Bounded { inner, limits, slot: Slot::in_option::<V::Value>() })
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, inner: D) -> Result<V::Value, D::Error> {
        let Self { visitor, limits, .. } = self;
        visitor.visit_newtype_struct(Bounded { inner, limits, slot: Slot::in_newtype::<V::Value>() })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, inner: A) -> Result<V::Value, A::Error> {
        let claimed = inner.size_hint();
        let (visitor, access) = self.open::<V::Value, _, _>(inner, claimed)?;
        visitor.visit_seq(access)
    }

    fn visit_map<A: MapAccess<'de>>(self, inner: A) -> Result<V::Value, A::Error> {
        let claimed = inner.size_hint();
        let (visitor, access) = self.open::<V::Value, _, _>(inner, claimed)?;
        visitor.visit_map(access)
    }

    fn visit_enum<A: EnumAccess<'de>>(self, inner: A) -> Result<V::Value, A::Error> {
        let Self { visitor, limits, .. } = self;
        visitor.visit_enum(Enum { inner, limits })
    }
}

/// The elements of a sequence, or the entries of a map.
pub(super) struct Access<'l, A> {
    inner: A,
    limits: &'l Limits<'l>,
    growth: Growth,
}

impl<'l, A> Access<'l, A> {
    pub(super) fn new(inner: A, limits: &'l Limits<'l>, growth: Growth) -> Self {
        Self { inner, limits, growth }
    }
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for Access<'_, A> {
    type Error = A::Error;

    #[inline]
    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, A::Error> {
        let Self { inner, limits, growth } = self;
        growth.element(size_of::<S::Value>(), || inner.size_hint(), limits)?;
        inner.next_element_seed(Seed::new(seed, limits))
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
        inner.next_entry_seed(Seed::new(key, limits), Seed::new(value, limits))
    }

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, A::Error> {
        let Self { inner, limits, growth } = self;
        growth.element(size_of::<S::Value>(), || inner.size_hint(), limits)?;
        inner.next_key_seed(Seed::new(seed, limits))
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        // The values of a struct's fields are inside of it.
        if !self.growth.is_fixed() {
            self.limits.take(block(PLACES.saturating_mul(size_of::<S::Value>())))?;
        }
        self.inner.next_value_seed(Seed::new(seed, self.limits))
    }

    fn size_hint(&self) -> Option<usize> {
        self.inner.size_hint()
    }
}

/// A variant of an enum, and what is in it.
pub(super) struct Enum<'l, A> {
    pub(super) inner: A,
    pub(super) limits: &'l Limits<'l>,
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
        self.limits.list(|lists| lists.add_tuple_variant(0));
        self.inner.unit_variant()
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, A::Error> {
        self.limits.list(|lists| lists.add_tuple_variant(1));
        self.inner.newtype_variant_seed(Seed::new(seed, self.limits))
    }

    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, A::Error> {
        let Self { inner, limits } = self;
        limits.list(|lists| lists.add_tuple_variant(len));
        limits.admit(Level::of_fields::<V::Value>(len))?;
        inner.tuple_variant(len, Counted { visitor, limits, length: Length::OfType })
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, A::Error> {
        let Self { inner, limits } = self;
        limits.list(|lists| lists.add_variant(fields));
        limits.admit(Level::of_fields::<V::Value>(fields.len()))?;
        inner.struct_variant(fields, Counted { visitor, limits, length: Length::OfType })
    }
}
