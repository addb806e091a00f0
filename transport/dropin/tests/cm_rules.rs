//! What librdmacm and the kernel refuse, and what they let pass: the order of steps, addresses,
//! answers that cannot be given, the listener's own things.

#![allow(clippy::tests_outside_test_module, reason = "an integration test is a test module of its own")]

mod common;

use common::*;
use std::ffi::c_int;
use std::net::SocketAddrV4;
use std::ptr::null_mut;
use std::time::Duration;
use trunkline_dropin::abi::*;
use trunkline_dropin::cm::*;
use trunkline_dropin::verbs::*;

fn disconnect(id: *mut rdma_cm_id) -> Result<(), c_int> {
    // SAFETY: the id lives.
    call(|| unsafe { rdma_disconnect(id) })
}

#[test]
fn an_address_of_another_family_is_invalid() {
    let channel = Channel::new();
    let id = channel.id(RDMA_PS_TCP);
    let (mut good, mut bad) = (c_address(address(), 0), c_address(address(), 0));
    for family in [libc::AF_UNSPEC, libc::AF_UNIX] {
        bad.sin_family = libc::sa_family_t::try_from(family).unwrap();
        let (good, bad) = ((&raw mut good).cast(), (&raw mut bad).cast());
        // SAFETY: id and addresses live.
        unsafe {
            assert_eq!(call(|| rdma_bind_addr(id, bad)), Err(libc::EINVAL));
            assert_eq!(call(|| rdma_resolve_addr(id, null_mut(), bad, 2000)), Err(libc::EINVAL));
            assert_eq!(call(|| rdma_resolve_addr(id, bad, good, 2000)), Err(libc::EINVAL));
        }
    }
    destroy(id);
}

#[test]
fn numbers_that_nobody_has_are_invalid() {
    let channel = Channel::new();
    let mut id = null_mut();
    // SAFETY: the channel lives, and a place that is not there is refused.
    unsafe {
        assert_eq!(call(|| rdma_create_id(channel.0, &raw mut id, null_mut(), 7)), Err(libc::EINVAL));
        assert_eq!(call(|| rdma_get_cm_event(channel.0, null_mut())), Err(libc::EINVAL));
    }
    let id = channel.id(RDMA_PS_TCP);
    let set = |level: c_int, name: c_int| {
        let mut byte = 1_u8;
        // SAFETY: id and byte live.
        call(|| unsafe { rdma_set_option(id, level, name, (&raw mut byte).cast(), 1) })
    };
    assert_eq!(set(2, 0), Err(libc::ENOSYS), "no such level");
    assert_eq!(set(RDMA_OPTION_IB, 2), Err(libc::ENOSYS), "no such option");
    assert_eq!(set(RDMA_OPTION_IB, RDMA_OPTION_IB_PATH), Err(libc::EOPNOTSUPP));
    destroy(id);
}

#[test]
fn an_id_takes_one_step_after_the_other() {
    let channel = Channel::new();
    let id = channel.id(RDMA_PS_TCP);
    let (mut source, mut destination) = (c_address(address(), 0), c_address(address(), 7));
    let (source, destination) = ((&raw mut source).cast(), (&raw mut destination).cast());
    let named = || rdma_conn_param { qp_num: 0x1234, ..with(b"") };
    assert_eq!(connect(id, &mut named()), Err(libc::EINVAL), "nowhere");
    // SAFETY: id and addresses live.
    unsafe {
        call(|| rdma_resolve_addr(id, source, destination, 2000)).unwrap();
        channel.expect(RDMA_CM_EVENT_ADDR_RESOLVED);
        assert_eq!(connect(id, &mut named()), Err(libc::EINVAL), "no route");
        assert_eq!(call(|| rdma_resolve_addr(id, source, destination, 2000)), Err(libc::EINVAL));
        assert_eq!(call(|| rdma_resolve_route(id, 0)), Err(libc::EINVAL), "no time");
        call(|| rdma_resolve_route(id, 2000)).unwrap();
        channel.expect(RDMA_CM_EVENT_ROUTE_RESOLVED);
        assert_eq!(call(|| rdma_resolve_route(id, 2000)), Err(libc::EINVAL));
        assert_eq!(call(|| rdma_listen(id, 1)), Err(libc::EINVAL));
        assert_eq!(call(|| rdma_reject(id, null_mut(), 0)), Err(libc::EINVAL));
    }
    assert_eq!(accept(id, &mut named()), Err(libc::EINVAL));
    assert_eq!(disconnect(id), Err(libc::EINVAL), "nobody was asked");
    destroy(id);
}

#[test]
fn an_id_asks_once() {
    let (near_channel, far_channel) = (Channel::new(), Channel::new());
    let (listener, at) = far_channel.listener(address(), RDMA_PS_TCP);
    let near = near_channel.resolved(address(), at, RDMA_PS_TCP);
    create_qp(near);
    let long = vec![1; 57];
    assert_eq!(connect(near, &mut with(&long)), Err(libc::EINVAL), "too much to say");
    // What was not sent was not asked.
    connect(near, &mut with(b"")).unwrap();
    assert_eq!(disconnect(near), Ok(()), "there is nothing to end yet, which is no mistake");
    let asked = far_channel.expect(RDMA_CM_EVENT_CONNECT_REQUEST);
    // SAFETY: the id lives.
    let refuse = || call(|| unsafe { rdma_reject(asked.id, null_mut(), 0) });
    refuse().unwrap();
    near_channel.expect(RDMA_CM_EVENT_REJECTED);
    assert_eq!(refuse(), Err(libc::EINVAL), "it was refused");
    assert_eq!(accept(asked.id, &mut rdma_conn_param { qp_num: 0x1234, ..with(b"") }), Err(libc::EINVAL));
    assert_eq!(connect(near, &mut with(b"")), Err(libc::EINVAL));
    assert_eq!(disconnect(near), Ok(()));
    end(&[near, asked.id, listener]);
}

#[test]
fn an_answer_that_cannot_be_given_refuses_the_peer() {
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
    // SAFETY: the id and its QP live.
    assert_eq!(state_of(unsafe { (*asked.id).qp }), IBV_QPS_ERR);
    end(&[near, asked.id, listener]);
}

#[test]
fn nothing_is_told_of_a_request_that_was_not_accepted() {
    let (near_channel, far_channel) = (Channel::new(), Channel::new());
    let (listener, at) = far_channel.listener(address(), RDMA_PS_TCP);
    let ip = address();
    let near = near_channel.resolved(ip, at, RDMA_PS_TCP);
    create_qp(near);
    connect(near, &mut with(b"")).unwrap();
    let asked = far_channel.expect(RDMA_CM_EVENT_CONNECT_REQUEST);
    create_qp(asked.id);
    end(&[near]);
    // What the second one asks comes after what the first one took back.
    let second = near_channel.resolved(ip, at, RDMA_PS_TCP);
    create_qp(second);
    connect(second, &mut with(b"")).unwrap();
    let other = far_channel.expect(RDMA_CM_EVENT_CONNECT_REQUEST);
    assert_eq!(accept(asked.id, &mut with(b"")), Err(libc::EINVAL), "nobody waits for it");
    assert!(!far_channel.is_readable(Duration::ZERO));
    end(&[asked.id, second, other.id, listener]);
}

#[test]
fn a_backlog_counts_what_the_program_has_not_heard_of() {
    let (near_channel, far_channel) = (Channel::new(), Channel::new());
    let (listener, ip) = (far_channel.id(RDMA_PS_TCP), address());
    let mut at = c_address(ip, 0);
    // SAFETY: id and address live.
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
        end(&[near, asked]);
    }
    end(&[listener]);
}

/// What a passive endpoint is made from.
fn passive(at: &mut libc::sockaddr_in, ps: u32, qp_type: u32) -> rdma_addrinfo {
    // SAFETY: numbers and null pointers.
    let mut info: rdma_addrinfo = unsafe { std::mem::zeroed() };
    (info.ai_flags, info.ai_family) = (RAI_PASSIVE, libc::AF_INET);
    (info.ai_port_space, info.ai_qp_type) = (ps.cast_signed(), qp_type.cast_signed());
    info.ai_src_len = u32::try_from(size_of_val(at)).unwrap();
    info.ai_src_addr = (&raw mut *at).cast();
    info
}

#[test]
fn a_listener_has_the_protection_domain_it_was_made_with() {
    let mut at = c_address(address(), 0);
    let mut info = passive(&mut at, RDMA_PS_TCP, IBV_QPT_RC);
    let mut first = null_mut();
    // SAFETY: all of it lives as long as it is used.
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
        let ip = std::net::Ipv4Addr::from(at.sin_addr.s_addr.to_ne_bytes());
        let near = near_channel.resolved(address(), SocketAddrV4::new(ip, port), RDMA_PS_TCP);
        create_qp(near);
        connect(near, &mut with(b"")).unwrap();
        let mut asked = null_mut();
        call(|| rdma_get_request(listener, &raw mut asked)).unwrap();
        assert_eq!((*(*asked).qp).pd, pd, "and so have its connections");
        end(&[near, asked, listener, first]);
        assert_eq!(ibv_dealloc_pd(pd), 0);
    }
}

#[test]
fn an_xrc_srq_keeps_its_cq_when_the_qp_goes() {
    let mut at = c_address(address(), 0);
    let mut info = passive(&mut at, RDMA_PS_IB, IBV_QPT_XRC_RECV);
    let mut id = null_mut();
    // SAFETY: the endpoint lives until its end.
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
    end(&[id]);
}
