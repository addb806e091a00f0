//! Two devices with their own threads, whose programs poll, sleep, or do neither.
//!
//! The conformance suite covers the verbs. These tests cover features that only a device with its own threads
//! has.

use crate::common;
use crate::common::node::{BOUND, Node, READS, connect, connect_at, post, wait_readable};
use std::sync::Arc;
use std::time::{Duration, Instant};
use trunkline_softrdma::device::SoftOptions;
use trunkline_softrdma::link::ROCE_PORT;
use trunkline_verbs::{
    CompletionOpcode, CompletionStatus, Device, Mtu, Notify, QpModify, QpState, SendData, SendFlags,
    SendOperation, SendRequest, VerbsError,
};

const MEGABYTE: u32 = 1 << 20;
/// `net.core.rmem_max` of an unconfigured Linux.
const RMEM_MAX_OF_LINUX: i32 = 212_992;

fn links() -> [(&'static str, [SoftOptions; 2]); 3] {
    let lossy = [5, 6].map(|seed| {
        let plan = format!("drop=0.02,reorder=0.02,duplicate=0.02,corrupt=0.01,seed={seed}");
        SoftOptions { faults: Some(plan.parse().unwrap()), ..common::udp() }
    });
    [("in-process", common::in_process()), ("udp", [common::udp(), common::udp()]), ("lossy udp", lossy)]
}

fn nodes(options: [SoftOptions; 2], memory_bytes: usize) -> [Node; 2] {
    options.map(|options| Node::open(options, memory_bytes))
}

/// Returns bytes that differ between consecutive packets.
fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|index| u8::try_from((index * 7 + index / 251) % 256).unwrap()).collect()
}

/// The kernel's soft RoCE and common NICs accept this depth. Programs negotiate the depth from the values that
/// both sides report.
#[test]
fn hundred_and_twenty_eight_reads_are_outstanding_at_once() {
    for (link, options) in links() {
        let [near, far] = nodes(options, 4096);
        let attributes = near.device.attributes();
        assert_eq!((attributes.max_rd_atomic, attributes.max_dest_rd_atomic), (READS, READS));
        let (ini, _tgt) = connect(&near, &far);
        far.memory.write(0, &pattern(4096)).unwrap();
        for round in 0..2_usize {
            near.memory.write(0, &[0; 4096]).unwrap();
            for index in 0..usize::from(READS) {
                let offset = (index + round) % usize::from(READS) * 32;
                post(&*ini, SendOperation::RdmaRead(far.remote(offset)), &[near.sge(offset, 32)], &*far.srq);
            }
            for index in 0..READS {
                assert_eq!(near.completion().status, CompletionStatus::Success, "{link}: READ {index}");
            }
            let mut out = vec![0; 4096];
            near.memory.read(0, &mut out).unwrap();
            assert!(out == pattern(4096), "{link}: read bytes differ");
        }
    }
}

/// Outstanding data fits in the socket's buffer. Without pacing, a tenth of the data would be lost.
#[test]
fn bulk_transfers_fit_into_default_receive_buffer_of_linux() {
    for mtu in [Mtu::Mtu256, Mtu::Mtu1024, Mtu::Mtu4096] {
        let options =
            [(); 2].map(|()| SoftOptions { receive_buffer: Some(RMEM_MAX_OF_LINUX), ..common::udp() });
        let [near, far] = nodes(options, MEGABYTE as usize);
        let (ini, _tgt) = connect_at(&near, &far, mtu);
        for operation in [SendOperation::RdmaRead(far.remote(0)), SendOperation::RdmaWrite(far.remote(0))] {
            for _ in 0..8 {
                post(&*ini, operation, &[near.sge(0, MEGABYTE)], &*far.srq);
            }
            for _ in 0..8 {
                assert_eq!(near.completion().status, CompletionStatus::Success, "{mtu:?}");
            }
            let of_both = |name| [&near, &far].map(|node| node.counter(name));
            // All outstanding packets are retransmitted if the receiver does not get CPU time for long.
            if of_both("ack_timeouts") == [0, 0] {
                let full = of_both("drop_receive_queue_full");
                assert_eq!(full, [0, 0], "{mtu:?} {operation:?}: lost at either end");
            }
        }
    }
}

#[test]
fn sleeping_receiver_is_woken() {
    for (link, options) in links() {
        let [near, far] = nodes(options, 4096);
        let (ini, _tgt) = connect(&near, &far);
        for round in 0..20 {
            far.receive(round, 0, 64);
            far.cq.request_notify(Notify::Any).unwrap();
            let mut none = [trunkline_verbs::Completion::default()];
            assert_eq!(far.cq.poll(&mut none), 0, "{link}");
            post(&*ini, SendOperation::Send, &[near.sge(0, 64)], &*far.srq);
            // The sender sleeps too, and its background thread receives the acknowledgement.
            near.cq.request_notify(Notify::Any).unwrap();
            let sent_before = near.cq.poll(&mut none);
            wait_readable(&*far.channel);
            assert_eq!(far.channel.next_event(), Some(7), "{link}");
            assert_eq!(far.completion().wr_id, round, "{link}");
            if sent_before == 0 {
                wait_readable(&*near.channel);
                assert_eq!(near.completion().status, CompletionStatus::Success, "{link}");
            }
            while near.channel.next_event().is_some() {}
        }
    }
}

#[test]
fn one_sided_work_is_served_while_target_does_not_poll() {
    for (link, options) in links() {
        let [near, far] = nodes(options, 1 << 16);
        let (ini, _tgt) = connect(&near, &far);
        far.memory.write(0, &pattern(30_000)).unwrap();
        // The far program polls for a while, so that the background thread leaves the work to it, and then
        // stops polling.
        let until = Instant::now() + Duration::from_millis(20);
        let mut none = [trunkline_verbs::Completion::default()];
        while Instant::now() < until {
            assert_eq!(far.cq.poll(&mut none), 0);
        }
        post(&*ini, SendOperation::RdmaRead(far.remote(0)), &[near.sge(0, 30_000)], &*far.srq);
        assert_eq!(near.completion().status, CompletionStatus::Success, "{link}");
        let mut out = vec![0; 30_000];
        near.memory.read(0, &mut out).unwrap();
        assert!(out == pattern(30_000), "{link}");

        let at = far.remote(40_000);
        post(&*ini, SendOperation::FetchAdd { remote: at, add: 5 }, &[near.sge(0, 8)], &*far.srq);
        post(
            &*ini,
            SendOperation::CompareSwap { remote: at, compare: 5, swap: 9 },
            &[near.sge(8, 8)],
            &*far.srq,
        );
        let first = near.completion();
        assert_eq!((first.status, first.opcode), (CompletionStatus::Success, CompletionOpcode::FetchAdd));
        assert_eq!(near.completion().status, CompletionStatus::Success);
        let words = [near.memory.load(0), near.memory.load(8), far.memory.load(40_000)];
        assert_eq!(words, [Ok(0), Ok(5), Ok(9)], "{link}");
    }
}

#[test]
fn losses_of_sender_without_polling_are_repaired() {
    // The background threads do all work, including the sender's timers and the target's responses.
    let plan = "drop=0.2,seed=11".parse().unwrap();
    let [near, far] = nodes([SoftOptions { faults: Some(plan), ..common::udp() }, common::udp()], 4096);
    let (ini, _tgt) = connect(&near, &far);
    for count in 0..200 {
        far.receive(count, 0, 16);
    }
    for _ in 0..200 {
        post(&*ini, SendOperation::Send, &[near.sge(0, 16)], &*far.srq);
    }
    for count in 0..200 {
        assert_eq!(far.completion().wr_id, count);
    }
    assert!(near.counter("retransmits") > 0, "the plan loses one in five");
}

#[test]
fn messages_from_many_threads_all_arrive() {
    let [near, far] = nodes([common::udp(), common::udp()], 4096);
    let (ini, _tgt) = connect(&near, &far);
    const EACH: u64 = 100;
    for wr_id in 0..4 * EACH {
        far.receive(wr_id, 0, 16);
    }
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..EACH {
                    let data = SendData::Inline(b"0123456789");
                    let remote_srq = far.srq.number().unwrap();
                    let operation = SendOperation::Send;
                    let request =
                        SendRequest { wr_id: 0, operation, data, flags: SendFlags::empty(), remote_srq };
                    let until = Instant::now() + BOUND;
                    while let Err(error) = ini.post_send(&[request]) {
                        assert!(matches!(error.cause, VerbsError::OutOfResources(_)), "{error}");
                        assert!(Instant::now() < until, "the queue never drains");
                        std::thread::yield_now();
                    }
                }
            });
        }
        for wr_id in 0..4 * EACH {
            assert_eq!(far.completion().wr_id, wr_id);
        }
    });
}

#[test]
fn packets_with_valid_qpn_and_psn_from_wrong_address_are_dropped() {
    // A third device uses QPN and PSN of a connection between two others.
    let [near, far] = nodes([common::udp(), common::udp()], 4096);
    let stranger = Node::open(common::udp(), 4096);
    let (_ini, tgt) = connect(&near, &far);
    let (forged, _) = connect(&stranger, &far);
    let aim = QpModify { state: Some(QpState::Reset), ..QpModify::default() };
    forged.modify(&aim).unwrap();
    common::node::bring_up(&*forged, &far, &*tgt);
    far.receive(1, 0, 64);
    post(&*forged, SendOperation::Send, &[stranger.sge(0, 64)], &*far.srq);
    let until = Instant::now() + BOUND;
    while far.counter("drop_wrong_address") == 0 {
        assert!(Instant::now() < until, "{:#?}", far.device.counters());
        std::thread::yield_now();
    }
    let mut none = [trunkline_verbs::Completion::default()];
    assert_eq!(far.cq.poll(&mut none), 0);
}

#[test]
fn dropping_last_object_releases_port() {
    let options = common::udp();
    let [near, far] = nodes([options.clone(), common::udp()], 4096);
    let (ini, _tgt) = connect(&near, &far);
    drop(near);
    // A program that is not a member of this host's registry cannot share the port.
    let bind = || std::net::UdpSocket::bind((options.addresses[0], ROCE_PORT));
    let error = bind().unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse, "the QP keeps its device");
    drop(ini);
    let stranger = bind().expect("port 4791 is free again");
    let node = Node::open(options.clone(), 64);
    let error = listen(&node).unwrap_err();
    assert!(matches!(error, VerbsError::AddressInUse(_)), "{error}");
    drop(stranger);
    listen(&node).expect("port 4791 is free again");
}

fn listen(node: &Node) -> Result<(), VerbsError> {
    node.listen((node.address, 0).into(), &node.cm_channel()).map(drop)
}

#[test]
fn messages_are_exchanged_over_ipv6() {
    let hub = trunkline_softrdma::link::Hub::new();
    let options = ["fd00::71", "fd00::72"].map(|address| SoftOptions {
        addresses: vec![address.parse().unwrap()],
        link: trunkline_softrdma::device::LinkChoice::InProcess(Arc::clone(&hub)),
        ..SoftOptions::default()
    });
    let [near, far] = nodes(options, 4096);
    let (ini, _tgt) = connect(&near, &far);
    far.receive(1, 0, 64);
    post(&*ini, SendOperation::Send, &[near.sge(0, 64)], &*far.srq);
    assert_eq!(far.completion().status, CompletionStatus::Success);

    // A device connects two of its own QPs at ::1 over a real socket.
    let alone =
        Node::open(SoftOptions { addresses: vec!["::1".parse().unwrap()], ..SoftOptions::default() }, 4096);
    if let Err(error @ VerbsError::AddressInUse(_)) = listen(&alone) {
        println!("SKIPPED ::1 over UDP: {error}");
        return;
    }
    let (ini, _tgt) = connect(&alone, &alone);
    alone.receive(1, 0, 64);
    post(&*ini, SendOperation::Send, &[alone.sge(64, 64)], &*alone.srq);
    let both = [alone.completion(), alone.completion()];
    assert!(both.iter().all(|completion| completion.status.is_success()), "{both:?}");
}
