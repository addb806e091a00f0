//! Packet formats of RoCEv2, for the payload of its UDP datagrams.
//!
//! This module contains every offset and code on the wire. All layers above use it. It does no I/O, and never panics on any
//! bytes. Its facts come from contract rocev2 §1 to §4 and §9.

#![forbid(unsafe_code)]

mod aeth;
pub mod cm;
mod error;
mod headers;
pub mod icrc;
mod layout;
mod mad;
mod names;
mod opcode;
mod packet;
mod view;

pub use aeth::{CreditCode, NakCode, RnrTimer, Syndrome};
pub use error::WireError;
pub use headers::{Aeth, AtomicEth, Bth, Deth, Reth};
pub use icrc::IpUdp;
pub use layout::{BTH_LENGTH, HEADERS_LENGTH_MAX, Headers, ICRC_LENGTH, PayloadRule};
pub use mad::{
    Attribute, MAD_BYTES, MAD_DATA_BYTES, MAD_HEADER_BYTES, MAD_PACKET_BYTES, Mad, MadHeader, QP1, QP1_QKEY,
    QuotedPacket, mad_packet,
};
pub use opcode::{Opcode, Operation, Service};
pub use packet::{Packet, emit_pad, is_positive_acknowledge, is_read_response, pad_for};

/// UDP destination port of RoCEv2.
pub const ROCE_PORT: u16 = 4791;
