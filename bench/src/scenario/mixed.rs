//! Calls of several sizes and kinds in a mix, and each kind alone in the same run.

use crate::calls::client::CallerKind;
use crate::calls::nodes::{LinkFlag, Nodes};
use crate::calls::session::Session;
use crate::calls::worker::{Exchange, Measurement, Member, Plan};
use crate::meter::failure::Failure;
use crate::meter::pin::Pin;
use crate::results::table::{Table, us};
use crate::scenario::drift::{Kept, steady};
use crate::scenario::point::Repetitions;
use crate::scenario::{Output, Scenario, Sweep};
use crate::sizes::{Sizes, as_f64, written};
use clap::Args;
use serde_json::json;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

/// Maximum number of members.
const MOST_MEMBERS: usize = 16;
/// Maximum weight of a member.
const MOST_WEIGHT: u32 = 10_000;

/// Mix of calls, and settings of the measurement.
#[derive(Debug, Clone, Args)]
pub(crate) struct Mixed {
    /// Sizes with their weights, such as `64:90,64K:9,1M:1`; `/oneway` after a size makes its calls one-way.
    #[arg(long, value_name = "MIX", default_value = "64:90,64K:9,1M:1")]
    mix: Mix,
    /// Total number of outstanding calls.
    #[arg(long, value_name = "CALLS", default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=4096))]
    outstanding: u16,
    #[command(flatten)]
    sweep: Sweep,
    /// Path of the packets.
    #[arg(long, value_enum, default_value_t = LinkFlag::Auto)]
    link: LinkFlag,
    /// Kind of thread or task that makes the calls.
    #[arg(long, value_enum, default_value_t = CallerKind::Poller)]
    client: CallerKind,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    nodes: Nodes,
}

/// All members together or a single member, with the results of each repetition.
struct Point {
    members: Vec<Member>,
    repetitions: Vec<Repetitions>,
}

/// Measures and prints the results.
///
/// # Errors
/// Returns an error if the measurement fails or the file cannot be written.
pub(crate) fn measure(mixed: &Mixed) -> Result<(), Failure> {
    let scenario = Scenario::begin("mixed", &mixed.output, None)?;
    let Sweep { seconds, repetitions, pin } = mixed.sweep;
    let (link, _) = Session::link(mixed.link, &mixed.nodes, mixed.output.quiet)?;
    let cores = Pin::cores(pin)?;
    let session = Session::start(link, &mixed.nodes, mixed.client, cores)?;
    let (outstanding, measured) = (usize::from(mixed.outstanding), Duration::from_secs_f64(seconds));
    let plan = Plan::closed_loop(Exchange::Echo, 0, outstanding, measured);
    let point = |members: &[Member]| Point {
        members: members.to_vec(),
        repetitions: vec![Repetitions::default(); members.len()],
    };
    // The first point contains all members, and each of the others contains one member.
    let members = &mixed.mix.0;
    let mut points: Vec<_> = [&members[..]].into_iter().chain(members.chunks(1)).map(point).collect();
    let name = |point: &Point| Mix(point.members.clone()).to_string();
    let measured = scenario.sweep(repetitions, &mut points, name, |point| {
        let Kept { value, dropped, drifted } = steady(cores, || {
            let measurement = Arc::new(Measurement::of_members(plan, &point.members));
            session.run(&measurement, plan.outstanding)?;
            Ok(measurement.finish_members()?)
        })?;
        for (value, repetitions) in value.into_iter().zip(&mut point.repetitions) {
            repetitions.add(&Kept { value, dropped, drifted });
        }
        session.servers().death().map_or(Ok(()), Err)
    });
    let (together, alone) = (&points[0].repetitions, points[1..].iter().flat_map(|point| &point.repetitions));
    let (mut calls_per_s, mut bytes_per_s, mut of_members) = (0.0, 0.0, Vec::new());
    let titles = ["<", "p50 us", "p99 us", "per second", "p50 alone us", "p99 alone us", "alone per s"];
    let mut table = Table::new(titles);
    for ((&Member { exchange, size, weight }, together), alone) in members.iter().zip(together).zip(alone) {
        let (Some(mixed), Some(alone)) = (together.summary(), alone.summary()) else { continue };
        let one_way = exchange == Exchange::OneWay;
        calls_per_s += mixed.per_s.median;
        bytes_per_s += mixed.per_s.median * as_f64(if one_way { size } else { 2 * size });
        let name = format!("{}{}", written(size), if one_way { ", one-way" } else { "" });
        let figures = [&mixed, &alone].map(|summary| {
            let (p50, p99) = (us(summary.p50_ns.median), us(summary.p99_ns.median));
            [p50, p99, format!("{:.0}", summary.per_s.median)]
        });
        table.row([name].into_iter().chain(figures.into_iter().flatten()));
        of_members.push(json!({
            "size_bytes": size,
            "one_way": one_way,
            "weight": weight,
            "mixed": mixed,
            "alone": alone,
        }));
    }
    let text = format!(
        "mixed: {}, {} under way\n{}  {calls_per_s:.0} calls/s and {:.1} MB/s in all\n",
        mixed.mix,
        mixed.outstanding,
        table.text(),
        bytes_per_s / 1e6
    );
    let results = json!({
        "mix": mixed.mix.to_string(),
        "outstanding": mixed.outstanding,
        "seconds": seconds,
        "link": link.name(),
        // The rate is the total over all members of the mix. Payload bytes are counted in both directions, unless calls
        // are one-way.
        "calls_per_s": calls_per_s,
        "bytes_per_s": bytes_per_s,
        "members": of_members,
    });
    let what = format!("{} members, {repetitions} repetitions", members.len());
    scenario.end(measured, if table.is_empty() { "" } else { &text }, &results, &what)
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mix(Vec<Member>);

impl FromStr for Mix {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let members = text.split(',').map(member).collect::<Result<Vec<_>, _>>()?;
        if members.len() > MOST_MEMBERS {
            return Err(format!("a mix has at most {MOST_MEMBERS} members"));
        }
        Ok(Self(members))
    }
}

fn member(text: &str) -> Result<Member, String> {
    let wrong = || format!("invalid member `{text}`: expected SIZE:WEIGHT, such as 64:90 or 64K/oneway:9");
    let (what, weight) = text.split_once(':').ok_or_else(wrong)?;
    let weight = weight.parse().ok().filter(|weight| (1..=MOST_WEIGHT).contains(weight));
    let weight = weight.ok_or_else(|| format!("{}, with a weight of 1 to {MOST_WEIGHT}", wrong()))?;
    let (size, exchange) = match what.split_once('/') {
        Some((size, "oneway")) => (size, Exchange::OneWay),
        Some(_) => return Err(wrong()),
        None => (what, Exchange::Echo),
    };
    match size.parse::<Sizes>()?.0[..] {
        [size] => Ok(Member { exchange, size, weight }),
        _ => Err(wrong()),
    }
}

impl fmt::Display for Mix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, &Member { exchange, size, weight }) in self.0.iter().enumerate() {
            let comma = if at > 0 { "," } else { "" };
            let kind = if exchange == Exchange::OneWay { "/oneway" } else { "" };
            write!(f, "{comma}{}{kind}:{weight}", written(size))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mixes_round_trip_and_invalid_mixes_are_refused() {
        let mix = "64:90,64K/oneway:9,1M:1".parse::<Mix>().unwrap();
        assert_eq!(mix.0[1], Member { exchange: Exchange::OneWay, size: 65536, weight: 9 });
        assert_eq!(mix.to_string(), "64:90,64K/oneway:9,1M:1");
        for wrong in ["", "64", "64:", "64:0", "64:10001", "64/twoway:1", "65M:1", "64:1,", "1..4:1"] {
            assert!(wrong.parse::<Mix>().is_err(), "{wrong}");
        }
        assert!(["1:1"; 17].join(",").parse::<Mix>().unwrap_err().contains("at most"));
    }
}
