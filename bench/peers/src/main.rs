//! The exchanges of `trunkline-bench` over other systems, each in its best documented mode.
//!
//! `trunkline-bench --peers` runs this program, which has no other use. As in `trunkline-bench`, client and server are
//! two processes, and all threads of a side run on one core.
//!
//! | file | what it is |
//! |---|---|
//! | `tonic_echo`, `tarpc_echo`, `iceoryx_echo` | the systems |
//! | `tokio_side` | code common to the systems on tokio |
//! | `server` | the server process |

#![forbid(unsafe_code)]

#[path = "../../../transport/testkit/src/certificates.rs"]
mod certificates;
mod iceoryx_echo;
#[path = "../../src/meter/mod.rs"]
#[expect(dead_code, reason = "shared with trunkline-bench, which uses all of it")]
mod meter;
mod server;
mod tarpc_echo;
mod tokio_side;
mod tonic_echo;

use clap::{Args, Parser, Subcommand, ValueEnum};
use meter::load::{Helper, Load, Neighbours, Quota};
use meter::pin;
use meter::recorder::Sample;
use serde::Serialize;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Runs one exchange over another system, for `trunkline-bench --peers`.
#[derive(Debug, Parser)]
#[command(name = "trunkline-bench-peers", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Prints the systems that can be measured, one name per line.
    List,
    /// Measures one system and prints the result as one line of JSON.
    Measure(Exchange),
    /// Measures the resource usage of one system at a fixed call rate and prints the result as one line of JSON.
    Rest {
        #[command(flatten)]
        exchange: Exchange,
        /// Calls per second.
        #[arg(long)]
        rate: f64,
        /// Number of idle connections.
        #[arg(long)]
        sessions: u16,
    },
    #[command(flatten)]
    Helper(Helper),
    /// Runs the server process, which the program starts itself.
    #[command(hide = true)]
    Serve(Exchange),
}

#[derive(Debug, Clone, Args)]
struct Exchange {
    #[arg(value_enum)]
    system: System,
    /// Size of a request, in bytes.
    #[arg(long)]
    size: usize,
    /// Size of a reply, in bytes.
    #[arg(long)]
    reply: usize,
    /// Number of requests in flight.
    #[arg(long, default_value_t = 1)]
    outstanding: usize,
    /// Duration of the measurement, in seconds.
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Cores of client and server.
    #[arg(long)]
    pin: Option<pin::Pin>,
    #[command(flatten)]
    load: Load,
    /// Number of worker threads of the server's runtime, which then sleeps when idle.
    #[arg(long, hide = true)]
    workers: Option<usize>,
    /// Directory that the server shares with the client.
    #[arg(long, hide = true)]
    folder: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum System {
    /// gRPC over TCP (tonic).
    TonicTcp,
    /// gRPC over TLS 1.3 with certificates on both sides (tonic).
    TonicTls,
    /// gRPC over a Unix socket (tonic).
    TonicUnix,
    /// tarpc with bincode over TCP.
    TarpcTcp,
    /// tarpc with bincode over a Unix socket.
    TarpcUnix,
    /// iceoryx2 request-response through shared memory.
    Iceoryx2,
}

/// A result in the format that `trunkline-bench` reads.
#[derive(Debug, Serialize)]
struct Line {
    /// Call times in nanoseconds, each with the number of calls that took this time.
    times: Vec<(u64, u64)>,
    per_s: f64,
}

impl Exchange {
    fn measured(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }

    /// Returns the cores that the caller has chosen for client and server. The current affinity of this process is
    /// ignored, because the process may be pinned to one of these cores.
    fn cores(&self) -> Option<pin::Cores> {
        match self.pin {
            Some(pin::Pin::To(cores)) => Some(cores),
            Some(pin::Pin::Off) | None => None,
        }
    }

    /// Returns the number of worker threads for a runtime that sleeps when idle, or `None` if each side has a separate
    /// core and may poll.
    fn sleeping_workers(&self) -> Option<usize> {
        match self.cores() {
            None => Some(2),
            Some(cores) if self.load.is_any() || cores.client == cores.server => Some(1),
            Some(_) => None,
        }
    }

    fn name(&self) -> String {
        self.system.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::List => {
            let names = System::value_variants().iter().filter_map(ValueEnum::to_possible_value);
            names.for_each(|name| println!("{}", name.get_name()));
            Ok(())
        }
        Command::Measure(exchange) => measure(exchange),
        Command::Rest { exchange, rate, sessions } => rest(exchange, rate, sessions),
        Command::Helper(helper) => {
            helper.run();
            Ok(())
        }
        Command::Serve(exchange) => serve(&exchange),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            let _unwritten = writeln!(io::stderr(), "error: {why}");
            ExitCode::from(2)
        }
    }
}

fn measure(mut exchange: Exchange) -> Result<(), String> {
    let cores = exchange.cores();
    exchange.workers = exchange.sleeping_workers();
    let _neighbours = Neighbours::start(exchange.load.neighbours)?;
    let quota = exchange.load.quota.map(Quota::start).transpose()?;
    let (_folder, server) = start(&exchange)?;
    quota.as_ref().map_or(Ok(()), |quota| quota.join_server(server.process()))?;
    cores.map_or(Ok(()), |cores| pin::to(cores.client))?;
    let address = &server.address;
    let sample = match exchange.system {
        System::TonicTcp | System::TonicTls | System::TonicUnix => {
            tokio_side::measure(&exchange, tonic_echo::connect(&exchange, address))
        }
        System::TarpcTcp | System::TarpcUnix => {
            tokio_side::measure(&exchange, tarpc_echo::connect(&exchange, address))
        }
        System::Iceoryx2 => iceoryx_echo::measure(&exchange, address),
    };
    let Sample { times, per_s } = sample.map_err(|why| server.death().unwrap_or(why))?;
    let times = times.iter_recorded().map(|at| (at.value_iterated_to(), at.count_at_value())).collect();
    print(&Line { times, per_s })
}

fn rest(mut exchange: Exchange, rate: f64, sessions: u16) -> Result<(), String> {
    exchange.workers = Some(2);
    let (_folder, server) = start(&exchange)?;
    let address = &server.address;
    let usage = match exchange.system {
        System::TonicTcp | System::TonicTls | System::TonicUnix => {
            tokio_side::rest(&exchange, server.process(), rate, sessions, || {
                tonic_echo::connect(&exchange, address)
            })
        }
        System::TarpcTcp | System::TarpcUnix => {
            tokio_side::rest(&exchange, server.process(), rate, sessions, || {
                tarpc_echo::connect(&exchange, address)
            })
        }
        System::Iceoryx2 => Err("iceoryx2 only polls here".to_owned()),
    };
    print(&usage.map_err(|why| server.death().unwrap_or(why))?)
}

fn start(exchange: &Exchange) -> Result<(tempfile::TempDir, server::Server), String> {
    let folder =
        tempfile::tempdir().map_err(|error| format!("cannot make a temporary directory: {error}"))?;
    let core = exchange.cores().map(|cores| cores.server);
    let server = server::Server::start(exchange, folder.path(), core)?;
    Ok((folder, server))
}

fn print(result: &impl Serialize) -> Result<(), String> {
    let line = serde_json::to_string(result).map_err(|error| error.to_string())?;
    println!("{line}");
    Ok(())
}

fn serve(exchange: &Exchange) -> Result<(), String> {
    match exchange.system {
        System::TonicTcp | System::TonicTls | System::TonicUnix => tonic_echo::serve(exchange),
        System::TarpcTcp | System::TarpcUnix => tarpc_echo::serve(exchange),
        System::Iceoryx2 => iceoryx_echo::serve(exchange),
    }
}
