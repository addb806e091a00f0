//! A value together with its codec, as generated code passes it on.

use super::codec_for::CodecFor;
use super::limits::{DecodeError, Limits};
use std::marker::PhantomData;

/// A value that can be encoded.
pub trait EncodeValue {
    /// Appends the encoded value.
    ///
    /// # Errors
    /// Returns a human-readable reason.
    fn encode(&self, into: &mut Vec<u8>) -> Result<(), String>;
}

/// A decoder of a value.
pub trait DecodeValue {
    /// Type of the value.
    type Value;

    /// Decodes a value from `bytes`, a part of the message that has these limits.
    ///
    /// # Errors
    /// Returns a [`DecodeError`].
    fn decode(bytes: &[u8], limits: &Limits<'_>) -> Result<Self::Value, DecodeError>;

    /// Returns the value of an argument that is not sent, if it is optional.
    fn absent() -> Option<Self::Value>;
}

/// A value and its codec.
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

/// A decoder of a value by its codec.
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

/// A placeholder for a value that its codec does not accept. A program with one does not compile.
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
