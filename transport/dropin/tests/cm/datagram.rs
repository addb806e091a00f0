//! Ids in port space UDP, which resolve a service to a QP number without a connection.

use super::lab::*;
use std::ffi::c_int;
use std::net::SocketAddrV4;
use std::ptr::null_mut;
use std::thread::spawn;
use std::time::Duration;
use trunkline_dropin::abi::*;
use trunkline_dropin::cm::*;

/// `ib_cm_sidr_status` of Linux.
const UNSUPPORTED: c_int = 1;
const REJECTED: c_int = 2;

/// A copy of an event of a datagram id.
struct DatagramEvent {
    copy: EventCopy,
    address: ibv_ah_attr,
    qp_num: u32,
    qkey: u32,
}

fn next(channel: &Channel, kind: u32) -> DatagramEvent {
    let event = channel.unacknowledged();
    let copy = copy(event);
    assert_eq!(copy.kind, kind, "{copy:?}");
    // SAFETY: the event is not acknowledged yet, and not used after that.
    unsafe {
        let ud = (*event).param.ud;
        call(|| rdma_ack_cm_event(event)).unwrap();
        DatagramEvent { copy, address: ud.ah_attr, qp_num: ud.qp_num, qkey: ud.qkey }
    }
}

fn with_qp(qp_num: u32, private_data: &[u8]) -> rdma_conn_param {
    rdma_conn_param { qp_num, ..with(private_data) }
}

#[test]
fn id_resolves_service_to_qp_number() {
    let (near_channel, far_channel, third_channel) = (Channel::new(), Channel::new(), Channel::new());
    let (here, there) = (address(), address());
    let (listener, at) = far_channel.listener(there, RDMA_PS_UDP);
    let near = near_channel.resolved(here, at, RDMA_PS_UDP);
    // SAFETY: the ids are not destroyed yet.
    unsafe {
        assert_eq!(((*near).ps, (*near).qp_type), (RDMA_PS_UDP, IBV_QPT_UD));
        assert_eq!(call(|| rdma_disconnect(near)), Err(libc::EINVAL), "no request was sent yet");
    }
    connect(near, &mut with(b"which")).unwrap();
    let asked = next(&far_channel, RDMA_CM_EVENT_CONNECT_REQUEST);
    assert_eq!((asked.copy.listener, asked.copy.status), (listener, 0));
    assert_eq!((asked.copy.private_data.len(), &asked.copy.private_data[..6]), (180, b"which\0".as_slice()));
    assert_eq!((asked.qp_num, asked.qkey), (0, 0));
    let far = asked.copy.id;
    // SAFETY: the ids are not destroyed yet.
    unsafe {
        assert_eq!(((*far).ps, (*far).qp_type), (RDMA_PS_UDP, IBV_QPT_UD));
        assert!(!(*far).verbs.is_null() && !(*far).pd.is_null());
        assert_eq!(u16::from_be(rdma_get_src_port(far)), at.port());
        assert_eq!(rdma_get_dst_port(far), rdma_get_src_port(near));
        call(|| rdma_migrate_id(far, third_channel.0)).unwrap();
    }
    accept(far, &mut with_qp(0x4711, b"this")).unwrap();
    let reply = next(&near_channel, RDMA_CM_EVENT_ESTABLISHED);
    assert_eq!((reply.copy.id, reply.copy.status), (near, 0));
    assert_eq!((reply.qp_num, reply.qkey), (0x4711, 0x0123_4567));
    assert_eq!((reply.copy.private_data.len(), &reply.copy.private_data[..5]), (136, b"this\0".as_slice()));
    let [a, b, c, d] = there.octets();
    assert_eq!(reply.address.grh.dgid.raw, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d]);
    assert_eq!((reply.address.is_global, reply.address.port_num), (1, 1));
    // SAFETY: the ids are not destroyed yet.
    unsafe {
        // The call succeeds without a connection, and no event follows.
        call(|| rdma_disconnect(near)).unwrap();
        call(|| rdma_disconnect(far)).unwrap();
    }
    assert_eq!(connect(near, &mut with(b"")), Err(libc::EINVAL), "an id sends one request");
    for channel in [&near_channel, &far_channel, &third_channel] {
        assert!(!channel.is_readable(Duration::ZERO));
    }
    for id in [near, far, listener] {
        destroy(id);
    }
}

#[test]
fn datagram_rejection_is_reported_as_unreachable_with_status() {
    let (near_channel, far_channel) = (Channel::new(), Channel::new());
    let (listener, at) = far_channel.listener(address(), RDMA_PS_UDP);
    let near = near_channel.resolved(address(), at, RDMA_PS_UDP);
    connect(near, &mut with(b"")).unwrap();
    let far = next(&far_channel, RDMA_CM_EVENT_CONNECT_REQUEST).copy.id;
    // SAFETY: the id is not destroyed yet, and the bytes are static.
    call(|| unsafe { rdma_reject(far, b"no".as_ptr().cast(), 2) }).unwrap();
    let refused = next(&near_channel, RDMA_CM_EVENT_UNREACHABLE).copy;
    assert_eq!((refused.status, &refused.private_data[..3]), (REJECTED, b"no\0".as_slice()));
    // Destroying a request's id rejects the request.
    let second = near_channel.resolved(address(), at, RDMA_PS_UDP);
    connect(second, &mut with(b"")).unwrap();
    destroy(next(&far_channel, RDMA_CM_EVENT_CONNECT_REQUEST).copy.id);
    assert_eq!(next(&near_channel, RDMA_CM_EVENT_UNREACHABLE).copy.status, REJECTED);
    // As in the kernel, the request is rejected if the reply cannot be sent.
    let third = near_channel.resolved(address(), at, RDMA_PS_UDP);
    connect(third, &mut with(b"")).unwrap();
    let asked = next(&far_channel, RDMA_CM_EVENT_CONNECT_REQUEST).copy.id;
    assert_eq!(accept(asked, &mut with_qp(9, &[7; 137])), Err(libc::EINVAL));
    assert_eq!(next(&near_channel, RDMA_CM_EVENT_UNREACHABLE).copy.status, REJECTED);
    for id in [near, second, third, far, asked, listener] {
        destroy(id);
    }
    // The listener is destroyed. A listener in another port space is a different service.
    let other = far_channel.id(RDMA_PS_TCP);
    let mut c_at = c_address(*at.ip(), at.port());
    // SAFETY: the id is not destroyed yet, and the address is local.
    unsafe {
        call(|| rdma_bind_addr(other, (&raw mut c_at).cast())).unwrap();
        call(|| rdma_listen(other, 1)).unwrap();
    }
    let third = near_channel.resolved(address(), at, RDMA_PS_UDP);
    connect(third, &mut with(b"")).unwrap();
    assert_eq!(next(&near_channel, RDMA_CM_EVENT_UNREACHABLE).copy.status, UNSUPPORTED);
    destroy(third);
    destroy(other);
}

#[test]
fn synchronous_ids_wait_for_reply() {
    let synchronous = || {
        let mut id = null_mut();
        // SAFETY: a null channel is allowed, and the result is local.
        call(|| unsafe { rdma_create_id(null_mut(), &raw mut id, null_mut(), RDMA_PS_UDP) }).unwrap();
        id
    };
    let ip = address();
    let (listener, mut at) = (synchronous(), c_address(ip, 0));
    // SAFETY: the id is not destroyed yet, and the address is local.
    let port = unsafe {
        call(|| rdma_bind_addr(listener, (&raw mut at).cast())).unwrap();
        call(|| rdma_listen(listener, 2)).unwrap();
        u16::from_be(rdma_get_src_port(listener))
    };
    let initiator = spawn(move || {
        let to = SocketAddrV4::new(ip, port);
        [Ok(()), Err(REJECTED)].map(|expected| {
            let id = synchronous();
            let mut destination = c_address(*to.ip(), to.port());
            // SAFETY: the id is not destroyed yet, and the address is local.
            unsafe {
                call(|| rdma_resolve_addr(id, null_mut(), (&raw mut destination).cast(), 2000)).unwrap();
                call(|| rdma_resolve_route(id, 2000)).unwrap();
            }
            assert_eq!(connect(id, &mut with(b"sync")), expected);
            // SAFETY: the id keeps the event of its last call.
            unsafe {
                let event = (*id).event;
                assert_eq!((*event).param.ud.private_data_len, 136);
                if expected.is_ok() {
                    assert_eq!((*event).param.ud.qp_num, 77);
                }
            }
            destroy(id);
        })
    });
    for accepts in [true, false] {
        let mut request = null_mut();
        // SAFETY: the listener is not destroyed yet.
        call(|| unsafe { rdma_get_request(listener, &raw mut request) }).unwrap();
        if accepts {
            // No event follows, so the call does not wait.
            accept(request, &mut with_qp(77, b"")).unwrap();
        } else {
            // SAFETY: the id is not destroyed yet.
            call(|| unsafe { rdma_reject(request, null_mut(), 0) }).unwrap();
        }
        destroy(request);
    }
    initiator.join().unwrap();
    destroy(listener);
}

#[test]
fn datagram_ids_have_no_qps() {
    let channel = Channel::new();
    let far_channel = Channel::new();
    let (listener, at) = far_channel.listener(address(), RDMA_PS_UDP);
    let id = channel.resolved(address(), at, RDMA_PS_UDP);
    for (qp_type, errno) in [(IBV_QPT_UD, libc::EOPNOTSUPP), (IBV_QPT_RC, libc::EINVAL)] {
        let mut init = small(qp_type);
        // SAFETY: the id is not destroyed yet, and the attributes are local.
        let result = call(|| unsafe { rdma_create_qp(id, null_mut(), &raw mut init) });
        assert_eq!(result, Err(errno));
        // SAFETY: the id is not destroyed yet.
        assert!(unsafe { (*id).qp.is_null() && (*id).send_cq.is_null() });
    }
    destroy(id);
    destroy(listener);
}
