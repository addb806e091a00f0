//! Tests of librdmacm's endpoints: results of `rdma_getaddrinfo`, synchronous ids, and XRC (contract J).

use super::lab::*;
use std::ffi::{CString, c_int, c_uint};
use std::mem::zeroed;
use std::net::Ipv4Addr;
use std::ptr::{null, null_mut, with_exposed_provenance_mut};
use std::thread::{JoinHandle, spawn};
use trunkline_dropin::abi::*;
use trunkline_dropin::cm::*;

fn hints(flags: c_int, ps: c_uint, qp_type: c_uint) -> rdma_addrinfo {
    // SAFETY: numbers and null pointers, for which zeros are valid.
    let mut hints: rdma_addrinfo = unsafe { zeroed() };
    (hints.ai_flags, hints.ai_port_space) = (flags, ps.cast_signed());
    hints.ai_qp_type = qp_type.cast_signed();
    hints
}

/// Address information for a node and a port, which is freed on drop.
struct Info(*mut rdma_addrinfo);

impl Info {
    fn find(ip: Ipv4Addr, port: u16, hints: &rdma_addrinfo) -> Self {
        let (node, service) =
            (CString::new(ip.to_string()).unwrap(), CString::new(port.to_string()).unwrap());
        let mut info = null_mut();
        // SAFETY: all arguments are alive during the call.
        call(|| unsafe { rdma_getaddrinfo(node.as_ptr(), service.as_ptr(), hints, &raw mut info) }).unwrap();
        Self(info)
    }

    fn endpoint(&self, init: *mut ibv_qp_init_attr) -> Result<*mut rdma_cm_id, c_int> {
        let mut id = null_mut();
        // SAFETY: all arguments are alive during the call.
        call(|| unsafe { rdma_create_ep(&raw mut id, self.0, null_mut(), init) })?;
        Ok(id)
    }
}

impl Drop for Info {
    fn drop(&mut self) {
        // SAFETY: it is not used after this.
        unsafe { rdma_freeaddrinfo(self.0) };
    }
}

/// Returns a listening endpoint and its port.
fn listening(ip: Ipv4Addr, ps: c_uint, qp_type: c_uint) -> (*mut rdma_cm_id, u16) {
    let info = Info::find(ip, 0, &hints(RAI_PASSIVE, ps, qp_type));
    let listener = info.endpoint(&mut small(IBV_QPT_RC)).unwrap();
    // SAFETY: the endpoint is not destroyed yet.
    unsafe {
        call(|| rdma_listen(listener, 0)).unwrap();
        (listener, u16::from_be(rdma_get_src_port(listener)))
    }
}

/// Returns a connecting endpoint at a separate address.
fn active(to: Ipv4Addr, port: u16, ps: c_uint, qp_type: c_uint) -> *mut rdma_cm_id {
    let mut own = c_address(address(), 0);
    let mut hints = hints(0, ps, qp_type);
    (hints.ai_src_addr, hints.ai_src_len) =
        ((&raw mut own).cast(), u32::try_from(size_of_val(&own)).unwrap());
    let info = Info::find(to, port, &hints);
    // The hints determine the endpoint's type, even if the attributes contain another type.
    info.endpoint(&mut small(IBV_QPT_RC)).unwrap()
}

/// Accepts one request in a thread, with `private_data` in the reply.
fn serve(listener: *mut rdma_cm_id, private_data: Vec<u8>) -> JoinHandle<Result<usize, c_int>> {
    let listener = listener.expose_provenance();
    spawn(move || {
        let mut asked = null_mut();
        // SAFETY: the listener is destroyed after this thread is joined.
        call(|| unsafe { rdma_get_request(with_exposed_provenance_mut(listener), &raw mut asked) })?;
        accept(asked, &mut rdma_conn_param { rnr_retry_count: 3, ..with(&private_data) })?;
        Ok(asked.expose_provenance())
    })
}

#[test]
fn j2_to_j6_xrc_endpoints_exchange_srq_number_and_message() {
    // contract J2 to J6, J10
    let ip = address();
    let (listener, port) = listening(ip, RDMA_PS_IB, IBV_QPT_XRC_RECV);
    let mut number = 0;
    // SAFETY: the endpoint is not destroyed yet.
    let srq = unsafe {
        let mut init = ibv_srq_init_attr {
            srq_context: null_mut(),
            attr: ibv_srq_attr { max_wr: 4, max_sge: 1, srq_limit: 0 },
        };
        call(|| rdma_create_srq(listener, null_mut(), &raw mut init)).unwrap();
        let srq = (*listener).srq;
        assert!(!(*listener).recv_cq.is_null(), "contract J4: the SRQ's own CQ");
        assert_eq!(ibv_get_srq_num_of(srq, &mut number), 0);
        srq
    };
    let to = region(listener, &[0; 16]);
    receive(null_mut(), srq, &to);
    let server = serve(listener, number.to_be_bytes().to_vec());
    let ini = active(ip, port, RDMA_PS_IB, IBV_QPT_XRC_SEND);
    connect(ini, &mut rdma_conn_param { initiator_depth: 1, ..with(b"") }).unwrap();
    // SAFETY: the endpoint is not destroyed yet, and keeps its event.
    let (event, qp, qp_type) = unsafe { (copy((*ini).event), (*ini).qp, (*(*ini).qp).qp_type) };
    assert_eq!(qp_type, IBV_QPT_XRC_SEND);
    let attributes = attributes_of(qp);
    assert_eq!((attributes.rnr_retry, attributes.max_rd_atomic), (3, 1), "contract J10");
    assert_eq!((event.kind, event.srq), (RDMA_CM_EVENT_ESTABLISHED, 1));
    assert!(event.private_data.starts_with(&number.to_be_bytes()), "contract J5");
    let tgt: *mut rdma_cm_id = with_exposed_provenance_mut(server.join().unwrap().unwrap());
    // SAFETY: the endpoints are not destroyed yet.
    unsafe {
        assert_eq!((*(*tgt).qp).qp_type, IBV_QPT_XRC_RECV);
        assert_eq!(attributes_of((*tgt).qp).max_dest_rd_atomic, 2, "contract J10");
        assert!(!(*(*tgt).qp).pd.is_null() && (*tgt).channel != (*listener).channel);
        let from = region(ini, b"through the srq.");
        send((*ini).qp, &from, number);
        assert_eq!(completion((*ini).send_cq).status, IBV_WC_SUCCESS);
        let received = completion((*listener).recv_cq);
        assert_eq!((received.status, received.qp_num), (IBV_WC_SUCCESS, (*(*tgt).qp).qp_num));
        assert_eq!(to.bytes, from.bytes);
        drop(from);
        // Each call waits for the end of the connection, even if the other side disconnects first.
        call(|| rdma_disconnect(ini)).unwrap();
        call(|| rdma_disconnect(tgt)).unwrap();
        assert_eq!(copy((*tgt).event).kind, RDMA_CM_EVENT_DISCONNECTED);
        // A later call does not wait for the same event.
        call(|| rdma_disconnect(tgt)).unwrap();
        assert!((*tgt).event.is_null());
    }
    drop(to);
    for id in [ini, tgt, listener] {
        destroy_all(&[id]);
    }
}

/// `ibv_get_srq_num`, which is inline in the header.
///
/// # Safety
/// The SRQ is not destroyed.
unsafe fn ibv_get_srq_num_of(srq: *mut ibv_srq, number: &mut u32) -> c_int {
    // SAFETY: the context is part of a verbs_context.
    unsafe {
        let context = (*srq).context;
        let table = context.byte_sub(std::mem::offset_of!(verbs_context, context)).cast::<verbs_context>();
        (*table).get_srq_num.unwrap()(srq, number)
    }
}

#[test]
fn j1_tcp_port_space_makes_every_type_rc_on_wire() {
    // contract J1: a listener for RC accepts the request. A listener for XRC would reject it.
    let ip = address();
    let (listener, port) = listening(ip, RDMA_PS_TCP, IBV_QPT_RC);
    let server = serve(listener, Vec::new());
    let ini = active(ip, port, RDMA_PS_TCP, IBV_QPT_XRC_SEND);
    connect(ini, &mut with(b"")).unwrap();
    let far = with_exposed_provenance_mut(server.join().unwrap().unwrap());
    for id in [ini, far, listener] {
        destroy_all(&[id]);
    }
}

#[test]
fn synchronous_connect_reports_refused_and_timed_out() {
    let ip = address();
    let (listener, port) = listening(ip, RDMA_PS_TCP, IBV_QPT_RC);
    destroy_all(&[listener]);
    let id = active(ip, port, RDMA_PS_TCP, IBV_QPT_RC);
    assert_eq!(connect(id, &mut with(b"")), Err(libc::ECONNREFUSED));
    destroy_all(&[id]);
    // A request to an address without a socket is refused.
    let at = address();
    let _unread = std::net::UdpSocket::bind((at, 4791)).unwrap();
    let silent = active(at, port, RDMA_PS_TCP, IBV_QPT_RC);
    assert_eq!(connect(silent, &mut with(b"")), Err(libc::ETIMEDOUT));
    destroy_all(&[silent]);
}

#[test]
fn address_of_invalid_length_is_refused() {
    // As in the kernel, every other length is invalid, even a larger one.
    let mut own = [c_address(address(), 0); 2];
    let length = u32::try_from(size_of_val(&own[0])).unwrap();
    for (given, result) in [(length, Ok(())), (2 * length, Err(libc::EINVAL)), (1, Err(libc::EINVAL))] {
        let mut hints = hints(RAI_PASSIVE, RDMA_PS_IB, IBV_QPT_XRC_RECV);
        (hints.ai_src_addr, hints.ai_src_len) = (own.as_mut_ptr().cast(), given);
        let mut info = null_mut();
        // SAFETY: all arguments are alive during the call.
        call(|| unsafe { rdma_getaddrinfo(null(), null(), &raw const hints, &raw mut info) }).unwrap();
        assert_eq!(Info(info).endpoint(null_mut()).map(|id| destroy_all(&[id])), result, "{given} bytes");
    }
}

#[test]
fn names_are_resolved_to_addresses() {
    let mut info = null_mut();
    // SAFETY: all arguments are null or alive during the call.
    unsafe {
        assert_eq!(call(|| rdma_getaddrinfo(null(), null(), null(), &raw mut info)), Err(libc::EINVAL));
        // The resolver's own error numbers are returned.
        let odd = CString::new("not an address").unwrap();
        let numeric = hints(RAI_NUMERICHOST, RDMA_PS_TCP, IBV_QPT_RC);
        assert_eq!(
            rdma_getaddrinfo(odd.as_ptr(), null(), &raw const numeric, &raw mut info),
            libc::EAI_NONAME
        );
    }
    let passive =
        Info::find(Ipv4Addr::new(127, 4, 5, 6), 7, &hints(RAI_PASSIVE, RDMA_PS_IB, IBV_QPT_XRC_RECV));
    // SAFETY: it is not freed yet.
    let found = unsafe { &*passive.0 };
    assert_eq!((found.ai_flags, found.ai_family), (RAI_PASSIVE, libc::AF_INET));
    assert_eq!(
        (found.ai_port_space.cast_unsigned(), found.ai_qp_type.cast_unsigned()),
        (RDMA_PS_IB, IBV_QPT_XRC_RECV)
    );
    assert!(found.ai_dst_addr.is_null() && found.ai_dst_len == 0);
    // SAFETY: the address is an IPv4 address.
    let address = unsafe { found.ai_src_addr.cast::<libc::sockaddr_in>().read() };
    assert_eq!((address.sin_port, address.sin_addr.s_addr.to_ne_bytes()), (7_u16.to_be(), [127, 4, 5, 6]));
    // If the hints contain no type, the resolver's first result determines it.
    let active = Info::find(Ipv4Addr::new(127, 4, 5, 6), 7, &hints(0, RDMA_PS_TCP, 0));
    // SAFETY: it is not freed yet.
    let found = unsafe { &*active.0 };
    assert_eq!(
        (found.ai_qp_type.cast_unsigned(), found.ai_port_space.cast_unsigned()),
        (IBV_QPT_RC, RDMA_PS_TCP)
    );
    assert!(found.ai_src_addr.is_null() && !found.ai_dst_addr.is_null());
    // An endpoint at an address that this host does not have cannot be created.
    let nowhere = Info::find(Ipv4Addr::new(203, 0, 113, 1), 7, &hints(RAI_PASSIVE, RDMA_PS_TCP, IBV_QPT_RC));
    assert_eq!(nowhere.endpoint(null_mut()), Err(libc::EADDRNOTAVAIL));
}

#[test]
fn rdma_get_devices_lists_device() {
    let mut count = 0;
    // SAFETY: the list is freed once.
    unsafe {
        let list = rdma_get_devices(&raw mut count);
        assert_eq!(count, 1);
        assert!(!list.read().is_null() && list.add(1).read().is_null());
        rdma_free_devices(list);
    }
}
