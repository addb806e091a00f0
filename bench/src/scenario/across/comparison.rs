//! Comparison of each row with TCP: goodput, fairness, small calls next to large calls, losses, and a verdict.
//!
//! Goodput is the mean of payload bytes per second. `calls_per_s` is a median over slices, but TCP has no calls to count
//! in slices. Ratios and Jain's index are computed for each repetition, and a row contains their medians.

use super::service::{Losses, Measured};
use crate::meter::recorder::histogram;
use crate::meter::spread::Spread;
use crate::results::table::{Table, or_dash, us};
use hdrhistogram::Histogram;
use serde::Serialize;
use std::collections::BTreeMap;

/// Minimum ratio of goodput to TCP's goodput.
const GOODPUT: f64 = 0.95;
/// Minimum value of Jain's index.
const JAIN: f64 = 0.95;
/// Maximum ratio of p99 to p50 for small calls.
const TAIL: f64 = 4.0;

/// Index of the caller and index of the target.
type Pair = (usize, usize);

/// Results from which the rows are computed.
#[derive(Debug, Default)]
pub(super) struct Comparison {
    repetitions: Vec<BTreeMap<Pair, Goodput>>,
    small: BTreeMap<Pair, Histogram<u64>>,
    losses: BTreeMap<usize, Losses>,
}

/// Goodput of a pair, in bytes per second.
#[derive(Debug, Clone, Copy, Default)]
struct Goodput {
    calls: Option<f64>,
    tcp: Option<f64>,
}

/// Comparison in one row, as JSON.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    goodput_bytes_per_s: Option<f64>,
    tcp_bytes_per_s: Option<f64>,
    /// Ratio of goodput to TCP's goodput.
    tcp_ratio: Option<f64>,
    /// Jain's index of the goodput of the callers, if there are at least two.
    jain: Option<f64>,
    tcp_jain: Option<f64>,
    /// Times of the small calls made by the node in the row.
    small: Option<Small>,
    losses: Losses,
    verdict: Verdict,
}

#[derive(Debug, Clone, Copy, Serialize)]
struct Small {
    calls: u64,
    rtt_p50_ns: u64,
    rtt_p99_ns: u64,
}

#[derive(Debug, Clone, Copy, Serialize)]
struct Verdict {
    passed: bool,
    goodput: Option<bool>,
    jain: Option<bool>,
    small: Option<bool>,
}

impl Comparison {
    pub(super) fn begin(&mut self) {
        self.repetitions.push(BTreeMap::new());
    }

    /// Adds a measurement to the current repetition.
    #[expect(clippy::cast_precision_loss, reason = "at most 2^27")]
    pub(super) fn add(&mut self, pair: Pair, measured: &Measured, tcp: bool, bytes_of_call: u64) {
        let Some(goodput) = self.repetitions.last_mut().map(|all| all.entry(pair).or_default()) else {
            return;
        };
        let bytes_per_s =
            (measured.goodput_per_s > 0.0).then_some(measured.goodput_per_s * bytes_of_call as f64);
        *(if tcp { &mut goodput.tcp } else { &mut goodput.calls }) = bytes_per_s;
        for (time, count) in &measured.small {
            self.small.entry(pair).or_insert_with(histogram).saturating_record_n(*time, *count);
        }
    }

    /// Adds the losses during a repetition, which are the differences between two reports of each node.
    pub(super) fn add_losses(&mut self, before: &BTreeMap<usize, Losses>, after: &BTreeMap<usize, Losses>) {
        for (node, before) in before {
            let after = after.get(node).copied().unwrap_or_default();
            let sum = self.losses.entry(*node).or_default();
            *sum = sum.with(after.with(*before, u64::saturating_sub), u64::saturating_add);
        }
    }

    /// Returns the row for a node, or for all nodes together.
    pub(super) fn row(&self, node: Option<usize>) -> Row {
        let made = |pair: &Pair| node.is_none_or(|node| pair.0 == node);
        let served = |pair: &Pair| node.is_none_or(|node| pair.1 == node);
        let makes = self.repetitions.iter().flat_map(BTreeMap::keys).any(made);
        let is_of_row = |pair: &Pair| if makes { made(pair) } else { served(pair) };
        let median = |of: &dyn Fn(&BTreeMap<Pair, Goodput>) -> Option<f64>| {
            let values = self.repetitions.iter().filter_map(of).collect::<Vec<_>>();
            Spread::of(&values).map(|spread| spread.median)
        };
        let sum = |of: fn(&Goodput) -> Option<f64>| {
            median(&|all| {
                let each =
                    all.iter().filter(|(pair, _)| is_of_row(pair)).filter_map(|(_, goodput)| of(goodput));
                each.fold(None, |sum, value| Some(sum.unwrap_or(0.0) + value))
            })
        };
        let ratio = median(&|all| {
            let both = all.iter().filter(|(pair, _)| is_of_row(pair));
            let both = both.filter_map(|(_, goodput)| goodput.calls.zip(goodput.tcp));
            let (calls, tcp) = both.fold((0.0, 0.0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
            (tcp > 0.0).then(|| calls / tcp)
        });
        let fairness = |of: fn(&Goodput) -> Option<f64>| {
            median(&|all| {
                let mut callers = BTreeMap::new();
                for (pair, goodput) in all.iter().filter(|(pair, _)| served(pair)) {
                    // A failed caller counts with a goodput of 0.
                    *callers.entry(pair.0).or_insert(0.0) += of(goodput).unwrap_or(0.0);
                }
                jain(&callers.into_values().collect::<Vec<_>>())
            })
        };
        let mut times = histogram();
        for (_, small) in self.small.iter().filter(|(pair, _)| made(pair)) {
            // All histograms have the same range, so the addition cannot fail.
            times.add(small).unwrap_or_default();
        }
        let small = (!times.is_empty()).then(|| Small {
            calls: times.len(),
            rtt_p50_ns: times.value_at_quantile(0.5),
            rtt_p99_ns: times.value_at_quantile(0.99),
        });
        let losses = self.losses.iter().filter(|(of, _)| node.is_none_or(|node| node == **of));
        let losses = losses.fold(Losses::default(), |sum, (_, one)| sum.with(*one, u64::saturating_add));
        let jain = fairness(|goodput| goodput.calls);
        Row {
            goodput_bytes_per_s: sum(|goodput| goodput.calls),
            tcp_bytes_per_s: sum(|goodput| goodput.tcp),
            tcp_ratio: ratio,
            jain,
            tcp_jain: fairness(|goodput| goodput.tcp),
            small,
            losses,
            verdict: Verdict::of(ratio, jain, small),
        }
    }
}

impl Verdict {
    fn of(ratio: Option<f64>, jain: Option<f64>, small: Option<Small>) -> Self {
        let goodput = ratio.map(|ratio| ratio >= GOODPUT);
        let jain = jain.map(|jain| jain >= JAIN);
        let small = small.map(|small| small.tail() <= TAIL);
        let passed = ![goodput, jain, small].contains(&Some(false));
        Self { passed, goodput, jain, small }
    }
}

impl Small {
    /// Returns the ratio of p99 to p50.
    #[expect(clippy::cast_precision_loss, reason = "nanoseconds of a call stay far below 2^52")]
    fn tail(&self) -> f64 {
        self.rtt_p99_ns as f64 / self.rtt_p50_ns.max(1) as f64
    }
}

impl Row {
    /// Returns the verdict in words, as an `Err` if it failed, or `None` if there is nothing to judge.
    pub(super) fn verdict(&self, name: &str) -> Option<Result<String, String>> {
        let goodput = self.tcp_ratio.map(|ratio| format!("goodput {ratio:.3} of TCP's (at least {GOODPUT})"));
        let jain = self.jain.map(|jain| format!("Jain's index {jain:.3} (at least {JAIN})"));
        let small = self.small.map(|small| format!("p99 {:.2} times p50 (at most {TAIL})", small.tail()));
        let parts = [goodput, jain, small].into_iter().flatten().collect::<Vec<_>>().join(", ");
        let passed = self.verdict.passed;
        let line = format!("{name}: {}: {parts}", if passed { "passed" } else { "failed" });
        (!parts.is_empty()).then_some(if passed { Ok(line) } else { Err(line) })
    }
}

/// Computes Jain's index of fairness. It is 1 if all values are equal, and 1/n if one of n values is the whole sum.
/// Returns `None` for fewer than two values.
#[expect(clippy::cast_precision_loss, reason = "a number of nodes")]
fn jain(values: &[f64]) -> Option<f64> {
    let (sum, squares) = (values.iter().sum::<f64>(), values.iter().map(|value| value * value).sum::<f64>());
    (values.len() > 1 && squares > 0.0).then(|| sum * sum / (values.len() as f64 * squares))
}

/// Returns a table of the rows, followed by one line per verdict.
pub(super) fn table<'a>(rows: impl Iterator<Item = (&'a str, Row)>) -> String {
    let titles = ["<node", "goodput MB/s", "TCP MB/s", "ratio", "Jain", "TCP Jain", "small p50 us", "p99 us"];
    let mut table = Table::new(titles.into_iter().chain(["resent", "timeouts", "RNR", "drops"]));
    let mut verdicts = String::new();
    for (name, row) in rows {
        let mega = |bytes: Option<f64>| or_dash(bytes.map(|bytes| format!("{:.1}", bytes / 1e6)));
        let digits = |value: Option<f64>| or_dash(value.map(|value| format!("{value:.3}")));
        #[expect(clippy::cast_precision_loss, reason = "nanoseconds of a call stay far below 2^52")]
        let time = |of: fn(&Small) -> u64| or_dash(row.small.as_ref().map(|small| us(of(small) as f64)));
        let Losses { retransmits, timeouts, rnr, drops } = row.losses;
        let goodput = [mega(row.goodput_bytes_per_s), mega(row.tcp_bytes_per_s)];
        let ratios = [row.tcp_ratio, row.jain, row.tcp_jain].map(digits);
        let times = [time(|small| small.rtt_p50_ns), time(|small| small.rtt_p99_ns)];
        let losses = [retransmits, timeouts, rnr, drops].map(|count| count.to_string());
        table.row([name.to_owned()].into_iter().chain(goodput).chain(ratios).chain(times).chain(losses));
        if let Some(line) = row.verdict(name) {
            verdicts += &format!("{}\n", line.unwrap_or_else(|line| line));
        }
    }
    format!("{}\n{verdicts}", table.text())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(goodput_per_s: f64, small: Vec<(u64, u64)>) -> Measured {
        let target = String::new();
        Measured { target, times: Vec::new(), per_s: 0.0, goodput_per_s, small, failed: None }
    }

    #[test]
    fn rows_have_ratios_fairness_and_verdicts() {
        let mut comparison = Comparison::default();
        for (calls, tcp) in
            [([10.0, 10.0], [10.0, 10.0]), ([9.0, 3.0], [10.0, 10.0]), ([10.0, 9.0], [10.0, 10.0])]
        {
            comparison.begin();
            for caller in 0..2 {
                comparison.add((caller, 2), &measured(calls[caller], vec![(100, 98), (500, 2)]), false, 2);
                comparison.add((caller, 2), &measured(tcp[caller], Vec::new()), true, 2);
            }
        }
        let all = comparison.row(None);
        assert_eq!((all.goodput_bytes_per_s, all.tcp_bytes_per_s), (Some(38.0), Some(40.0)));
        assert_eq!((all.tcp_ratio, all.tcp_jain), (Some(0.95), Some(1.0)));
        assert!(all.jain.is_some_and(|jain| (jain - 361.0 / 362.0).abs() < 1e-9), "{all:?}");
        assert_eq!(all.verdict("all").unwrap().unwrap_err().split(": ").nth(1), Some("failed"));
        let Verdict { goodput, jain, small, .. } = all.verdict;
        assert_eq!((goodput, jain, small), (Some(true), Some(true), Some(false)));
        let (caller, target) = (comparison.row(Some(1)), comparison.row(Some(2)));
        assert_eq!((caller.tcp_ratio, caller.jain, caller.verdict.goodput), (Some(0.9), None, Some(false)));
        assert_eq!(
            (target.tcp_ratio, target.small.is_none(), target.verdict.passed),
            (Some(0.95), true, true)
        );
        assert!(
            table([("all", all), ("target", target)].into_iter()).contains("\ntarget: passed: goodput 0.950")
        );
        assert!(Comparison::default().row(None).verdict("all").is_none());
    }

    #[test]
    fn fairness_is_lowest_if_one_caller_makes_all_calls() {
        assert_eq!(jain(&[4.0, 0.0, 0.0, 0.0]), Some(0.25));
        assert_eq!((jain(&[1.0]), jain(&[0.0, 0.0])), (None, None));
    }

    #[test]
    fn losses_count_only_within_repetitions() {
        let of = |retransmits| BTreeMap::from([(0, Losses { retransmits, drops: 1, ..Losses::default() })]);
        let mut comparison = Comparison::default();
        for (before, after) in [(5, 8), (10, 11), (7, 0)] {
            comparison.add_losses(&of(before), &of(after));
        }
        assert_eq!(comparison.row(Some(0)).losses, Losses { retransmits: 4, ..Losses::default() });
        assert_eq!(comparison.row(Some(1)).losses, Losses::default());
    }
}
