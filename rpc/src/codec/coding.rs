//! Generated code must name the method and the argument whose type the codec does not accept, in one error.
//!
//! Inherent functions win over those of a trait, but only if the bounds of their `impl` hold. So `Coding::<C,
//! T>::IS_POSSIBLE` is true where `C: CodecFor<T>`, and otherwise it is the constant of [`NoCoding`]. With that,
//! everything but an emitted assertion compiles. It works for types that are concrete where it is written, such as
//! those of a service's methods.

use super::codec_for::CodecFor;
use super::type_shape::TypeShape;
use super::values::{Coded, Decoder, NoValue};
use std::marker::PhantomData;

/// Values of type `T` in the codec `C`. `IS_BORROWED` is true for a type that is known to hold references: serde decodes
/// some of these, but only from bytes that live for ever.
#[derive(Debug)]
pub struct Coding<C, T, const IS_BORROWED: bool = false>(PhantomData<fn() -> (C, T)>);

impl<C: CodecFor<T>, T> Coding<C, T> {
    /// True if the codec accepts the type.
    pub const IS_POSSIBLE: bool = true;

    /// Wraps a value to encode.
    #[inline]
    pub fn of(value: &T) -> Coded<'_, C, T> {
        Coded::new(value)
    }

    /// Returns the decoder of values.
    #[inline]
    #[must_use]
    pub fn decoder() -> Decoder<C, T> {
        Decoder::default()
    }

    /// Returns the shape of the type, if it is compared.
    #[must_use]
    pub fn shape() -> Option<TypeShape> {
        C::shape()
    }
}

/// The fallback of [`Coding`] for types that the codec does not accept.
pub trait NoCoding<T> {
    /// Always false: the codec does not accept the type.
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
            assert!(!Coding::<Bincode, &str, true>::IS_POSSIBLE);
        }
    }
}
