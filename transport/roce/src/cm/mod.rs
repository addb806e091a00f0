//! Sans-IO InfiniBand communication manager on QP 1, compatible with rdma_cm.
//!
//! The machine holds the state of each connection, the agreed parameters, and the times of retransmissions. The device
//! passes it management datagrams and the time, and acts on its events. It must never access a QP, a socket or a clock
//! itself, and no bytes from a peer may make it panic or grow without bound.
//!
//! ```text
//!           connect                         REQ at a listener
//!              |                                    |
//!           ReqSent --REJ--> (gone)           ReqReceived --reject, REJ, expiry--> (gone)
//!              | REP                                | accept
//!         RepReceived --reject--> Timewait       RepSent --REJ--> Timewait
//!              | confirm                            | RTU, first data
//!              +----------> Established <-----------+
//!                               | disconnect        \
//!                            DreqSent                | DREQ, REJ
//!                               | DREP, DREQ         |
//!                               +----> Timewait <----+ --time--> (gone)
//! ```
//!
//! When the program releases the connection of a TGT, the connection becomes `Idle` instead, without a message to the peer,
//! because other processes may use the TGT (contract J9).
//!
//! SIDR requests (port space UDP) are not connections and have separate states; see `sidr`. Connections and
//! SIDR requests share the ids, the listeners and the limits.
//!
//! Each side *announces* its starting PSN, at which it expects the other side's first packet. A QP's `sq_psn` is the PSN
//! that the peer's REQ or REP announced ([`Peer::send_psn`]), and its `rq_psn` is the PSN that this side announced. In a
//! capture of two kernels, the active side's first SEND carries the PSN from the REP, and the passive side's first SEND the
//! PSN from the REQ.

#![forbid(unsafe_code)]

mod active;
mod config;
mod connection;
mod counters;
mod ending;
mod error;
mod event;
mod fuzz;

mod listener;
mod machine;
mod message;
mod other_kinds;
mod parameters;
mod passive;
mod questions;
mod sidr;
mod table;
mod timeout;

pub use config::{CmConfig, CommIds};
pub use connection::ConnectionId;
pub use counters::{CmCounters, CmDrop};
pub use error::CmError;
pub use event::{ConnectRequest, Event, ServiceRequest};
pub use fuzz::fuzz;
pub use listener::{Listen, ListenerId};
pub use machine::{CmMachine, MadSource, Transmit, UnreachableReport, is_request};
pub use other_kinds::OtherKind;
pub use parameters::{Accept, Answer, Ask, Connect, Peer, Transport};

#[cfg(test)]
mod tests;
