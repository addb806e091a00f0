//! The network interface of an address.
//!
//! Used by the UDP link to open an address and to read its MTU.
#![forbid(unsafe_code)]

use super::LinkError;
use super::udp_ffi;
use nix::ifaddrs::getifaddrs;
use socket2::{Domain, Socket, Type};
use std::net::IpAddr;
use std::os::fd::AsFd;
use trunkline_verbs::VerbsError;
use trunkline_verbs::descriptors::{HeldStdio, above_stdio};

/// The interface that has an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Interface {
    name: String,
}

impl Interface {
    /// Returns the interface with this address. All addresses in 127.0.0.0/8 belong to the loopback
    /// interface, even if they are not listed.
    pub(super) fn of(address: IpAddr) -> Result<Self, LinkError> {
        VerbsError::check_scope(address).map_err(|why| LinkError::Scoped { address, why })?;
        let failed = |source| LinkError::Os { doing: "list the interfaces", address, source };
        let _held = HeldStdio::take().map_err(failed)?;
        let all = getifaddrs().map_err(|errno| failed(errno.into()))?;
        let named = all
            .filter_map(|entry| {
                let ip = ip_of(entry.address.as_ref()?)?;
                (ip == address || (ip.is_loopback() && address.is_loopback() && address.is_ipv4()))
                    .then_some(entry.interface_name)
            })
            .next()
            .ok_or(LinkError::NoSuchAddress { address })?;
        Ok(Self { name: named })
    }

    /// Returns the MTU of an address's interface, in bytes.
    pub(super) fn mtu(&self, address: IpAddr) -> Result<u32, LinkError> {
        let failed = |source| LinkError::Os { doing: "read the MTU", address, source };
        let socket = above_stdio(|| Socket::new(Domain::IPV4, Type::DGRAM, None)).map_err(failed)?;
        udp_ffi::interface_mtu(socket.as_fd(), &self.name).map_err(failed)
    }
}

fn ip_of(address: &nix::sys::socket::SockaddrStorage) -> Option<IpAddr> {
    if let Some(v4) = address.as_sockaddr_in() {
        return Some(v4.ip().into());
    }
    address.as_sockaddr_in6().map(|v6| v6.ip().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_network_has_interface_and_foreign_addresses_are_refused() {
        let interface = Interface::of("127.45.6.7".parse().unwrap()).unwrap();
        assert!(interface.mtu("127.45.6.7".parse().unwrap()).unwrap() >= 1280);
        let link_local = "fe80::1".parse().unwrap();
        assert!(matches!(Interface::of(link_local), Err(LinkError::Scoped { .. })));
        let nowhere = "192.0.2.77".parse().unwrap();
        assert!(matches!(Interface::of(nowhere), Err(LinkError::NoSuchAddress { .. })));
    }
}
