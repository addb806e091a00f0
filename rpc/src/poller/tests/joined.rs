//! Messages that are bundled into the frame of an earlier message.

use super::{Peer, World};
use crate::wire::frame::{NOBODY, UNSET};
use trunkline_transport::{
    Destination, MessageHeader, PeerEvent, PeerKey, PollerIndex, Report, SessionNumber, Small, Transport,
};

/// Kind of the messages. The receivers in this test ignore it.
const HEADER: MessageHeader = MessageHeader { kind: 0xf0, ..UNSET };
const FIRST: Destination = Destination::Poller(PollerIndex(0));

impl Peer {
    fn transport(&self) -> std::cell::RefMut<'_, Transport> {
        self.lines[0].transport.borrow_mut()
    }

    /// Returns the most recent session.
    fn session(&self) -> SessionNumber {
        let up = self.events().into_iter().rev().find_map(|(_, event)| match event {
            PeerEvent::Up { session, .. } => Some(session),
            PeerEvent::Renewed { .. } | PeerEvent::Down { .. } => None,
        });
        up.expect("one is up")
    }

    /// Takes the received messages. Returns the sizes of their contents.
    fn sizes(&self) -> Vec<usize> {
        let frames = std::mem::take(&mut self.lines[0].arrived.borrow_mut().frames);
        frames.iter().map(|(_, message)| message.as_slice().len()).collect()
    }

    /// Sends a message to a peer, in a separate frame.
    fn stage(&self, peer: &Self, head: &[u8], ordered: bool) {
        let message = super::Outgoing {
            peer: PeerKey::new(peer.address()),
            destination: FIRST,
            session: None,
            connect: super::Connect::Wait,
            ordered,
            header: HEADER,
            head,
            announced: 0,
            body: bytes::Bytes::new().into(),
            token: NOBODY,
            report: Report::Never,
            deadline: None,
            leaves: super::Leaves::Nothing,
        };
        let mut transport = self.transport();
        let peer = transport.peer(message.peer);
        transport.send(&super::Outgoing { peer, ..message }).expect("it is taken");
    }

    /// Returns true if a message to a peer joins a staged message.
    fn joins(&self, peer: &Self, destination: Destination, session: Option<SessionNumber>) -> bool {
        let parts = [&[2; 32][..], &[3; 31], &[4]];
        let message = Small {
            header: HEADER,
            parts,
            ordered: true,
            token: NOBODY,
            report: Report::Never,
            deadline: None,
        };
        self.transport().join(PeerKey::new(peer.address()), destination, session, &message).is_some()
    }
}

#[test]
fn message_joins_only_messages_staged_for_same_poller_and_session() {
    let mut world = World::new();
    let [from, to, other] = [world.peer(), world.peer(), world.peer()];
    for peer in [&to, &other] {
        from.stage(peer, &[1; 64], false);
        world.until("the session", || (peer.lines[0].arrived.borrow().frames.len() == 1).then_some(()));
        world.run();
        assert_eq!(peer.sizes(), [64]);
    }
    let session = from.session();
    assert!(!from.joins(&other, FIRST, None), "nothing is staged");
    from.stage(&other, &[1; 64], false);
    assert!(from.joins(&other, FIRST, None));
    assert!(from.joins(&other, Destination::Any, Some(session)));
    assert!(!from.joins(&to, FIRST, None));
    assert!(!from.joins(&other, Destination::Poller(PollerIndex(1)), None));
    assert!(!from.joins(&other, FIRST, Some(SessionNumber(session.0 - 1))));
    from.transport().flush();
    assert!(!from.joins(&other, FIRST, None), "it has left");
    world.run();
    assert_eq!(other.sizes(), [64; 3]);

    from.stage(&other, &[1; 100_000], true);
    from.transport().flush();
    from.stage(&other, &[1; 64], false);
    assert!(!from.joins(&other, FIRST, None), "the peer has to READ an ordered message first");
}
