//! A serde deserializer that wraps another one and bounds what hostile bytes can cost: elements that
//! occupy no bytes, and unlimited nesting.
//!
//! The codec wraps its decoder in it. It never changes a value, it only rejects.

use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, Error, MapAccess, SeqAccess, VariantAccess, Visitor,
};
use std::cell::Cell;
use std::fmt;

/// Elements that the sequences of a message may claim beyond its length in bytes. An element occupies at
/// least one byte, except for types like `()`.
const EMPTY_ELEMENTS: usize = 1024;
/// Deepest nesting of values: each level takes stack space.
const DEPTH: usize = 256;

/// What the rest of a message may still claim.
#[derive(Debug)]
pub(super) struct Limits {
    elements: Cell<usize>,
    depth: Cell<usize>,
}

impl Limits {
    /// The limits of a message of `length` bytes.
    pub(super) fn of_message(length: usize) -> Self {
        Self { elements: Cell::new(length.saturating_add(EMPTY_ELEMENTS)), depth: Cell::new(DEPTH) }
    }

    fn claim<E: Error>(&self, elements: Option<usize>) -> Result<(), E> {
        let claimed = elements.unwrap_or_default();
        let left = self.elements.get().checked_sub(claimed).ok_or_else(|| {
            E::custom(format_args!("a sequence claims {claimed} elements, more than the message can hold"))
        })?;
        self.elements.set(left);
        Ok(())
    }

    /// Runs `inside` one level deeper. Decoding ends at the first error, so the level is returned only
    /// on success.
    fn deeper<T, E: Error>(&self, inside: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        let left = self
            .depth
            .get()
            .checked_sub(1)
            .ok_or_else(|| E::custom(format_args!("values are nested more than {DEPTH} deep")))?;
        self.depth.set(left);
        let value = inside()?;
        self.depth.set(left + 1);
        Ok(value)
    }
}

/// A deserializer, seed or access that keeps the limits.
#[derive(Debug)]
pub(super) struct Bounded<'l, T> {
    inner: T,
    limits: &'l Limits,
}

impl<'l, T> Bounded<'l, T> {
    pub(super) fn new(inner: T, limits: &'l Limits) -> Self {
        Self { inner, limits }
    }
}

/// Values that contain no others.
macro_rules! pass_on {
    ($($name:ident)*) => {
        $(
            fn $name<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
                self.inner.$name(visitor)
            }
        )*
    };
}

/// Values that contain others.
macro_rules! go_deeper {
    ($($name:ident($($argument:ident: $type:ty),*) $length:expr;)*) => {
        $(
            fn $name<V: Visitor<'de>>(self, $($argument: $type,)* visitor: V) -> Result<V::Value, D::Error> {
                let Self { inner, limits } = self;
                let visitor = Counted { visitor, limits, length: $length };
                limits.deeper(|| inner.$name($($argument,)* visitor))
            }
        )*
    };
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Bounded<'_, D> {
    type Error = D::Error;

    pass_on! {
        deserialize_any deserialize_bool deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64
        deserialize_i128 deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64 deserialize_u128
        deserialize_f32 deserialize_f64 deserialize_char deserialize_str deserialize_string
        deserialize_bytes deserialize_byte_buf deserialize_unit deserialize_identifier
        deserialize_ignored_any
    }

    go_deeper! {
        deserialize_option() Length::OfType;
        deserialize_newtype_struct(name: &'static str) Length::OfType;
        deserialize_seq() Length::Claimed;
        deserialize_tuple(len: usize) Length::OfType;
        deserialize_tuple_struct(name: &'static str, len: usize) Length::OfType;
        deserialize_map() Length::Claimed;
        deserialize_struct(name: &'static str, fields: &'static [&'static str]) Length::OfType;
        deserialize_enum(name: &'static str, variants: &'static [&'static str]) Length::OfType;
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.inner.deserialize_unit_struct(name, visitor)
    }

    fn is_human_readable(&self) -> bool {
        self.inner.is_human_readable()
    }
}

/// What determines the number of values inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Length {
    /// The type.
    OfType,
    /// The bytes.
    Claimed,
}

#[derive(Debug)]
struct Counted<'l, V> {
    visitor: V,
    limits: &'l Limits,
    length: Length,
}

impl<V> Counted<'_, V> {
    fn claim<E: Error>(&self, elements: Option<usize>) -> Result<(), E> {
        if self.length == Length::Claimed { self.limits.claim(elements) } else { Ok(()) }
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
        self.visitor.visit_some(Bounded::new(inner, self.limits))
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, inner: D) -> Result<V::Value, D::Error> {
        self.visitor.visit_newtype_struct(Bounded::new(inner, self.limits))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, inner: A) -> Result<V::Value, A::Error> {
        // The decoder's hint is exactly what the bytes claim.
        self.claim(inner.size_hint())?;
        self.visitor.visit_seq(Bounded::new(inner, self.limits))
    }

    fn visit_map<A: MapAccess<'de>>(self, inner: A) -> Result<V::Value, A::Error> {
        self.claim(inner.size_hint())?;
        self.visitor.visit_map(Bounded::new(inner, self.limits))
    }

    fn visit_enum<A: EnumAccess<'de>>(self, inner: A) -> Result<V::Value, A::Error> {
        self.visitor.visit_enum(Bounded::new(inner, self.limits))
    }
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Bounded<'_, S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, inner: D) -> Result<S::Value, D::Error> {
        self.inner.deserialize(Bounded::new(inner, self.limits))
    }
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for Bounded<'_, A> {
    type Error = A::Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, A::Error> {
        self.inner.next_element_seed(Bounded::new(seed, self.limits))
    }

    fn size_hint(&self) -> Option<usize> {
        self.inner.size_hint()
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Bounded<'_, A> {
    type Error = A::Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, A::Error> {
        self.inner.next_key_seed(Bounded::new(seed, self.limits))
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        self.inner.next_value_seed(Bounded::new(seed, self.limits))
    }

    fn size_hint(&self) -> Option<usize> {
        self.inner.size_hint()
    }
}

impl<'de, 'l, A: EnumAccess<'de>> EnumAccess<'de> for Bounded<'l, A> {
    type Error = A::Error;
    type Variant = Bounded<'l, A::Variant>;

    fn variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<(S::Value, Self::Variant), A::Error> {
        let (value, variant) = self.inner.variant_seed(seed)?;
        Ok((value, Bounded::new(variant, self.limits)))
    }
}

impl<'de, A: VariantAccess<'de>> VariantAccess<'de> for Bounded<'_, A> {
    type Error = A::Error;

    fn unit_variant(self) -> Result<(), A::Error> {
        self.inner.unit_variant()
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, A::Error> {
        self.inner.newtype_variant_seed(Bounded::new(seed, self.limits))
    }

    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, A::Error> {
        let Self { inner, limits } = self;
        inner.tuple_variant(len, Counted { visitor, limits, length: Length::OfType })
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, A::Error> {
        let Self { inner, limits } = self;
        inner.struct_variant(fields, Counted { visitor, limits, length: Length::OfType })
    }
}
