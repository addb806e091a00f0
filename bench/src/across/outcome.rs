//! What nodes have measured, each and in sum, as JSON and as a table.

use super::service::Measured;
use crate::recorder::histogram;
use crate::spread::Spread;
use hdrhistogram::Histogram;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Most different times that a node may report of one target.
const MOST_TIMES: usize = 1 << 16;

/// Some calls: those of a node, to a node, of a pair, or all.
#[derive(Debug, Clone)]
pub(super) struct Calls {
    times: Histogram<u64>,
    /// Calls per second, by repetition.
    per_s: Vec<f64>,
}

/// The results of a run.
#[derive(Debug)]
pub(super) struct Outcome {
    /// Addresses, as they were given.
    nodes: Vec<String>,
    bytes: u64,
    one_way: bool,
    repetitions: usize,
    all: Calls,
    made: BTreeMap<usize, Calls>,
    served: BTreeMap<usize, Calls>,
    pairs: BTreeMap<(usize, usize), Calls>,
    /// Why calls from one node to another ended early.
    failed: BTreeMap<(usize, usize), String>,
    /// Why nodes were lost.
    lost: BTreeMap<usize, String>,
}

/// Figures of some calls, in JSON. Bytes are those of payloads, in both directions unless calls are one-way.
#[derive(Debug, Serialize)]
struct Figures {
    rtt_p50_ns: u64,
    rtt_p99_ns: u64,
    calls_per_s: f64,
    bytes_per_s: f64,
    /// Over the repetitions.
    calls_per_s_spread: Spread,
}

#[derive(Debug, Serialize)]
struct OfNode<'a> {
    address: &'a str,
    /// The calls that it made.
    #[serde(skip_serializing_if = "Option::is_none")]
    made: Option<Figures>,
    /// The calls of others to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    served: Option<Figures>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pairs: Vec<OfPair<'a>>,
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

/// What the file has.
#[derive(Debug, Serialize)]
pub(super) struct Json<'a> {
    command: &'static str,
    pattern: &'static str,
    size_bytes: u64,
    outstanding: u32,
    seconds: f64,
    one_way: bool,
    /// Those that were measured.
    repetitions: usize,
    /// Whether nodes were lost, or calls failed.
    partial: bool,
    /// Of all calls.
    #[serde(flatten)]
    figures: Option<Figures>,
    nodes: Vec<OfNode<'a>>,
    lost: BTreeMap<&'a str, &'a str>,
}

impl Calls {
    fn new() -> Self {
        Self { times: histogram(), per_s: Vec::new() }
    }

    /// Adds calls of this repetition.
    fn add(&mut self, repetition: usize, measured: &Measured) {
        self.per_s.resize(self.per_s.len().max(repetition + 1), 0.0);
        self.per_s[repetition] += measured.per_s;
        for (time, count) in &measured.times {
            self.times.saturating_record_n(*time, *count);
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "at most 2^27")]
    fn figures(&self, bytes_of_call: u64) -> Option<Figures> {
        // A repetition without these calls says nothing of them.
        let per_s = self.per_s.iter().copied().filter(|per_s| *per_s > 0.0).collect::<Vec<_>>();
        let spread = Spread::of(&per_s)?;
        Some(Figures {
            rtt_p50_ns: self.times.value_at_quantile(0.5),
            rtt_p99_ns: self.times.value_at_quantile(0.99),
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
            all: Calls::new(),
            made: BTreeMap::new(),
            served: BTreeMap::new(),
            pairs: BTreeMap::new(),
            failed: BTreeMap::new(),
            lost: BTreeMap::new(),
        }
    }

    /// Begins another repetition.
    pub(super) fn begin(&mut self) {
        self.repetitions += 1;
    }

    /// Adds what a node has measured of a target in this repetition, as far as it can be true.
    pub(super) fn add(&mut self, node: usize, target: usize, measured: &Measured) {
        if let Some(why) = &measured.failed {
            self.failed.entry((node, target)).or_insert_with(|| why.clone());
        }
        let is_number = measured.per_s.is_finite() && measured.per_s >= 0.0;
        if measured.times.len() > MOST_TIMES || !is_number {
            let why = "it has reported figures that cannot be true".to_owned();
            self.failed.entry((node, target)).or_insert(why);
            return;
        }
        let repetition = self.repetitions.saturating_sub(1);
        let of =
            |calls: Option<&mut Calls>| calls.into_iter().for_each(|calls| calls.add(repetition, measured));
        of(Some(&mut self.all));
        of(Some(self.made.entry(node).or_insert_with(Calls::new)));
        of(Some(self.served.entry(target).or_insert_with(Calls::new)));
        of(Some(self.pairs.entry((node, target)).or_insert_with(Calls::new)));
    }

    /// A node takes part no longer.
    pub(super) fn lose(&mut self, node: usize, why: String) {
        self.lost.entry(node).or_insert(why);
    }

    pub(super) fn is_lost(&self, node: usize) -> bool {
        self.lost.contains_key(&node)
    }

    /// Repetitions that were begun.
    pub(super) const fn repetitions(&self) -> usize {
        self.repetitions
    }

    /// What is missing, if anything is.
    pub(super) fn missing(&self) -> Option<String> {
        let lost =
            self.lost.iter().map(|(node, why)| format!("the node {} was lost: {why}", self.nodes[*node]));
        let failed = self.failed.iter().map(|((node, target), why)| {
            format!("calls from {} to {} ended early: {why}", self.nodes[*node], self.nodes[*target])
        });
        let lines = lost.chain(failed).collect::<Vec<_>>();
        (!lines.is_empty()).then(|| lines.join("\n"))
    }

    /// Whether anything was measured.
    pub(super) fn is_empty(&self) -> bool {
        self.all.figures(0).is_none()
    }

    const fn bytes_of_call(&self) -> u64 {
        if self.one_way { self.bytes } else { 2 * self.bytes }
    }

    /// As JSON. The settings are those of the run.
    pub(super) fn json(&self, pattern: &'static str, outstanding: u32, seconds: f64) -> Json<'_> {
        Json {
            command: "run",
            pattern,
            size_bytes: self.bytes,
            outstanding,
            seconds,
            one_way: self.one_way,
            repetitions: self.repetitions,
            partial: self.missing().is_some(),
            figures: self.all.figures(self.bytes_of_call()),
            nodes: (0..self.nodes.len()).map(|node| self.of_node(node)).collect(),
            lost: self.lost.iter().map(|(node, why)| (self.nodes[*node].as_str(), why.as_str())).collect(),
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
            lost: self.lost.get(&node).map(String::as_str),
        }
    }

    /// As a table: each node, and the sum.
    pub(super) fn table(&self) -> String {
        let mut text = format!(
            "{:<28} {:>10} {:>10} {:>12} {:>10} {:>12} {:>10}\n",
            "node", "p50 us", "p99 us", "makes/s", "MB/s", "serves/s", "MB/s"
        );
        for node in 0..self.nodes.len() {
            let OfNode { address, made, served, lost, .. } = self.of_node(node);
            let note = if lost.is_some() { " lost" } else { "" };
            line(&mut text, &format!("{address}{note}"), made.as_ref(), served.as_ref());
        }
        line(&mut text, "all", self.all.figures(self.bytes_of_call()).as_ref(), None);
        text
    }
}

#[expect(clippy::cast_precision_loss, reason = "nanoseconds of a call stay far below 2^52")]
fn line(text: &mut String, name: &str, made: Option<&Figures>, served: Option<&Figures>) {
    let or_none = |number: Option<String>| number.unwrap_or_else(|| "-".to_owned());
    let us =
        |ns: fn(&Figures) -> u64| or_none(made.map(|figures| format!("{:.2}", ns(figures) as f64 / 1e3)));
    let per_s = |calls: Option<&Figures>| or_none(calls.map(|figures| format!("{:.0}", figures.calls_per_s)));
    let mb =
        |calls: Option<&Figures>| or_none(calls.map(|figures| format!("{:.1}", figures.bytes_per_s / 1e6)));
    // Writing to a string does not fail.
    let _ = writeln!(
        text,
        "{name:<28} {:>10} {:>10} {:>12} {:>10} {:>12} {:>10}",
        us(|figures| figures.rtt_p50_ns),
        us(|figures| figures.rtt_p99_ns),
        per_s(made),
        mb(made),
        per_s(served),
        mb(served)
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(us: u64, per_s: f64, failed: Option<&str>) -> Measured {
        let failed = failed.map(str::to_owned);
        Measured { target: String::new(), times: vec![(us * 1000, 100)], per_s, failed }
    }

    fn outcome() -> Outcome {
        let mut outcome = Outcome::new(["a", "b", "c"].map(str::to_owned).to_vec(), 50, false);
        for per_s in [1000.0, 3000.0] {
            outcome.begin();
            outcome.add(0, 1, &measured(10, per_s, None));
            outcome.add(2, 1, &measured(30, per_s, None));
        }
        outcome
    }

    #[test]
    fn figures_are_of_nodes_of_pairs_and_in_sum() {
        let outcome = outcome();
        let json = serde_json::to_value(outcome.json("incast", 1, 1.0)).unwrap();
        assert_eq!((&json["calls_per_s"], &json["bytes_per_s"]), (&4000.0.into(), &400_000.0.into()));
        assert_eq!((&json["partial"], &json["repetitions"]), (&false.into(), &2.into()));
        let nodes = &json["nodes"];
        assert_eq!(nodes[0]["made"]["calls_per_s"], 2000.0);
        assert_eq!(nodes[1]["served"]["calls_per_s"], 4000.0);
        assert!(nodes[1]["made"].is_null() && nodes[0]["served"].is_null());
        assert_eq!(nodes[2]["pairs"][0]["target"], "b");
        let p50 = |node: usize| nodes[node]["made"]["rtt_p50_ns"].as_u64().unwrap() / 1000;
        assert_eq!((p50(0), p50(2)), (10, 30));
        assert_eq!(outcome.table().lines().count(), 5);
        assert_eq!(outcome.missing(), None);
    }

    #[test]
    fn what_is_missing_is_named() {
        let mut outcome = outcome();
        outcome.lose(1, "it was killed".to_owned());
        outcome.add(0, 1, &measured(10, 1.0, Some("unreachable")));
        outcome.add(0, 2, &measured(10, f64::NAN, None));
        let missing = outcome.missing().unwrap();
        for part in
            ["the node b was lost: it was killed", "from a to b ended early: unreachable", "cannot be true"]
        {
            assert!(missing.contains(part), "{missing}");
        }
        let json = serde_json::to_value(outcome.json("ring", 1, 1.0)).unwrap();
        assert_eq!((&json["partial"], &json["lost"]["b"]), (&true.into(), &"it was killed".into()));
        assert_eq!(json["nodes"][0]["pairs"][0]["failed"], "unreachable");
        assert!(Outcome::new(Vec::new(), 0, false).is_empty() && !outcome.is_empty());
    }
}
