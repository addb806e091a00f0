//! The messages of the InfiniBand communication manager (contract rocev2 §9 to §11).
//!
//! This module converts the 232 bytes after a MAD header to plain structs and back, byte for byte. The CM calls it. It must
//! never refuse or change a value, because the CM interprets values, and captures must be emitted unchanged.
//!
//! Each kind of message has one file, whose module `at` lists the positions of the fields.

#![forbid(unsafe_code)]

mod brief;
mod field;
mod path;
mod rej;
mod rep;
mod req;
mod service;
mod sidr;

pub use brief::{DREQ_PRIVATE_BYTES, Dreq, Ids, RTU_PRIVATE_BYTES};
pub use path::Path;
pub use rej::{Answered, MRA_PRIVATE_BYTES, Mra, REJ_INFO_BYTES, REJ_PRIVATE_BYTES, Rej};
pub use rep::{REP_PRIVATE_BYTES, Rep};
pub use req::{REQ_PRIVATE_BYTES, REQ_USER_BYTES, Req};
pub use service::{ADDRESS_HEADER_BYTES, AddressHeader, ServiceId};
pub use sidr::{
    SIDR_REP_INFO_BYTES, SIDR_REP_PRIVATE_BYTES, SIDR_REQ_PRIVATE_BYTES, SIDR_REQ_USER_BYTES, SidrRep,
    SidrReq,
};

use super::mad::{Attribute, MAD_DATA_BYTES, Mad, MadHeader};

/// Transport service type and extended transport type of a REQ (contract rocev2 10.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TransportType {
    /// Transport service type, 2 bits.
    pub service: u8,
    /// Extended transport type, 3 bits; valid only when `service` is 3.
    pub extended: u8,
}

impl TransportType {
    /// Reliable connection.
    pub const RC: Self = Self { service: 0, extended: 0 };
    /// XRC, where the receiver's QP is a TGT.
    pub const XRC: Self = Self { service: 3, extended: 1 };
}

/// A CM message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CmMessage {
    /// Request for a connection.
    Req(Req),
    /// Announcement that the reply will take longer.
    Mra(Mra),
    /// Refusal of a request or a reply.
    Rej(Rej),
    /// Acceptance of a request.
    Rep(Rep),
    /// Confirmation of a REP.
    Rtu(Ids),
    /// Request to disconnect.
    Dreq(Dreq),
    /// Confirmation of a DREQ.
    Drep(Ids),
    /// Request for the QP that serves a service.
    SidrReq(SidrReq),
    /// The QP and its Q_Key, or a refusal.
    SidrRep(SidrRep),
    /// LAP, APR and all other messages, which are not parsed.
    Other(Attribute, [u8; MAD_DATA_BYTES]),
}

impl CmMessage {
    /// Parses a MAD's data in the format of its attribute.
    #[must_use]
    pub fn parse(mad: &Mad) -> Self {
        let data = &mad.data;
        match mad.header.attribute {
            Attribute::REQ => Self::Req(Req::parse(data)),
            Attribute::MRA => Self::Mra(Mra::parse(data)),
            Attribute::REJ => Self::Rej(Rej::parse(data)),
            Attribute::REP => Self::Rep(Rep::parse(data)),
            Attribute::RTU => Self::Rtu(Ids::parse(data)),
            Attribute::DREQ => Self::Dreq(Dreq::parse(data)),
            Attribute::DREP => Self::Drep(Ids::parse(data)),
            Attribute::SIDR_REQ => Self::SidrReq(SidrReq::parse(data)),
            Attribute::SIDR_REP => Self::SidrRep(SidrRep::parse(data)),
            other => Self::Other(other, *data),
        }
    }

    /// Returns the MAD attribute of this kind of message.
    #[must_use]
    pub const fn attribute(&self) -> Attribute {
        match self {
            Self::Req(_) => Attribute::REQ,
            Self::Mra(_) => Attribute::MRA,
            Self::Rej(_) => Attribute::REJ,
            Self::Rep(_) => Attribute::REP,
            Self::Rtu(_) => Attribute::RTU,
            Self::Dreq(_) => Attribute::DREQ,
            Self::Drep(_) => Attribute::DREP,
            Self::SidrReq(_) => Attribute::SIDR_REQ,
            Self::SidrRep(_) => Attribute::SIDR_REP,
            Self::Other(attribute, _) => *attribute,
        }
    }

    /// Returns the receiver's communication id, or for a SIDR_REP the id of the SIDR_REQ. It is 0 in a REJ that withdraws a
    /// REQ.
    #[must_use]
    pub const fn remote_id(&self) -> Option<u32> {
        Some(match self {
            Self::Mra(mra) => mra.remote_id,
            Self::Rej(rej) => rej.remote_id,
            Self::Rep(rep) => rep.remote_id,
            Self::Rtu(ids) | Self::Drep(ids) => ids.remote_id,
            Self::Dreq(dreq) => dreq.remote_id,
            Self::SidrRep(rep) => rep.request_id,
            Self::Req(_) | Self::SidrReq(_) | Self::Other(..) => return None,
        })
    }

    /// Emits the MAD's data.
    #[must_use]
    pub fn data(&self) -> [u8; MAD_DATA_BYTES] {
        match self {
            Self::Req(message) => message.emit(),
            Self::Mra(message) => message.emit(),
            Self::Rej(message) => message.emit(),
            Self::Rep(message) => message.emit(),
            Self::Rtu(message) | Self::Drep(message) => message.emit(),
            Self::Dreq(message) => message.emit(),
            Self::SidrReq(message) => message.emit(),
            Self::SidrRep(message) => message.emit(),
            Self::Other(_, data) => *data,
        }
    }

    /// Emits the whole MAD.
    #[must_use]
    pub fn mad(&self, transaction: u64) -> Mad {
        Mad { header: MadHeader::cm(transaction, self.attribute()), data: self.data() }
    }
}

#[cfg(test)]
mod tests;
