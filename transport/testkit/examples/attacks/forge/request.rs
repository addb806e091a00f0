//! Forged connection requests, correct in every field, with the private data of the session protocol.

use super::socket::{Forger, Sink};
use crate::Outcome;
use crate::honest::PORT;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use trunkline_roce::cm::{CmConfig, CmMachine, Connect, Transport};
use trunkline_roce::wire::cm::CmMessage;
use trunkline_roce::wire::{ICRC_LENGTH, Mad, Packet, ROCE_PORT, mad_packet};
use trunkline_testkit::{Random, wait_until};
use trunkline_verbs::{Mtu, PortSpace, Psn, QpNumber};

/// Version of the session protocol to try first.
const VERSION: u8 = 2;
/// "Another version" among the reasons of a refusal.
const OTHER_VERSION: u8 = 2;

/// The claimed sender of a request, and its other claims.
#[derive(Debug, Clone)]
pub(crate) struct Dialer {
    /// Claimed address, and port of the listener there.
    pub(crate) claimed: SocketAddr,
    pub(crate) victim: SocketAddr,
    pub(crate) is_xrc: bool,
    /// Version of the session protocol.
    pub(crate) version: u8,
    pub(crate) poller: u16,
    pub(crate) pollers: u16,
}

impl Dialer {
    pub(crate) fn new(claimed: IpAddr, victim: SocketAddr, is_xrc: bool, version: u8) -> Self {
        Self { claimed: SocketAddr::new(claimed, PORT), victim, is_xrc, version, poller: 0, pollers: 1 }
    }

    /// Builds the request of a new incarnation of the claimed node, as a device there would send it: a packet
    /// without its ICRC.
    ///
    /// # Errors
    /// None for addresses of one family.
    pub(crate) fn request(&self, random: &mut Random) -> Outcome<Vec<u8>> {
        let word = |random: &mut Random| u32::from_be_bytes([(); 4].map(|()| random.byte()));
        let long = |random: &mut Random| u64::from(word(random)) << 32 | u64::from(word(random)) | 1;
        let mut device = CmMachine::new(CmConfig::new(long(random), long(random)));
        device.connect(
            0,
            &Connect {
                local: self.claimed,
                remote: self.victim,
                port_space: PortSpace::Ib,
                transport: if self.is_xrc { Transport::Xrc } else { Transport::Rc },
                qpn: QpNumber::new(word(random) & 0xff_ffff | 2),
                starting_psn: Psn::new(word(random) & 0xff_ffff),
                mtu: Mtu::Mtu1024,
                responder_resources: 0,
                initiator_depth: 16,
                retry_count: 7,
                rnr_retry: 7,
                ack_timeout: 15,
                flow_control: false,
                traffic_class: 0,
                srq: true,
                private: &self.hello(long(random)),
            },
        )?;
        let mad = device.poll_transmit().ok_or("the device sends no request")?.mad.to_bytes();
        let mut packet = Vec::new();
        mad_packet(Psn::new(word(random) & 0xff_ffff), &mad).emit(&mut packet);
        Ok(packet)
    }

    /// Builds the private data of the session protocol: a new session of a node that answers none.
    fn hello(&self, epoch: u64) -> Vec<u8> {
        let mut hello = b"TRNK".to_vec();
        hello.extend([self.version, 0]);
        hello.extend(self.claimed.port().to_be_bytes());
        hello.extend(epoch.to_be_bytes());
        hello.extend(1_u32.to_be_bytes());
        hello.extend([0; 12]);
        hello.extend(self.poller.to_be_bytes());
        hello.extend(self.pollers.to_be_bytes());
        // The kind of connections, and the lowest version spoken, a field that version 2 does not have.
        hello.extend([if self.is_xrc { 1 } else { 2 }, self.version]);
        hello
    }

    /// Returns the destination of requests: UDP port 4791 of the victim.
    pub(crate) fn port_of_victim(&self) -> SocketAddr {
        SocketAddr::new(self.victim.ip(), ROCE_PORT)
    }
}

/// Returns the version of the session protocol that a node speaks. A node that speaks another version than
/// the one tried names its own in the refusal.
pub(crate) fn version_of(own: IpAddr, victim: SocketAddr, is_xrc: bool, random: &mut Random) -> Outcome<u8> {
    let (mut forger, sink) = (Forger::at(own)?, Sink::at(own)?);
    let dialer = Dialer::new(own, victim, is_xrc, VERSION);
    let request = dialer.request(random)?;
    forger.send(&request, dialer.port_of_victim())?;
    let reply = wait_until("a reply to a connection request", Duration::from_secs(5), || {
        let caught = [forger.caught(), sink.caught()];
        caught.into_iter().find(|caught| caught.packets > 0).map(|caught| caught.last)
    });
    let packet = Packet::parse(&reply[..reply.len().saturating_sub(ICRC_LENGTH)])?;
    match Mad::from_packet(&packet).as_ref().map(CmMessage::parse) {
        Some(CmMessage::Rej(rej)) if rej.private.starts_with(b"TRNK") && rej.private[5] == OTHER_VERSION => {
            Ok(rej.private[4])
        }
        _ => Ok(VERSION),
    }
}
