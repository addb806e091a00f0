//! Origin and reason of a status, with which programs can handle a failed call by its cause instead of its text.

use std::fmt;

/// The side that ended a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Origin {
    /// The caller's node, with or without a reply from the peer.
    Local,
    /// The server's node, in place of the handler.
    Peer,
    /// The handler.
    Handler,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Local => "this node",
            Self::Peer => "the server's node",
            Self::Handler => "the handler",
        })
    }
}

/// The reason why a node ended a call in place of the handler. The message of the status contains the details.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// A budget, a queue or memory is exhausted.
    Overloaded,
    /// The node is draining or has shut down.
    Draining,
    /// The peer cannot be reached, or its session ended. With `Unauthenticated`, one of the nodes has not proved its name to
    /// the other.
    Unreachable,
    /// The time limit passed.
    Expired,
    /// The caller cancelled the call.
    Cancelled,
    /// The caller is not authorised to call this method.
    Unauthorised,
    /// The node does not serve this service.
    NoService,
    /// The service does not contain this method.
    NoMethod,
    /// The server uses another version of the service's schema.
    OtherSchema,
    /// The peer uses another version of the protocol.
    OtherProtocol,
    /// The request contains a mandatory extension that is unknown to the node.
    UnknownExtension,
    /// The arguments cannot be encoded or decoded.
    BadArguments,
    /// The reply cannot be encoded or decoded.
    BadReply,
    /// The arguments or the reply exceed a size limit.
    TooLarge,
    /// The handler panicked.
    Panicked,
    /// The program used the library incorrectly.
    Misuse,
    /// The server uses another codec for the service.
    OtherCodec,
    /// A type used by the method has other fields or variants on the server.
    OtherShape,
    /// A stream's [`Sender`](crate::stream::Sender) was dropped before it finished.
    SenderDropped,
}

impl Reason {
    /// All reasons, in the order of their numbers in replies, which start at 1.
    const NUMBERED: [Self; 19] = [
        Self::NoService,
        Self::NoMethod,
        Self::OtherSchema,
        Self::OtherProtocol,
        Self::UnknownExtension,
        Self::BadArguments,
        Self::BadReply,
        Self::TooLarge,
        Self::Unauthorised,
        Self::Overloaded,
        Self::Draining,
        Self::Expired,
        Self::Cancelled,
        Self::Unreachable,
        Self::Panicked,
        Self::Misuse,
        Self::OtherCodec,
        Self::OtherShape,
        Self::SenderDropped,
    ];

    /// Returns the reason's number in a reply.
    pub(crate) fn number(self) -> u8 {
        let at = Self::NUMBERED.iter().position(|reason| *reason == self);
        at.and_then(|at| u8::try_from(at + 1).ok()).unwrap_or_default()
    }

    /// Returns the reason with this number, if it is assigned.
    pub(crate) fn from_number(number: u8) -> Option<Self> {
        Self::NUMBERED.get(usize::from(number).checked_sub(1)?).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_number() {
        for number in 1..=19 {
            assert_eq!(Reason::from_number(number).map(Reason::number), Some(number));
        }
        assert_eq!((Reason::from_number(0), Reason::from_number(20)), (None, None));
    }
}
