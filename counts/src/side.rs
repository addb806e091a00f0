//! The ways in which a call is measured: over which link, and on which side.

use clap::ValueEnum;

/// The link between the nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Linked {
    /// Queues in the process.
    InProcess,
    /// UDP sockets on the loopback interface.
    Udp,
    /// Memory that both devices share, as processes of one host do.
    Shm,
}

/// A side of the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Side {
    /// The one that calls.
    Client,
    /// The one that serves.
    Server,
}

impl Linked {
    /// Its name, in tables and in JSON.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::InProcess => "in-process",
            Self::Udp => "udp",
            Self::Shm => "shm",
        }
    }
}

impl Side {
    /// Its name.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Server => "server",
        }
    }

    /// Its place among both: 0 or 1.
    pub(crate) const fn at(self) -> usize {
        match self {
            Self::Client => 0,
            Self::Server => 1,
        }
    }
}
