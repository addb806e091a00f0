//! Recognition of peers that are not software devices, and of the IPv4 identifications of their packets.
//!
//! The ICRC covers the identification of the IPv4 header, which an ordinary socket does not report (contract rocev2
//! 5.7). Software devices send 0, or 0 to 63 in segments, so these values are tried first. For other senders, such as a
//! NIC or the kernel's rxe, the identification is computed from the ICRC. This is done only for addresses that never
//! sent a packet of a software device, and the result is accepted only if it is close to the identification of another
//! packet. Owns the state of each sender, separately for each local address, since a kernel uses one counter for all
//! its packets between two addresses. The link has each packet judged on arrival, including packets that it forwards to
//! other processes at the address. The process that holds port 4791, the only port to which foreign peers send,
//! therefore observes all identifications. The other processes use its verdicts.
//!
//! | known as | packet with identification 0 | packet with another identification |
//! |---|---|---|
//! | nothing | taken; soft from now on | a candidate; unsure |
//! | candidate | taken; soft from now on | close to the candidate's last: taken, and foreign from now on; else unsure |
//! | soft | taken | a segment's, below 64: taken; else refused |
//! | foreign | as any other | within the window, or close to the last one outside it: taken; else unsure |
//!
//! A foreign peer that has left its window is recognised again by the second of two packets that are close to each
//! other. An unsure packet is dropped, unless it is a management datagram, or an acknowledgement of a PSN that is
//! outstanding at the named QP. An acknowledgement may be a fatal NAK, which is sent only once. All other packets are
//! retransmitted.
//!
//! # Odds
//! One in 65,536 corrupted packets has the right ICRC for one of the 65,536 identifications. That identification must
//! also be within 64 of one of two earlier identifications, plus one for each millisecond in between. A corrupted
//! packet of a foreign peer is therefore taken once in 65,536 * 65,536 / 258, or 16 million. A corrupted
//! acknowledgement that is unsure is taken once in 65,536 if the corruption spares the fields that make it plausible:
//! addresses, QP and PSN. These checks do not protect against forgers, who can compute the ICRC.
//!
//! The soft state is permanent by design. An attacker that forges one packet with identification 0 from a NIC or rxe,
//! before that peer's own first packets, makes the device reject the peer's packets until the device is opened again,
//! or until the table is full. A failed connection is counted (`drop_bad_icrc`). An attacker can also make a soft peer
//! foreign, before its first packets or after filling the table. Connections are not affected: a soft peer names its
//! kind in the messages of the connection manager, and packets for its QPs are judged by that kind. The first of them
//! makes the peer soft again. QPs that a program connects without the connection manager depend on the table.

use crate::device::tables::guid::is_soft;
use crate::link::{Datagram, Judge, Verdict};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use trunkline_roce::wire::IpUdp;
use trunkline_roce::wire::icrc::{self, Flow, MAX_SEGMENTS, SegmentDifferences};
use trunkline_verbs::Time;

/// Maximum number of stored address pairs. Forged sources can fill the table, but cannot grow it.
const MAX_PEERS: usize = 4096;
/// Maximum distance between the identifications of two consecutive packets.
const WINDOW: u64 = 64;

/// The sender's address and the local address.
type AddressPair = (IpAddr, IpAddr);

#[derive(Debug, Clone, Copy)]
enum SenderKind {
    Soft,
    Candidate {
        last: Identification,
    },
    Foreign {
        last: Identification,
        /// Last identification that was outside the window; a second one close to it moves the window.
        stray: Option<Identification>,
    },
}

/// The identification of a packet, and the packet's time of arrival.
#[derive(Debug, Clone, Copy)]
struct Identification {
    value: u16,
    at: Time,
}

/// Judges the datagrams that a link receives.
#[derive(Debug)]
pub(super) struct Checker<'a> {
    pub(super) peers: &'a mut Peers,
    pub(super) now: Time,
}

impl Judge for Checker<'_> {
    fn now(&self) -> Time {
        self.now
    }

    fn judge(&mut self, datagram: Datagram<'_>) -> Option<Verdict> {
        self.peers.check(&datagram, self.now)
    }
}

/// Known senders.
#[derive(Debug, Default)]
pub(super) struct Peers {
    known: BTreeMap<AddressPair, SenderKind>,
    /// Data of the soft peer that sent the last packet, cached to avoid a look-up for its next packet.
    last_soft: Option<LastSoft>,
}

/// Source and destination of a packet, and the flow of its ICRC.
#[derive(Debug)]
struct LastSoft {
    source: SocketAddr,
    destination: SocketAddr,
    /// Flow for computing the ICRC. Its headers differ from the received headers if an address translator changed them.
    flow: Flow,
    /// Identification of the last segment from the peer.
    identification: u16,
    differences: SegmentDifferences,
}

impl LastSoft {
    fn new(datagram: &Datagram<'_>, covered: &IpUdp) -> Self {
        Self {
            source: datagram.source,
            destination: datagram.destination,
            flow: Flow::new(covered),
            identification: 0,
            differences: SegmentDifferences::default(),
        }
    }

    /// Returns true if the ICRC is right for identification 0 or a segment's identification.
    fn check(&mut self, bytes: &[u8]) -> bool {
        match self.flow.difference(bytes) {
            Some(0) => {
                self.identification = 0;
                true
            }
            Some(difference) => self.check_segment(difference, bytes.len()),
            None => false,
        }
    }

    /// Returns true if the ICRC differs by the identification of a segment, most likely the one after the last.
    #[inline(never)]
    fn check_segment(&mut self, difference: u32, length: usize) -> bool {
        if self.flow.headers().source.is_ipv6() {
            return false;
        }
        let next = self.identification + 1;
        let is_next = next < MAX_SEGMENTS && self.differences.of(next, length) == difference;
        let found = if is_next { Some(next) } else { icrc::identification_of(difference, length) };
        let segment = found.filter(|found| *found < MAX_SEGMENTS);
        self.identification = segment.unwrap_or(0);
        segment.is_some()
    }
}

impl Peers {
    /// Returns true if the sender is known to be a software device. Only the identifications of segments are accepted
    /// from it.
    pub(super) fn is_soft(&self, pair: AddressPair) -> bool {
        let is_last =
            self.last_soft.as_ref().is_some_and(|last| (last.source.ip(), last.destination.ip()) == pair);
        is_last || matches!(self.known.get(&pair), Some(SenderKind::Soft))
    }

    /// Checks the ICRC of a datagram. Returns `None` if the ICRC is wrong. The ICRC is computed from the headers of the
    /// datagram, or from the headers of the last [`Peers::check_translated`].
    pub(super) fn check(&mut self, datagram: &Datagram<'_>, now: Time) -> Option<Verdict> {
        let Datagram { source, destination, bytes } = *datagram;
        let taken = Verdict::Taken { is_soft: true };
        let headers = IpUdp::new(source, destination);
        if let Some(last) = &mut self.last_soft
            && (last.source, last.destination) == (source, destination)
        {
            let is_right = last.check(bytes)
                || *last.flow.headers() != headers && LastSoft::new(datagram, &headers).check(bytes);
            return is_right.then_some(taken);
        }
        let pair = (source.ip(), destination.ip());
        if self.is_soft(pair) {
            let last = self.last_soft.insert(LastSoft::new(datagram, &headers));
            return last.check(bytes).then_some(taken);
        }
        if pair.0.is_ipv6() {
            return icrc::check(&headers, datagram.bytes).then_some(Verdict::Taken { is_soft: false });
        }
        let identification = icrc::solve_identification(&headers, datagram.bytes)?;
        Some(self.judge(pair, identification, now))
    }

    /// Checks the ICRC of a datagram against `covered`, the headers that the datagram had before address
    /// translation. Accepts only packets of software devices.
    pub(super) fn check_translated(&mut self, datagram: &Datagram<'_>, covered: &IpUdp) -> Option<Verdict> {
        let mut last = LastSoft::new(datagram, covered);
        if !last.check(datagram.bytes) {
            return None;
        }
        let taken = Verdict::Taken { is_soft: true };
        self.inherit(datagram, taken);
        self.last_soft = Some(last);
        Some(taken)
    }

    /// Judges an IPv4 datagram for a QP whose peer has named itself a software device. Returns `None` if a software device
    /// does not send such a packet. Otherwise the sender is soft from now on, whatever it was taken for.
    #[cold]
    pub(super) fn check_named_soft(&mut self, datagram: &Datagram<'_>) -> Option<Verdict> {
        let headers = IpUdp::new(datagram.source, datagram.destination);
        if !LastSoft::new(datagram, &headers).check(datagram.bytes) {
            return None;
        }
        let taken = Verdict::Taken { is_soft: true };
        self.inherit(datagram, taken);
        Some(taken)
    }

    /// Records the verdict of the process that received a datagram.
    pub(super) fn inherit(&mut self, datagram: &Datagram<'_>, verdict: Verdict) {
        let pair = (datagram.source.ip(), datagram.destination.ip());
        if verdict == (Verdict::Taken { is_soft: true }) && !self.is_soft(pair) {
            self.remember(pair, SenderKind::Soft);
        }
    }

    /// Judges an IPv4 packet from a peer that is not soft. `identification` is the identification for which the
    /// packet's ICRC is right.
    fn judge(&mut self, pair: AddressPair, identification: u16, now: Time) -> Verdict {
        let seen = Identification { value: identification, at: now };
        let (next, verdict) = match self.known.get(&pair).copied() {
            Some(SenderKind::Foreign { last, stray }) => seen.after_foreign(last, stray),
            _ if identification == 0 => (SenderKind::Soft, Verdict::Taken { is_soft: true }),
            Some(SenderKind::Candidate { last }) if seen.follows(last) => {
                (SenderKind::Foreign { last: seen, stray: None }, Verdict::Taken { is_soft: false })
            }
            _ => (SenderKind::Candidate { last: seen }, Verdict::Unsure),
        };
        self.remember(pair, next);
        verdict
    }

    /// Records the CA GUID that a peer sent in a message of the connection manager.
    pub(super) fn saw_guid(&mut self, pair: AddressPair, guid: u64) {
        if is_soft(guid) && !matches!(self.known.get(&pair), Some(SenderKind::Foreign { .. })) {
            self.remember(pair, SenderKind::Soft);
        }
    }

    fn remember(&mut self, pair: AddressPair, peer: SenderKind) {
        if self.known.len() >= MAX_PEERS && !self.known.contains_key(&pair) {
            // Candidates are the cheapest to forge and the cheapest to add again.
            self.known.retain(|_, known| !matches!(known, SenderKind::Candidate { .. }));
            if self.known.len() >= MAX_PEERS {
                self.known.clear();
                self.last_soft = None;
            }
        }
        self.known.insert(pair, peer);
    }
}

impl Identification {
    /// Returns the state of a foreign peer after a packet with this identification, and the verdict on the
    /// packet.
    fn after_foreign(self, last: Self, stray: Option<Self>) -> (SenderKind, Verdict) {
        let taken = Verdict::Taken { is_soft: false };
        if self.follows(last) {
            // A reordered packet does not move the window back.
            let is_behind = last.value.wrapping_sub(self.value) <= u16::MAX / 2;
            let last = if is_behind { Self { at: self.at, ..last } } else { self };
            return (SenderKind::Foreign { last, stray }, taken);
        }
        match stray {
            Some(stray) if self.follows(stray) => (SenderKind::Foreign { last: self, stray: None }, taken),
            _ => (SenderKind::Foreign { last, stray: Some(self) }, Verdict::Unsure),
        }
    }

    /// Returns true if this identification closely follows `last`, or precedes it because of reordering. Close means a
    /// distance of at most 64. If `self` is ahead, each millisecond between the packets adds 1, since the sender may
    /// have served other peers.
    fn follows(self, last: Self) -> bool {
        let waited_ms = self.at.saturating_duration_since(last.at).as_millis();
        let window = WINDOW.saturating_add(u64::try_from(waited_ms).unwrap_or(u64::MAX));
        let ahead = u64::from(self.value.wrapping_sub(last.value));
        let behind = u64::from(last.value.wrapping_sub(self.value));
        ahead <= window || behind <= WINDOW
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const SOFT: Verdict = Verdict::Taken { is_soft: true };
    const FOREIGN: Verdict = Verdict::Taken { is_soft: false };

    fn pair() -> AddressPair {
        (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]))
    }

    #[test]
    fn one_trunkline_packet_marks_peer_as_soft() {
        let (mut peers, now) = (Peers::default(), Time(1));
        assert_eq!(peers.judge(pair(), 7, now), Verdict::Unsure);
        assert_eq!(peers.judge(pair(), 0, now), SOFT);
        assert!(peers.is_soft(pair()));
    }

    #[test]
    fn trunkline_guid_marks_peer_as_soft() {
        let mut peers = Peers::default();
        peers.saw_guid(pair(), 0x5054_00ff_fe00_0001);
        assert!(!peers.is_soft(pair()));
        peers.saw_guid(pair(), crate::device::tables::guid::node_guid(None));
        assert!(peers.is_soft(pair()));
    }

    #[test]
    fn segments_of_soft_peer_are_accepted_and_other_identifications_are_not() {
        let (mut peers, now) = (Peers::default(), Time(1));
        let (source, destination) = (SocketAddr::new(pair().0, 50_000), SocketAddr::new(pair().1, 4791));
        let mut check = |v4_identification: u16, corruption: u8| {
            let mut packet = vec![0x5a; 100];
            icrc::append(&IpUdp { v4_identification, ..IpUdp::new(source, destination) }, &mut packet);
            packet[50] ^= corruption;
            peers.check(&Datagram { source, destination, bytes: &packet }, now)
        };
        assert_eq!(check(0, 0), Some(SOFT));
        for identification in [0, 1, 2, 0, 1, 63, 5, 6, 0, 0] {
            assert_eq!(check(identification, 0), Some(SOFT), "{identification}");
        }
        for identification in [64, 65, 1000, 0xffff] {
            assert_eq!(check(identification, 0), None, "{identification}");
        }
        assert_eq!([check(0, 1), check(1, 1), check(2, 0)], [None, None, Some(SOFT)]);
    }

    #[test]
    fn two_consecutive_identifications_make_peer_foreign() {
        let (mut peers, now) = (Peers::default(), Time(1));
        let mut judge = |identification| peers.judge(pair(), identification, now);
        assert_eq!(judge(1000), Verdict::Unsure);
        assert_eq!(judge(9000), Verdict::Unsure, "not close");
        assert_eq!(judge(9001), FOREIGN);
        assert_eq!(judge(9003), FOREIGN);
        assert_eq!(judge(9002), FOREIGN, "reordered");
        assert_eq!(judge(9003 + 64), FOREIGN);
        assert_eq!(judge(20_000), Verdict::Unsure);
        assert_eq!(judge(9003 + 65), FOREIGN, "the window is where it was");
    }

    #[test]
    fn foreign_peer_outside_window_is_recognized_after_second_packet() {
        let (mut peers, now) = (Peers::default(), Time(1));
        let mut judge = |identification| peers.judge(pair(), identification, now);
        judge(100);
        judge(101);
        assert_eq!(judge(30_000), Verdict::Unsure);
        assert_eq!(judge(50_000), Verdict::Unsure, "as a corrupted packet would be");
        assert_eq!(judge(50_010), FOREIGN);
        assert_eq!(judge(50_011), FOREIGN);
        assert_eq!(judge(101), Verdict::Unsure, "the old window is closed");
    }

    #[test]
    fn identification_count_is_kept_per_local_address() {
        let (mut peers, now) = (Peers::default(), Time(1));
        let other = (pair().0, IpAddr::from([10, 0, 0, 3]));
        for step in 0..10 {
            let expected = if step == 0 { Verdict::Unsure } else { FOREIGN };
            assert_eq!(peers.judge(pair(), 100 + step, now), expected);
            assert_eq!(peers.judge(other, 40_000 + step, now), expected);
        }
    }

    #[test]
    fn window_of_foreign_peer_grows_with_its_silence_and_wraps() {
        let (mut peers, start) = (Peers::default(), Time(1));
        for identification in 0xfff0..0xfff3 {
            peers.judge(pair(), identification, start);
        }
        assert_eq!(peers.judge(pair(), 500, start), Verdict::Unsure);
        let later = start + Duration::from_secs(1);
        assert_eq!(peers.judge(pair(), 600, later), FOREIGN);
        assert_eq!(peers.judge(pair(), 0, later), Verdict::Unsure, "0 is an identification like others");
        assert!(!peers.is_soft(pair()));
    }

    #[test]
    fn forged_sources_do_not_grow_table() {
        let (mut peers, now) = (Peers::default(), Time(1));
        for address in 0..3 * MAX_PEERS {
            let address = u32::try_from(address).unwrap();
            peers.judge((IpAddr::from(address.to_be_bytes()), pair().1), 5, now);
        }
        assert!(peers.known.len() <= MAX_PEERS);
    }
}
