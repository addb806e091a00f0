//! `rdma_getaddrinfo`, which looks up the addresses of hosts and services.

use crate::abi::*;
use crate::border::{Errno, In, Out, guarded, value};
use libc::{addrinfo, c_char, sockaddr, socklen_t};
use std::ffi::{CStr, CString, c_int, c_uint};
use std::ptr::{null, null_mut};

/// `rdma_getaddrinfo(3)`: looks up the addresses of a node and a service, or takes them from the hints. If the host's
/// resolver fails, returns the resolver's own error number (`EAI_*`).
///
/// # Safety
/// `node` and `service` are null or C strings; `hints` is null, or may be read together with its
/// addresses; `result` points to memory for a pointer.
#[unsafe(export_name = "trunkline_rdma_getaddrinfo")]
pub unsafe extern "C" fn rdma_getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
    result: *mut *mut rdma_addrinfo,
) -> c_int {
    value(|| {
        if node.is_null() && service.is_null() && hints.is_null() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: the program upholds this function's contract.
        let (hints, result) = unsafe { (In::optional(hints), Out::new(result)?) };
        let mut info = Found::default();
        if node.is_null() && service.is_null() {
            if let Some(hints) = hints {
                // SAFETY: this function's contract about the addresses of the hints.
                unsafe { info.take_hints(&hints) };
            }
        } else {
            // SAFETY: this function's contract about the two strings.
            let failed = unsafe { info.look_up(node, service, hints.as_deref()) };
            if failed != 0 {
                return Ok(failed);
            }
        }
        if let Some(hints) = hints.filter(|_| info.source.is_empty()) {
            // SAFETY: this function's contract about the addresses of the hints.
            info.source = unsafe { bytes(hints.ai_src_addr, hints.ai_src_len) };
        }
        result.write(info.hand_out());
        Ok(0)
    })
}

/// The result before its conversion to C.
#[derive(Default)]
struct Found {
    flags: c_int,
    family: c_int,
    qp_type: c_int,
    port_space: c_int,
    source: Vec<u8>,
    destination: Vec<u8>,
    source_name: Option<CString>,
    destination_name: Option<CString>,
}

impl Found {
    /// # Safety
    /// The hints' addresses may be read.
    unsafe fn take_hints(&mut self, hints: &rdma_addrinfo) {
        self.flags = hints.ai_flags;
        self.family = hints.ai_family;
        self.qp_type = hints.ai_qp_type;
        self.port_space = hints.ai_port_space;
        // SAFETY: this function's contract.
        self.destination = unsafe { bytes(hints.ai_dst_addr, hints.ai_dst_len) };
    }

    /// Queries the host's resolver. Returns 0 or the resolver's error number.
    ///
    /// # Safety
    /// `node` and `service` are null or C strings.
    unsafe fn look_up(
        &mut self,
        node: *const c_char,
        service: *const c_char,
        hints: Option<&rdma_addrinfo>,
    ) -> c_int {
        let asked = hints.map(for_resolver);
        let mut list: *mut addrinfo = null_mut();
        // SAFETY: this function's contract about the strings; the rest is local. The list is freed below.
        let failed = unsafe {
            libc::getaddrinfo(node, service, asked.as_ref().map_or(null(), |asked| asked), &raw mut list)
        };
        if failed != 0 {
            return failed;
        }
        // SAFETY: after success the list and its targets are valid until the list is freed, which happens once.
        unsafe {
            if let Some(first) = list.as_ref() {
                self.take(first, hints);
            }
            libc::freeaddrinfo(list);
        }
        0
    }

    /// # Safety
    /// The pointers of `first` may be read.
    unsafe fn take(&mut self, first: &addrinfo, hints: Option<&rdma_addrinfo>) {
        let is_stream = first.ai_socktype == libc::SOCK_STREAM;
        let or = |asked: Option<c_int>, else_: c_uint| {
            asked.filter(|asked| *asked != 0).or(c_int::try_from(else_).ok()).unwrap_or(0)
        };
        self.qp_type =
            or(hints.map(|hints| hints.ai_qp_type), if is_stream { IBV_QPT_RC } else { IBV_QPT_UD });
        self.port_space =
            or(hints.map(|hints| hints.ai_port_space), if is_stream { RDMA_PS_TCP } else { RDMA_PS_UDP });
        self.family = first.ai_family;
        // SAFETY: this function's contract.
        let (address, name) = unsafe {
            let name = first.ai_canonname;
            (
                bytes(first.ai_addr, first.ai_addrlen),
                (!name.is_null()).then(|| CStr::from_ptr(name).to_owned()),
            )
        };
        if hints.is_some_and(|hints| hints.ai_flags & RAI_PASSIVE != 0) {
            self.flags = RAI_PASSIVE;
            (self.source, self.source_name) = (address, name);
        } else {
            (self.destination, self.destination_name) = (address, name);
        }
    }

    fn hand_out(self) -> *mut rdma_addrinfo {
        let (source, source_length) = lend(self.source);
        let (destination, destination_length) = lend(self.destination);
        Box::into_raw(Box::new(rdma_addrinfo {
            ai_flags: self.flags,
            ai_family: self.family,
            ai_qp_type: self.qp_type,
            ai_port_space: self.port_space,
            ai_src_len: source_length,
            ai_dst_len: destination_length,
            ai_src_addr: source,
            ai_dst_addr: destination,
            ai_src_canonname: self.source_name.map_or(null_mut(), CString::into_raw),
            ai_dst_canonname: self.destination_name.map_or(null_mut(), CString::into_raw),
            ai_route_len: 0,
            ai_route: null_mut(),
            ai_connect_len: 0,
            ai_connect: null_mut(),
            ai_next: null_mut(),
        }))
    }
}

/// Copies an address to newly allocated memory that has room for an address of any family.
fn lend(bytes: Vec<u8>) -> (*mut sockaddr, socklen_t) {
    if bytes.is_empty() {
        return (null_mut(), 0);
    }
    let mut storage = Box::new(super::sockaddr::zeroed());
    let length = bytes.len().min(size_of::<libc::sockaddr_storage>());
    // SAFETY: source and storage have at least `length` bytes, and the storage is a new allocation.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), (&raw mut *storage).cast(), length) };
    (Box::into_raw(storage).cast(), socklen_t::try_from(length).unwrap_or(0))
}

/// Returns a copy of an address with the length that the program passes. As in librdmacm, the call that uses the address
/// checks the length.
///
/// # Safety
/// `address` is null, or points to `given` bytes that may be read.
unsafe fn bytes(address: *const sockaddr, given: socklen_t) -> Vec<u8> {
    let given = usize::try_from(given).unwrap_or(0).min(size_of::<libc::sockaddr_storage>());
    if address.is_null() {
        return Vec::new();
    }
    // SAFETY: not null, so by this function's contract it points to `given` bytes.
    unsafe { In::array(address.cast::<u8>(), given) }.map(|bytes| bytes.to_vec()).unwrap_or_default()
}

/// Returns the hints in the form that the host's resolver expects.
fn for_resolver(hints: &rdma_addrinfo) -> addrinfo {
    let flag = |ours: c_int, theirs: c_int| if hints.ai_flags & ours == 0 { 0 } else { theirs };
    let type_is = |known: c_uint| c_int::try_from(known) == Ok(hints.ai_qp_type);
    let space_is = |known: c_uint| c_int::try_from(known) == Ok(hints.ai_port_space);
    let connected = [IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_XRC_SEND, IBV_QPT_XRC_RECV];
    // SAFETY: zeros are valid for the structure's numbers and pointers.
    let mut asked: addrinfo = unsafe { std::mem::zeroed() };
    asked.ai_flags = flag(RAI_PASSIVE, libc::AI_PASSIVE) | flag(RAI_NUMERICHOST, libc::AI_NUMERICHOST);
    asked.ai_family = hints.ai_family;
    asked.ai_socktype = match () {
        () if connected.into_iter().any(type_is) => libc::SOCK_STREAM,
        () if type_is(IBV_QPT_UD) => libc::SOCK_DGRAM,
        () => 0,
    };
    asked.ai_protocol = match () {
        () if space_is(RDMA_PS_TCP) => libc::IPPROTO_TCP,
        () if space_is(RDMA_PS_IPOIB) || space_is(RDMA_PS_UDP) => libc::IPPROTO_UDP,
        () => 0,
    };
    asked
}

/// `rdma_freeaddrinfo(3)`.
///
/// # Safety
/// `info` is null or came from [`rdma_getaddrinfo`], and the program does not use it after this.
#[unsafe(export_name = "trunkline_rdma_freeaddrinfo")]
pub unsafe extern "C" fn rdma_freeaddrinfo(info: *mut rdma_addrinfo) {
    guarded((), || {
        if info.is_null() {
            return;
        }
        // SAFETY: `Found::hand_out` allocated all parts with these types, and programs only read them.
        unsafe {
            let info = Box::from_raw(info);
            for address in [info.ai_src_addr, info.ai_dst_addr] {
                if !address.is_null() {
                    drop(Box::from_raw(address.cast::<libc::sockaddr_storage>()));
                }
            }
            for name in [info.ai_src_canonname, info.ai_dst_canonname] {
                if !name.is_null() {
                    drop(CString::from_raw(name));
                }
            }
        }
    });
}
