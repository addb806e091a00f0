//! Support for tests of librdmacm's functions: addresses of this process's device, and C calls whose results are checked.

use super::common;
pub(crate) use super::common::{BOUND, Region};
use std::ffi::{c_int, c_uint};
use std::mem::zeroed;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::ptr::{null, null_mut};
use std::time::Duration;
use trunkline_dropin::abi::*;
use trunkline_dropin::cm::*;
use trunkline_dropin::verbs::*;
pub(crate) use trunkline_testkit::fresh_ip as address;

pub(crate) fn c_address(ip: Ipv4Addr, port: u16) -> libc::sockaddr_in {
    libc::sockaddr_in {
        sin_family: libc::sa_family_t::try_from(libc::AF_INET).unwrap(),
        sin_port: port.to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(ip.octets()) },
        sin_zero: [0; 8],
    }
}

/// Runs a call that returns 0 on success, or returns -1 and sets errno.
pub(crate) fn call(function: impl FnOnce() -> c_int) -> Result<(), c_int> {
    match function() {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error().raw_os_error().unwrap()),
    }
}

/// A copy of an event and its private data.
#[derive(Debug, Clone)]
pub(crate) struct EventCopy {
    pub(crate) id: *mut rdma_cm_id,
    pub(crate) listener: *mut rdma_cm_id,
    pub(crate) kind: c_uint,
    pub(crate) status: c_int,
    pub(crate) private_data: Vec<u8>,
    pub(crate) qp_num: u32,
    pub(crate) srq: u8,
    pub(crate) flow_control: u8,
}

pub(crate) fn copy(event: *mut rdma_cm_event) -> EventCopy {
    // SAFETY: the caller has not acknowledged the event.
    unsafe {
        let conn = (*event).param.conn;
        let length = usize::from(conn.private_data_len);
        EventCopy {
            id: (*event).id,
            listener: (*event).listen_id,
            kind: (*event).event,
            status: (*event).status,
            private_data: if length == 0 {
                Vec::new()
            } else {
                std::slice::from_raw_parts(conn.private_data.cast::<u8>(), length).to_vec()
            },
            qp_num: conn.qp_num,
            srq: conn.srq,
            flow_control: conn.flow_control,
        }
    }
}

/// An event channel, which is destroyed on drop.
pub(crate) struct Channel(pub(crate) *mut rdma_event_channel);

impl Channel {
    pub(crate) fn new() -> Self {
        let channel = rdma_create_event_channel();
        assert!(!channel.is_null());
        Self(channel)
    }

    pub(crate) fn fd(&self) -> c_int {
        // SAFETY: the channel lives as long as `self`.
        unsafe { (*self.0).fd }
    }

    /// Returns true if an event is waiting or arrives within `timeout`.
    pub(crate) fn is_readable(&self, timeout: Duration) -> bool {
        let mut poll = libc::pollfd { fd: self.fd(), events: libc::POLLIN, revents: 0 };
        let milliseconds = c_int::try_from(timeout.as_millis()).unwrap();
        // SAFETY: the array has one entry.
        unsafe { libc::poll(&raw mut poll, 1, milliseconds) == 1 }
    }

    /// Returns the next event, which the caller must acknowledge.
    pub(crate) fn unacknowledged(&self) -> *mut rdma_cm_event {
        assert!(self.is_readable(BOUND), "no event");
        let mut event = null_mut();
        // SAFETY: the channel is not destroyed yet.
        call(|| unsafe { rdma_get_cm_event(self.0, &raw mut event) }).unwrap();
        event
    }

    /// Returns a copy of the next event, and acknowledges the event.
    pub(crate) fn next(&self) -> EventCopy {
        let event = self.unacknowledged();
        let taken = copy(event);
        // SAFETY: it is not used after this.
        call(|| unsafe { rdma_ack_cm_event(event) }).unwrap();
        taken
    }

    pub(crate) fn expect(&self, kind: c_uint) -> EventCopy {
        let taken = self.next();
        assert_eq!(taken.kind, kind, "{taken:?}");
        taken
    }

    pub(crate) fn id(&self, ps: c_uint) -> *mut rdma_cm_id {
        let mut id = null_mut();
        // SAFETY: the channel is not destroyed yet.
        call(|| unsafe { rdma_create_id(self.0, &raw mut id, null_mut(), ps) }).unwrap();
        id
    }

    /// Returns an id that listens on a free port of `ip`, and its address.
    pub(crate) fn listener(&self, ip: Ipv4Addr, ps: c_uint) -> (*mut rdma_cm_id, SocketAddrV4) {
        let id = self.id(ps);
        let mut at = c_address(ip, 0);
        // SAFETY: the id is not destroyed yet, and the address is local.
        unsafe {
            call(|| rdma_bind_addr(id, (&raw mut at).cast())).unwrap();
            call(|| rdma_listen(id, 4)).unwrap();
            (id, SocketAddrV4::new(ip, u16::from_be(rdma_get_src_port(id))))
        }
    }

    /// Returns an id at `ip` whose address and route to `to` are resolved.
    pub(crate) fn resolved(&self, ip: Ipv4Addr, to: SocketAddrV4, ps: c_uint) -> *mut rdma_cm_id {
        let id = self.id(ps);
        let (mut source, mut destination) = (c_address(ip, 0), c_address(*to.ip(), to.port()));
        // SAFETY: the id is not destroyed yet, and the addresses are local.
        unsafe {
            call(|| rdma_resolve_addr(id, (&raw mut source).cast(), (&raw mut destination).cast(), 2000))
                .unwrap();
            assert_eq!(self.expect(RDMA_CM_EVENT_ADDR_RESOLVED).id, id);
            assert!(!(*id).verbs.is_null() && !(*id).pd.is_null());
            call(|| rdma_resolve_route(id, 2000)).unwrap();
            self.expect(RDMA_CM_EVENT_ROUTE_RESOLVED);
        }
        id
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: it is not used after this.
        unsafe { rdma_destroy_event_channel(self.0) };
    }
}

pub(crate) fn destroy(id: *mut rdma_cm_id) {
    // SAFETY: the id is not used after this.
    call(|| unsafe { rdma_destroy_id(id) }).unwrap();
}

/// Destroys ids together with their QPs and SRQs.
pub(crate) fn destroy_all(ids: &[*mut rdma_cm_id]) {
    for id in ids {
        // SAFETY: the ids are not used after this.
        unsafe { rdma_destroy_ep(*id) };
    }
}

/// Returns the attributes of a small QP.
pub(crate) fn small(qp_type: c_uint) -> ibv_qp_init_attr {
    // SAFETY: numbers and null pointers, for which zeros are valid.
    let mut init: ibv_qp_init_attr = unsafe { zeroed() };
    init.cap =
        ibv_qp_cap { max_send_wr: 4, max_recv_wr: 4, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 16 };
    init.qp_type = qp_type;
    init.sq_sig_all = 1;
    init
}

pub(crate) fn create_qp(id: *mut rdma_cm_id) {
    let mut init = small(IBV_QPT_RC);
    // SAFETY: the id is not destroyed yet, and the attributes are local.
    call(|| unsafe { rdma_create_qp(id, null_mut(), &raw mut init) }).unwrap();
}

/// Returns connection parameters that point to `private_data`, which must outlive them.
pub(crate) fn with(private_data: &[u8]) -> rdma_conn_param {
    rdma_conn_param {
        private_data: if private_data.is_empty() { null() } else { private_data.as_ptr().cast() },
        private_data_len: u8::try_from(private_data.len()).unwrap(),
        responder_resources: 2,
        initiator_depth: 2,
        flow_control: 0,
        retry_count: 7,
        rnr_retry_count: 7,
        srq: 0,
        qp_num: 0,
    }
}

pub(crate) fn connect(id: *mut rdma_cm_id, param: &mut rdma_conn_param) -> Result<(), c_int> {
    // SAFETY: the id is not destroyed yet, and the caller keeps the parameters.
    call(|| unsafe { rdma_connect(id, param) })
}

pub(crate) fn accept(id: *mut rdma_cm_id, param: &mut rdma_conn_param) -> Result<(), c_int> {
    // SAFETY: the id is not destroyed yet, and the caller keeps the parameters.
    call(|| unsafe { rdma_accept(id, param) })
}

pub(crate) fn attributes_of(qp: *mut ibv_qp) -> ibv_qp_attr {
    // SAFETY: numbers and null pointers, for which zeros are valid.
    let (mut attributes, mut init) = unsafe { (ibv_qp_attr::default(), zeroed::<ibv_qp_init_attr>()) };
    // SAFETY: the QP is not destroyed yet.
    assert_eq!(unsafe { ibv_query_qp(qp, &raw mut attributes, c_int::MAX, &raw mut init) }, 0);
    attributes
}

pub(crate) fn state_of(qp: *mut ibv_qp) -> c_uint {
    attributes_of(qp).qp_state
}

/// Registers memory with the given contents in an id's PD.
pub(crate) fn region(id: *mut rdma_cm_id, content: &[u8]) -> Region {
    // SAFETY: the id is not destroyed yet.
    Region::new(unsafe { (*id).pd }, content)
}

fn whole(region: &Region) -> ibv_sge {
    region.sge(0, u32::try_from(region.bytes.len()).unwrap())
}

fn post_srq(srq: *mut ibv_srq, wr_id: u64, sge: ibv_sge) -> c_int {
    let mut list = [sge];
    let mut wr = common::receive(wr_id, &mut list);
    let mut bad = null_mut();
    // SAFETY: the test's own objects, which it destroys at its end.
    unsafe { (*(*srq).context).ops.post_srq_recv.unwrap()(srq, &raw mut wr, &raw mut bad) }
}

/// Posts a receive to a QP or to an SRQ.
pub(crate) fn receive(qp: *mut ibv_qp, srq: *mut ibv_srq, region: &Region) {
    let sge = whole(region);
    let status = if srq.is_null() { common::post_receive(qp, 0, sge) } else { post_srq(srq, 0, sge) };
    assert_eq!(status, 0);
}

/// Posts a SEND. For XRC, it is sent to an SRQ.
pub(crate) fn send(qp: *mut ibv_qp, region: &Region, srq_number: u32) {
    let mut sges = [whole(region)];
    let request = ibv_send_wr { remote_srqn: srq_number, ..common::send(0, &mut sges) };
    assert_eq!(common::post(qp, &mut [request]).0, 0);
}

/// Polls a CQ until a completion arrives.
pub(crate) fn completion(cq: *mut ibv_cq) -> ibv_wc {
    common::completions(cq, 1)[0]
}
