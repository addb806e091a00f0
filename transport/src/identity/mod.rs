//! Proof of two nodes' names by certificates, in a handshake that precedes a session, and sealing of the session's
//! frames.
//!
//! `docs/book/src/why/security.md`, *Identity*, specifies the protocol. A node has an [`Identity`] and [`Trust`], both
//! from PEM. [`Credentials`] contain the TLS configurations built from them, and are replaced when the files change. A
//! [`Verifier`] verifies a peer's chain, and returns the [`Proven`] names or the cause of a refusal. Channels compare
//! [`Expected`] names with the proven names.
//!
//! This module performs no I/O. Only `names` and `seal` may run on a poller, since the rest calls webpki and rustls.
//!
//! | module | contents |
//! |---|---|
//! | `credentials` | identity and trust of a node, and the TLS configurations |
//! | `names` | names that a peer has proved, and names that a channel expects |
//! | `verifier` | verification of a peer's chain |
//! | `flight` | TLS flights: reassembly, and the check of their messages |
//! | `binding` | the session's parameters as both sides observed them, and their comparison |
//! | `keys` | secrets of lanes, derived from the TLS exporter |
//! | `seal` | encryption and decryption of a lane's frames |
//! | `exchange` | state machine of a handshake |
//! | `failure` | causes of failed handshakes |
#![forbid(unsafe_code)]

pub(crate) mod binding;
mod credentials;
pub(crate) mod exchange;
mod failure;
pub(crate) mod flight;
pub(crate) mod keys;
mod names;
#[cfg(debug_assertions)]
pub(crate) mod off_poller;
pub(crate) mod seal;
mod verifier;

pub use credentials::{Credentials, Identity, IdentityError, Trust};
pub(crate) use failure::EndedBy;
pub use failure::HandshakeFailure;
pub use names::{Expected, InvalidName, Name, Proven};
pub use rustls::pki_types::CertificateDer;
pub use verifier::{MOST_CERTIFICATES, Refused, Verifier};

/// Level of a session's protection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Neither side has proved a name.
    None,
    /// Both sides have proved names in a TLS 1.3 handshake.
    Encrypted,
}

#[cfg(test)]
pub(crate) mod tests;
