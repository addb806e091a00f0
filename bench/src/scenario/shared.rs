//! The `shared` subcommand: calls from all kinds of callers, next to tonic and tarpc over TCP, on cores that other
//! programs also use.
//!
//! There are no floors, because a floor polls and would measure the scheduler. Drift is not detected, because busy loops
//! have the same effect as drift.

use crate::calls::client::CallerKind;
use crate::calls::nodes::{LinkFlag, Nodes};
use crate::calls::session::Session;
use crate::calls::worker::{Exchange, Plan};
use crate::floors::Shape;
use crate::meter::failure::Failure;
use crate::meter::load::{Load, Neighbours, Quota};
use crate::meter::pin::{Cores, Pin};
use crate::meter::spread::{Spread, digits};
use crate::results::table::{Table, or_dash};
use crate::scenario::point::OfPeer;
use crate::scenario::{Output, Scenario, Sweep};
use crate::systems::figures::Figures;
use crate::systems::{Peer, Peers};
use clap::Args;
use serde::Serialize;
use serde_json::json;
use std::time::Duration;
use trunkline_testkit::output;

/// Payload in each direction, in bytes.
const SIZE: usize = 64;
/// Numbers of calls in flight to measure.
const OUTSTANDING: [usize; 2] = [1, 32];

/// Load and settings of the measurement.
#[derive(Debug, Clone, Args)]
pub(crate) struct Shared {
    #[command(flatten)]
    load: Load,
    /// Path of the packets.
    #[arg(long, value_enum, default_value_t = LinkFlag::Auto)]
    link: LinkFlag,
    #[command(flatten)]
    sweep: Sweep,
    #[command(flatten)]
    peers: Peers,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    nodes: Nodes,
}

/// A kind of caller or another system, with its figures for each number of calls in flight.
struct System {
    name: String,
    kind: CallerKind,
    peer: Option<Peer>,
    figures: [Vec<Figures>; 2],
}

/// Results of one system for one number of calls in flight, as medians over the repetitions.
#[derive(Debug, Serialize)]
struct Row {
    system: String,
    outstanding: usize,
    rtt_p50_ns: Spread,
    rtt_p99_ns: Spread,
    calls_per_s: Spread,
}

/// Measures and prints the results.
///
/// # Errors
/// Returns an error if the measurement fails or the file cannot be written.
pub(crate) fn measure(wanted: &Shared) -> Result<(), Failure> {
    let scenario = Scenario::begin("shared", &wanted.output, None)?;
    let Sweep { seconds, repetitions, pin } = wanted.sweep;
    let cores = Pin::cores(pin)?;
    let (link, _) = Session::link(wanted.link, &wanted.nodes, wanted.output.quiet)?;
    if let Some(Err(why)) = wanted.load.quota.map(Quota::start) {
        return Ok(output::out(&format!("skip: {why}"))?);
    }
    let ours = |kind: CallerKind| (format!("Trunkline, {}, {}", link.name(), kind.name()), kind, None);
    let peers = wanted.peers.over_tcp()?;
    let peers = peers.into_iter().map(|peer| (peer.name.clone(), CallerKind::Thread, Some(peer)));
    let all = [CallerKind::Poller, CallerKind::Thread, CallerKind::Tokio].map(ours).into_iter().chain(peers);
    let system = |(name, kind, peer)| System { name, kind, peer, figures: Default::default() };
    let mut systems: Vec<_> = all.map(system).collect();
    let measured = scenario.sweep(
        repetitions,
        &mut systems,
        |system| system.name.clone(),
        |system| {
            // Pinning lasts as long as the thread, and child processes inherit it. Each measurement therefore runs in a
            // new thread.
            let measured = std::thread::scope(|scope| {
                let measured = scope.spawn(|| wanted.measure(system, link, cores)).join();
                measured.unwrap_or_else(|_| Err("the measurement panicked".to_owned().into()))
            })?;
            system.figures.iter_mut().zip(measured).for_each(|(all, each)| all.push(each));
            Ok(())
        },
    );
    let rows = rows(&systems);
    let results = json!({
        "seconds": seconds,
        "repetitions": repetitions,
        "cores": cores.map(Cores::pair),
        "link": link.name(),
        "neighbours": wanted.load.neighbours,
        "quota": wanted.load.quota,
        "rows": rows,
    });
    scenario.end(measured, &table(&rows), &results, &format!("{repetitions} repetitions"))
}

impl Shared {
    /// Measures one system with each number of calls in flight.
    fn measure(
        &self,
        system: &System,
        link: LinkFlag,
        cores: Option<Cores>,
    ) -> Result<Vec<Figures>, Failure> {
        let measured = Duration::from_secs_f64(self.sweep.seconds);
        if let Some(peer) = &system.peer {
            let shape =
                |outstanding| Shape { size: SIZE, reply: SIZE, outstanding, pause: None, measured, cores };
            let figures = OUTSTANDING.map(|outstanding| peer.measure(&shape(outstanding), self.load));
            return Ok(figures.into_iter().collect::<Result<_, _>>()?);
        }
        let _neighbours = Neighbours::start(self.load.neighbours)?;
        let quota = self.load.quota.map(Quota::start).transpose()?;
        let session = Session::start(link, &self.nodes, system.kind, cores)?;
        if let (Some(quota), Some(server)) = (&quota, session.servers().process()) {
            quota.join_server(server)?;
        }
        let figures = OUTSTANDING.map(|outstanding| {
            let plan = Plan::closed_loop(Exchange::Echo, SIZE, outstanding, measured);
            let plan = Plan { is_mean: self.load.is_any(), ..plan };
            session.measure(plan).map(|sample| Figures::of(&sample))
        });
        figures.into_iter().collect()
    }
}

/// Returns the figures of all systems for each number of calls in flight.
fn rows(systems: &[System]) -> Vec<Row> {
    let rows = systems.iter().flat_map(|System { name, figures, .. }| {
        OUTSTANDING.iter().zip(figures).map(move |(&outstanding, all)| (name, outstanding, OfPeer::of(all)))
    });
    let row = |(system, outstanding, figures): (&String, usize, OfPeer)| {
        Some(Row {
            system: system.clone(),
            outstanding,
            rtt_p50_ns: figures.p50_ns?,
            rtt_p99_ns: figures.p99_ns?,
            calls_per_s: figures.per_s?,
        })
    };
    rows.filter_map(row).collect()
}

/// Returns a table of the medians, and of the rates relative to tarpc over TCP.
fn table(rows: &[Row]) -> String {
    let titles = ["<system", "outstanding", "p50, µs", "p99, µs", "calls/s", "relative to tarpc, TCP"];
    let mut table = Table::new(titles);
    for outstanding in OUTSTANDING {
        let rows = || rows.iter().filter(|row| row.outstanding == outstanding);
        let base = rows().find(|row| row.system == "tarpc, TCP").map(|row| row.calls_per_s.median);
        for Row { system, rtt_p50_ns, rtt_p99_ns, calls_per_s, .. } in rows() {
            let times = [rtt_p50_ns, rtt_p99_ns].map(|ns| digits(ns.median / 1e3));
            let ratio = or_dash(base.map(|base| digits(calls_per_s.median / base)));
            let names = [system.clone(), outstanding.to_string()];
            table.row(names.into_iter().chain(times).chain([digits(calls_per_s.median), ratio]));
        }
    }
    table.markdown().trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_relative_to_tarpc_with_equal_outstanding_calls() {
        let system = |name: &str, rates: [f64; 2]| {
            let figures = rates.map(|per_s| {
                vec![Figures { p50_ns: Some(1.5e3), p99_ns: Some(2e6), mean_ns: None, per_s: Some(per_s) }]
            });
            System { name: name.to_owned(), kind: CallerKind::Poller, peer: None, figures }
        };
        let text = table(&rows(&[system("a", [300.0, 900.0]), system("tarpc, TCP", [200.0, 300.0])]));
        let lines: Vec<_> = text.lines().skip(2).collect();
        assert_eq!(lines[0], "| a | 1 | 1.50 | 2000 | 300 | 1.50 |");
        assert_eq!(lines[2], "| a | 32 | 1.50 | 2000 | 900 | 3.00 |");
    }
}
