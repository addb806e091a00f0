//! The active half of the CM machine, which connects an INI per poller for a requested session.
//!
//! ```text
//! dial -> route lookup -> resolved -> connect ... all INIs connected, all TGTs arrived -> up
//!  ^                                     |
//!  `-- refused as unproven, with a cookie'
//! ```
//!
//! Requested by the connection machine (`CmMachine::drive`), which receives the failures.
#![forbid(unsafe_code)]

use super::cm_machine::CmMachine;
use super::endpoints::Role;
use super::machine::Action;
use super::peers::PeerSession;
use super::private_data::{Cookie, Hello, SessionName, Welcome};
use crate::command::{CmCommand, Command, DialOutcome, SessionUp};
use crate::{PeerDown, PeerIdentity, PeerKey};
use nix::unistd::geteuid;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::num::NonZeroU16;
#[cfg(not(feature = "identity"))]
use std::sync::Arc;
use trunkline_verbs::{Mtu, OneFlow, UdpPorts, VerbsError};

impl CmMachine {
    /// Begins to resolve the route to a peer, for one INI of a session.
    pub(super) fn dial(
        &mut self,
        key: PeerKey,
        number: u32,
        poller: u16,
        echo: Option<SessionName>,
    ) -> Result<(), PeerDown> {
        let Some(peer) = self.peers.get(key) else { return Ok(()) };
        if !peer.machine.has(number) {
            return Ok(());
        }
        let (source, port) = self.source_for(key, peer)?;
        let hello = Hello {
            features: peer.machine.features(number),
            listener_port: port,
            session: peer.machine.name(number),
            echo,
            poller,
            pollers: u16::try_from(self.shared.pollers.len()).unwrap_or(u16::MAX),
            connections: self.endpoints.connections(),
            // An echo proves the address, so the cookie is not needed.
            cookie: peer.cookie.filter(|_| echo.is_none() && peer.machine.one_flow() != OneFlow::Try),
            udp_port: self.udp_port,
            is_local: false,
        };
        // Resolving may take seconds, especially for a dead peer.
        let (hello, handle) = (hello.emit(), self.handle.clone());
        let done = move |outcome| {
            handle.command(CmCommand::Resolved { peer: key, number, poller, hello, outcome });
        };
        self.endpoints.begin_dial(key, source, Box::new(done));
        Ok(())
    }

    /// Continues the dial that [`Self::dial`] began, unless the session has ended.
    pub(super) fn resolved(
        &mut self,
        key: PeerKey,
        number: u32,
        poller: u16,
        hello: Vec<u8>,
        outcome: DialOutcome,
    ) {
        let Some(peer) = self.peers.get(key) else { return };
        if !peer.machine.has(number) {
            return;
        }
        let usual = key.udp_port().map(UdpPorts::new);
        let now = self.now();
        let path_mtus = [peer.path_mtu, self.peers.path_mtu(self.device_of(key), now)];
        // A dial-back has the form and path MTU of the request that it answers, since one node stores the path MTU
        // for both.
        let asked = self.endpoints.asked(key, number);
        let path_mtu = asked.map(|(_, mtu)| mtu).into_iter().chain(path_mtus.into_iter().flatten()).min();
        let flow = match asked {
            Some((ports, _)) if ports.own.is_some() => (OneFlow::Yes, Some(ports)),
            Some(_) => (OneFlow::No, usual),
            None => (peer.machine.one_flow(), usual),
        };
        let dialled =
            outcome.and_then(|id| self.endpoints.dial(id, key, number, poller, hello, flow, path_mtu));
        if let Err(error) = dialled {
            if let Some(suppressed) = self.log.line(now) {
                tracing::warn!(peer = %key, %error, suppressed, "connection not dialled");
            }
            let cause = cause_of(error, self.device_of(key));
            return self.drive(key, |machine, into| machine.fail(now, number, cause, false, into));
        }
        log_set_up(key, number, "request sent", &format_args!("poller {poller}"));
    }

    /// Responds to a peer that requires proof of this node's address. Each INI returns the cookie with a new endpoint
    /// and request, since a refused endpoint cannot be reused.
    pub(super) fn prove(
        &mut self,
        key: PeerKey,
        number: u32,
        poller: u16,
        cookie: Cookie,
        path_mtu: Option<Mtu>,
        one_flow: OneFlow,
    ) {
        let now = self.now();
        let Some(peer) = self.peers.get_mut(key) else { return };
        peer.cookie = Some(cookie);
        peer.path_mtu = path_mtu;
        peer.machine.set_one_flow(one_flow);
        log_set_up(key, number, "cookie received", &format_args!("poller {poller}"));
        self.endpoints.discard(key, number, Role::Ini(poller));
        self.drive(key, |machine, actions| machine.unproven(now, number, poller, actions));
    }

    /// Returns this node's source address for a peer, and the listening port. If the address is `None`, the device
    /// chooses.
    ///
    /// # Errors
    /// Returns an error if this node does not listen on an address of the peer's family.
    fn source_for(&self, key: PeerKey, peer: &PeerSession) -> Result<(Option<IpAddr>, NonZeroU16), PeerDown> {
        // `::` includes the addresses of both families.
        let reaches = |address: &&SocketAddr| {
            address.is_ipv4() == key.address().is_ipv4() || address.ip() == Ipv6Addr::UNSPECIFIED
        };
        let first = self.listening.first().ok_or(PeerDown::DeviceFailed)?;
        let mut own = self.listening.iter().filter(reaches).peekable();
        own.peek().ok_or(PeerDown::NoAddress { listens_on: *first })?;
        let fits = |address: &&SocketAddr| {
            peer.source.is_none_or(|source| address.ip() == source || address.ip().is_unspecified())
        };
        let listening = own.find(fits).ok_or(PeerDown::DeviceFailed)?;
        let source = peer.source.or_else(|| Some(listening.ip()).filter(|ip| !ip.is_unspecified()));
        Ok((source, NonZeroU16::new(listening.port()).ok_or(PeerDown::DeviceFailed)?))
    }

    /// Passes the INIs of a session that is up to the pollers.
    pub(super) fn up(&mut self, key: PeerKey, number: u32, welcome: &Welcome, actions: &mut Vec<Action>) {
        let now = self.now();
        let Some(peer) = self.peers.get_mut(key) else { return };
        let Some(inis) = self.endpoints.take_inis(key, number) else {
            peer.machine.fail(now, number, PeerDown::DeviceFailed, false, actions);
            return;
        };
        let (is_accepted, is_local) = (peer.machine.is_accepted(), peer.machine.is_with_local_user());
        #[cfg(feature = "identity")]
        let proof = self.proving.proof((key, number)).map(|proof| (proof.identity, proof.settings));
        #[cfg(not(feature = "identity"))]
        let proof = None::<(PeerIdentity, Arc<[u8]>)>;
        let (identity, settings) = proof.map_or_else(Default::default, |(name, bound)| (name, Some(bound)));
        let identity = if is_local { PeerIdentity::LocalUser(geteuid().as_raw()) } else { identity };
        #[cfg(feature = "identity")]
        if let Some(own) = &self.shared.identity {
            own.count_session(&identity);
        }
        let encrypted = !matches!(identity, PeerIdentity::Unproven | PeerIdentity::LocalUser(_));
        tracing::info!(peer = %key, %identity, encrypted, pollers = welcome.srqs.len(), "session up");
        self.shared.events.up(key);
        self.cookies.answered(key.host());
        log_set_up(key, number, "session up", &identity);
        #[cfg(feature = "identity")]
        let mut keys = self.proving.take_keys((key, number));
        for (poller, (qp, read_depth)) in self.shared.pollers.iter().zip(inis) {
            poller.command(Command::SessionUp(Box::new(SessionUp {
                peer: key,
                number,
                epoch: welcome.session.epoch,
                qp,
                srqs: welcome.srqs.clone(),
                read_depth,
                is_accepted,
                identity: identity.clone(),
                settings: settings.clone(),
                #[cfg(feature = "identity")]
                keys: keys.next(),
                #[cfg(feature = "identity")]
                renewed_by: None,
            })));
        }
    }
}

/// Logs a step of a session's set-up, at level debug with target `trunkline::setup`. `trunkctl ping` shows these events.
pub(super) fn log_set_up(key: PeerKey, number: u32, step: &'static str, detail: &dyn fmt::Display) {
    tracing::debug!(
        target: "trunkline::setup",
        peer = %key,
        session = number,
        step,
        %detail,
        "session set-up"
    );
}

/// Returns the cause reported to waiters for an error while connecting to a device.
fn cause_of(error: VerbsError, device: SocketAddr) -> PeerDown {
    match error {
        // A prohibit route of this host causes EACCES.
        VerbsError::Os(nix::libc::EHOSTUNREACH | nix::libc::ENETUNREACH | nix::libc::EACCES) => {
            PeerDown::HostUnreachable(device.ip())
        }
        // This host's firewall forbids the address.
        VerbsError::Os(nix::libc::EPERM) => PeerDown::Prohibited(device),
        VerbsError::Gone => PeerDown::DeviceRemoved,
        // The peer's link address could not be resolved.
        VerbsError::Os(nix::libc::ETIMEDOUT) => PeerDown::Unreachable,
        error => PeerDown::NoRoute(error),
    }
}
