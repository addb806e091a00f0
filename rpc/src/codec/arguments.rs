//! The arguments of a request, which are its encoded part.
//!
//! ```text
//! 0 count (1)   then, for each argument:   length (4, little-endian)   the value, as the codec encodes it
//! ```
//!
//! Each argument is prefixed with its length, so that the caller and the server may have different numbers of arguments. A
//! server skips surplus arguments, and the codec supplies missing ones. The bytes come from a peer, so all lengths are
//! checked before the first value is decoded, and all arguments share one [`Limits`].

use super::coding::{DecodeValue, EncodeValue};
use super::limits::{Allowance, DecodeError, Limits};
use serde::de::value::Error;
use serde::de::{DeserializeOwned, Deserializer, Error as _, Visitor};
use serde::forward_to_deserialize_any;

/// Size of an argument's length field, in bytes.
const LENGTH: usize = 4;

/// The arguments of a method for encoding, as a tuple of up to twelve elements.
pub trait EncodeArguments {
    /// Appends the arguments as the encoded part of a request.
    ///
    /// # Errors
    /// Returns a human-readable text.
    fn encode(&self, into: &mut Vec<u8>) -> Result<(), String>;
}

/// The decoders of a method's arguments, as a tuple of up to twelve elements.
pub trait DecodeArguments {
    /// Tuple of the arguments.
    type Values;

    /// Decodes the arguments of a request. Returns `None` if one of them is invalid; `list` then contains the error.
    fn decode(list: &mut ArgumentList<'_>) -> Option<Self::Values>;
}

/// The arguments of a request that is being decoded.
pub struct ArgumentList<'m> {
    rest: &'m [u8],
    /// Number of arguments in `rest`.
    left: u8,
    names: std::slice::Iter<'m, &'static str>,
    limits: &'m Limits<'m>,
    error: Option<DecodeError>,
}

impl<'m> ArgumentList<'m> {
    /// Creates the list of the arguments in `bytes`. `names` contains the names of the method's parameters.
    fn new(bytes: &'m [u8], names: &'m [&'static str], limits: &'m Limits<'m>) -> Result<Self, DecodeError> {
        let malformed = |text: &str| DecodeError::Malformed(text.to_owned());
        let (&count, all) = bytes.split_first().ok_or_else(|| malformed("their number is missing"))?;
        let mut rest = all;
        for _ in 0..count {
            (_, rest) = split(rest).ok_or_else(|| malformed("their lengths exceed the message"))?;
        }
        if !rest.is_empty() {
            return Err(malformed("bytes are left over after the last one"));
        }
        Ok(Self { rest: all, left: count, names: names.iter(), limits, error: None })
    }

    /// Returns the next argument, or `None` if it is invalid, or missing although it is required.
    pub fn argument<D: DecodeValue>(&mut self) -> Option<D::Value> {
        let name = self.names.next().copied().unwrap_or("?");
        self.value::<D>().map_err(|error| self.error = Some(error.of_argument(name))).ok()
    }

    fn value<D: DecodeValue>(&mut self) -> Result<D::Value, DecodeError> {
        let Some(left) = self.left.checked_sub(1) else {
            let missing =
                || DecodeError::Malformed("the caller does not send it, and it is required".to_owned());
            return D::absent().ok_or_else(missing);
        };
        self.left = left;
        let (value, rest) = split(self.rest).unwrap_or_default();
        self.rest = rest;
        D::decode(value, self.limits)
    }
}

impl std::fmt::Debug for ArgumentList<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ArgumentList").field("left", &self.left).finish_non_exhaustive()
    }
}

/// Splits off the bytes of the first argument.
fn split(list: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = list.split_first_chunk::<LENGTH>()?;
    rest.split_at_checked(usize::try_from(u32::from_le_bytes(*length)).ok()?)
}

/// Decodes the arguments of a request. As in [`super::decode`], `allowance` grants the memory.
///
/// # Errors
/// Returns a [`DecodeError`] that names the argument.
pub(crate) fn decode_arguments<D: DecodeArguments>(
    bytes: &[u8],
    names: &[&'static str],
    allowance: &dyn Allowance,
) -> Result<D::Values, DecodeError> {
    let limits = Limits::of_message(bytes.len(), allowance);
    let mut list = ArgumentList::new(bytes, names, &limits)?;
    let all = D::decode(&mut list);
    let error = list.error.take();
    let all =
        all.ok_or_else(|| error.unwrap_or_else(|| DecodeError::Malformed("one is missing".to_owned())))?;
    limits.settle();
    Ok(all)
}

/// Appends the length and the value of an argument.
fn append<V: EncodeValue>(value: &V, into: &mut Vec<u8>) -> Result<(), String> {
    let at = into.len();
    into.extend([0; LENGTH]);
    value.encode(into)?;
    let bytes = into.len() - at - LENGTH;
    let length = u32::try_from(bytes).map_err(|_| format!("an argument of {bytes} bytes is too large"))?;
    into[at..at + LENGTH].copy_from_slice(&length.to_le_bytes());
    Ok(())
}

macro_rules! tuples {
    ($(($count:literal $($name:ident)*))*) => {
        $(
            impl<$($name: EncodeValue),*> EncodeArguments for ($($name,)*) {
                #[allow(non_snake_case, reason = "a value has the name of its type")]
                fn encode(&self, into: &mut Vec<u8>) -> Result<(), String> {
                    let ($($name,)*) = self;
                    into.push($count);
                    $(append($name, into)?;)*
                    Ok(())
                }
            }

            impl<$($name: DecodeValue),*> DecodeArguments for ($($name,)*) {
                type Values = ($($name::Value,)*);

                #[allow(unused_variables, reason = "there may be no arguments")]
                fn decode(list: &mut ArgumentList<'_>) -> Option<Self::Values> {
                    Some(($(list.argument::<$name>()?,)*))
                }
            }
        )*
    };
}

tuples! {
    (0) (1 A) (2 A B) (3 A B C) (4 A B C D) (5 A B C D E) (6 A B C D E F) (7 A B C D E F G) (8 A B C D E F G H)
    (9 A B C D E F G H I) (10 A B C D E F G H I J) (11 A B C D E F G H I J K) (12 A B C D E F G H I J K L)
}

/// Returns the value of a missing argument, according to serde's rule for missing fields. Only a type that deserializes as
/// an `Option`, even through an alias or a newtype, has such a value.
pub(super) fn absent<T: DeserializeOwned>() -> Option<T> {
    T::deserialize(Nothing).ok()
}

/// A deserializer without input.
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
    use super::super::Unlimited;
    use super::super::{Bincode, Coding, Decoder};
    use super::*;
    use serde::Deserialize;

    fn bytes_of(arguments: &impl EncodeArguments) -> Vec<u8> {
        let mut bytes = Vec::new();
        arguments.encode(&mut bytes).unwrap();
        bytes
    }

    macro_rules! encoded {
        ($($value:expr),*) => {
            bytes_of(&($(Coding::<Bincode, _>::of(&$value),)*))
        };
    }

    fn decode<D: DecodeArguments>(bytes: &[u8]) -> Result<D::Values, String> {
        decode_arguments::<D>(bytes, &["a", "b", "c"], &Unlimited).map_err(|error| error.to_string())
    }

    macro_rules! decoded {
        ($bytes:expr => $($ty:ty),*) => {
            decode::<($(Decoder<Bincode, $ty>,)*)>($bytes)
        };
    }

    #[test]
    fn layout_is_count_then_length_and_bytes_of_each() {
        assert_eq!(encoded!(), [0]);
        assert_eq!(encoded!(7_u8, "ab".to_owned()), [2, 1, 0, 0, 0, 7, 3, 0, 0, 0, 2, b'a', b'b']);
    }

    #[test]
    fn added_argument_may_be_optional() {
        type Maybe = Option<u16>;
        let (old, new) = (encoded!(1_u8), encoded!(1_u8, Some(2_u16)));
        assert_eq!(decoded!(&old => u8), Ok((1,)));
        assert_eq!(decoded!(&old => u8, Maybe), Ok((1, None)));
        assert_eq!(decoded!(&old => u8, Maybe, Option<String>), Ok((1, None, None)));
        assert_eq!(decoded!(&new => u8), Ok((1,)), "a surplus one is skipped");
        assert_eq!(decoded!(&new => u8, Maybe), Ok((1, Some(2))));
        assert_eq!(decoded!(&new =>), Ok(()));
        let missing = "argument `b`: the caller does not send it, and it is required";
        assert_eq!(decoded!(&old => u8, u16), Err(missing.to_owned()));
        // The codec of a surplus argument may be unknown.
        assert_eq!(decoded!(&[2, 1, 0, 0, 0, 7, 2, 0, 0, 0, 255, 255] => u8), Ok((7,)));
    }

    #[test]
    fn malformed_lists_are_refused() {
        let whole = encoded!(1_u8, "two".to_owned());
        for end in 0..whole.len() {
            assert!(decoded!(&whole[..end] => u8, String).is_err(), "cut at {end}");
        }
        let mut longer = whole.clone();
        longer.push(0);
        assert!(decoded!(&longer => u8, String).unwrap_err().contains("left over"));
        // Decoding must use exactly the bytes of the argument.
        let [mut short, mut long] = [whole.clone(), whole];
        short[6] -= 1;
        assert!(decoded!(&short => u8, String).is_err());
        long[0] = 255;
        assert!(decoded!(&long => u8, String).unwrap_err().contains("exceed"));
        let error = decoded!(&[1, 2, 0, 0, 0, 7, 7] => u8).unwrap_err();
        assert_eq!(error, "argument `a`: 1 bytes are left over");
    }

    #[test]
    fn all_arguments_share_limits_of_their_message() {
        // Each argument claims fewer empty elements than a message may contain, but their sum exceeds the limit.
        let claim = [1, 0, 0, 0, 250];
        let message = |count: u8| [&[count][..], &claim.repeat(usize::from(count))].concat();
        type Empty = Vec<()>;
        assert!(decoded!(&message(3) => Empty, Empty, Empty).is_ok());
        let five = decoded!(&message(5) => Empty, Empty, Empty, Empty, Empty);
        assert!(five.unwrap_err().contains("elements"));
    }

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
