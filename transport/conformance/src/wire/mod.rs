//! Two ends of one wire: connections, RC traffic of every kind, refusals and endings between any two
//! providers, every byte checked.
//!
//! Owns a client and a server that speak over the very connections they test, and our end of some programs
//! that none of us wrote. Called by the `wire_peer` examples of the providers, one of which runs inside a
//! kernel's soft RoCE. Written against the traits of `trunkline_verbs` alone; it opens no device and knows no
//! provider.
//!
//! ```text
//! wire_peer server OWN PORT                        serves a `client` until that is done
//! wire_peer client OWN SERVER PORT [srq] [short]   does everything, each way
//! wire_peer rdma-server OWN PORT                   against `rdma_client`
//! wire_peer rdma-client OWN SERVER PORT            against `rdma_server`
//! wire_peer rping-server OWN PORT                  against `rping -c`
//! wire_peer rping-client OWN SERVER PORT           against `rping -s -S 65535`
//! ```
//!
//! The client drives: it sends a letter that says what comes or what it wants, the transfer happens, and the
//! server answers with what it found. A server that listens says `listening`.

mod client;
mod debian;
mod link;
mod pattern;
mod protocol;
mod report;
mod server;
mod station;
mod transfers;

use crate::check::Verdict;
use client::Plan;
use report::Report;
use station::Station;
use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use trunkline_verbs::Device;

/// What a program is to do: the arguments of `wire_peer`.
#[derive(Debug, Clone, Copy)]
pub struct WireOrder {
    role: Role,
    /// The own address: the device to open is the one that has it.
    pub own: IpAddr,
}

#[derive(Debug, Clone, Copy)]
enum Role {
    Server(u16),
    Client(Plan),
    RdmaServer(u16),
    RdmaClient(SocketAddr),
    RpingServer(u16),
    RpingClient(SocketAddr),
}

impl WireOrder {
    /// Understands the arguments of a program, its own name left out.
    #[must_use]
    pub fn parse(arguments: &[String]) -> Option<Self> {
        let mut words = arguments.iter().map(String::as_str);
        let role = words.next()?;
        let own = words.next()?.parse().ok()?;
        let role = if role.ends_with("server") {
            let port = words.next()?.parse().ok()?;
            match role {
                "server" => Role::Server(port),
                "rdma-server" => Role::RdmaServer(port),
                "rping-server" => Role::RpingServer(port),
                _ => return None,
            }
        } else {
            let server = SocketAddr::new(words.next()?.parse().ok()?, words.next()?.parse().ok()?);
            match role {
                "client" => {
                    let mut plan = Plan { server, srq: false, short: false };
                    for word in words.by_ref() {
                        match word {
                            "srq" => plan.srq = true,
                            "short" => plan.short = true,
                            _ => return None,
                        }
                    }
                    Role::Client(plan)
                }
                "rdma-client" => Role::RdmaClient(server),
                "rping-client" => Role::RpingClient(server),
                _ => return None,
            }
        };
        words.next().is_none().then_some(Self { role, own })
    }

    /// Does it; the lines go to `out`. Whether all was well.
    pub fn run(&self, device: &Arc<dyn Device>, out: &mut dyn Write) -> bool {
        let mut report = Report::new(out);
        let verdict = self.do_it(device, &mut report);
        if let Err(error) = verdict {
            report.fail("whole", &error);
        }
        for counter in device.counters() {
            if counter.value > 0 {
                report.note(&format!("counter {} {}", counter.name, counter.value));
            }
        }
        report.end()
    }

    fn do_it(&self, device: &Arc<dyn Device>, report: &mut Report<'_>) -> Verdict {
        let station = Station::new(Arc::clone(device), self.own)?;
        match self.role {
            Role::Server(port) => server::serve(&station, port, report),
            Role::Client(plan) => client::ask(&station, plan, report),
            Role::RdmaServer(port) => debian::rdma_server(&station, port, report),
            Role::RdmaClient(server) => debian::rdma_client(&station, server),
            Role::RpingServer(port) => debian::rping_server(&station, port, report),
            Role::RpingClient(server) => debian::rping_client(&station, server, report),
        }
    }
}
