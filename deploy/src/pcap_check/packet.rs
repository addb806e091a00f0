//! Report on one packet.

use super::fields::Fields;
use serde::Serialize;
use serde_json::{Map, Value};
use std::fmt;
use trunkline_roce::pcap::{Datagram, Frame};
use trunkline_roce::wire::cm::CmMessage;
use trunkline_roce::wire::{ICRC_LENGTH, Mad, Opcode, Packet, WireError, icrc};

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub(super) enum Fault {
    /// The packet is too short to contain an ICRC.
    #[error("{0} bytes are too few for an ICRC")]
    TooShort(usize),
    /// The packet does not parse.
    #[error("does not parse: {0}")]
    Unparsed(#[from] WireError),
    /// The ICRC is wrong.
    #[error("bad ICRC: {found:#010x}, should be {expected:#010x}")]
    BadIcrc {
        /// ICRC in the packet.
        found: u32,
        /// Correct ICRC.
        expected: u32,
    },
    /// The parsed packet is emitted as different bytes.
    #[error("does not re-emit equal: first difference at byte {0} of the UDP payload")]
    Different(usize),
    /// The parsed CM message is emitted as different bytes.
    #[error("the CM message does not re-emit equal: first difference at byte {0} of its MAD")]
    DifferentMad(usize),
}

/// A packet in the format of `--json`.
#[derive(Debug, Clone, Serialize)]
pub(super) struct PacketReport {
    /// Number of the frame in its file, from 1.
    frame: u64,
    /// Nanoseconds since 1970.
    time_ns: u64,
    /// Nanoseconds since the first frame in the file.
    since_start_ns: u64,
    /// Address and UDP port of the sender.
    source: String,
    /// Address and UDP port of the receiver.
    destination: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    opcode: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    opcode_name: Option<String>,
    /// Fields of the headers, if they parse.
    #[serde(flatten)]
    fields: Map<String, Value>,
    /// Fields as text.
    #[serde(skip)]
    text: String,
    #[serde(serialize_with = "as_text")]
    pub(super) faults: Vec<Fault>,
}

fn as_text<S: serde::Serializer>(faults: &[Fault], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(faults.iter().map(ToString::to_string))
}

impl PacketReport {
    /// Decodes and checks one datagram. `start_ns` is the time of the first frame in the file.
    #[must_use]
    pub(super) fn new(frame: &Frame<'_>, datagram: &Datagram<'_>, start_ns: u64) -> Self {
        let mut report = Self {
            frame: frame.number,
            time_ns: frame.time_ns,
            since_start_ns: frame.time_ns.saturating_sub(start_ns),
            source: datagram.headers.source.to_string(),
            destination: datagram.headers.destination.to_string(),
            opcode: None,
            opcode_name: None,
            fields: Map::new(),
            text: String::new(),
            faults: Vec::new(),
        };
        report.examine(datagram);
        report
    }

    fn examine(&mut self, datagram: &Datagram<'_>) {
        let opcode = datagram.payload.first().map(|code| Opcode(*code));
        self.opcode = opcode.map(|opcode| opcode.0);
        self.opcode_name = opcode.map(|opcode| opcode.to_string());
        let Some((bytes, found)) = datagram.payload.split_last_chunk::<ICRC_LENGTH>() else {
            self.faults.push(Fault::TooShort(datagram.payload.len()));
            return;
        };
        let (found, expected) = (u32::from_le_bytes(*found), icrc::icrc(&datagram.headers, bytes));
        if found != expected {
            self.faults.push(Fault::BadIcrc { found, expected });
        }
        let packet = match Packet::parse(bytes) {
            Ok(packet) => packet,
            Err(error) => {
                self.faults.push(error.into());
                return;
            }
        };
        let mut emitted = Vec::new();
        packet.emit(&mut emitted);
        self.faults.extend(first_difference(&emitted, bytes).map(Fault::Different));
        let mut fields = Fields::new(&packet);
        if let Some(mad) = Mad::from_packet(&packet) {
            let message = CmMessage::parse(&mad);
            let again = Mad { header: mad.header, data: message.data() }.to_bytes();
            self.faults.extend(first_difference(&again, packet.payload).map(Fault::DifferentMad));
            fields.add_cm(&mad, &message);
        }
        (self.fields, self.text) = (fields.json, fields.text);
    }
}

/// Returns the offset of the first difference between two byte strings. If one is a prefix of the other, returns the
/// length of the shorter string.
fn first_difference(one: &[u8], other: &[u8]) -> Option<usize> {
    let common = one.iter().zip(other).position(|(one, other)| one != other);
    common.or_else(|| (one.len() != other.len()).then(|| one.len().min(other.len())))
}

impl fmt::Display for PacketReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let us = self.since_start_ns / 1000;
        write!(f, "{} {}.{:06}", self.frame, us / 1_000_000, us % 1_000_000)?;
        let opcode = self.opcode_name.as_deref().unwrap_or("EMPTY");
        write!(f, " {} > {} {opcode}{}", self.source, self.destination, self.text)?;
        self.faults.iter().try_for_each(|fault| write!(f, " ! {fault}"))
    }
}
