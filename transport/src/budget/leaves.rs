//! Share of a budget that is reserved for uses that must not wait.
#![forbid(unsafe_code)]

use trunkline_machine::mutant;

/// Reserve of a limit: the share that a use may not take, because it is kept for uses that must not wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Leaves {
    /// No reserve: the use may take the whole limit.
    #[default]
    Nothing,
    /// An eighth is reserved.
    Eighth,
    /// Two eighths are reserved: one more than for uses with [`Self::Eighth`].
    Quarter,
    /// Three eighths are reserved: one more than for uses with [`Self::Quarter`].
    ThreeEighths,
    /// The whole budget is reserved: a message is not queued.
    All,
}

/// Reserves between none and all.
pub(super) const PARTS: [Leaves; 3] = [Leaves::Eighth, Leaves::Quarter, Leaves::ThreeEighths];

impl Leaves {
    /// Returns the index in [`PARTS`].
    #[inline]
    pub(super) fn part(self) -> Option<usize> {
        match self {
            Self::Eighth => Some(0),
            Self::Quarter => Some(1),
            Self::ThreeEighths => Some(2),
            Self::Nothing | Self::All => None,
        }
    }

    /// Returns the number of units in use up to which such a use may take `units` of a limit. An eighth is at
    /// least 1, and 1 is always allowed, so a limit of 1 has nothing to leave. A use that exceeds its part by
    /// itself may take the whole limit once nothing else is in use; otherwise it could never begin. If it
    /// leaves three eighths, an eighth may be in use at that time, since the uses that it leaves room for
    /// could otherwise keep it waiting.
    pub(super) fn limit(self, limit: usize, units: usize) -> usize {
        let eighths = match self {
            Self::Nothing => return limit,
            Self::All => return 0,
            _ if mutant!(reserved_share_is_used_by_all) => return limit,
            Self::Eighth => 1,
            Self::Quarter => 2,
            Self::ThreeEighths => 3,
        };
        let part = limit.saturating_sub(eighths * (limit / 8).max(1));
        let others = if self == Self::ThreeEighths && units > part { limit / 8 } else { 0 };
        part.max(units.max(1).saturating_add(others).min(limit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_left_of_every_limit_that_can_be_cut_up() {
        let of = |limit| PARTS.map(|leaves| leaves.limit(limit, 1));
        assert_eq!(of(0), [0, 0, 0]);
        assert_eq!(of(1), [1, 1, 1]);
        assert_eq!(of(2), [1, 1, 1]);
        assert_eq!(of(8), [7, 6, 5]);
        assert_eq!(of(65_536), [57_344, 49_152, 40_960]);
        assert_eq!([Leaves::Nothing, Leaves::All].map(|leaves| leaves.limit(8, 1)), [8, 0]);
    }

    #[test]
    fn what_is_larger_than_the_part_may_go_alone() {
        assert_eq!(Leaves::Quarter.limit(64, 60), 60);
        assert_eq!(Leaves::Quarter.limit(64, 100), 64);
        assert_eq!(Leaves::ThreeEighths.limit(64, 40), 40);
        assert_eq!(Leaves::ThreeEighths.limit(64, 41), 49, "next to an eighth of small ones");
        assert_eq!(Leaves::ThreeEighths.limit(64, 60), 64);
    }
}
