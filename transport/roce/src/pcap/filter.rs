//! Which datagrams of a capture are RoCE.
//!
//! A device of ours may answer to the port that a peer sent from, so port 4791 need not be in
//! every packet. Beside it, what parses and ends in a right ICRC is RoCE, and so is everything
//! between two endpoints that were seen at it: otherwise a corrupted packet between them would
//! pass unnoticed.

use super::Datagram;
use crate::wire::{ICRC_LENGTH, Packet, ROCE_PORT, icrc};
use std::collections::BTreeSet;
use std::net::SocketAddr;

/// Endpoints remembered; a capture that has more is judged by port and ICRC alone from then on.
const ENDPOINTS_MAX: usize = 65_536;

/// Remembers the endpoints of one capture.
#[derive(Debug, Default)]
pub struct RoceFilter {
    endpoints: BTreeSet<SocketAddr>,
}

impl RoceFilter {
    /// Whether the datagram is RoCE, judged by itself and by those before it.
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
