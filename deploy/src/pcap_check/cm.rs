//! The output for a CM message.

use serde::Serialize;
use trunkline_roce::wire::Mad;
use trunkline_roce::wire::cm::{CmMessage, TransportType};

/// The fields that identify a connection. Keys are those of the specification.
#[derive(Debug, Clone, Serialize)]
pub(super) struct CmReport {
    pub(super) cm: &'static str,
    pub(super) transaction: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) local_id: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) remote_id: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) service_id: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) local_qpn: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) local_eecn: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) remote_qpn: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) starting_psn: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) transport_service_type: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) extended_transport: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) transport: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reject_reason: Option<u16>,
}

impl CmReport {
    /// Creates the output, or returns `None` for management datagrams of other classes.
    pub(super) fn new(mad: &Mad, message: &CmMessage) -> Option<Self> {
        if !mad.header.is_cm() {
            return None;
        }
        let mut report = Self::empty(name(message), mad.header.transaction);
        let ids = match message {
            CmMessage::Req(req) => {
                report.service_id = Some(req.service_id.0);
                report.local_qpn = Some(req.qpn.get());
                report.local_eecn = Some(req.eecn);
                report.starting_psn = Some(req.starting_psn.get());
                report.transport_service_type = Some(req.transport.service);
                report.extended_transport = Some(req.transport.extended);
                report.transport = Some(transport_name(req.transport));
                (Some(req.local_id), None)
            }
            CmMessage::Rep(rep) => {
                report.local_qpn = Some(rep.qpn.get());
                report.local_eecn = Some(rep.eecn);
                report.starting_psn = Some(rep.starting_psn.get());
                (Some(rep.local_id), Some(rep.remote_id))
            }
            CmMessage::Rej(rej) => {
                report.reject_reason = Some(rej.reason.0);
                (Some(rej.local_id), Some(rej.remote_id))
            }
            CmMessage::Dreq(dreq) => {
                report.remote_qpn = Some(dreq.qpn.get());
                (Some(dreq.local_id), Some(dreq.remote_id))
            }
            CmMessage::Mra(mra) => (Some(mra.local_id), Some(mra.remote_id)),
            CmMessage::Rtu(ids) | CmMessage::Drep(ids) => (Some(ids.local_id), Some(ids.remote_id)),
            CmMessage::SidrReq(req) => {
                report.service_id = Some(req.service_id.0);
                (Some(req.request_id), None)
            }
            CmMessage::SidrRep(rep) => {
                report.service_id = Some(rep.service_id.0);
                report.local_qpn = Some(rep.qpn.get());
                (None, Some(rep.request_id))
            }
            CmMessage::Other(..) => (None, None),
        };
        (report.local_id, report.remote_id) = ids;
        Some(report)
    }

    const fn empty(cm: &'static str, transaction: u64) -> Self {
        Self {
            cm,
            transaction,
            local_id: None,
            remote_id: None,
            service_id: None,
            local_qpn: None,
            local_eecn: None,
            remote_qpn: None,
            starting_psn: None,
            transport_service_type: None,
            extended_transport: None,
            transport: None,
            reject_reason: None,
        }
    }
}

fn name(message: &CmMessage) -> &'static str {
    use trunkline_roce::wire::Attribute;
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
