//! Addresses of an id and of the path to its peer, as stored in the id's C structure.

use super::fields::{DESTINATION, GIDS, Id, PATH, PATH_COUNT, PD, PORT, SOURCE, VERBS};
use super::host::host;
use super::sockaddr;
use crate::abi::*;
use crate::border::{Errno, Field, Handle, guarded};
use crate::verbs::events::lock;
use libc::sockaddr_storage;
use std::cell::UnsafeCell;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use trunkline_verbs::{Device, Gid, PKEY_DEFAULT};

impl Id<'_> {
    /// Stores the endpoint's addresses in the C structure, and the device if an address determines it. A listener on all
    /// addresses has no device.
    pub(super) fn show_addresses(self) -> Result<(), Errno> {
        let (local, peer) = (self.endpoint.local_address(), self.endpoint.peer_address());
        self.set(SOURCE, sockaddr::stored(local));
        if let Some(peer) = peer {
            self.set(DESTINATION, sockaddr::stored(peer));
        }
        if local.ip().is_unspecified() || peer.is_none() && names_no_device(local.ip())? {
            return Ok(());
        }
        let (context, pd) = (host().context()?, host().pd()?);
        self.set(VERBS, context);
        self.set(PORT, 1);
        if self.get(PD).is_null() {
            self.set(PD, pd);
        }
        let dgid = peer.map(gid).unwrap_or_default();
        self.set(GIDS, rdma_ib_addr { sgid: gid(local), dgid, pkey: PKEY_DEFAULT.to_be() });
        Ok(())
    }

    /// Stores a path record for the path to the peer in the C structure.
    pub(super) fn show_route(self) {
        let gids = self.get(GIDS);
        let traffic_class = lock(&self.facts).traffic_class;
        let path = ibv_sa_path_rec {
            dgid: gids.dgid,
            sgid: gids.sgid,
            hop_limit: 64,
            traffic_class,
            reversible: 1,
            numb_path: 1,
            pkey: PKEY_DEFAULT.to_be(),
            // "Exactly", in the codes of the subnet administrator. Values as in `cma_resolve_iboe_route` of Linux.
            mtu_selector: 2,
            mtu: active_mtu(),
            rate_selector: 2,
            rate: RATE,
            packet_life_time_selector: 2,
            packet_life_time: PACKET_LIFE_TIME,
            ..ibv_sa_path_rec::default()
        };
        let mut facts = lock(&self.facts);
        self.set(PATH, facts.path.insert(Box::new(UnsafeCell::new(path))).get());
        self.set(PATH_COUNT, 1);
    }
}

/// `IBV_RATE_100_GBPS`, the rate of the port's width and speed.
const RATE: u8 = 16;
/// `CMA_IBOE_PACKET_LIFETIME` of Linux: 4.096 µs times 2 to the power of 16.
const PACKET_LIFE_TIME: u8 = 16;

/// Returns the code of the port's MTU, or of 1,024 bytes if the port no longer exists.
fn active_mtu() -> u8 {
    let port = host().device().and_then(|device| Ok(device.port(1)?));
    port.map_or(3, |port| port.active_mtu.code())
}

/// Returns true if an id that is bound to this address has no device. The kernel assigns no device to ids that are bound to
/// loopback addresses. In contrast, localhost is an address of this device unless the user has configured other addresses
/// for it. A server that uses libfabric advertises localhost if its id has a device there, and otherwise the device's own
/// address.
fn names_no_device(ip: IpAddr) -> Result<bool, Errno> {
    Ok(ip == Ipv4Addr::LOCALHOST && host().device()?.is_named_without(ip))
}

fn gid(address: SocketAddr) -> ibv_gid {
    ibv_gid { raw: Gid::from(address.ip()).0 }
}

/// `rdma_get_src_port(3)`: returns the id's own port in network byte order, or 0 if it has none.
///
/// # Safety
/// The id is not destroyed.
#[unsafe(export_name = "trunkline_rdma_get_src_port")]
pub unsafe extern "C" fn rdma_get_src_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: the program upholds this function's contract.
    guarded(0, || port(unsafe { Handle::optional(id) }, SOURCE))
}

/// `rdma_get_dst_port(3)`: returns the peer's port in network byte order, or 0 if there is no peer.
///
/// # Safety
/// The id is not destroyed.
#[unsafe(export_name = "trunkline_rdma_get_dst_port")]
pub unsafe extern "C" fn rdma_get_dst_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: the program upholds this function's contract.
    guarded(0, || port(unsafe { Handle::optional(id) }, DESTINATION))
}

fn port(id: Option<Id<'_>>, which: Field<rdma_cm_id, sockaddr_storage>) -> u16 {
    let Some(id) = id else { return 0 };
    sockaddr::load(&id.get(which)).map_or(0, |address| address.port().to_be())
}
