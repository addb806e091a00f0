//! Types that the macro knows by their names, and what emitted code proves of them.
//!
//! The macro sees the names of types only: it sends what is named `Bytes` as raw bytes, and takes an error named `Status`
//! for one. Emitted assertions refuse a type that has such a name and is another one, and [`Bytes`] by another name,
//! because which arguments are raw is part of a method's identity. As for a codec (`codec/coding.rs`), the functions of the trait
//! let everything but the assertion compile.

use crate::context::Context;
use crate::server::Failure;
use crate::status::Status;
use bytes::Bytes;
use std::marker::PhantomData;

/// A type that may be one of those.
#[derive(Debug)]
pub struct Named<T>(PhantomData<fn() -> T>);

impl Named<Bytes> {
    /// It is [`Bytes`].
    pub const IS_BYTES: bool = true;

    /// The bytes that are sent for a value.
    #[inline]
    #[must_use]
    pub fn body(value: Bytes) -> Bytes {
        value
    }

    /// The value of received bytes.
    #[inline]
    #[must_use]
    pub fn value(bytes: Bytes) -> Bytes {
        bytes
    }
}

impl Named<Context> {
    /// It is [`Context`].
    pub const IS_CONTEXT: bool = true;

    /// The context that a handler is passed.
    #[inline]
    #[must_use]
    pub fn context(context: Context) -> Context {
        context
    }
}

impl Named<Option<Bytes>> {
    /// It is an optional [`Bytes`].
    pub const IS_OPTIONAL_BYTES: bool = true;
}

impl Named<Status> {
    /// It is [`Status`].
    pub const IS_STATUS: bool = true;

    /// The failure of a handler that has returned this.
    #[must_use]
    pub fn failure(status: Status) -> Failure {
        Failure::Handler(status)
    }
}

const REFUSED: &str = "an assertion next to the stubs refuses the type";

/// What [`Named`] is for other types. Emitted assertions keep programs that would call these functions from compiling.
pub trait NotNamed<T> {
    /// It is another type.
    const IS_BYTES: bool = false;
    /// It is another type.
    const IS_CONTEXT: bool = false;
    /// It is another type.
    const IS_OPTIONAL_BYTES: bool = false;
    /// It is another type.
    const IS_STATUS: bool = false;

    /// Stands for the bytes of a value.
    #[must_use]
    fn body(_: T) -> Bytes {
        Bytes::new()
    }

    /// Stands for a value.
    #[must_use]
    fn value(_: Bytes) -> T {
        unreachable!("{REFUSED}")
    }

    /// Stands for a context.
    #[must_use]
    fn context(_: Context) -> T {
        unreachable!("{REFUSED}")
    }

    /// Stands for a failure.
    #[must_use]
    fn failure(_: T) -> Failure {
        Failure::Handler(Status::internal(REFUSED))
    }
}

impl<T> NotNamed<T> for Named<T> {}

/// An emitted assertion: compiles only if it holds.
///
/// # Panics
/// It does not hold. The compiler evaluates it, and reports the text at the place of the call.
#[track_caller]
pub const fn require(holds: bool, text: &str) {
    assert!(holds, "{}", text);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_known_by_what_they_are_and_not_by_their_names() {
        type Blob = Bytes;
        type Trouble = Status;
        mod other {
            pub(super) struct Bytes;
            pub(super) struct Status;
        }
        const {
            assert!(Named::<Blob>::IS_BYTES && !Named::<other::Bytes>::IS_BYTES);
            assert!(Named::<Option<Blob>>::IS_OPTIONAL_BYTES && !Named::<Blob>::IS_OPTIONAL_BYTES);
            assert!(!Named::<Option<Blob>>::IS_BYTES && !Named::<Vec<u8>>::IS_BYTES);
            assert!(Named::<Trouble>::IS_STATUS && !Named::<other::Status>::IS_STATUS);
        }
    }
}
