//! The errors of methods: a [`Status`], or a type of the service's own, which is sent as it is.
//!
//! Emitted code uses [`HandlerError`] on both sides. It is the type that decides, so an alias of `Status` is one.

use crate::call::Response;
use crate::server::{Failure, Replier};
use crate::status::Status;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt;

/// Why a call of a method with an error of its own failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallError<E> {
    /// The handler returned this.
    Handler(E),
    /// A node ended the call.
    Status(Status),
}

impl<E> CallError<E> {
    /// Whether the handler may have run, as [`Status::may_have_run`].
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

/// The error of a method: [`Status`], or any type that serde encodes and decodes.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the error of a service's method",
    label = "it has to be `trunkline::Status`, or implement serde's `Serialize` and `Deserialize`"
)]
pub trait HandlerError: Sized {
    /// What the client's method fails with.
    type Call: From<Status>;

    /// The failure of a handler that has returned this.
    fn into_failure(self, replier: &Replier) -> Failure;

    /// The response if it is a success, otherwise the error in it.
    ///
    /// # Errors
    /// What the handler returned, or why it cannot be decoded.
    fn check(response: Response) -> Result<Response, Self::Call>;
}

impl HandlerError for Status {
    type Call = Self;

    fn into_failure(self, _: &Replier) -> Failure {
        Failure::Handler(self)
    }

    fn check(response: Response) -> Result<Response, Self> {
        // Whoever takes the value finds out.
        Ok(response)
    }
}

impl<E: Serialize + DeserializeOwned> HandlerError for E {
    type Call = CallError<E>;

    fn into_failure(self, replier: &Replier) -> Failure {
        replier.error(&self)
    }

    fn check(response: Response) -> Result<Response, CallError<E>> {
        match response.error() {
            None => Ok(response),
            Some(Ok(error)) => Err(CallError::Handler(error)),
            Some(Err(status)) => Err(CallError::Status(status)),
        }
    }
}

/// What a method returns that can fail: finds the error in an alias of `Result`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a `Result`",
    label = "a type named `Result` has to be one"
)]
pub trait Fallible {
    /// Its error.
    type Error;
}

impl<T, E> Fallible for Result<T, E> {
    type Error = E;
}

/// Is [`Status`]: the errors by this name.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not `trunkline::Status`",
    label = "an error named `Status` is sent as one, so it must be `trunkline::Status`",
    note = "give a type of your own another name here: `type Refusal = {Self};`"
)]
pub trait IsStatus {}

impl IsStatus for Status {}

/// Does nothing; it compiles only for [`Status`].
pub const fn is_status<T: IsStatus>() {}

/// Does nothing; it compiles only for what can be the error of a method.
pub const fn is_handler_error<T: HandlerError>() {}
