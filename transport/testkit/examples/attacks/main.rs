//! Attacks on running nodes, and the claims that must hold during the attacks. `deploy/checks/40-garbage.sh`,
//! `deploy/checks/45-attacks.sh` and `deploy/checks/50-identity.sh` run this program.
//!
//! Each attack starts honest nodes in separate processes and attacks them from outside, within the threat model of
//! `docs/book/src/why/security.md`. It prints one line per claim: `pass ATTACK-CLAIM (measured)` or `fail ATTACK-CLAIM:
//! measured`. The program uses only packets, the environment and the public crates, so the same source can be built with
//! any version.

mod forge;
mod garbage;
mod honest;
mod hostile_link;
mod rows;

use clap::{Args, Parser, Subcommand};
use std::error::Error;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use trunkline::Connections;
use trunkline_testkit::{Claims, fresh_ip};

/// The result of an operation. An error ends the program.
type Outcome<T> = Result<T, Box<dyn Error>>;

/// Attacks on running nodes.
#[derive(Debug, Parser)]
#[command(name = "attacks")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Lists the attacks with their descriptions.
    List,
    /// Runs one attack.
    Run {
        /// Name of the attack, as `list` prints it.
        attack: String,
        #[command(flatten)]
        plan: Plan,
    },
    /// An honest node, driven by lines on its input; started by `run`.
    #[command(hide = true)]
    Node {
        #[command(flatten)]
        node: honest::NodeArguments,
        /// Folder with a certificate for the node, which then has an identity.
        #[arg(long)]
        certificates: Option<PathBuf>,
    },
    /// One side of an exchange, driven by lines on its input; started by `run`.
    #[command(hide = true)]
    Exchange(garbage::Side),
}

/// The size of an attack, and the form of its report.
#[derive(Debug, Clone, Args)]
struct Plan {
    /// Packets that are forged against live sessions, or sent as garbage.
    #[arg(long, default_value_t = 100_000)]
    packets: u64,
    /// Duration of a flood in seconds. Half of this time again, the flood goes to a port without a
    /// receiver, for comparison.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Forged connection requests a second.
    #[arg(long, default_value_t = 1000)]
    rate: u64,
    /// Connections of the nodes: xrc or rc.
    #[arg(long, default_value = "xrc")]
    connections: Connections,
    /// Number of pollers of the attacked node.
    #[arg(long, default_value_t = 1)]
    pollers: u16,
    /// Also judges the ratios of 99th percentiles and of throughput. Without it, they are only printed, because they
    /// are unreliable on a busy machine.
    #[arg(long)]
    strict: bool,
    /// Program that runs the nodes instead of this one, and implements the same lines on its input.
    #[arg(long)]
    nodes: Option<PathBuf>,
    /// Gives the nodes identities.
    #[arg(long)]
    identities: bool,
    /// Network namespace of the servers, with the addresses 10.99.0.1 to 10.99.0.8. The other nodes and this process
    /// are in another namespace, with 10.98.0.0/24. Without it, all use loopback addresses.
    #[arg(long)]
    far: Option<PathBuf>,
    /// Nodes that reconnect to a restarted server. Two cores take 500.
    #[arg(long, default_value_t = 500)]
    clients: usize,
    /// One JSON object instead of lines.
    #[arg(long)]
    json: bool,
}

impl Plan {
    const fn over(&self) -> Duration {
        Duration::from_secs(self.seconds)
    }

    /// Returns an unused address in the servers' namespace if `is_far` is true, and otherwise in this process's namespace.
    fn address(&self, is_far: bool) -> IpAddr {
        let [a, b, c, d] = fresh_ip().octets();
        match (&self.far, is_far) {
            (None, _) => [a, b, c, d].into(),
            (Some(_), false) => [10, 98, 0, d].into(),
            (Some(_), true) => [10, 99, 0, 1 + d % 8].into(),
        }
    }

    /// Returns true if the nodes use XRC connections.
    fn is_xrc(&self) -> bool {
        self.connections != Connections::Rc
    }

    /// Returns the kind of connections as a value for a node's command line.
    fn kind(&self) -> &'static str {
        if self.is_xrc() { "xrc" } else { "rc" }
    }
}

fn main() -> ExitCode {
    trunkline_testkit::exit_code("attacks", dispatch(Cli::parse().command))
}

fn dispatch(command: Command) -> Outcome<()> {
    match command {
        Command::List => {
            for row in rows::ALL {
                println!("{:<14} {}", row.name, row.about);
            }
            Ok(())
        }
        Command::Run { attack, plan } => {
            let row = rows::ALL.iter().find(|row| row.name == attack);
            let row =
                row.ok_or_else(|| format!("no attack is named {attack:?}; `attacks list` names them"))?;
            let mut findings = Claims::new(row.name, plan.json);
            (row.run)(&plan, &mut findings)?;
            Ok(findings.end()?)
        }
        Command::Node { node, certificates } => honest::serve(&node, certificates.as_deref()),

        Command::Exchange(side) => garbage::serve(side),
    }
}
