//! Command line.

use crate::plan::Pollers;
use clap::Parser;
use clap::builder::RangedU64ValueParser;
use std::path::PathBuf;
use std::time::Duration;

/// Runs whole nodes in virtual time, thousands of times, each run with a different seed, and
/// checks them.
///
/// In each run two to four nodes, with their pollers, connections and handlers unmodified, exchange calls over
/// a network that loses, duplicates, reorders and corrupts packets. Meanwhile machines and processes are
/// stopped, devices are removed, handlers panic and hang, and callers give up. Nodes are killed and restarted;
/// some are killed between two stores to memory shared by the processes of a host. In half of the runs,
/// several nodes are processes of one host and share its address. An oracle checks every call. Then all faults
/// end, and no effect of them may remain. The same seed gives the same run.
///
/// Examples:
///   cargo simulate                           2,000 runs from a seed that changes with the day
///   cargo simulate --seed 7 --trace run.txt  one run, written down line by line
///   cargo simulate --seed 7 --runs 500       seeds 7 to 506
///   cargo simulate --minutes 30              as many runs as 30 minutes allow
///   cargo simulate --pollers 32/1            nodes with 32 pollers and with one
///   cargo simulate --mutant all              each deliberate fault must be caught
///   cargo simulate --mutant replies_match_any_call --seed 1 --trace run.txt
///                                           one run with a deliberate fault
///
/// Exit codes: 0 all runs passed; 1 a run failed, or a campaign had too few events of some kind; 2
/// wrong usage, or a file or standard output cannot be written; 130 and 143 ended by SIGINT and
/// SIGTERM.
#[derive(Debug, Parser)]
#[command(name = "cargo simulate", version, verbatim_doc_comment)]
pub(crate) struct Cli {
    /// First seed. Without --runs and --minutes, only this seed is run.
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// Number of runs M, with seeds N to N+M-1. Default: 2000; 1 with --seed; no limit with
    /// --minutes.
    #[arg(long, value_name = "M", value_parser = clap::value_parser!(u64).range(1..))]
    runs: Option<u64>,
    /// Minutes during which runs are started; if --runs is given too, the first limit reached
    /// applies.
    #[arg(long, value_name = "N", value_parser = minutes)]
    minutes: Option<f64>,
    /// Numbers of pollers of the nodes in turn, 1 to 32 each, for example 4/1. Default: each seed draws 1
    /// to 3 per node.
    #[arg(long, value_name = "N/M")]
    pub(crate) pollers: Option<Pollers>,
    /// Write the trace of the run to this file; needs --seed, and a single run.
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
    /// Enable a deliberate fault; `all` tries each, `few` tries ten in different areas, `list` lists
    /// them.
    #[arg(long, value_name = "NAME")]
    pub(crate) mutant: Option<String>,
    /// Number of concurrent runs, 1 to 1024. Default: the number of CPUs.
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..=1024))]
    jobs: Option<usize>,
    /// Continue after a failed run, and list all failed runs.
    #[arg(long)]
    pub(crate) keep_going: bool,
    /// Print the result as one JSON document on standard output.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Default number of runs.
const RUNS: u64 = 2_000;

impl Cli {
    /// Rejects incompatible options.
    ///
    /// # Errors
    /// Returns an error that states the change to make.
    pub(crate) fn check(&self) -> Result<(), String> {
        if let (Some(seed), Some(runs)) = (self.seed, self.runs)
            && seed.checked_add(runs - 1).is_none()
        {
            return Err(format!("there are no {runs} seeds from {seed} on; the last is {}", u64::MAX));
        }
        if self.trace.is_none() {
            return Ok(());
        }
        if matches!(self.mutant.as_deref(), Some("all" | "few" | "list")) {
            return Err("--trace is for one run; name one deliberate fault, and add --seed N".to_owned());
        }
        if self.seed.is_none() {
            return Err("--trace is for one run; add --seed N".to_owned());
        }
        if self.runs() != 1 {
            return Err("--trace is for one run; leave --runs and --minutes out".to_owned());
        }
        Ok(())
    }

    pub(crate) fn runs(&self) -> u64 {
        match (self.runs, self.minutes, self.seed) {
            (Some(runs), ..) => runs,
            (None, Some(_), _) => u64::MAX,
            (None, None, Some(_)) => 1,
            (None, None, None) => RUNS,
        }
    }

    /// Returns the time after which no further runs are started.
    pub(crate) fn time(&self) -> Duration {
        let seconds = self.minutes.map_or(f64::MAX, |minutes| minutes * 60.0);
        Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
    }

    /// Returns the number of concurrent runs, which is the number of CPUs by default.
    pub(crate) fn jobs(&self) -> usize {
        let cpus = || std::thread::available_parallelism().map_or(1, usize::from);
        self.jobs.unwrap_or_else(cpus).max(1)
    }
}

fn minutes(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(minutes) if minutes > 0.0 && minutes.is_finite() => Ok(minutes),
        _ => Err("a number above 0 is needed".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn check(arguments: &[&str]) -> Result<(), String> {
        let all = std::iter::once("simulate").chain(arguments.iter().copied());
        Cli::try_parse_from(all).map_err(|error| error.to_string())?.check()
    }

    #[test]
    fn invalid_option_values_are_refused() {
        for wrong in
            [["--runs", "0"], ["--minutes", "0"], ["--minutes", "nan"], ["--jobs", "0"], ["--jobs", "100000"]]
        {
            assert!(check(&wrong).is_err(), "{wrong:?}");
        }
        assert_eq!(check(&["--seed", "7", "--runs", "500", "--jobs", "2"]), Ok(()));
        for wrong in ["4", "0/1", "1/33", "1/", "a/b", "1/2/3"] {
            assert!(check(&["--pollers", wrong]).is_err_and(|why| why.contains("as in 4/1")), "{wrong}");
        }
        assert_eq!(check(&["--pollers", "32/1"]), Ok(()));
    }

    #[test]
    fn seeds_do_not_wrap() {
        let last = u64::MAX.to_string();
        assert!(check(&["--seed", &last, "--runs", "3"]).unwrap_err().contains("the last is"));
        assert_eq!(check(&["--seed", &last, "--runs", "1"]), Ok(()));
    }

    #[test]
    fn trace_option_requires_single_seed() {
        assert!(check(&["--trace", "x"]).unwrap_err().contains("add --seed N"));
        assert!(check(&["--trace", "x", "--seed", "1", "--runs", "2"]).is_err());
        assert!(check(&["--trace", "x", "--mutant", "all"]).is_err());
        assert_eq!(check(&["--trace", "x", "--seed", "1"]), Ok(()));
    }

    #[test]
    fn help_names_existing_faults() {
        let help = Cli::command().render_long_help().to_string();
        let names = help.split("--mutant ").skip(1).filter_map(|rest| rest.split_whitespace().next());
        let names = names.filter(|name| !["all", "list", "<NAME>"].contains(name)).collect::<Vec<_>>();
        assert!(!names.is_empty());
        for name in names {
            assert!(crate::campaign::mutants::ALL.iter().any(|mutant| mutant.name == name), "{name}");
        }
    }
}
