//! `trunkctl pcap check`: names and checks every RoCE packet in captures.
//!
//! Processes files one after the other, and prints a line for each packet and a summary for each file and for all files.
//! Packets are decoded with the software device's wire layer, so this layer is also tested with captured packets.

mod fields;
mod file;
mod output;
mod packet;
mod progress;
mod summary;

use packet::PacketReport;
use summary::FileSummary;

use crate::streams::warn;
use clap::Args;
use output::Output;
use progress::Progress;
use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::process::ExitCode;

/// Name every RoCE packet in captures and check it
///
/// Reads pcap and pcapng files (Ethernet with or without VLAN tags, raw IP, Linux cooked,
/// loopback) and prints one line for each RoCEv2 packet. It checks of each packet that
///
///   * it parses, and the parsed packet is emitted as the same bytes;
///   * its ICRC is correct;
///   * a CM message in it (REQ, REP, RTU, ...) re-emits equal as well.
///
/// A datagram is RoCE if either of its UDP ports is 4791, or if it parses and has a correct ICRC on other
/// ports: a Trunkline device replies to the port that its peer sent from.
///
/// Exit status: 0 without faults, 1 if a packet or a file has a fault, 2 if a file cannot be read. A reader that closes
/// the pipe, such as `head`, ends the check; the status then covers the packets before.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment, after_help = EXAMPLES)]
pub struct CheckArguments {
    /// Captures to check; `-` reads standard input
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,

    /// Print one JSON object per line instead of text: a "packet" for each packet, a "file" after each
    /// file, a "summary" at the end
    #[arg(long)]
    json: bool,

    /// Print only packets with faults, and the summary
    #[arg(long, short)]
    quiet: bool,

    /// Fail if there are fewer RoCE packets than this in all files together, so that an empty
    /// capture does not pass
    #[arg(long, value_name = "N", default_value_t = 0)]
    at_least: u64,
}

const EXAMPLES: &str = "\
Examples:
  TRUNKLINE_PCAP=run.pcap my-server      let a Trunkline device capture its packets
  trunkctl pcap check run.pcap           name and check them
  trunkctl pcap check --quiet *.pcap     only what is wrong
  trunkctl pcap check --json run.pcap | jq 'select(.opcode_name == \"XRC_SEND_ONLY\")'
  tcpdump -U -w - udp | trunkctl pcap check -
                                         watch the packets of an interface

How to read a line:
  12 0.001204 10.77.0.1:49441 > 10.77.0.2:4791 XRC_SEND_ONLY qp 0x000011 psn 0x123456 srq 0x00abcd 16 B ack?
  frame number, seconds since the file's first frame, addresses, opcode, destination QP, PSN,
  XRC SRQ number, payload; `ack?` asks for an acknowledgement, `!` starts what is wrong.";

/// Checks the files. Errors in a file are printed and counted, and the check continues with the next file.
#[must_use]
pub fn run(arguments: &CheckArguments) -> ExitCode {
    let stdout = io::stdout().lock();
    // On a terminal, the printed packets already show the progress, and a bar would interrupt them.
    let show_progress = io::stderr().is_terminal() && (arguments.quiet || !stdout.is_terminal());
    let progress = Progress::new(show_progress);
    let mut output = Output::new(io::BufWriter::new(stdout), arguments.json, arguments.quiet);
    match check_all(arguments, &mut output, &progress) {
        Ok(Verdict::Good) => ExitCode::SUCCESS,
        Ok(Verdict::Faults) => ExitCode::FAILURE,
        Ok(Verdict::Unread) => ExitCode::from(2),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
            if output.has_faults() {
                ExitCode::FAILURE
            } else {
                ExitCode::SUCCESS
            }
        }
        Err(error) => {
            warn(format_args!("the output cannot be written: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// Result for all files together.
enum Verdict {
    Good,
    Faults,
    /// At least one file cannot be read.
    Unread,
}

/// Checks the files one after the other. Returns errors of the output only.
fn check_all<W: io::Write>(
    arguments: &CheckArguments,
    output: &mut Output<W>,
    progress: &Progress,
) -> io::Result<Verdict> {
    let (mut read, mut is_unread) = (0, false);
    let mut total = FileSummary::new("all files".to_owned());
    for path in &arguments.files {
        match file::check(path, output, progress)? {
            Ok(summary) => {
                output.file(&summary)?;
                total.add(&summary);
                read += 1;
            }
            // No other line contains the name of this file.
            Err(error) => {
                warn(format_args!("cannot read {}: {error}", path.display()));
                is_unread = true;
            }
        }
    }
    progress.finish();
    if read == 0 {
        return Ok(Verdict::Unread);
    }
    if total.packets < arguments.at_least {
        total.error = Some(format!("{} RoCE packets, at least {} wanted", total.packets, arguments.at_least));
    }
    output.summary(&total, read)?;
    Ok(match total.is_good() {
        _ if is_unread => Verdict::Unread,
        true => Verdict::Good,
        false => Verdict::Faults,
    })
}
