//! The ways in which a call is measured: over which link, by what programs, and on which side.

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

/// The programs that call and serve.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, ValueEnum)]
pub(crate) enum Shape {
    /// Tasks of one poller call; handlers end in their first poll.
    #[default]
    Plain,
    /// Handlers yield to their poller once.
    Yielding,
    /// Callers are outside of pollers, and share a `Channel`.
    Channel,
    /// Each node has two pollers, with callers on both of the client's.
    TwoPollers,
    /// A task of a poller reads a stream; counts are per item.
    ServerStream,
    /// A handler reads a stream; counts are per item.
    ClientStream,
}

/// One of the two nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Side {
    /// The one that calls.
    Client,
    /// The one that serves.
    Server,
}

impl Linked {
    /// Returns the name in tables and in JSON.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::InProcess => "in-process",
            Self::Udp => "udp",
            Self::Shm => "shm",
        }
    }
}

impl Shape {
    /// Returns the name in tables and in JSON.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Yielding => "yielding",
            Self::Channel => "channel",
            Self::TwoPollers => "two-pollers",
            Self::ServerStream => "server-stream",
            Self::ClientStream => "client-stream",
        }
    }

    /// Returns true if items of streams are counted instead of calls.
    pub(crate) const fn streams(self) -> bool {
        matches!(self, Self::ServerStream | Self::ClientStream)
    }

    /// Calls or streams that are under way, when this shape is measured beside others.
    pub(crate) const fn outstanding(self) -> u32 {
        if self.streams() { 1 } else { 32 }
    }

    /// Counted items for each counted call. A stream's window has thousands of items, and several of them are counted.
    pub(crate) const fn items(self) -> u64 {
        if self.streams() { 8 } else { 1 }
    }

    /// Pollers of each node.
    pub(crate) const fn pollers(self) -> u16 {
        if matches!(self, Self::TwoPollers) { 2 } else { 1 }
    }
}

impl Side {
    /// Returns the name, `client` or `server`.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Server => "server",
        }
    }

    /// Returns the index among both: 0 or 1.
    pub(crate) const fn at(self) -> usize {
        match self {
            Self::Client => 0,
            Self::Server => 1,
        }
    }
}
