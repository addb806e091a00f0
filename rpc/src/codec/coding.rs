//! The traits of codecs, and their use by generated code. A codec has an ID and a name, and encodes and decodes each type
//! that it accepts. If a codec does not accept a type, the compiler must report a single error, which names the method and
//! the argument.
//!
//! Inherent functions take precedence over trait functions, but only if the bounds of their `impl` are satisfied.
//! `Coding::<C, T>::IS_POSSIBLE` is therefore true if `C: CodecFor<T>`, and otherwise it is the constant of [`NoCoding`]. As
//! a result, everything except a generated assertion compiles. This works for types that are concrete where they are used,
//! such as the types in a service's methods.

use super::limits::{DecodeError, Limits};
use crate::wire::type_shape::TypeShape;
use std::marker::PhantomData;

/// A codec for values. It accepts the types for which it implements [`CodecFor`].
///
/// ```
/// use trunkline::codec::{Codec, CodecFor, DecodeError, Limits};
///
/// /// Encodes text as UTF-8.
/// struct Plain;
///
/// impl Codec for Plain {
///     const ID: u8 = 128;
///     const NAME: &'static str = "plain";
/// }
///
/// impl CodecFor<String> for Plain {
///     fn encode(value: &String, into: &mut Vec<u8>) -> Result<(), String> {
///         into.extend_from_slice(value.as_bytes());
///         Ok(())
///     }
///
///     fn decode(bytes: &[u8], limits: &Limits<'_>) -> Result<String, DecodeError> {
///         limits.allocate(bytes.len())?;
///         String::from_utf8(bytes.to_vec()).map_err(DecodeError::malformed)
///     }
/// }
///
/// #[trunkline::service(codec = Plain)]
/// trait Shout {
///     async fn shout(&self, text: String) -> String;
/// }
/// # fn main() {}
/// ```
pub trait Codec: 'static {
    /// Number of the codec on the wire. Each request contains the number, and a server refuses requests with the number of
    /// another codec. Trunkline uses 0 to 127. Codecs of programs use 128 to 255.
    const ID: u8;
    /// Name for error messages.
    const NAME: &'static str;
}

/// A codec that accepts values of type `T`. It may or may not use serde.
pub trait CodecFor<T>: Codec {
    /// Appends the encoded value.
    ///
    /// # Errors
    /// Returns a human-readable text that states why the value cannot be encoded.
    fn encode(value: &T, into: &mut Vec<u8>) -> Result<(), String>;

    /// Decodes a value from all of `bytes`.
    ///
    /// The bytes come from a peer. Call [`Limits::allocate`] before allocating memory of a size that the bytes claim, and
    /// decode nested values in [`Limits::nest`].
    ///
    /// # Errors
    /// Returns a [`DecodeError`] if the bytes are not a value of the type, or if a limit is exceeded.
    fn decode(bytes: &[u8], limits: &Limits<'_>) -> Result<T, DecodeError>;

    /// Returns the value of an argument that the caller does not send. The default is `None`, which means that every caller
    /// must send the argument.
    #[must_use]
    fn absent() -> Option<T> {
        None
    }

    /// Returns the shape of the type, which must be equal on both sides of a call. The default, `None`, disables the
    /// comparison, for example for codecs that send field names.
    #[must_use]
    fn shape() -> Option<TypeShape> {
        None
    }
}

/// Values of type `T` in the codec `C`. `IS_BORROWED` is true for types that contain references. serde decodes some of these
/// types, but only from `'static` bytes.
#[derive(Debug)]
pub struct Coding<C, T, const IS_BORROWED: bool = false>(PhantomData<fn() -> (C, T)>);

impl<C: CodecFor<T>, T> Coding<C, T> {
    /// True if the codec accepts the type.
    pub const IS_POSSIBLE: bool = true;

    /// Wraps a value for encoding.
    #[inline]
    pub fn of(value: &T) -> Coded<'_, C, T> {
        Coded::new(value)
    }

    /// Returns the decoder for values.
    #[inline]
    #[must_use]
    pub fn decoder() -> Decoder<C, T> {
        Decoder::default()
    }

    /// Returns the shape of the type, or `None` if the type is not compared.
    #[must_use]
    pub fn shape() -> Option<TypeShape> {
        C::shape()
    }
}

/// The fallback for [`Coding`], implemented for types that the codec does not accept.
pub trait NoCoding<T> {
    /// Always false, because the codec does not accept the type.
    const IS_POSSIBLE: bool = false;

    /// Placeholder for [`Coding::of`].
    fn of(_: &T) -> NoValue<T> {
        NoValue::default()
    }

    /// Placeholder for [`Coding::decoder`].
    #[must_use]
    fn decoder() -> NoValue<T> {
        NoValue::default()
    }

    /// Placeholder for [`Coding::shape`].
    #[must_use]
    fn shape() -> Option<TypeShape> {
        None
    }
}

impl<C, T, const IS_BORROWED: bool> NoCoding<T> for Coding<C, T, IS_BORROWED> {}

/// A value that can be encoded.
pub trait EncodeValue {
    /// Appends the encoded value.
    ///
    /// # Errors
    /// Returns a human-readable text.
    fn encode(&self, into: &mut Vec<u8>) -> Result<(), String>;
}

/// A decoder for values.
pub trait DecodeValue {
    /// Type of the value.
    type Value;

    /// Decodes a value from `bytes`, which are part of the message with these limits.
    ///
    /// # Errors
    /// Returns a [`DecodeError`] if the bytes are not a value of the type, or if a limit is exceeded.
    fn decode(bytes: &[u8], limits: &Limits<'_>) -> Result<Self::Value, DecodeError>;

    /// Returns the value of a missing argument if the argument is optional.
    fn absent() -> Option<Self::Value>;
}

/// A value with its codec.
#[derive(Debug)]
pub struct Coded<'v, C, T> {
    value: &'v T,
    codec: PhantomData<fn() -> C>,
}

impl<'v, C: CodecFor<T>, T> Coded<'v, C, T> {
    /// Wraps a value.
    #[inline]
    pub fn new(value: &'v T) -> Self {
        Self { value, codec: PhantomData }
    }
}

impl<C: CodecFor<T>, T> EncodeValue for Coded<'_, C, T> {
    #[inline]
    fn encode(&self, into: &mut Vec<u8>) -> Result<(), String> {
        C::encode(self.value, into)
    }
}

/// A decoder for values in one codec.
#[derive(Debug)]
pub struct Decoder<C, T>(PhantomData<fn() -> (C, T)>);

impl<C, T> Default for Decoder<C, T> {
    #[inline]
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<C: CodecFor<T>, T> DecodeValue for Decoder<C, T> {
    type Value = T;

    #[inline]
    fn decode(bytes: &[u8], limits: &Limits<'_>) -> Result<T, DecodeError> {
        limits.checked(C::decode(bytes, limits))
    }

    fn absent() -> Option<T> {
        C::absent()
    }
}

/// A placeholder for a value that the codec does not accept. Programs that use it do not compile.
#[derive(Debug)]
pub struct NoValue<T>(PhantomData<fn() -> T>);

impl<T> Default for NoValue<T> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

const NOT_TAKEN: &str = "the codec does not take this type";

impl<T> EncodeValue for NoValue<T> {
    fn encode(&self, _: &mut Vec<u8>) -> Result<(), String> {
        Err(NOT_TAKEN.to_owned())
    }
}

impl<T> DecodeValue for NoValue<T> {
    type Value = T;

    fn decode(_: &[u8], _: &Limits<'_>) -> Result<T, DecodeError> {
        Err(DecodeError::malformed(NOT_TAKEN))
    }

    fn absent() -> Option<T> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::super::Bincode;
    use super::*;

    #[test]
    fn type_is_accepted_only_with_traits_of_codec() {
        struct Plain;
        #[derive(serde::Serialize, serde::Deserialize)]
        struct Derived(Vec<String>);
        const {
            assert!(Coding::<Bincode, Derived>::IS_POSSIBLE);
            assert!(Coding::<Bincode, Option<u8>>::IS_POSSIBLE);
            assert!(!Coding::<Bincode, Plain>::IS_POSSIBLE);
            assert!(!Coding::<Bincode, Vec<Plain>>::IS_POSSIBLE);
            assert!(!Coding::<Bincode, &str, true>::IS_POSSIBLE);
        }
    }
}
