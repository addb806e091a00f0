//! Follows the capture that one side writes, and keeps the last packets to the other side.
//!
//! The file is truncated once it has grown. Its writer appends, so it continues after the header.

use crate::Outcome;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::net::IpAddr;
use std::path::Path;
use trunkline_roce::pcap::{Datagram, Frame, LinkType};
use trunkline_roce::wire::IpUdp;

const FILE_HEADER: u64 = 24;
const RECORD_HEADER: usize = 16;
/// Length in bytes at which the file is truncated.
const LONGEST: u64 = 8 << 20;
/// Number of packets kept.
const KEPT: usize = 128;

/// A captured packet.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    pub(super) headers: IpUdp,
    pub(super) bytes: Vec<u8>,
}

/// Follows a capture file.
#[derive(Debug)]
pub(super) struct Tap {
    file: File,
    at: u64,
    pending: Vec<u8>,
    source: IpAddr,
    destination: IpAddr,
    pub(super) last: VecDeque<Seen>,
    /// Number of packets seen so far.
    pub(super) count: u64,
}

impl Tap {
    /// Follows the packets from one address to another.
    pub(super) fn open(path: &Path, source: IpAddr, destination: IpAddr) -> Outcome<Self> {
        let file = File::options().read(true).write(true).open(path)?;
        let (pending, last) = (Vec::new(), VecDeque::new());
        Ok(Self { file, at: FILE_HEADER, pending, source, destination, last, count: 0 })
    }

    /// Reads the new records and calls `each` with every packet, in both directions.
    pub(super) fn follow(&mut self, mut each: impl FnMut(&Seen)) -> Outcome<()> {
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
                let route = (seen.headers.source.ip(), seen.headers.destination.ip());
                if route == (self.source, self.destination) {
                    self.count += 1;
                    if self.last.len() == KEPT {
                        self.last.pop_front();
                    }
                    self.last.push_back(seen);
                }
            }
            done += end;
        }
        self.pending.drain(..done);
        if self.at > LONGEST {
            // A record written in between is lost, but never half of one, since the file is cut to its
            // header.
            self.file.set_len(FILE_HEADER)?;
            self.at = FILE_HEADER;
            self.pending.clear();
        }
        Ok(())
    }
}
