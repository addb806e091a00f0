//! Whether a codec takes a type, as a constant: so that generated code can name the method and the argument in its error.
//!
//! A function of the type itself is preferred to one of a trait, but only if the bounds of its `impl` hold. So
//! `Coding::<C, T>::IS_POSSIBLE` is true where `C: CodecFor<T>`, and otherwise it is the constant of [`NoCoding`], with which
//! everything but an emitted assertion compiles: the author sees one error. That works for types that are known where it
//! is written, as those of a service's methods are.

use super::codec_for::CodecFor;
use super::values::{Coded, Decoder, NoValue};
use std::marker::PhantomData;

/// Values of type `T` by the codec `C`.
#[derive(Debug)]
pub struct Coding<C, T>(PhantomData<fn() -> (C, T)>);

impl<C: CodecFor<T>, T> Coding<C, T> {
    /// The codec takes the type.
    pub const IS_POSSIBLE: bool = true;

    /// A value to encode.
    #[inline]
    pub fn of(value: &T) -> Coded<'_, C, T> {
        Coded::new(value)
    }

    /// How a value is decoded.
    #[inline]
    #[must_use]
    pub fn decoder() -> Decoder<C, T> {
        Decoder::default()
    }
}

/// What [`Coding`] is where the codec does not take the type.
pub trait NoCoding<T> {
    /// The codec does not take the type.
    const IS_POSSIBLE: bool = false;

    /// Stands for a value to encode.
    fn of(_: &T) -> NoValue<T> {
        NoValue::default()
    }

    /// Stands for a decoder.
    #[must_use]
    fn decoder() -> NoValue<T> {
        NoValue::default()
    }
}

impl<C, T> NoCoding<T> for Coding<C, T> {}

#[cfg(test)]
mod tests {
    use super::super::Bincode;
    use super::*;

    #[test]
    fn a_type_is_taken_if_the_codec_has_the_trait_for_it() {
        struct Plain;
        #[derive(serde::Serialize, serde::Deserialize)]
        struct Derived(Vec<String>);
        const {
            assert!(Coding::<Bincode, Derived>::IS_POSSIBLE);
            assert!(Coding::<Bincode, Option<u8>>::IS_POSSIBLE);
            assert!(!Coding::<Bincode, Plain>::IS_POSSIBLE);
            assert!(!Coding::<Bincode, Vec<Plain>>::IS_POSSIBLE);
        }
    }
}
