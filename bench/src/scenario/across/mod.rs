//! Measurements between several hosts. `node` runs on each host, and `run` on one of them.
//!
//! | file | what it is |
//! |---|---|
//! | `service` | the protocol between coordinator and nodes, as a generated service |
//! | `pattern` | callers and their targets |
//! | `node` | a node: serves the benchmark's calls, and makes calls on a coordinator's request |
//! | `load` | the calls from a node to one target |
//! | `tcp` | streams over the kernel's TCP instead of calls |
//! | `coordinator` | controls and watches the nodes, collects their results |
//! | `outcome` | results per node and in total, as JSON and as a table |
//! | `comparison` | goodput relative to TCP, fairness, small calls, losses, and verdicts |
//!
//! Clocks need not agree: the coordinator tells all nodes to begin, and each node measures durations with a local clock.
//! A node also makes calls before and after its measurement, so that other nodes are under load during their
//! measurements.

mod comparison;
mod coordinator;
mod load;
mod node;
mod outcome;
mod pattern;
mod service;
mod tcp;

pub(crate) use coordinator::{Orders, run};
pub(crate) use node::{Host, serve};

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _, UdpSocket};

/// Default UDP port of nodes.
const PORT: u16 = 7470;

/// Parses the address of a node in the form `host` or `host:port`.
///
/// # Errors
/// Returns an error if the text is not an address.
fn address(text: &str) -> Result<SocketAddr, String> {
    let named = |why: &str| {
        format!(
            "invalid node `{text}`: {why}; expected a host, such as 10.0.0.2, [fd00::2]:7470 or host:7470"
        )
    };
    if let Ok(ip) = text.trim_matches(['[', ']']).parse::<IpAddr>() {
        return Ok(SocketAddr::new(ip, PORT));
    }
    let resolved = if text.contains(':') { text.to_socket_addrs() } else { (text, PORT).to_socket_addrs() };
    let mut addresses = resolved.map_err(|error| named(&error.to_string()))?;
    addresses.next().ok_or_else(|| named("its name has no address"))
}

/// Returns this host's address on the route to another host.
fn own_address(to: SocketAddr) -> io::Result<IpAddr> {
    let any: IpAddr = if to.is_ipv4() { [0; 4].into() } else { [0_u16; 8].into() };
    let socket = UdpSocket::bind((any, 0))?;
    // `connect` on a UDP socket selects the local address without sending a packet.
    socket.connect(to)?;
    Ok(socket.local_addr()?.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_addresses_are_parsed_with_or_without_port() {
        assert_eq!(address("127.0.0.2"), Ok("127.0.0.2:7470".parse().unwrap()));
        assert_eq!(address("127.0.0.2:80"), Ok("127.0.0.2:80".parse().unwrap()));
        assert_eq!(address("::1"), Ok("[::1]:7470".parse().unwrap()));
        assert_eq!(address("[::1]:80"), Ok("[::1]:80".parse().unwrap()));
        for text in ["", "127.0.0.2:port", "no such host"] {
            assert!(address(text).unwrap_err().contains("invalid node"), "{text}");
        }
        assert_eq!(own_address("127.0.0.1:9".parse().unwrap()).unwrap(), IpAddr::from([127, 0, 0, 1]));
    }
}
