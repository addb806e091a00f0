//! Command line of `trunkline-bench`.

use crate::calls::client::{CallerKind, MOST_THREADS};
use crate::calls::nodes::{LinkFlag, Nodes};
use crate::calls::payload::Buffer;
use crate::calls::servers::Fleet;
use crate::meter::load::Helper;
use crate::results::compare::Comparison;
use crate::results::html::Files;
use crate::scenario::across::{Host, Orders};
use crate::scenario::burst::Burst;
use crate::scenario::fair;
use crate::scenario::mixed::Mixed;
use crate::scenario::rest::{IdleNodes, Rest};
use crate::scenario::scale::Scale;
use crate::scenario::sealed::Sealed;
use crate::scenario::shared::Shared;
use crate::scenario::streams::Streams;
use crate::scenario::{Output, Sweep, rate};
use crate::sizes::{Outstanding, Sizes};
use clap::{Args, Parser, Subcommand};
use serde::Serialize;
use std::path::PathBuf;

/// Measures generated calls and, in the same run, the floors of the machine.
///
/// Start here:
///   trunkline-bench                                 latency of several sizes, beside the floors
///   trunkline-bench table                           Trunkline, other systems and floors in one table
///   trunkline-bench COMMAND --help                  settings of a command
///
/// A floor is the same exchange without middleware: a cache line between two cores, an eventfd, UDP and TCP sockets. Quote
/// times as multiples of a floor, because they depend on the machine and its load.
///
/// The program starts the server as a second process, and each side runs on a separate core. It repeats each measurement,
/// with floors and points in turn, and prints medians. --seconds 0.2 --repetitions 3 gives a shorter, less accurate run.
///
/// One exchange:
///   trunkline-bench latency --size 64               one call at a time, 64 bytes there and back
///   trunkline-bench latency --size 0..1M            sizes from 0 to 1 MiB, doubling
///   trunkline-bench latency --client thread --pause 10
///                                                   a thread that calls every 10 ms: both sides sleep between calls
///   trunkline-bench latency --arrivals 50000        open loop, see below
///   trunkline-bench rate --outstanding 1,8,32       calls per second with 1, 8 and 32 outstanding
///   trunkline-bench bandwidth                       1 MiB there, 8 bytes back, 4 outstanding
///   trunkline-bench rate --peers                    the same over tonic, tarpc, iceoryx2, UCX and others, in turn
///
/// Mixed loads:
///   trunkline-bench fair --large 8                  small calls beside large ones
///   trunkline-bench mixed --mix 64:90,64K:9,1M:1    sizes in a mix by weight, beside each of them alone
///   trunkline-bench burst --calls 200000            200,000 calls at once: successes, time and memory
///   trunkline-bench streams                         items of streams beside calls; open streams, a large upload
///   trunkline-bench scale                           more peers, pollers and services; sessions per second
///
/// Conditions:
///   trunkline-bench shared --pin off --neighbours 2 beside two busy loops; --quota 0.5 is half a core for each side
///   trunkline-bench sealed                          encrypted sessions beside sessions without encryption
///   trunkline-bench rest                            CPU time of idle and nearly idle clients and servers
///
/// Several hosts:
///   trunkline-bench node                            on each host, and then on one of them:
///   trunkline-bench run --nodes a,b,c,d --pattern all-to-all
///                                                   calls between these hosts, beside TCP; `run --help` has an example
///
/// Results:
///   trunkline-bench latency --json before.json      also as JSON
///   trunkline-bench compare before.json after.json  changes beyond noise between two such files
///   trunkline-bench latency --size 0..1M --html out.html   a page with plots
///   trunkline-bench report *.json --html out.html   a page of several JSON files
///
/// Closed and open loop: by default, a call starts when the previous one has ended. A server that stalls for 100 ms then
/// delays only one call per sequence, and p99 hides the stall ("coordinated omission"). With --arrivals, calls are scheduled
/// at a fixed rate, and a call's time is measured from its scheduled start. Every call scheduled during the stall therefore
/// shows it. At most --outstanding calls are in flight; the time that further calls wait is included.
///
/// Drift: a host may move virtual processors. The program samples a cache line before and after each measurement. If the
/// samples differ by a factor of more than 1.4, it drops the measurement and repeats it, at most three times.
///
/// Before the first measurement, the program checks that the files given by --json and --html can be written.
///
/// Exit codes:
///   0 measured
///   1 measured and printed, but a file cannot be written any more
///   2 wrong usage, or something cannot be measured
///   3 the server process died
///   4 `compare` found a regression, or a verdict of `run --strict` failed
///   5 some nodes or calls of a run between hosts failed, and the others were measured
/// Results from before a failure are printed and written.
#[derive(Debug, Parser)]
#[command(name = "trunkline-bench", version, verbatim_doc_comment, args_conflicts_with_subcommands = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    #[command(flatten)]
    pub(crate) settings: Settings,
}

/// Subcommands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// The time of a call: by default 64 bytes each way, one call at a time.
    Latency(Settings),
    /// Calls per second: by default 64 bytes each way, 32 outstanding.
    Rate(Settings),
    /// Bytes per second in one direction: by default 1 MiB out and 8 bytes back, 4 outstanding.
    Bandwidth(Settings),
    Table(SideBySide),
    /// The time of small calls beside large ones.
    Fair(fair::Load),
    /// Many calls at once, each from a tokio task: their time, and their memory compared with the memory of timers.
    Burst(Burst),
    /// Items of streams compared with unary calls; the memory of open streams and of a large upload.
    Streams(Streams),
    Compare(Comparison),
    /// Calls to several peers, over several pollers and services, and the set-up time of sessions.
    Scale(Scale),
    /// Calls of several sizes and kinds in a mix, compared with each kind alone.
    Mixed(Mixed),
    /// Starts a node on this host, for `run` on one of the hosts.
    Node(Host),
    /// Measures between the nodes of several hosts.
    Run(Orders),
    Report(Files),
    /// Calls in encrypted sessions, compared with the same calls without encryption.
    Sealed(Sealed),
    /// Calls next to busy loops or within a CPU quota, and over tonic and tarpc.
    Shared(Shared),
    /// CPU time, context switches and memory at low call rates and with idle sessions, also for tonic and tarpc.
    Rest(Rest),
    #[command(flatten)]
    Helper(Helper),
    /// Runs the server process, which the program starts itself.
    #[command(hide = true)]
    Serve(Fleet),
    /// Idle nodes of `rest`.
    #[command(hide = true)]
    IdleNodes(IdleNodes),
}

// Serialised as the settings that affect the results. A doc comment here would replace the description of the program.
#[derive(Debug, Clone, Args, Serialize)]
pub(crate) struct Settings {
    /// Path of the packets.
    #[arg(long, value_enum, default_value_t = LinkFlag::Auto)]
    pub(crate) link: LinkFlag,
    /// Reason why `auto` did not choose shared memory.
    #[arg(skip)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) link_why: Option<&'static str>,
    /// Payload size in bytes, 0 to 64M: `64`, `4K`, `64,4K,1M`, or `64..64K`, which doubles at each step.
    #[arg(long, value_name = "SIZES")]
    #[serde(skip)]
    pub(crate) size: Option<Sizes>,
    /// Outstanding calls, 1 to 4096; lists and ranges are written as in --size.
    #[arg(long, value_name = "CALLS")]
    #[serde(skip)]
    pub(crate) outstanding: Option<Outstanding>,
    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) sweep: Sweep,
    /// Kind of thread or task that makes the calls.
    #[arg(long, value_enum, default_value_t = CallerKind::Poller)]
    pub(crate) client: CallerKind,
    /// Make one-way calls. A call ends when its payload is in the server's memory, and there is no reply.
    #[arg(long)]
    pub(crate) one_way: bool,
    /// Pause before each call, so that both sides sleep. Floors that sleep use the same pause.
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=60_000), conflicts_with = "arrivals")]
    #[serde(rename = "pause_ms", skip_serializing_if = "Option::is_none")]
    pub(crate) pause: Option<u64>,
    /// Source of the payloads.
    #[arg(long, value_enum, default_value_t = Buffer::Reused)]
    pub(crate) buffer: Buffer,
    /// Check the contents of each reply; in `bandwidth`, the server returns a digest. Checks take time.
    #[arg(long, conflicts_with = "one_way")]
    pub(crate) verify: bool,
    /// Use an open loop with this total call rate, per second. Latency is measured from the scheduled start of a call.
    #[arg(long, value_name = "RATE", value_parser = rate)]
    #[serde(rename = "arrivals_per_s", skip_serializing_if = "Option::is_none")]
    pub(crate) arrivals: Option<f64>,
    /// Also measure other systems: tonic, tarpc and iceoryx2, and ucx_perftest, fi_pingpong and perftest if they are
    /// installed. The first run builds the Rust systems with cargo, which takes some minutes.
    #[arg(long, conflicts_with_all = ["pause", "arrivals", "one_way"])]
    #[serde(skip)]
    pub(crate) peers: bool,
    /// Built program of bench/peers, which runs the Rust systems. Needed where these sources are missing.
    #[arg(long, value_name = "FILE", requires = "peers")]
    #[serde(skip)]
    pub(crate) peers_program: Option<PathBuf>,
    #[command(flatten)]
    #[serde(skip)]
    pub(crate) output: Output,
    /// Also write a self-contained page with plots: distributions, sweeps, floors, machine and settings.
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    pub(crate) html: Option<PathBuf>,
    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) nodes: Nodes,
}

/// Trunkline over UDP and shared memory, other systems and floors, in turn; prints one Markdown table.
///
/// The columns are the round-trip time of 64-byte calls, one at a time, and calls per second with 32 outstanding. Each is
/// the median, with the minimum and maximum of the repetitions. A line with date, version, machine and method follows;
/// standard output contains nothing else. The first run builds the Rust systems with cargo, which takes some minutes.
#[derive(Debug, Args)]
pub(crate) struct SideBySide {
    #[command(flatten)]
    pub(crate) sweep: Sweep,
    /// Built program of bench/peers, which runs the Rust systems. Needed where these sources are missing.
    #[arg(long, value_name = "FILE")]
    peers_program: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) output: Output,
}

impl SideBySide {
    /// Returns the settings of the runs over one link. Other systems are measured only in the UDP runs.
    pub(crate) fn settings(&self, link: LinkFlag) -> Settings {
        let peers = link == LinkFlag::Udp;
        Settings {
            link,
            link_why: None,
            size: None,
            outstanding: None,
            sweep: self.sweep.clone(),
            client: CallerKind::Poller,
            one_way: false,
            pause: None,
            buffer: Buffer::Reused,
            verify: false,
            arrivals: None,
            peers,
            peers_program: self.peers_program.clone(),
            output: Output::default(),
            html: None,
            nodes: Nodes::PLAIN,
        }
    }
}

impl Settings {
    /// Rejects settings that cannot be measured. Called before the measurement starts.
    ///
    /// # Errors
    /// Returns an error for the first such setting.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.html.is_some() && self.output.json == self.html {
            return Err("--json and --html name the same file".to_owned());
        }
        let most = self.outstanding.iter().flat_map(|all| all.0.iter().copied()).max().unwrap_or(1);
        if self.client == CallerKind::Thread && most > MOST_THREADS {
            return Err(format!(
                "--client thread has a thread for each call under way, at most {MOST_THREADS}; {most} were asked for"
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(line: &str) -> Result<Settings, String> {
        let words = ["trunkline-bench"].into_iter().chain(line.split_whitespace());
        let cli = Cli::try_parse_from(words).map_err(|error| error.to_string())?;
        let settings = match cli.command {
            Some(Command::Latency(settings) | Command::Rate(settings) | Command::Bandwidth(settings)) => {
                settings
            }
            _ => cli.settings,
        };
        settings.check().map(|()| settings)
    }

    #[test]
    fn each_help_text_describes_its_command() {
        use clap::CommandFactory as _;
        let mut command = Cli::command();
        let about = command.get_about().map(ToString::to_string).unwrap_or_default();
        assert!(about.starts_with("Measures generated calls"), "{about}");
        for sub in command.get_subcommands_mut().filter(|sub| !sub.is_hide_set()) {
            let about = sub.get_about().map(ToString::to_string).unwrap_or_default();
            assert!(
                !["The two nodes", "How it is measured", ""].contains(&about.as_str()),
                "{}: {about}",
                sub.get_name()
            );
        }
    }

    #[test]
    fn settings_are_read() {
        let all =
            settings("rate --size 4K --outstanding 1,8 --seconds 0.5 --client tokio --pin 0,1").unwrap();
        assert_eq!((all.size.unwrap().0, all.outstanding.unwrap().0), (vec![4096], vec![1, 8]));
        assert_eq!((all.client, all.buffer), (CallerKind::Tokio, Buffer::Reused));
        assert_eq!(settings("").unwrap().client, CallerKind::Poller);
    }

    #[test]
    fn invalid_settings_are_refused_with_reason() {
        for (line, word) in [
            ("latency --seconds 0", "not above 0"),
            ("latency --arrivals x", "not a number"),
            ("latency --size 65M", "between 0 and"),
            ("rate --outstanding 5000", "between 1 and 4096"),
            ("rate --client thread --outstanding 257", "at most 256"),
            ("latency --pause 1 --arrivals 5", "cannot be used with"),
            ("latency --one-way --verify", "cannot be used with"),
            ("latency --peers --one-way", "cannot be used with"),
            ("latency --json a --html a", "the same file"),
            ("latency --peers-program x", "required"),
            ("--size 64 latency", "cannot be used with"),
        ] {
            let error = settings(line).unwrap_err();
            assert!(error.contains(word), "{line}: {error}");
        }
    }
}
