//! Conversions to [`Status`], so that handlers can use `?` on common errors. These are errors of the standard library and of
//! nested calls, and, with the cargo features `anyhow` and `eyre`, the errors of these crates. The error's text becomes the
//! message, and its sources become the causes. A `Status` inside a type-erased error keeps its code, details and metadata.

use crate::status::call_error::CallError;
use crate::status::{Code, Status};
use std::error::Error;
use std::io::{self, ErrorKind};

/// Creates a status from the text of an error and its sources.
fn of_error(code: Code, error: &(dyn Error + 'static)) -> Status {
    let status = Status::new(code, error.to_string());
    error.source().into_iter().fold(status, Status::caused_by)
}

/// Returns the status for an error of unknown type, which is the first [`Status`] among the error and its sources. Without
/// such a status, creates one with [`Code::Unknown`].
fn error_status(error: &(dyn Error + 'static)) -> Status {
    let mut next = Some(error);
    let mut found = None;
    while let Some(error) = next.filter(|_| found.is_none()) {
        found = error.downcast_ref::<Status>();
        next = error.source();
    }
    let Some(found) = found else { return of_error(Code::Unknown, error) };
    if error.is::<Status>() {
        return found.clone();
    }
    of_error(found.code(), error)
        .with_details(found.details().clone())
        .with_metadata(found.metadata().clone())
}

/// Maps `NotFound`, `PermissionDenied`, `AlreadyExists` and similar kinds to the corresponding codes. A failed connection
/// becomes `Unavailable`, a full disk becomes `ResourceExhausted`, and any other kind becomes `Unknown`.
impl From<io::Error> for Status {
    fn from(error: io::Error) -> Self {
        let code = match error.kind() {
            ErrorKind::NotFound => Code::NotFound,
            ErrorKind::PermissionDenied => Code::PermissionDenied,
            ErrorKind::AlreadyExists => Code::AlreadyExists,
            ErrorKind::InvalidInput => Code::InvalidArgument,
            ErrorKind::InvalidData => Code::DataLoss,
            ErrorKind::TimedOut => Code::DeadlineExceeded,
            ErrorKind::Interrupted | ErrorKind::ConnectionAborted => Code::Aborted,
            ErrorKind::UnexpectedEof => Code::OutOfRange,
            ErrorKind::Unsupported => Code::Unimplemented,
            ErrorKind::OutOfMemory | ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
                Code::ResourceExhausted
            }
            ErrorKind::ConnectionRefused
            | ErrorKind::ConnectionReset
            | ErrorKind::NotConnected
            | ErrorKind::BrokenPipe
            | ErrorKind::AddrInUse
            | ErrorKind::AddrNotAvailable
            | ErrorKind::HostUnreachable
            | ErrorKind::NetworkUnreachable
            | ErrorKind::NetworkDown => Code::Unavailable,
            ErrorKind::DirectoryNotEmpty | ErrorKind::NotADirectory | ErrorKind::IsADirectory => {
                Code::FailedPrecondition
            }
            _ => Code::Unknown,
        };
        of_error(code, &error)
    }
}

macro_rules! conversions {
    ($($code:ident: $($error:ty),+;)*) => {
        $($(
            #[doc = concat!("Maps to [`Code::", stringify!($code), "`].")]
            impl From<$error> for Status {
                fn from(error: $error) -> Self {
                    of_error(Code::$code, &error)
                }
            }
        )+)*
    };
}

conversions! {
    InvalidArgument: std::str::Utf8Error, std::string::FromUtf8Error, std::string::FromUtf16Error, std::num::ParseIntError,
        std::num::ParseFloatError, std::num::TryFromIntError, std::str::ParseBoolError, std::char::ParseCharError,
        std::char::CharTryFromError, std::net::AddrParseError, std::array::TryFromSliceError, crate::wire::metadata::MetadataError;
    Internal: std::fmt::Error, std::time::SystemTimeError, std::sync::mpsc::RecvError, std::cell::BorrowError,
        std::cell::BorrowMutError, std::thread::AccessError;
    ResourceExhausted: std::collections::TryReserveError;
}

/// Maps the error to [`Code::Internal`], because a thread panicked while it held the lock.
impl<T> From<std::sync::PoisonError<T>> for Status {
    fn from(error: std::sync::PoisonError<T>) -> Self {
        Self::internal(error.to_string())
    }
}

/// Maps the error to [`Code::Internal`], because the receiver was dropped.
impl<T> From<std::sync::mpsc::SendError<T>> for Status {
    fn from(error: std::sync::mpsc::SendError<T>) -> Self {
        Self::internal(error.to_string())
    }
}

impl From<std::convert::Infallible> for Status {
    fn from(never: std::convert::Infallible) -> Self {
        match never {}
    }
}

/// Returns the status inside the error, or a status with [`Code::Unknown`] if there is none.
impl From<Box<dyn Error + Send + Sync>> for Status {
    fn from(error: Box<dyn Error + Send + Sync>) -> Self {
        error_status(&*error)
    }
}

/// Returns the status inside the error, or a status with [`Code::Unknown`] if there is none.
impl From<Box<dyn Error>> for Status {
    fn from(error: Box<dyn Error>) -> Self {
        error_status(&*error)
    }
}

/// Converts the error of a nested call. If a node ended the call, its status is kept. If the handler returned an error, the
/// status inside that error is kept, or the code is [`Code::Unknown`].
impl<E: Error + 'static> From<CallError<E>> for Status {
    fn from(error: CallError<E>) -> Self {
        match error {
            CallError::Handler(error) => error_status(&error),
            CallError::Status(status) => status,
        }
    }
}

/// Returns the status inside the error, or a status with [`Code::Unknown`] if there is none. Contexts and sources become
/// causes.
#[cfg(feature = "anyhow")]
impl From<anyhow::Error> for Status {
    fn from(error: anyhow::Error) -> Self {
        error_status(error.as_ref())
    }
}

/// Returns the status inside the error, or a status with [`Code::Unknown`] if there is none. Contexts and sources become
/// causes.
#[cfg(feature = "eyre")]
impl From<eyre::Report> for Status {
    fn from(error: eyre::Report) -> Self {
        error_status(error.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_standard_library_have_code_of_their_kind() {
        fn read() -> Result<String, Status> {
            Ok(std::fs::read_to_string("/no such directory/file")?)
        }
        fn number(text: &str) -> Result<u8, Status> {
            Ok(text.parse()?)
        }
        let status = read().unwrap_err();
        assert_eq!((status.code(), status.causes()), (Code::NotFound, &[][..]), "{status}");
        assert!(status.may_have_run(), "it is a handler's");
        let status = number("many").unwrap_err();
        assert_eq!(
            (status.code(), status.message()),
            (Code::InvalidArgument, "invalid digit found in string")
        );
        assert_eq!(Status::from(String::from_utf8(vec![0xff]).unwrap_err()).code(), Code::InvalidArgument);
        assert_eq!(Status::from(io::Error::from(ErrorKind::StorageFull)).code(), Code::ResourceExhausted);
        assert_eq!(Status::from(io::Error::from(ErrorKind::ConnectionRefused)).code(), Code::Unavailable);
    }

    #[derive(Debug, thiserror::Error)]
    #[error("the order was not saved")]
    struct NotSaved(#[source] io::Error);

    #[test]
    fn sources_are_kept_as_causes() {
        let error = NotSaved(io::Error::other("the disk is on fire"));
        let boxed: Box<dyn Error + Send + Sync> = Box::new(error);
        let status = Status::from(boxed);
        assert_eq!((status.code(), status.message()), (Code::Unknown, "the order was not saved"));
        assert_eq!(status.causes(), ["the disk is on fire"]);
    }

    #[derive(Debug, thiserror::Error)]
    #[error("the shop did not reply")]
    struct NoReply(#[source] Status);

    #[test]
    fn status_within_error_is_kept() {
        let status = Status::aborted("busy").with_details("details");
        let boxed: Box<dyn Error> = Box::new(status.clone());
        assert_eq!(Status::from(boxed), status);
        let outer = Status::from(CallError::Handler(NoReply(status.clone())));
        assert_eq!((outer.code(), outer.message()), (Code::Aborted, "the shop did not reply"));
        assert_eq!(
            (&outer.details()[..], outer.causes()),
            (&b"details"[..], &["Aborted: busy".to_owned()][..])
        );
        assert_eq!(Status::from(CallError::<NoReply>::Status(status.clone())), status);
    }

    #[cfg(feature = "anyhow")]
    #[test]
    fn contexts_of_anyhow_are_kept() {
        use anyhow::Context as _;
        let failed: anyhow::Result<()> = Err(NotSaved(io::Error::other("no paper"))).context("no receipt");
        let status = Status::from(failed.unwrap_err());
        assert_eq!((status.code(), status.message()), (Code::Unknown, "no receipt"));
        assert_eq!(status.causes(), ["the order was not saved", "no paper"]);
        let failed: anyhow::Result<()> = Err(Status::not_found("order 7")).context("no receipt");
        assert_eq!(Status::from(failed.unwrap_err()).code(), Code::NotFound);
    }

    #[cfg(feature = "eyre")]
    #[test]
    fn contexts_of_eyre_are_kept() {
        use eyre::WrapErr as _;
        let failed: eyre::Result<()> = Err(Status::not_found("order 7")).wrap_err("no receipt");
        let status = Status::from(failed.unwrap_err());
        assert_eq!((status.code(), status.message()), (Code::NotFound, "no receipt"));
        assert_eq!(status.causes(), ["NotFound: order 7"]);
    }
}
