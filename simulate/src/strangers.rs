//! Senders of forged connection requests, and what no node may do for them.
//!
//! Owns the requests that were forged and what the network carried because of them. The network shows it
//! each datagram; it breaks a rule when a node
//!
//! - accepts a request whose sender proved nothing, whatever address it came from;
//! - sends an address that proved nothing more bytes than came from there, and a fifth more;
//! - dials a stranger that did prove its address for more than one of its INIs before the first is answered.
//!
//! The stranger that proves its address returns the cookie that it gets, and answers nothing else.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use trunkline_roce::wire::cm::{
    ADDRESS_HEADER_BYTES, AddressHeader, CmMessage, Path, REQ_PRIVATE_BYTES, Rej, Req, ServiceId,
    TransportType,
};
use trunkline_roce::wire::{ICRC_LENGTH, IpUdp, Mad, Packet, ROCE_PORT, icrc, mad_packet};
use trunkline_softrdma::link::Datagram;
use trunkline_verbs::{Gid, PKEY_DEFAULT, PortSpace, Psn, QpNumber};

/// Comm ids of strangers begin here.
const FIRST_ID: u32 = 0xf000_0000;

/// Who forges a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sender {
    /// Somebody elsewhere, who claims an address at which nobody is.
    Nowhere,
    /// Somebody elsewhere, who claims to be a node that was restarted.
    InTheNameOf(SocketAddr),
    /// Somebody at an address of its own, who returns the cookie that it gets there and answers nothing else.
    Present,
}

/// A forged request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Forged {
    pub(crate) sender: Sender,
    pub(crate) victim: SocketAddr,
    pub(crate) pollers: u16,
    pub(crate) is_rc: bool,
}

/// A datagram to be sent.
#[derive(Debug)]
pub(crate) struct Sent {
    pub(crate) source: SocketAddr,
    pub(crate) destination: SocketAddr,
    pub(crate) bytes: Vec<u8>,
}

/// All that was forged in a run.
#[derive(Debug, Default)]
pub(crate) struct Strangers {
    /// Requests by claimed address and comm id, with the address of the claimed listener.
    forged: BTreeMap<(IpAddr, u32), (Forged, SocketAddr)>,
    /// Requests that returned a cookie.
    proven: BTreeSet<(IpAddr, u32)>,
    /// Bytes from and to addresses at which nobody is.
    traded: BTreeMap<IpAddr, (usize, usize)>,
    /// Comm ids of the requests of nodes to strangers that are where they claim to be.
    dialled: BTreeMap<IpAddr, BTreeSet<u32>>,
    broken: Option<String>,
}

impl Strangers {
    /// The first rule that a node broke.
    pub(crate) fn broken(&self) -> Option<&str> {
        self.broken.as_deref()
    }

    /// Makes a request, to be sent.
    pub(crate) fn forge(&mut self, forged: Forged) -> Sent {
        let [.., high, low] = self.forged.len().to_be_bytes();
        let own = SocketAddr::from(([10, 66, high, low], 7471));
        let claimed = match forged.sender {
            Sender::InTheNameOf(node) => node,
            Sender::Present => {
                self.dialled.insert(own.ip(), BTreeSet::new());
                own
            }
            Sender::Nowhere => own,
        };
        let sent = self.request(forged, claimed, [0; 16]);
        if forged.sender == Sender::Nowhere {
            self.traded.insert(own.ip(), (sent.bytes.len(), 0));
        }
        sent
    }

    /// Looks at what a node sends; returns what a stranger answers.
    pub(crate) fn see(&mut self, datagram: &Datagram<'_>) -> Option<Sent> {
        if self.forged.is_empty() {
            return None;
        }
        let (from, to) = (datagram.source.ip(), datagram.destination.ip());
        if let Some((there, back)) = self.traded.get_mut(&to) {
            *back += datagram.bytes.len();
            if *back * 5 > *there * 6 {
                let why = format!("{from} sends {to}, which proved nothing, {back} bytes for {there}");
                self.broken.get_or_insert(why);
            }
        }
        let body = datagram.bytes.get(..datagram.bytes.len().checked_sub(ICRC_LENGTH)?)?;
        match CmMessage::parse(&Mad::from_packet(&Packet::parse(body).ok()?)?) {
            CmMessage::Rej(rej) => return self.refused(to, &rej),
            CmMessage::Rep(rep) => {
                let request = (to, rep.remote_id);
                if self.forged.contains_key(&request) && !self.proven.contains(&request) {
                    let why = format!("{from} accepts a request in the name of {to} that proved nothing");
                    self.broken.get_or_insert(why);
                }
            }
            CmMessage::Req(req) => {
                if let Some(ids) = self.dialled.get_mut(&to) {
                    ids.insert(req.local_id);
                    if ids.len() > 1 {
                        let why = format!("{from} dials {to}, which has answered nothing, once more");
                        self.broken.get_or_insert(why);
                    }
                }
            }
            _ => {}
        }
        None
    }

    /// A refusal: if it has a cookie for a stranger that is where it claims to be, that one returns it, once.
    fn refused(&mut self, to: IpAddr, rej: &Rej) -> Option<Sent> {
        let (forged, claimed) = *self.forged.get(&(to, rej.remote_id))?;
        let has_cookie = rej.private.get(..6)? == b"TRNK\x03\x0b";
        let is_first = !self.proven.iter().any(|(proven, _)| *proven == to);
        if !has_cookie || forged.sender != Sender::Present || !is_first {
            return None;
        }
        let cookie: [u8; 16] = rej.private.get(8..24)?.try_into().ok()?;
        let sent = self.request(forged, claimed, cookie);
        self.proven.insert((to, self.last_id()));
        Some(sent)
    }

    fn last_id(&self) -> u32 {
        FIRST_ID + u32::try_from(self.forged.len()).unwrap_or(0)
    }

    /// A request under a comm id of its own.
    fn request(&mut self, forged: Forged, claimed: SocketAddr, cookie: [u8; 16]) -> Sent {
        let id = self.last_id() + 1;
        self.forged.insert((claimed.ip(), id), (forged, claimed));
        let mut private = [0; REQ_PRIVATE_BYTES];
        AddressHeader::new(claimed, forged.victim.ip()).emit(&mut private);
        let hello = hello(&forged, claimed, cookie);
        private[ADDRESS_HEADER_BYTES..][..hello.len()].copy_from_slice(&hello);
        let mad = CmMessage::Req(req(&forged, claimed, id, private)).mad(u64::from(id)).to_bytes();
        let source = SocketAddr::new(claimed.ip(), 50_000);
        let destination = SocketAddr::new(forged.victim.ip(), ROCE_PORT);
        let mut bytes = Vec::new();
        mad_packet(Psn::new(id & 0xff_ffff), &mad).emit(&mut bytes);
        icrc::append(&IpUdp::new(source, destination), &mut bytes);
        Sent { source, destination, bytes }
    }
}

/// The private data of the session protocol: a first session of a new incarnation.
fn hello(forged: &Forged, claimed: SocketAddr, cookie: [u8; 16]) -> Vec<u8> {
    let mut hello = b"TRNK\x03\0".to_vec();
    hello.extend(claimed.port().to_be_bytes());
    hello.extend(0x7374_7261_6e67_6572_u64.to_be_bytes());
    hello.extend(1_u32.to_be_bytes());
    hello.extend([0; 12]);
    hello.extend(0_u16.to_be_bytes());
    hello.extend(forged.pollers.to_be_bytes());
    hello.extend([if forged.is_rc { 2 } else { 1 }, 3]);
    hello.extend(cookie);
    hello
}

fn req(forged: &Forged, claimed: SocketAddr, id: u32, private: [u8; REQ_PRIVATE_BYTES]) -> Req {
    Req {
        local_id: id,
        reserved_4: 0,
        vendor_id: 0,
        service_id: ServiceId::new(PortSpace::Ib, forged.victim.port()),
        ca_guid: u64::from(id),
        reserved_24: 0,
        qkey: 0,
        qpn: QpNumber::new(id & 0xff_ffff | 2),
        responder_resources: 0,
        eecn: 0,
        initiator_depth: 16,
        remote_eecn: 0,
        remote_timeout: 20,
        transport: if forged.is_rc { TransportType::RC } else { TransportType::XRC },
        flow_control: false,
        starting_psn: Psn::new(id & 0xff_ffff),
        local_timeout: 20,
        retry_count: 7,
        pkey: PKEY_DEFAULT,
        mtu: 3,
        rdc_exists: false,
        rnr_retry: 7,
        max_cm_retries: 15,
        srq: forged.is_rc,
        primary: Path {
            local_lid: 0xffff,
            remote_lid: 0xffff,
            local_gid: Gid::from(claimed.ip()),
            remote_gid: Gid::from(forged.victim.ip()),
            hop_limit: 64,
            ack_timeout: 15,
            ..Path::default()
        },
        alternate: Path::default(),
        private,
    }
}
