//! What a poller does for its upper half.
#![forbid(unsafe_code)]

use super::{Core, Event, Peer, Resources};
use crate::shared::canonical;
use crate::sizes::EAGER_BYTES;
use crate::trunk::Outbound;
use crate::{
    Carrier, Outgoing, PeerDown, PeerKey, PollerIndex, SendError, SendFailure, SendOutcome, SessionNumber,
    Token,
};
use std::collections::VecDeque;
use std::net::SocketAddr;
use trunkline_verbs::Time;

/// Messages that may wait for one peer, or for one of its pollers.
const QUEUE_LIMIT: usize = 16_384;
/// Bytes of long ones among them.
const QUEUE_BYTES: usize = 1 << 30;

impl Carrier for Core {
    fn now(&self) -> Time {
        self.res.now
    }

    fn poller(&self) -> PollerIndex {
        self.res.index
    }

    fn pollers(&self) -> u16 {
        u16::try_from(self.res.shared.pollers.len()).unwrap_or(u16::MAX)
    }

    fn peer(&mut self, address: SocketAddr) -> PeerKey {
        let address = canonical(address);
        let key = self.res.shared.peer_key(address);
        let peer = self.peers.entry(key).or_insert_with(|| Peer::new(address));
        peer.named = true;
        peer.forgotten = false;
        if peer.trunk.is_none() && peer.pending.is_none() {
            self.ask(key);
        }
        key
    }

    fn send(&mut self, message: Outgoing<'_>) -> Result<(), SendError> {
        let bytes = message.head.len().saturating_add(message.body.len());
        let limit = self.res.shared.limits.max_message_bytes;
        if bytes > limit {
            return Err(SendError::TooLarge { bytes, limit });
        }
        let Some(peer) = self.peers.get_mut(&message.peer) else { return Err(SendError::NoPeer) };
        let trunk = peer.trunk.and_then(|slot| self.trunks.get_mut(slot));
        let is_over = |session| trunk.as_ref().is_none_or(|trunk| SessionNumber(trunk.number) != session);
        if message.session.is_some_and(is_over) {
            self.res.never_sent(message.token, PeerDown::Closed);
            return Ok(());
        }
        let Some(trunk) = trunk else {
            if self.shutdown.is_some() {
                return Err(SendError::NoPeer);
            }
            if !has_room(&peer.waiting, bytes) {
                return Err(SendError::QueueFull);
            }
            peer.waiting.push_back(outbound(&message));
            self.ask(message.peer);
            return Ok(());
        };
        if bytes > trunk.max_message {
            return Err(SendError::TooLarge { bytes, limit: trunk.max_message });
        }
        let Some(lane) = trunk.choose_lane(message.poller) else {
            // A message to a poller that the peer's new incarnation does not have.
            self.res.never_sent(message.token, PeerDown::Restarted);
            return Ok(());
        };
        if !has_room(&trunk.lanes[lane].queue, bytes) {
            return Err(SendError::QueueFull);
        }
        let at_once = trunk.lanes[lane].queue.is_empty()
            && trunk.lanes[lane].fins.is_empty()
            && trunk.is_eager(bytes)
            && trunk.try_eager(&mut self.res, lane, message.head, &message.body, message.token);
        if !at_once {
            trunk.lanes[lane].queue.push_back(outbound(&message));
            self.res.mark(trunk);
        }
        Ok(())
    }

    fn cancel(&mut self, token: Token) {
        let waiting = self.peers.values_mut().map(|peer| &mut peer.waiting);
        let queued =
            self.trunks.iter_mut().flat_map(|(_, trunk)| trunk.lanes.iter_mut().map(|lane| &mut lane.queue));
        let found = waiting.chain(queued).any(|queue| take(queue, token));
        if found {
            self.res.never_sent(token, PeerDown::Cancelled);
        }
    }

    fn max_message_bytes(&self) -> usize {
        self.res.shared.limits.max_message_bytes
    }
}

impl Resources {
    /// Reports the outcome of a message that did not leave.
    fn never_sent(&mut self, token: Token, cause: PeerDown) {
        let outcome = SendOutcome::Failed(SendFailure { may_have_arrived: false, cause });
        self.events.push_back(Event::Sent(token, outcome));
    }
}

/// Whether a message of so many bytes may wait behind those that wait already. Short ones are bounded
/// by their number, long ones by their bytes too: a peer that asks for much and takes nothing must
/// not make us hold it all.
fn has_room(queue: &VecDeque<Outbound>, bytes: usize) -> bool {
    let size = |message: &Outbound| message.head.len().saturating_add(message.body.len());
    let fits = || queue.iter().map(size).fold(bytes, usize::saturating_add) <= QUEUE_BYTES;
    queue.len() < QUEUE_LIMIT && (queue.is_empty() || bytes <= EAGER_BYTES || fits())
}

fn outbound(message: &Outgoing<'_>) -> Outbound {
    Outbound {
        token: message.token,
        poller: message.poller,
        head: message.head.to_vec(),
        body: message.body.clone(),
        deadline: message.deadline,
    }
}

/// Removes a message from a queue; returns whether it was there.
fn take(queue: &mut VecDeque<Outbound>, token: Token) -> bool {
    let Some(at) = queue.iter().position(|message| message.token == token) else { return false };
    queue.remove(at).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    fn waiting(count: usize, body: &Bytes) -> VecDeque<Outbound> {
        let message = || Outbound {
            token: Token(0),
            poller: None,
            head: Vec::new(),
            body: body.clone(),
            deadline: None,
        };
        (0..count).map(|_| message()).collect()
    }

    #[test]
    fn what_waits_is_bounded_by_number_and_by_bytes() {
        let (short, long) = (Bytes::from_static(&[0; 8]), Bytes::from(vec![0; 64 << 20]));
        assert!(has_room(&waiting(QUEUE_LIMIT - 1, &short), 8));
        assert!(!has_room(&waiting(QUEUE_LIMIT, &short), 8));
        assert!(has_room(&waiting(15, &long), long.len()));
        assert!(!has_room(&waiting(16, &long), long.len()));
        assert!(has_room(&waiting(16, &long), 8), "a short one is no burden");
        assert!(has_room(&waiting(0, &long), usize::MAX), "one alone is bounded elsewhere");
    }
}
