//! Requests of peers: what is checked before anything is made for one.
//!
//! A request is a stranger's word: it is parsed with bounds, what it may cost is bounded by its host, and the
//! dial-back goes to where it came from, never to an address that it names. Decides only; `accepting.rs`
//! performs.
#![forbid(unsafe_code)]

use super::cm_machine::CmMachine;
use super::private_data::{Hello, Refusal};
use crate::connections::ConnectionKind;
use crate::shared::canonical;
use std::net::{IpAddr, SocketAddr};
use trunkline_verbs::CmId;

/// Peers that are known at once, at most; further ones are refused.
const MAX_PEERS: usize = 16_384;

/// A request that may be accepted.
#[derive(Debug)]
pub(super) struct Admitted {
    pub(super) hello: Hello,
    /// Where its sender listens.
    pub(super) address: SocketAddr,
    /// Our address that it came to.
    pub(super) local: IpAddr,
}

impl CmMachine {
    /// Judges a request. Nothing of it is remembered, whatever comes of it.
    ///
    /// # Errors
    /// Why it is refused.
    pub(super) fn admit(&self, id: &dyn CmId, private_data: &[u8]) -> Result<Admitted, Refusal> {
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
        let address = canonical(SocketAddr::new(from.ip(), hello.listener_port.get()));
        // Looked up before a key is given out: addresses that are refused must leave none in the directory,
        // because nobody would ever forget it.
        let known = self.shared.known_key(address).and_then(|key| self.peers.get(key));
        if known.is_none() && self.peers.len() >= MAX_PEERS {
            return Err(Refusal::Resources);
        }
        let is_stranger = known.is_none_or(|peer| !peer.named && peer.machine.current().is_none());
        if is_stranger && self.peers.is_crowded(address.ip(), self.endpoints.share()) {
            return Err(Refusal::Crowded);
        }
        Ok(Admitted { hello, address, local: id.local_address().ip() })
    }
}
