//! The top of a trace, and its texts for faults.
//!
//! Owns words only: [`crate::plan`] decides what happens and [`crate::run`] carries it out.

use crate::plan::{Fault, Plan};
use crate::trace::{START, Since, Trace};
use std::fmt;
use std::net::SocketAddr;

/// Writes the legend of the trace, the nodes with their addresses, and the plan.
pub(crate) fn write(trace: &Trace, seed: u64, plan: &Plan, addresses: &[SocketAddr]) {
    if !trace.is_kept() {
        return;
    }
    let line = |who: &str, what: fmt::Arguments<'_>| trace.line(START, who, what);
    line("about", format_args!("seed {seed}; each line is: virtual seconds since the start, who, what"));
    line(
        "about",
        format_args!("3@127.7.7.1:7471 is process 3, an incarnation of the node with that address"),
    );
    line("about", format_args!("`turns: N quiet` counts turns of a machine of which nothing was written"));
    let transport = if plan.rc { "RC" } else { "XRC" };
    line("plan", format_args!("{} nodes over {transport}", plan.nodes.len()));
    for (index, (node, address)) in plan.nodes.iter().zip(addresses).enumerate() {
        let (host, pollers, depth) = (node.host, node.pollers, node.srq_depth);
        let shards = node.shards.unwrap_or(pollers.into());
        let path = if node.shares_memory { "shares memory" } else { "shares no memory" };
        line(
            "plan",
            format_args!(
                "node {index} is {address} on host {host}: {pollers} pollers, {shards} shards, SRQ depth {depth}, {} \
                 clients, {path}",
                node.clients
            ),
        );
    }
    if let Some(hostility) = plan.hostility {
        line(
            "plan",
            format_args!("one more node, on a host of its own, breaks the rules: it is {hostility}"),
        );
    }
    let (calls, think) = (plan.calls_per_client, plan.think);
    line(
        "plan",
        format_args!("each client makes {calls} calls, with pauses of up to {think:?} between them"),
    );
    let wire = plan.conditions;
    line(
        "plan",
        format_args!(
            "packets: {:.2} % lost, {:.2} % doubled, {:.2} % delayed, {:.2} % corrupted; {:?} on the way, and up to {:?} more",
            wire.lost * 100.0,
            wire.doubled * 100.0,
            wire.overtaken * 100.0,
            wire.corrupted * 100.0,
            wire.least_delay,
            wire.jitter
        ),
    );
    for (after, fault) in &plan.faults {
        line("plan", format_args!("at {}: {}", Since(START + *after), Described(*fault)));
    }
    line("plan", format_args!("at {}: faults end", Since(START + plan.lasts)));
}

/// A fault in words.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Described(pub(crate) Fault);

impl fmt::Display for Described {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Fault::StopMachine { node, pause } => write!(f, "stop a machine of node {node} for {pause:?}"),
            Fault::StopProcess { node, pause } => write!(f, "stop the process of node {node} for {pause:?}"),
            Fault::Kill { node, restart_after } => {
                write!(f, "kill node {node}, start it again after {restart_after:?}")
            }
            Fault::KillTwice { node, stores, restart_after } => write!(
                f,
                "kill node {node} and start it again; that process dies after {stores} stores to shared \
                 memory, the next starts after {restart_after:?}"
            ),
            Fault::ShutDown { node, restart_after } => {
                write!(f, "shut node {node} down, start it again after {restart_after:?}")
            }
            Fault::Drain { node, shut_down_after, restart_after } => write!(
                f,
                "drain node {node}, shut it down after {shut_down_after:?}, start it again after {restart_after:?} more"
            ),
            Fault::Partition { a, b, lasts } => write!(f, "part nodes {a} and {b} for {lasts:?}"),
            Fault::Forge { node, other, requests } => write!(
                f,
                "forge connection requests to node {node}: {requests} from nowhere, one in the name of node {other}, \
                 one from a stranger"
            ),
            Fault::Crowd { node } => {
                write!(
                    f,
                    "a stranger begins sessions with node {node} in the name of many, and completes none"
                )
            }
            Fault::Scribble { node } => {
                write!(f, "node {node} writes nonsense into the memory that it shares")
            }
            Fault::Tear { node, stores, restart_after } => write!(
                f,
                "node {node} dies after {stores} more stores to shared memory, and starts again after \
                 {restart_after:?}"
            ),
            Fault::RemoveDevice { node, lasts } => {
                write!(f, "remove the device of node {node} for {lasts:?}")
            }
        }
    }
}
