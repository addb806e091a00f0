//! The attacks.

mod address_space;
mod crowd;
mod files;
mod flooded;
mod forged;
mod half_open;
mod hoarding;
mod hostile;
mod keys;
mod limits;
mod requests;
mod turns;

use crate::findings::Findings;
use crate::garbage::{self, Flood};
use crate::{Outcome, Plan};

/// An attack.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) run: fn(&Plan, &mut Findings) -> Outcome<()>,
}

/// All attacks.
pub(crate) const ALL: &[Row] = &[
    Row {
        name: "forged",
        about: "another user sends packets of a live session with any PSN, to both of its sides",
        run: forged::run,
    },
    Row {
        name: "storm",
        about: "forged connection requests from 16 addresses next to an established session",
        run: requests::storm,
    },
    Row {
        name: "restart",
        about: "forged connection requests that claim a restart of the peer of a live session",
        run: requests::restart,
    },
    Row {
        name: "lockout",
        about: "21,000 forged connection requests, then a new honest peer",
        run: requests::lockout,
    },
    Row {
        name: "amplify",
        about: "what one forged connection request makes a node send to the claimed address",
        run: requests::amplify,
    },
    Row {
        name: "full-disk",
        about: "packets for any QP, and new processes, while the runtime directory's file system is full",
        run: files::full_disk,
    },
    Row {
        name: "namespaces",
        about: "processes that are killed in network namespaces that end with them",
        run: files::namespaces,
    },
    Row {
        name: "descriptors",
        about: "a process at its limit of descriptors while another one connects to it",
        run: limits::descriptors,
    },
    Row {
        name: "limits",
        about: "nodes started with hardly any descriptors, memory or threads",
        run: limits::at_start,
    },
    Row {
        name: "handlers",
        about: "a peer whose calls never end occupies the handlers of a node",
        run: crowd::handlers,
    },
    Row {
        name: "short-streams",
        about: "a peer opens as many streams of one item as it can",
        run: turns::short_streams,
    },
    Row {
        name: "long-calls",
        about: "a peer makes as many calls as it can, with arguments that take long to decode",
        run: turns::long_calls,
    },
    Row {
        name: "unanswered-streams",
        about: "a peer that takes no replies opens 460,000 streams",
        run: turns::unanswered_streams,
    },
    Row {
        name: "other-user",
        about: "another user of the host occupies the handlers of a node, from ten addresses",
        run: crowd::other_user,
    },
    Row {
        name: "decoded",
        about: "a peer whose calls never end has arguments that take 24 times their bytes in memory",
        run: crowd::decoded,
    },
    Row {
        name: "hostile",
        about: "a peer that takes no replies, exceeds its credit, or sends garbage, next to an honest one",
        run: hostile::run,
    },
    Row {
        name: "pollers",
        about: "500 remote pollers in 16 processes join a node with a small depth",
        run: crowd::pollers,
    },
    Row {
        name: "half-made",
        about: "sessions that never come up send what the handshake lets them, and credit frames that it does not",
        run: half_open::run,
    },
    Row {
        name: "hoarding",
        about: "peers whose pollers collect credit in turn and give none back",
        run: hoarding::run,
    },
    Row {
        name: "keys",
        about: "guesses remote keys of others from one's own, and READs beside an announced slice of a buffer",
        run: keys::run,
    },
    Row {
        name: "garbage-random",
        about: "random bytes at the port of running exchanges over XRC and RC",
        run: |plan, findings| garbage::run(Flood::Random, plan, findings),
    },
    Row {
        name: "garbage-stale",
        about: "changed packets of the exchanges with their old ICRC",
        run: |plan, findings| garbage::run(Flood::Stale, plan, findings),
    },
    Row {
        name: "garbage-right",
        about: "changed packets of the exchanges with a corrected ICRC",
        run: |plan, findings| garbage::run(Flood::Right, plan, findings),
    },
];
