//! Scaling of calls with the numbers of peers, pollers and services, and the set-up time of sessions.
//!
//! | file | what it is |
//! |---|---|
//! | `fleet` | a client node and some servers |

mod fleet;

use crate::calls::nodes::{LinkFlag, Nodes};
use crate::calls::servers::Fleet;
use crate::calls::session::Session;
use crate::calls::worker::{Exchange, Measurement, Plan};
use crate::meter::failure::Failure;
use crate::meter::pin::{Cores, Pin};
use crate::meter::recorder::{Sample, histogram};
use crate::meter::stopwatch::Stopwatch;
use crate::results::table::{Table, us};
use crate::scenario::drift::steady;
use crate::scenario::point::{Repetitions, Summary, Values};
use crate::scenario::{Output, Scenario, Sweep};
use crate::sizes::Counts;
use clap::Args;
use fleet::{Client, Order};
use serde::Serialize;
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;

/// Payload in each direction, in bytes.
const PAYLOAD: usize = 64;

/// Dimensions that are varied one after the other, and settings of the measurement.
#[derive(Debug, Clone, Args)]
#[command(mut_arg("repetitions", |repetitions| repetitions.default_value("3")))]
pub(crate) struct Scale {
    /// Number of server nodes that one client node calls in turn, 1 to 64. They run in one process.
    #[arg(long, value_name = "COUNTS", default_value = "1,2,4,8")]
    peers: Counts<64>,
    /// Number of pollers on the client and on the server, 1 to 32.
    #[arg(long, value_name = "COUNTS", default_value = "1,2,4")]
    pollers: Counts<32>,
    /// Number of services of a node that are called in turn, 1 to 16.
    #[arg(long, value_name = "COUNTS", default_value = "1,4,16")]
    services: Counts<16>,
    /// Number of servers to which first calls set up sessions, one after the other and all at once, 1 to 64.
    #[arg(long, value_name = "COUNTS", default_value = "8,32")]
    connections: Counts<64>,
    /// Total number of outstanding calls.
    #[arg(long, value_name = "CALLS", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=4096))]
    outstanding: u16,
    #[command(flatten)]
    sweep: Sweep,
    /// Path of the packets.
    #[arg(long, value_enum, default_value_t = LinkFlag::Auto)]
    link: LinkFlag,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Dimension {
    Peers,
    Pollers,
    Services,
    Sessions(Order),
}

/// One value of the dimension that is varied, with its results.
#[derive(Debug)]
struct Point {
    dimension: Dimension,
    count: u16,
    repetitions: Repetitions,
}

/// Results at a point. Times are durations of calls, or of first calls to servers without a session.
#[derive(Debug, Serialize)]
struct OfPoint {
    dimension: &'static str,
    count: u16,
    #[serde(flatten)]
    values: Values,
    spread: Summary,
}

/// Measures and prints the results.
///
/// # Errors
/// Returns an error if the measurement fails or the file cannot be written.
pub(crate) fn measure(scale: &Scale) -> Result<(), Failure> {
    let scenario = Scenario::begin("scale", &scale.output, None)?;
    let Sweep { seconds, repetitions, pin } = scale.sweep;
    let (link, _) = Session::link(scale.link, &Nodes::PLAIN, scale.output.quiet)?;
    let (scale, cores) = (&Scale { link, ..scale.clone() }, Pin::cores(pin)?);
    let mut points = scale.points();
    let name = |point: &Point| format!("{} {}", point.count, point.dimension.name());
    let measured = scenario.sweep(repetitions, &mut points, name, |point| scale.repeat(point, cores));
    let mut table = Table::new(["<", "", "p50 us", "p99 us", "per second"]);
    let mut of_points = Vec::new();
    for Point { dimension, count, repetitions } in &points {
        let rate = if matches!(dimension, Dimension::Sessions(_)) { "sessions_per_s" } else { "calls_per_s" };
        let (Some(spread), Some(values)) = (repetitions.summary(), Values::of(repetitions.each(rate))) else {
            continue;
        };
        let times = [spread.p50_ns, spread.p99_ns].map(|time| us(time.median));
        let names = [dimension.name().to_owned(), count.to_string()];
        table.row(names.into_iter().chain(times).chain([format!("{:.0}", spread.per_s.median)]));
        of_points.push(OfPoint { dimension: dimension.name(), count: *count, values, spread });
    }
    let text =
        format!("scale: {PAYLOAD} bytes there and back, {} under way\n{}", scale.outstanding, table.text());
    let what = format!("{} points, {repetitions} repetitions", of_points.len());
    let results = json!({
        "link": link.name(),
        "outstanding": scale.outstanding,
        "seconds": seconds,
        "points": of_points,
    });
    scenario.end(measured, if table.is_empty() { "" } else { &text }, &results, &what)
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

    /// Measures one repetition of a point with new nodes.
    fn repeat(&self, point: &mut Point, cores: Option<Cores>) -> Result<(), Failure> {
        let fleet = Fleet {
            address: None,
            link: self.link,
            core: cores.map(|cores| cores.server),
            encrypted: false,
            servers: if matches!(point.dimension, Dimension::Pollers | Dimension::Services) {
                1
            } else {
                point.count
            },
            pollers: if point.dimension == Dimension::Pollers { point.count } else { 1 },
            services: if point.dimension == Dimension::Services { point.count } else { 1 },
        };
        let kept = steady(cores, || {
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
        let measured = Duration::from_secs_f64(self.sweep.seconds);
        let plan = Plan::closed_loop(Exchange::Echo, PAYLOAD, usize::from(self.outstanding), measured);
        let measurement = Arc::new(Measurement::begin(plan));
        client.work(&measurement, self.outstanding)?;
        Ok(measurement.finish()?)
    }
}

/// Measures the first calls to servers, which set up sessions.
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
}
