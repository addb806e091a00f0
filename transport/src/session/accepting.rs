//! The passive half of the CM machine. A peer that dials gets a TGT and a welcome, or a refusal.
//!
//! `requests.rs` checks requests, and the peer's machine assigns them to sessions.
#![forbid(unsafe_code)]

use super::cm_machine::CmMachine;
#[cfg(feature = "identity")]
use super::endpoints::Role;
use super::machine::Action;
use super::private_data::{Refusal, SessionName, Welcome};
use super::requests::Admitted;
use crate::command::Command;
use crate::{PeerDown, PeerKey};
use std::sync::Arc;
use trunkline_verbs::{CmId, ConnectParameters, VerbsError};

impl CmMachine {
    /// Handles a request from a peer that dials.
    pub(super) fn request(
        &mut self,
        id: &Arc<dyn CmId>,
        parameters: &ConnectParameters,
        private_data: &[u8],
    ) {
        let admitted = self.admit(id.as_ref(), private_data);
        let accepted = admitted.and_then(|admitted| self.accept(id, parameters, &admitted, private_data));
        if let Err(refusal) = accepted {
            self.log_refusal(id.as_ref(), refusal);
            if let Err(error) = id.reject(&refusal.emit(is_one_flow(id.as_ref()))) {
                tracing::debug!(%error, "refusal of a session not sent");
            }
        }
    }

    /// Logs and records a refusal. The log line is a warning if a person has to act. A refusal with a cookie is only
    /// counted. Requests without a proof of the address can be forged, so their log lines have a separate limit.
    fn log_refusal(&mut self, id: &dyn CmId, refusal: Refusal) {
        if matches!(refusal, Refusal::Unproven(..)) {
            return;
        }
        let (advice, is_proven) = (refusal.advice(), refusal.follows_proof());
        let cause = advice.map_or_else(|| refusal.own_cause(), |(cause, _)| cause);
        self.shared.events.refused(id.peer_address().map(PeerKey::new), cause, is_proven);
        let (now, peer) = (self.now(), id.peer_address().map(tracing::field::display));
        if let Some((_, remedy)) = advice {
            if let Some(suppressed) = self.refused[usize::from(is_proven)].line(now) {
                tracing::warn!(peer, ?refusal, cause, remedy, suppressed, "session request refused");
            }
        } else if let Some(suppressed) = self.dismissed.line(now) {
            tracing::debug!(peer, ?refusal, suppressed, "session request refused");
        }
    }

    fn accept(
        &mut self,
        id: &Arc<dyn CmId>,
        parameters: &ConnectParameters,
        admitted: &Admitted,
        #[cfg_attr(not(feature = "identity"), expect(unused_variables))] private_data: &[u8],
    ) -> Result<(), Refusal> {
        let key = admitted.peer;
        let now = self.now();
        if self.peers.get(key).is_some() {
            // The owner of the address may have changed.
            self.shared.hosts.learn(key);
        }
        if is_one_flow(id.as_ref()) && self.peers.get(key).is_none() {
            self.probe_others(key);
        }
        let peer = self.peer(key);
        peer.source = Some(admitted.local);
        let mut actions = Vec::new();
        let number = peer.machine.request(now, &admitted.hello, &mut actions);
        // Actions that end an earlier session come before the accept. The dials of the new session come after
        // it.
        let dials =
            actions.iter().position(|action| matches!(action, Action::Dial { .. })).unwrap_or(actions.len());
        let after = actions.split_off(dials);
        self.drive(key, |_, into| into.extend(actions));
        let number = match number {
            Ok(number) => number,
            Err(refusal) => {
                self.drive(key, |_, into| into.extend(after));
                return Err(refusal);
            }
        };
        self.make_target(id, key, number, admitted.hello.poller)?;
        #[cfg(feature = "identity")]
        self.endpoints.carried(key, number, Role::Tgt(admitted.hello.poller), 0, private_data);
        if self.welcome(id, parameters, key, number) {
            self.drive(key, |_, into| into.extend(after));
        }
        Ok(())
    }

    /// Creates the TGT of a request, and announces it to the pollers.
    fn make_target(
        &mut self,
        id: &Arc<dyn CmId>,
        key: PeerKey,
        number: u32,
        poller: u16,
    ) -> Result<(), Refusal> {
        let is_proved = self.peers.get(key).is_some_and(|peer| !peer.machine.is_unproven(number));
        match self.endpoints.make_target(id, key, number, poller, is_proved) {
            Ok(target) => {
                self.tell(|| Command::TargetAdded { peer: key, number, poller, target });
                Ok(())
            }
            Err(error) => {
                self.failed_to("make a TGT", &error, key, number);
                Err(Refusal::Resources)
            }
        }
    }

    /// Accepts a request whose TGT was created. Returns true on success; otherwise the session has ended.
    fn welcome(
        &mut self,
        id: &Arc<dyn CmId>,
        parameters: &ConnectParameters,
        key: PeerKey,
        number: u32,
    ) -> bool {
        let welcome = Welcome {
            features: self.peer(key).machine.features(number),
            session: SessionName { epoch: self.shared.epochs.of(key), number },
            srqs: self.endpoints.srqs(),
            udp_port: self.udp_port,
            is_local: false,
        };
        let welcome = welcome.emit();
        #[cfg(feature = "identity")]
        if let Some((role, ..)) = self.endpoints.role(id.number()) {
            self.endpoints.carried(key, number, role, 1, &welcome);
        }
        let accepted = self.endpoints.accept(id, parameters, welcome);
        if let Err(error) = &accepted {
            self.failed_to("accept", error, key, number);
        }
        accepted.is_ok()
    }

    /// Fails a session for which the device refused an operation.
    fn failed_to(&mut self, step: &'static str, error: &VerbsError, key: PeerKey, number: u32) {
        let now = self.now();
        if let Some(suppressed) = self.log.line(now) {
            tracing::warn!(peer = %key, %error, step, suppressed, "session request not completed");
        }
        // The dialling side may have withdrawn its request, which ends the endpoint's connection.
        let transient = matches!(error, VerbsError::Invalid(_));
        self.drive(key, |machine, into| {
            machine.fail(now, number, PeerDown::DeviceFailed, transient, into);
        });
    }
}

/// Returns true if answers reach the sender of a request only through one pair of UDP ports.
fn is_one_flow(id: &dyn CmId) -> bool {
    id.udp_ports().is_some_and(|ports| ports.own.is_some())
}
