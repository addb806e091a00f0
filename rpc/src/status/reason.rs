//! Origin and reason of a status, for programs that react to the cause of a failed call and not to its text. [`Origin`]
//! names the side that ended a call, and [`Reason`] the cause for which a node ended it in the handler's place.

use std::fmt;

/// The side that ended a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Origin {
    /// The caller's node, without a reply from the peer or despite one.
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

/// The reason why a node ended a call in the handler's place. The message of the status has the details.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// A budget, a queue or memory is exhausted.
    Overloaded,
    /// The node is draining or has shut down.
    Draining,
    /// The peer cannot be reached, or its session ended. With `Unauthenticated`, a node has not proved its name to the other.
    Unreachable,
    /// The time limit passed.
    Expired,
    /// The caller gave up.
    Cancelled,
    /// The caller may not call this method.
    Unauthorised,
    /// The node has no such service.
    NoService,
    /// The service has no such method.
    NoMethod,
    /// The service has another schema version.
    OtherSchema,
    /// The peer speaks another version of the protocol.
    OtherProtocol,
    /// The request has a mandatory extension that the node does not know.
    UnknownExtension,
    /// The arguments cannot be encoded or decoded.
    BadArguments,
    /// The reply cannot be encoded or decoded.
    BadReply,
    /// The arguments or the reply are larger than a limit.
    TooLarge,
    /// The handler panicked.
    Panicked,
    /// The program used the library incorrectly.
    Misuse,
    /// The service has another codec.
    OtherCodec,
    /// A type that the method sends has other fields or variants at the server.
    OtherShape,
    /// The sender that feeds a stream was dropped before it finished.
    SenderDropped,
}

impl Reason {
    /// All reasons in the order of their numbers in replies, which begin with 1.
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
