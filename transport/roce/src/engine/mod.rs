//! The reliable protocol of RC and XRC, with requester, completer and responder, sans-IO.
//!
//! The engine manages PSN windows, retransmission, RNR, the deadlines of timers, message assembly and the error states of a
//! QP's two halves. The device passes it packets and the time, and fetches packets, completions and events. It must never
//! read a clock, touch a socket, start a thread or hold registered memory, which it accesses through [`LocalMemory`] and
//! [`Target`].
//!
//! | half | QP types | state | time |
//! |---|---|---|---|
//! | [`Requester`] | RC, INI | an owned value | passed in; [`Requester::next_timeout`] returns when to call again |
//! | [`ResponderState`] | RC, TGT | an owned value; written as words for shared memory | needs none |
//!
//! [`is_request`] determines the half that handles a packet: requests go to the responder, responses to the requester. A
//! packet for a half that the QP lacks is dropped (contract rocev2 2.4).
//!
//! The engine is deterministic, so equal calls with equal times give equal packets. It uses no randomness; random first PSNs
//! are passed in.

#![forbid(unsafe_code)]

mod congestion;
mod memory;
mod requester;
mod responder;
mod rtt;
mod segment;
mod target;

#[cfg(test)]
mod testing;

pub use crate::wire::NakCode;
pub use congestion::Congestion;
pub use memory::{LocalFault, LocalMemory};
pub use requester::{
    Allowance, InFlight, PostRefused, Requester, RequesterCounters, RequesterEvent, Response, Signals, Tuning,
};
pub use responder::{Handled, IMAGE_WORDS, MAX_SAVED, ResponderCounters, ResponderEvent, ResponderState};
pub use rtt::Measured;
pub use segment::{JOINED_BYTES, Transmit, is_request};
pub use target::{Placement, PlacementRequest, ReadOutcome, ReadPiece, RemoteRange, Target, Work};
pub use trunkline_verbs::Time;
