//! Patterns, which define the targets of each node.

use clap::ValueEnum;

/// Pattern of calls between nodes. The command line determines the order of the nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Pattern {
    /// The first calls the second, the third the fourth, and so on.
    Pairs,
    /// Each node calls all others.
    AllToAll,
    /// All others call the first.
    Incast,
    /// Each node calls the next, and the last calls the first.
    Ring,
}

impl Pattern {
    /// Returns the name on the command line and in JSON.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Pairs => "pairs",
            Self::AllToAll => "all-to-all",
            Self::Incast => "incast",
            Self::Ring => "ring",
        }
    }

    /// Returns the targets of each node.
    ///
    /// # Errors
    /// Returns an error if the pattern cannot be applied to this number of nodes.
    pub(super) fn targets(self, nodes: usize) -> Result<Vec<Vec<usize>>, String> {
        if nodes < 2 || (self == Self::Pairs && !nodes.is_multiple_of(2)) {
            let needed = if self == Self::Pairs { "an even number of nodes" } else { "two nodes at least" };
            return Err(format!("--pattern {} needs {needed}; {nodes} are named", self.name()));
        }
        let of = |node: usize| match self {
            Self::Pairs if node.is_multiple_of(2) => vec![node + 1],
            Self::Pairs => Vec::new(),
            Self::AllToAll => (0..nodes).filter(|other| *other != node).collect(),
            Self::Incast if node > 0 => vec![0],
            Self::Incast => Vec::new(),
            Self::Ring => vec![(node + 1) % nodes],
        };
        Ok((0..nodes).map(of).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_define_targets_of_each_node() {
        let of = |pattern: Pattern| pattern.targets(4).unwrap();
        assert_eq!(of(Pattern::Pairs), [vec![1], vec![], vec![3], vec![]]);
        assert_eq!(of(Pattern::AllToAll), [vec![1, 2, 3], vec![0, 2, 3], vec![0, 1, 3], vec![0, 1, 2]]);
        assert_eq!(of(Pattern::Incast), [vec![], vec![0], vec![0], vec![0]]);
        assert_eq!(of(Pattern::Ring), [[1], [2], [3], [0]]);
        assert!(Pattern::Pairs.targets(3).unwrap_err().contains("even"));
        assert!(Pattern::Ring.targets(1).unwrap_err().contains("two"));
    }
}
