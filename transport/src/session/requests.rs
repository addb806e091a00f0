//! Checks of peers' requests, before anything is allocated for a request.
//!
//! A request and its source address are untrusted. Unless the sender proves its address, by this node's cookie or an
//! echo of this node's session, a request costs only bounded parsing and a refusal. The cost of proven requests is
//! bounded per host and in total. The dial-back is sent to the source address, never to an address inside the request.
//! This module only decides; `accepting.rs` executes the decision.
#![forbid(unsafe_code)]

use super::cm_machine::CmMachine;
use super::peers::UnprovenPlace;
use super::private_data::{Features, Hello, Refusal};
use crate::provider::connections::ConnectionKind;
use crate::{PeerDown, PeerKey};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering;
use trunkline_machine::mutant;
use trunkline_verbs::CmId;

/// Maximum number of peers in the table. Beyond it, idle peers are removed first.
const MAX_PEERS: usize = 16_384;
/// Divisor of the number of remote pollers that fit in an SRQ. The quotient is the maximum for one host. The deepest
/// SRQ has room for 15,360, so a host also has less than half of the known peers.
const HOST_SHARE: u32 = 2;

/// A request that may be accepted.
#[derive(Debug)]
pub(super) struct Admitted {
    pub(super) hello: Hello,
    /// Sender of the request.
    pub(super) peer: PeerKey,
    /// Address of this node that received the request.
    pub(super) local: IpAddr,
}

impl CmMachine {
    /// Returns the maximum number of connections in the sessions of one host, not counting peers that the program has
    /// named.
    pub(super) fn host_limit(&self) -> u32 {
        self.endpoints.pollers_limit() / HOST_SHARE
    }

    /// Checks a request without storing it. If there are too many peers, an idle peer is removed.
    ///
    /// # Errors
    /// Returns the reason for a refusal.
    pub(super) fn admit(&mut self, id: &dyn CmId, private_data: &[u8]) -> Result<Admitted, Refusal> {
        if self.closed {
            return Err(Refusal::ShuttingDown);
        }
        let mut hello = Hello::parse(private_data, self.levels.features())?;
        match (self.endpoints.connections(), hello.connections) {
            (ours, theirs) if ours == theirs => {}
            (ConnectionKind::Xrc, _) => return Err(Refusal::UsesXrc),
            (ConnectionKind::Rc, _) => return Err(Refusal::UsesRc),
        }
        let from = id.peer_address().ok_or(Refusal::Malformed)?;
        let at = SocketAddr::new(from.ip(), hello.listener_port.get());
        // Accept only the port that receives this node's answers. Other ports may belong to other programs on the
        // peer's host.
        let ports = id.udp_ports();
        if ports.is_some_and(|ports| ports.own.is_none() && ports.peer != hello.udp_port) {
            return Err(Refusal::Malformed);
        }
        let peer = PeerKey::new(at).with_udp_port(ports.map(|ports| ports.peer)).seen_from(self.udp_port);
        let known = self.peers.get(peer);
        let is_stranger = known.is_none_or(|peer| !peer.named && peer.machine.current().is_none());
        let is_live = known.is_some_and(|peer| peer.machine.is_up());
        let (is_known, is_echo) = (known.is_some(), known.is_some_and(|peer| peer.machine.is_echoed(&hello)));
        if hello.echo.is_some() && !is_echo {
            return Err(Refusal::Stale);
        }
        let is_believed = mutant!(cookies_are_not_checked) || is_live && mutant!(restart_needs_no_proof);
        if !is_echo && !is_believed && !self.cookies.is_returned(peer, &hello) {
            self.shared.unproven.fetch_add(1, Ordering::Relaxed);
            let path_mtu = self.peers.path_mtu(self.device_of(peer), self.now());
            return Err(Refusal::Unproven(self.cookies.make(peer, &hello), path_mtu));
        }
        // The device reads files for this check, so it follows the sender's proof of its address.
        hello.is_local = hello.features == Features::NONE && self.is_local(id);
        // A restart replaces a session, perhaps by one with more pollers.
        let begins = !is_echo && known.is_none_or(|peer| !peer.named && !peer.machine.is_with(hello.session));
        if begins {
            let host = self.shared.hosts.of(peer);
            if is_stranger && self.peers.is_crowded(host)
                || self.peers.is_full(host, peer, hello.pollers, self.host_limit())
            {
                return Err(Refusal::Crowded);
            }
            if hello.features == Features::HANDSHAKE {
                match self.peers.unproven_place(host, self.now()) {
                    UnprovenPlace::Free => {}
                    UnprovenPlace::Of(oldest) => self.give_up_unproven(oldest),
                    UnprovenPlace::None => return Err(Refusal::Crowded),
                }
            }
        }
        if !is_known && self.peers.len() >= MAX_PEERS {
            let Some(idle) = self.peers.first_to_forget() else {
                if let Some(suppressed) = self.log.line(self.now()) {
                    tracing::warn!(
                        %peer,
                        cause = "the node has sessions with too many peers",
                        limit = MAX_PEERS,
                        suppressed,
                        "request of a new peer refused"
                    );
                }
                return Err(Refusal::Resources);
            };
            self.forget(idle);
        }
        Ok(Admitted { hello, peer, local: id.local_address().ip() })
    }

    /// Ends an unproven session to admit another session. The peer of the ended session may retry.
    fn give_up_unproven(&mut self, key: PeerKey) {
        let now = self.now();
        let cause = PeerDown::RefusedHere("too many sessions have no proof of a name");
        self.drive(key, |machine, actions| {
            if let Some(number) = machine.oldest_unproven() {
                machine.fail(now, number, cause, true, actions);
            }
        });
    }
}
