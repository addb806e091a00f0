//! Tests of librdmacm's functions for asynchronous ids, with several ids per channel. Both sides are in this process.

use super::lab::*;
use std::ffi::c_int;
use std::net::Ipv4Addr;
use std::ptr::null_mut;
use std::time::Duration;
use trunkline_dropin::abi::*;
use trunkline_dropin::cm::*;
use trunkline_dropin::verbs::*;
use trunkline_testkit::same_test;

/// Two connected ids, each with a QP and a channel.
struct Connected {
    near: *mut rdma_cm_id,
    far: *mut rdma_cm_id,
    listener: *mut rdma_cm_id,
    near_channel: Channel,
    far_channel: Channel,
}

fn connected() -> Connected {
    let (near_channel, far_channel) = (Channel::new(), Channel::new());
    let (listener, at) = far_channel.listener(address(), RDMA_PS_TCP);
    let near = near_channel.resolved(address(), at, RDMA_PS_TCP);
    create_qp(near);
    connect(near, &mut with(b"asked")).unwrap();
    let asked = far_channel.expect(RDMA_CM_EVENT_CONNECT_REQUEST);
    assert_eq!((asked.listener, asked.status), (listener, 0));
    assert_ne!(asked.id, listener);
    assert!(asked.private_data.starts_with(b"asked") && asked.private_data.len() == 56);
    // SAFETY: the ids are not destroyed yet.
    unsafe {
        assert_eq!(asked.qp_num, (*(*near).qp).qp_num);
        assert_eq!(u16::from_be(rdma_get_src_port(asked.id)), at.port());
        assert_eq!(rdma_get_dst_port(asked.id), rdma_get_src_port(near));
    }
    create_qp(asked.id);
    accept(asked.id, &mut with(b"answered")).unwrap();
    let reply = near_channel.expect(RDMA_CM_EVENT_ESTABLISHED);
    assert!(reply.private_data.starts_with(b"answered") && reply.private_data.len() == 196);
    assert_eq!(far_channel.expect(RDMA_CM_EVENT_ESTABLISHED).id, asked.id);
    Connected { near, far: asked.id, listener, near_channel, far_channel }
}

impl Connected {
    fn destroy(self) {
        for id in [self.near, self.far] {
            // SAFETY: the ids are not destroyed yet.
            unsafe { rdma_destroy_qp(id) };
        }
        for id in [self.near, self.far, self.listener] {
            destroy(id);
        }
    }
}

/// Creates a QP with libibverbs alone, in RESET and with an SRQ.
fn own_qp(id: *mut rdma_cm_id) -> (*mut ibv_qp, *mut ibv_srq, *mut ibv_cq) {
    // SAFETY: the id is not destroyed yet, and its device is never closed.
    unsafe {
        let cq = ibv_create_cq((*id).verbs, 8, null_mut(), null_mut(), 0);
        let attr = ibv_srq_attr { max_wr: 4, max_sge: 1, srq_limit: 0 };
        let srq = ibv_create_srq((*id).pd, &mut ibv_srq_init_attr { srq_context: null_mut(), attr });
        let mut init = small(IBV_QPT_RC);
        (init.send_cq, init.recv_cq, init.srq) = (cq, cq, srq);
        let qp = ibv_create_qp((*id).pd, &raw mut init);
        assert!(!cq.is_null() && !srq.is_null() && !qp.is_null());
        (qp, srq, cq)
    }
}

#[test]
fn qp_assigned_to_id_is_brought_up() {
    let (near_channel, far_channel) = (Channel::new(), Channel::new());
    let (listener, at) = far_channel.listener(address(), RDMA_PS_TCP);
    let near = near_channel.resolved(address(), at, RDMA_PS_TCP);
    let near_own = own_qp(near);
    // SAFETY: the ids are not destroyed yet, and their QPs are not destroyed before they are removed from the ids.
    unsafe {
        (*near).qp = near_own.0;
        connect(near, &mut with(b"")).unwrap();
        let asked = far_channel.expect(RDMA_CM_EVENT_CONNECT_REQUEST);
        assert_eq!(asked.qp_num, (*near_own.0).qp_num);
        let far_own = own_qp(asked.id);
        (*asked.id).qp = far_own.0;
        accept(asked.id, &mut with(b"")).unwrap();
        near_channel.expect(RDMA_CM_EVENT_ESTABLISHED);
        far_channel.expect(RDMA_CM_EVENT_ESTABLISHED);
        assert_eq!([state_of(near_own.0), state_of(far_own.0)], [IBV_QPS_RTS; 2]);
        // After the QP is removed from the id, calls on the id do not change the QP.
        (*near).qp = null_mut();
        call(|| rdma_disconnect(near)).unwrap();
        assert_eq!(state_of(near_own.0), IBV_QPS_RTS);
        (*asked.id).qp = null_mut();
        for id in [near, asked.id, listener] {
            rdma_destroy_ep(id);
        }
        for (qp, srq, cq) in [near_own, far_own] {
            assert_eq!((ibv_destroy_qp(qp), ibv_destroy_srq(srq), ibv_destroy_cq(cq)), (0, 0, 0));
        }
    }
}

#[test]
fn two_ids_connect_exchange_message_and_disconnect() {
    let connected = connected();
    let (to, from) = (region(connected.far, &[0; 32]), region(connected.near, &[7; 32]));
    // SAFETY: the ids and their QPs are not destroyed yet.
    unsafe {
        receive((*connected.far).qp, null_mut(), &to);
        send((*connected.near).qp, &from, 0);
        assert_eq!(completion((*connected.near).send_cq).status, IBV_WC_SUCCESS);
        let received = completion((*connected.far).recv_cq);
        assert_eq!((received.status, received.byte_len), (IBV_WC_SUCCESS, 32));
        assert_eq!(to.bytes, from.bytes);

        call(|| rdma_disconnect(connected.near)).unwrap();
        assert_eq!(state_of((*connected.near).qp), IBV_QPS_ERR);
        connected.near_channel.expect(RDMA_CM_EVENT_DISCONNECTED);
        connected.far_channel.expect(RDMA_CM_EVENT_DISCONNECTED);
        // The DREQ does not change the QP, because the program may still take messages that have arrived.
        assert_eq!(state_of((*connected.far).qp), IBV_QPS_RTS);
        // The other side disconnects as well, but gets no second event.
        call(|| rdma_disconnect(connected.far)).unwrap();
        assert_eq!(state_of((*connected.far).qp), IBV_QPS_ERR);
        connected.near_channel.expect(RDMA_CM_EVENT_TIMEWAIT_EXIT);
        connected.far_channel.expect(RDMA_CM_EVENT_TIMEWAIT_EXIT);
        call(|| rdma_disconnect(connected.far)).unwrap();
        call(|| rdma_disconnect(connected.near)).unwrap();
    }
    assert!(!connected.near_channel.is_readable(Duration::ZERO));
    assert!(!connected.far_channel.is_readable(Duration::ZERO));
    drop((to, from));
    connected.destroy();
}

#[test]
fn program_with_its_own_qp_establishes_connection() {
    let (near_channel, far_channel) = (Channel::new(), Channel::new());
    let (listener, at) = far_channel.listener(address(), RDMA_PS_TCP);
    let near = near_channel.resolved(address(), at, RDMA_PS_TCP);
    let bring_up = |id: *mut rdma_cm_id, qp: *mut ibv_qp, states: &[u32]| {
        for state in states {
            let mut attributes = ibv_qp_attr { qp_state: *state, ..ibv_qp_attr::default() };
            let mut mask = 0;
            // SAFETY: all arguments are alive during the call.
            unsafe {
                call(|| rdma_init_qp_attr(id, &raw mut attributes, &raw mut mask)).unwrap();
                assert_eq!(ibv_modify_qp(qp, &raw mut attributes, mask), 0, "to {state}");
            }
        }
    };
    let all = [IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS];
    let (near_qp, near_srq, near_cq) = own_qp(near);
    // SAFETY: the QP is not destroyed yet.
    let number = |qp: *mut ibv_qp| unsafe { (*qp).qp_num };
    connect(near, &mut rdma_conn_param { qp_num: number(near_qp), ..with(b"") }).unwrap();
    let asked = far_channel.expect(RDMA_CM_EVENT_CONNECT_REQUEST);
    let (far_qp, far_srq, far_cq) = own_qp(asked.id);
    bring_up(asked.id, far_qp, &all);
    accept(asked.id, &mut rdma_conn_param { qp_num: number(far_qp), ..with(b"here") }).unwrap();
    let reply = near_channel.expect(RDMA_CM_EVENT_CONNECT_RESPONSE);
    assert_eq!(reply.qp_num, number(far_qp));
    assert!(reply.private_data.starts_with(b"here"));
    bring_up(near, near_qp, &all);
    // SAFETY: the id is not destroyed yet.
    call(|| unsafe { rdma_establish(near) }).unwrap();
    far_channel.expect(RDMA_CM_EVENT_ESTABLISHED);
    let (to, from) = (region(asked.id, &[0; 8]), region(near, b"abcdefgh"));
    receive(null_mut(), far_srq, &to);
    send(near_qp, &from, 0);
    assert_eq!(completion(near_cq).status, IBV_WC_SUCCESS);
    assert_eq!(completion(far_cq).status, IBV_WC_SUCCESS);
    assert_eq!(to.bytes, from.bytes);
    destroy(near);
    far_channel.expect(RDMA_CM_EVENT_DISCONNECTED);
    destroy(asked.id);
    destroy(listener);
    drop((to, from));
    for (qp, srq, cq) in [(near_qp, near_srq, near_cq), (far_qp, far_srq, far_cq)] {
        // SAFETY: they are not used after this.
        unsafe { assert_eq!((ibv_destroy_qp(qp), ibv_destroy_srq(srq), ibv_destroy_cq(cq)), (0, 0, 0)) };
    }
}

#[test]
fn rejections_report_their_reason() {
    let (near_channel, far_channel) = (Channel::new(), Channel::new());
    let (listener, at) = far_channel.listener(address(), RDMA_PS_TCP);
    let near = near_channel.resolved(address(), at, RDMA_PS_TCP);
    create_qp(near);
    connect(near, &mut with(b"")).unwrap();
    let asked = far_channel.expect(RDMA_CM_EVENT_CONNECT_REQUEST);
    // SAFETY: the id is not destroyed yet, and the text is static.
    call(|| unsafe { rdma_reject(asked.id, b"no".as_ptr().cast(), 2) }).unwrap();
    let refused = near_channel.expect(RDMA_CM_EVENT_REJECTED);
    assert_eq!(refused.status, 28);
    assert!(refused.private_data.starts_with(b"no") && refused.private_data.len() == 148);
    // SAFETY: the id is not destroyed yet.
    unsafe { assert_eq!(state_of((*near).qp), IBV_QPS_ERR) };
    destroy(asked.id);

    // A request is also rejected if its id is destroyed, or if there is no listener.
    let second = near_channel.resolved(address(), at, RDMA_PS_TCP);
    create_qp(second);
    connect(second, &mut with(b"")).unwrap();
    destroy(far_channel.expect(RDMA_CM_EVENT_CONNECT_REQUEST).id);
    assert_eq!(near_channel.expect(RDMA_CM_EVENT_REJECTED).status, 28);

    destroy(listener);
    let third = near_channel.resolved(address(), at, RDMA_PS_TCP);
    create_qp(third);
    connect(third, &mut with(b"")).unwrap();
    assert_eq!(near_channel.expect(RDMA_CM_EVENT_REJECTED).status, 8, "there is no listener");
    for id in [near, second, third] {
        // SAFETY: the id is not destroyed yet.
        unsafe { rdma_destroy_qp(id) };
        destroy(id);
    }
}

#[test]
fn request_to_unbound_address_is_repeated_before_rejection() {
    let channel = Channel::new();
    let id = channel.resolved(address(), std::net::SocketAddrV4::new(address(), 9), RDMA_PS_TCP);
    create_qp(id);
    let began = std::time::Instant::now();
    connect(id, &mut with(b"")).unwrap();
    assert_eq!(channel.expect(RDMA_CM_EVENT_REJECTED).status, 8);
    assert!(began.elapsed() >= Duration::from_millis(525), "a server may be starting");
    // SAFETY: the id is not destroyed yet.
    unsafe { rdma_destroy_qp(id) };
    destroy(id);
}

#[test]
fn silent_peer_is_unreachable() {
    let channel = Channel::new();
    // The socket prevents the device from refusing requests.
    let at = address();
    let _unread = std::net::UdpSocket::bind((at, 4791)).unwrap();
    let id = channel.resolved(address(), std::net::SocketAddrV4::new(at, 9), RDMA_PS_TCP);
    create_qp(id);
    connect(id, &mut with(b"")).unwrap();
    assert_eq!(channel.expect(RDMA_CM_EVENT_UNREACHABLE).status, -libc::ETIMEDOUT);
    // SAFETY: the id is not destroyed yet.
    unsafe { rdma_destroy_qp(id) };
    destroy(id);
}

#[test]
fn id_migrates_with_its_events() {
    let (first, second) = (Channel::new(), Channel::new());
    let id = first.id(RDMA_PS_TCP);
    let (mut source, mut destination) = (c_address(address(), 0), c_address(address(), 7));
    // SAFETY: the id and the channels are not destroyed yet, and the addresses are local.
    unsafe {
        call(|| rdma_resolve_addr(id, (&raw mut source).cast(), (&raw mut destination).cast(), 0)).unwrap();
        assert!(first.is_readable(BOUND));
        call(|| rdma_migrate_id(id, second.0)).unwrap();
        assert!(!first.is_readable(Duration::ZERO));
        assert_eq!((*id).channel, second.0);
        second.expect(RDMA_CM_EVENT_ADDR_RESOLVED);
        // Without a channel, the id becomes synchronous. A second call without a channel is refused.
        call(|| rdma_migrate_id(id, null_mut())).unwrap();
        call(|| rdma_resolve_route(id, 2000)).unwrap();
        assert_eq!(copy((*id).event).kind, RDMA_CM_EVENT_ROUTE_RESOLVED);
        assert_eq!(call(|| rdma_migrate_id(id, null_mut())), Err(libc::EINVAL));
        call(|| rdma_migrate_id(id, first.0)).unwrap();
        assert!((*id).event.is_null());
    }
    destroy(id);
}

#[test]
fn channel_blocks_unless_its_descriptor_is_non_blocking() {
    let channel = Channel::new();
    let mut event = null_mut();
    // SAFETY: the channel is not destroyed yet.
    unsafe {
        let flags = libc::fcntl(channel.fd(), libc::F_GETFL);
        assert_eq!(flags & libc::O_NONBLOCK, 0, "blocking is the default");
        assert_eq!(libc::fcntl(channel.fd(), libc::F_SETFL, flags | libc::O_NONBLOCK), 0);
        assert_eq!(call(|| rdma_get_cm_event(channel.0, &raw mut event)), Err(libc::EAGAIN));
        assert_eq!(libc::fcntl(channel.fd(), libc::F_SETFL, flags), 0);
    }
    let id = channel.id(RDMA_PS_TCP);
    let waiting = channel.0.expose_provenance();
    let waiter = std::thread::spawn(move || {
        let mut event = null_mut();
        // SAFETY: the channel is destroyed after this thread is connected.
        unsafe {
            let channel = std::ptr::with_exposed_provenance_mut(waiting);
            call(|| rdma_get_cm_event(channel, &raw mut event)).unwrap();
            let kind = copy(event).kind;
            call(|| rdma_ack_cm_event(event)).unwrap();
            kind
        }
    });
    let (mut source, mut destination) = (c_address(address(), 0), c_address(address(), 7));
    // SAFETY: the id is not destroyed yet, and the addresses are local.
    unsafe {
        call(|| rdma_resolve_addr(id, (&raw mut source).cast(), (&raw mut destination).cast(), 0)).unwrap();
    }
    assert_eq!(waiter.join().unwrap(), RDMA_CM_EVENT_ADDR_RESOLVED);
    destroy(id);
}

#[test]
fn destroying_id_waits_for_acknowledgement_of_its_events() {
    let channel = Channel::new();
    let id = channel.id(RDMA_PS_TCP);
    let (mut source, mut destination) = (c_address(address(), 0), c_address(address(), 7));
    // SAFETY: the id is not destroyed yet, and the addresses are local.
    unsafe {
        call(|| rdma_resolve_addr(id, (&raw mut source).cast(), (&raw mut destination).cast(), 0)).unwrap();
    }
    let event = channel.unacknowledged();
    let address = id.expose_provenance();
    let (done, ended) = std::sync::mpsc::channel();
    let destroyer = std::thread::spawn(move || {
        destroy(std::ptr::with_exposed_provenance_mut(address));
        done.send(()).unwrap();
    });
    assert!(ended.recv_timeout(Duration::from_millis(200)).is_err(), "the event is not acknowledged");
    // SAFETY: the event is not used after this.
    call(|| unsafe { rdma_ack_cm_event(event) }).unwrap();
    ended.recv_timeout(BOUND).unwrap();
    destroyer.join().unwrap();
}

#[test]
fn listener_at_every_address_has_no_device() {
    let (near_channel, far_channel) = (Channel::new(), Channel::new());
    let id = far_channel.id(RDMA_PS_TCP);
    let mut everywhere = c_address(Ipv4Addr::UNSPECIFIED, 0);
    // SAFETY: the id is not destroyed yet, and the address is local.
    unsafe {
        call(|| rdma_bind_addr(id, (&raw mut everywhere).cast())).unwrap();
        assert_ne!(rdma_get_src_port(id), 0);
        assert!((*id).verbs.is_null() && (*id).pd.is_null());
        // Another id cannot bind to the same port unless both ids reuse the address.
        let other = near_channel.id(RDMA_PS_TCP);
        let mut same = c_address(address(), u16::from_be(rdma_get_src_port(id)));
        assert_eq!(call(|| rdma_bind_addr(other, (&raw mut same).cast())), Err(libc::EADDRNOTAVAIL));
        destroy(other);
        let mut init = small(IBV_QPT_RC);
        assert_eq!(call(|| rdma_create_qp(id, null_mut(), &raw mut init)), Err(libc::EINVAL));
        let mut asked = null_mut();
        assert_eq!(call(|| rdma_get_request(id, &raw mut asked)), Err(libc::EINVAL), "it is asynchronous");
    }
    destroy(id);
}

#[test]
fn localhost_shows_device_unless_listed_addresses_omit_it() {
    const NAMED: &str = "TRUNKLINE_ADDRESS";
    let channel = Channel::new();
    let (id, mut at) = (channel.id(RDMA_PS_TCP), c_address(Ipv4Addr::LOCALHOST, 0));
    // SAFETY: the id is not destroyed yet, and the address is local.
    unsafe {
        call(|| rdma_bind_addr(id, (&raw mut at).cast())).unwrap();
        let is_shown = std::env::var_os(NAMED).is_none();
        assert_eq!((!(*id).verbs.is_null(), !(*id).pd.is_null()), (is_shown, is_shown));
        assert_ne!(rdma_get_src_port(id), 0);
        destroy(id);
        if !is_shown {
            return;
        }
    }
    let name = "localhost_shows_device_unless_listed_addresses_omit_it";
    let again = same_test(module_path!(), name).env(NAMED, address().to_string()).output().unwrap();
    let printed = String::from_utf8_lossy(&again.stdout);
    assert!(again.status.success() && printed.contains("1 passed"), "{printed}");
}

#[test]
fn options_are_checked() {
    let channel = Channel::new();
    let id = channel.id(RDMA_PS_TCP);
    let set = |level: c_int, name: c_int, bytes: &mut [u8]| {
        // SAFETY: the id is not destroyed yet, and the bytes are local.
        call(|| unsafe { rdma_set_option(id, level, name, bytes.as_mut_ptr().cast(), bytes.len()) })
    };
    assert_eq!(set(0, RDMA_OPTION_ID_TOS, &mut [8]), Ok(()));
    assert_eq!(set(0, RDMA_OPTION_ID_TOS, &mut [8, 0]), Err(libc::EINVAL));
    assert_eq!(set(0, RDMA_OPTION_ID_REUSEADDR, &mut 1_i32.to_ne_bytes()), Ok(()));
    assert_eq!(set(0, RDMA_OPTION_ID_AFONLY, &mut 1_i32.to_ne_bytes()), Ok(()));
    assert_eq!(set(0, RDMA_OPTION_ID_ACK_TIMEOUT, &mut [14]), Ok(()));
    assert_eq!(set(0, RDMA_OPTION_ID_ACK_TIMEOUT, &mut [32]), Err(libc::EINVAL));
    assert_eq!(set(0, 9, &mut [1]), Err(libc::ENOSYS));
    assert_eq!(set(1, 1, &mut [1]), Err(libc::EOPNOTSUPP));
    destroy(id);
}

#[test]
fn unsupported_functions_fail_as_documented() {
    assert_eq!(call(|| rsocket(libc::AF_INET, libc::SOCK_STREAM, 0)), Err(libc::EOPNOTSUPP));
    assert_eq!(call(|| rclose(0)), Err(libc::EBADF));
    assert_eq!(call(|| rdma_join_multicast(null_mut(), null_mut(), null_mut())), Err(libc::EOPNOTSUPP));
    let channel = Channel::new();
    let mut id = null_mut();
    // SAFETY: the channel is not destroyed yet.
    let made = call(|| unsafe { rdma_create_id(channel.0, &raw mut id, null_mut(), RDMA_PS_IPOIB) });
    assert_eq!(made, Err(libc::EOPNOTSUPP));
    // SAFETY: null is allowed, and refused.
    assert_eq!(call(|| unsafe { rdma_destroy_id(null_mut()) }), Err(libc::EINVAL));
}
