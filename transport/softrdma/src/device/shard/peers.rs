//! Whose ICRC may be solved for.
//!
//! The ICRC covers the identification of the IPv4 header, which an ordinary socket does not show
//! (contract rocev2 5.7). Our own kind sends 0; that is tried first. For other senders, a NIC or
//! the kernel's rxe, the identification is solved for, which weakens the check to one in 65,536.
//! So it is done only for addresses that never sent a packet of our own kind, and only
//! identifications that follow each other are believed. Owns what is known of each address.
//!
//! | known as | packet with identification 0 | packet that solves |
//! |---|---|---|
//! | nothing | taken; soft from now on | a candidate; management datagrams are taken |
//! | candidate | taken; soft from now on | taken with the third in a row close to each other; foreign from now on |
//! | soft | taken | refused |
//! | foreign | taken within the window | taken within the window |
//!
//! What is refused while a peer becomes foreign comes again by retransmission.
//!
//! Soft is permanent, and that is a choice: an attacker that forges one packet with identification 0 in
//! the name of a NIC or of rxe, before that peer's own first packets, keeps the device from
//! solving for that address until it is opened again, or until the table is full. With the opposite
//! choice, a forger could make a soft peer foreign and so weaken the check of its packets; a
//! connection that cannot be made is the lesser harm, and it is counted
//! (`drop_bad_icrc`). Once foreign, an address stays so.

use crate::device::guid::is_soft;
use crate::link::Datagram;
use std::collections::BTreeMap;
use std::net::IpAddr;
use trunkline_roce::wire::{IpUdp, icrc};
use trunkline_verbs::Time;

/// Addresses remembered at most. Forged sources can fill the table, never grow it.
const MAX_PEERS: usize = 4096;
/// Packets in a row that make a peer foreign.
const RUN: u8 = 3;
/// Identifications that may lie between two packets that follow each other at once.
const WINDOW: u64 = 64;

#[derive(Debug, Clone, Copy)]
enum Peer {
    Soft,
    Candidate { last: Identification, run: u8 },
    Foreign { last: Identification },
}

/// The identification of a packet, and when it came.
#[derive(Debug, Clone, Copy)]
struct Identification {
    value: u16,
    at: Time,
}

/// What to do with a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Judgement {
    /// It is what its sender sent.
    Take,
    /// It may be: for management datagrams that is enough.
    Unsure,
    /// It is not, or too much like chance.
    Refuse,
}

/// What is known of addresses.
#[derive(Debug, Default)]
pub(super) struct Peers {
    known: BTreeMap<IpAddr, Peer>,
    /// The soft peer that was seen last, so that its packets cost no look-up.
    last_soft: Option<IpAddr>,
}

impl Peers {
    /// Whether only identification 0 is worth a try.
    pub(super) fn is_soft(&self, source: IpAddr) -> bool {
        self.last_soft == Some(source) || matches!(self.known.get(&source), Some(Peer::Soft))
    }

    /// Checks the ICRC of a datagram; `None` when it is wrong.
    pub(super) fn check(&mut self, datagram: Datagram<'_>, now: Time) -> Option<Judgement> {
        let headers = IpUdp::new(datagram.source, datagram.destination);
        let source = datagram.source.ip();
        if source.is_ipv6() || self.is_soft(source) {
            return icrc::check(&headers, datagram.bytes).then_some(Judgement::Take);
        }
        let identification = icrc::solve_identification(&headers, datagram.bytes)?;
        Some(self.judge(source, identification, now))
    }

    /// Judges an IPv4 packet whose ICRC is right under `identification`.
    fn judge(&mut self, source: IpAddr, identification: u16, now: Time) -> Judgement {
        if identification == 0 && self.last_soft == Some(source) {
            return Judgement::Take;
        }
        let seen = Identification { value: identification, at: now };
        let next = match (self.known.get(&source).copied(), identification) {
            (Some(Peer::Foreign { last }), _) => {
                if !seen.follows(last) {
                    return Judgement::Refuse;
                }
                // One that was overtaken does not move the window back.
                let is_behind = last.value.wrapping_sub(seen.value) <= u16::MAX / 2;
                Peer::Foreign { last: if is_behind { Identification { at: now, ..last } } else { seen } }
            }
            (_, 0) => Peer::Soft,
            (Some(Peer::Soft), _) => return Judgement::Refuse,
            (Some(Peer::Candidate { last, run }), _) if seen.follows(last) => {
                if run + 1 >= RUN {
                    Peer::Foreign { last: seen }
                } else {
                    Peer::Candidate { last: seen, run: run + 1 }
                }
            }
            _ => Peer::Candidate { last: seen, run: 1 },
        };
        self.remember(source, next);
        match next {
            Peer::Soft | Peer::Foreign { .. } => Judgement::Take,
            Peer::Candidate { .. } => Judgement::Unsure,
        }
    }

    /// A peer has shown its CA GUID in a message of the connection manager.
    pub(super) fn saw_guid(&mut self, source: IpAddr, guid: u64) {
        if is_soft(guid) && !matches!(self.known.get(&source), Some(Peer::Foreign { .. })) {
            self.remember(source, Peer::Soft);
        }
    }

    fn remember(&mut self, source: IpAddr, peer: Peer) {
        if self.known.len() >= MAX_PEERS && !self.known.contains_key(&source) {
            // Candidates are the cheapest to forge and the cheapest to learn again.
            self.known.retain(|_, known| !matches!(known, Peer::Candidate { .. }));
            if self.known.len() >= MAX_PEERS {
                self.known.clear();
                self.last_soft = None;
            }
        }
        if matches!(peer, Peer::Soft) {
            self.last_soft = Some(source);
        }
        self.known.insert(source, peer);
    }
}

impl Identification {
    /// Whether it is close enough after another (or, reordered, before it): within 64, and one more for
    /// each millisecond in between, in which its sender may have served other peers.
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

    fn source() -> IpAddr {
        IpAddr::from([10, 0, 0, 1])
    }

    #[test]
    fn one_packet_of_our_kind_makes_a_peer_soft_for_good() {
        let (mut peers, now) = (Peers::default(), Time(1));
        assert_eq!(peers.judge(source(), 0, now), Judgement::Take);
        assert!(peers.is_soft(source()));
        for identification in 1..10 {
            assert_eq!(peers.judge(source(), identification, now), Judgement::Refuse);
        }
        assert_eq!(peers.judge(source(), 0, now), Judgement::Take);
    }

    #[test]
    fn a_guid_of_ours_makes_a_peer_soft() {
        let (mut peers, now) = (Peers::default(), Time(1));
        peers.saw_guid(source(), 0x5054_00ff_fe00_0001);
        assert!(!peers.is_soft(source()));
        peers.saw_guid(source(), crate::device::guid::node_guid(None));
        assert_eq!(peers.judge(source(), 7, now), Judgement::Refuse);
    }

    #[test]
    fn a_run_of_three_makes_a_peer_foreign() {
        let (mut peers, now) = (Peers::default(), Time(1));
        let mut judge = |identification| peers.judge(source(), identification, now);
        assert_eq!(judge(1000), Judgement::Unsure);
        assert_eq!(judge(1001), Judgement::Unsure);
        assert_eq!(judge(9000), Judgement::Unsure, "not close: the run starts again");
        assert_eq!(judge(9001), Judgement::Unsure);
        assert_eq!(judge(9003), Judgement::Take);
        assert_eq!(judge(9002), Judgement::Take, "reordered");
        assert_eq!(judge(9003 + 64), Judgement::Take);
        assert_eq!(judge(20_000), Judgement::Refuse);
    }

    #[test]
    fn the_window_of_a_foreign_peer_grows_with_its_silence_and_wraps() {
        let (mut peers, start) = (Peers::default(), Time(1));
        for identification in 0xfff0..0xfff3 {
            peers.judge(source(), identification, start);
        }
        assert_eq!(peers.judge(source(), 500, start), Judgement::Refuse);
        let later = start + Duration::from_secs(1);
        assert_eq!(peers.judge(source(), 500, later), Judgement::Take);
        assert_eq!(peers.judge(source(), 0, later), Judgement::Refuse, "0 is an identification like others");
        assert!(!peers.is_soft(source()));
    }

    #[test]
    fn forged_sources_do_not_grow_the_table() {
        let (mut peers, now) = (Peers::default(), Time(1));
        for address in 0..3 * MAX_PEERS {
            let address = u32::try_from(address).unwrap();
            peers.judge(IpAddr::from(address.to_be_bytes()), 5, now);
        }
        assert!(peers.known.len() <= MAX_PEERS);
    }
}
