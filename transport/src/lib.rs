//! Pollers, trunks, sessions, credits and registered buffers over XRC, or over RC on devices without XRC.
//!
//! A [`Node`] runs one or more pollers, each a thread with a CQ and an SRQ. A poller sends its messages to a peer node
//! through one trunk, which reaches all pollers of the peer. The program gives each poller a driver. The driver owns
//! the poller's [`Transport`], runs the poller's turns and interprets the messages.
//!
//! | module | contents |
//! |---|---|
//! | `node` | start and shutdown of a node, its options, and the state that its threads share |
//! | `provider` | choice of the device, and of XRC or RC |
//! | `report` | counters, the report and the status of a node, ledgers for simulations |
//! | `command` | commands between the machines of a node |
//! | `peer` | keys, hosts and epochs of peers, and maps keyed by peer |
//! | `messages` | messages and events between a transport and its driver |
//! | `poller` | the poll loop, sending, receiving, and frames forwarded to another poller over RC |
//! | `trunk` | messages sent through one INI, whether staged, in flight or partly transferred |
//! | `session` | handshake and connection machine, without I/O; the CM machine |
//! | `wire` | frame headers, settings and sizes, without I/O |
//! | `identity` | proof of peers' names, with the feature `identity` |
//! | `credit` | receives that are granted to each sender, without I/O |
//! | `budget` | limits on resources, per peer, per host and in total |
//! | `deadlines` | deadlines of timers, without I/O |
//! | `buffer` | registered memory, and all `unsafe` code of the crate |
//! | [`fuzz`] | targets of fuzzers |

#[doc(hidden)]
pub mod budget;
mod buffer;
mod command;
mod credit;
mod deadlines;
pub mod fuzz;
#[cfg(feature = "identity")]
pub mod identity;
mod messages;
mod node;
mod peer;
mod poller;
mod provider;
mod report;
mod session;
mod trunk;
mod wire;

pub use budget::{BudgetReport, Exhausted, Leaves, Limit};
pub use buffer::{Body, RegisteredBuffer};
pub use command::PollerHandle;
#[doc(hidden)]
pub use deadlines::{DeadlineKey, Deadlines};
pub use messages::{
    Accepted, Announcement, Awaited, Connect, Destination, Event, Message, Origin, Outgoing, PeerDown,
    PeerEvent, PeerIdentity, PollerChoice, PollerIndex, Reach, Report, Screening, SendError, SendFailure,
    SendOutcome, SessionNumber, Small, Token,
};
pub use node::{
    ClientAddressCause, DeviceError, DriverFailure, InProcessNetwork, NicOptions, Node, NodeOptions, Pinning,
    ProviderChoice, StartError, TakenPort, Watch,
};
#[doc(hidden)]
pub use node::{check, footprint};
pub use peer::{InvalidPeer, PeerHosts, PeerKey, PeerMap};
pub use poller::{Begun, Transport};
#[doc(hidden)]
pub use provider::open_without_waiting;
pub use provider::{Connections, NoNic, host_has, preview_device};
pub use report::{
    EventCounter, EventKind, FailedCalls, Histogram, LaneReport, LimitReport, LogLimit, MethodReport,
    MethodStatus, NodeReport, NodeStatus, PathReport, PathStatus, PeerStatus, RecordedEvent, ServerReport,
};
#[doc(hidden)]
pub use report::{Held, NodeEvents, NodeRecord, utc};
#[doc(hidden)]
pub use report::{histogram, ledger};
#[doc(hidden)]
pub use trunkline_softrdma::link::printable;
#[doc(hidden)]
pub use wire::EAGER_BYTES;
pub use wire::frame::MessageHeader;
