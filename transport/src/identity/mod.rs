//! Proof of the names of two nodes, by certificates, in a handshake that precedes a session, and sealing of its frames.
//!
//! `docs/book/src/why/security.md`, *Identity*, specifies it. A node has an [`Identity`] and [`Trust`], both
//! from PEM. [`Credentials`] turns them into the configurations of TLS, once per change of files. A [`Verifier`] judges a
//! peer's chain, and answers with the [`Proven`] names or with the number of the cause. Channels compare [`Expected`] names
//! with the proven ones.
//!
//! Does no I/O. Only `names` and `seal` may run on a poller: the rest calls webpki and rustls.
//!
//! | module | contents |
//! |---|---|
//! | `credentials` | identity and trust of a node, and the configurations of TLS |
//! | `names` | names that a peer has proved, and that a channel expects |
//! | `verifier` | judgement of a peer's chain |
//! | `flight` | flights of TLS: reassembly, and the types of their messages |
//! | `binding` | the session's parameters as both sides observed them, and their comparison |
//! | `keys` | secrets of lanes, derived from the exporter of TLS |
//! | `seal` | sealing and opening of a lane's frames |
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

/// Protection of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Neither side has proved a name.
    None,
    /// Both sides have proved names in a TLS 1.3 handshake.
    Encrypted,
}

#[cfg(test)]
pub(crate) mod tests;
