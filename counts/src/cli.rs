//! Command line of `cargo counts`.

use crate::steps::Steps;
use clap::{Parser, Subcommand};
use std::path::PathBuf;

/// Counts the cost of one unary call with 64 bytes each way, independently of the machine's speed.
///
/// Two nodes run in one thread, and their pollers have turns only when there is work, so no turn is empty. The program runs
/// under valgrind's callgrind, which counts the instructions of one side's turns and attributes them to layers by source file.
/// Allocations, system calls and datagrams are counted in the same turns. Each number is per call: for the in-process link, for
/// UDP sockets on the loopback interface and for shared memory, with 1 and with 32 calls in flight, made by tasks on the
/// client's poller. For the in-process link, it also counts handlers that await once, callers outside pollers that share a
/// channel, two pollers per side, encrypted sessions, and the items of one stream in each direction. A run takes several
/// minutes. docs/book/src/reference/performance.md explains which costs are counted.
///
/// Examples:
///   cargo counts                    the table, which is also Markdown
///   cargo counts --json counts.json the same as JSON
///   cargo counts --check            fails when counts have grown since counts/record.json
///   cargo counts --bless            renews counts/record.json: commit it with the reason
///
/// Needs the package `valgrind`.
///
/// Exit codes: 0 counted, and nothing has grown, or the record is from another toolchain and nothing was
/// compared; 1 a count has grown; 2 wrong usage, valgrind is missing, or something cannot be run or written.
#[derive(Debug, Parser)]
#[command(name = "cargo counts", version, verbatim_doc_comment)]
pub(crate) struct Cli {
    /// Also write the counts to this file; counts with 32 calls in flight are at the top level.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Compare with the record: instructions of a side may grow by 3 %, allocations and system calls not at all.
    #[arg(long, conflicts_with = "bless")]
    pub(crate) check: bool,
    /// Write the record.
    #[arg(long)]
    pub(crate) bless: bool,
    /// Path of the record. Default: counts/record.json in the workspace in which the program
    /// was built.
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

/// Internal subcommands.
#[derive(Debug, Clone, Copy, Subcommand)]
pub(crate) enum Command {
    /// Runs two nodes in one thread; `cargo counts` starts it under valgrind.
    #[command(hide = true)]
    Steps(Steps),
}

impl Cli {
    /// Returns the path of the record.
    pub(crate) fn record(&self) -> PathBuf {
        let default = || PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/record.json"));
        self.record.clone().unwrap_or_else(default)
    }
}
