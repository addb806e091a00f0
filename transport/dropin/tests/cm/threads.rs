//! Tests in which one thread serves with epoll and many threads connect with librdmacm's functions.

use super::lab::*;
use std::ffi::c_int;
use std::mem::ManuallyDrop;
use std::net::SocketAddrV4;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::spawn;
use std::time::Instant;
use trunkline_dropin::abi::*;
use trunkline_dropin::cm::*;

const CLIENTS: usize = 3;
const ROUNDS: usize = 6;

/// Connects, sends a message and disconnects, with new objects each time.
fn connect_repeatedly(to: SocketAddrV4) {
    let channel = Channel::new();
    for round in 0..ROUNDS {
        let id = channel.resolved(address(), to, RDMA_PS_TCP);
        create_qp(id);
        connect(id, &mut with(b"")).unwrap();
        channel.expect(RDMA_CM_EVENT_ESTABLISHED);
        let region = region(id, &[u8::try_from(round).unwrap(); 24]);
        // SAFETY: the id and its QP are not destroyed yet.
        unsafe {
            send((*id).qp, &region, 0);
            assert_eq!(completion((*id).send_cq).status, IBV_WC_SUCCESS);
            call(|| rdma_disconnect(id)).unwrap();
            channel.expect(RDMA_CM_EVENT_DISCONNECTED);
            rdma_destroy_qp(id);
        }
        drop(region);
        // The time-wait state may end before or after the destruction of the id.
        destroy(id);
    }
}

/// Returns an epoll descriptor that monitors the channel's descriptor.
fn epoll_on(channel: &Channel) -> i32 {
    let mut event = libc::epoll_event { events: libc::EPOLLIN.cast_unsigned(), u64: 7 };
    // SAFETY: the descriptors are open.
    unsafe {
        let epoll = libc::epoll_create1(libc::EPOLL_CLOEXEC);
        assert_eq!(libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, channel.fd(), &raw mut event), 0);
        let flags = libc::fcntl(channel.fd(), libc::F_GETFL);
        assert_eq!(libc::fcntl(channel.fd(), libc::F_SETFL, flags | libc::O_NONBLOCK), 0);
        epoll
    }
}

#[test]
fn many_threads_connect_to_one_epoll_thread() {
    let channel = Channel::new();
    let (listener, at) = channel.listener(address(), RDMA_PS_TCP);
    let epoll = epoll_on(&channel);
    let clients: Vec<_> = (0..CLIENTS).map(|_| spawn(move || connect_repeatedly(at))).collect();
    let (mut asked, mut established, mut disconnected) = (0, 0, 0);
    let mut regions = std::collections::HashMap::new();
    while disconnected < CLIENTS * ROUNDS {
        let mut ready = libc::epoll_event { events: 0, u64: 0 };
        // SAFETY: the array has room for one event.
        let count = unsafe { libc::epoll_wait(epoll, &raw mut ready, 1, 60_000) };
        assert_eq!(count, 1, "asked {asked}, established {established}, disconnected {disconnected}");
        loop {
            let mut event = null_mut();
            // SAFETY: the channel is not destroyed yet.
            match call(|| unsafe { rdma_get_cm_event(channel.0, &raw mut event) }) {
                Err(libc::EAGAIN) => break,
                other => other.unwrap(),
            }
            let taken = copy(event);
            // SAFETY: the event is not used after this.
            call(|| unsafe { rdma_ack_cm_event(event) }).unwrap();
            match taken.kind {
                RDMA_CM_EVENT_CONNECT_REQUEST => {
                    asked += 1;
                    create_qp(taken.id);
                    let region = region(taken.id, &[0; 24]);
                    // SAFETY: the id and its QP are not destroyed yet.
                    receive(unsafe { (*taken.id).qp }, null_mut(), &region);
                    regions.insert(taken.id, region);
                    accept(taken.id, &mut with(b"")).unwrap();
                }
                RDMA_CM_EVENT_ESTABLISHED => established += 1,
                RDMA_CM_EVENT_DISCONNECTED => {
                    disconnected += 1;
                    // SAFETY: the id and its QP are not destroyed yet.
                    unsafe {
                        assert_eq!(completion((*taken.id).recv_cq).status, IBV_WC_SUCCESS);
                        rdma_destroy_qp(taken.id);
                    }
                    let region = regions.remove(&taken.id).unwrap();
                    assert!(region.bytes.iter().all(|byte| *byte == region.bytes[0]));
                    drop(region);
                    destroy(taken.id);
                }
                RDMA_CM_EVENT_TIMEWAIT_EXIT => {}
                _ => panic!("{taken:?}"),
            }
        }
    }
    assert_eq!((asked, established), (CLIENTS * ROUNDS, CLIENTS * ROUNDS));
    for client in clients {
        client.join().unwrap();
    }
    destroy(listener);
    // SAFETY: the test has opened the descriptor.
    unsafe { libc::close(epoll) };
}

#[test]
fn destroyed_listener_leaves_no_events_in_its_channel() {
    let (near_channel, far_channel) = (Channel::new(), Channel::new());
    let (listener, at) = far_channel.listener(address(), RDMA_PS_TCP);
    let near = near_channel.resolved(address(), at, RDMA_PS_TCP);
    create_qp(near);
    connect(near, &mut with(b"")).unwrap();
    assert!(far_channel.is_readable(BOUND));
    destroy(listener);
    assert!(!far_channel.is_readable(std::time::Duration::ZERO), "a blocking reader would hang");
    assert_eq!(near_channel.expect(RDMA_CM_EVENT_REJECTED).status, 28);
    // SAFETY: the id is not destroyed yet.
    unsafe { rdma_destroy_qp(near) };
    destroy(near);
}

/// State of a thread that waits for an event, as seen by other threads.
#[derive(Default)]
struct Waiter {
    /// Thread id, or 0 before the thread waits for an event.
    thread: AtomicI32,
    /// Result of the call after it has returned.
    result: OnceLock<Result<(), c_int>>,
}

impl Waiter {
    /// Waits for an event. The thread that gets the event destroys the id and then the channel, while other threads wait or
    /// are about to wait again.
    fn wait(&self, channel: &AtomicPtr<rdma_event_channel>) {
        let (channel, mut event) = (channel.load(Ordering::SeqCst), null_mut());
        // SAFETY: `gettid` has no preconditions.
        self.thread.store(unsafe { libc::gettid() }, Ordering::SeqCst);
        // SAFETY: the channel is destroyed only when all threads wait for its events.
        let result = call(|| unsafe { rdma_get_cm_event(channel, &raw mut event) });
        if result.is_ok() {
            let id = copy(event).id;
            // SAFETY: neither the event nor the channel is used after this.
            unsafe {
                call(|| rdma_ack_cm_event(event)).unwrap();
                destroy(id);
                rdma_destroy_event_channel(channel);
            }
        }
        self.result.set(result).unwrap();
    }

    /// Returns true if the thread sleeps. After it has stored its id, it sleeps only in the call.
    fn is_asleep(&self) -> bool {
        let stat = format!("/proc/self/task/{}/stat", self.thread.load(Ordering::SeqCst));
        std::fs::read_to_string(stat).is_ok_and(|stat| stat.contains(") S "))
    }
}

#[test]
fn threads_keep_waiting_when_their_channel_is_destroyed() {
    for _ in 0..6 {
        let channel = ManuallyDrop::new(Channel::new());
        let id = channel.id(RDMA_PS_TCP);
        let pointer = Arc::new(AtomicPtr::new(channel.0));
        let waiters: Vec<Arc<Waiter>> = (0..8).map(|_| Arc::default()).collect();
        for waiter in &waiters {
            let (waiter, pointer) = (Arc::clone(waiter), Arc::clone(&pointer));
            // The thread is never joined, because it waits until the process exits.
            spawn(move || waiter.wait(&pointer));
        }
        let until = Instant::now() + BOUND;
        let in_time = |what: &str| {
            assert!(Instant::now() < until, "{what}");
            std::thread::yield_now();
        };
        while !waiters.iter().all(|waiter| waiter.is_asleep()) {
            in_time("not all wait");
        }
        let mut at = c_address(address(), 0);
        // SAFETY: the id is not destroyed yet, and the addresses are local.
        call(|| unsafe { rdma_resolve_addr(id, (&raw mut at).cast(), (&raw mut at).cast(), 2000) }).unwrap();
        // All threads are woken, but only one gets the event.
        while !waiters.iter().any(|waiter| waiter.result.get().is_some()) {
            in_time("no thread got the event");
        }
        while !waiters.iter().all(|waiter| waiter.result.get().is_some() || waiter.is_asleep()) {
            in_time("some neither wait nor are back");
        }
        let results: Vec<_> = waiters.iter().filter_map(|waiter| waiter.result.get()).collect();
        assert_eq!(results, [&Ok(())], "the others wait for a destroyed channel");
    }
}
