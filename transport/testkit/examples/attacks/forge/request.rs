//! Forged connection requests: right in every field, with the private data of the session protocol.

use super::socket::{Forger, Sink};
use crate::Outcome;
use crate::honest::PORT;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use trunkline_roce::wire::cm::{
    ADDRESS_HEADER_BYTES, AddressHeader, CmMessage, Path, REQ_PRIVATE_BYTES, Req, ServiceId, TransportType,
};
use trunkline_roce::wire::{ICRC_LENGTH, Mad, Packet, ROCE_PORT, mad_packet};
use trunkline_testkit::{Random, wait_until};
use trunkline_verbs::{Gid, PKEY_DEFAULT, PortSpace, Psn, QpNumber};

/// The version of the session protocol that is tried first.
const VERSION: u8 = 2;
/// "Another version" among the reasons of a refusal.
const OTHER_VERSION: u8 = 2;

/// Who a request claims to be from, and what it claims.
#[derive(Debug, Clone)]
pub(crate) struct Dialer {
    /// The claimed address, and the port of the listener there.
    pub(crate) claimed: SocketAddr,
    pub(crate) victim: SocketAddr,
    pub(crate) is_xrc: bool,
    /// The version of the session protocol.
    pub(crate) version: u8,
    pub(crate) poller: u16,
    pub(crate) pollers: u16,
}

impl Dialer {
    pub(crate) fn new(claimed: IpAddr, victim: SocketAddr, is_xrc: bool, version: u8) -> Self {
        Self { claimed: SocketAddr::new(claimed, PORT), victim, is_xrc, version, poller: 0, pollers: 1 }
    }

    /// A request of a new incarnation of the claimed node, as a packet without its ICRC.
    pub(crate) fn request(&self, random: &mut Random) -> Vec<u8> {
        let word = |random: &mut Random| u32::from_be_bytes([(); 4].map(|()| random.byte()));
        let epoch = u64::from(word(random)) << 32 | u64::from(word(random)) | 1;
        let mut private = [0; REQ_PRIVATE_BYTES];
        AddressHeader::new(self.claimed, self.victim.ip()).emit(&mut private);
        let hello = self.hello(epoch);
        private[ADDRESS_HEADER_BYTES..ADDRESS_HEADER_BYTES + hello.len()].copy_from_slice(&hello);
        let id = word(random) | 1;
        let request = Req {
            local_id: id,
            reserved_4: 0,
            vendor_id: 0,
            service_id: ServiceId::new(PortSpace::Ib, self.victim.port()),
            ca_guid: u64::from(word(random)),
            reserved_24: 0,
            qkey: 0,
            qpn: QpNumber::new(word(random) & 0xff_ffff | 2),
            responder_resources: 0,
            eecn: 0,
            initiator_depth: 16,
            remote_eecn: 0,
            remote_timeout: 20,
            transport: if self.is_xrc { TransportType::XRC } else { TransportType::RC },
            flow_control: false,
            starting_psn: Psn::new(word(random) & 0xff_ffff),
            local_timeout: 20,
            retry_count: 7,
            pkey: PKEY_DEFAULT,
            mtu: 3,
            rdc_exists: false,
            rnr_retry: 7,
            max_cm_retries: 15,
            srq: !self.is_xrc,
            primary: Path {
                local_lid: 0xffff,
                remote_lid: 0xffff,
                local_gid: Gid::from(self.claimed.ip()),
                remote_gid: Gid::from(self.victim.ip()),
                hop_limit: 64,
                ack_timeout: 15,
                ..Path::default()
            },
            alternate: Path::default(),
            private,
        };
        let mad = CmMessage::Req(request).mad(u64::from(id)).to_bytes();
        let mut packet = Vec::new();
        mad_packet(Psn::new(word(random) & 0xff_ffff), &mad).emit(&mut packet);
        packet
    }

    /// The private data of the session protocol: a new session of a node that answers none.
    fn hello(&self, epoch: u64) -> Vec<u8> {
        let mut hello = b"TRNK".to_vec();
        hello.extend([self.version, 0]);
        hello.extend(self.claimed.port().to_be_bytes());
        hello.extend(epoch.to_be_bytes());
        hello.extend(1_u32.to_be_bytes());
        hello.extend([0; 12]);
        hello.extend(self.poller.to_be_bytes());
        hello.extend(self.pollers.to_be_bytes());
        // The kind of connections, and the lowest version that it speaks, which version 2 does not have.
        hello.extend([if self.is_xrc { 1 } else { 2 }, self.version]);
        hello
    }

    /// Where requests go: UDP port 4791 of the victim.
    pub(crate) fn port_of_victim(&self) -> SocketAddr {
        SocketAddr::new(self.victim.ip(), ROCE_PORT)
    }
}

/// The version of the session protocol that a node speaks. A node that speaks another than the one tried
/// names its own in the refusal.
pub(crate) fn version_of(own: IpAddr, victim: SocketAddr, is_xrc: bool, random: &mut Random) -> Outcome<u8> {
    let (mut forger, sink) = (Forger::at(own)?, Sink::at(own)?);
    let dialer = Dialer::new(own, victim, is_xrc, VERSION);
    let request = dialer.request(random);
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
