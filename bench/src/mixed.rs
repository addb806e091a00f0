//! Calls of several sizes and kinds in a mix, and each kind alone in the same run.

use crate::client::{Job, Kind};
use crate::drift::{Kept, steady};
use crate::echo::{Calls, Request};
use crate::failure::Failure;
use crate::nodes::{LinkFlag, Nodes};
use crate::payload::{Buffer, Payloads};
use crate::pin::Pin;
use crate::point::Repetitions;
use crate::recorder::{Recorder, Sample};
use crate::scenario::{Output, Scenario, Sweep};
use crate::session::Session;
use crate::sizes::{as_f64, written};
use crate::stopwatch::{Stopwatch, nanoseconds};
use crate::table::{Table, us};
use clap::Args;
use members::{Member, Mix};
use serde_json::json;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

mod members;

/// The mix and the settings of the measurement.
#[derive(Debug, Clone, Args)]
pub(crate) struct Mixed {
    /// Sizes with their weights, such as `64:90,64K:9,1M:1`; `/oneway` after a size makes its calls one-way.
    #[arg(long, value_name = "MIX", default_value = "64:90,64K:9,1M:1")]
    mix: Mix,
    /// Calls under way at a time, in all.
    #[arg(long, value_name = "CALLS", default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=4096))]
    outstanding: u16,
    #[command(flatten)]
    sweep: Sweep,
    /// Path of the packets.
    #[arg(long, value_enum, default_value_t = LinkFlag::Auto)]
    link: LinkFlag,
    /// Kind of thread or task that makes the calls.
    #[arg(long, value_enum, default_value_t = Kind::Poller)]
    client: Kind,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    nodes: Nodes,
}

/// One measurement: all members together, or one alone.
#[derive(Debug)]
struct Mixture {
    members: Vec<Member>,
    watch: Stopwatch,
    recorders: Mutex<Recorders>,
    /// Number of the next call. Members follow a fixed order, so that each has its share in every measurement.
    next: AtomicU64,
}

#[derive(Debug)]
struct Recorders {
    all: Recorder,
    each: Vec<Recorder>,
}

/// A mixture with the repetitions of each of its members.
struct Point {
    members: Vec<Member>,
    repetitions: Vec<Repetitions>,
}

/// Measures and prints the results.
///
/// # Errors
/// Fails with the reason if it cannot be measured or the file cannot be written.
pub(crate) fn measure(mixed: &Mixed) -> Result<(), Failure> {
    let scenario = Scenario::begin("mixed", &mixed.output, None)?;
    let Sweep { seconds, repetitions, pin } = mixed.sweep;
    let (link, _) = Session::link(mixed.link, &mixed.nodes, mixed.output.quiet)?;
    let cores = Pin::cores(pin)?;
    let session = Session::start(link, &mixed.nodes, mixed.client, cores)?;
    let point = |members: &[Member]| Point {
        members: members.to_vec(),
        repetitions: vec![Repetitions::default(); members.len()],
    };
    // All members together, then each alone.
    let members = &mixed.mix.0;
    let mut points: Vec<_> = [&members[..]].into_iter().chain(members.chunks(1)).map(point).collect();
    let name = |point: &Point| Mix(point.members.clone()).to_string();
    let measured = scenario.sweep(repetitions, &mut points, name, |point| {
        let Kept { value, dropped, drifted } = steady(cores, || {
            let mixture = Arc::new(Mixture::begin(&point.members, seconds));
            session.run(&mixture, usize::from(mixed.outstanding))?;
            Ok(mixture.finish()?)
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
    for ((&Member { size, one_way, weight }, together), alone) in members.iter().zip(together).zip(alone) {
        let (Some(mixed), Some(alone)) = (together.summary(), alone.summary()) else { continue };
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
        // Rate of all members of the mix together, and payload bytes, in both directions unless calls are one-way.
        "calls_per_s": calls_per_s,
        "bytes_per_s": bytes_per_s,
        "members": of_members,
    });
    let what = format!("{} members, {repetitions} repetitions", members.len());
    scenario.end(measured, if table.is_empty() { "" } else { &text }, &results, &what)
}

impl Mixture {
    fn begin(members: &[Member], seconds: f64) -> Self {
        let measured_ns = nanoseconds(Duration::from_secs_f64(seconds));
        let recorder = || Recorder::new(measured_ns);
        let recorders = Recorders { all: recorder(), each: members.iter().map(|_| recorder()).collect() };
        Self {
            members: members.to_vec(),
            watch: Stopwatch::start(),
            recorders: Mutex::new(recorders),
            next: AtomicU64::new(0),
        }
    }

    fn recorders(&self) -> MutexGuard<'_, Recorders> {
        self.recorders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the sample of each member.
    fn finish(&self) -> Result<Vec<Sample>, String> {
        let mut recorders = self.recorders();
        std::mem::replace(&mut recorders.all, Recorder::new(0)).finish()?;
        let finish = |(recorder, member): (Recorder, &Member)| {
            recorder.finish().map_err(|why| format!("{member}: {why}, or a larger weight"))
        };
        std::mem::take(&mut recorders.each).into_iter().zip(&self.members).map(finish).collect()
    }
}

impl Job for Mixture {
    async fn work(&self, calls: &impl Calls) {
        let payload = |member: &Member| Payloads::new(Buffer::Reused, member.size);
        let mut payloads = self.members.iter().map(payload).collect::<Vec<_>>();
        loop {
            let at = members::member(&self.members, self.next.fetch_add(1, Ordering::Relaxed));
            let began_ns = self.watch.now_ns();
            let payload = payloads[at].next();
            let request = if self.members[at].one_way { Request::Post } else { Request::Echo };
            let ended = calls.call(request, payload).await;
            let now_ns = self.watch.now_ns();
            let mut recorders = self.recorders();
            if let Err(status) = ended {
                recorders.all.failed(format!("a call failed: {status}"));
            }
            recorders.each[at].ended(began_ns, now_ns);
            if !recorders.all.ended(began_ns, now_ns) {
                return;
            }
        }
    }

    fn failed(&self, why: String) {
        self.recorders().all.failed(why);
    }
}
