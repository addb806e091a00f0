//! Runs the measured program under valgrind, and combines the counts of both.

use crate::callgrind::Profile;
use crate::layers;
use crate::record::SideCounts;
use crate::side::{Linked, Side};
use crate::steps::{Steps, Totals};
use crate::system_calls;
use std::path::Path;
use std::process::Command;
use trunkline_testkit::Folder;

/// Function in [`crate::steps`] at which the collection of instructions begins.
const BEGIN: &str = "trunkline_counts::steps::begin";
/// Function at which the collection ends.
const END: &str = "trunkline_counts::steps::end";
const CLIENT_TURN: &str = "trunkline_counts::steps::world::client_turn";
const SERVER_TURN: &str = "trunkline_counts::steps::world::server_turn";

/// Counts one side of a run. Returns its counts per call, and the number of bytes before the payload in its longest
/// frame.
///
/// # Errors
/// Returns an error if valgrind does not run or its output cannot be read.
pub(crate) fn measure(steps: Steps, side: Side) -> Result<(SideCounts, u64), String> {
    let folder = Folder::new().map_err(|error| format!("cannot make a temporary directory: {error}"))?;
    let (profile, log) = (folder.join("profile"), folder.join("log"));
    let totals = run(steps, side, &profile, &log)?;
    if totals.stalls > 0 {
        return Err(format!(
            "both nodes waited {} times for time to pass; such turns would count",
            totals.stalls
        ));
    }
    // Dump 1 is written on entry to `END` and counts from `BEGIN`; later dumps cover the rest of the run.
    let profile = Profile::parse(&read(&profile.with_extension("1"))?)
        .map_err(|error| format!("callgrind's output: {error}"))?;
    let instructions = layers::by_layer(&profile);
    let system_calls = system_calls::count(&read(&log)?, side)?;
    let own = match side {
        Side::Client => totals.client,
        Side::Server => totals.server,
    };
    Ok((SideCounts::new(totals.calls, instructions, system_calls, own), own.header_bytes))
}

/// Runs this program under callgrind. The environment is empty, because its size shifts the stack.
fn run(steps: Steps, side: Side, profile: &Path, log: &Path) -> Result<Totals, String> {
    let turn = match side {
        Side::Client => CLIENT_TURN,
        Side::Server => SERVER_TURN,
    };
    let program = std::env::current_exe().map_err(|error| format!("cannot find this program: {error}"))?;
    let mut command = Command::new("valgrind");
    command.env_clear();
    for name in ["PATH", "TMPDIR"] {
        if let Some(value) = std::env::var_os(name) {
            command.env(name, value);
        }
    }
    command.args(["--tool=callgrind", "--collect-atstart=no", "--trace-syscalls=yes"]);
    command.args([
        format!("--toggle-collect={turn}"),
        format!("--zero-before={BEGIN}"),
        format!("--dump-before={END}"),
        format!("--callgrind-out-file={}", profile.display()),
        format!("--log-file={}", log.display()),
    ]);
    command.arg(program).args([
        "steps",
        steps.linked.name(),
        &steps.outstanding.to_string(),
        &steps.calls.to_string(),
        steps.shape.name(),
    ]);
    let output = command.output().map_err(|error| format!("cannot run valgrind: {error}"))?;
    if !output.status.success() {
        let (why, log) = (String::from_utf8_lossy(&output.stderr), read(log).unwrap_or_default());
        let log = log.lines().filter(|line| line.starts_with("==")).collect::<Vec<_>>().join("\n");
        return Err(format!("the program under valgrind ended with {}: {why}\n{log}", output.status));
    }
    serde_json::from_slice(&output.stdout)
        .map_err(|error| format!("the program under valgrind printed something else: {error}"))
}

fn read(path: &Path) -> Result<String, String> {
    let bytes = std::fs::read(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Runs to measure: each link with one call in flight and with many.
pub(crate) const RUNS: [(Linked, u32); 6] = [
    (Linked::InProcess, 1),
    (Linked::InProcess, 32),
    (Linked::Udp, 1),
    (Linked::Udp, 32),
    (Linked::Shm, 1),
    (Linked::Shm, 32),
];
