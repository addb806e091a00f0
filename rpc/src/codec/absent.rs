//! The value of an argument that a request does not have: serde's rule for a field that is missing.
//!
//! A type that asks for an `Option` is `None`, whatever its name: an alias, a newtype around one. Any other type has
//! no value.

use serde::de::value::Error;
use serde::de::{DeserializeOwned, Deserializer, Error as _, Visitor};
use serde::forward_to_deserialize_any;

/// Returns the value, if the type has one.
pub(super) fn absent<T: DeserializeOwned>() -> Option<T> {
    T::deserialize(Nothing).ok()
}

/// A deserializer without an input.
struct Nothing;

impl<'de> Deserializer<'de> for Nothing {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Error> {
        Err(Error::custom("there is no value"))
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_none()
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq
        tuple tuple_struct map struct enum identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[test]
    fn only_options_may_be_absent() {
        type Alias = Option<Vec<u8>>;
        #[derive(Debug, PartialEq, Deserialize)]
        struct Newtype(Alias);
        #[derive(Debug, PartialEq, Deserialize)]
        #[serde(transparent)]
        struct Transparent {
            inner: Alias,
        }
        #[derive(Debug, Default, PartialEq, Deserialize)]
        #[serde(default)]
        struct Defaults {
            inner: Alias,
        }
        assert_eq!(absent::<Alias>(), Some(None));
        assert_eq!(absent::<Box<Option<u8>>>(), Some(Box::new(None)));
        assert_eq!(absent::<Newtype>(), Some(Newtype(None)));
        assert_eq!(absent::<Transparent>(), Some(Transparent { inner: None }));
        assert_eq!((absent::<u8>(), absent::<String>(), absent::<Vec<u8>>()), (None, None, None));
        assert_eq!((absent::<()>(), absent::<(u8, u8)>(), absent::<Defaults>()), (None, None, None));
    }
}
