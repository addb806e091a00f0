//! Checks types that the macro recognizes only by name. The macro sends a type named `Bytes` as raw bytes, treats an error
//! type named `Status` as [`Status`], and splits a type named `Result` into its parameters.
//!
//! Generated assertions refuse other types with such a name. They also refuse [`Bytes`] under another name, because the raw
//! arguments are part of a method's identity. As for codecs (`codec/coding.rs`), the functions of the fallback trait let
//! everything except the assertion compile.

use crate::call::context::Context;
use crate::server::Failure;
use crate::status::Status;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::marker::PhantomData;

/// A type that may be one of the types that the macro recognizes by name.
#[derive(Debug)]
pub struct Named<T>(PhantomData<fn() -> T>);

impl Named<Bytes> {
    /// True if the type is [`Bytes`].
    pub const IS_BYTES: bool = true;

    /// Returns the bytes to send for a value.
    #[inline]
    #[must_use]
    pub fn body(value: Bytes) -> Bytes {
        value
    }

    /// Converts received bytes to an argument or a result.
    #[inline]
    #[must_use]
    pub fn value(bytes: Bytes) -> Bytes {
        bytes
    }
}

impl Named<Context> {
    /// True if the type is [`Context`].
    pub const IS_CONTEXT: bool = true;

    /// Returns the context that a handler receives.
    #[inline]
    #[must_use]
    pub fn context(context: Context) -> Context {
        context
    }
}

impl Named<Option<Bytes>> {
    /// True if the type is an optional [`Bytes`].
    pub const IS_OPTIONAL_BYTES: bool = true;

    /// Returns the bytes to send for a value.
    #[inline]
    #[must_use]
    pub fn optional_body(value: Option<Bytes>) -> Option<Bytes> {
        value
    }

    /// Converts received bytes to an argument or a result.
    #[inline]
    #[must_use]
    pub fn optional_value(bytes: Option<Bytes>) -> Option<Bytes> {
        bytes
    }
}

impl<T, E> Named<Result<T, E>> {
    /// True if the type is a [`Result`].
    pub const IS_RESULT: bool = true;

    /// Returns the outcome of a handler.
    #[inline]
    #[allow(clippy::missing_errors_doc, reason = "it returns its argument")]
    pub fn result(value: Result<T, E>) -> Result<T, E> {
        value
    }
}

impl Named<Status> {
    /// True if the type is [`Status`].
    pub const IS_STATUS: bool = true;

    /// Converts a handler's status to the failure of the call.
    #[must_use]
    pub fn failure(status: Status) -> Failure {
        Failure::Handler(status)
    }
}

impl<E> Named<E>
where
    Status: From<E>,
{
    /// True if the type converts to a [`Status`]. With the corresponding features, this includes errors of anyhow and eyre.
    pub const IS_REPORT: bool = true;

    /// Converts a handler's error to the failure of the call.
    pub fn report(error: E) -> Failure {
        Failure::Handler(error.into())
    }
}

impl<T: Borrowed> Named<T> {
    /// True if the type contains references.
    pub const IS_BORROWED: bool = true;
}

/// A type that contains references, which serde decodes only from `'static` bytes. The macro does not detect references
/// behind an alias.
pub trait Borrowed {}

impl<T: ?Sized> Borrowed for &T {}
impl<T: Borrowed> Borrowed for Option<T> {}
impl<T: Borrowed> Borrowed for Box<T> {}
impl<T: Borrowed> Borrowed for Vec<T> {}
impl<T: Borrowed, const LENGTH: usize> Borrowed for [T; LENGTH] {}
impl<T: Borrowed, E> Borrowed for Result<T, E> {}
impl<T: Borrowed, S> Borrowed for HashSet<T, S> {}
impl<T: Borrowed> Borrowed for BTreeSet<T> {}
impl<K: Borrowed, V, S> Borrowed for HashMap<K, V, S> {}
impl<K: Borrowed, V> Borrowed for BTreeMap<K, V> {}
impl<A: Borrowed, B> Borrowed for (A, B) {}

/// Implements [`Borrowed`] for pairs whose second element contains references. A trait bound cannot express that one of the
/// two elements contains references, so the first element is a type without references.
macro_rules! second_is_borrowed {
    ($($first:ty)*) => {
        $(impl<B: Borrowed> Borrowed for ($first, B) {})*
    };
}

second_is_borrowed!(bool char u8 u16 u32 u64 u128 usize i8 i16 i32 i64 i128 isize f32 f64 String);

const REFUSED: &str = "an assertion next to the stubs refuses the type";

/// The fallback for [`Named`], implemented for all types. Programs that would call these functions do not compile.
pub trait NotNamed<T> {
    /// Always false, because the type is not [`Bytes`].
    const IS_BYTES: bool = false;
    /// Always false, because the type is not [`Context`].
    const IS_CONTEXT: bool = false;
    /// Always false, because the type is not an optional [`Bytes`].
    const IS_OPTIONAL_BYTES: bool = false;
    /// Always false, because the type is not a [`Result`].
    const IS_RESULT: bool = false;
    /// Always false, because the type is not [`Status`].
    const IS_STATUS: bool = false;
    /// Always false, because the type does not convert to a [`Status`].
    const IS_REPORT: bool = false;
    /// Always false, because the type contains no references.
    const IS_BORROWED: bool = false;

    /// Placeholder for [`Named::report`].
    #[must_use]
    fn report(_: T) -> Failure {
        Failure::Handler(Status::internal(REFUSED))
    }

    /// Placeholder for [`Named::body`].
    #[must_use]
    fn body(_: T) -> Bytes {
        Bytes::new()
    }

    /// Placeholder for [`Named::value`].
    #[must_use]
    fn value(_: Bytes) -> T {
        unreachable!("{REFUSED}")
    }

    /// Placeholder for [`Named::optional_body`].
    #[must_use]
    fn optional_body(_: T) -> Option<Bytes> {
        None
    }

    /// Placeholder for [`Named::optional_value`].
    #[must_use]
    fn optional_value(_: Option<Bytes>) -> T {
        unreachable!("{REFUSED}")
    }

    /// Placeholder for [`Named::result`].
    #[allow(clippy::missing_errors_doc, reason = "it is never called")]
    fn result<S, E>(_: T) -> Result<S, E> {
        unreachable!("{REFUSED}")
    }

    /// Placeholder for [`Named::context`].
    #[must_use]
    fn context(_: Context) -> T {
        unreachable!("{REFUSED}")
    }

    /// Placeholder for [`Named::failure`].
    #[must_use]
    fn failure(_: T) -> Failure {
        Failure::Handler(Status::internal(REFUSED))
    }
}

impl<T> NotNamed<T> for Named<T> {}

/// Asserts at compile time that `holds` is true.
///
/// # Panics
/// Panics if `holds` is false. The compiler reports `text` at the call site.
#[track_caller]
pub const fn require(holds: bool, text: &str) {
    assert!(holds, "{}", text);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_recognized_through_aliases_and_not_by_name() {
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
            assert!(Named::<std::io::Result<u8>>::IS_RESULT && !Named::<Option<u8>>::IS_RESULT);
            assert!(Named::<&str>::IS_BORROWED && Named::<Vec<Option<&[u8]>>>::IS_BORROWED);
            assert!(!Named::<Vec<Option<String>>>::IS_BORROWED && !Named::<(u8, String)>::IS_BORROWED);
            assert!(Named::<(&str, u8)>::IS_BORROWED && Named::<Vec<(String, &str)>>::IS_BORROWED);
            assert!(Named::<Trouble>::IS_REPORT && !Named::<String>::IS_REPORT);
            assert!(Named::<Trouble>::IS_STATUS && !Named::<other::Status>::IS_STATUS);
        }
    }
}
