//! Tests of calls that librdmacm and the kernel accept or refuse: the order of steps, addresses, replies that cannot be
//! sent, and a listener's objects.

use super::lab::*;
use std::ffi::c_int;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::ptr::null_mut;
use std::time::Duration;
use trunkline_dropin::abi::*;
use trunkline_dropin::cm::*;
use trunkline_dropin::verbs::*;

fn disconnect(id: *mut rdma_cm_id) -> Result<(), c_int> {
    // SAFETY: the id is not destroyed yet.
    call(|| unsafe { rdma_disconnect(id) })
}

#[test]
fn address_of_another_family_is_invalid() {
    let channel = Channel::new();
    let id = channel.id(RDMA_PS_TCP);
    let (mut good, mut bad) = (c_address(address(), 0), c_address(address(), 0));
    for family in [libc::AF_UNSPEC, libc::AF_UNIX] {
        bad.sin_family = libc::sa_family_t::try_from(family).unwrap();
        let (good, bad) = ((&raw mut good).cast(), (&raw mut bad).cast());
        // SAFETY: the id is not destroyed yet, and the addresses are local.
        unsafe {
            assert_eq!(call(|| rdma_bind_addr(id, bad)), Err(libc::EINVAL));
            assert_eq!(call(|| rdma_resolve_addr(id, null_mut(), bad, 2000)), Err(libc::EINVAL));
            assert_eq!(call(|| rdma_resolve_addr(id, bad, good, 2000)), Err(libc::EINVAL));
        }
    }
    destroy(id);
}

#[test]
fn route_names_path_as_kernel_does() {
    let channel = Channel::new();
    let id = channel.resolved(address(), SocketAddrV4::new(address(), 7), RDMA_PS_TCP);
    // SAFETY: the id is not destroyed yet, and its fields are read only.
    let (path, port) = unsafe {
        let mut port: ibv_port_attr = std::mem::zeroed();
        assert_eq!(ibv_query_port((*id).verbs, 1, &raw mut port), 0);
        assert_eq!(((*id).route.num_paths, (*id).port_num), (1, 1));
        (*(*id).route.path_rec, port)
    };
    assert_eq!(u32::from(path.mtu), port.active_mtu);
    assert_eq!((path.rate, path.packet_life_time), (16, 16), "100 Gb/s, as the port reports, and 268 ms");
    assert_eq!((path.mtu_selector, path.rate_selector, path.packet_life_time_selector), (2, 2, 2));
    assert_eq!((path.hop_limit, path.reversible, path.numb_path), (64, 1, 1));
    destroy(id);
}

/// The rules follow `cma_connect_ib`, `cma_accept_ib` and `cma_ib_new_conn_id` in Linux.
#[test]
fn flow_control_and_type_of_service_reach_peer() {
    let (near_channel, far_channel) = (Channel::new(), Channel::new());
    let (listener, at) = far_channel.listener(address(), RDMA_PS_TCP);
    let near = near_channel.id(RDMA_PS_TCP);
    let named = |number| rdma_conn_param { qp_num: number, flow_control: 1, ..with(b"") };
    let class_of = |id: *mut rdma_cm_id| {
        // SAFETY: the id is not destroyed yet, and its fields are read only.
        unsafe { (*(*id).route.path_rec).traffic_class }
    };
    let (mut class, mut destination) = (0x68_u8, c_address(*at.ip(), at.port()));
    // SAFETY: the id is not destroyed yet, and the option and the address are local.
    unsafe {
        let (level, name) = (RDMA_OPTION_ID, RDMA_OPTION_ID_TOS);
        call(|| rdma_set_option(near, level, name, (&raw mut class).cast(), 1)).unwrap();
        call(|| rdma_resolve_addr(near, null_mut(), (&raw mut destination).cast(), 2000)).unwrap();
        near_channel.expect(RDMA_CM_EVENT_ADDR_RESOLVED);
        call(|| rdma_resolve_route(near, 2000)).unwrap();
    }
    near_channel.expect(RDMA_CM_EVENT_ROUTE_RESOLVED);
    assert_eq!(class_of(near), class);
    connect(near, &mut named(0x1234)).unwrap();
    let request = far_channel.expect(RDMA_CM_EVENT_CONNECT_REQUEST);
    assert_eq!((request.flow_control, class_of(request.id)), (1, class));
    accept(request.id, &mut named(0x5678)).unwrap();
    assert_eq!(near_channel.expect(RDMA_CM_EVENT_CONNECT_RESPONSE).flow_control, 1);
    destroy_all(&[near, request.id, listener]);
}

#[test]
fn unknown_port_spaces_and_options_are_invalid() {
    let channel = Channel::new();
    let mut id = null_mut();
    // SAFETY: the channel is not destroyed yet, and null is refused.
    unsafe {
        assert_eq!(call(|| rdma_create_id(channel.0, &raw mut id, null_mut(), 7)), Err(libc::EINVAL));
        assert_eq!(call(|| rdma_get_cm_event(channel.0, null_mut())), Err(libc::EINVAL));
    }
    let id = channel.id(RDMA_PS_TCP);
    let set = |level: c_int, name: c_int| {
        let mut byte = 1_u8;
        // SAFETY: the id is not destroyed yet, and the byte is local.
        call(|| unsafe { rdma_set_option(id, level, name, (&raw mut byte).cast(), 1) })
    };
    assert_eq!(set(2, 0), Err(libc::ENOSYS), "no such level");
    assert_eq!(set(RDMA_OPTION_IB, 2), Err(libc::ENOSYS), "no such option");
    assert_eq!(set(RDMA_OPTION_IB, RDMA_OPTION_IB_PATH), Err(libc::EOPNOTSUPP));
    destroy(id);
}

#[test]
fn cm_id_steps_out_of_order_are_refused() {
    let channel = Channel::new();
    let id = channel.id(RDMA_PS_TCP);
    let (mut source, mut destination) = (c_address(address(), 0), c_address(address(), 7));
    let (source, destination) = ((&raw mut source).cast(), (&raw mut destination).cast());
    let named = || rdma_conn_param { qp_num: 0x1234, ..with(b"") };
    assert_eq!(connect(id, &mut named()), Err(libc::EINVAL), "the address is not resolved");
    // SAFETY: the id is not destroyed yet, and the addresses are local.
    unsafe {
        call(|| rdma_resolve_addr(id, source, destination, 2000)).unwrap();
        channel.expect(RDMA_CM_EVENT_ADDR_RESOLVED);
        assert_eq!(connect(id, &mut named()), Err(libc::EINVAL), "the route is not resolved");
        assert_eq!(call(|| rdma_resolve_addr(id, source, destination, 2000)), Err(libc::EINVAL));
        assert_eq!(call(|| rdma_resolve_route(id, 0)), Err(libc::EINVAL), "the timeout is 0");
        call(|| rdma_resolve_route(id, 2000)).unwrap();
        channel.expect(RDMA_CM_EVENT_ROUTE_RESOLVED);
        assert_eq!(call(|| rdma_resolve_route(id, 2000)), Err(libc::EINVAL));
        assert_eq!(call(|| rdma_listen(id, 1)), Err(libc::EINVAL));
        assert_eq!(call(|| rdma_reject(id, null_mut(), 0)), Err(libc::EINVAL));
    }
    assert_eq!(accept(id, &mut named()), Err(libc::EINVAL));
    assert_eq!(disconnect(id), Err(libc::EINVAL), "no request was sent");
    destroy(id);
}

#[test]
fn id_sends_one_request() {
    let (near_channel, far_channel) = (Channel::new(), Channel::new());
    let (listener, at) = far_channel.listener(address(), RDMA_PS_TCP);
    let near = near_channel.resolved(address(), at, RDMA_PS_TCP);
    create_qp(near);
    let long = vec![1; 57];
    assert_eq!(connect(near, &mut with(&long)), Err(libc::EINVAL), "the private data is too long");
    // A request that was not sent does not count.
    connect(near, &mut with(b"")).unwrap();
    assert_eq!(disconnect(near), Ok(()), "there is no connection yet, which is not an error");
    let asked = far_channel.expect(RDMA_CM_EVENT_CONNECT_REQUEST);
    // SAFETY: the id is not destroyed yet.
    let reject = || call(|| unsafe { rdma_reject(asked.id, null_mut(), 0) });
    reject().unwrap();
    near_channel.expect(RDMA_CM_EVENT_REJECTED);
    assert_eq!(reject(), Err(libc::EINVAL), "it is rejected already");
    assert_eq!(accept(asked.id, &mut rdma_conn_param { qp_num: 0x1234, ..with(b"") }), Err(libc::EINVAL));
    assert_eq!(connect(near, &mut with(b"")), Err(libc::EINVAL));
    assert_eq!(disconnect(near), Ok(()));
    destroy_all(&[near, asked.id, listener]);
}

#[test]
fn accept_with_too_long_private_data_rejects_peer() {
    let (near_channel, far_channel) = (Channel::new(), Channel::new());
    let (listener, at) = far_channel.listener(address(), RDMA_PS_TCP);
    let near = near_channel.resolved(address(), at, RDMA_PS_TCP);
    create_qp(near);
    connect(near, &mut with(b"")).unwrap();
    let asked = far_channel.expect(RDMA_CM_EVENT_CONNECT_REQUEST);
    create_qp(asked.id);
    let long = vec![1; 197];
    assert_eq!(accept(asked.id, &mut with(&long)), Err(libc::EINVAL));
    assert_eq!(near_channel.expect(RDMA_CM_EVENT_REJECTED).status, 28);
    // SAFETY: the id and its QP are not destroyed yet.
    assert_eq!(state_of(unsafe { (*asked.id).qp }), IBV_QPS_ERR);
    destroy_all(&[near, asked.id, listener]);
}

#[test]
fn cancelled_request_gets_no_events() {
    let (near_channel, far_channel) = (Channel::new(), Channel::new());
    let (listener, at) = far_channel.listener(address(), RDMA_PS_TCP);
    let ip = address();
    let near = near_channel.resolved(ip, at, RDMA_PS_TCP);
    create_qp(near);
    connect(near, &mut with(b"")).unwrap();
    let asked = far_channel.expect(RDMA_CM_EVENT_CONNECT_REQUEST);
    create_qp(asked.id);
    destroy_all(&[near]);
    // The second request arrives after the first has been cancelled.
    let second = near_channel.resolved(ip, at, RDMA_PS_TCP);
    create_qp(second);
    connect(second, &mut with(b"")).unwrap();
    let other = far_channel.expect(RDMA_CM_EVENT_CONNECT_REQUEST);
    assert_eq!(accept(asked.id, &mut with(b"")), Err(libc::EINVAL), "the request is cancelled");
    assert!(!far_channel.is_readable(Duration::ZERO));
    destroy_all(&[asked.id, second, other.id, listener]);
}

#[test]
fn backlog_excludes_requests_taken_by_program() {
    let (near_channel, far_channel) = (Channel::new(), Channel::new());
    let (listener, ip) = (far_channel.id(RDMA_PS_TCP), address());
    let mut at = c_address(ip, 0);
    // SAFETY: the id is not destroyed yet, and the address is local.
    let port = unsafe {
        call(|| rdma_bind_addr(listener, (&raw mut at).cast())).unwrap();
        call(|| rdma_listen(listener, 1)).unwrap();
        u16::from_be(rdma_get_src_port(listener))
    };
    let mut ids = Vec::new();
    for _ in 0..3 {
        let near = near_channel.resolved(address(), SocketAddrV4::new(ip, port), RDMA_PS_TCP);
        create_qp(near);
        connect(near, &mut with(b"")).unwrap();
        ids.push((near, far_channel.expect(RDMA_CM_EVENT_CONNECT_REQUEST).id));
    }
    for (_, asked) in &ids {
        create_qp(*asked);
        accept(*asked, &mut with(b"")).unwrap();
        near_channel.expect(RDMA_CM_EVENT_ESTABLISHED);
    }
    for (near, asked) in ids {
        destroy_all(&[near, asked]);
    }
    destroy_all(&[listener]);
}

/// Returns the address information for a passive endpoint.
fn passive(at: &mut libc::sockaddr_in, ps: u32, qp_type: u32) -> rdma_addrinfo {
    // SAFETY: numbers and null pointers, for which zeros are valid.
    let mut info: rdma_addrinfo = unsafe { std::mem::zeroed() };
    (info.ai_flags, info.ai_family) = (RAI_PASSIVE, libc::AF_INET);
    (info.ai_port_space, info.ai_qp_type) = (ps.cast_signed(), qp_type.cast_signed());
    info.ai_src_len = u32::try_from(size_of_val(at)).unwrap();
    info.ai_src_addr = (&raw mut *at).cast();
    info
}

#[test]
fn listener_and_its_connections_use_pd_given_at_creation() {
    let mut at = c_address(address(), 0);
    let mut info = passive(&mut at, RDMA_PS_TCP, IBV_QPT_RC);
    let mut first = null_mut();
    // SAFETY: all arguments are alive during their call.
    unsafe {
        call(|| rdma_create_ep(&raw mut first, &raw mut info, null_mut(), null_mut())).unwrap();
        let pd = ibv_alloc_pd((*first).verbs);
        assert!(!pd.is_null() && (*first).pd != pd);
        let mut listener = null_mut();
        let mut init = small(IBV_QPT_RC);
        call(|| rdma_create_ep(&raw mut listener, &raw mut info, pd, &raw mut init)).unwrap();
        assert_eq!((*listener).pd, pd);
        call(|| rdma_listen(listener, 1)).unwrap();
        let near_channel = Channel::new();
        let port = u16::from_be(rdma_get_src_port(listener));
        let ip = Ipv4Addr::from(at.sin_addr.s_addr.to_ne_bytes());
        let near = near_channel.resolved(address(), SocketAddrV4::new(ip, port), RDMA_PS_TCP);
        create_qp(near);
        connect(near, &mut with(b"")).unwrap();
        let mut asked = null_mut();
        call(|| rdma_get_request(listener, &raw mut asked)).unwrap();
        assert_eq!((*(*asked).qp).pd, pd, "its connections use it as well");
        destroy_all(&[near, asked, listener, first]);
        assert_eq!(ibv_dealloc_pd(pd), 0);
    }
}

#[test]
fn xrc_srq_keeps_its_cq_when_qp_is_destroyed() {
    let mut at = c_address(address(), 0);
    let mut info = passive(&mut at, RDMA_PS_IB, IBV_QPT_XRC_RECV);
    let mut id = null_mut();
    // SAFETY: the endpoint is destroyed at the end of the test.
    unsafe {
        call(|| rdma_create_ep(&raw mut id, &raw mut info, null_mut(), null_mut())).unwrap();
        let mut init = ibv_srq_init_attr {
            srq_context: null_mut(),
            attr: ibv_srq_attr { max_wr: 4, max_sge: 1, srq_limit: 0 },
        };
        call(|| rdma_create_srq(id, null_mut(), &raw mut init)).unwrap();
        let cq = (*id).recv_cq;
        call(|| rdma_create_qp(id, null_mut(), &mut small(IBV_QPT_XRC_RECV))).unwrap();
        rdma_destroy_qp(id);
        assert_eq!((*id).recv_cq, cq);
        assert!(!cq.is_null() && !(*id).srq.is_null());
        rdma_destroy_srq(id);
        assert!((*id).recv_cq.is_null() && (*id).recv_cq_channel.is_null());
    }
    destroy_all(&[id]);
}
