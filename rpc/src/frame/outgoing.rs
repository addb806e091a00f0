//! A frame that leaves this node.

use super::Header;
use bytes::Bytes;
use trunkline_transport::{
    Body, Carrier, Connect, Outgoing, PeerKey, SendError, SessionNumber, Token, Toward, Turn,
};
use trunkline_verbs::Time;

/// Largest encoded part, in bytes, that is copied to follow the header; a larger one is passed on as the body.
const COPIED: usize = 4096;

/// The token of messages whose outcome nobody waits for.
pub(crate) const NOBODY: Token = Token(u64::MAX);

/// A frame to send, with its destination.
pub(crate) struct Frame {
    pub(crate) peer: PeerKey,
    pub(crate) toward: Toward,
    /// `None`: whichever session is up, or the next one.
    pub(crate) session: Option<SessionNumber>,
    /// Whether it waits when the peer cannot be reached.
    pub(crate) connect: Connect,
    /// Whether it keeps its place among other such frames of this poller to that of the peer.
    pub(crate) ordered: bool,
    pub(crate) header: Header,
    pub(crate) encoded: Vec<u8>,
    pub(crate) body: Body,
    pub(crate) token: Token,
    pub(crate) deadline: Option<Time>,
}

impl Frame {
    /// Hands it to the carrier; returns the turn that it was given, and the buffer of the encoded part if that was
    /// copied.
    ///
    /// # Errors
    /// The carrier did not take it.
    pub(crate) fn send(
        self,
        carrier: &mut dyn Carrier,
        scratch: &mut Vec<u8>,
    ) -> Result<(Turn, Option<Vec<u8>>), SendError> {
        let Self { peer, toward, session, connect, ordered, header, encoded, body, token, deadline } = self;
        let limit = carrier.max_message_bytes();
        let too_large = SendError::TooLarge { bytes: encoded.len().saturating_add(body.len()), limit };
        let length = u32::try_from(encoded.len()).map_err(|_| too_large)?;
        scratch.clear();
        header.emit(length, scratch);
        let announced = scratch.len();
        // The receiver sees head and body as one message, wherever they are divided here.
        let (body, spare) = if body.is_empty() && encoded.len() > COPIED {
            (Bytes::from(encoded).into(), None)
        } else {
            scratch.extend_from_slice(&encoded);
            (body, Some(encoded))
        };
        let turn = carrier.send(Outgoing {
            peer,
            toward,
            session,
            connect,
            ordered,
            head: scratch,
            announced,
            body,
            token,
            deadline,
        })?;
        Ok((turn, spare))
    }
}
