//! Header fields of a packet, as text and in the format of `--json`.

use serde_json::{Map, Value, json};
use trunkline_roce::wire::cm::{CmMessage, TransportType};
use trunkline_roce::wire::{Aeth, Attribute, Mad, Packet, Syndrome};

/// Fields as text and as JSON. The JSON omits fields that the packet does not contain.
#[derive(Debug, Clone, Default)]
pub(super) struct Fields {
    pub(super) json: Map<String, Value>,
    pub(super) text: String,
}

impl Fields {
    /// Describes the headers of a packet.
    pub(super) fn new(packet: &Packet<'_>) -> Self {
        let mut fields = Self::default();
        let (qp, psn) = (packet.bth.destination.get(), packet.bth.psn.get());
        fields.put("dest_qp", qp, &format!(" qp {qp:#08x}"));
        fields.put("psn", psn, &format!(" psn {psn:#08x}"));
        if let Some((_, srq)) = packet.xrceth {
            fields.put("xrc_srq", srq.get(), &format!(" srq {:#08x}", srq.get()));
        }
        if let Some(source) = packet.deth.map(|deth| deth.source.get()) {
            fields.put("source_qp", source, &format!(" from qp {source:#08x}"));
        }
        if let Some(reth) = packet.reth {
            let (address, rkey, length) = (reth.address.0, reth.rkey.0, reth.length);
            let json = json!({ "address": address, "rkey": rkey, "length": length });
            fields.put("reth", json, &format!(" {address:#x}+{length} rkey {rkey:#010x}"));
        }
        if let Some(atomic) = packet.atomic {
            let (address, rkey) = (atomic.address.0, atomic.rkey.0);
            let (operand, compare) = (atomic.swap_or_add, atomic.compare);
            let json =
                json!({ "address": address, "rkey": rkey, "swap_or_add": operand, "compare": compare });
            let text = format!(" {address:#x} rkey {rkey:#010x} operand {operand:#x} compare {compare:#x}");
            fields.put("atomic", json, &text);
        }
        if let Some(aeth) = packet.aeth {
            let meaning = meaning(aeth);
            let text = format!(" {meaning} msn {}", aeth.msn);
            let json = json!({ "syndrome": aeth.syndrome, "meaning": meaning, "msn": aeth.msn });
            fields.put("aeth", json, &text);
        }
        if let Some(original) = packet.atomic_ack {
            fields.put("original", original, &format!(" original {original:#x}"));
        }
        if let Some(immediate) = packet.immediate {
            fields.put("immediate", immediate, &format!(" imm {immediate:#010x}"));
        }
        if let Some(rkey) = packet.invalidate {
            fields.put("invalidate", rkey.0, &format!(" invalidate {:#010x}", rkey.0));
        }
        let bytes = packet.payload.len();
        fields.put("payload_bytes", bytes, &format!(" {bytes} B"));
        let (solicited, ack) = (packet.bth.solicited, packet.bth.ack_request);
        fields.put("solicited", solicited, if solicited { " solicited" } else { "" });
        fields.put("ack_request", ack, if ack { " ack?" } else { "" });
        fields
    }

    fn put(&mut self, key: &str, value: impl Into<Value>, text: &str) {
        self.json.insert(key.to_owned(), value.into());
        self.text.push_str(text);
    }

    fn number(&mut self, key: &str, name: &str, number: u32) {
        self.put(key, number, &format!(" {name} {number:#x}"));
    }

    fn service(&mut self, service: u64) {
        self.put("service_id", service, &format!(" service {service:#018x}"));
    }

    /// Adds the fields that identify a connection, if the MAD belongs to communication management. Keys are the names
    /// used in the specification.
    pub(super) fn add_cm(&mut self, mad: &Mad, message: &CmMessage) {
        if !mad.header.is_cm() {
            return;
        }
        let name = name(message);
        self.put("cm", name, &format!(" CM {name}"));
        self.put("transaction", mad.header.transaction, "");
        if let CmMessage::Req(req) = message {
            let transport = transport_name(req.transport);
            self.put("transport", transport, &format!(" {transport}"));
            self.put("transport_service_type", req.transport.service, "");
            self.put("extended_transport", req.transport.extended, "");
        }
        let (local, remote) = match message {
            CmMessage::Req(req) => (Some(req.local_id), None),
            CmMessage::Rep(rep) => (Some(rep.local_id), Some(rep.remote_id)),
            CmMessage::Rej(rej) => (Some(rej.local_id), Some(rej.remote_id)),
            CmMessage::Dreq(dreq) => (Some(dreq.local_id), Some(dreq.remote_id)),
            CmMessage::Mra(mra) => (Some(mra.local_id), Some(mra.remote_id)),
            CmMessage::Rtu(ids) | CmMessage::Drep(ids) => (Some(ids.local_id), Some(ids.remote_id)),
            CmMessage::SidrReq(req) => (Some(req.request_id), None),
            CmMessage::SidrRep(rep) => (None, Some(rep.request_id)),
            CmMessage::Other(..) => (None, None),
        };
        for (key, name, id) in [("local_id", "id", local), ("remote_id", "peer id", remote)] {
            if let Some(id) = id {
                self.number(key, name, id);
            }
        }
        match message {
            CmMessage::Req(req) => {
                self.queue_pair(req.qpn.get(), req.eecn, req.starting_psn.get());
                self.service(req.service_id.0);
            }
            CmMessage::Rep(rep) => self.queue_pair(rep.qpn.get(), rep.eecn, rep.starting_psn.get()),
            CmMessage::Rej(rej) => {
                self.put("reject_reason", rej.reason.0, &format!(" reason {}", rej.reason.0));
            }
            CmMessage::Dreq(dreq) => self.number("remote_qpn", "peer qpn", dreq.qpn.get()),
            CmMessage::SidrReq(req) => self.service(req.service_id.0),
            CmMessage::SidrRep(rep) => {
                self.number("local_qpn", "qpn", rep.qpn.get());
                self.service(rep.service_id.0);
            }
            _ => {}
        }
    }

    fn queue_pair(&mut self, qpn: u32, eecn: u32, psn: u32) {
        self.number("local_qpn", "qpn", qpn);
        let text = if eecn == 0 { String::new() } else { format!(" eecn {eecn:#x}") };
        self.put("local_eecn", eecn, &text);
        self.number("starting_psn", "starting psn", psn);
    }
}

fn meaning(aeth: Aeth) -> String {
    match aeth.meaning() {
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
    }
}

fn name(message: &CmMessage) -> &'static str {
    match message.attribute() {
        Attribute::REQ => "REQ",
        Attribute::MRA => "MRA",
        Attribute::REJ => "REJ",
        Attribute::REP => "REP",
        Attribute::RTU => "RTU",
        Attribute::DREQ => "DREQ",
        Attribute::DREP => "DREP",
        Attribute::SIDR_REQ => "SIDR_REQ",
        Attribute::SIDR_REP => "SIDR_REP",
        Attribute::LAP => "LAP",
        Attribute::APR => "APR",
        Attribute::CLASS_PORT_INFO => "ClassPortInfo",
        _ => "unknown attribute",
    }
}

const fn transport_name(transport: TransportType) -> &'static str {
    match (transport.service, transport.extended) {
        (0, _) => "RC",
        (1, _) => "UC",
        (2, _) => "RD",
        (3, 1) => "XRC",
        _ => "unknown",
    }
}
