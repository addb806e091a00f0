//! Calls of several sizes and kinds in a mix, and each kind alone in the same run.

use crate::client::{Job, Kind};
use crate::drift::{Kept, steady};
use crate::echo::{Calls, Request};
use crate::failure::Failure;
use crate::floors;
use crate::machine::{Machine, Stamp};
use crate::nodes::{LinkFlag, Nodes};
use crate::payload::{Buffer, Payloads};
use crate::pin::{Cores, Pin};
use crate::point::{Repetitions, Summary};
use crate::progress;
use crate::quantities::seconds;
use crate::recorder::{Recorder, Sample};
use crate::session::Session;
use crate::sizes::written;
use crate::stopwatch::{Stopwatch, nanoseconds};
use crate::whole_file;
use clap::Args;
use indicatif::ProgressBar;
use members::{Member, Mix};
use serde::Serialize;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::slice;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use trunkline_testkit::output;

mod members;

/// Time for which the cache line is sampled before and after a measurement.
const LINE: Duration = Duration::from_millis(5);

/// The mix and the settings of the measurement.
#[derive(Debug, Clone, Args)]
pub(crate) struct Mixed {
    /// Sizes with their weights, such as `64:90,64K:9,1M:1`; `/oneway` after a size makes its calls one-way.
    #[arg(long, value_name = "MIX", default_value = "64:90,64K:9,1M:1")]
    mix: Mix,
    /// Calls under way at a time, in all.
    #[arg(long, value_name = "CALLS", default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=4096))]
    outstanding: u16,
    /// Time of each measurement, in each repetition.
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    seconds: f64,
    /// Number of repetitions of all measurements, in turn.
    #[arg(long, value_name = "TIMES", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repetitions: u32,
    /// Path of the packets.
    #[arg(long, value_enum, default_value_t = LinkFlag::Auto)]
    link: LinkFlag,
    /// Kind of thread or task that makes the calls.
    #[arg(long, value_enum, default_value_t = Kind::Poller)]
    client: Kind,
    /// Cores of client and server, like `0,1`, or `off`.
    #[arg(long, value_name = "CORES")]
    pin: Option<Pin>,
    /// Also write the results to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Print nothing but errors.
    #[arg(long)]
    quiet: bool,
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

/// The results of one member.
#[derive(Debug, Serialize)]
struct OfMember {
    size_bytes: usize,
    one_way: bool,
    weight: u32,
    mixed: Summary,
    alone: Summary,
}

/// Contents of the file.
#[derive(Debug, Serialize)]
struct Results {
    command: &'static str,
    mix: String,
    outstanding: u16,
    seconds: f64,
    link: &'static str,
    #[serde(flatten)]
    stamp: Stamp,
    machine: Machine,
    /// Rate of all members of the mix together.
    calls_per_s: f64,
    /// Payload bytes per second, in both directions unless calls are one-way.
    bytes_per_s: f64,
    members: Vec<OfMember>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// Measures and prints the results.
///
/// # Errors
/// Fails with the reason if it cannot be measured or the file cannot be written.
pub(crate) fn measure(mixed: &Mixed) -> Result<(), Failure> {
    whole_file::check(&mixed.json)?;
    let began = Instant::now();
    let mixed = &Mixed { link: Session::link(mixed.link, &mixed.nodes, mixed.quiet)?.0, ..mixed.clone() };
    let (machine, cores) = (Machine::here(), Pin::cores(mixed.pin)?);
    let session = Session::start(mixed.link, &mixed.nodes, mixed.client, cores)?;
    let steps = u64::from(mixed.repetitions) * (1 + mixed.mix.0.len() as u64);
    let bar = progress::bar(mixed.quiet, steps);
    let members = &mixed.mix.0;
    let mut together = vec![Repetitions::default(); members.len()];
    let mut alone = together.clone();
    let mut measured = Ok(());
    for _ in 0..mixed.repetitions {
        measured = repeat(mixed, &session, cores, (&mut together, &mut alone), &bar);
        if measured.is_err() {
            break;
        }
    }
    bar.finish_and_clear();
    let error = measured.as_ref().err().map(ToString::to_string);
    let written = report(mixed, machine, (&together, &alone), error);
    measured.and(written)?;
    let what = format!("mixed: {} members, {} repetitions", members.len(), mixed.repetitions);
    progress::end(mixed.quiet, &what, began, &mixed.json)
}

/// Runs one repetition: the mix, then each member alone.
fn repeat(
    mixed: &Mixed,
    session: &Session,
    cores: Option<Cores>,
    (together, alone): (&mut [Repetitions], &mut [Repetitions]),
    bar: &ProgressBar,
) -> Result<(), Failure> {
    let members = &mixed.mix.0;
    let line = || Ok::<_, Failure>(floors::line(cores, LINE)?.times.value_at_quantile(0.5));
    let measure = |members: &[Member]| -> Result<Vec<Sample>, Failure> {
        let mixture = Arc::new(Mixture::begin(members, mixed.seconds));
        session.run(&mixture, usize::from(mixed.outstanding))?;
        Ok(mixture.finish()?)
    };
    bar.set_message("mix");
    add(steady(line, || measure(members))?, together);
    bar.inc(1);
    for (member, alone) in members.iter().zip(alone) {
        bar.set_message(member.to_string());
        add(steady(line, || measure(slice::from_ref(member)))?, slice::from_mut(alone));
        bar.inc(1);
    }
    session.servers().death().map_or(Ok(()), Err)
}

/// Adds the sample of each member to its repetitions.
fn add(kept: Kept<Vec<Sample>>, repetitions: &mut [Repetitions]) {
    let Kept { value, dropped, drifted } = kept;
    for (value, repetitions) in value.into_iter().zip(repetitions) {
        repetitions.add(&Kept { value, dropped, drifted });
    }
}

fn report(
    mixed: &Mixed,
    machine: Machine,
    (together, alone): (&[Repetitions], &[Repetitions]),
    error: Option<String>,
) -> Result<(), Failure> {
    let of_member = |((member, mixed), alone): ((&Member, &Repetitions), &Repetitions)| {
        let &Member { size, one_way, weight } = member;
        Some(OfMember { size_bytes: size, one_way, weight, mixed: mixed.summary()?, alone: alone.summary()? })
    };
    let members = mixed.mix.0.iter().zip(together).zip(alone).filter_map(of_member).collect::<Vec<_>>();
    if members.is_empty() {
        return Ok(());
    }
    let results = Results {
        command: "mixed",
        mix: mixed.mix.to_string(),
        outstanding: mixed.outstanding,
        seconds: mixed.seconds,
        link: mixed.link.name(),
        stamp: Stamp::now(),
        machine,
        calls_per_s: members.iter().map(|member| member.mixed.per_s.median).sum(),
        bytes_per_s: members.iter().map(OfMember::bytes_per_s).sum(),
        members,
        error,
    };
    if !mixed.quiet {
        output::out(&table(&results))?;
    }
    let written = mixed.json.as_ref().map_or(Ok(()), |path| whole_file::write_json(path, &results));
    written.map_err(Failure::Unwritten)
}

fn table(results: &Results) -> String {
    let mut text = format!("mixed: {}, {} under way\n", results.mix, results.outstanding);
    // Writing to a string does not fail.
    let _ = writeln!(
        text,
        "  {:<16} {:>10} {:>10} {:>12} {:>14} {:>14} {:>14}",
        "", "p50 us", "p99 us", "per second", "p50 alone us", "p99 alone us", "alone per s"
    );
    for member in &results.members {
        let OfMember { size_bytes, one_way, mixed, alone, .. } = member;
        let name = format!("{}{}", written(*size_bytes), if *one_way { ", one-way" } else { "" });
        let _ = writeln!(
            text,
            "  {name:<16} {:>10.2} {:>10.2} {:>12.0} {:>14.2} {:>14.2} {:>14.0}",
            mixed.p50_ns.median / 1e3,
            mixed.p99_ns.median / 1e3,
            mixed.per_s.median,
            alone.p50_ns.median / 1e3,
            alone.p99_ns.median / 1e3,
            alone.per_s.median
        );
    }
    let (calls, mb) = (results.calls_per_s, results.bytes_per_s / 1e6);
    let _ = writeln!(text, "  {calls:.0} calls/s and {mb:.1} MB/s in all");
    text
}

impl OfMember {
    #[expect(clippy::cast_precision_loss, reason = "at most 2^27")]
    fn bytes_per_s(&self) -> f64 {
        let ways = if self.one_way { 1 } else { 2 };
        self.mixed.per_s.median * (ways * self.size_bytes) as f64
    }
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
