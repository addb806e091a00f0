//! Selection of the RoCE datagrams in a capture.
//!
//! The device replies to the port from which a peer sent, so a RoCE packet need not use port 4791. A datagram without that
//! port counts as RoCE if it parses and its ICRC is valid. From then on, every datagram between the same two endpoints
//! counts, so that corrupted packets between them are reported.

use super::Datagram;
use crate::wire::{ICRC_LENGTH, Packet, ROCE_PORT, icrc};
use std::collections::BTreeSet;
use std::net::SocketAddr;

/// Maximum number of stored endpoints. Beyond it, only the port and the ICRC decide.
const ENDPOINTS_MAX: usize = 65_536;

/// Recognises the RoCE datagrams of one capture, and stores their endpoints.
#[derive(Debug, Default)]
pub struct RoceFilter {
    endpoints: BTreeSet<SocketAddr>,
}

impl RoceFilter {
    /// Returns true if the datagram is RoCE, according to its content and to earlier datagrams. Stores the endpoints of RoCE
    /// datagrams, except endpoints at port 4791.
    pub fn takes(&mut self, datagram: &Datagram<'_>) -> bool {
        let ends = [datagram.headers.source, datagram.headers.destination];
        let known = datagram.is_on_roce_port() || ends.iter().all(|end| self.endpoints.contains(end));
        let verified = || {
            let end = datagram.payload.len().checked_sub(ICRC_LENGTH);
            let packet = end.and_then(|end| Packet::parse(&datagram.payload[..end]).ok());
            packet.is_some() && icrc::check(&datagram.headers, datagram.payload)
        };
        let is_roce = known || verified();
        if is_roce && self.endpoints.len() < ENDPOINTS_MAX {
            self.endpoints.extend(ends.into_iter().filter(|end| end.port() != ROCE_PORT));
        }
        is_roce
    }
}
