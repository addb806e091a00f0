//! Reading and writing capture files.
//!
//! The module handles the formats pcap and pcapng, the link layers in them, and the IP and UDP headers around RoCEv2
//! packets. The device's capture writes files; `trunkctl` and tests read them. The module never trusts a length in a file,
//! never panics, and holds one frame at a time. [`crate::wire`] interprets the UDP payload.

#![forbid(unsafe_code)]

mod classic;
mod datagram;
mod error;
mod filter;
mod frame;
mod link;
mod ng;
mod reader;
mod skip;
mod source;
mod writer;

pub use datagram::Datagram;
pub use error::PcapError;
pub use filter::RoceFilter;
pub use frame::{Frame, LinkType};
pub use reader::PcapReader;
pub use skip::Skip;
pub use writer::PcapWriter;

#[cfg(test)]
mod tests;
