//! The part of a budget that some uses of it leave to others.
#![forbid(unsafe_code)]

use trunkline_mutants::mutant;

/// How much of each limit a use leaves free for uses that must not wait for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Leaves {
    /// It may take all.
    #[default]
    Nothing,
    /// It leaves an eighth.
    Eighth,
    /// It leaves two eighths: one for what leaves an eighth itself, and that.
    Quarter,
}

impl Leaves {
    /// Most units of a limit that such a use may bring those in use to, if it needs so many. An eighth is at least 1, and
    /// 1 is always allowed, so a limit of 1 has nothing to leave. A use that exceeds its part by itself may take
    /// the whole limit once nothing else is in use; it could never begin otherwise.
    pub(super) fn limit(self, limit: usize, units: usize) -> usize {
        let eighths = match self {
            Self::Nothing => return limit,
            _ if mutant!(reserved_share_is_used_by_all) => return limit,
            Self::Eighth => 1,
            Self::Quarter => 2,
        };
        let left = eighths * (limit / 8).max(1);
        limit.saturating_sub(left).max(units.max(1).min(limit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_left_of_every_limit_that_can_be_cut_up() {
        let of =
            |limit| [Leaves::Nothing, Leaves::Eighth, Leaves::Quarter].map(|leaves| leaves.limit(limit, 1));
        assert_eq!(of(0), [0, 0, 0]);
        assert_eq!(of(1), [1, 1, 1]);
        assert_eq!(of(2), [2, 1, 1]);
        assert_eq!(of(8), [8, 7, 6]);
        assert_eq!(of(65_536), [65_536, 57_344, 49_152]);
    }

    #[test]
    fn what_is_larger_than_the_part_may_go_alone() {
        assert_eq!(Leaves::Quarter.limit(64, 60), 60);
        assert_eq!(Leaves::Quarter.limit(64, 100), 64);
    }
}
