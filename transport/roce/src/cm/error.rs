//! Errors of the machine's calls.

use thiserror::Error;

/// Error of a call to the machine. A failed call has no effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CmError {
    /// The connection or listener does not exist.
    #[error("no such connection: it ended, or was released; wait for its events before you call")]
    Unknown,
    /// The call does not fit the state.
    #[error("the connection is not in a state for this call; wait for the event that leads there")]
    WrongState,
    /// Too much private data.
    #[error(
        "{got} bytes of private data, but the message has room for {max}; send the rest over the connection"
    )]
    PrivateDataTooLong {
        /// Given length.
        got: usize,
        /// Maximum length.
        max: usize,
    },
    /// Another listener uses the address and port, or all ports that port 0 selects from are in use.
    #[error("another listener has this address and port; choose another port, or 0 for a free one")]
    AddressInUse,
    /// One address is IPv4, the other IPv6.
    #[error("source and destination are of different address families; bind to an address like the peer's")]
    AddressFamily,
    /// The table is full.
    #[error("the limit of {limit} connections is reached; end some, or wait for timewait to pass")]
    Full {
        /// [`super::CmConfig::connections`].
        limit: usize,
    },
}
