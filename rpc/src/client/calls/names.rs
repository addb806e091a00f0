//! Restricts calls to sessions whose peer has proved the name that the call's channel expects.
//!
//! A node with an identity binds each request to a session in which the peer's name was compared. Until there is such a
//! session, calls wait in `Held`, because the transport would send them in any session. A node without an identity does not
//! compare names, and fails calls that expect a name given by the program.

use super::super::held::MOST;
use super::super::statuses::{not_sent, other_name, refused};
use super::Calls;
use crate::call::Submission;
use crate::call::too_many;
use crate::client::routes::id::ExpectedId;
use crate::client::routes::{ProvenNames, Routes};
use crate::status::Status;
use std::cell::RefCell;
use std::sync::Arc;
use trunkline_transport::{
    Connect, PeerDown, PeerIdentity, PeerKey, Reach, SendError, SessionNumber, Transport,
};

/// Cause of failure for calls that expect a name given by the program, on a node without an identity.
const NO_IDENTITY: &str = "Target::named expects a proved name, and no peer proves one to a node without an identity: give this \
                           node one by NodeBuilder::identity and trust, or their files";

/// The names of peers, on a node with an identity.
pub(super) struct Names {
    routes: Arc<Routes>,
    proven: RefCell<ProvenNames>,
}

impl Calls {
    /// Enables the comparison of names, because the node has an identity.
    pub(crate) fn compare_names(&mut self, routes: &Arc<Routes>) {
        self.names = Some(Box::new(Names { routes: Arc::clone(routes), proven: RefCell::default() }));
    }

    /// Returns true if this node compares the names of its peers.
    #[inline]
    pub(super) fn compares_names(&self) -> bool {
        self.names.is_some()
    }

    /// Returns true if calls with this expectation may be held or refused because of their server's name.
    #[inline]
    pub(super) fn may_bar(&self, expected: ExpectedId) -> bool {
        self.compares_names() || expected.is_given()
    }

    /// Returns the session with a peer, if this node binds calls to sessions with a compared name.
    pub(super) fn compared_session(&self, peer: PeerKey) -> Option<SessionNumber> {
        let sessions = self.compares_names().then_some(&self.sessions)?;
        sessions.get(peer).map(|session| session.number)
    }

    /// Returns true if calls with this expectation may be sent in the session with a peer.
    pub(crate) fn is_named(&self, peer: PeerKey, expected: ExpectedId) -> bool {
        if !self.compares_names() {
            return true;
        }
        let Some(session) = self.sessions.get(peer) else { return false };
        session.matched == Some(expected) || self.mismatch(peer, expected).is_none()
    }

    /// Returns why the session with a peer does not match an expectation.
    fn mismatch(&self, peer: PeerKey, expected: ExpectedId) -> Option<Arc<str>> {
        let names = self.names.as_ref()?;
        names.proven.borrow_mut().mismatch(peer, expected, |id| names.routes.expectation(id))
    }

    /// Fails, holds or repeats a call that must not be sent in the current session. Returns false if the call may be sent.
    pub(super) fn is_barred(
        &mut self,
        transport: &mut Transport,
        peer: PeerKey,
        call: &mut Submission,
    ) -> bool {
        if !self.compares_names() {
            self.end_with(call, other_name(NO_IDENTITY));
            return true;
        }
        let Some(session) = self.sessions.get(peer) else {
            self.await_session(transport, peer, call);
            return true;
        };
        if session.matched == Some(call.expected) {
            return false;
        }
        let Some(why) = self.mismatch(peer, call.expected) else {
            if let Some(session) = self.sessions.get_mut(peer) {
                session.matched = Some(call.expected);
            }
            return false;
        };
        if call.route.is_some() {
            self.held.make_again(call.take());
        } else if call.connect == Connect::Wait {
            // The call waits, because another node may take over the address of the peer.
            self.hold(peer, call);
        } else {
            self.end_with(call, other_name(&why));
        }
        true
    }

    /// Holds a call until its server has a session, or fails it if the server cannot be reached.
    #[cold]
    fn await_session(&mut self, transport: &mut Transport, peer: PeerKey, call: &mut Submission) {
        if call.route.is_some() {
            // The call waits for its route.
            return self.held.make_again(call.take());
        }
        match transport.reach(peer, call.connect) {
            Reach::Away { cause, due_in } if call.connect == Connect::FailFast || cause.is_final() => {
                self.end_with(call, refused(SendError::BackingOff { cause, due_in }));
            }
            _ => self.hold(peer, call),
        }
    }

    fn hold(&mut self, peer: PeerKey, call: &mut Submission) {
        if self.held.has_room(call.entry) {
            self.held.push(peer, call.take());
        } else {
            self.end_with(call, too_many(MOST));
        }
    }

    /// Records the identity of a peer with a new session, and repeats the calls that wait for it.
    pub(super) fn name_up(&mut self, peer: PeerKey, identity: &PeerIdentity) {
        let Some(names) = &self.names else { return };
        names.proven.borrow_mut().up(peer, identity.clone());
        self.held.release(peer);
    }

    /// Records that a peer has proved its names again. Later calls are compared with the new names.
    pub(crate) fn renewed(&mut self, peer: PeerKey, identity: &PeerIdentity) {
        if let Some(session) = self.sessions.get_mut(peer) {
            session.matched = None;
        }
        self.name_up(peer, identity);
    }

    /// Records that a session has ended or an attempt has failed. Calls that do not wait for another attempt fail.
    pub(super) fn name_down(&mut self, peer: PeerKey, cause: PeerDown) {
        let Some(names) = &self.names else { return };
        names.proven.borrow_mut().down(peer);
        if cause.ends_a_session() {
            return;
        }
        for mut call in self.held.take_fail_fast(peer) {
            let (code, reason) = Status::of(cause);
            self.end_with(&mut call, Status::not_run(code, cause.to_string()).because(reason));
        }
    }

    /// Describes why a held call was not sent, unless its server drains.
    pub(super) fn why_held(&self, transport: &Transport, peer: PeerKey, call: &Submission) -> Option<String> {
        if !self.compares_names() || self.drained.refuses(peer) {
            return None;
        }
        let is_up = self.sessions.get(peer).is_some();
        let other_name = self.mismatch(peer, call.expected).filter(|_| is_up);
        Some(match other_name {
            Some(why) => format!("no connection yet: {why}"),
            None => not_sent(is_up, transport.away(peer)),
        })
    }
}
