//! TGTs that several members of the host share through an XRC domain.
//!
//! Owns what this member knows of them: those that it executes (it is their *executor*), those that it
//! has handles on, and the receives that messages of other executors hold in its SRQs. The card calls
//! it for TGTs of domains that belong to a file, and for nothing else: a TGT of a private domain
//! costs what it costs without sharing.
//!
//! ```text
//! peer --packet--> executor: responder --place (serial)--> owner of the SRQ: places, remembers the serial
//!                      |     ^---------- placed ---------'
//!                      | publishes its state, then answers
//!                      v
//!                    peer
//! ```
//! | part | what it owns |
//! |---|---|
//! | `message`, `change` | what members say to each other |
//! | `executor` | a TGT's remote placements: one at a time, later packets wait in order, bounded |
//! | `owner` | placements for the executors of other TGTs |
//! | `handles` | opening, closing, asking and changing TGTs that others execute |
//! | `take_over` | what follows when a member dies |
//! | `post` | messages that leave |
//!
//! # Why nothing is lost or doubled when an executor dies
//! The executor publishes its state before it asks for a placement, and again before an answer leaves.
//! So the published state is at most one placement behind. The heir starts from it; the peer repeats
//! what was not answered; the first such packet has the serial of the placement that may have been
//! done already, and then its owner, who remembers the last serial with its outcome, says so
//! instead of doing it again. That holds for atomics too. A serial never comes again, not even
//! after a reset.
//!
//! The owner may have ended as well. Whoever places a SEND or a WRITE notes the serial in the shared
//! table before its program can see the message, so that the heir acknowledges it instead of
//! reporting an unknown SRQ.
#![forbid(unsafe_code)]

mod change;
mod executor;
mod handles;
mod message;
mod owner;
mod post;
mod take_over;

pub(super) use executor::{Executor, PlacementNote, RemotePlacement};
pub(in crate::device) use handles::{ModifyProgress, ModifyTicket};
pub(super) use message::KINDS;

use crate::device::domain_table::Domain;
use crate::device::numbers::NumberMap;
use crate::host::{TargetRecord, Targets};
use std::sync::Arc;
use trunkline_verbs::Time;

/// Handles of this member on a TGT.
#[derive(Debug)]
struct Opened {
    record: TargetRecord,
    domain: Arc<Domain>,
    handles: usize,
}

/// What this member knows of shared TGTs.
#[derive(Debug)]
pub(super) struct Sharing {
    targets: Arc<Targets>,
    /// TGTs that this member has handles on.
    opened: NumberMap<Opened>,
    /// What the executors of other TGTs have under way here.
    receptions: NumberMap<owner::Remote>,
    pending_takeovers: Vec<take_over::PendingTakeover>,
    /// When to try again to connect to the executors of other TGTs.
    watch_again: Option<Time>,
    pub(super) outbox: post::Outbox,
    tickets: handles::Tickets,
    /// Room for an image.
    words: Vec<u64>,
}

impl Sharing {
    pub(super) fn new(targets: Arc<Targets>) -> Self {
        Self {
            targets,
            opened: NumberMap::default(),
            receptions: NumberMap::default(),
            pending_takeovers: Vec::new(),
            watch_again: None,
            outbox: post::Outbox::default(),
            tickets: handles::Tickets::default(),
            words: Vec::new(),
        }
    }
}
