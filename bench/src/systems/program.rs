//! `trunkline-bench-peers`, which runs the Rust systems. It is outside the workspace, so that the workspace does not
//! compile these systems.

use super::command::Running;
use crate::floors::Shape;
use crate::meter::load::Load;
use crate::meter::recorder::{Sample, histogram};
use crate::meter::usage::Usage;
use crate::systems::figures::Figures;
use clap::Args;
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use trunkline_testkit::output;

const PROGRAM: &str = "trunkline-bench-peers";
/// Path of the sources. They exist if this program runs where it was built.
const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/peers");
/// Time for which the program may run in addition to the measurement.
const PATIENCE: Duration = Duration::from_secs(30);
/// Time limit for the program to end its server and remove its files, after it has printed its result.
const ENDING: Duration = Duration::from_secs(5);
/// Maximum number of distinct times that the program may report.
const MOST_TIMES: usize = 1 << 20;

/// Selection of the Rust systems, in scenarios that measure them by default.
#[derive(Debug, Clone, Args)]
pub(crate) struct Peers {
    /// Do not measure the other systems, tonic and tarpc. The first run builds them with cargo, which takes some minutes.
    #[arg(long)]
    no_peers: bool,
    /// Built program of bench/peers, which runs the Rust systems. Needed where these sources are missing.
    #[arg(long, value_name = "FILE", conflicts_with = "no_peers")]
    peers_program: Option<PathBuf>,
}

impl Peers {
    /// Returns the selected systems that exchange messages over TCP.
    ///
    /// # Errors
    /// See [`Peer::all`].
    pub(crate) fn over_tcp(&self) -> Result<Vec<Peer>, String> {
        if self.no_peers {
            return Ok(Vec::new());
        }
        let peers = Peer::all(self.peers_program.as_deref())
            .map_err(|why| format!("{why}; --no-peers leaves other systems out"))?;
        Ok(peers.into_iter().filter(|peer| peer.word.ends_with("-tcp")).collect())
    }
}

/// A system that the program can run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Peer {
    program: PathBuf,
    /// Name of the system in the program's arguments.
    word: String,
    pub(crate) name: String,
}

#[derive(Debug, Deserialize)]
struct Line {
    times: Vec<(u64, u64)>,
    per_s: f64,
}

/// Returns the name of the system in tables.
fn name(word: &str) -> String {
    match word.split_once('-') {
        Some((system, "tcp")) => format!("{system}, TCP"),
        Some((system, "tls")) => format!("{system}, TLS"),
        Some((system, "unix")) => format!("{system}, Unix socket"),
        _ => word.to_owned(),
    }
}

/// Returns the path of the program. If its sources exist, the program is built. Otherwise the file next to this program
/// is used.
fn built() -> Result<PathBuf, String> {
    let sources = Path::new(SOURCES);
    let manifest = sources.join("Cargo.toml");
    if !manifest.exists() {
        let here = std::env::current_exe().map_err(|error| format!("cannot find this program: {error}"))?;
        let next = here.with_file_name(PROGRAM);
        return next.exists().then_some(next).ok_or_else(|| {
            format!(
                "other systems: {PROGRAM} is not next to this program; build it in bench/peers of Trunkline's sources by \
                 `cargo build --release`, and name it by --peers-program"
            )
        });
    }
    output::err("other systems: the first time, cargo builds those in Rust, which takes some minutes");
    // Always use a separate target directory, even if cargo runs this program with another one.
    let target = sources.join("target");
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["build", "--release", "--locked", "--manifest-path"]).arg(&manifest);
    cargo.arg("--target-dir").arg(&target);
    let status = cargo.status().map_err(|error| format!("other systems: cannot run cargo: {error}"))?;
    if !status.success() {
        return Err(format!("other systems: {PROGRAM} cannot be built, {status}"));
    }
    Ok(target.join("release").join(PROGRAM))
}

impl Peer {
    /// Returns the systems that the program can measure.
    ///
    /// # Errors
    /// Returns an error if the program cannot be built or run.
    pub(crate) fn all(named: Option<&Path>) -> Result<Vec<Self>, String> {
        let program = match named {
            Some(named) => named.to_owned(),
            None => built()?,
        };
        let listed = Command::new(&program).arg("list").output();
        let listed =
            listed.map_err(|error| format!("other systems: cannot run {}: {error}", program.display()))?;
        let words = String::from_utf8_lossy(&listed.stdout);
        let peer = |word: &str| Self { program: program.clone(), word: word.to_owned(), name: name(word) };
        let peers = words.split_whitespace().map(peer).collect::<Vec<_>>();
        if peers.is_empty() {
            return Err(format!("other systems: {} lists no system; is it {PROGRAM}?", program.display()));
        }
        Ok(peers)
    }

    /// Measures the system under a load.
    ///
    /// # Errors
    /// Returns an error if there is no result.
    pub(crate) fn measure(&self, shape: &Shape, load: Load) -> Result<Figures, String> {
        let mut command = Command::new(&self.program);
        command.args(["measure", &self.word]);
        for (name, value) in
            [("--size", shape.size), ("--reply", shape.reply), ("--outstanding", shape.outstanding)]
        {
            command.args([name, &value.to_string()]);
        }
        let pin = shape.cores.map(|cores| format!("{},{}", cores.client, cores.server));
        command.args(["--pin", pin.as_deref().unwrap_or("off")]);
        if load.neighbours > 0 {
            command.args(["--neighbours", &load.neighbours.to_string()]);
        }
        if let Some(cores) = load.quota {
            command.args(["--quota", &cores.to_string()]);
        }
        figures(&run(command, shape.measured)?)
    }

    /// Measures the resource usage of the system at a call rate and with idle connections.
    ///
    /// # Errors
    /// Returns an error if there is no result.
    pub(crate) fn usage(
        &self,
        size: usize,
        rate: u32,
        idle_sessions: u16,
        measured: Duration,
    ) -> Result<Usage, String> {
        let mut command = Command::new(&self.program);
        let size = size.to_string();
        command.args(["rest", &self.word, "--size", &size, "--reply", &size, "--pin", "off"]);
        command.args(["--rate", &rate.to_string(), "--sessions", &idle_sessions.to_string()]);
        let line = run(command, measured)?;
        serde_json::from_str(&line).map_err(|error| format!("{PROGRAM} has printed no result: {error}"))
    }
}

/// Runs the program, and returns the line that contains its result.
fn run(mut command: Command, measured: Duration) -> Result<String, String> {
    command.args(["--seconds", &measured.as_secs_f64().to_string()]);
    let is_result = |line: &str| line.starts_with('{').then(|| line.to_owned());
    let mut running = Running::start(&mut command, None)?;
    let line = running.first(measured * 2 + PATIENCE, is_result)?;
    running.end(ENDING);
    Ok(line)
}

fn figures(line: &str) -> Result<Figures, String> {
    let Line { times, per_s } =
        serde_json::from_str(line).map_err(|error| format!("{PROGRAM} has printed no result: {error}"))?;
    if times.len() > MOST_TIMES || !per_s.is_finite() {
        return Err(format!("{PROGRAM} has printed no result that can be read"));
    }
    let mut histogram = histogram();
    for (time, count) in times {
        histogram.saturating_record_n(time, count);
    }
    Ok(Figures::of(&Sample { times: histogram, per_s }))
}
