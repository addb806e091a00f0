//! Parameters of a measurement: link, shape of the programs, and side.

use clap::ValueEnum;

/// Size of an argument, reply or item in bytes, unless the payload is large.
pub(crate) const PAYLOAD_BYTES: usize = 64;
const FILL: u8 = 0x5a;

/// Link between the nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Linked {
    /// Queues within the process.
    InProcess,
    /// UDP sockets on the loopback interface.
    Udp,
    /// Memory shared by both devices, as between processes on one host.
    Shm,
}

/// Behaviour of the calling and the serving program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, ValueEnum)]
pub(crate) enum Shape {
    /// Tasks on one poller make calls, and handlers complete in their first poll.
    #[default]
    Plain,
    /// Handlers yield to their poller once.
    Yielding,
    /// Callers outside pollers share a `Channel`.
    Channel,
    /// Each node has two pollers, and both pollers of the client have callers.
    TwoPollers,
    /// Arguments and replies of 64 KiB.
    Large,
    /// The nodes have identities, and their sessions are encrypted.
    Encrypted,
    /// Encrypted sessions, with one call at a time.
    EncryptedOne,
    /// Encrypted sessions, with arguments and replies of 64 KiB.
    EncryptedLarge,
    /// A task on a poller reads a stream. Counts are per item.
    ServerStream,
    /// A handler reads a stream. Counts are per item.
    ClientStream,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Side {
    Client,
    Server,
}

impl Linked {
    /// Returns the name used in tables and in JSON.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::InProcess => "in-process",
            Self::Udp => "udp",
            Self::Shm => "shm",
        }
    }
}

/// Shapes other than [`Shape::Plain`]. They are measured in process.
pub(crate) const SHAPES: [Shape; 9] = [
    Shape::Yielding,
    Shape::Channel,
    Shape::TwoPollers,
    Shape::Large,
    Shape::Encrypted,
    Shape::EncryptedOne,
    Shape::EncryptedLarge,
    Shape::ServerStream,
    Shape::ClientStream,
];

impl Shape {
    /// Returns the name used in tables and in JSON.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Yielding => "yielding",
            Self::Channel => "channel",
            Self::TwoPollers => "two-pollers",
            Self::Large => "large",
            Self::Encrypted => "encrypted",
            Self::EncryptedOne => "encrypted-one",
            Self::EncryptedLarge => "encrypted-large",
            Self::ServerStream => "server-stream",
            Self::ClientStream => "client-stream",
        }
    }

    /// Returns true if stream items are counted instead of calls.
    pub(crate) const fn streams(self) -> bool {
        matches!(self, Self::ServerStream | Self::ClientStream)
    }

    /// Returns true if payloads are 64 KiB long.
    pub(crate) const fn is_large(self) -> bool {
        matches!(self, Self::Large | Self::EncryptedLarge)
    }

    pub(crate) const fn is_encrypted(self) -> bool {
        matches!(self, Self::Encrypted | Self::EncryptedOne | Self::EncryptedLarge)
    }

    /// Returns the number of calls or streams in flight when this shape is measured.
    pub(crate) const fn outstanding(self) -> u32 {
        match self {
            Self::ServerStream | Self::ClientStream | Self::EncryptedOne => 1,
            Self::Large | Self::EncryptedLarge => 8,
            Self::Plain | Self::Yielding | Self::Channel | Self::TwoPollers | Self::Encrypted => 32,
        }
    }

    /// Returns the number of calls or items to count, where small calls are counted `calls` times. A stream's window
    /// contains thousands of items, and the count covers several windows. Fewer large calls are counted, because they
    /// take long under valgrind.
    pub(crate) const fn counted(self, calls: u64) -> u64 {
        match self {
            _ if self.streams() => calls * 8,
            _ if self.is_large() => calls / 16,
            _ => calls,
        }
    }

    /// Returns the payload of an argument, reply or item. All bytes are [`FILL`].
    pub(crate) const fn payload(self) -> &'static [u8] {
        if self.is_large() { &[FILL; 64 << 10] } else { &[FILL; PAYLOAD_BYTES] }
    }

    pub(crate) const fn pollers(self) -> u16 {
        if matches!(self, Self::TwoPollers) { 2 } else { 1 }
    }
}
