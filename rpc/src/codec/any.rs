//! A visitor of values whose type only the bytes tell, in self-describing formats: values that an untagged enum or a
//! flattened struct keeps, and fields that a type skips.
//!
//! The contents of the bytes are known only when they are visited, so containers ask for their level there.

use super::bounded::{Access, Bounded, Enum};
use super::growth::Growth;
use super::heap::{Slot, block};
use super::limits::Limits;
use super::stack::Level;
use serde::de::{Deserializer, EnumAccess, Error, MapAccess, SeqAccess, Visitor};
use std::fmt;

/// A visitor that enforces the limits.
pub(super) struct Any<'l, V> {
    visitor: V,
    limits: &'l Limits<'l>,
    /// True if the visited value is kept, and so takes memory.
    is_kept: bool,
}

impl<'l, V> Any<'l, V> {
    pub(super) fn kept(visitor: V, limits: &'l Limits<'l>) -> Self {
        Self { visitor, limits, is_kept: true }
    }

    pub(super) fn ignored(visitor: V, limits: &'l Limits<'l>) -> Self {
        Self { visitor, limits, is_kept: false }
    }

    /// Takes the memory of a string or of bytes.
    fn take<E: Error>(&self, bytes: usize) -> Result<(), E> {
        if self.is_kept { self.limits.take(block(bytes)) } else { Ok(()) }
    }

    /// Returns bounded access to the elements of a collection.
    fn open<A, E: Error>(&self, inner: A, elements: Option<usize>) -> Result<Access<'l, A>, E> {
        self.limits.claim(elements)?;
        let growth = if self.is_kept { Growth::of::<V>() } else { Growth::none() };
        Ok(Access::new(inner, self.limits, growth))
    }
}

macro_rules! pass_on {
    ($($name:ident: $ty:ty;)*) => {
        $(
            fn $name<E: Error>(self, value: $ty) -> Result<V::Value, E> {
                self.visitor.$name(value)
            }
        )*
    };
}

macro_rules! count {
    ($($name:ident: $ty:ty;)*) => {
        $(
            fn $name<E: Error>(self, value: $ty) -> Result<V::Value, E> {
                self.take(value.len())?;
                self.visitor.$name(value)
            }
        )*
    };
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Any<'_, V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.visitor.expecting(f)
    }

    pass_on! {
        visit_bool: bool; visit_i8: i8; visit_i16: i16; visit_i32: i32; visit_i64: i64; visit_i128: i128; visit_u8: u8;
        visit_u16: u16; visit_u32: u32; visit_u64: u64; visit_u128: u128; visit_f32: f32; visit_f64: f64; visit_char: char;
    }

    count! {
        visit_str: &str; visit_borrowed_str: &'de str; visit_string: String; visit_bytes: &[u8];
        visit_borrowed_bytes: &'de [u8]; visit_byte_buf: Vec<u8>;
    }

    fn visit_unit<E: Error>(self) -> Result<V::Value, E> {
        self.visitor.visit_unit()
    }

    fn visit_none<E: Error>(self) -> Result<V::Value, E> {
        self.visitor.visit_none()
    }

    fn visit_some<D: Deserializer<'de>>(self, inner: D) -> Result<V::Value, D::Error> {
        let Self { visitor, limits, .. } = self;
        limits.deeper(Level::of_fields::<V::Value>(1), || {
            visitor.visit_some(Bounded::within(inner, limits, Slot::in_option::<V::Value>()))
        })
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, inner: D) -> Result<V::Value, D::Error> {
        let Self { visitor, limits, .. } = self;
        limits.deeper(Level::of_fields::<V::Value>(1), || {
            visitor.visit_newtype_struct(Bounded::within(inner, limits, Slot::in_newtype::<V::Value>()))
        })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, inner: A) -> Result<V::Value, A::Error> {
        let claimed = inner.size_hint();
        let access = self.open(inner, claimed)?;
        let visitor = self.visitor;
        self.limits.deeper(Level::of_fields::<V::Value>(0), || visitor.visit_seq(access))
    }

    fn visit_map<A: MapAccess<'de>>(self, inner: A) -> Result<V::Value, A::Error> {
        let claimed = inner.size_hint();
        let access = self.open(inner, claimed)?;
        let visitor = self.visitor;
        self.limits.deeper(Level::of_fields::<V::Value>(0), || visitor.visit_map(access))
    }

    fn visit_enum<A: EnumAccess<'de>>(self, inner: A) -> Result<V::Value, A::Error> {
        let Self { visitor, limits, .. } = self;
        limits.deeper(Level::of_fields::<V::Value>(1), || visitor.visit_enum(Enum { inner, limits }))
    }
}
