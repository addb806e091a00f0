//! Results per node and for all nodes together, as JSON and as a table.

use super::comparison::{self, Comparison, Row};
use super::service::{Losses, Measured};
use crate::meter::recorder::{Sample, histogram};
use crate::meter::spread::Spread;
use crate::results::table::{Table, or_dash, us};
use crate::scenario::drift::Kept;
use crate::scenario::point::{Repetitions, Summary, Values};
use serde::Serialize;
use std::collections::BTreeMap;

/// Maximum number of distinct times that a node may report for one target.
const MOST_TIMES: usize = 1 << 16;

/// Results for a set of calls, which may be those from a node, to a node, between a pair of nodes, or all.
#[derive(Debug, Clone, Default)]
pub(super) struct Calls {
    repetitions: Repetitions,
    /// Results in the current repetition.
    now: Option<Sample>,
}

/// Calls of one node, or all calls, in the format that other subcommands write for `compare` and `report`.
#[derive(Debug, Serialize)]
struct Point<'a> {
    node: &'a str,
    size_bytes: u64,
    outstanding: u32,
    #[serde(flatten)]
    values: Values,
    calls: Summary,
}

#[derive(Debug)]
pub(super) struct Outcome {
    /// Addresses of the nodes as given on the command line.
    nodes: Vec<String>,
    bytes: u64,
    one_way: bool,
    repetitions: usize,
    all: Calls,
    made: BTreeMap<usize, Calls>,
    served: BTreeMap<usize, Calls>,
    pairs: BTreeMap<(usize, usize), Calls>,
    comparison: Comparison,
    /// Reasons why calls from one node to another ended early.
    failed: BTreeMap<(usize, usize), String>,
    /// Reasons why nodes were lost.
    lost: BTreeMap<usize, String>,
}

/// Figures for a set of calls, as JSON. Byte counts are payload bytes, in both directions unless calls are one-way.
#[derive(Debug, Serialize)]
struct Figures {
    rtt_p50_ns: u64,
    rtt_p99_ns: u64,
    calls_per_s: f64,
    bytes_per_s: f64,
    /// Median and extremes over the repetitions.
    calls_per_s_spread: Spread,
}

#[derive(Debug, Serialize)]
struct OfNode<'a> {
    address: &'a str,
    /// Calls made by the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    made: Option<Figures>,
    /// Calls from other nodes to this node.
    #[serde(skip_serializing_if = "Option::is_none")]
    served: Option<Figures>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pairs: Vec<OfPair<'a>>,
    comparison: Row,
    #[serde(skip_serializing_if = "Option::is_none")]
    lost: Option<&'a str>,
}

#[derive(Debug, Serialize)]
struct OfPair<'a> {
    target: &'a str,
    #[serde(flatten)]
    figures: Option<Figures>,
    #[serde(skip_serializing_if = "Option::is_none")]
    failed: Option<&'a str>,
}

#[derive(Debug, Serialize)]
pub(super) struct Json<'a> {
    settings: Settings,
    /// True if nodes were lost or calls failed.
    partial: bool,
    /// Figures for all calls.
    #[serde(flatten)]
    figures: Option<Figures>,
    comparison: Row,
    nodes: Vec<OfNode<'a>>,
    lost: BTreeMap<&'a str, &'a str>,
    points: Vec<Point<'a>>,
}

/// Settings of a run.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Settings {
    pub(super) pattern: &'static str,
    pub(super) size_bytes: u64,
    /// Number of calls in flight from each caller to each of its targets.
    pub(super) outstanding: u32,
    pub(super) seconds: f64,
    pub(super) one_way: bool,
}

impl Calls {
    /// Adds calls to the current repetition.
    fn add(&mut self, measured: &Measured) {
        let now = self.now.get_or_insert_with(|| Sample { times: histogram(), per_s: 0.0 });
        now.per_s += measured.per_s;
        for (time, count) in &measured.times {
            now.times.saturating_record_n(*time, *count);
        }
    }

    /// Ends the current repetition. A repetition without measurements is ignored.
    fn end(&mut self) {
        if let Some(value) = self.now.take().filter(|now| !now.times.is_empty()) {
            self.repetitions.add(&Kept { value, dropped: 0, drifted: false });
        }
    }

    fn point<'a>(&self, node: &'a str, settings: Settings) -> Option<Point<'a>> {
        let Settings { size_bytes, outstanding, .. } = settings;
        let values = Values::of(self.repetitions.each("calls_per_s"))?;
        Some(Point { node, size_bytes, outstanding, values, calls: self.repetitions.summary()? })
    }

    #[expect(clippy::cast_precision_loss, reason = "at most 2^27")]
    fn figures(&self, bytes_of_call: u64) -> Option<Figures> {
        let (spread, times) = (self.repetitions.summary()?.per_s, self.repetitions.times()?);
        Some(Figures {
            rtt_p50_ns: times.value_at_quantile(0.5),
            rtt_p99_ns: times.value_at_quantile(0.99),
            calls_per_s: spread.median,
            bytes_per_s: spread.median * bytes_of_call as f64,
            calls_per_s_spread: spread,
        })
    }
}

impl Outcome {
    pub(super) fn new(nodes: Vec<String>, bytes: u64, one_way: bool) -> Self {
        Self {
            nodes,
            bytes,
            one_way,
            repetitions: 0,
            all: Calls::default(),
            made: BTreeMap::new(),
            served: BTreeMap::new(),
            pairs: BTreeMap::new(),
            comparison: Comparison::default(),
            failed: BTreeMap::new(),
            lost: BTreeMap::new(),
        }
    }

    pub(super) fn begin(&mut self) {
        self.repetitions += 1;
        self.comparison.begin();
    }

    /// Ends the current repetition. `before` and `after` are the losses that nodes reported before and after it.
    pub(super) fn end(&mut self, before: &BTreeMap<usize, Losses>, after: &BTreeMap<usize, Losses>) {
        self.comparison.add_losses(before, after);
        let of_nodes = self.made.values_mut().chain(self.served.values_mut());
        of_nodes.chain(self.pairs.values_mut()).for_each(Calls::end);
        self.all.end();
    }

    /// Adds a node's measurement to a target in this repetition. It is a measurement of TCP if `tcp` is true, and of
    /// calls otherwise. Implausible figures count as a failure.
    pub(super) fn add(&mut self, node: usize, target: usize, measured: &Measured, tcp: bool) {
        if let Some(why) = &measured.failed {
            self.failed.entry((node, target)).or_insert_with(|| why.clone());
        }
        let is_rate = |rate: f64| rate.is_finite() && rate >= 0.0;
        let are_times = |times: &[_]| times.len() <= MOST_TIMES;
        let is_plausible = are_times(&measured.times) && are_times(&measured.small);
        if !is_plausible || !is_rate(measured.per_s) || !is_rate(measured.goodput_per_s) {
            let why = "it has reported figures that cannot be true".to_owned();
            self.failed.entry((node, target)).or_insert(why);
            return;
        }
        self.comparison.add((node, target), measured, tcp, self.bytes_of_call());
        if tcp {
            return;
        }
        let of = |calls: Option<&mut Calls>| calls.into_iter().for_each(|calls| calls.add(measured));
        of(Some(&mut self.all));
        of(Some(self.made.entry(node).or_default()));
        of(Some(self.served.entry(target).or_default()));
        of(Some(self.pairs.entry((node, target)).or_default()));
    }

    pub(super) fn lose(&mut self, node: usize, why: String) {
        self.lost.entry(node).or_insert(why);
    }

    pub(super) fn is_lost(&self, node: usize) -> bool {
        self.lost.contains_key(&node)
    }

    pub(super) const fn repetitions(&self) -> usize {
        self.repetitions
    }

    /// Describes the missing results, if any.
    pub(super) fn missing(&self) -> Option<String> {
        let lost =
            self.lost.iter().map(|(node, why)| format!("the node {} was lost: {why}", self.nodes[*node]));
        let failed = self.failed.iter().map(|((node, target), why)| {
            format!("calls from {} to {} ended early: {why}", self.nodes[*node], self.nodes[*target])
        });
        let lines = lost.chain(failed).collect::<Vec<_>>();
        (!lines.is_empty()).then(|| lines.join("\n"))
    }

    /// Returns true if anything was measured.
    pub(super) fn is_empty(&self) -> bool {
        self.all.figures(0).is_none()
    }

    const fn bytes_of_call(&self) -> u64 {
        if self.one_way { self.bytes } else { 2 * self.bytes }
    }

    pub(super) fn json(&self, settings: Settings) -> Json<'_> {
        let point = |(name, calls): (_, &Calls)| calls.point(name, settings);
        let of_nodes = self.made.iter().map(|(node, calls)| (self.nodes[*node].as_str(), calls));
        Json {
            settings,
            partial: self.missing().is_some(),
            figures: self.all.figures(self.bytes_of_call()),
            comparison: self.comparison.row(None),
            nodes: (0..self.nodes.len()).map(|node| self.of_node(node)).collect(),
            lost: self.lost.iter().map(|(node, why)| (self.nodes[*node].as_str(), why.as_str())).collect(),
            points: of_nodes.chain([("all", &self.all)]).filter_map(point).collect(),
        }
    }

    fn of_node(&self, node: usize) -> OfNode<'_> {
        let figures = |calls: Option<&Calls>| calls.and_then(|calls| calls.figures(self.bytes_of_call()));
        let targets = 0..self.nodes.len();
        let pair = |target: usize| {
            let (calls, failed) = (self.pairs.get(&(node, target)), self.failed.get(&(node, target)));
            (calls.is_some() || failed.is_some()).then(|| OfPair {
                target: &self.nodes[target],
                figures: figures(calls),
                failed: failed.map(String::as_str),
            })
        };
        OfNode {
            address: &self.nodes[node],
            made: figures(self.made.get(&node)),
            served: figures(self.served.get(&node)),
            pairs: targets.filter_map(pair).collect(),
            comparison: self.comparison.row(Some(node)),
            lost: self.lost.get(&node).map(String::as_str),
        }
    }

    /// Returns the comparisons for each node and for all nodes together.
    fn rows(&self) -> impl Iterator<Item = (&str, Row)> {
        let nodes = self.nodes.iter().enumerate();
        let nodes = nodes.map(|(node, name)| (name.as_str(), self.comparison.row(Some(node))));
        nodes.chain([("all", self.comparison.row(None))])
    }

    pub(super) fn failed_verdicts(&self) -> Option<String> {
        let failed = self.rows().filter_map(|(name, row)| row.verdict(name)?.err()).collect::<Vec<_>>();
        (!failed.is_empty()).then(|| failed.join("\n"))
    }

    /// Returns the verdicts and two tables, each with one row per node and one row for all nodes.
    pub(super) fn table(&self) -> String {
        let mut table = Table::new(["<node", "p50 us", "p99 us", "makes/s", "MB/s", "serves/s", "MB/s"]);
        let mut row = |name: String, made: Option<&Figures>, served: Option<&Figures>| {
            let rates = |calls: Option<&Figures>| {
                let per_s = or_dash(calls.map(|figures| format!("{:.0}", figures.calls_per_s)));
                [per_s, or_dash(calls.map(|figures| format!("{:.1}", figures.bytes_per_s / 1e6)))]
            };
            #[expect(clippy::cast_precision_loss, reason = "nanoseconds of a call stay far below 2^52")]
            let time = |ns: fn(&Figures) -> u64| or_dash(made.map(|figures| us(ns(figures) as f64)));
            let times = [time(|figures| figures.rtt_p50_ns), time(|figures| figures.rtt_p99_ns)];
            table.row([name].into_iter().chain(times).chain(rates(made)).chain(rates(served)));
        };
        for OfNode { address, made, served, lost, .. } in (0..self.nodes.len()).map(|node| self.of_node(node))
        {
            let note = if lost.is_some() { " lost" } else { "" };
            row(format!("{address}{note}"), made.as_ref(), served.as_ref());
        }
        row("all".to_owned(), self.all.figures(self.bytes_of_call()).as_ref(), None);
        format!("{}\n{}", table.text(), comparison::table(self.rows()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::saved::Saved;

    fn measured(us: u64, per_s: f64, failed: Option<&str>) -> Measured {
        let failed = failed.map(str::to_owned);
        let (target, times) = (String::new(), vec![(us * 1000, 100)]);
        Measured { target, times, per_s, goodput_per_s: per_s, small: Vec::new(), failed }
    }

    fn outcome() -> Outcome {
        let mut outcome = Outcome::new(["a", "b", "c"].map(str::to_owned).to_vec(), 50, false);
        for per_s in [1000.0, 3000.0] {
            outcome.begin();
            outcome.add(0, 1, &measured(10, per_s, None), false);
            outcome.add(2, 1, &measured(30, per_s, None), false);
            outcome.end(&BTreeMap::new(), &BTreeMap::new());
            outcome.add(0, 1, &measured(10, 2.0 * per_s, None), true);
        }
        outcome
    }

    fn json(outcome: &Outcome) -> serde_json::Value {
        let settings =
            Settings { pattern: "incast", size_bytes: 50, outstanding: 1, seconds: 1.0, one_way: false };
        serde_json::to_value(outcome.json(settings)).unwrap()
    }

    #[test]
    fn figures_are_reported_by_node_by_pair_and_in_total() {
        let outcome = outcome();
        let json = json(&outcome);
        assert_eq!((&json["calls_per_s"], &json["bytes_per_s"]), (&4000.0.into(), &400_000.0.into()));
        assert_eq!(json["partial"], false);
        let mut whole = json.clone();
        (whole["command"], whole["machine"]) = ("run".into(), serde_json::json!({}));
        let saved = Saved::parse("it", whole).unwrap();
        assert_eq!(
            saved.points.iter().map(|point| &point.settings["node"]).collect::<Vec<_>>(),
            ["a", "c", "all"]
        );
        assert_eq!(saved.points[2].each_repetition["calls_per_s"], [2000.0, 6000.0]);
        assert_eq!(saved.points[0].calls.as_ref().unwrap().distribution_ns.points().count(), 11);
        let nodes = &json["nodes"];
        assert_eq!(nodes[0]["made"]["calls_per_s"], 2000.0);
        assert_eq!(nodes[1]["served"]["calls_per_s"], 4000.0);
        assert!(nodes[1]["made"].is_null() && nodes[0]["served"].is_null());
        assert_eq!(nodes[2]["pairs"][0]["target"], "b");
        let p50 = |node: usize| nodes[node]["made"]["rtt_p50_ns"].as_u64().unwrap() / 1000;
        assert_eq!((p50(0), p50(2)), (10, 30));
        assert_eq!(outcome.table().lines().count(), 5 + 1 + 5 + 1 + 3);
        assert_eq!(
            (&json["comparison"]["jain"], &json["comparison"]["tcp_ratio"]),
            (&1.0.into(), &0.5.into())
        );
        assert_eq!(nodes[0]["comparison"]["verdict"]["goodput"], false);
        assert!(outcome.failed_verdicts().unwrap().starts_with("a: failed: goodput 0.500"));
        assert_eq!(outcome.missing(), None);
    }

    #[test]
    fn missing_results_are_named() {
        let mut outcome = outcome();
        outcome.lose(1, "it was killed".to_owned());
        outcome.add(0, 1, &measured(10, 1.0, Some("unreachable")), false);
        outcome.add(0, 2, &measured(10, f64::NAN, None), false);
        let missing = outcome.missing().unwrap();
        for part in
            ["the node b was lost: it was killed", "from a to b ended early: unreachable", "cannot be true"]
        {
            assert!(missing.contains(part), "{missing}");
        }
        let json = json(&outcome);
        assert_eq!((&json["partial"], &json["lost"]["b"]), (&true.into(), &"it was killed".into()));
        assert_eq!(json["nodes"][0]["pairs"][0]["failed"], "unreachable");
        assert!(Outcome::new(Vec::new(), 0, false).is_empty() && !outcome.is_empty());
    }
}
