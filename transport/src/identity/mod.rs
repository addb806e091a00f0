//! Certificates and names of nodes: what a node shows to its peers, and what it demands of theirs.
//!
//! Unfinished: no session uses it. A node has an [`Identity`] and [`Trust`], both from PEM. [`Credentials`] turns them into
//! the configurations of TLS, once per change of files. A [`Verifier`] judges a peer's chain, and answers with the
//! [`Proven`] names or with the number of the cause. Channels compare [`Expected`] names with the proven ones.
//!
//! Only `names` may run on a poller: the rest calls webpki, ring and rustls.
#![forbid(unsafe_code)]

mod credentials;
mod names;
mod verifier;

pub use credentials::{Credentials, Identity, IdentityError, Trust};
pub use names::{Expected, InvalidName, Name, Proven};
pub use verifier::{MOST_CERTIFICATES, Refused, Verifier};

/// Protection of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Neither side has proved a name.
    None,
    /// Both sides have proved names in a TLS 1.3 handshake.
    Encrypted,
}

#[cfg(test)]
mod tests;
