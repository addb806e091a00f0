//! Errors of methods. An error is a [`Status`], or a value of the service's own error type, which is sent to the caller.
//! Generated code uses [`HandlerError`] on both sides. Only the type counts, so an alias of `Status` is treated as `Status`.

use crate::call::Response;
use crate::codec::{CodecFor, Coded, Decoder, TypeShape};
use crate::server::{Failure, Replier};
use crate::status::Status;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::marker::PhantomData;

/// The error of a call whose method has its own error type.
///
/// It can be the source of another error (thiserror's `#[from]`), including an error that a service sends, because it
/// implements serde's traits if `E` does. In a handler that returns a [`Status`], `?` converts it to a `Status`.
///
/// ```
/// use serde::{Deserialize, Serialize};
/// use trunkline::{CallError, Status};
///
/// #[derive(Debug, thiserror::Error, Serialize, Deserialize)]
/// enum ShopError {
///     #[error("only {0} are left")]
///     OutOfStock(u32),
///     /// A failed call to the payment service.
///     #[error("payment: {0}")]
///     Payment(#[from] CallError<PaymentError>),
/// }
///
/// #[derive(Debug, thiserror::Error, Serialize, Deserialize)]
/// #[error("the card was refused")]
/// struct PaymentError;
///
/// #[trunkline::service]
/// trait Shop {
///     async fn order(&self, what: String) -> Result<u64, ShopError>;
/// }
///
/// async fn order(shop: &ShopClient) -> Result<Option<u64>, Status> {
///     match shop.order("salt".to_owned()).await {
///         Ok(number) => Ok(Some(number)),
///         // The shop's own error, unchanged.
///         Err(CallError::Handler(ShopError::OutOfStock(_))) => Ok(None),
///         // All other errors, including transport errors.
///         Err(error) => Err(error.into()),
///     }
/// }
/// # fn main() {}
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum CallError<E> {
    /// The handler returned this error.
    Handler(E),
    /// A node ended the call with this status.
    Status(#[serde(with = "crate::nested_status")] Status),
}

impl<E> CallError<E> {
    /// Returns the handler's error, or `None` if a node ended the call.
    pub fn handler(&self) -> Option<&E> {
        match self {
            Self::Handler(error) => Some(error),
            Self::Status(_) => None,
        }
    }

    /// Returns the status, or `None` if the handler ended the call.
    pub fn status(&self) -> Option<&Status> {
        match self {
            Self::Handler(_) => None,
            Self::Status(status) => Some(status),
        }
    }

    /// Returns true if the handler has run or may have run. See [`Status::may_have_run`].
    pub fn may_have_run(&self) -> bool {
        match self {
            Self::Handler(_) => true,
            Self::Status(status) => status.may_have_run(),
        }
    }
}

impl<E> From<Status> for CallError<E> {
    fn from(status: Status) -> Self {
        Self::Status(status)
    }
}

impl<E: fmt::Display> fmt::Display for CallError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Handler(error) => error.fmt(f),
            Self::Status(status) => status.fmt(f),
        }
    }
}

impl<E: std::error::Error> std::error::Error for CallError<E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Handler(error) => error.source(),
            Self::Status(_) => None,
        }
    }
}

/// The error of a method in a service with the codec `C`. It is [`Status`], or a type that implements serde's traits and
/// that the codec supports.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the error of a service's method",
    label = "derive `serde::Serialize` and `serde::Deserialize` for it, or return `trunkline::Status`",
    note = "for an error of anyhow or eyre write `anyhow::Result<T>` or `eyre::Result<T>`, and use the feature of that name"
)]
pub trait HandlerError<C>: Sized {
    /// The error type of the client's method.
    type Call: From<Status>;

    /// Converts the handler's error to the failure of the call.
    fn into_failure(self, replier: &Replier) -> Failure;

    /// Returns the response if the call succeeded.
    ///
    /// # Errors
    /// Returns the handler's error, or a status if this error cannot be decoded.
    fn check(response: Response) -> Result<Response, Self::Call>;

    /// Returns the shape of the type, or `None` if the type is not compared.
    #[must_use]
    fn shape() -> Option<TypeShape>;
}

impl<C> HandlerError<C> for Status {
    type Call = Self;

    fn into_failure(self, _: &Replier) -> Failure {
        Failure::Handler(self)
    }

    fn check(response: Response) -> Result<Response, Self> {
        // The caller of this function handles the error.
        Ok(response)
    }

    fn shape() -> Option<TypeShape> {
        None
    }
}

#[diagnostic::do_not_recommend]
impl<C: CodecFor<E>, E: Serialize + DeserializeOwned> HandlerError<C> for E {
    type Call = CallError<E>;

    fn into_failure(self, replier: &Replier) -> Failure {
        replier.error(&Coded::<C, E>::new(&self))
    }

    fn check(response: Response) -> Result<Response, CallError<E>> {
        match response.error::<Decoder<C, E>>() {
            None => Ok(response),
            Some(Ok(error)) => Err(CallError::Handler(error)),
            Some(Err(status)) => Err(CallError::Status(status)),
        }
    }

    fn shape() -> Option<TypeShape> {
        C::shape()
    }
}

/// The error type of a method, checked against the codec. A generated assertion rejects a type that is not a
/// [`HandlerError`]. [`NotFailing`] lets the rest of the stub compile. `codec/coding.rs` explains this and `IS_BORROWED`.
#[derive(Debug)]
pub struct Failing<C, E, const IS_BORROWED: bool = false>(PhantomData<fn() -> (C, E)>);

impl<C, E: HandlerError<C>> Failing<C, E> {
    /// True if the type can be the error of a method.
    pub const IS_POSSIBLE: bool = true;

    /// Converts the handler's error to the failure of the call.
    pub fn into_failure(error: E, replier: &Replier) -> Failure {
        error.into_failure(replier)
    }

    /// Returns the response if the call succeeded.
    ///
    /// # Errors
    /// Returns the handler's error, or a status if this error cannot be decoded.
    pub fn check(response: Response) -> Result<Response, E::Call> {
        E::check(response)
    }

    /// Returns the shape of the type, or `None` if the type is not compared.
    #[must_use]
    pub fn shape() -> Option<TypeShape> {
        E::shape()
    }
}

/// The fallback for [`Failing`], implemented for types that cannot be sent.
pub trait NotFailing<E> {
    /// Always false, because the type cannot be sent.
    const IS_POSSIBLE: bool = false;

    /// Placeholder for [`Failing::into_failure`].
    #[must_use]
    fn into_failure(_: E, _: &Replier) -> Failure {
        Failure::Handler(Status::internal("an assertion next to the stubs refuses the error"))
    }

    /// Placeholder for [`Failing::check`].
    ///
    /// # Errors
    /// Never fails.
    fn check<F>(response: Response) -> Result<Response, F> {
        Ok(response)
    }

    /// Placeholder for [`Failing::shape`].
    #[must_use]
    fn shape() -> Option<TypeShape> {
        None
    }
}

impl<C, E, const IS_BORROWED: bool> NotFailing<E> for Failing<C, E, IS_BORROWED> {}

/// Maps a handler's error type to the error type of the client's method. `IS_STATUS` is true for [`Status`] and false for
/// other types.
pub trait MethodError<const IS_STATUS: bool> {
    /// The error type of the client's method.
    type Call: From<Status>;
}

impl MethodError<true> for Status {
    type Call = Self;
}

impl<E> MethodError<false> for E {
    type Call = CallError<E>;
}

/// The return type of a method that can fail, which may be an alias of `Result`. `IS_RESULT` is true for a `Result`. For
/// other types, which a generated assertion rejects, the error is [`Status`].
pub trait Fallible<const IS_RESULT: bool> {
    /// The error type.
    type Error;
}

impl<T, E> Fallible<true> for Result<T, E> {
    type Error = E;
}

impl<T> Fallible<false> for T {
    type Error = Status;
}
