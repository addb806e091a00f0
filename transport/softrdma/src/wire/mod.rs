//! Packet formats of RoCEv2: what stands in the UDP payload on port 4791.
//!
//! Owns every offset and code of the wire; called by all layers above; does no I/O and never
//! panics, whatever the bytes. Facts are those of contract rocev2 §1 to §4 and §9.

pub mod cm;
mod headers;
mod mad;
mod opcode;
mod packet;

pub use headers::{Aeth, AtomicEth, Bth, Deth, Reth};
pub use mad::{
    Attribute, MAD_BYTES, MAD_DATA_BYTES, MAD_HEADER_BYTES, Mad, MadHeader, QP1, QP1_QKEY, mad_packet,
};
pub use opcode::{Opcode, Operation, Service};
pub use packet::Packet;

/// UDP destination port of RoCEv2.
pub const ROCE_PORT: u16 = 4791;
