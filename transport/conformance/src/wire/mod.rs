//! An interoperability test between any two providers. It covers connections, RC traffic of every kind, refusals and
//! disconnects, and checks every byte.
//!
//! A client controls a server over the connections under test. Other peers test third-party programs. The `wire_peer`
//! examples of the providers call this module, and one of them runs on the kernel's soft RoCE. The module uses only
//! the traits of `trunkline_verbs`, and does not open devices or depend on a provider.
//!
//! ```text
//! wire_peer server OWN PORT                        serves a `client` until it has finished
//! wire_peer client OWN SERVER PORT [srq] [short]   runs every check, each way
//! wire_peer rdma-server OWN PORT                   against `rdma_client`
//! wire_peer rdma-client OWN SERVER PORT            against `rdma_server`
//! wire_peer rping-server OWN PORT                  against `rping -c`
//! wire_peer rping-client OWN SERVER PORT           against `rping -s -S 65535`
//! wire_peer first-nak-server OWN PORT              refuses the first request of a `first-nak-client`
//! wire_peer first-nak-client OWN SERVER PORT       receives that fatal NAK as the server's first packet
//! ```
//!
//! Each transfer begins with a control message in which the client announces or requests it. After the transfer, the
//! server answers with the result. A server prints `listening` when clients may connect.

mod client;
mod debian;
mod first_nak;
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
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::Arc;
use trunkline_verbs::Device;

/// The task of the program, from the arguments of `wire_peer`.
#[derive(Debug, Clone, Copy)]
pub struct WireOrder {
    role: Role,
    /// Local address, which selects the device to open.
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
    FirstNakServer(u16),
    FirstNakClient(SocketAddr),
}

impl WireOrder {
    /// Parses the arguments of a program, without its own name. Returns `None` if they are not valid.
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
                "first-nak-server" => Role::FirstNakServer(port),
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
                "first-nak-client" => Role::FirstNakClient(server),
                _ => return None,
            }
        };
        words.next().is_none().then_some(Self { role, own })
    }

    /// Runs the task and prints its lines to `out`. Returns true if every check passed.
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
            Role::Client(plan) => client::run(&station, plan, report),
            Role::RdmaServer(port) => debian::rdma_server(&station, port, report),
            Role::RdmaClient(server) => debian::rdma_client(&station, server),
            Role::RpingServer(port) => debian::rping_server(&station, port, report),
            Role::RpingClient(server) => debian::rping_client(&station, server, report),
            Role::FirstNakServer(port) => {
                first_nak::respond(&station, &TcpListener::bind(SocketAddr::new(self.own, port))?)
            }
            Role::FirstNakClient(server) => first_nak::request(&station, server),
        }
    }
}
