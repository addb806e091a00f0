//! Forged connection requests, and rules for the nodes that receive them.
//!
//! Owns the forged requests and a record of the resulting traffic. The network passes each datagram to this module. A
//! rule is violated if a node
//!
//! - accepts a request from an unproven sender, at any address;
//! - sends more than 1.2 times the bytes that it received from an unproven address;
//! - dials a stranger that has proved its address from more than one of its INIs before the first dial is answered.
//!
//! A stranger proves its address by returning the cookie that it receives, and sends nothing else.

use super::forged::{Forged, PORT, cm_message_of, packet_of};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use trunkline_roce::wire::ROCE_PORT;
use trunkline_roce::wire::cm::{CmMessage, Rej};
use trunkline_softrdma::link::Datagram;
use trunkline_testkit::{Hello, Random};
use trunkline_verbs::Psn;

/// Incarnation claimed by strangers.
const EPOCH: u64 = 0x7374_7261_6e67_6572;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sender {
    /// Another host that claims an unused address.
    Nowhere,
    /// Another host that claims to be a restarted node.
    InTheNameOf(SocketAddr),
    /// A host with a separate address that returns the cookie it receives and sends nothing else.
    Present,
    /// A process at a node's address that claims to be the restarted node and returns the cookie it receives.
    Neighbour(SocketAddr),
    /// Like [`Sender::Present`], but as one of many numbered nodes on one host.
    Crowd(u16),
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Request {
    pub(crate) sender: Sender,
    pub(crate) victim: SocketAddr,
    pub(crate) pollers: u16,
    pub(crate) is_rc: bool,
    pub(crate) has_handshake: bool,
}

/// All requests forged in a run.
#[derive(Debug, Default)]
pub(crate) struct Strangers {
    /// Forged requests by claimed address and communication ID, each with the address of the claimed listener.
    forged: BTreeMap<(IpAddr, u32), (Request, SocketAddr)>,
    /// Requests for which a cookie was returned.
    proven: BTreeSet<(IpAddr, u32)>,
    /// Numbers of bytes received from and sent to each unused address.
    traded: BTreeMap<IpAddr, (usize, usize)>,
    /// Communication IDs in requests from nodes to strangers that own their address.
    dialled: BTreeMap<IpAddr, BTreeSet<u32>>,
    broken: Option<String>,
}

impl Strangers {
    pub(crate) fn broken(&self) -> Option<&str> {
        self.broken.as_deref()
    }

    pub(crate) fn forge(&mut self, request: Request) -> Forged {
        let [.., high, low] = self.forged.len().to_be_bytes();
        let own = SocketAddr::from(([10, 66, high, low], 7471));
        let claimed = match request.sender {
            Sender::Crowd(number) => {
                SocketAddr::new(IpAddr::from([10, 67, 0, 1]), own.port().saturating_add(number))
            }
            Sender::InTheNameOf(node) | Sender::Neighbour(node) => node,
            Sender::Present => {
                self.dialled.insert(own.ip(), BTreeSet::new());
                own
            }
            Sender::Nowhere => own,
        };
        let (_, sent) = self.request(request, claimed, [0; 16]);
        if request.sender == Sender::Nowhere {
            self.traded.insert(own.ip(), (sent.bytes.len(), 0));
        }
        sent
    }

    /// Checks a datagram sent by a node. Returns the answer of the stranger, if there is one.
    pub(crate) fn see(&mut self, datagram: &Datagram<'_>) -> Option<Forged> {
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
        match cm_message_of(packet_of(datagram.bytes)?)? {
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

    /// Handles a refusal. A stranger that owns its address returns the cookie in the refusal once.
    fn refused(&mut self, to: IpAddr, rej: &Rej) -> Option<Forged> {
        let (request, claimed) = *self.forged.get(&(to, rej.remote_id))?;
        let cookie = Hello::cookie_in(&rej.private)?;
        let is_there = matches!(request.sender, Sender::Present | Sender::Crowd(_) | Sender::Neighbour(_));
        let of_claimed =
            |one: &(IpAddr, u32)| self.forged.get(one).is_some_and(|(_, other)| *other == claimed);
        let is_once = !matches!(request.sender, Sender::Neighbour(_));
        if !is_there || is_once && self.proven.iter().any(of_claimed) {
            return None;
        }
        let (id, sent) = self.request(request, claimed, cookie);
        self.proven.insert((to, id));
        Some(sent)
    }

    /// Builds the request that a device with the claimed address and this communication ID would send.
    fn request(&mut self, forged: Request, claimed: SocketAddr, cookie: [u8; 16]) -> (u32, Forged) {
        let Request { pollers, is_rc, has_handshake, victim, sender } = forged;
        let number = u32::try_from(self.forged.len()).unwrap_or(0) + 1;
        // A neighbour claims a new incarnation each time, which requires a new cookie.
        let epoch = match sender {
            Sender::Neighbour(_) if cookie != [0; 16] => EPOCH + u64::from(number) - 1,
            Sender::Neighbour(_) => EPOCH + u64::from(number),
            _ => EPOCH,
        };
        let hello = Hello { pollers, is_rc, has_handshake, cookie, ..Hello::new(claimed.port(), epoch) };
        let (id, mad) = hello.request(claimed.ip(), victim, &mut Random(number.into()));
        self.forged.insert((claimed.ip(), id), (forged, claimed));
        // The source is another user on the claimed host, or another host that claims the device port.
        let port = if number.is_multiple_of(2) { ROCE_PORT } else { PORT };
        let source = SocketAddr::new(claimed.ip(), port);
        (id, Forged::mad(source, victim.ip(), Psn::new(number), &mad))
    }
}
