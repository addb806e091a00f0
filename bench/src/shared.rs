//! `shared`: calls of every kind of caller beside tonic and tarpc over TCP, on cores that other programs use too.
//!
//! There are no floors, because a floor polls and would measure the scheduler. Drift is not detected, because busy loops
//! look like it.

use crate::client::Kind;
use crate::failure::Failure;
use crate::figures::Figures;
use crate::floors::Shape;
use crate::load::{Load, Neighbours, Quota};
use crate::machine::{Machine, Stamp};
use crate::nodes::{LinkFlag, Nodes};
use crate::payload::Buffer;
use crate::pin::{Cores, Pin};
use crate::progress;
use crate::quantities::seconds;
use crate::session::Session;
use crate::spread::{Spread, digits};
use crate::systems::Peer;
use crate::whole_file;
use crate::worker::{Exchange, Plan};
use clap::Args;
use serde::Serialize;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use trunkline_testkit::output;

/// Payload bytes in each direction.
const SIZE: usize = 64;
/// Numbers of calls under way.
const OUTSTANDING: [usize; 2] = [1, 32];

/// Load and settings.
#[derive(Debug, Clone, Args)]
pub(crate) struct Shared {
    #[command(flatten)]
    load: Load,
    /// Path of the packets.
    #[arg(long, value_enum, default_value_t = LinkFlag::Auto)]
    link: LinkFlag,
    /// Measured time of each repetition, after a warm-up of a quarter of it.
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    seconds: f64,
    /// Number of repetitions of all measurements, in turn.
    #[arg(long, value_name = "TIMES", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repetitions: u32,
    /// Cores of client and server, like `0,1`, or `off`. By default the first two that the process may use.
    #[arg(long, value_name = "CORES")]
    pin: Option<Pin>,
    /// The program with the systems in Rust, where these sources are not: bench/peers, built.
    #[arg(long, value_name = "FILE")]
    peers_program: Option<PathBuf>,
    /// Also write the results to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Print nothing but errors.
    #[arg(long)]
    quiet: bool,
    #[command(flatten)]
    nodes: Nodes,
}

/// A system under measurement.
enum System {
    Trunkline(Kind),
    Peer(Peer),
}

/// Results of one system with one number of calls under way.
#[derive(Debug, Serialize)]
struct Row {
    system: String,
    outstanding: usize,
    /// Medians of the repetitions.
    rtt_p50_ns: Spread,
    rtt_p99_ns: Spread,
    calls_per_s: Spread,
}

/// Contents of the JSON file.
#[derive(Debug, Serialize)]
struct Results {
    command: &'static str,
    #[serde(flatten)]
    stamp: Stamp,
    machine: Machine,
    seconds: f64,
    repetitions: u32,
    cores: Option<[usize; 2]>,
    link: &'static str,
    neighbours: u32,
    quota: Option<f64>,
    rows: Vec<Row>,
}

/// Measures and prints the results.
///
/// # Errors
/// Fails with the reason if it cannot be measured or the file cannot be written.
pub(crate) fn measure(wanted: &Shared) -> Result<(), Failure> {
    whole_file::check(&wanted.json)?;
    let (began, machine) = (Instant::now(), Machine::here());
    let cores = Pin::cores(wanted.pin)?;
    let (link, _) = Session::link(wanted.link, &wanted.nodes, wanted.quiet)?;
    if let Some(Err(why)) = wanted.load.quota.map(Quota::start) {
        return Ok(output::out(&format!("skip: {why}"))?);
    }
    let mut systems =
        [Kind::Poller, Kind::Thread, Kind::Tokio].map(System::Trunkline).into_iter().collect::<Vec<_>>();
    let peers = Peer::all(wanted.peers_program.as_deref())?;
    systems.extend(peers.into_iter().filter(Peer::is_over_tcp).map(System::Peer));
    let bar = progress::bar(wanted.quiet, u64::from(wanted.repetitions) * systems.len() as u64);
    let mut figures = vec![Vec::new(); systems.len() * OUTSTANDING.len()];
    for _ in 0..wanted.repetitions {
        for (system, figures) in systems.iter().zip(figures.chunks_mut(OUTSTANDING.len())) {
            bar.set_message(system.name(link));
            // A thread that is pinned stays pinned, and so would the processes that it starts.
            let measured = std::thread::scope(|scope| {
                let measured = scope.spawn(|| wanted.measure(system, link, cores)).join();
                measured.unwrap_or_else(|_| Err("the measurement panicked".to_owned().into()))
            })?;
            figures.iter_mut().zip(measured).for_each(|(all, each)| all.push(each));
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    let points =
        systems.iter().flat_map(|system| OUTSTANDING.map(|outstanding| (system.name(link), outstanding)));
    let rows =
        points.zip(&figures).filter_map(|((system, outstanding), all)| Row::of(system, outstanding, all));
    let results = Results {
        command: "shared",
        stamp: Stamp::now(),
        machine,
        seconds: wanted.seconds,
        repetitions: wanted.repetitions,
        cores: cores.map(|Cores { client, server }| [client, server]),
        link: link.name(),
        neighbours: wanted.load.neighbours,
        quota: wanted.load.quota,
        rows: rows.collect(),
    };
    if !wanted.quiet {
        output::out(&table(&results.rows))?;
    }
    let written = wanted.json.as_ref().map_or(Ok(()), |path| whole_file::write_json(path, &results));
    written.map_err(Failure::Unwritten)?;
    progress::end(wanted.quiet, "shared", began, &wanted.json)
}

impl Shared {
    /// Measures one system with each number of calls under way.
    fn measure(
        &self,
        system: &System,
        link: LinkFlag,
        cores: Option<Cores>,
    ) -> Result<Vec<Figures>, Failure> {
        let measured = Duration::from_secs_f64(self.seconds);
        let kind = match system {
            System::Trunkline(kind) => *kind,
            System::Peer(peer) => {
                let shape = |outstanding| Shape {
                    size: SIZE,
                    reply: SIZE,
                    outstanding,
                    pause: None,
                    measured,
                    cores,
                };
                let figures = OUTSTANDING.map(|outstanding| peer.measure(&shape(outstanding), self.load));
                return Ok(figures.into_iter().collect::<Result<_, _>>()?);
            }
        };
        let _neighbours = Neighbours::start(self.load.neighbours)?;
        let quota = self.load.quota.map(Quota::start).transpose()?;
        let session = Session::start(link, &self.nodes, kind, cores)?;
        if let (Some(quota), Some(server)) = (&quota, session.servers().process()) {
            quota.join_server(server)?;
        }
        let figures = OUTSTANDING.map(|outstanding| {
            let plan = Plan {
                exchange: Exchange::Echo,
                size: SIZE,
                outstanding,
                pause: None,
                arrivals: None,
                buffer: Buffer::Reused,
                verify: false,
                measured,
                is_mean: self.load.is_any(),
            };
            session.measure(plan).map(|sample| Figures::of(&sample))
        });
        figures.into_iter().collect()
    }
}

impl System {
    fn name(&self, link: LinkFlag) -> String {
        match self {
            Self::Trunkline(kind) => format!("Trunkline, {}, {}", link.name(), kind.name()),
            Self::Peer(peer) => peer.name.clone(),
        }
    }
}

impl Row {
    fn of(system: String, outstanding: usize, all: &[Figures]) -> Option<Self> {
        let spread = |figure: fn(&Figures) -> Option<f64>| {
            Spread::of(&all.iter().filter_map(figure).collect::<Vec<_>>())
        };
        Some(Self {
            system,
            outstanding,
            rtt_p50_ns: spread(|figures| figures.p50_ns)?,
            rtt_p99_ns: spread(|figures| figures.p99_ns)?,
            calls_per_s: spread(|figures| figures.per_s)?,
        })
    }
}

/// Returns the medians, and the rates relative to tarpc over TCP.
fn table(rows: &[Row]) -> String {
    let mut text =
        "| system | outstanding | p50, µs | p99, µs | calls/s | relative to tarpc, TCP |\n".to_owned();
    text.push_str("|---|---:|---:|---:|---:|---:|\n");
    for outstanding in OUTSTANDING {
        let rows = || rows.iter().filter(|row| row.outstanding == outstanding);
        let base = rows().find(|row| row.system == "tarpc, TCP").map(|row| row.calls_per_s.median);
        for Row { system, rtt_p50_ns, rtt_p99_ns, calls_per_s, .. } in rows() {
            let us = |ns: &Spread| digits(ns.median / 1e3);
            let ratio = base.map_or_else(|| "-".to_owned(), |base| digits(calls_per_s.median / base));
            let (p50, p99, rate) = (us(rtt_p50_ns), us(rtt_p99_ns), digits(calls_per_s.median));
            // Writing to a string does not fail.
            let _ = writeln!(text, "| {system} | {outstanding} | {p50} | {p99} | {rate} | {ratio} |");
        }
    }
    text.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_relative_to_tarpc_with_as_many_calls() {
        let row = |system: &str, outstanding, per_s| {
            let figures =
                Figures { p50_ns: Some(1.5e3), p99_ns: Some(2e6), mean_ns: None, per_s: Some(per_s) };
            Row::of(system.to_owned(), outstanding, &[figures]).unwrap()
        };
        let text = table(&[
            row("a", 1, 300.0),
            row("a", 32, 900.0),
            row("tarpc, TCP", 1, 200.0),
            row("tarpc, TCP", 32, 300.0),
        ]);
        let lines: Vec<_> = text.lines().skip(2).collect();
        assert_eq!(lines[0], "| a | 1 | 1.50 | 2000 | 300 | 1.50 |");
        assert_eq!(lines[2], "| a | 32 | 1.50 | 2000 | 900 | 3.00 |");
    }
}
