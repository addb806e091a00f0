//! What the command line asks for.

use clap::Parser;
use std::path::PathBuf;
use std::time::Duration;

/// Runs whole nodes in virtual time, thousands of times, each by its own seed, and judges them.
///
/// In each run two to four nodes, with their pollers, connections and handlers as they are, exchange
/// calls over a network that loses, duplicates, reorders and corrupts packets, while machines and
/// processes stand still, nodes are killed, also between two stores to memory that the processes of a
/// host share, and restarted, devices are removed, handlers panic and hang, and callers give up. In
/// half of the runs several nodes are processes of one host and share its address. An oracle knows every call. Then all faults end, and nothing of them
/// may be left. The same seed gives the same run.
///
/// Examples:
///   cargo simulate                           2,000 runs from a seed that changes with the day
///   cargo simulate --seed 7 --trace run.txt  one run, written down line by line
///   cargo simulate --seed 7 --runs 500       seeds 7 to 506
///   cargo simulate --minutes 30              as many runs as 30 minutes allow
///   cargo simulate --mutant all              each deliberate fault must be caught
///   cargo simulate --mutant reply_to_another_call --seed 1 --trace run.txt
///                                            one run with a deliberate fault
#[derive(Debug, Parser)]
#[command(name = "cargo simulate", version, verbatim_doc_comment)]
pub(crate) struct Cli {
    /// First seed. Without --runs and --minutes, the only one.
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// How many runs: seeds N to N+M-1.
    #[arg(long, value_name = "M")]
    runs: Option<u64>,
    /// For how long to begin runs; with --runs, whichever ends first.
    #[arg(long, value_name = "N")]
    minutes: Option<f64>,
    /// Write the trace of the only run here.
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
    /// Switch on a deliberate fault; `all` tries each, `list` names them.
    #[arg(long, value_name = "NAME")]
    pub(crate) mutant: Option<String>,
    /// Runs at a time.
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
    /// Go on after a run that fails, and list all that do.
    #[arg(long)]
    pub(crate) keep_going: bool,
    /// Print the summary as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Runs when nothing is said of how many.
const RUNS: u64 = 2_000;

impl Cli {
    /// How many runs at most.
    pub(crate) fn runs(&self) -> u64 {
        match (self.runs, self.minutes, self.seed) {
            (Some(runs), ..) => runs,
            (None, Some(_), _) => u64::MAX,
            (None, None, Some(_)) => 1,
            (None, None, None) => RUNS,
        }
    }

    /// For how long runs begin.
    pub(crate) fn time(&self) -> Duration {
        let seconds = self.minutes.map_or(f64::MAX, |minutes| minutes * 60.0);
        Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
    }

    /// Runs at a time: as many as there are CPUs.
    pub(crate) fn jobs(&self) -> usize {
        let cpus = || std::thread::available_parallelism().map_or(1, usize::from);
        self.jobs.unwrap_or_else(cpus).max(1)
    }
}
