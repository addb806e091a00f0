//! Distribution of the datagrams for one address among several processes.
//!
//! The holder of the device's port forwards datagrams to other members in messages that contain bundles of datagrams,
//! with their addresses and the results of the ICRC checks. The receiver makes all other checks, as for datagrams from
//! UDP. Only the UDP link calls this module. The relay parses a datagram only to determine its addressee, and does not
//! trust its content. It does not queue: datagrams for which a member's socket lacks room are dropped and counted.
//!
//! | datagram for | is passed to |
//! |---|---|
//! | the peer of a one-flow connection of this member | the holder, which sends it from the device's port |
//! | a TGT that processes share | the member that executes the TGT |
//! | another QP | the member that owns the QP's number |
//! | QP 1, with a REQ or SIDR_REQ | the member that listens for the service at the address |
//! | QP 1, with another CM message | the member whose slot is in the remote comm id of the message |
//! | anything else | no other member; the holder receives and counts it |
#![forbid(unsafe_code)]

#[cfg(test)]
mod tests;

use super::{Datagram, MAX_DATAGRAM_BYTES, Origin, ReceiveBatch, SendBatch, Verdict};
use crate::host::{Host, MAX_MESSAGE_BYTES, MemberId, Members, PortHolder, Received, Targets};
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::sync::Arc;
use trunkline_roce::wire::cm::{CmMessage, ServiceId};
use trunkline_roce::wire::{Bth, ICRC_LENGTH, Mad, Packet, QP1};
use trunkline_verbs::{Counter, Time};

/// Kind of messages that contain datagrams. All other kinds are for the device.
const DATAGRAMS: u8 = 1;
/// Header of a datagram in a bundle: length 2, family 1, source port 2 and address 16, scope 4,
/// destination port 2 and address 16, origin 1.
const HEADER_BYTES: usize = 44;
/// Bits of the origin. The two bits between these contain the index in [`VERDICTS`].
const IS_MEMBER: u8 = 1;
const IS_MARKED: u8 = 8;
const VERDICTS: [Option<Verdict>; 4] = [
    None,
    Some(Verdict::Taken { is_soft: true }),
    Some(Verdict::Taken { is_soft: false }),
    Some(Verdict::Unsure),
];

/// Maximum number of unsent bundles. If another bundle is needed, all are sent.
const MAX_BUNDLES: usize = 8;
/// Maximum number of messages read at a time.
const MESSAGES_IN_TURN: usize = 64;
/// Maximum number of stored connection requests.
const MAX_REQUESTS: usize = 1024;
/// Number of receives after which the other members are polled again if the last poll did not find messages. They are
/// always polled before the device sleeps.
const LOOK_EVERY: u32 = 8;
/// Time after which the next receive polls the other members, in nanoseconds.
const LOOK_AFTER_NS: u64 = 1_000_000;

/// Initiator's address and comm id, which identify a connection request.
type Request = (IpAddr, u32);

#[derive(Debug, Default)]
struct Counts {
    handed_on: u64,
    not_handed_on: u64,
    taken: u64,
    sent_for_others: u64,
    nonsense: u64,
}

/// Forwards datagrams to other members, and receives the datagrams that they forward.
#[derive(Debug)]
pub(super) struct Relay {
    members: Arc<Members>,
    /// Table of shared TGTs, whose executors can change.
    targets: Option<Arc<Targets>>,
    bundles: Vec<(MemberId, Vec<u8>)>,
    /// Buffers of sent bundles, for reuse.
    spare: Vec<Vec<u8>>,
    /// The bundle that was received last; the bytes before `at` are handled.
    arrived: Vec<u8>,
    at: usize,
    /// Service of each request, and the member that got the request. Used when a request is withdrawn, or is
    /// repeated after its listener has closed.
    requests: HashMap<Request, (ServiceId, MemberId)>,
    /// Number of receives since the last poll of the other members.
    looks: u32,
    /// Time of the last poll of the other members; `None` if the next `take` must poll them.
    looked: Option<Time>,
    counts: Counts,
}

impl Relay {
    pub(super) fn new(members: Arc<Members>, targets: Option<Arc<Targets>>) -> Self {
        Self {
            members,
            targets,
            bundles: Vec::new(),
            spare: Vec::new(),
            arrived: Vec::new(),
            at: 0,
            requests: HashMap::new(),
            looks: 0,
            looked: None,
            counts: Counts::default(),
        }
    }

    pub(super) fn host(&self) -> &Host {
        self.members.host()
    }

    pub(super) fn members(&self) -> &Members {
        &self.members
    }

    /// Returns the member to which a datagram is addressed, if it is another member.
    pub(super) fn owner(&mut self, datagram: Datagram<'_>) -> Option<MemberId> {
        let bth = Bth::parse(datagram.bytes).ok()?;
        let owner = if bth.destination == QP1 {
            self.addressee(datagram)
        } else {
            let number = bth.destination.get();
            let executor = self.targets.as_ref().and_then(|targets| targets.executor_of(number));
            executor.or_else(|| self.host().owner_of(number))
        };
        owner.filter(|owner| *owner != self.host().me())
    }

    /// Adds a datagram to the bundle for its owner.
    pub(super) fn hand_on(&mut self, to: MemberId, datagram: Datagram<'_>, origin: Origin) {
        let length = HEADER_BYTES + datagram.bytes.len();
        let has_room =
            |bundle: &(MemberId, Vec<u8>)| bundle.0 == to && bundle.1.len() + length <= MAX_MESSAGE_BYTES;
        let place = match self.bundles.iter().position(has_room) {
            Some(place) => place,
            None => {
                if self.bundles.len() >= MAX_BUNDLES {
                    self.flush();
                }
                let empty = self.spare.pop().unwrap_or_else(|| Vec::with_capacity(MAX_MESSAGE_BYTES));
                self.bundles.push((to, empty));
                self.bundles.len() - 1
            }
        };
        write(datagram, origin, &mut self.bundles[place].1);
    }

    /// Adds a datagram whose source is the device's port to the bundle for the member that holds the port.
    /// Returns false if no other member holds it.
    pub(super) fn send_through_holder(&mut self, datagram: Datagram<'_>) -> bool {
        let PortHolder::Alive(holder) = self.host().port_holder(datagram.source.ip()) else { return false };
        let is_other = holder != self.host().me();
        if is_other {
            self.hand_on(holder, datagram, Origin { is_member: true, ..Origin::default() });
        }
        is_other
    }

    pub(super) fn flush(&mut self) {
        for (to, mut bundle) in self.bundles.drain(..) {
            let datagrams = Pieces { bytes: &bundle }.count() as u64;
            match self.members.send(to, DATAGRAMS, &[&bundle]) {
                Ok(()) => self.counts.handed_on += datagrams,
                // The peer retransmits the packets.
                Err(_) => self.counts.not_handed_on += datagrams,
            }
            bundle.clear();
            self.spare.push(bundle);
        }
    }

    /// Fills up to half of an empty batch with datagrams that other members forward to this one at open
    /// addresses, and takes datagrams that they send through this member. The other half is left to UDP, so
    /// that neither source starves the other. Returns true if a member was lost. `now` is the time of the
    /// link's turn; if it is `None`, the other members are always polled.
    pub(super) fn take(&mut self, place: &mut RelayPlace<'_>, now: Option<Time>) -> bool {
        self.looks += 1;
        let is_recent = now.zip(self.looked).is_some_and(|(now, looked)| now.since(looked) < LOOK_AFTER_NS);
        if is_recent && self.looks < LOOK_EVERY && self.at == self.arrived.len() {
            return false;
        }
        (self.looks, self.looked) = (0, now);
        let mut lost = false;
        let mut has_received = false;
        for _ in 0..MESSAGES_IN_TURN {
            self.unpack(place);
            if is_half_full(place.batch) {
                break;
            }
            match self.members.receive(DATAGRAMS, &mut self.arrived) {
                None => break,
                Some(Received::Message) => self.at = 0,
                Some(Received::Queued) => {}
                Some(Received::Lost) => lost = true,
            }
            has_received = true;
        }
        if has_received {
            self.look_soon();
        }
        lost
    }

    /// Returns true if `take` would read a message. The next `take` then polls the other members.
    pub(super) fn is_readable(&mut self) -> bool {
        let readable = self.has_arrivals();
        if readable {
            self.look_soon();
        }
        readable
    }

    /// Returns true if all datagrams read from the sockets were delivered.
    pub(super) fn is_drained(&self) -> bool {
        self.at == self.arrived.len() && self.members.is_drained()
    }

    /// Returns true if `take` would read a message. Does not affect the next `take`.
    pub(super) fn has_arrivals(&self) -> bool {
        self.at < self.arrived.len() || self.members.has_arrivals()
    }

    pub(super) fn counters(&self, into: &mut Vec<Counter>) {
        into.extend([
            Counter { name: "relayed_to_members", value: self.counts.handed_on },
            Counter { name: "relayed_from_members", value: self.counts.taken },
            Counter { name: "sent_for_members", value: self.counts.sent_for_others },
            Counter { name: "drop_not_relayed", value: self.counts.not_handed_on },
            Counter { name: "drop_relayed_nonsense", value: self.counts.nonsense },
        ]);
        self.members.counters(into);
    }

    /// Returns the member to which a datagram for QP 1 is addressed.
    fn addressee(&mut self, datagram: Datagram<'_>) -> Option<MemberId> {
        let body = datagram.bytes.get(..datagram.bytes.len().checked_sub(ICRC_LENGTH)?)?;
        let mad = Mad::from_packet(&Packet::parse(body).ok()?)?;
        if !mad.header.is_cm() {
            return None;
        }
        match CmMessage::parse(&mad) {
            CmMessage::Req(req) => self.listening(datagram, req.local_id, req.service_id),
            CmMessage::SidrReq(req) => self.listening(datagram, req.request_id, req.service_id),
            // The peer withdraws its request before it has received the comm id of this side.
            CmMessage::Rej(rej) if rej.remote_id == 0 => {
                self.requests.get(&(datagram.source.ip(), rej.local_id)).map(|(_, owner)| *owner)
            }
            message => self.host().owner_of_comm_id(message.remote_id()?),
        }
    }

    /// Returns the member that listens for the requested service, or otherwise the member that listened when
    /// the request first arrived.
    fn listening(&mut self, datagram: Datagram<'_>, id: u32, service: ServiceId) -> Option<MemberId> {
        let request = (datagram.source.ip(), id);
        match self.host().service_owner(service.0, datagram.destination.ip()) {
            Some(owner) => {
                self.remember(request, service, owner);
                Some(owner)
            }
            None => self.requests.get(&request).filter(|(of, _)| *of == service).map(|(_, owner)| *owner),
        }
    }

    fn remember(&mut self, request: Request, service: ServiceId, owner: MemberId) {
        if self.requests.len() >= MAX_REQUESTS && !self.requests.contains_key(&request) {
            // Forged requests can displace others. This affects only repeated requests whose listener has
            // closed.
            self.requests.clear();
        }
        self.requests.insert(request, (service, owner));
    }

    /// Makes the next `take` poll the other members.
    fn look_soon(&mut self) {
        self.looked = None;
    }

    fn unpack(&mut self, place: &mut RelayPlace<'_>) {
        while self.at < self.arrived.len() && !is_half_full(place.batch) {
            let mut pieces = Pieces { bytes: &self.arrived[self.at..] };
            let datagram = pieces.next();
            self.at = self.arrived.len() - pieces.bytes.len();
            match datagram.flatten() {
                Some((datagram, origin)) if (place.is_open)(datagram.destination) => {
                    place.batch.push_from(datagram, origin);
                    self.counts.taken += 1;
                }
                Some((datagram, _)) if (place.is_main)(datagram.source) => {
                    place.sent.push(datagram);
                    self.counts.sent_for_others += 1;
                }
                _ => self.counts.nonsense += 1,
            }
        }
    }
}

/// Destinations of the datagrams received from other members.
pub(super) struct RelayPlace<'a> {
    /// Receives the datagrams that other members forward to this one.
    pub(super) batch: &'a mut ReceiveBatch,
    /// Receives the datagrams that other members send from the device's port, which this one holds.
    pub(super) sent: &'a mut SendBatch,
    /// Returns true if this member receives at a local address and port.
    pub(super) is_open: &'a dyn Fn(SocketAddr) -> bool,
    /// Returns true if this member holds the device's port at an address.
    pub(super) is_main: &'a dyn Fn(SocketAddr) -> bool,
}

fn is_half_full(batch: &ReceiveBatch) -> bool {
    batch.used() >= batch.capacity().div_ceil(2)
}

/// Appends a datagram to a bundle.
fn write(datagram: Datagram<'_>, origin: Origin, bundle: &mut Vec<u8>) {
    let (source, destination) = (datagram.source, datagram.destination);
    let scope = match source {
        SocketAddr::V4(_) => 0,
        SocketAddr::V6(v6) => v6.scope_id(),
    };
    let length = u16::try_from(datagram.bytes.len()).unwrap_or(u16::MAX);
    bundle.extend(length.to_le_bytes());
    bundle.push(if source.is_ipv4() { 4 } else { 6 });
    bundle.extend(source.port().to_le_bytes());
    bundle.extend(field(source.ip()));
    bundle.extend(scope.to_le_bytes());
    bundle.extend(destination.port().to_le_bytes());
    bundle.extend(field(destination.ip()));
    bundle.push(byte_of(origin));
    bundle.extend_from_slice(&datagram.bytes[..usize::from(length)]);
}

fn byte_of(origin: Origin) -> u8 {
    let verdict = VERDICTS.iter().zip(0u8..).find(|(verdict, _)| **verdict == origin.verdict);
    verdict.map_or(0, |(_, code)| code << 1)
        | if origin.is_member { IS_MEMBER } else { 0 }
        | if origin.is_marked { IS_MARKED } else { 0 }
}

fn origin_of(byte: u8) -> Origin {
    Origin {
        is_member: byte & IS_MEMBER != 0,
        verdict: VERDICTS[usize::from(byte >> 1 & 3)],
        is_marked: byte & IS_MARKED != 0,
    }
}

fn field(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(v4) => u128::from(v4.to_bits()).to_be_bytes(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// Iterator over the datagrams of a bundle. Yields `None` for a malformed datagram, and ends there.
struct Pieces<'a> {
    bytes: &'a [u8],
}

impl<'a> Iterator for Pieces<'a> {
    type Item = Option<(Datagram<'a>, Origin)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.bytes.is_empty() {
            return None;
        }
        let piece = split(self.bytes);
        self.bytes = piece.map_or(&[], |(_, _, rest)| rest);
        Some(piece.map(|(datagram, origin, _)| (datagram, origin)))
    }
}

fn split(bytes: &[u8]) -> Option<(Datagram<'_>, Origin, &[u8])> {
    let (header, rest) = bytes.split_first_chunk::<HEADER_BYTES>()?;
    let half = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
    let scope = u32::from_le_bytes([header[21], header[22], header[23], header[24]]);
    let address = |at: usize, port: u16| -> Option<SocketAddr> {
        let octets: [u8; 16] = header.get(at..at + 16)?.try_into().ok()?;
        match header[2] {
            4 => {
                let word = u32::try_from(u128::from_be_bytes(octets)).ok()?;
                Some(SocketAddr::new(Ipv4Addr::from_bits(word).into(), port))
            }
            6 => Some(SocketAddrV6::new(Ipv6Addr::from(octets), port, 0, scope).into()),
            _ => None,
        }
    };
    let length = usize::from(half(0));
    let is_sane = length <= MAX_DATAGRAM_BYTES;
    let (body, rest) = rest.split_at_checked(length).filter(|_| is_sane)?;
    let datagram =
        Datagram { source: address(5, half(3))?, destination: address(27, half(25))?, bytes: body };
    Some((datagram, origin_of(header[43]), rest))
}
