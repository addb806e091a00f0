//! Errors of the older interface.

use crate::VerbsError;

/// Error of a call of the older interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LegacyError {
    /// `ENOSYS`: the device does not support XRC (contract B3).
    #[error("this device has no XRC; use one that announces it in its capabilities")]
    NoXrc,
    /// `EEXIST`: this process is already registered. The creator is registered from the start (contract B9).
    #[error("this process is registered with the XRC receive QP already")]
    Registered,
    /// Error of the current call that replaces the older one.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
}

impl LegacyError {
    /// Returns the errno that the older call returns.
    #[must_use]
    pub fn errno(self) -> i32 {
        match self {
            Self::NoXrc => 38,
            Self::Registered => 17,
            Self::Verbs(error) => error.errno(),
        }
    }
}
