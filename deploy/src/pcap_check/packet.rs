//! The output for one packet.

use super::cm::CmReport;
use serde::Serialize;
use trunkline_roce::pcap::{Datagram, Frame};
use trunkline_roce::wire::cm::CmMessage;
use trunkline_roce::wire::{Aeth, ICRC_LENGTH, Mad, Opcode, Packet, Syndrome, WireError, icrc};

/// A fault of a packet.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub(super) enum Fault {
    /// The packet is too short for an ICRC.
    #[error("{0} bytes are too few for an ICRC")]
    TooShort(usize),
    /// The packet does not parse.
    #[error("does not parse: {0}")]
    Unparsed(#[from] WireError),
    /// The ICRC is wrong.
    #[error("bad ICRC: {found:#010x}, should be {expected:#010x}")]
    BadIcrc {
        /// The packet's ICRC.
        found: u32,
        /// The correct ICRC.
        expected: u32,
    },
    /// The parsed packet is emitted as different bytes.
    #[error("does not re-emit equal: first difference at byte {0} of the UDP payload")]
    Different(usize),
    /// The parsed CM message is emitted as different bytes.
    #[error("the CM message does not re-emit equal: first difference at byte {0} of its MAD")]
    DifferentMad(usize),
}

/// A packet in the format of `--json`: numbers as JSON numbers, without fields that the packet does not have.
#[derive(Debug, Clone, Serialize)]
pub(super) struct PacketReport {
    /// Number of the frame in its file, from 1.
    pub(super) frame: u64,
    /// Nanoseconds since 1970.
    pub(super) time_ns: u64,
    /// Nanoseconds since the file's first frame.
    pub(super) since_start_ns: u64,
    /// Sender's address and UDP port.
    pub(super) source: String,
    /// Receiver's address and UDP port.
    pub(super) destination: String,
    /// The opcode byte, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) opcode: Option<u8>,
    /// The opcode's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) opcode_name: Option<String>,
    /// The fields of the headers, if they parse.
    #[serde(flatten)]
    pub(super) fields: Option<Fields>,
    /// The faults of the packet.
    #[serde(serialize_with = "as_text")]
    pub(super) faults: Vec<Fault>,
}

/// The fields of a parsed packet's headers.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Fields {
    pub(super) dest_qp: u32,
    pub(super) psn: u32,
    pub(super) payload_bytes: usize,
    pub(super) ack_request: bool,
    pub(super) solicited: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) xrc_srq: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) source_qp: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reth: Option<RethReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) atomic: Option<AtomicReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) aeth: Option<AethReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) original: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) immediate: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) invalidate: Option<u32>,
    #[serde(flatten)]
    pub(super) cm: Option<CmReport>,
}

#[derive(Debug, Clone, Serialize)]
pub(super) struct RethReport {
    pub(super) address: u64,
    pub(super) rkey: u32,
    pub(super) length: u32,
}

#[derive(Debug, Clone, Serialize)]
pub(super) struct AtomicReport {
    pub(super) address: u64,
    pub(super) rkey: u32,
    pub(super) swap_or_add: u64,
    pub(super) compare: u64,
}

#[derive(Debug, Clone, Serialize)]
pub(super) struct AethReport {
    pub(super) syndrome: u8,
    pub(super) meaning: String,
    pub(super) msn: u32,
}

fn as_text<S: serde::Serializer>(faults: &[Fault], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(faults.iter().map(ToString::to_string))
}

impl PacketReport {
    /// Decodes and checks one datagram. `start_ns` is the time of the file's first frame.
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
            fields: None,
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
            fields.cm = CmReport::new(&mad, &message);
        }
        self.fields = Some(fields);
    }
}

/// Returns the offset of the first difference of two byte strings, or the length of the shorter one if it is a prefix.
fn first_difference(one: &[u8], other: &[u8]) -> Option<usize> {
    let common = one.iter().zip(other).position(|(one, other)| one != other);
    common.or_else(|| (one.len() != other.len()).then(|| one.len().min(other.len())))
}

impl Fields {
    fn new(packet: &Packet<'_>) -> Self {
        Self {
            dest_qp: packet.bth.destination.get(),
            psn: packet.bth.psn.get(),
            payload_bytes: packet.payload.len(),
            ack_request: packet.bth.ack_request,
            solicited: packet.bth.solicited,
            xrc_srq: packet.xrceth.map(|(_, srq)| srq.get()),
            source_qp: packet.deth.map(|deth| deth.source.get()),
            reth: packet.reth.map(|reth| RethReport {
                address: reth.address.0,
                rkey: reth.rkey.0,
                length: reth.length,
            }),
            atomic: packet.atomic.map(|atomic| AtomicReport {
                address: atomic.address.0,
                rkey: atomic.rkey.0,
                swap_or_add: atomic.swap_or_add,
                compare: atomic.compare,
            }),
            aeth: packet.aeth.map(AethReport::new),
            original: packet.atomic_ack,
            immediate: packet.immediate,
            invalidate: packet.invalidate.map(|rkey| rkey.0),
            cm: None,
        }
    }
}

impl AethReport {
    fn new(aeth: Aeth) -> Self {
        let meaning = match aeth.meaning() {
            Syndrome::Ack { credits } => match credits.credits() {
                Some(credits) => format!("ACK, {credits} credits"),
                None => "ACK".to_owned(),
            },
            Syndrome::Rnr { timer } => {
                let us = timer.nanoseconds() / 1000;
                format!("RNR NAK, wait {}.{:02} ms", us / 1000, us % 1000 / 10)
            }
            Syndrome::Nak(code) => format!("NAK {:#04x}, {}", aeth.syndrome, code.name()),
            Syndrome::Reserved(byte) => format!("reserved syndrome {byte:#04x}"),
        };
        Self { syndrome: aeth.syndrome, meaning, msn: aeth.msn }
    }
}
