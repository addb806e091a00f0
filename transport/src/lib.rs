//! Pollers, trunks, sessions, credits and registered buffers over XRC, or over RC on devices without XRC.
//!
//! A [`Node`] has one or more pollers, each a thread with a CQ, an SRQ and its share of the work, and one
//! trunk per poller and peer node. It carries messages between pollers. The program gives each poller an
//! [`Upper`] half, which interprets them.
//!
//! | module | contents |
//! |---|---|
//! | `node`, `options`, `provider`, `affinity`, `error`, `no_nic`, `report` | starting, ending, reporting |
//! | `check`, `footprint` | ranges of the options, memory that they lead to |
//! | `incarnation` | all objects on the device, which end with it |
//! | `connections` | XRC or RC, and why |
//! | `incarnation` | all objects on the device, which end with it |
//! | `shared` | state shared by the threads of a node |
//! | `command` | commands between the machines of a node |
//! | `peer_key`, `peer_hash`, `peer_map` | the key of a peer, and maps by it |
//! | `body` | message bodies sent without a copy |
//! | `upper` | the interface to the protocol above |
//! | `poller` | the loop, sending, receiving |
//! | `crossings` | the rings between pollers, for messages that arrive at another poller over RC |
//! | `trunk`, `rendezvous` | messages of one INI: staged, in flight, partly transferred |
//! | `credit` | receives granted to each sender, without I/O |
//! | `budget` | limits of a resource, for one peer, one host and all |
//! | `session` | handshake and connection machine, without I/O; the CM machine |
//! | `deadlines` | deadlines of timers, without I/O |
//! | `frame`, `sizes` | the header of messages, without I/O; shared sizes |
//! | [`fuzz`] | targets of fuzzers |
//! | `buffer` | registered memory: all `unsafe` of the crate |

mod affinity;
mod body;
#[doc(hidden)]
pub mod budget;
mod buffer;
#[doc(hidden)]
pub mod check;
mod command;
mod connections;
mod credit;
mod crossings;
mod deadlines;
mod epochs;
mod error;
#[doc(hidden)]
pub mod footprint;
mod frame;
pub mod fuzz;
#[cfg(test)]
mod fuzz_replay;
#[doc(hidden)]
pub mod histogram;
mod in_process;
mod incarnation;
#[doc(hidden)]
pub mod ledger;
mod log_limit;
mod no_nic;
mod node;
mod options;
mod peer_hash;
mod peer_host;
mod peer_key;
mod peer_map;
mod poller;
mod prometheus;
mod provider;
mod rendezvous;
mod report;
mod secret;
mod session;
mod settings;
mod shared;
mod sizes;
mod status;
mod trunk;
mod upper;
mod watch;

pub use body::Body;
pub use budget::{BudgetReport, Exhausted, Leaves, Limit};
pub use buffer::RegisteredBuffer;
pub use command::PollerHandle;
pub use connections::Connections;
#[doc(hidden)]
pub use deadlines::{DeadlineKey, Deadlines};
pub use error::{ClientAddressCause, DeviceError, StartError, TakenPort, UpperFailure};
pub use histogram::Histogram;
pub use in_process::InProcessNetwork;
pub use log_limit::LogLimit;
pub use no_nic::NoNic;
pub use node::Node;
pub use options::{NicOptions, NodeOptions, Pinning, ProviderChoice};
pub use peer_host::PeerHosts;
pub use peer_key::PeerKey;
pub use peer_map::PeerMap;
pub use provider::host_has;
pub use report::{
    DeviceCounter, FailedCalls, LaneReport, LimitReport, MethodReport, NodeReport, PathReport, ServerReport,
};
#[doc(hidden)]
pub use sizes::EAGER_BYTES;
pub use status::{NodeStatus, PathStatus, PeerStatus};
pub use upper::{
    Awaited, Carrier, Connect, Message, Origin, Outgoing, PeerDown, PeerEvent, PollerIndex, Reach, Report,
    Screening, SendError, SendFailure, SendOutcome, SessionNumber, Taken, Token, Toward, Turn, Upper,
};
pub use watch::Watch;
