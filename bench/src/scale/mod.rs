//! Scaling of calls with the number of peers, pollers and services, and the set-up time of sessions.
//!
//! | file | what it is |
//! |---|---|
//! | `fleet` | a client node and some servers |

mod fleet;

use crate::drift::steady;
use crate::failure::Failure;
use crate::floors;
use crate::machine::{Machine, Stamp};
use crate::nodes::{LinkFlag, Nodes};
use crate::payload::Buffer;
use crate::pin::{Cores, Pin};
use crate::point::{Repetitions, Summary};
use crate::progress;
use crate::quantities::seconds;
use crate::recorder::{Sample, histogram};
use crate::servers::Fleet;
use crate::session::Session;
use crate::sizes::Counts;
use crate::stopwatch::Stopwatch;
use crate::whole_file;
use crate::worker::{Exchange, Measurement, Plan};
use clap::Args;
use fleet::{Client, Order};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use trunkline_testkit::output;

/// Time for which the cache line is sampled before and after a measurement.
const LINE: Duration = Duration::from_millis(5);
/// Payload bytes in each direction.
const PAYLOAD: usize = 64;

/// Dimensions to vary, one after the other, and the settings of the measurement.
#[derive(Debug, Clone, Args)]
pub(crate) struct Scale {
    /// Server nodes that one client node calls in turn, 1 to 64; they are in one process.
    #[arg(long, value_name = "COUNTS", default_value = "1,2,4,8")]
    peers: Counts<64>,
    /// Pollers of client and server, 1 to 32.
    #[arg(long, value_name = "COUNTS", default_value = "1,2,4")]
    pollers: Counts<32>,
    /// Services of a node that are called in turn, 1 to 16.
    #[arg(long, value_name = "COUNTS", default_value = "1,4,16")]
    services: Counts<16>,
    /// Servers to which sessions are set up by first calls, one after the other and all at once, 1 to 64.
    #[arg(long, value_name = "COUNTS", default_value = "8,32")]
    connections: Counts<64>,
    /// Calls under way at a time, in all.
    #[arg(long, value_name = "CALLS", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=4096))]
    outstanding: u16,
    /// Measured time of each repetition.
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    seconds: f64,
    /// Number of repetitions of all measurements, in turn.
    #[arg(long, value_name = "TIMES", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repetitions: u32,
    /// Path of the packets.
    #[arg(long, value_enum, default_value_t = LinkFlag::Auto)]
    link: LinkFlag,
    /// Cores of client and server, like `0,1`, or `off`.
    #[arg(long, value_name = "CORES")]
    pin: Option<Pin>,
    /// Also write the results to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Print nothing but errors.
    #[arg(long)]
    quiet: bool,
}

/// A dimension that is varied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Dimension {
    Peers,
    Pollers,
    Services,
    Sessions(Order),
}

/// One value of one dimension during the measurement.
#[derive(Debug)]
struct Point {
    dimension: Dimension,
    count: u16,
    repetitions: Repetitions,
}

/// Results of a point.
#[derive(Debug, Serialize)]
struct OfPoint {
    dimension: &'static str,
    count: u16,
    /// Round-trip time of calls, or of first calls to servers without a session.
    rtt_p50_ns: f64,
    rtt_p99_ns: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    calls_per_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sessions_per_s: Option<f64>,
    /// Values behind the medians, for `compare`.
    each_repetition: BTreeMap<&'static str, Vec<f64>>,
    spread: Summary,
}

/// Contents of the file.
#[derive(Debug, Serialize)]
struct Results {
    command: &'static str,
    link: &'static str,
    outstanding: u16,
    seconds: f64,
    #[serde(flatten)]
    stamp: Stamp,
    machine: Machine,
    points: Vec<OfPoint>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// Measures and prints the results.
///
/// # Errors
/// Fails with the reason if it cannot be measured or the file cannot be written.
pub(crate) fn measure(scale: &Scale) -> Result<(), Failure> {
    whole_file::check(&scale.json)?;
    let began = Instant::now();
    let one = Nodes { pollers: 1, peer_address: None, address: None };
    let scale = &Scale { link: Session::link(scale.link, &one, scale.quiet)?.0, ..scale.clone() };
    let (machine, cores) = (Machine::here(), Pin::cores(scale.pin)?);
    let mut points = scale.points();
    let bar = progress::bar(scale.quiet, points.len() as u64 * u64::from(scale.repetitions));
    let measured = (0..scale.repetitions).try_for_each(|_| {
        points.iter_mut().try_for_each(|point| {
            bar.set_message(format!("{} {}", point.count, point.dimension.name()));
            scale.repeat(point, cores)?;
            bar.inc(1);
            Ok(())
        })
    });
    bar.finish_and_clear();
    let results = Results {
        command: "scale",
        link: scale.link.name(),
        outstanding: scale.outstanding,
        seconds: scale.seconds,
        stamp: Stamp::now(),
        machine,
        points: points.iter().filter_map(Point::results).collect(),
        error: measured.as_ref().err().map(|failure: &Failure| failure.to_string()),
    };
    if !scale.quiet && !results.points.is_empty() {
        output::out(&table(&results))?;
    }
    let written = scale.json.as_ref().map_or(Ok(()), |path| whole_file::write_json(path, &results));
    measured.and(written.map_err(Failure::Unwritten))?;
    let what = format!("scale: {} points, {} repetitions", results.points.len(), scale.repetitions);
    progress::end(scale.quiet, &what, began, &scale.json)
}

impl Scale {
    fn points(&self) -> Vec<Point> {
        let dimensions = [
            (Dimension::Peers, &self.peers.0),
            (Dimension::Pollers, &self.pollers.0),
            (Dimension::Services, &self.services.0),
            (Dimension::Sessions(Order::OneAfterTheOther), &self.connections.0),
            (Dimension::Sessions(Order::AtOnce), &self.connections.0),
        ];
        let point = |(dimension, count)| Point { dimension, count, repetitions: Repetitions::default() };
        let each = |(dimension, counts): (Dimension, &Vec<u16>)| {
            counts.iter().map(move |count| (dimension, *count)).collect::<Vec<_>>()
        };
        dimensions.into_iter().flat_map(each).map(point).collect()
    }

    /// Runs one repetition of a point with new nodes.
    fn repeat(&self, point: &mut Point, cores: Option<Cores>) -> Result<(), Failure> {
        let fleet = Fleet {
            address: None,
            link: self.link,
            core: cores.map(|cores| cores.server),
            servers: if matches!(point.dimension, Dimension::Pollers | Dimension::Services) {
                1
            } else {
                point.count
            },
            pollers: if point.dimension == Dimension::Pollers { point.count } else { 1 },
            services: if point.dimension == Dimension::Services { point.count } else { 1 },
        };
        let line = || Ok::<_, Failure>(floors::line(cores, LINE)?.times.value_at_quantile(0.5));
        let kept = steady(line, || {
            let client = Client::start(fleet, cores)?;
            match point.dimension {
                Dimension::Sessions(order) => sessions(&client, order),
                Dimension::Peers | Dimension::Pollers | Dimension::Services => self.calls(&client),
            }
        })?;
        point.repetitions.add(&kept);
        Ok(())
    }

    fn calls(&self, client: &Client) -> Result<Sample, Failure> {
        let measurement = Arc::new(Measurement::begin(Plan {
            exchange: Exchange::Echo,
            size: PAYLOAD,
            outstanding: usize::from(self.outstanding),
            pause: None,
            arrivals: None,
            buffer: Buffer::Reused,
            verify: false,
            measured: Duration::from_secs_f64(self.seconds),
            is_mean: false,
        }));
        client.work(&measurement, self.outstanding)?;
        Ok(measurement.finish()?)
    }
}

/// Measures first calls, which set up sessions.
#[expect(clippy::cast_precision_loss, reason = "at most 64 sessions, and times far below 2^52 ns")]
fn sessions(client: &Client, order: Order) -> Result<Sample, Failure> {
    let (watch, mut times) = (Stopwatch::start(), histogram());
    let each = client.first_calls(watch, order)?;
    let lasted_ns = watch.now_ns();
    each.iter().for_each(|time| times.saturating_record(*time));
    Ok(Sample { times, per_s: each.len() as f64 * 1e9 / lasted_ns as f64 })
}

impl Dimension {
    const fn name(self) -> &'static str {
        match self {
            Self::Peers => "peers",
            Self::Pollers => "pollers",
            Self::Services => "services",
            Self::Sessions(Order::OneAfterTheOther) => "sessions, one after the other",
            Self::Sessions(Order::AtOnce) => "sessions, at once",
        }
    }

    const fn is_of_sessions(self) -> bool {
        matches!(self, Self::Sessions(_))
    }
}

impl Point {
    fn results(&self) -> Option<OfPoint> {
        let spread = self.repetitions.summary()?;
        let per_s = Some(spread.per_s.median);
        let is_of_sessions = self.dimension.is_of_sessions();
        Some(OfPoint {
            dimension: self.dimension.name(),
            count: self.count,
            rtt_p50_ns: spread.p50_ns.median,
            rtt_p99_ns: spread.p99_ns.median,
            calls_per_s: per_s.filter(|_| !is_of_sessions),
            sessions_per_s: per_s.filter(|_| is_of_sessions),
            each_repetition: self.repetitions.each(if is_of_sessions {
                "sessions_per_s"
            } else {
                "calls_per_s"
            }),
            spread,
        })
    }
}

fn table(results: &Results) -> String {
    let mut text = format!("scale: {PAYLOAD} bytes there and back, {} under way\n", results.outstanding);
    // Writing to a string does not fail.
    let _ = writeln!(text, "  {:<34} {:>5} {:>12} {:>12} {:>12}", "", "", "p50 us", "p99 us", "per second");
    for OfPoint { dimension, count, rtt_p50_ns, rtt_p99_ns, spread, .. } in &results.points {
        let (p50, p99, per_s) = (rtt_p50_ns / 1e3, rtt_p99_ns / 1e3, spread.per_s.median);
        let _ = writeln!(text, "  {dimension:<34} {count:>5} {p50:>12.2} {p99:>12.2} {per_s:>12.0}");
    }
    text
}
