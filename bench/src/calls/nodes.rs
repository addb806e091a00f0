//! Options of the two nodes and of the link between them.

use clap::{Args, ValueEnum};
use serde::Serialize;
use std::net::IpAddr;
use trunkline::device::PathChoice;
use trunkline::identity::{Identity, Trust};
use trunkline::{Node, NodeBuilder, ProviderChoice};
use trunkline_softrdma::device::SoftOptions;
use trunkline_testkit::certificate;

// Options of the two nodes. A doc comment here would replace the description of the subcommand.
#[derive(Debug, Clone, Args, Serialize)]
pub(crate) struct Nodes {
    /// Pollers of each node.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=32))]
    pub(crate) pollers: u16,
    /// The server's address; by default an unused loopback address.
    #[arg(long, value_name = "IP")]
    #[serde(skip)]
    pub(crate) peer_address: Option<IpAddr>,
    /// The client's address, with the same default.
    #[arg(long, value_name = "IP")]
    #[serde(skip)]
    pub(crate) address: Option<IpAddr>,
    /// Give both nodes identities, so that their sessions are encrypted.
    #[arg(long)]
    #[serde(skip_serializing_if = "is_false")]
    pub(crate) encrypted: bool,
}

impl Nodes {
    /// Nodes with one poller each, at unused addresses and without identities.
    pub(crate) const PLAIN: Self = Self { pollers: 1, peer_address: None, address: None, encrypted: false };
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_false(value: &bool) -> bool {
    !value
}

/// Gives a node at this address an identity, so that all sessions of the node are encrypted.
///
/// # Errors
/// Returns an error if the identity cannot be used.
pub(crate) fn encrypted(node: NodeBuilder, address: IpAddr) -> Result<NodeBuilder, String> {
    let [chain, key, root] = certificate(address);
    let identity = Identity::from_pem(chain.as_bytes(), key.as_bytes()).map_err(|error| error.to_string())?;
    let trust = Trust::from_pem(root.as_bytes()).map_err(|error| error.to_string())?;
    Ok(node.exempt_local_user(false).identity(identity).trust(trust))
}

impl LinkFlag {
    /// Returns the name used on the command line and in JSON.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Udp => "udp",
            Self::Shm => "shm",
            Self::Process => "process",
        }
    }

    /// Rejects a link that the environment excludes. A server process could not report the reason.
    ///
    /// # Errors
    /// Returns an error with the setting that excludes the link.
    pub(crate) fn check(self) -> Result<(), String> {
        let device = SoftOptions::from_env().map_err(|error| error.to_string())?;
        if self == Self::Shm && (device.faults.is_some() || device.capture.is_some()) {
            return Err("--link shm: TRUNKLINE_FAULTS and TRUNKLINE_PCAP keep packets out of shared memory"
                .to_owned());
        }
        Ok(())
    }

    /// Returns a builder for a node that uses this link to other processes on the host. All other settings come from the
    /// environment.
    pub(crate) fn builder(self) -> NodeBuilder {
        match self {
            Self::Auto | Self::Process => Node::builder(),
            Self::Udp => Node::builder().link(PathChoice::Udp),
            // Only the software device supports shared memory.
            Self::Shm => Node::builder().link(PathChoice::Shm).provider(ProviderChoice::Soft),
        }
    }
}

/// The link selected on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LinkFlag {
    /// The value of TRUNKLINE_LINK, or shared memory if it is unset. Floors and results use the link that this selects.
    Auto,
    /// UDP sockets of the loopback interface.
    Udp,
    /// Memory shared by both processes. Fails with the reason if shared memory is not possible.
    Shm,
    /// Queues within one process, which runs both nodes.
    Process,
}
