//! Why a call of the older interface was refused.

use crate::VerbsError;

/// A refused call; its errno is what the older calls return.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LegacyError {
    /// `ENOSYS`: the device has no XRC (contract B3).
    #[error("this device has no XRC; look for one whose capabilities have it")]
    NoXrc,
    /// `EEXIST`: this process is registered already, its creator from the start (contract B9).
    #[error("this process is registered with the XRC receive QP already")]
    Registered,
    /// What the call underneath answered.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
}

impl LegacyError {
    /// The errno that the older call returns.
    #[must_use]
    pub fn errno(self) -> i32 {
        match self {
            Self::NoXrc => 38,
            Self::Registered => 17,
            Self::Verbs(error) => error.errno(),
        }
    }
}
