//! The subcommands `latency`, `rate` and `bandwidth`. Each repetition measures every point and every floor once.

use crate::calls::nodes::LinkFlag;
use crate::calls::session::Session;
use crate::calls::worker::{Exchange, Plan};
use crate::cli::Settings;
use crate::floors::{Floor, Shape};
use crate::meter::failure::Failure;
use crate::meter::pin::{Cores, Pin};
use crate::meter::spread::Spread;
use crate::results::table::{Table, or_dash, us};
use crate::scenario::Scenario;
use crate::scenario::drift::steady;
use crate::scenario::point::{Measure, Point, References, Results};
use crate::sizes::with_unit;
use crate::systems::System;
use indicatif::ProgressBar;
use serde::Serialize;
use std::fmt::Write as _;
use std::thread;
use std::time::Duration;

/// Idle time after which pollers are asleep and no longer affect floors.
const SETTLE: Duration = Duration::from_millis(5);

pub(crate) struct Run<'a> {
    settings: &'a Settings,
    pub(crate) cores: Option<Cores>,
    pub(crate) points: Vec<Point>,
    /// Systems that `--peers` measures.
    systems: Vec<System>,
}

impl<'a> Run<'a> {
    /// Plans the run. `sizes` and `outstanding` apply if the settings do not specify them.
    ///
    /// # Errors
    /// Returns an error with the quantity that cannot be measured.
    pub(crate) fn new(
        measure: Measure,
        settings: &'a Settings,
        sizes: &[usize],
        outstanding: usize,
    ) -> Result<Self, String> {
        let cores = Pin::cores(settings.sweep.pin)?;
        let sizes = settings.size.as_ref().map_or(sizes, |sizes| &sizes.0);
        let default = [outstanding];
        let outstanding = settings.outstanding.as_ref().map_or(&default[..], |all| &all.0);
        if measure == Measure::Bandwidth && sizes.contains(&0) {
            return Err("bandwidth needs sizes above 0".to_owned());
        }
        let references = references(settings.link);
        let of_size =
            |&size| outstanding.iter().map(move |&each| Point::new(measure, size, each, references));
        let points = sizes.iter().flat_map(of_size).collect();
        let systems =
            if settings.peers { System::all(settings.peers_program.as_deref())? } else { Vec::new() };
        Ok(Self { settings, cores, points, systems })
    }

    /// Returns the number of measurements.
    pub(crate) fn steps(&self) -> u64 {
        let of_point = |point: &Point| (1 + self.floors(point).len() + self.systems.len()) as u64;
        u64::from(self.settings.sweep.repetitions) * self.points.iter().map(of_point).sum::<u64>()
    }

    /// Measures every point and every floor once.
    ///
    /// # Errors
    /// Returns an error if the measurement fails.
    pub(crate) fn repeat(&mut self, bar: &ProgressBar) -> Result<(), Failure> {
        let settings = self.settings;
        bar.set_message("start");
        // Each repetition uses new nodes, so that the placement of addresses, threads and caches varies between
        // repetitions instead of between runs.
        let session = Session::start(settings.link, &settings.nodes, settings.client, self.cores)?;
        for at in 0..self.points.len() {
            let (plan, shape) = (self.plan(&self.points[at]), self.shape(&self.points[at]));
            for floor in self.floors(&self.points[at]) {
                bar.set_message(floor.name());
                let kept = steady(self.cores, || Ok(floor.measure(&shape)?))?;
                self.points[at].floors.entry(floor).or_default().add(&kept);
                bar.inc(1);
            }
            self.measure_systems(at, bar)?;
            bar.set_message("calls");
            let kept = steady(self.cores, || session.measure(plan).inspect(|_| thread::sleep(SETTLE)))?;
            self.points[at].calls.add(&kept);
            bar.inc(1);
            session.servers().death().map_or(Ok(()), Err)?;
        }
        Ok(())
    }

    /// Measures other systems. A system that cannot be measured at a point is not measured at this point again.
    fn measure_systems(&mut self, at: usize, bar: &ProgressBar) -> Result<(), Failure> {
        let point = &self.points[at];
        let (measure, measured) = (point.measure, Duration::from_secs_f64(self.settings.sweep.seconds));
        let shape = Shape { measured, ..self.shape(point) };
        for system in &self.systems {
            bar.set_message(system.name.clone());
            bar.inc(1);
            let point = &mut self.points[at];
            if point.skipped.contains_key(&system.name) {
                continue;
            }
            match steady(self.cores, || Ok(system.measure(measure, &shape)))?.value {
                Ok(figures) => point.systems.entry(system.name.clone()).or_default().push(figures),
                Err(why) => _ = point.skipped.insert(system.name.clone(), why),
            }
        }
        Ok(())
    }

    fn exchange(&self, point: &Point) -> Exchange {
        match point.measure {
            _ if self.settings.one_way => Exchange::OneWay,
            Measure::Bandwidth => Exchange::Absorb,
            Measure::Latency | Measure::Rate => Exchange::Echo,
        }
    }

    fn plan(&self, point: &Point) -> Plan {
        let settings = self.settings;
        Plan {
            exchange: self.exchange(point),
            size: point.size,
            outstanding: point.outstanding,
            pause: settings.pause.map(Duration::from_millis),
            arrivals: settings.arrivals,
            buffer: settings.buffer,
            verify: settings.verify,
            measured: Duration::from_secs_f64(settings.sweep.seconds),
            is_mean: false,
        }
    }

    fn shape(&self, point: &Point) -> Shape {
        Shape {
            size: point.size,
            reply: match self.exchange(point) {
                Exchange::Echo => point.size,
                Exchange::Absorb | Exchange::OneWay => 8,
            },
            outstanding: point.outstanding,
            pause: self.settings.pause.map(Duration::from_millis),
            measured: Duration::from_secs_f64(self.settings.sweep.seconds / 5.0),
            cores: self.cores,
        }
    }

    /// Returns the floors of a point. Polling floors measure one message at a time.
    fn floors(&self, point: &Point) -> Vec<Floor> {
        let mut floors = vec![Floor::Line, Floor::EventfdSameCore, Floor::Udp, Floor::Tcp];
        match point.measure {
            Measure::Latency => {}
            Measure::Rate => floors.push(point.references.rate),
            Measure::Bandwidth => floors.push(point.references.bandwidth),
        }
        if self.settings.pause.is_some() {
            floors.extend([Floor::EventfdCrossCore, Floor::UdpBlocking]);
        }
        floors
    }
}

/// Runs the measurement. Reports the results even if a later measurement fails. `sizes` and `outstanding` apply if the
/// settings do not specify them.
///
/// # Errors
/// Returns an error if the measurement fails or a file cannot be written.
pub(crate) fn measure(
    measure: Measure,
    settings: &Settings,
    sizes: &[usize],
    outstanding: usize,
) -> Result<(), Failure> {
    settings.check()?;
    let scenario = Scenario::begin(measure.name(), &settings.output, settings.html.as_ref())?;
    let (link, link_why) = Session::link(settings.link, &settings.nodes, settings.output.quiet)?;
    let settings = &Settings { link, link_why, ..settings.clone() };
    let mut run = Run::new(measure, settings, sizes, outstanding)?;
    scenario.bar.inc_length(run.steps());
    let measured = (0..settings.sweep.repetitions).try_for_each(|_| run.repeat(&scenario.bar));
    let mut points: Vec<_> = run.points.iter().filter_map(Point::results).collect();
    let table = table(measure, &points);
    let summary = summary(measure, &points, settings.sweep.repetitions);
    let point = if points.len() == 1 { points.pop() } else { None };
    let results =
        Report { settings: Described { settings, cores: run.cores.map(Cores::pair) }, point, points };
    scenario.end(measured, &table, &results, &summary)
}

/// JSON keys of a run. With a single point, its keys are at the top level; otherwise, the points are listed.
#[derive(Debug, Serialize)]
struct Report<'a> {
    settings: Described<'a>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    point: Option<Results>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    points: Vec<Results>,
}

/// Settings that affect the results.
#[derive(Debug, Serialize)]
struct Described<'a> {
    #[serde(flatten)]
    settings: &'a Settings,
    #[serde(skip_serializing_if = "Option::is_none")]
    cores: Option<[usize; 2]>,
}

/// Returns one table per point. It contains the calls, each floor and other systems, with medians and extremes over the
/// repetitions.
fn table(measure: Measure, points: &[Results]) -> String {
    let mut text = String::new();
    for point in points {
        let mut table = Table::new(["<", "p50 us", "min .. max", "p99 us", "per second"]);
        let mut row = |name: &str, middle: Option<Spread>, p99: Option<Spread>, per_s: Option<Spread>| {
            table.row([
                name.to_owned(),
                or_dash(middle.map(|time| us(time.median))),
                or_dash(middle.map(|time| format!("{} .. {}", us(time.min), us(time.max)))),
                or_dash(p99.map(|time| us(time.median))),
                or_dash(per_s.map(|rate| format!("{:.0}", rate.median))),
            ]);
        };
        let ours = [("calls", &point.calls)].into_iter();
        for (name, summary) in ours.chain(point.floors.iter().map(|(name, floor)| (*name, floor))) {
            row(name, Some(summary.p50_ns), Some(summary.p99_ns), Some(summary.per_s));
        }
        for (name, peer) in &point.peers {
            let name =
                if peer.note().is_empty() { name.clone() } else { format!("{name} ({})", peer.note()) };
            row(&name, peer.middle_ns(), peer.p99_ns, peer.per_s);
        }
        let (size, outstanding) = (with_unit(point.size_bytes), point.outstanding);
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "{}: {size}, {outstanding} under way\n{}",
            measure.name(),
            table.text().trim_end()
        );
        for (name, why) in &point.peers_skipped {
            let _ = writeln!(text, "  {name}: not measured: {why}");
        }
        let get = |key: &str| point.values.get(key);
        let ratio = |key: &str, floor: &str| get(key) / get(floor);
        let _ = match measure {
            Measure::Latency => writeln!(
                text,
                "  p50 is {:.2} times the link's floor ({:.2} us)\n",
                ratio("rtt_p50_ns", "floor_p50_ns"),
                get("floor_p50_ns") / 1e3
            ),
            Measure::Rate => writeln!(
                text,
                "  {:.0} calls/s are {:.3} of the link's floor\n",
                get("calls_per_s"),
                ratio("calls_per_s", "floor_calls_per_s")
            ),
            Measure::Bandwidth => writeln!(
                text,
                "  {:.1} MB/s are {:.3} of the link's floor ({:.1} MB/s)\n",
                get("bytes_per_s") / 1e6,
                ratio("bytes_per_s", "floor_bytes_per_s"),
                get("floor_bytes_per_s") / 1e6
            ),
        };
    }
    text
}

/// Returns a short description of the results at the first and the last point.
fn summary(measure: Measure, points: &[Results], repetitions: u32) -> String {
    let short = |point: &Results| {
        let (size, get) = (with_unit(point.size_bytes), |key: &str| point.values.get(key));
        match measure {
            Measure::Latency => format!("{size} in {:.2} us", get("rtt_p50_ns") / 1e3),
            Measure::Rate => format!("{size} at {:.0} calls/s", get("calls_per_s")),
            Measure::Bandwidth => format!("{size} at {:.1} MB/s", get("bytes_per_s") / 1e6),
        }
    };
    let figures = match points {
        [] => String::new(),
        [point] => format!("{}; ", short(point)),
        [first, .., last] => format!("{} .. {}; ", short(first), short(last)),
    };
    format!("{figures}points {}, repetitions {repetitions}", points.len())
}

const fn references(link: LinkFlag) -> References {
    match link {
        LinkFlag::Auto | LinkFlag::Udp => {
            References { latency: Floor::Udp, rate: Floor::UdpBatched, bandwidth: Floor::UdpGso }
        }
        LinkFlag::Process | LinkFlag::Shm => {
            References { latency: Floor::Line, rate: Floor::Ring, bandwidth: Floor::Copy }
        }
    }
}
