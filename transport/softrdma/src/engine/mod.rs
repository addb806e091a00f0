//! The reliable protocol of RC and XRC: requester, completer and responder, sans-IO.
//!
//! Owns PSN windows, retransmission, RNR, timers' deadlines, message assembly and the error
//! states of a QP's two halves. The device calls it with packets and with the time, and carries
//! away packets, completions and events. It must never read a clock, touch a socket, start a
//! thread or hold registered memory: memory is reached through [`LocalMemory`] and [`Target`].
//!
//! | half | who has it | state | time |
//! |---|---|---|---|
//! | [`Requester`] | RC, INI | an owned value | passed in; [`Requester::next_timeout`] says when to come back |
//! | [`ResponderState`] | RC, TGT | one plain value without pointers, fit for shared memory | needs none |
//!
//! Which half a packet is for is told by [`is_request`]: requests go to the responder, answers
//! to the requester; what meets no half is dropped (contract rocev2 2.4).
//!
//! Everything is deterministic: equal calls with equal times give equal packets. The engine uses
//! no randomness; whoever wants some (first PSNs) passes it in.

#![forbid(unsafe_code)]

mod memory;
mod requester;
mod responder;
mod rtt;
mod segment;
mod target;
mod time;

#[cfg(test)]
mod testing;

pub use crate::wire::NakCode;
pub use memory::{LocalFault, LocalMemory};
pub use requester::{PostRefused, Requester, RequesterCounters, RequesterEvent, Response, Tuning};
pub use responder::{Handled, IMAGE_WORDS, MAX_SAVED, ResponderCounters, ResponderEvent, ResponderState};
pub use segment::{Transmit, is_request};
pub use target::{Place, Placement, ReadOutcome, ReadPiece, RemoteRange, Target, Work};
pub use time::Time;
