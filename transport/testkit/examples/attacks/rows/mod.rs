//! The attacks.

mod address_space;
mod crowd;
mod failover;
mod files;
mod flooded;
mod forged;
mod handshakes;
mod hoarding;
mod limits;
mod requests;
mod turns;

use crate::garbage::{self, Flood};
use crate::{Outcome, Plan};
use trunkline_testkit::Claims;

/// An attack.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) run: fn(&Plan, &mut Claims) -> Outcome<()>,
}

const fn row(name: &'static str, about: &'static str, run: fn(&Plan, &mut Claims) -> Outcome<()>) -> Row {
    Row { name, about, run }
}

/// All attacks.
pub(crate) const ALL: &[Row] = &[
    row(
        "forged",
        "another user sends packets of a live session with any PSN, to both of its sides",
        forged::run,
    ),
    row(
        "storm",
        "forged connection requests from 16 addresses next to an established session",
        requests::storm,
    ),
    row(
        "restart",
        "forged connection requests that claim a restart of the peer of a live session",
        requests::restart,
    ),
    row(
        "unproven",
        "strangers at 64 addresses begin handshakes as fast as they can, and prove no name",
        handshakes::unproven,
    ),
    row("return", "the clients of a killed server prove their names to its successor", handshakes::back),
    row("failover", "one of two servers of a balanced client is killed, 40 times", failover::run),
    row("newcomers", "100 new nodes a second prove their names to a server", handshakes::newcomers),
    row("lockout", "21,000 forged connection requests, then a new honest peer", requests::lockout),
    row(
        "amplify",
        "what one forged connection request makes a node send to the claimed address",
        requests::amplify,
    ),
    row(
        "full-disk",
        "packets for any QP, and new processes, while the runtime directory's file system is full",
        files::full_disk,
    ),
    row(
        "namespaces",
        "processes that are killed in network namespaces that end with them",
        files::namespaces,
    ),
    row(
        "descriptors",
        "a process at its limit of descriptors while another one connects to it",
        limits::descriptors,
    ),
    row("limits", "nodes started with hardly any descriptors, memory or threads", limits::at_start),
    row("short-streams", "a peer opens as many streams of one item as it can", turns::short_streams),
    row(
        "long-calls",
        "a peer makes as many calls as it can, with arguments that take long to decode",
        turns::long_calls,
    ),
    row(
        "unanswered-streams",
        "a peer that takes no replies opens 460,000 streams",
        turns::unanswered_streams,
    ),
    row(
        "other-user",
        "another user of the host occupies the handlers of a node, from ten addresses",
        crowd::other_user,
    ),
    row("hoarding", "peers whose pollers collect credit in turn and give none back", hoarding::run),
    row(
        "garbage-random",
        "random bytes at the port of running exchanges over XRC and RC",
        |plan, findings| garbage::run(Flood::Random, plan, findings),
    ),
    row("garbage-stale", "changed packets of the exchanges with their old ICRC", |plan, findings| {
        garbage::run(Flood::Stale, plan, findings)
    }),
    row("garbage-right", "changed packets of the exchanges with a corrected ICRC", |plan, findings| {
        garbage::run(Flood::Right, plan, findings)
    }),
];
