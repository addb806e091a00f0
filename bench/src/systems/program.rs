//! `trunkline-bench-peers`: systems in Rust, in a program outside the workspace, so that the workspace does not compile them.

use super::command::Running;
use crate::figures::Figures;
use crate::floors::Shape;
use crate::recorder::histogram;
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const PROGRAM: &str = "trunkline-bench-peers";
/// The sources, if this program runs where it was built.
const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/peers");
/// Time that the program may take beyond the measurement.
const PATIENCE: Duration = Duration::from_secs(30);
/// Time limit for the program to end its server and remove its files after its result.
const ENDING: Duration = Duration::from_secs(5);
/// Maximum number of distinct times that the program may report.
const MOST_TIMES: usize = 1 << 20;

/// A system of the program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Peer {
    program: PathBuf,
    /// Name of the system in the program's arguments.
    word: String,
    pub(super) name: String,
}

/// Output of the program.
#[derive(Debug, Deserialize)]
struct Line {
    times: Vec<(u64, u64)>,
    per_s: f64,
}

/// Returns the systems that the program can measure.
///
/// # Errors
/// Fails with the reason if the program cannot be built or run.
pub(super) fn peers(named: Option<&Path>) -> Result<Vec<Peer>, String> {
    let program = match named {
        Some(named) => named.to_owned(),
        None => built()?,
    };
    let listed = Command::new(&program).arg("list").output();
    let listed = listed.map_err(|error| format!("--peers: cannot run {}: {error}", program.display()))?;
    let words = String::from_utf8_lossy(&listed.stdout);
    let peer = |word: &str| Peer { program: program.clone(), word: word.to_owned(), name: name(word) };
    let peers = words.split_whitespace().map(peer).collect::<Vec<_>>();
    if peers.is_empty() {
        return Err(format!("--peers: {} lists no system; is it {PROGRAM}?", program.display()));
    }
    Ok(peers)
}

/// Returns the system's name in tables.
fn name(word: &str) -> String {
    match word.split_once('-') {
        Some((system, "tcp")) => format!("{system}, TCP"),
        Some((system, "unix")) => format!("{system}, Unix socket"),
        _ => word.to_owned(),
    }
}

/// Returns the program: built if its sources exist, otherwise the file next to this program.
fn built() -> Result<PathBuf, String> {
    let sources = Path::new(SOURCES);
    let manifest = sources.join("Cargo.toml");
    if !manifest.exists() {
        let here = std::env::current_exe().map_err(|error| format!("cannot find this program: {error}"))?;
        let next = here.with_file_name(PROGRAM);
        return next.exists().then_some(next).ok_or_else(|| {
            format!(
                "--peers: {PROGRAM} is not next to this program; build it in bench/peers of Trunkline's sources by \
                 `cargo build --release`, and name it by --peers-program"
            )
        });
    }
    // Always use a separate target directory, even if cargo runs this program with a different one.
    let target = sources.join("target");
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["build", "--release", "--locked", "--manifest-path"]).arg(&manifest);
    cargo.arg("--target-dir").arg(&target);
    let status = cargo.status().map_err(|error| format!("--peers: cannot run cargo: {error}"))?;
    if !status.success() {
        return Err(format!("--peers: {PROGRAM} cannot be built, {status}"));
    }
    Ok(target.join("release").join(PROGRAM))
}

impl Peer {
    /// Measures the system.
    ///
    /// # Errors
    /// Fails with the reason if there is no result.
    pub(super) fn measure(&self, shape: &Shape) -> Result<Figures, String> {
        let mut command = Command::new(&self.program);
        command.args(["measure", &self.word]);
        for (name, value) in
            [("--size", shape.size), ("--reply", shape.reply), ("--outstanding", shape.outstanding)]
        {
            command.args([name, &value.to_string()]);
        }
        command.args(["--seconds", &shape.measured.as_secs_f64().to_string()]);
        let pin = shape.cores.map(|cores| format!("{},{}", cores.client, cores.server));
        command.args(["--pin", pin.as_deref().unwrap_or("off")]);
        let limit = shape.measured * 2 + PATIENCE;
        let is_result = |line: &str| line.starts_with('{').then(|| line.to_owned());
        let mut running = Running::start(&mut command, None)?;
        let line = running.first(limit, is_result)?;
        running.end(ENDING);
        figures(&line)
    }
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
    #[expect(clippy::cast_precision_loss, reason = "nanoseconds of a call stay far below 2^52")]
    let at = |quantile| Some(histogram.value_at_quantile(quantile) as f64);
    Ok(Figures { p50_ns: at(0.5), p99_ns: at(0.99), mean_ns: Some(histogram.mean()), per_s: Some(per_s) })
}
