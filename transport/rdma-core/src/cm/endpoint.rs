//! Creation of endpoints with `rdma_create_ep`, which is the only librdmacm call that waits for the network.
//!
//! Endpoints for XRC can be created only with this call (contract J1, J2). It is called without a lock by the resolver's
//! threads and by callers that may block. The new id is synchronous. It is exclusive to the caller until the manager adopts
//! it.

use super::address::CAddress;
use super::error::{Asked, check, last};
use crate::listing::name_of;
use rdma_sys::rdma_port_space::RDMA_PS_TCP;
use rdma_sys::{
    ibv_qp_type, rdma_addrinfo, rdma_bind_addr, rdma_cm_id, rdma_create_ep, rdma_create_id, rdma_destroy_ep,
    rdma_freeaddrinfo, rdma_getaddrinfo,
};
use std::ffi::c_int;
use std::net::{IpAddr, SocketAddr};
use std::ptr::{NonNull, null, null_mut};
use trunkline_verbs::descriptors::HeldStdio;
use trunkline_verbs::{EndpointRequest, EndpointSide, PortSpace, QpType, VerbsError};

/// `RAI_PASSIVE`.
const PASSIVE: c_int = 1;

/// An id of librdmacm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RawId(NonNull<rdma_cm_id>);

// SAFETY: librdmacm lets any thread use an id, but only one thread at a time, which the rules of the parent module
// ensure.
unsafe impl Send for RawId {}
// SAFETY: a shared `RawId` returns only the pointer, and dereferencing the pointer is unsafe.
unsafe impl Sync for RawId {}

impl RawId {
    pub(super) fn new(raw: *mut rdma_cm_id) -> Option<Self> {
        NonNull::new(raw).map(Self)
    }

    pub(super) fn pointer(self) -> *mut rdma_cm_id {
        self.0.as_ptr()
    }

    /// Destroys the id but not its QP, because QPs are not attached to ids in librdmacm.
    ///
    /// # Safety
    /// The id must not be used afterwards. All its events must be acknowledged, except an event that it keeps itself.
    pub(super) unsafe fn destroy(self) {
        // SAFETY: the caller upholds the contract. `rdma_destroy_ep` also accepts ids from `rdma_create_id`.
        unsafe { rdma_destroy_ep(self.pointer()) };
    }
}

/// Creates an endpoint. For an active endpoint, waits up to 2 s each for the address and for the route.
///
/// # Errors
/// Same as [`trunkline_verbs::ConnectionManager::create_endpoint`].
pub(super) fn create(request: &EndpointRequest) -> Result<RawId, VerbsError> {
    let _held = HeldStdio::take()?;
    let info = AddressInfo::find(request)?;
    let mut raw = null_mut();
    let asked = match request.side {
        EndpointSide::Active { .. } => Asked::Resolve,
        EndpointSide::Passive { .. } => Asked::Bind,
    };
    // SAFETY: the result is local, and the address information belongs to librdmacm. PD and attributes are null, since
    // QPs are created in the program's domain.
    check(asked, unsafe { rdma_create_ep(&raw mut raw, info.0.as_ptr(), null_mut(), null_mut()) })?;
    RawId::new(raw).ok_or(VerbsError::Gone)
}

/// Checks a request before librdmacm is called.
pub(super) fn validate(request: &EndpointRequest) -> Result<(), VerbsError> {
    let fits = matches!(
        (request.side, request.qp_type),
        (_, QpType::Rc)
            | (EndpointSide::Active { .. }, QpType::XrcIni)
            | (EndpointSide::Passive { .. }, QpType::XrcTgt)
    );
    check_port_space(request.port_space)?;
    if !fits {
        return Err(VerbsError::Invalid("an active XRC endpoint has an INI, a passive one a TGT"));
    }
    if request.qp_type != QpType::Rc && request.port_space != PortSpace::Ib {
        // librdmacm would silently connect an RC QP.
        return Err(VerbsError::Invalid("XRC needs the port space IB (contract J1)"));
    }
    Ok(())
}

/// Checks a port space. UDP is refused, because it requires UD QPs, which this crate does not support.
pub(super) fn check_port_space(port_space: PortSpace) -> Result<(), VerbsError> {
    match port_space {
        PortSpace::Udp => Err(VerbsError::NotSupported("port space UDP over librdmacm")),
        PortSpace::Tcp | PortSpace::Ib => Ok(()),
    }
}

/// librdmacm's address information, which is freed on drop.
struct AddressInfo(NonNull<rdma_addrinfo>);

impl AddressInfo {
    fn find(request: &EndpointRequest) -> Result<Self, VerbsError> {
        let (flags, source, destination) = match request.side {
            EndpointSide::Passive { local } => (PASSIVE, Some(local), None),
            EndpointSide::Active { remote, source } => {
                (0, source.map(|ip| SocketAddr::new(ip, 0)), Some(remote))
            }
        };
        let family = match source.or(destination) {
            Some(SocketAddr::V6(_)) => libc::AF_INET6,
            _ => libc::AF_INET,
        };
        let (source, destination) = (source.map(CAddress::from), destination.map(CAddress::from));
        let pointer = |address: &Option<CAddress>| {
            address.as_ref().map_or((0, null_mut()), |address| (address.length(), address.pointer()))
        };
        let ((ai_src_len, ai_src_addr), (ai_dst_len, ai_dst_addr)) =
            (pointer(&source), pointer(&destination));
        let number = |unsigned: u32| c_int::try_from(unsigned).unwrap_or(0);
        // SAFETY: the structure consists of numbers and pointers.
        let empty: rdma_addrinfo = unsafe { std::mem::zeroed() };
        let hints = rdma_addrinfo {
            ai_flags: flags,
            ai_family: family,
            ai_qp_type: number(match request.qp_type {
                QpType::Rc => ibv_qp_type::IBV_QPT_RC,
                QpType::XrcIni => ibv_qp_type::IBV_QPT_XRC_SEND,
                QpType::XrcTgt => ibv_qp_type::IBV_QPT_XRC_RECV,
            }),
            ai_port_space: number(port_space(request.port_space)),
            ai_src_len,
            ai_dst_len,
            ai_src_addr: ai_src_addr.cast(),
            ai_dst_addr: ai_dst_addr.cast(),
            ..empty
        };
        let mut found = null_mut();
        // SAFETY: the hints and the addresses that they point to are local. No name is looked up.
        check(Asked::Resolve, unsafe { rdma_getaddrinfo(null(), null(), &raw const hints, &raw mut found) })?;
        NonNull::new(found).map(Self).ok_or(VerbsError::Gone)
    }
}

impl Drop for AddressInfo {
    fn drop(&mut self) {
        // SAFETY: librdmacm created it, and it is not used after this.
        unsafe { rdma_freeaddrinfo(self.0.as_ptr()) };
    }
}

/// Returns the C code of a port space.
pub(super) fn port_space(port_space: PortSpace) -> u32 {
    match port_space {
        PortSpace::Tcp => RDMA_PS_TCP,
        PortSpace::Udp => rdma_sys::rdma_port_space::RDMA_PS_UDP,
        PortSpace::Ib => rdma_sys::rdma_port_space::RDMA_PS_IB,
    }
}

/// Returns the name of the device with this address.
///
/// # Errors
/// Returns [`VerbsError::AddressNotAvailable`] if no device has the address, [`VerbsError::Invalid`] if the address is
/// unspecified, and librdmacm's error if there are no devices.
pub fn device_for(address: IpAddr) -> Result<String, VerbsError> {
    let _held = HeldStdio::take()?;
    let mut raw = null_mut();
    // SAFETY: the result is local; without a channel the id gets a separate one.
    check(Asked::Create, unsafe { rdma_create_id(null_mut(), &raw mut raw, null_mut(), RDMA_PS_TCP) })?;
    let id = RawId::new(raw).ok_or_else(|| last(Asked::Create))?;
    let local = CAddress::from(SocketAddr::new(address, 0));
    // SAFETY: the id was created above and is not shared; the address is local.
    let bound = check(Asked::Bind, unsafe { rdma_bind_addr(id.pointer(), local.pointer().cast()) });
    let name = bound.and_then(|()| {
        // SAFETY: librdmacm keeps the context of a bound id open.
        let verbs = unsafe { (*id.pointer()).verbs.as_ref() };
        let verbs = verbs.ok_or(VerbsError::Invalid("the address does not determine a device"))?;
        // SAFETY: an open context holds its device.
        Ok(unsafe { name_of(verbs.device) })
    });
    // SAFETY: the id is not shared, and binding causes no event.
    unsafe { id.destroy() };
    name
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn unsupported_requests_are_refused_without_librdmacm() {
        let local = SocketAddr::from((Ipv4Addr::LOCALHOST, 7));
        let asked = |port_space, qp_type| {
            validate(&EndpointRequest { side: EndpointSide::Passive { local }, port_space, qp_type })
        };
        assert_eq!(asked(PortSpace::Tcp, QpType::Rc), Ok(()));
        assert_eq!(asked(PortSpace::Ib, QpType::XrcTgt), Ok(()));
        assert!(matches!(asked(PortSpace::Udp, QpType::Rc), Err(VerbsError::NotSupported(_))));
        assert!(matches!(asked(PortSpace::Tcp, QpType::XrcTgt), Err(VerbsError::Invalid(_))));
        assert!(matches!(asked(PortSpace::Ib, QpType::XrcIni), Err(VerbsError::Invalid(_))));
    }
}
