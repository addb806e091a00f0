//! Causes of failed handshakes, with the binding's fields that they name.
#![forbid(unsafe_code)]

use super::verifier::Refused;
use crate::wire::frame::FrameError;
use std::fmt;

pub(super) const VERSION: u16 = 0x0001;
pub(super) const CONNECTIONS: u16 = 0x0002;
pub(super) const PREVIOUS: u16 = 0x0003;
pub(super) const SETTINGS: u16 = 0x0010;
/// Upper bytes of the sides' ids, first the TLS client's, then the TLS server's.
pub(super) const SIDES: [u16; 2] = [0x0100, 0x0200];
/// Names of the entries of a side, by the lower bytes of their ids, from 1.
pub(super) const OF_SIDE: [&str; 11] = [
    "versions",
    "features",
    "listener port",
    "epoch",
    "session number",
    "pollers",
    "UDP port",
    "SRQ numbers",
    "INI",
    "TGT",
    "GID",
];

/// Id of an entry that differs, as in a FAILURE; 0 if the end of the list is malformed. Displays the entry's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Field(pub(crate) u16);

impl Field {
    pub(super) fn name(self) -> Option<(&'static str, &'static str)> {
        let [upper, lower] = self.0.to_be_bytes();
        let of_side = OF_SIDE.get(usize::from(lower).wrapping_sub(1)).copied();
        match (self.0, upper) {
            (VERSION, _) => Some(("version", "")),
            (CONNECTIONS, _) => Some(("connections", "")),
            (PREVIOUS, _) => Some(("previous", "")),
            (SETTINGS, _) => Some(("settings", "")),
            (_, 1) => of_side.map(|name| (name, " of the TLS client")),
            (_, 2) => of_side.map(|name| (name, " of the TLS server")),
            _ => None,
        }
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some((name, side)) => write!(f, "{name}{side}"),
            None if self.0 == 0 => f.write_str("end of the list"),
            None => write!(f, "entry {:#06x}", self.0),
        }
    }
}

/// Node that ended an exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EndedBy {
    ThisNode,
    Peer,
    /// The FAILURE arrived in clear, so any node on the path may have sent it.
    Unknown,
}

/// Cause of a failed handshake, and the node that ended the handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub struct HandshakeFailure {
    pub(crate) cause: Refused,
    /// Entry of the binding that differs, only with [`Refused::Binding`].
    pub(crate) field: Option<Field>,
    pub(crate) by: EndedBy,
}

impl HandshakeFailure {
    /// Returns the cause.
    pub fn cause(&self) -> Refused {
        self.cause
    }

    /// Parses the contents of a FAILURE.
    pub(super) fn parse(bytes: &[u8], is_sealed: bool) -> Result<Self, FrameError> {
        let Ok([c0, c1, f0, f1]) = <[u8; 4]>::try_from(bytes) else {
            return Err(FrameError::Broken("FAILURE in fragments"));
        };
        let cause = Refused::from_code(u16::from_le_bytes([c0, c1]));
        let id = u16::from_le_bytes([f0, f1]);
        let field = (cause == Refused::Binding && id != 0).then_some(Field(id));
        Ok(Self { cause, field, by: if is_sealed { EndedBy::Peer } else { EndedBy::Unknown } })
    }

    pub(super) fn emit(self) -> [u8; 4] {
        let [c0, c1] = self.cause.code().to_le_bytes();
        let [f0, f1] = self.field.map_or(0, |field| field.0).to_le_bytes();
        [c0, c1, f0, f1]
    }
}

impl fmt::Display for HandshakeFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.by {
            EndedBy::ThisNode => "this node ended the handshake: ",
            EndedBy::Peer => "the peer ended the handshake: ",
            EndedBy::Unknown => "the peer, or a node between, ended the handshake: ",
        })?;
        match self.field {
            Some(field) => {
                write!(f, "the two nodes saw different values of \"{field}\": a node between them changed it")
            }
            // The text describes the certificate of the node that did not end the handshake.
            None if self.cause == Refused::UnknownRoot => f.write_str(match self.by {
                EndedBy::ThisNode => {
                    "no path from the peer's certificate to a root of this node's trust: add the root of its issuer to this node's \
                     trust, or the missing intermediate certificates to the peer's identity; compare with `trunkctl keys show`"
                }
                EndedBy::Peer | EndedBy::Unknown => {
                    "the peer has no root for this node's certificate: have it issued by an authority that the peer trusts, add its \
                     root to the peer's trust, or the missing intermediate certificates to this node's identity; compare with \
                     `trunkctl keys show`"
                }
            }),
            None => self.cause.fmt(f),
        }
    }
}

impl From<Refused> for HandshakeFailure {
    fn from(cause: Refused) -> Self {
        Self { cause, field: None, by: EndedBy::ThisNode }
    }
}

impl From<Field> for HandshakeFailure {
    fn from(field: Field) -> Self {
        Self { field: Some(field), ..Refused::Binding.into() }
    }
}

impl From<FrameError> for HandshakeFailure {
    fn from(error: FrameError) -> Self {
        tracing::debug!(%error, "handshake malformed");
        Refused::Malformed.into()
    }
}

impl From<rustls::Error> for HandshakeFailure {
    fn from(error: rustls::Error) -> Self {
        tracing::debug!(%error, "handshake refused by TLS");
        Refused::from(&error).into()
    }
}
