//! Follows the capture file of one side, and keeps the last packets in each direction. The packets provide opcodes, QP and
//! SRQ numbers, and keys, which an off-path attacker could not obtain.
//!
//! The file is truncated to its header when it becomes large. The writer opens it for appending, so it continues after the
//! header.

use crate::Outcome;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use trunkline_roce::pcap::{Datagram, Frame, LinkType};
use trunkline_roce::wire::{ICRC_LENGTH, IpUdp, QP1};
use trunkline_testkit::Random;

const FILE_HEADER: u64 = 24;
const RECORD_HEADER: usize = 16;
/// File length above which the file is truncated, in bytes.
const LONGEST: u64 = 8 << 20;
/// Number of packets kept in each direction.
const KEPT: usize = 128;
/// Maximum number of attempts to choose a packet of a connection.
const TRIES: usize = 1000;
/// Offsets of the PSN and of the destination QP in a packet.
const PSN: usize = 9;
const DESTINATION: usize = 5;

/// A captured packet.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) headers: IpUdp,
    bytes: Vec<u8>,
}

impl Seen {
    /// Returns the packet without its ICRC.
    pub(crate) fn body(&self) -> &[u8] {
        &self.bytes[..self.bytes.len().saturating_sub(ICRC_LENGTH)]
    }

    /// Returns true if the packet is a connection-manager message.
    pub(crate) fn is_management(&self) -> bool {
        self.bytes.get(DESTINATION..DESTINATION + 3) == Some(&QP1.get().to_be_bytes()[1..])
    }
}

/// Follows a capture file.
#[derive(Debug)]
pub(crate) struct Tap {
    file: File,
    at: u64,
    pending: Vec<u8>,
    source: IpAddr,
    destination: IpAddr,
    /// Last packets to `source`, and last packets to `destination`.
    last: [VecDeque<Seen>; 2],
}

impl Tap {
    /// Opens a capture file, to follow the packets between two addresses.
    pub(crate) fn open(path: &Path, source: IpAddr, destination: IpAddr) -> Outcome<Self> {
        let file = File::options().read(true).write(true).open(path)?;
        Ok(Self { file, at: FILE_HEADER, pending: Vec::new(), source, destination, last: Default::default() })
    }

    /// Reads the new records, and calls `each` with every packet between the two addresses.
    pub(crate) fn follow(&mut self, mut each: impl FnMut(&Seen)) -> Outcome<()> {
        self.file.seek(SeekFrom::Start(self.at))?;
        let read = self.file.read_to_end(&mut self.pending)?;
        self.at += read as u64;
        let mut done = 0;
        while let Some(record) = self.pending.get(done..) {
            let Some(length) = record.get(8..12).and_then(|bytes| bytes.first_chunk()) else { break };
            let length = u32::from_le_bytes(*length);
            let end = RECORD_HEADER + usize::try_from(length)?;
            let Some(bytes) = record.get(RECORD_HEADER..end) else { break };
            let frame =
                Frame { number: 0, time_ns: 0, link: LinkType::ETHERNET, original_length: length, bytes };
            if let Ok(datagram) = Datagram::from_frame(&frame) {
                let seen = Seen { headers: datagram.headers, bytes: datagram.payload.to_vec() };
                each(&seen);
                let (from, to) = (seen.headers.source.ip(), seen.headers.destination.ip());
                let is_forth = (from, to) == (self.source, self.destination);
                if is_forth || (to, from) == (self.source, self.destination) {
                    let last = &mut self.last[usize::from(is_forth)];
                    if last.len() == KEPT {
                        last.pop_front();
                    }
                    last.push_back(seen);
                }
            }
            done += end;
        }
        self.pending.drain(..done);
        if self.at > LONGEST {
            // A record written before the truncation is lost as a whole, because only the header is left.
            self.file.set_len(FILE_HEADER)?;
            self.at = FILE_HEADER;
            self.pending.clear();
        }
        Ok(())
    }
    /// Drops the kept packets.
    pub(crate) fn forget(&mut self) {
        self.last.iter_mut().for_each(VecDeque::clear);
    }

    /// Returns a random kept packet: to the destination if `is_forth` is true, otherwise to the source.
    pub(crate) fn any(&self, is_forth: bool, random: &mut Random) -> Option<&Seen> {
        let last = &self.last[usize::from(is_forth)];
        last.get(random.below(last.len().max(1)))
    }

    /// Returns a packet of a connection, without its ICRC and with a random PSN, and the packet's destination.
    pub(crate) fn with_any_psn(&self, is_forth: bool, random: &mut Random) -> Outcome<(Vec<u8>, SocketAddr)> {
        let mut seen = (0..TRIES).map_while(|_| self.any(is_forth, random));
        let seen = seen.find(|seen| !seen.is_management()).ok_or("no packet of the session was captured")?;
        let mut bytes = seen.body().to_vec();
        random.fill(&mut bytes[PSN..PSN + 3]);
        Ok((bytes, seen.headers.destination))
    }
}
