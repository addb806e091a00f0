//! The passive half of the CM machine: who asks for a connection is judged, and gets a TGT or the reason
//! why not.
//!
//! A request is a stranger's word: it is parsed with bounds, what it may cost is bounded by its host,
//! and the dial-back goes to where it came from.
#![forbid(unsafe_code)]

use super::cm_machine::CmMachine;
use super::machine::Action;
use super::private_data::{Hello, Refusal, SessionName, Welcome};
use crate::PeerDown;
use crate::command::Command;
use crate::connections::ConnectionKind;
use crate::frame::HEADER;
use crate::shared::canonical;
use crate::sizes::EAGER_BYTES;
use std::net::SocketAddr;
use std::sync::Arc;
use trunkline_verbs::{CmId, ConnectParameters, VerbsError};

/// Peers that are known at once, at most; further ones are refused.
const MAX_PEERS: usize = 16_384;

impl CmMachine {
    /// A peer dials.
    pub(super) fn request(
        &mut self,
        id: &Arc<dyn CmId>,
        parameters: &ConnectParameters,
        private_data: &[u8],
    ) {
        if let Err(refusal) = self.accept(id, parameters, private_data) {
            tracing::debug!(?refusal, from = ?id.peer_address(), "request refused");
            if let Err(error) = id.reject(&refusal.emit()) {
                tracing::debug!(%error, "rejecting");
            }
        }
    }

    fn accept(
        &mut self,
        id: &Arc<dyn CmId>,
        parameters: &ConnectParameters,
        private_data: &[u8],
    ) -> Result<(), Refusal> {
        if self.closed {
            return Err(Refusal::ShuttingDown);
        }
        let hello = Hello::parse(private_data)?;
        match (self.endpoints.connections(), hello.connections) {
            (ours, theirs) if ours == theirs => {}
            (ConnectionKind::Xrc, _) => return Err(Refusal::UsesXrc),
            (ConnectionKind::Rc, _) => return Err(Refusal::UsesRc),
        }
        let from = id.peer_address().ok_or(Refusal::Nonsense)?;
        // The dial-back goes to where the request came from, never to an address that it names.
        let address = canonical(SocketAddr::new(from.ip(), hello.listener_port.get()));
        // Looked for before it is given out: addresses that are refused must leave no key behind,
        // because nobody would ever forget it.
        let known = self.shared.known_key(address).and_then(|key| self.peers.get(key));
        if known.is_none() && self.peers.len() >= MAX_PEERS {
            return Err(Refusal::Resources);
        }
        let is_stranger = known.is_none_or(|peer| !peer.named && peer.machine.current().is_none());
        if is_stranger && self.peers.is_crowded(address.ip(), self.endpoints.share()) {
            return Err(Refusal::Crowded);
        }
        let key = self.shared.peer_key(address);
        let local = id.local_address().ip();
        let now = self.now();
        let peer = self.peer(key, address);
        peer.source = Some(local);
        let mut actions = Vec::new();
        let number = peer.machine.request(now, &hello, &mut actions);
        // What ends an earlier session comes before, the dials of the new one after the accept.
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
        let welcome = Welcome {
            session: SessionName { epoch: self.shared.epoch, number },
            max_message: self.shared.limits.max_message_bytes as u64,
            max_frame: u32::try_from(HEADER + EAGER_BYTES).unwrap_or(u32::MAX),
            srqs: self.endpoints.srqs(),
        };
        match self.endpoints.make_target(id, key, number, hello.poller) {
            Ok(target) => {
                self.tell(|| Command::TargetAdded {
                    peer: key,
                    address,
                    number,
                    poller: hello.poller,
                    target,
                });
            }
            Err(error) => {
                if let Some(left_out) = self.log.line(now) {
                    tracing::warn!(%error, left_out, "cannot make a TGT");
                }
                // Who dials may have given up meanwhile, and with that the endpoint its connection.
                let transient = matches!(error, VerbsError::Invalid(_));
                self.drive(key, |machine, into| {
                    machine.fail(now, number, PeerDown::DeviceFailed, transient, into);
                });
                return Err(Refusal::Resources);
            }
        }
        if let Err(error) = self.endpoints.accept(id, parameters, welcome.emit()) {
            if let Some(left_out) = self.log.line(now) {
                tracing::warn!(%error, left_out, "cannot accept");
            }
            let transient = matches!(error, VerbsError::Invalid(_));
            self.drive(key, |machine, into| {
                machine.fail(now, number, PeerDown::DeviceFailed, transient, into);
            });
            return Ok(());
        }
        self.drive(key, |_, into| into.extend(after));
        Ok(())
    }
}
