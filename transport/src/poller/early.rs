//! Targets that have kept a frame of a session that is not up, and the choice of one to give up when there are too many bytes.
//!
//! Thousands of honest peers may join at once, each with a frame of some hundred bytes. So the longest frame makes
//! room, and of equal ones that which came first: sessions are half-open for the time of a handshake, or for seconds
//! if their peer does not want them to come up.
#![forbid(unsafe_code)]

use trunkline_verbs::QpNumber;

/// Bytes of early frames that a poller keeps. One host can have a quarter of that: 256 connections with a frame each.
pub(super) const MOST_BYTES: usize = 16 << 20;

/// The targets that have kept an early frame, with its length; the one whose frame came first is first.
#[derive(Debug, Default)]
pub(super) struct EarlyFrames {
    of: Vec<(QpNumber, usize)>,
    bytes: usize,
}

impl EarlyFrames {
    /// A target keeps a frame. Returns the one that must give up its own for it, if there are too many bytes; it may
    /// be the same.
    pub(super) fn add(&mut self, qp: QpNumber, bytes: usize) -> Option<QpNumber> {
        self.bytes += bytes;
        self.of.push((qp, bytes));
        if self.bytes <= MOST_BYTES {
            return None;
        }
        // Among equal ones the last that is looked at.
        let longest = self.of.iter().rev().max_by_key(|(_, bytes)| *bytes).map(|(qp, _)| *qp)?;
        self.remove(longest);
        Some(longest)
    }

    /// A target keeps none any more.
    pub(super) fn remove(&mut self, qp: QpNumber) {
        if let Some(at) = self.of.iter().position(|(other, _)| *other == qp) {
            self.bytes -= self.of.remove(at).1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_frame_makes_room_and_of_equal_ones_the_first() {
        let (mut early, long) = (EarlyFrames::default(), MOST_BYTES / 4);
        let qp = QpNumber::new;
        for small in 0..1000 {
            assert_eq!(early.add(qp(small), 100), None);
        }
        for at in 0..3 {
            assert_eq!(early.add(qp(2000 + at), long), None);
        }
        assert_eq!(early.add(qp(3000), long), Some(qp(2000)), "small ones stay");
        assert_eq!(early.add(qp(3001), long + 1), Some(qp(3001)), "it is the longest itself");
        early.remove(qp(2002));
        early.remove(qp(9999));
        assert_eq!(early.add(qp(3002), long), None);
        assert_eq!(early.add(qp(3003), long), Some(qp(2001)));
        assert!(early.bytes <= MOST_BYTES && early.of.len() == 1003);
    }
}
