//! Turns real packets into invalid ones.

use crate::forge::Seen;
use std::collections::HashSet;
use trunkline_roce::wire::cm::CmMessage;
use trunkline_roce::wire::{Mad, Opcode, Packet};
use trunkline_testkit::Random;
use trunkline_verbs::{IoAddress, Psn, QpNumber, RemoteAddress, Rkey, SrqNumber};

/// Maximum number of values kept per kind.
const KEPT: usize = 64;
/// The largest path MTU in bytes.
const LONGEST: usize = 4096;

/// QP numbers, SRQ numbers and keys from real packets, and the objects that forged packets must not name.
#[derive(Debug, Default)]
pub(super) struct Forge {
    protected_qps: HashSet<u32>,
    protected_ids: HashSet<u32>,
    qps: Vec<u32>,
    srqs: Vec<u32>,
    keys: Vec<u32>,
    /// Registered memory of the victim to which attacked connections have no access rights.
    pub(super) forbidden: Vec<RemoteAddress>,
}

impl Forge {
    pub(super) fn protect(&mut self, qps: impl IntoIterator<Item = u32>) {
        self.protected_qps.extend(qps);
    }

    /// Records the comm ids of protected QPs in a packet that was sent before the flood.
    pub(super) fn learn_ids(&mut self, seen: &Seen) {
        match message_of(seen.body()) {
            Some(CmMessage::Req(req)) if self.protected_qps.contains(&req.qpn.get()) => {
                self.protected_ids.insert(req.local_id);
            }
            Some(CmMessage::Rep(rep)) if self.protected_ids.contains(&rep.remote_id) => {
                self.protected_ids.insert(rep.local_id);
            }
            _ => {}
        }
    }

    /// Records the QP number, the SRQ number and the key in a real packet.
    pub(super) fn learn(&mut self, seen: &Seen, random: &mut Random) {
        let Ok(packet) = Packet::parse(seen.body()) else {
            return;
        };
        if self.protected_qps.contains(&packet.bth.destination.get()) {
            return;
        }
        keep(&mut self.qps, packet.bth.destination.get(), random);
        if let Some((_, srq)) = packet.xrceth {
            keep(&mut self.srqs, srq.get(), random);
        }
        if let Some(reth) = packet.reth {
            keep(&mut self.keys, reth.rkey.0, random);
        }
    }

    /// Returns true if a packet names a protected object. The packet is given without its ICRC.
    pub(super) fn is_protected(&self, bytes: &[u8]) -> bool {
        let Some(bth) = bytes.first_chunk::<12>() else { return false };
        if self.protected_qps.contains(&u32::from_be_bytes([0, bth[5], bth[6], bth[7]])) {
            return true;
        }
        let (ids, qp) = match message_of(bytes) {
            None | Some(CmMessage::Other(..)) => return false,
            Some(CmMessage::Req(req)) => ([req.local_id, 0], req.qpn.get()),
            Some(CmMessage::Mra(mra)) => ([mra.local_id, mra.remote_id], 0),
            Some(CmMessage::Rej(rej)) => ([rej.local_id, rej.remote_id], 0),
            Some(CmMessage::Rep(rep)) => ([rep.local_id, rep.remote_id], rep.qpn.get().max(rep.eecn)),
            Some(CmMessage::Rtu(ids) | CmMessage::Drep(ids)) => ([ids.local_id, ids.remote_id], 0),
            // SIDR messages do not belong to a connection.
            Some(CmMessage::SidrReq(_) | CmMessage::SidrRep(_)) => return false,
            Some(CmMessage::Dreq(dreq)) => ([dreq.local_id, dreq.remote_id], dreq.qpn.get()),
        };
        ids.iter().any(|id| self.protected_ids.contains(id)) || self.protected_qps.contains(&qp)
    }

    /// Changes a packet, which is given without its ICRC.
    pub(super) fn change(&self, bytes: &mut Vec<u8>, random: &mut Random) {
        if random.one_in(2)
            && let Some(changed) = self.changed_by_field(bytes, random)
        {
            *bytes = changed;
        } else {
            for _ in 0..=random.below(3) {
                change_bytes(bytes, random);
            }
        }
    }

    fn changed_by_field(&self, bytes: &[u8], random: &mut Random) -> Option<Vec<u8>> {
        let mut packet = Packet::parse(bytes).ok()?;
        let longer;
        for _ in 0..=random.below(2) {
            let word = u32::from_be_bytes(*random.next().to_be_bytes().first_chunk()?);
            let close = u32::try_from(random.below(16)).ok()?;
            match random.below(8) {
                0 => packet.bth.psn = Psn::new(packet.bth.psn.get().wrapping_add(close)),
                1 => packet.bth.psn = Psn::new(packet.bth.psn.get().wrapping_sub(close)),
                2 if !self.qps.is_empty() => packet.bth.destination = QpNumber::new(*random.pick(&self.qps)),
                3 => packet.bth.ack_request = !packet.bth.ack_request,
                4 if packet.xrceth.is_some() => {
                    let known = self.srqs.first().copied().unwrap_or(word);
                    let srq = *random.pick(&[known, known.wrapping_add(close), word, 0]);
                    packet.xrceth = Some((random.byte(), SrqNumber::new(srq)));
                }
                5 if packet.aeth.is_some() => {
                    packet.aeth = packet.aeth.map(|mut aeth| {
                        aeth.syndrome = random.byte();
                        aeth
                    });
                }
                _ => {
                    let keys = [self.keys.as_slice(), &[word]].concat();
                    let rkey = Rkey(*random.pick(&keys));
                    let shift = *random.pick(&[1, 8, 4096, 16_384, 65_536, u64::from(word) << 12]);
                    let forbidden = random.below(2 * self.forbidden.len());
                    let forbidden = self.forbidden.get(forbidden);
                    if let (Some(reth), Some(remote)) = (&mut packet.reth, forbidden) {
                        (reth.rkey, reth.address) = (remote.rkey, remote.address);
                    } else if let (Some(atomic), Some(remote)) = (&mut packet.atomic, forbidden) {
                        (atomic.rkey, atomic.address) = (remote.rkey, remote.address);
                    } else if let Some(reth) = &mut packet.reth {
                        match random.below(3) {
                            0 => reth.rkey = rkey,
                            1 => reth.address = moved(reth.address, shift, random.one_in(2)),
                            _ => reth.length = *random.pick(&[0, 1, 4096, 16_385, 1 << 20, u32::MAX, word]),
                        }
                    } else if let Some(atomic) = &mut packet.atomic {
                        match random.below(3) {
                            0 => atomic.rkey = rkey,
                            1 => atomic.address = moved(atomic.address, shift, random.one_in(2)),
                            _ => atomic.swap_or_add = random.next(),
                        }
                    }
                }
            }
        }
        if random.one_in(8) {
            longer = vec![random.byte(); random.below(LONGEST + 1)];
            packet.payload = &longer;
        }
        let mut out = Vec::new();
        packet.emit(&mut out);
        Some(out)
    }
}

fn moved(address: IoAddress, by: u64, back: bool) -> IoAddress {
    IoAddress(if back { address.0.wrapping_sub(by) } else { address.0.wrapping_add(by) })
}

fn change_bytes(bytes: &mut Vec<u8>, random: &mut Random) {
    if bytes.is_empty() {
        return;
    }
    // In most cases, change bytes in the headers.
    let near = if random.one_in(3) { bytes.len() } else { bytes.len().min(48) };
    let at = random.below(near);
    match random.below(10) {
        0..=4 => bytes[at] ^= 1 << random.below(8),
        5 | 6 => bytes[at] = random.byte(),
        7 => bytes.truncate(at),
        8 => bytes.extend(std::iter::repeat_n(random.byte(), random.below(LONGEST))),
        _ => bytes[0] = Opcode(*random.pick(&[0x00, 0xa0, 0x60]) | random.byte() & 0x1f).0,
    }
    bytes.truncate(LONGEST + 96);
}

fn message_of(bytes: &[u8]) -> Option<CmMessage> {
    let packet = Packet::parse(bytes).ok()?;
    Mad::from_packet(&packet).map(|mad| CmMessage::parse(&mad))
}

fn keep(names: &mut Vec<u32>, name: u32, random: &mut Random) {
    if names.contains(&name) {
        return;
    }
    if names.len() < KEPT {
        names.push(name);
    } else {
        let at = random.below(KEPT);
        names[at] = name;
    }
}
