//! The plan of a run: each repetition measures every point and every floor once.

use crate::cli::Settings;
use crate::drift::steady;
use crate::failure::Failure;
use crate::floors::{self, Floor, Shape};
use crate::nodes::LinkFlag;
use crate::pin::{Cores, Pin};
use crate::point::{Measure, Point, References};
use crate::session::Session;
use crate::systems::System;
use crate::worker::{Exchange, Plan};
use indicatif::ProgressBar;
use std::thread;
use std::time::Duration;

/// Time for which the cache line is sampled before and after a measurement.
const LINE: Duration = Duration::from_millis(5);
/// Time without work after which pollers sleep and do not disturb floors.
const SETTLE: Duration = Duration::from_millis(5);

/// A run and its progress.
pub(crate) struct Run<'a> {
    settings: &'a Settings,
    pub(crate) cores: Option<Cores>,
    pub(crate) points: Vec<Point>,
    /// Systems of `--peers`.
    systems: Vec<System>,
}

impl<'a> Run<'a> {
    /// Plans the run. `sizes` and `outstanding` are the defaults of the settings.
    ///
    /// # Errors
    /// Fails with the quantity that cannot be measured.
    pub(crate) fn new(
        measure: Measure,
        settings: &'a Settings,
        sizes: &[usize],
        outstanding: usize,
    ) -> Result<Self, String> {
        let cores = Pin::cores(settings.pin)?;
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
        u64::from(self.settings.repetitions) * self.points.iter().map(of_point).sum::<u64>()
    }

    /// Measures everything. Results from before a failure stay in the points.
    ///
    /// # Errors
    /// Fails with the reason if it cannot be measured.
    pub(crate) fn measure(&mut self, bar: &ProgressBar) -> Result<(), Failure> {
        (0..self.settings.repetitions).try_for_each(|_| self.repeat(bar))
    }

    /// Measures every point and every floor once.
    ///
    /// # Errors
    /// Fails with the reason if it cannot be measured.
    pub(crate) fn repeat(&mut self, bar: &ProgressBar) -> Result<(), Failure> {
        let settings = self.settings;
        bar.set_message("start");
        // New nodes in each repetition: the placement of addresses, threads and caches then varies between repetitions
        // instead of between runs.
        let session = Session::start(settings.link, &settings.nodes, settings.client, self.cores)?;
        for at in 0..self.points.len() {
            let (plan, shape) = (self.plan(&self.points[at]), self.shape(&self.points[at]));
            for floor in self.floors(&self.points[at]) {
                bar.set_message(floor.name());
                let kept = steady(|| self.line_ns(), || floor.measure(&shape))?;
                self.points[at].add_floor(floor, &kept);
                bar.inc(1);
            }
            self.measure_systems(at, bar)?;
            bar.set_message("calls");
            let line = || self.line_ns().map_err(Failure::from);
            let kept = steady(line, || session.measure(plan).inspect(|_| thread::sleep(SETTLE)))?;
            self.points[at].add_calls(&kept);
            bar.inc(1);
            session.servers().death().map_or(Ok(()), Err)?;
        }
        Ok(())
    }

    /// Measures other systems. A system that cannot be measured at a point is not tried there again.
    fn measure_systems(&mut self, at: usize, bar: &ProgressBar) -> Result<(), Failure> {
        let point = &self.points[at];
        let (measure, measured) = (point.measure, Duration::from_secs_f64(self.settings.seconds));
        let shape = Shape { measured, ..self.shape(point) };
        for system in &self.systems {
            bar.set_message(system.name.clone());
            bar.inc(1);
            if self.points[at].is_skipped(&system.name) {
                continue;
            }
            let mut failed = None;
            let figures = || match system.measure(measure, &shape) {
                Ok(figures) => Ok(Some(figures)),
                Err(why) => {
                    failed = Some(why);
                    Ok(None)
                }
            };
            let kept = steady(|| self.line_ns(), figures)?;
            match (kept.value, failed) {
                (Some(figures), _) => self.points[at].add_system(&system.name, figures),
                (None, why) => self.points[at].skip(&system.name, why.unwrap_or_default()),
            }
        }
        Ok(())
    }

    fn line_ns(&self) -> Result<u64, String> {
        floors::line(self.cores, LINE).map(|sample| sample.times.value_at_quantile(0.5))
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
            measured: Duration::from_secs_f64(settings.seconds),
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
            measured: Duration::from_secs_f64(self.settings.seconds / 5.0),
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
