//! Targets that keep a frame of a session that is not up, and the choice of a victim when they take too many
//! bytes.
//!
//! Thousands of honest peers may join at once, each with a frame of some hundred bytes. So the longest frame
//! is dropped first, and of equally long ones the oldest. Sessions are half-open for the time of a handshake,
//! or for seconds if their peer does not want them to come up.
#![forbid(unsafe_code)]

use trunkline_verbs::QpNumber;

/// Maximum size of the early frames that a poller keeps, in bytes. One host can use a quarter of it: 256
/// connections with a frame each.
pub(super) const MOST_BYTES: usize = 16 << 20;

/// The targets that keep an early frame, with its length, in the order in which the frames came.
#[derive(Debug, Default)]
pub(super) struct EarlyFrames {
    of: Vec<(QpNumber, usize)>,
    bytes: usize,
}

impl EarlyFrames {
    /// Adds the frame of a target. If there are too many bytes, removes and returns the target that must give
    /// up its frame, which may be the same one.
    pub(super) fn add(&mut self, qp: QpNumber, bytes: usize) -> Option<QpNumber> {
        self.bytes += bytes;
        self.of.push((qp, bytes));
        if self.bytes <= MOST_BYTES {
            return None;
        }
        // `max_by_key` returns the last of equal items, which is the oldest frame here.
        let longest = self.of.iter().rev().max_by_key(|(_, bytes)| *bytes).map(|(qp, _)| *qp)?;
        self.remove(longest);
        Some(longest)
    }

    /// Removes the frame of a target.
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
