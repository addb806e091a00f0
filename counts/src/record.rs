//! Counts as JSON, and the check for growth.

use crate::layers::{ByLayer, Layer};
use crate::side::{Linked, SHAPES, Shape};
use crate::steps::SideTotals;
use crate::toolchain::Toolchain;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Maximum factor by which the instructions of a side may grow.
const MOST_GROWTH: f64 = 1.03;
/// Growth of allocations or system calls per call up to which counts are considered equal. The choice of the first and
/// last counted calls shifts the averages by less than this.
const SAME: f64 = 0.02;

/// Counts of one side, per call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct SideCounts {
    pub(crate) codec: f64,
    pub(crate) rpc: f64,
    pub(crate) transport: f64,
    pub(crate) device: f64,
    pub(crate) program: f64,
    pub(crate) allocations: f64,
    pub(crate) system_calls: f64,
    pub(crate) datagrams: f64,
    pub(crate) bytes_on_the_wire: f64,
    pub(crate) turns: f64,
}

impl SideCounts {
    /// Divides the counts of a run by the number of its calls.
    #[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^52")]
    pub(crate) fn new(calls: u64, instructions: ByLayer, system_calls: u64, own: SideTotals) -> Self {
        let each = |count: f64, places: f64| (count / calls as f64 * places).round() / places;
        let layer = |layer: Layer| each(instructions[layer as usize], 1.0);
        let count = |count: u64| each(count as f64, 1000.0);
        Self {
            codec: layer(Layer::Codec),
            rpc: layer(Layer::Rpc),
            transport: layer(Layer::Transport),
            device: layer(Layer::Device),
            program: layer(Layer::Program),
            allocations: count(own.allocations),
            system_calls: count(system_calls),
            datagrams: count(own.datagrams),
            bytes_on_the_wire: each(own.bytes as f64, 10.0),
            turns: count(own.turns),
        }
    }

    /// Returns the instructions on the path of a call, which the check compares.
    pub(crate) fn instructions(&self) -> f64 {
        self.codec + self.rpc + self.transport + self.device
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct LinkCounts {
    pub(crate) client: SideCounts,
    pub(crate) server: SideCounts,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Links {
    #[serde(rename = "in-process")]
    pub(crate) in_process: LinkCounts,
    pub(crate) udp: LinkCounts,
    pub(crate) shm: LinkCounts,
}

impl Links {
    pub(crate) fn over(&self, linked: Linked) -> &LinkCounts {
        match linked {
            Linked::InProcess => &self.in_process,
            Linked::Udp => &self.udp,
            Linked::Shm => &self.shm,
        }
    }
}

/// All counts, with the toolchain and the settings on which they depend.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) toolchain: Toolchain,
    pub(crate) payload_bytes: u64,
    /// Number of calls over which each count is averaged.
    pub(crate) calls: u64,
    /// Number of bytes between XRCETH and payload, in a request and in a reply.
    pub(crate) request_header_bytes: u64,
    pub(crate) reply_header_bytes: u64,
    /// Counts with 32 calls in flight.
    #[serde(flatten)]
    pub(crate) outstanding_32: Links,
    /// Counts with one call in flight.
    pub(crate) one_outstanding: Links,
    /// Counts for other shapes by name, in process and with 32 calls in flight. Counts for streams are per item of one
    /// stream.
    #[serde(default)]
    pub(crate) shapes: BTreeMap<String, LinkCounts>,
}

impl Record {
    /// Returns the rows of the table. Each contains the name of the link or shape, the calls in flight, the side and the
    /// counts.
    pub(crate) fn rows(&self) -> Vec<(String, u32, &'static str, &SideCounts)> {
        let mut rows = Vec::new();
        for linked in [Linked::InProcess, Linked::Udp, Linked::Shm] {
            for (outstanding, links) in [(1, &self.one_outstanding), (32, &self.outstanding_32)] {
                let LinkCounts { client, server } = links.over(linked);
                rows.extend([
                    (linked.name().to_owned(), outstanding, "client", client),
                    (linked.name().to_owned(), outstanding, "server", server),
                ]);
            }
        }
        for (shape, LinkCounts { client, server }) in &self.shapes {
            let name = || format!("{}, {shape}", Linked::InProcess.name());
            let known = SHAPES.into_iter().find(|known| known.name() == shape);
            let outstanding = known.unwrap_or(Shape::Plain).outstanding();
            rows.extend([(name(), outstanding, "client", client), (name(), outstanding, "server", server)]);
        }
        rows
    }

    /// Returns the cost of a stream item on both sides, by shape. The cost is relative to the instructions for a call
    /// with the same payload and 32 calls in flight.
    pub(crate) fn items_of_a_call(&self) -> Vec<(&'static str, f64)> {
        let both = |counts: &LinkCounts| counts.client.instructions() + counts.server.instructions();
        let call = both(&self.outstanding_32.in_process);
        let streams = SHAPES.into_iter().filter(|shape| shape.streams());
        let part = |shape: Shape| Some((shape.name(), both(self.shapes.get(shape.name())?) / call));
        streams.filter_map(part).collect()
    }

    /// Returns the growth since `before`, as one line per grown count.
    pub(crate) fn growth_since(&self, before: &Self) -> Vec<String> {
        let mut grown = Vec::new();
        let mut compare = |what: String, now: f64, then: f64, most: f64| {
            if now > most {
                grown.push(format!("{what}: {now} per call, {then} on record"));
            }
        };
        let before = before.rows();
        for (ways, outstanding, side, now) in self.rows() {
            // The record may be older than the shape.
            let same = before.iter().find(|(of, at, on, _)| (of, *at, *on) == (&ways, outstanding, side));
            let Some((.., then)) = same else { continue };
            let what = |count: &str| format!("{count} of the {side}, {ways}, {outstanding} outstanding");
            let (all, all_then) = (now.instructions(), then.instructions());
            compare(what("instructions"), all, all_then, all_then * MOST_GROWTH);
            compare(what("allocations"), now.allocations, then.allocations, then.allocations + SAME);
            compare(what("system calls"), now.system_calls, then.system_calls, then.system_calls + SAME);
        }
        grown
    }
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Verdict {
    /// No count has grown.
    Same,
    /// Some counts have grown.
    Grown(Vec<String>),
    /// The record is from another toolchain, so the counts are not comparable. Contains the differences between the
    /// toolchains.
    OtherToolchain(String),
}

/// Compares counts with a record.
pub(crate) fn check(now: &Record, before: &Record) -> Verdict {
    let differences = now.toolchain.differences(&before.toolchain);
    if !differences.is_empty() {
        return Verdict::OtherToolchain(differences);
    }
    match now.growth_since(before) {
        grown if grown.is_empty() => Verdict::Same,
        grown => Verdict::Grown(grown),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        let side = || SideCounts {
            codec: 100.0,
            rpc: 1000.0,
            transport: 2000.0,
            device: 6900.0,
            program: 50.0,
            allocations: 2.0,
            system_calls: 0.0,
            datagrams: 1.0,
            bytes_on_the_wire: 120.0,
            turns: 1.0,
        };
        let links = || {
            let link = || LinkCounts { client: side(), server: side() };
            Links { in_process: link(), udp: link(), shm: link() }
        };
        let toolchain = Toolchain {
            rustc: "rustc 1".to_owned(),
            valgrind: "valgrind 1".to_owned(),
            libc: "glibc 1".to_owned(),
            processor: "x86_64".to_owned(),
        };
        Record {
            toolchain,
            payload_bytes: 64,
            calls: 1,
            request_header_bytes: 32,
            reply_header_bytes: 24,
            outstanding_32: links(),
            one_outstanding: links(),
            shapes: BTreeMap::from([("channel".to_owned(), LinkCounts { client: side(), server: side() })]),
        }
    }

    fn verdict(change: impl FnOnce(&mut Record)) -> Verdict {
        let mut now = record();
        change(&mut now);
        check(&now, &record())
    }

    #[test]
    fn counts_may_shrink_move_between_layers_and_grow_slightly() {
        assert_eq!(verdict(|_| {}), Verdict::Same);
        assert_eq!(verdict(|now| now.outstanding_32.udp.client.device -= 3000.0), Verdict::Same);
        let moved = verdict(|now| {
            now.outstanding_32.udp.client.device -= 500.0;
            now.outstanding_32.udp.client.codec += 500.0;
        });
        assert_eq!(moved, Verdict::Same);
        assert_eq!(verdict(|now| now.one_outstanding.in_process.server.rpc += 290.0), Verdict::Same);
        assert_eq!(verdict(|now| now.one_outstanding.in_process.server.program += 5000.0), Verdict::Same);
    }

    #[test]
    fn grown_counts_are_named() {
        let grown = |change: fn(&mut Record)| match verdict(change) {
            Verdict::Grown(grown) => grown.join("; "),
            other => panic!("{other:?}"),
        };
        let more = grown(|now| now.one_outstanding.in_process.server.rpc += 310.0);
        assert_eq!(
            more,
            "instructions of the server, in-process, 1 outstanding: 10310 per call, 10000 on record"
        );
        let more = grown(|now| now.outstanding_32.udp.client.system_calls += 0.1);
        assert!(more.starts_with("system calls of the client, udp, 32 outstanding"), "{more}");
        assert!(grown(|now| now.outstanding_32.udp.server.allocations += 0.1).contains("allocations"));
    }

    #[test]
    fn shapes_are_compared_by_name_if_present_in_both_records() {
        let slow = |record: &mut Record| {
            record.shapes.get_mut("channel").unwrap().client.rpc += 5000.0;
        };
        assert!(
            matches!(verdict(slow), Verdict::Grown(grown) if grown[0].contains("in-process, channel, 32"))
        );
        let mut older = record();
        older.shapes.clear();
        let mut now = record();
        slow(&mut now);
        assert_eq!(check(&now, &older), Verdict::Same);
    }

    #[test]
    fn items_of_streams_are_compared_with_calls() {
        let mut record = record();
        assert_eq!(record.items_of_a_call(), []);
        let mut counts = record.outstanding_32.in_process.clone();
        (counts.client.device, counts.server.device) = (0.0, 900.0);
        record.shapes.insert("client-stream".to_owned(), counts);
        assert_eq!(record.items_of_a_call(), [("client-stream", 7100.0 / 20_000.0)]);
        let streams = record.rows().into_iter().filter(|(ways, ..)| ways == "in-process, client-stream");
        assert!(streams.map(|(_, outstanding, ..)| outstanding).eq([1, 1]));
    }

    #[test]
    fn counts_of_another_toolchain_are_reported_and_not_compared() {
        let changed = verdict(|now| {
            now.toolchain.rustc = "rustc 2".to_owned();
            now.one_outstanding.udp.server.device *= 2.0;
        });
        assert_eq!(changed, Verdict::OtherToolchain("rustc 2 instead of rustc 1".to_owned()));
    }

    #[test]
    fn record_json_has_expected_keys_and_round_trips() {
        let json = serde_json::to_value(record()).unwrap();
        for link in ["in-process", "udp", "shm"] {
            for side in ["client", "server"] {
                for key in ["codec", "rpc", "transport", "device", "allocations", "system_calls"] {
                    assert!(json[link][side][key].is_number(), "{link} {side} {key}");
                }
            }
        }
        assert_eq!(json["request_header_bytes"], 32);
        assert_eq!(json["toolchain"]["rustc"], "rustc 1");
        assert_eq!(serde_json::from_value::<Record>(json).unwrap(), record());
    }
}
