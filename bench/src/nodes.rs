//! What the command line asks for of the two nodes, and of the link between them.

use clap::{Args, ValueEnum};
use std::net::IpAddr;

/// The two nodes.
#[derive(Debug, Clone, Args)]
pub(crate) struct Nodes {
    /// Pollers of each node.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=32))]
    pub(crate) pollers: u16,
    /// The server's address; by default a loopback address that nobody else uses.
    #[arg(long, value_name = "IP")]
    pub(crate) peer_address: Option<IpAddr>,
    /// The client's address; the same default.
    #[arg(long, value_name = "IP")]
    pub(crate) address: Option<IpAddr>,
}

impl LinkFlag {
    /// Refuses a link that does not exist yet.
    ///
    /// # Errors
    /// The reason.
    pub(crate) fn check(self) -> Result<(), String> {
        match self {
            Self::Shm => {
                Err("--link shm: calls do not travel through shared memory yet; use --link udp".to_owned())
            }
            Self::Auto | Self::Udp | Self::Process => Ok(()),
        }
    }
}

/// A link, as it is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LinkFlag {
    /// The best there is: UDP, today.
    Auto,
    /// UDP sockets of the loopback interface.
    Udp,
    /// Shared memory; refused, because there is no such link yet.
    Shm,
    /// Queues within one process, which then has both nodes.
    Process,
}
