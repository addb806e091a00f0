//! Amount of data that may be in flight, in packets of path MTU size.

use super::{Requester, Tuning};
use crate::engine::segment::RequestKind;

/// [`Tuning`] converted to packets of one QP. All fields are nonzero.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    /// Maximum number of unacknowledged request packets.
    pub(super) window: u32,
    /// Number of packets of a message between two requests for an acknowledgement.
    pub(super) ack_every: u32,
    /// Number of response packets per READ request.
    pub(super) read_piece: u32,
    /// Maximum number of missing response packets including the next piece, when that piece is requested.
    pub(super) read_window: u32,
}

impl Pace {
    pub(super) fn new(tuning: &Tuning, mtu: u32) -> Self {
        let whole = tuning.buffer_bytes / buffer_bytes(mtu);
        let third = whole / 3;
        Self {
            window: tuning.window.min(whole).max(1),
            ack_every: tuning.ack_every.min(third).max(1),
            read_piece: tuning.read_piece.min(third).max(1),
            read_window: tuning.read_window.min(whole).max(1),
        }
    }
}

/// Returns the packet number after the last packet of a piece. The piece contains packet number `packet` of a READ of `psns`
/// packets, in pieces of `piece` packets.
pub(super) fn piece_end(packet: u32, psns: u32, piece: u32) -> u32 {
    let start = packet - packet % piece;
    start.saturating_add(piece).min(psns)
}

/// Returns the number of messages that a peer counts for a request. Each piece of a READ is a message.
pub(super) fn messages(kind: RequestKind, psns: u32, piece: u32) -> u32 {
    if kind == RequestKind::Read { psns.div_ceil(piece) } else { 1 }
}

/// Returns the number of bytes that Linux charges to a receive buffer for a full packet, which is the next power of two that
/// holds the packet with its headers, plus 256.
fn buffer_bytes(mtu: u32) -> u32 {
    2 * mtu.max(512) + 256
}

impl Requester {
    /// Returns true if a READ's piece of `packets` must wait for earlier pieces. At least one piece may be outstanding.
    pub(super) fn is_read_window_full(&self, packets: u32) -> bool {
        let missing = self.missing_responses();
        missing > 0 && missing + packets > self.pace.read_window
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_count_for_long_packets_and_packets_for_short_ones() {
        let paces = [256, 1024, 4096].map(|mtu| {
            let pace = Pace::new(&Tuning::default(), mtu);
            [pace.window, pace.ack_every, pace.read_piece, pace.read_window]
        });
        assert_eq!(paces, [[192, 64, 64, 192], [138, 46, 46, 138], [37, 12, 12, 37]]);
        let nothing = Tuning { buffer_bytes: 0, ..Tuning::default() };
        let pace = Pace::new(&nothing, 4096);
        assert_eq!([pace.window, pace.ack_every, pace.read_piece, pace.read_window], [1; 4]);
    }

    #[test]
    fn pieces_end_at_fixed_distances() {
        let ends = |psns| (0..psns).map(|packet| piece_end(packet, psns, 4)).collect::<Vec<_>>();
        assert_eq!(ends(1), [1]);
        assert_eq!(ends(4), [4; 4]);
        assert_eq!(ends(10), [4, 4, 4, 4, 8, 8, 8, 8, 10, 10]);
        assert_eq!([1, 4, 5, 10].map(|psns| messages(RequestKind::Read, psns, 4)), [1, 1, 2, 3]);
        assert_eq!(messages(RequestKind::Write, 10, 4), 1);
    }
}
