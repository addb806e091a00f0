//! Command line, and settings of the nodes on both sides.

use crate::failure::Failure;
use clap::{Args, Parser, Subcommand};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;
use trunkline::{DeviceFlags, Node, NodeBuilder};

/// Trunkline's main job in one command: a server process and a client process, a real directory
/// tree between them, and a report.
#[derive(Debug, Parser)]
#[command(
    name = "cargo demo --",
    version,
    after_help = "The server serves a directory tree through a generated service; the client fetches every file over \
XRC, compares its SHA-256 with the disk, then makes many small calls.\n\n\
Examples:\n  cargo demo\n  cargo demo -- --pollers 2 --json out.json\n  \
cargo demo -- --drop 0.01 --reorder 0.01 --duplicate 0.01 --corrupt 0.001\n  \
cargo demo -- --tree /usr/share/doc --calls 10000\n  \
TRUNKLINE_PCAP=/tmp/demo-%p.pcap cargo demo -- --calls 1000\n\n\
Exit status: 0 when everything was fetched and nothing differed, 1 otherwise, 2 for a wrong command line."
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) demo: Demo,
    /// Run one side only; without a subcommand, both are started.
    #[command(subcommand)]
    pub(crate) half: Option<Half>,
}

// Options of both sides. A doc comment here would replace the description of the program.
#[derive(Debug, Clone, Args)]
pub(crate) struct Demo {
    /// Directory to serve [default: this checkout, without target and .git].
    #[arg(long, value_name = "DIR", global = true)]
    pub(crate) tree: Option<PathBuf>,
    /// Small calls to make after the files.
    #[arg(long, value_name = "N", default_value_t = 100_000, global = true)]
    pub(crate) calls: u64,
    /// Small calls in flight at once, 1 to 64.
    #[arg(long, value_name = "N", default_value_t = 1, global = true, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) in_flight: u32,
    /// Poller threads on each side, 1 to 32.
    #[arg(long, value_name = "N", default_value_t = 1, global = true, value_parser = clap::value_parser!(u16).range(1..=32))]
    pub(crate) pollers: u16,
    /// Also write the report to this file, as JSON.
    #[arg(long, value_name = "FILE", global = true)]
    pub(crate) json: Option<PathBuf>,
    /// Lose this share of the packets, 0 to 1.
    #[arg(long, value_name = "P", default_value_t = 0.0, global = true, value_parser = share)]
    pub(crate) drop: f64,
    /// Deliver this share of the packets after later ones, 0 to 1.
    #[arg(long, value_name = "P", default_value_t = 0.0, global = true, value_parser = share)]
    pub(crate) reorder: f64,
    /// Send this share of the packets twice, 0 to 1.
    #[arg(long, value_name = "P", default_value_t = 0.0, global = true, value_parser = share)]
    pub(crate) duplicate: f64,
    /// Flip a bit in this share of the packets, 0 to 1.
    #[arg(long, value_name = "P", default_value_t = 0.0, global = true, value_parser = share)]
    pub(crate) corrupt: f64,
    /// Seed of the faults: the same seed makes the same choices [default: 0].
    #[arg(long, value_name = "N", global = true)]
    pub(crate) seed: Option<u64>,
    /// Address of the server. UDP port 4791 must be free there, or held by processes of this user.
    #[arg(long, value_name = "IP", default_value = "127.0.0.1", global = true, value_parser = one_address)]
    pub(crate) server_address: IpAddr,
    /// Address of the client; it may be the same as the server's.
    #[arg(long, value_name = "IP", default_value = "127.0.0.1", global = true, value_parser = one_address)]
    pub(crate) client_address: IpAddr,
    /// Also stop at the end of standard input. The command that starts both halves passes this flag.
    #[arg(long, hide = true, global = true)]
    pub(crate) supervised: bool,
    /// Use addresses other than loopback although peers are not authenticated.
    #[arg(long, global = true)]
    pub(crate) allow_unauthenticated: bool,
    #[command(flatten)]
    pub(crate) device: DeviceFlags,
}

/// One side of the demo.
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum Half {
    /// Serve the tree until SIGTERM or Ctrl-C.
    Server,
    /// Fetch the tree from a server and print a report.
    Client {
        /// Address and port of the server.
        #[arg(long, value_name = "IP:PORT")]
        server: SocketAddr,
    },
}

impl Demo {
    /// Returns a builder for a node at `address`, with the pollers and faults given on the command line.
    pub(crate) fn node(&self, address: IpAddr) -> Result<NodeBuilder, Failure> {
        let builder = Node::builder()
            .listen(SocketAddr::new(address, 0))
            .pollers(self.pollers)
            // The grace period is shorter than the time for which the supervisor waits for the process to end.
            .grace(Duration::from_secs(1))
            .allow_unauthenticated(self.allow_unauthenticated)
            .device_flags(&self.device);
        match self.faults() {
            Some(faults) => builder.faults(&faults).map_err(|error| Failure::Start(error.to_string())),
            None => Ok(builder),
        }
    }

    /// Returns the root directory of the tree. The default is the checkout if cargo runs the demo, and otherwise the
    /// working directory.
    pub(crate) fn root(&self) -> PathBuf {
        let checkout = || {
            std::env::var_os("CARGO_MANIFEST_DIR")
                .map_or_else(|| PathBuf::from("."), |crate_root| PathBuf::from(crate_root).join("../.."))
        };
        self.tree.clone().unwrap_or_else(checkout)
    }

    /// Returns the faults in the format of `TRUNKLINE_FAULTS`, or `None` if there are none.
    pub(crate) fn faults(&self) -> Option<String> {
        let parts = [
            ("drop", self.drop),
            ("reorder", self.reorder),
            ("duplicate", self.duplicate),
            ("corrupt", self.corrupt),
        ];
        let mut words: Vec<_> = parts
            .iter()
            .filter(|(_, share)| *share > 0.0)
            .map(|(name, share)| format!("{name}={share}"))
            .collect();
        if words.is_empty() {
            return None;
        }
        words.extend(self.seed.map(|seed| format!("seed={seed}")));
        Some(words.join(","))
    }
}

fn share(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| format!("'{text}' is not a number"))?;
    if (0.0..=1.0).contains(&value) { Ok(value) } else { Err(format!("{value} is not between 0 and 1")) }
}

/// Parses an address to which a peer can connect. Rejects unspecified and link-local addresses.
fn one_address(text: &str) -> Result<IpAddr, String> {
    let alone = text.split_once('%').map_or(text, |(address, _interface)| address);
    if alone.parse::<Ipv6Addr>().is_ok_and(|address| address.is_unicast_link_local()) {
        return Err(format!(
            "{text} is link-local, so it may be another host on each interface; name a global address or one of fd00::/8"
        ));
    }
    match text.parse::<IpAddr>() {
        Ok(address) if address.is_unspecified() => {
            Err(format!("{address} means every address; name a single one"))
        }
        Ok(address) => Ok(address),
        Err(_) => Err(format!("'{text}' is not an IP address")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn help_describes_program() {
        let about = Cli::command().get_about().map(ToString::to_string).unwrap_or_default();
        assert!(about.starts_with("Trunkline's main job in one command"), "{about}");
    }

    #[test]
    fn link_local_addresses_are_refused_with_remedy() {
        for flag in ["--server-address", "--client-address"] {
            for address in ["fe80::1%3", "fe80::1%eth0", "fe80::1"] {
                let error = Cli::try_parse_from(["demo", flag, address]).unwrap_err().to_string();
                assert!(error.contains("is link-local") && error.contains("fd00::/8"), "{error}");
            }
        }
    }

    #[test]
    fn faults_are_formatted_as_in_environment() {
        let cli = Cli::parse_from(["demo", "--drop", "0.01", "--corrupt", "0.5", "--seed", "7"]);
        assert_eq!(cli.demo.faults().as_deref(), Some("drop=0.01,corrupt=0.5,seed=7"));
        assert_eq!(Cli::parse_from(["demo"]).demo.faults(), None);
        assert!(Cli::try_parse_from(["demo", "--drop", "1.5"]).is_err());
        assert!(Cli::try_parse_from(["demo", "--drop", "NaN"]).is_err());
        assert!(Cli::try_parse_from(["demo", "--server-address", "0.0.0.0"]).is_err());
    }
}
