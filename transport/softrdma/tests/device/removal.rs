//! Removal of a device while it is in use, and its restoration (contract I5).

use crate::common;
use crate::common::node::{Node, connect, next_event, post, wait_readable, when_free};
use std::net::SocketAddr;
use trunkline_softrdma::device::{OpenError, Slot, SoftDevice, SoftOptions, put_back, take_away};
use trunkline_verbs::{
    Access, AsyncEventKind, CmEventKind, Completion, CompletionStatus, CqInit, Device, EndpointRequest,
    EndpointSide, Memory, PortSpace, QpModify, QpState, QpType, ReceiveRequest, SendData, SendFlags,
    SendOperation, SendRequest, VerbsError, XrcdFlags,
};

/// Opens two devices. The first can be removed through the returned slot.
fn pair(options: [SoftOptions; 2]) -> (Slot, SoftOptions, Node, Node) {
    let slot = Slot::new();
    let [near, far] = options;
    let near = SoftOptions { slot: Some(slot.clone()), ..near };
    (slot, near.clone(), Node::open(near, 4096), Node::open(far, 4096))
}

fn links() -> [[SoftOptions; 2]; 2] {
    [common::in_process(), [common::udp(), common::udp()]]
}

#[test]
fn i5_calls_on_removed_device_return_gone() {
    for options in links() {
        let (slot, again, near, far) = pair(options);
        let (ini, _tgt) = connect(&near, &far);
        let own = near.qp(QpType::XrcTgt);
        far.receive(1, 0, 64);
        let mut buffer = near.sge(0, 8);
        post(&*ini, SendOperation::Send, &[buffer], &*far.srq);
        assert_eq!(near.completion().status, CompletionStatus::Success);

        slot.remove();
        wait_readable(&near.device.async_event_fd());
        let event = near.device.next_async_event().map(|event| event.kind);
        assert_eq!(event, Some(AsyncEventKind::DeviceFatal));
        assert_eq!(near.device.next_async_event(), None, "once is enough");

        let gone = VerbsError::Gone;
        assert_eq!(gone.errno(), libc::EIO);
        let device = &near.device;
        assert_eq!(device.alloc_pd().unwrap_err(), gone);
        assert_eq!(device.create_completion_channel().unwrap_err(), gone);
        assert_eq!(device.create_cq(CqInit { capacity_cqe: 1, ..CqInit::default() }).unwrap_err(), gone);
        assert_eq!(device.open_xrcd(None, XrcdFlags::CREATE).unwrap_err(), gone);
        assert_eq!(device.connection_manager().create_channel().unwrap_err(), gone);
        assert_eq!(device.port(1).unwrap_err(), gone);
        let memory = Memory::zeroed(64).unwrap();
        assert_eq!(near.pd.register(memory, Access::LOCAL_WRITE).unwrap_err(), gone);
        assert_eq!(near.srq.query().unwrap_err(), gone);
        let scatter = [buffer];
        let receive = [ReceiveRequest { wr_id: 1, scatter: &scatter }];
        assert_eq!(near.srq.post_receive(&receive).unwrap_err().cause, gone);
        for qp in [&ini, &own] {
            assert_eq!(qp.query().unwrap_err(), gone);
            let error = QpModify { state: Some(QpState::Error), ..QpModify::default() };
            assert_eq!(qp.modify(&error).unwrap_err(), gone);
        }
        buffer.length = 4;
        let request = SendRequest {
            wr_id: 2,
            operation: SendOperation::Send,
            data: SendData::Gather(std::slice::from_ref(&buffer)),
            flags: SendFlags::SIGNALED,
            remote_srq: far.srq.number().unwrap(),
        };
        assert_eq!(ini.post_send(&[request]).unwrap_err().cause, gone);
        assert_eq!(near.cq.poll(&mut [Completion::default()]), 0);
        near.device.counters();

        assert!(matches!(SoftDevice::open(again.clone()), Err(OpenError::Removed)));
        assert_eq!(slot.devices(), 1, "the program has not let go of it");
        drop((own, ini));
        drop(near);
        assert_eq!(slot.devices(), 0);
        slot.restore();
        let near = Node::open(again, 4096);
        let (ini, _tgt) = connect(&near, &far);
        far.receive(2, 0, 64);
        post(&*ini, SendOperation::Send, &[near.sge(0, 8)], &*far.srq);
        assert_eq!(near.completion().status, CompletionStatus::Success);
    }
}

#[test]
fn every_endpoint_gets_one_event_on_device_removal() {
    for options in links() {
        let (slot, again, near, far) = pair(options);
        let manager = near.device.connection_manager();
        let channel = manager.create_channel().unwrap();
        let local = SocketAddr::new(near.address, 0);
        let passive = EndpointRequest {
            side: EndpointSide::Passive { local },
            port_space: PortSpace::Ib,
            qp_type: QpType::XrcTgt,
        };
        let listener = near.listen(local, &channel).unwrap();
        let bound = manager.create_id(PortSpace::Ib, QpType::XrcIni, &channel).unwrap();

        // A pending request ends with its listener.
        let asking = far.device.connection_manager();
        let far_channel = asking.create_channel().unwrap();
        let side = EndpointSide::Active { remote: listener.local_address(), source: Some(far.address) };
        let active = EndpointRequest { side, port_space: PortSpace::Ib, qp_type: QpType::XrcIni };
        let asker = asking.create_endpoint(&active, &far_channel).unwrap();
        asker.attach(far.qp(QpType::XrcIni)).unwrap();
        asker.connect(&Default::default()).unwrap();
        wait_readable(&*channel);

        slot.remove();
        let mut notified = Vec::new();
        for _ in 0..2 {
            let event = next_event(&*channel);
            assert!(matches!(event.kind, CmEventKind::DeviceRemoval), "{event:?}");
            notified.push(event.id);
        }
        notified.sort_unstable();
        let mut all = [listener.number(), bound.number()];
        all.sort_unstable();
        assert_eq!(notified, all);
        assert!(channel.next_event().is_none());
        assert_eq!(bound.bind(local).unwrap_err(), VerbsError::Gone);
        assert_eq!(listener.listen(1).unwrap_err(), VerbsError::Gone);
        assert_eq!(manager.create_endpoint(&passive, &channel).unwrap_err(), VerbsError::Gone);

        // The address is free for another device immediately, although the objects still exist.
        let local = listener.local_address();
        assert!(local.ip().is_unspecified(), "an endpoint of nothing has no address: {local}");
        slot.restore();
        let near_again = Node::open(again, 4096);
        let manager = near_again.device.connection_manager();
        let channel_again = manager.create_channel().unwrap();
        when_free(|| manager.create_endpoint(&passive, &channel_again)?.listen(4));
        drop((listener, bound, asker));
    }
}

/// Tests the operation of `trunkctl device`.
#[test]
fn operator_can_remove_removable_device() {
    let host = common::host::Host::new();
    let runtime = host.runtime();
    let options = SoftOptions { removable: true, ..host.options() };
    let node = Node::open(options.clone(), 4096);
    let steadfast = Node::open(host.options(), 4096);
    let of = |address| take_away(Some(&runtime), address).unwrap();
    assert!(of(Some(common::address())), "another address");
    assert!(of(Some(node.address)));
    wait_readable(&node.device.async_event_fd());
    assert_eq!(node.device.next_async_event().map(|event| event.kind), Some(AsyncEventKind::DeviceFatal));
    assert!(node.device.is_removed() && !steadfast.device.is_removed());
    assert!(matches!(SoftDevice::open(options.clone()), Err(OpenError::Removed)));
    assert!(put_back(Some(&runtime), Some(node.address)).unwrap());
    let again = Node::open(options, 4096);
    let (ini, _tgt) = connect(&again, &steadfast);
    steadfast.receive(1, 0, 64);
    post(&*ini, SendOperation::Send, &[again.sge(0, 8)], &*steadfast.srq);
    assert_eq!(again.completion().status, CompletionStatus::Success);
}
