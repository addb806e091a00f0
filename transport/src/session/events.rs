//! Handling of connection manager events for endpoints. It determines an event's session, whether the session
//! continues, and otherwise the failure to report.
//!
//! Called by the CM machine for each event. Does not block.
#![forbid(unsafe_code)]

use super::cm_machine::CmMachine;
use super::dialling::log_set_up;
use super::endpoints::Role;
use super::peers::PeerSession;
use super::private_data::{Features, Refusal, Welcome};
use crate::provider::connections::ConnectionKind;
use crate::{EventKind, PeerDown};
use std::net::SocketAddr;
use trunkline_verbs::{CmEvent, CmEventKind, OneFlow, RejectReason, UnreachableCause};

impl CmMachine {
    /// Handles an event of an endpoint, or of a listener.
    pub(super) fn event(&mut self, event: CmEvent) {
        let now = self.now();
        if matches!(event.kind, CmEventKind::DeviceRemoval) {
            self.device_removed();
        }
        if !self.presence.is_present() {
            // The endpoint no longer exists. Dropping a request in the event refuses the request.
            return;
        }
        if let CmEventKind::ConnectRequest { id, parameters } = event.kind {
            self.request(&id, &parameters, &event.private_data);
            return;
        }
        let Some((role, peer, number)) = self.endpoints.role(event.id) else {
            self.endpoints.forget_closing(event.id, &event.kind);
            return;
        };
        if let (Role::Ini(poller), CmEventKind::Rejected(RejectReason::CONSUMER)) = (role, &event.kind)
            && let Some(Refusal::Unproven(cookie, path_mtu)) = Refusal::parse(&event.private_data)
        {
            let one_flow =
                if Refusal::is_of_one_flow(&event.private_data) { OneFlow::Yes } else { OneFlow::No };
            return self.prove(peer, number, poller, cookie, path_mtu, one_flow);
        }
        if let (Role::Ini(_), CmEventKind::Rejected(RejectReason::CONSUMER)) = (role, &event.kind)
            && Refusal::parse(&event.private_data) == Some(Refusal::Feature)
            && self.drive(peer, |machine, actions| machine.feature_refused(now, number, actions))
        {
            return;
        }
        if let (Role::Ini(_), CmEventKind::Rejected(RejectReason::CONSUMER)) = (role, &event.kind)
            && Refusal::parse(&event.private_data) == Some(Refusal::IdentityRequired)
            && self.drive(peer, |machine, actions| machine.identity_required(now, number, actions))
        {
            return;
        }
        match event.kind {
            CmEventKind::Established => match role {
                Role::Ini(poller) => match Welcome::parse(&event.private_data) {
                    Ok(mut welcome) => {
                        let id = self
                            .endpoints
                            .id(peer, number, role)
                            .filter(|_| welcome.features == Features::NONE);
                        welcome.is_local = id.is_some_and(|id| self.is_local(id.as_ref()));
                        self.endpoints.connected(peer, number, role);
                        log_set_up(peer, number, "answered", &format_args!("poller {poller}"));
                        #[cfg(feature = "identity")]
                        self.endpoints.carried(peer, number, role, 1, &event.private_data);
                        self.drive(peer, |machine, actions| {
                            machine.answered(now, number, poller, welcome, actions);
                        });
                    }
                    Err(refusal) => {
                        let cause = refusal.cause();
                        self.drive(peer, |machine, actions| machine.fail(now, number, cause, false, actions));
                    }
                },
                Role::Tgt(poller) => {
                    self.endpoints.connected(peer, number, role);
                    log_set_up(peer, number, "dialled back", &format_args!("poller {poller}"));
                    self.drive(peer, |machine, actions| machine.arrived(now, number, poller, actions));
                }
            },
            kind => {
                let Some((cause, transient)) = failure_of(
                    &kind,
                    &event.private_data,
                    self.device_of(peer),
                    self.endpoints.connections(),
                ) else {
                    return;
                };
                let (cause, transient) = match self.peers.get(peer) {
                    Some(known)
                        if matches!(kind, CmEventKind::Disconnected { .. })
                            && known.machine.lacks_connections_back(now, number) =>
                    {
                        (PeerDown::NoConnectionBack, false)
                    }
                    _ => (cause, transient),
                };
                // A peer that withdraws its dial because its session failed may dial again.
                let is_taken_back = matches!((role, &kind), (Role::Tgt(_), CmEventKind::Rejected(_)));
                let transient = transient || is_taken_back;
                #[cfg(feature = "identity")]
                let (cause, transient) = match self.handshake_cause(peer, number) {
                    // Only calls of this node wait for the cause of a failure that is not transient.
                    Some((own, is_transient)) => {
                        let is_named = self.peers.get(peer).is_some_and(|peer| peer.named);
                        (own, is_transient || transient && !is_named)
                    }
                    None => (cause, transient),
                };
                tracing::debug!(%peer, ?role, ?kind, "connection failed");
                // Other listeners refuse without a reason.
                let is_of_node = Refusal::parse(&event.private_data).is_some();
                if transient && is_of_node && matches!(cause, PeerDown::Refused(_)) {
                    log_set_up(peer, number, "refused", &cause);
                }
                self.remember_mtu(peer, number, cause);
                // A session that pollers wait for, or that was up, is logged where they are notified.
                // So is a dial-back without an answer.
                let unnoticed = |peer: &PeerSession| {
                    !peer.machine.is_up()
                        && !peer.machine.is_wanted()
                        && !peer.machine.lacks_answer(now, number, cause)
                };
                if self.peers.get(peer).is_some_and(unnoticed) {
                    self.shared.events.down(EventKind::SessionNotMade, peer, cause);
                    if let Some(suppressed) = self.log.line(now) {
                        tracing::warn!(%peer, %cause, suppressed, "incoming session not established");
                    }
                }
                self.drive(peer, |machine, actions| machine.fail(now, number, cause, transient, actions));
            }
        }
    }
}

/// Returns the likely reason why a listener refused without a reject message of this protocol.
fn wrong_listener(connections: ConnectionKind) -> &'static str {
    match connections {
        ConnectionKind::Xrc => {
            "what listens there takes no XRC connections: a Trunkline node that uses RC (then start this one with \
             --connections rc, NodeBuilder::connections), or no Trunkline node"
        }
        ConnectionKind::Rc => {
            "what listens there takes no RC connections: a Trunkline node that uses XRC (then start that one with \
             --connections rc, NodeBuilder::connections), or no Trunkline node"
        }
    }
}

/// Returns the cause for which an event ended a connection to a device, and true if another attempt may help.
fn failure_of(
    kind: &CmEventKind,
    private_data: &[u8],
    device: SocketAddr,
    connections: ConnectionKind,
) -> Option<(PeerDown, bool)> {
    Some(match kind {
        CmEventKind::Rejected(RejectReason::CONSUMER) => match Refusal::parse(private_data) {
            Some(refusal @ (Refusal::Stale | Refusal::Crowded)) => {
                (PeerDown::Refused(refusal.explain()), true)
            }
            Some(Refusal::ShuttingDown) => (PeerDown::Leaving, false),
            Some(refusal) => (refusal.cause(), false),
            // A connection manager itself rejects in this way when the listener is of another type (contract J7). The
            // kernel's connection manager also does so when the peer dropped the endpoint because its session failed.
            None => (PeerDown::Refused(wrong_listener(connections)), true),
        },
        CmEventKind::Rejected(RejectReason::INVALID_SERVICE_ID) => (PeerDown::NotListening, false),
        CmEventKind::Rejected(RejectReason::STALE_CONNECTION) => {
            (PeerDown::Refused("left-overs of an earlier connection"), true)
        }
        CmEventKind::Rejected(RejectReason::NO_RESOURCES) => {
            (PeerDown::Refused(Refusal::Resources.explain()), false)
        }
        CmEventKind::Unreachable(UnreachableCause::Port) => (PeerDown::PortUnreachable(device), false),
        CmEventKind::Unreachable(UnreachableCause::Host) => (PeerDown::HostUnreachable(device.ip()), false),
        CmEventKind::Unreachable(UnreachableCause::Prohibited) => (PeerDown::Prohibited(device), false),
        CmEventKind::Rejected(RejectReason::TIMEOUT) | CmEventKind::Unreachable(_) => {
            (PeerDown::Unreachable, false)
        }
        CmEventKind::Rejected(_) => (PeerDown::Refused("its connection manager refused"), false),
        CmEventKind::Disconnected { .. } => {
            (Refusal::parse(private_data).map_or(PeerDown::Closed, Refusal::of_ended_session), true)
        }
        // Usually the peer withdrew its answer while the QP was brought up.
        CmEventKind::ConnectError => (PeerDown::NotCompleted, true),
        CmEventKind::DeviceRemoval => (PeerDown::DeviceRemoved, false),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the text for an event that ends an attempt.
    fn text(kind: &CmEventKind, private_data: &[u8]) -> String {
        let device = SocketAddr::from(([10, 0, 0, 7], 4792));
        failure_of(kind, private_data, device, ConnectionKind::Xrc).expect("an end").0.to_string()
    }

    #[test]
    fn failed_attempt_names_only_its_cause() {
        let refused =
            |refusal: Refusal| text(&CmEventKind::Rejected(RejectReason::CONSUMER), &refusal.emit(false));
        let drains = refused(Refusal::ShuttingDown);
        assert!(drains.contains("shutting down") && !drains.contains("closed the session"), "{drains}");
        assert!(refused(Refusal::Resources).contains("its log names the limit"));
        let removed = text(&CmEventKind::DeviceRemoval, &[]);
        assert!(removed.contains("was removed"), "{removed}");
        // The peer may have taken its answer back.
        let unfinished = text(&CmEventKind::ConnectError, &[]);
        assert!(unfinished.contains("the peer withdrew it"), "{unfinished}");
        let unreachable = |cause| text(&CmEventKind::Unreachable(cause), &[]);
        for (cause, words) in [
            (UnreachableCause::NoAnswer, "does not answer requests to connect at all"),
            (UnreachableCause::Port, "nothing listens on UDP port 4792 of 10.0.0.7"),
            (UnreachableCause::Host, "no route to 10.0.0.7"),
            (
                UnreachableCause::Prohibited,
                "a firewall, on this host or on the path, refuses packets to UDP port 4792 of 10.0.0.7",
            ),
        ] {
            assert!(unreachable(cause).contains(words), "{cause:?}");
        }
        assert!(PeerDown::Died.to_string().contains("open session"), "the two are told apart");
        let disconnected = |data: &[u8]| text(&CmEventKind::Disconnected { is_answered: true }, data);
        for (here, words) in [
            (PeerDown::Misbehaved("x"), "says: this node broke the protocol"),
            (PeerDown::UnknownFrame(3), "says: this node broke the protocol"),
            #[cfg(feature = "identity")]
            (PeerDown::Altered("x"), "says: a sealed frame or message of this node arrived changed"),
        ] {
            let data = Refusal::for_ended_session(here).expect("the peer is told").emit(false);
            assert!(disconnected(&data).contains(words), "{here}: {}", disconnected(&data));
        }
        assert_eq!(Refusal::for_ended_session(PeerDown::Died), None);
        let forged = Refusal::Setting(1).emit(false);
        for silent in [&[][..], &[0; 220], &forged] {
            assert_eq!(disconnected(silent), PeerDown::Closed.to_string());
        }
    }
}
