//! Errors of a node that cannot start, each with a cause and a remedy. [`StartError`] converts the transport's errors to the
//! public API, without types of a provider or of verbs.

#[cfg(feature = "identity")]
use crate::identity::BadIdentity;
#[cfg(feature = "identity")]
use crate::policy::PolicyFileError;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use trunkline_transport::{NoNic, StartError as Transport};

/// The error returned when a node cannot start.
///
/// Each message names the cause and the remedy. `Debug` prints the message too, because Rust prints an error returned from
/// `main` with `Debug`.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// A setting of the program, or an environment variable, is out of range, cannot be parsed, or needs more memory than
    /// the machine has.
    #[error(transparent)]
    BadSetting(StartCause),
    /// An address cannot be resolved, or the node cannot listen on it.
    #[error("cannot listen on {address}: {cause}{}", expected(.cause))]
    BadAddress {
        /// The address, as given.
        address: String,
        /// The cause.
        cause: io::Error,
    },
    /// The node's identity or trust is missing or cannot be used.
    #[cfg(feature = "identity")]
    #[error("cannot use the identity of the node: {0}")]
    BadIdentity(BadIdentity),
    /// The file set by [`NodeBuilder::policy_file`](crate::NodeBuilder::policy_file) cannot be read or is invalid.
    #[cfg(feature = "identity")]
    #[error("cannot use the policy of the node: {0}; `trunkctl policy check` lists its rules")]
    BadPolicy(PolicyFileError),
    /// The address can be reached from other hosts, peers are not authenticated, and
    /// [`crate::NodeBuilder::allow_unauthenticated`] was not called. A node with an identity needs this setting only if it
    /// accepts sessions without authentication.
    #[error("{}", Transport::NotLoopback(*.0))]
    NotLoopback(SocketAddr),
    /// [`crate::ProviderChoice::Require`] is set, but no NIC is usable.
    #[error("{}", Transport::NoHardware(.0.clone()))]
    NoNic(NoNic),
    /// [`crate::Connections::Xrc`] is set, but the named device does not support XRC.
    #[error("{}", Transport::NoXrc(.0.clone()))]
    NoXrc(String),
    /// The handler of a service cannot be created, because its factory failed or panicked.
    #[error("the handler of {service} cannot be made: {cause}")]
    Handler {
        /// Name of the service.
        service: &'static str,
        /// Error returned by the factory, or its panic message.
        cause: Cause,
    },
    /// The device or the operating system refused a resource that every node needs.
    #[error(transparent)]
    Refused(StartCause),
    /// Two services have the same name, or names with the same hash.
    #[error(
        "the service {0} is offered twice; give one of them another name: #[trunkline::service(name = \"...\")]"
    )]
    DuplicateService(&'static str),
}

/// The cause of a [`StartError`], for display.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct StartCause(Transport);

/// Returns the expected form of an address if the address could not be parsed.
fn expected(cause: &io::Error) -> &'static str {
    if cause.kind() == io::ErrorKind::InvalidInput { ": expected IP:PORT or HOST:PORT" } else { "" }
}

impl fmt::Debug for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl StartError {
    /// Creates an error for a setting that is out of range.
    pub(crate) fn bad_option(option: &'static str, value: usize, remedy: &'static str) -> Self {
        Self::from_transport(Transport::BadOption { option, value: value as u64, remedy })
    }

    /// Creates an error for a failed system call.
    pub(crate) fn os(doing: &'static str, cause: io::Error) -> Self {
        Self::from_transport(Transport::Os { doing, cause })
    }

    /// Converts a transport error to the public API.
    pub(crate) fn from_transport(error: Transport) -> Self {
        match error {
            Transport::NotLoopback(address) => Self::NotLoopback(address),
            Transport::NoHardware(why) => Self::NoNic(why),
            Transport::NoXrc(device) => Self::NoXrc(device),
            Transport::Listen { address, cause } => {
                Self::BadAddress { address: address.to_string(), cause: io::Error::other(cause) }
            }
            Transport::PortTaken { address, cause } => {
                Self::BadAddress { address: address.to_string(), cause: io::Error::other(cause) }
            }
            Transport::Driver(cause) => match cause.downcast::<HandlerInitError>() {
                Ok(not_made) => Self::Handler { service: not_made.service, cause: not_made.cause },
                Err(cause) => Self::Refused(StartCause(Transport::Driver(cause))),
            },
            error @ (Transport::BadOption { .. }
            | Transport::BadEnvironment { .. }
            | Transport::BadDeviceSetting(_)
            | Transport::BadFaults(_)
            | Transport::ClientAddress { is_named: true, .. }
            | Transport::MemoryLimit { .. }
            | Transport::TooMuchMemory(_)) => Self::BadSetting(StartCause(error)),
            error => Self::Refused(StartCause(error)),
        }
    }
}

/// The error returned by a handler factory.
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

/// The error of a service whose handler cannot be created on a poller.
#[derive(Debug, thiserror::Error)]
#[error("the handler of {service} cannot be made: {cause}")]
pub(crate) struct HandlerInitError {
    pub(crate) service: &'static str,
    pub(crate) cause: Cause,
}
