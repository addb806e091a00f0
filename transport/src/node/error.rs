//! Reasons why a node does not start.
#![forbid(unsafe_code)]

use crate::NoNic;
use crate::node::footprint::TooMuchMemory;
use std::io;
use std::net::{IpAddr, SocketAddr};
use trunkline_softrdma::device::OpenError;
use trunkline_softrdma::link::PortOwner;
use trunkline_verbs::VerbsError;
use trunkline_verbs::headroom::{self, NoRoom};

/// The reason why the software device cannot be opened or configured. Its text names the cause and the
/// remedy.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct DeviceError(OpenError);

impl DeviceError {
    pub(crate) fn new(cause: impl Into<OpenError>) -> Self {
        Self(cause.into())
    }
}

/// Owner of the RoCE port at an address, and the remedy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("UDP port {} at {address} is taken by {owner}; {}", owner.port, owner.remedy(*.is_of_client))]
pub struct TakenPort {
    address: IpAddr,
    owner: PortOwner,
    /// True if the node does not listen. Its address then comes from the device settings or was chosen by the node.
    is_of_client: bool,
}

impl TakenPort {
    pub(crate) fn new(address: IpAddr, owner: PortOwner, is_of_client: bool) -> Self {
        Self { address, owner, is_of_client }
    }
}

/// The reason why a node that does not listen cannot use its address.
#[derive(Debug, thiserror::Error)]
pub enum ClientAddressCause {
    /// Another program holds the RoCE port at the address.
    #[error(transparent)]
    Taken(Box<TakenPort>),
    /// Error of the device.
    #[error(transparent)]
    Device(VerbsError),
}

/// The reason why the driver of a poller cannot be created.
pub type DriverFailure = Box<dyn std::error::Error + Send + Sync>;

/// The reason why a node did not start. Its text names the cause and the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// An option is out of range.
    #[error("{option} = {value} is out of range: {remedy}")]
    BadOption {
        /// Name of the option.
        option: &'static str,
        /// The given value.
        value: u64,
        /// The allowed values.
        remedy: &'static str,
    },
    /// An environment variable cannot be parsed.
    #[error("invalid {variable}={value:?}: {remedy}")]
    BadEnvironment {
        /// Name of the variable.
        variable: &'static str,
        /// The given value.
        value: String,
        /// The allowed values.
        remedy: &'static str,
    },
    /// Other hosts can reach an address, although peers are not authenticated. The options must allow this explicitly.
    #[error(
        "refusing to listen on {0}, which other hosts can reach, because peers are not authenticated; give the node an \
         identity, without accept(Level::None), listen on a loopback address, or allow it: `allow_unauthenticated(true)` where the program builds its \
         node, or --allow-unauthenticated if the program has that flag"
    )]
    NotLoopback(SocketAddr),
    /// The provider is `require`, and no NIC was found.
    #[error("no RDMA NIC can be used: {0}; choose the provider auto or soft to run on the software device")]
    NoHardware(NoNic),
    /// The software device could not be opened.
    #[error("cannot open the software RDMA device: {0}")]
    Open(DeviceError),
    /// A setting of the software device cannot be parsed.
    #[error(transparent)]
    BadDeviceSetting(DeviceError),
    /// The text passed to `NodeOptions::faults` cannot be parsed, for this reason.
    #[error("invalid setting faults: {0}")]
    BadFaults(String),
    /// The options require XRC connections, which the device does not support.
    #[error("the device {0} has no XRC; choose the connections auto or rc, which then are RC")]
    NoXrc(String),
    /// Listening on the address failed.
    #[error("cannot listen on {address}: {cause}")]
    Listen {
        /// Address to listen on.
        address: SocketAddr,
        /// Error of the device.
        cause: VerbsError,
    },
    /// Another program holds the RoCE port at the address.
    #[error("cannot listen on {address}: {cause}")]
    PortTaken {
        /// Address to listen on.
        address: SocketAddr,
        /// Owner of the port.
        cause: Box<TakenPort>,
    },
    /// A node that does not listen cannot use its address, which comes from the device settings or was chosen by the
    /// node.
    #[error("cannot make calls from {address}{}: {cause}", if *.is_named { ", which TRUNKLINE_ADDRESS or the program names for the \
         device" } else { "" })]
    ClientAddress {
        /// The address.
        address: IpAddr,
        /// True if the address comes from the device settings.
        is_named: bool,
        /// The cause.
        cause: ClientAddressCause,
    },
    /// A verb failed.
    #[error("cannot {doing}: {cause}")]
    Verb {
        /// The attempted operation.
        doing: &'static str,
        /// Error of the device.
        cause: VerbsError,
    },
    /// A limit of the process leaves too little memory.
    #[error("cannot {doing}: {cause}")]
    NoRoom {
        /// The attempted operation.
        doing: &'static str,
        /// The limit.
        cause: NoRoom,
    },
    /// The memory limit is too small for the smallest budgets.
    #[error(
        "memory_limit = {limit} is too small: choose {least} or more, or lower {}",
        if .kept.is_empty() { "max_message_bytes, pollers or srq_depth".to_owned() }
        else { format!("max_message_bytes, pollers, srq_depth or what the program sets itself: {}", .kept.join(", ")) }
    )]
    MemoryLimit {
        /// The given limit, in bytes.
        limit: u64,
        /// The smallest possible limit, in bytes.
        least: u64,
        /// Settings that the program chose and that keep their values.
        kept: Vec<&'static str>,
    },
    /// The options need more memory than the machine has.
    #[error(transparent)]
    TooMuchMemory(TooMuchMemory),
    /// The factory of drivers failed on a poller's thread.
    #[error("the driver of a poller cannot be made: {0}")]
    Driver(DriverFailure),
    /// The operating system refused an operation.
    #[error("cannot {doing}: {cause}{}", headroom::remedy(cause.raw_os_error()))]
    Os {
        /// The attempted operation.
        doing: &'static str,
        /// Error of the operation.
        cause: io::Error,
    },
}
