//! The handshake of two nodes, without I/O. It takes frames and the time, and returns frames and the proof.
//!
//! TLS runs through the QUIC interface of rustls, which yields handshake bytes without records. This file cuts the
//! bytes into frames, and seals the frames once there are keys. `docs/book/src/why/security.md`, *States*, describes
//! the states of both roles. A peer is untrusted before the proof. An exchange therefore holds one flight at a time,
//! passes it to rustls only when it is complete and consists of the expected messages, and ends at the first failure.
//! All bytes come from a peer, so this code must not panic.

use super::binding::Binding;
use super::credentials::{Credentials, PROTOCOL};
use super::failure::{EndedBy, HandshakeFailure};
use super::flight::{Flight, Incoming};
use super::keys::{Aead, Exported, LABEL, LaneSecrets, Pollers, context};
use super::names::Proven;
use super::verifier::Refused;
use crate::wire::frame::FrameError;
use crate::wire::handshake::{FRAGMENT, Fragment, Part, associated};
use rustls::CipherSuite;
use rustls::pki_types::ServerName;
use rustls::quic::{ClientConnection, Connection, KeyChange, Keys, ServerConnection, Version};
use std::cmp::Ordering;
use std::collections::VecDeque;
use std::fmt;
use std::net::Ipv6Addr;
use std::sync::Arc;
use std::time::Duration;
use trunkline_verbs::Time;

/// Maximum number of sealed frames that a client keeps before it has read the ServerHello. They are the server's
/// flight and a FAILURE.
const MOST_WAITING: usize = 8;
/// Time for each half of a renewal.
pub(crate) const RENEWAL: Duration = Duration::from_secs(60);

/// Role of a node in TLS, regardless of which node dialled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Client,
    Server,
}

impl Role {
    /// Returns the role of the node with the epoch `ours`; `None` if the epochs are equal.
    pub(crate) fn of(ours: u64, theirs: u64) -> Option<Self> {
        match ours.cmp(&theirs) {
            Ordering::Less => Some(Self::Client),
            Ordering::Equal => None,
            Ordering::Greater => Some(Self::Server),
        }
    }
}

/// Outcome of an exchange that succeeded.
#[derive(Debug)]
pub(crate) struct Proof {
    pub(crate) proven: Proven,
    exported: Exported,
    aead: Aead,
    pollers: Pollers,
    /// The peer's settings. Its SETTINGS frame must carry the same ones.
    pub(crate) settings: Box<[u8]>,
}

impl Proof {
    /// Derives the entry *previous* of the next exchange.
    pub(crate) fn previous(&self) -> [u8; 32] {
        self.exported.previous()
    }

    /// Derives the secrets of lanes, for each poller of this node.
    pub(crate) fn lanes(&self) -> Vec<Vec<LaneSecrets>> {
        self.exported.lanes(self.aead, self.pollers)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    AwaitsHello,
    AwaitsFlight,
    /// The peer has proved its names, and `confirm` is next.
    Verified,
    AwaitsDone,
    Proved,
    Ended,
}

/// State machine of one handshake.
///
/// `handle` takes frames in the order of arrival. If it returns `true`, the caller runs `advance`, which does the
/// cryptography, until `advance` returns `false`. Once `proven` returns the peer's names, the caller accepts them with
/// `confirm`, or ends the exchange with `fail`. After every call, the caller sends the frames from `poll_frame`.
/// `take_proof` returns the proof once, after `handle` or `confirm`. Time is passed in, and randomness comes from the
/// provider. After an error, `poll_frame` returns only the FAILURE, and later frames are ignored.
pub(crate) struct Exchange {
    role: Role,
    number: u32,
    credentials: Arc<Credentials>,
    binding: Binding,
    state: State,
    deadline: Time,
    /// `None` after the last flight.
    tls: Option<Box<Connection>>,
    /// Handshake keys.
    keys: Option<Keys>,
    /// Numbers of sealed frames that were sent and opened.
    sealed: u64,
    opened: u64,
    /// The flight being received; `None` unless the next flight is the peer's.
    incoming: Option<Incoming>,
    /// A complete flight, which `advance` reads.
    whole: Option<Vec<u8>>,
    /// Sealed frames that arrived before `advance` read the ServerHello.
    waiting: Vec<Box<[u8]>>,
    outgoing: VecDeque<Box<[u8]>>,
    /// On a client, the expected contents of DONE.
    done: [u8; 32],
    proof: Option<Box<Proof>>,
}

impl Exchange {
    /// Begins an exchange, as a client with a ClientHello. `number` is 0 for the first exchange of a session.
    ///
    /// # Errors
    /// Returns a failure of the provider, such as a lack of random numbers.
    pub(crate) fn new(
        role: Role,
        credentials: &Arc<Credentials>,
        binding: Binding,
        number: u32,
        deadline: Time,
    ) -> Result<Self, HandshakeFailure> {
        #[cfg(debug_assertions)]
        super::off_poller::assert();
        let list = binding.emit();
        let (tls, first) = match role {
            Role::Client => {
                // The verifier ignores the name, since channels compare names after the handshake.
                let name = ServerName::IpAddress(Ipv6Addr::UNSPECIFIED.into());
                let tls = ClientConnection::new(credentials.client.clone(), Version::V1, name, list)?;
                (Connection::from(tls), Flight::ServerHello)
            }
            Role::Server => {
                let tls = ServerConnection::new(credentials.server.clone(), Version::V1, list)?;
                (Connection::from(tls), Flight::ClientHello)
            }
        };
        let mut exchange = Self {
            role,
            number,
            credentials: credentials.clone(),
            binding,
            state: State::AwaitsHello,
            deadline,
            tls: Some(Box::new(tls)),
            keys: None,
            sealed: 0,
            opened: 0,
            incoming: Some(Incoming::new(first)),
            whole: None,
            waiting: Vec::new(),
            outgoing: VecDeque::new(),
            done: [0; 32],
            proof: None,
        };
        if role == Role::Client {
            exchange.write();
        }
        Ok(exchange)
    }

    /// Handles the next frame, whose header was parsed. Returns true if `advance` has a flight to read.
    ///
    /// # Errors
    /// Returns the cause that ends the exchange, if the frame is malformed or a FAILURE.
    pub(crate) fn handle(&mut self, frame: Box<[u8]>) -> Result<bool, HandshakeFailure> {
        #[cfg(debug_assertions)]
        super::off_poller::assert();
        if self.state == State::Ended {
            return Ok(false);
        }
        self.take(frame).map_err(|failure| self.end(failure))
    }

    /// Reads a complete flight, if there is one, and responds to it. Returns true if the next flight is already
    /// complete.
    ///
    /// # Errors
    /// Returns the cause that ends the exchange.
    pub(crate) fn advance(&mut self) -> Result<bool, HandshakeFailure> {
        #[cfg(debug_assertions)]
        super::off_poller::assert();
        let Some(flight) = self.whole.take() else { return Ok(false) };
        self.read(flight).map_err(|failure| self.end(failure))?;
        Ok(self.whole.is_some())
    }

    /// Returns the next frame to send, without its positions.
    pub(crate) fn poll_frame(&mut self) -> Option<Box<[u8]>> {
        self.outgoing.pop_front()
    }

    pub(crate) fn role(&self) -> Role {
        self.role
    }

    pub(crate) fn binding(&self) -> &Binding {
        &self.binding
    }

    /// Returns true if the peer has proved its name.
    pub(crate) fn has_peer_proved(&self) -> bool {
        matches!(self.state, State::AwaitsDone | State::Proved)
    }

    /// Returns the names that the peer has proved; `None` after `confirm`.
    pub(crate) fn proven(&self) -> Option<&Proven> {
        let proof = self.proof.as_ref().filter(|_| self.state == State::Verified)?;
        Some(&proof.proven)
    }

    /// Accepts the names that the peer has proved, and queues this node's own proof.
    pub(crate) fn confirm(&mut self, now: Time) {
        let Some(proof) = self.proof.as_ref().filter(|_| self.state == State::Verified) else { return };
        let done = proof.exported.done();
        match self.role {
            Role::Client => {
                self.write();
                (self.state, self.done) = (State::AwaitsDone, done);
                if self.number > 0 {
                    self.deadline = now + RENEWAL;
                }
            }
            Role::Server => {
                self.queue(Part::Done, &done);
                self.state = State::Proved;
            }
        }
        self.tls = None;
    }

    /// Returns the secrets of lanes, for each poller of this node, after `confirm` and before `take_proof`. The peer
    /// may use them as soon as it has received the frames from `confirm`.
    pub(crate) fn lanes(&self) -> Vec<Vec<LaneSecrets>> {
        self.proof.as_ref().map(|proof| proof.lanes()).unwrap_or_default()
    }

    /// Returns the outcome once, after both sides have proved their names.
    pub(crate) fn take_proof(&mut self) -> Option<Proof> {
        if self.state == State::Proved { self.proof.take().map(|proof| *proof) } else { None }
    }

    /// Ends the exchange for a cause found by the caller, and queues a FAILURE for the peer.
    pub(crate) fn fail(&mut self, cause: Refused) -> HandshakeFailure {
        self.end(cause.into())
    }

    /// Returns the time of the next call of `handle_timer`; `None` after the end.
    pub(crate) fn next_timer(&self) -> Option<Time> {
        (!matches!(self.state, State::Proved | State::Ended)).then_some(self.deadline)
    }

    /// Ends the exchange once its deadline has passed.
    ///
    /// # Errors
    /// Returns [`Refused::TimedOut`] after the deadline.
    pub(crate) fn handle_timer(&mut self, now: Time) -> Result<(), HandshakeFailure> {
        match self.next_timer() {
            Some(deadline) if deadline <= now => Err(self.fail(Refused::TimedOut)),
            _ => Ok(()),
        }
    }

    fn take(&mut self, mut frame: Box<[u8]>) -> Result<bool, HandshakeFailure> {
        let Fragment { exchange, is_sealed, part, offset, total, .. } = Fragment::parse(&frame)?;
        if exchange != self.number {
            return Err(FrameError::Broken("handshake frame of another exchange").into());
        }
        let header = associated(&frame);
        let bytes = match &self.keys {
            _ if !is_sealed => &frame[FRAGMENT..],
            Some(keys) => {
                let opened =
                    keys.remote.packet.decrypt_in_place(self.opened, &header, &mut frame[FRAGMENT..])?;
                self.opened += 1;
                opened
            }
            None if self.role == Role::Client
                && self.whole.is_some()
                && self.waiting.len() < MOST_WAITING =>
            {
                self.waiting.push(frame);
                return Ok(true);
            }
            None => return Err(FrameError::Broken("sealed handshake frame before the keys").into()),
        };
        match (part, &mut self.incoming) {
            (Part::Failure, _) => Err(HandshakeFailure::parse(bytes, is_sealed)?),
            (Part::Done, _) if self.state == State::AwaitsDone && bytes == self.done => {
                self.state = State::Proved;
                Ok(false)
            }
            (Part::Tls, Some(incoming)) => {
                let is_whole =
                    incoming.take(&Fragment { exchange, is_sealed, part, offset, total, bytes })?;
                if is_whole {
                    self.whole = self.incoming.take().map(Incoming::into_bytes);
                }
                Ok(is_whole)
            }
            _ => Err(FrameError::Broken("handshake frame of another part than expected").into()),
        }
    }

    fn read(&mut self, flight: Vec<u8>) -> Result<(), HandshakeFailure> {
        let Some(tls) = &mut self.tls else { return Ok(()) };
        tls.read_hs(&flight)?;
        drop(flight);
        match (self.role, self.state) {
            (Role::Client, State::AwaitsHello) => {
                self.write();
                self.expect(Flight::Server);
                for frame in std::mem::take(&mut self.waiting) {
                    self.take(frame)?;
                }
            }
            (Role::Server, State::AwaitsHello) => {
                // Before a HelloRetryRequest, the TLS protocol is not chosen yet, which ends the exchange
                // here.
                self.compare()?;
                self.write();
                self.expect(Flight::Client);
            }
            (_, _) => {
                self.proof = Some(Box::new(self.prove()?));
                self.state = State::Verified;
            }
        }
        Ok(())
    }

    fn expect(&mut self, flight: Flight) {
        self.state = State::AwaitsFlight;
        self.incoming = Some(Incoming::new(flight));
    }

    /// Checks the protocol, and compares the peer's binding with this node's. Returns the peer's binding, and the
    /// settings that it contains.
    fn compare(&self) -> Result<(&[u8], &[u8]), HandshakeFailure> {
        let tls = self.tls.as_ref().ok_or(Refused::Malformed)?;
        if tls.alpn_protocol() != Some(PROTOCOL) {
            return Err(Refused::NoCommonSuite.into());
        }
        let list = tls.quic_transport_parameters().unwrap_or_default();
        Ok((list, self.binding.compare(list)?))
    }

    /// Creates the proof from the peer's last flight. rustls has verified the certificates but does not
    /// return the verifier's result, so they are verified again.
    fn prove(&self) -> Result<Proof, HandshakeFailure> {
        let (theirs, settings) = self.compare()?;
        let tls = self.tls.as_ref().ok_or(Refused::Malformed)?;
        let chain = tls.peer_certificates().ok_or(Refused::NoCertificate)?;
        let now = self.credentials.client.time_provider.current_time().ok_or(Refused::Malformed)?;
        let proven = self.credentials.verifier.check(chain, now)?;
        let own = &self.credentials.own.end_entity_cert()?[..];
        let ours = &self.binding.emit()[..];
        let context = match self.role {
            Role::Client => context([ours, theirs], [own, &chain[0]]),
            Role::Server => context([theirs, ours], [&chain[0], own]),
        };
        let exported = Exported::new(|out| tls.export_keying_material(out, LABEL, Some(&context)).map(drop))?;
        let suite = tls.negotiated_cipher_suite().map(|suite| suite.suite());
        let aead = match suite {
            Some(CipherSuite::TLS13_AES_256_GCM_SHA384) => Aead::Aes256Gcm,
            Some(CipherSuite::TLS13_CHACHA20_POLY1305_SHA256) => Aead::ChaCha20Poly1305,
            _ => return Err(Refused::NoCommonSuite.into()),
        };
        Ok(Proof { proven, exported, aead, pollers: self.pollers(), settings: settings.into() })
    }

    /// Returns the numbers of pollers of both sides.
    fn pollers(&self) -> Pollers {
        let [client, server] =
            self.binding.sides.each_ref().map(|side| side.pollers.try_into().unwrap_or(u8::MAX));
        match self.role {
            Role::Client => Pollers { own: client, peers: server, is_client: true },
            Role::Server => Pollers { own: server, peers: client, is_client: false },
        }
    }

    /// Queues the outgoing TLS bytes, and takes the handshake keys once TLS has derived them.
    fn write(&mut self) {
        let Some(mut tls) = self.tls.take() else { return };
        loop {
            let mut flight = Vec::new();
            let change = tls.write_hs(&mut flight);
            if flight.is_empty() && change.is_none() {
                break;
            }
            if !flight.is_empty() {
                self.queue(Part::Tls, &flight);
            }
            if let Some(KeyChange::Handshake { keys }) = change {
                self.keys = Some(keys);
            }
        }
        self.tls = Some(tls);
    }

    /// Queues the frames of a flight, sealed once there are keys.
    fn queue(&mut self, part: Part, flight: &[u8]) {
        for fragment in Fragment::all(self.number, self.keys.is_some(), part, flight) {
            let mut frame = fragment.emit();
            if let Some(keys) = &self.keys {
                let header = associated(&frame);
                let (bytes, tag) = frame[FRAGMENT..].split_at_mut(fragment.bytes.len());
                let sealed = keys.local.packet.encrypt_in_place(self.sealed, &header, bytes);
                tag.copy_from_slice(sealed.expect("a frame is short enough for the AEAD").as_ref());
                self.sealed += 1;
            }
            self.outgoing.push_back(frame.into());
        }
    }

    fn end(&mut self, failure: HandshakeFailure) -> HandshakeFailure {
        if self.state != State::Ended && failure.by == EndedBy::ThisNode {
            self.queue(Part::Failure, &failure.emit());
        }
        self.state = State::Ended;
        (self.tls, self.incoming, self.whole, self.proof) = (None, None, None, None);
        self.waiting = Vec::new();
        failure
    }
}

impl fmt::Debug for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { role, number, state, .. } = self;
        f.debug_struct("Exchange")
            .field("role", role)
            .field("number", number)
            .field("state", state)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
