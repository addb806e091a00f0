//! Devices in virtual time do not have threads and use only a simulated clock. Equal seeds give equal events at equal
//! times.
//!
//! One test runs in a separate process because it inspects all threads of the process.

use crate::common::node::{Node, connect, post};
use crate::simulated_members::world::World;
use std::fs;
use std::sync::Arc;
use trunkline_softrdma::device::{LinkChoice, LinkFactory, OpenError, Slot, SoftDevice, SoftOptions};
use trunkline_softrdma::link::{Hub, Link};
use trunkline_testkit::runs_alone;
use trunkline_verbs::{
    Access, AsyncEventKind, CompletionStatus, Device, IoAddress, Memory, RemoteAddress, SendOperation, Time,
    VerbsError,
};

/// Options of a device on a network inside the process.
fn at(world: &World, hub: &Arc<Hub>, last: u8, faults: Option<&str>) -> SoftOptions {
    let hub = Arc::clone(hub);
    SoftOptions {
        addresses: vec![[10, 0, 0, last].into()],
        link: LinkChoice::Custom(LinkFactory::new(move || Ok(Box::new(hub.link()?) as Box<dyn Link>))),
        faults: faults.map(|plan| plan.parse().expect("a plan")),
        runtime: world.runtime().clone(),
        ..SoftOptions::default()
    }
}

fn threads() -> Vec<String> {
    let name = |task: fs::DirEntry| fs::read_to_string(task.path().join("comm")).unwrap_or_default();
    fs::read_dir("/proc/self/task").unwrap().map(|task| name(task.unwrap()).trim().to_owned()).collect()
}

/// Sends over a lossy network. Returns all observations.
fn run(seed: u64) -> Vec<String> {
    let mut world = World::new(seed);
    let hub = Hub::new();
    let faults = format!("drop=0.2,reorder=0.2,duplicate=0.1,corrupt=0.05,seed={seed}");
    let [near, far] = [1, 2].map(|last| Node::open(at(&world, &hub, last, Some(&faults)), 8192));
    let (ini, _tgt) = connect(&near, &far);
    let memory = Memory::zeroed(64).unwrap();
    let start = IoAddress::from_random(world.runtime().random());
    let rights = Access::LOCAL_WRITE | Access::REMOTE_READ;
    let region = far.pd.register_at(Arc::clone(&memory), start, rights).unwrap();
    assert_ne!(region.address(0), memory.address(0));
    let mut log = vec![format!("{:?} {:?} {:?}", ini.number(), near.region.rkey(), region.address(8))];
    for number in 0..50 {
        far.receive(number, 4096, 4096);
        post(&*ini, SendOperation::Send, &[near.sge(0, 4096)], &*far.srq);
        let received = world.completion(&far);
        assert_eq!((received.wr_id, received.status), (number, CompletionStatus::Success));
        let sent = world.completion(&near);
        assert_eq!(sent.status, CompletionStatus::Success);
        log.push(format!("{:?} {received:?} {sent:?}", world.now()));
    }
    memory.write(8, b"by key").unwrap();
    let read = |address| SendOperation::RdmaRead(RemoteAddress { address, rkey: region.rkey() });
    post(&*ini, read(region.address(8)), &[near.sge(0, 6)], &*far.srq);
    assert_eq!(world.completion(&near).status, CompletionStatus::Success);
    let mut bytes = [0; 6];
    near.memory.read(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"by key");
    post(&*ini, read(memory.address(8)), &[near.sge(0, 6)], &*far.srq);
    assert_eq!(
        world.completion(&near).status,
        CompletionStatus::RemoteAccessError,
        "not by its address here"
    );
    log.extend(near.device.counters().iter().map(|counter| format!("{counter:?}")));
    assert_eq!(near.device.clock().now(), world.now());
    assert!(threads().iter().all(|name| name != "trunkline-card"), "{:?}", threads());
    assert!(near.counter("retransmits") > 0 && world.now() > Time(1_000_000));
    log
}

#[test]
fn equal_seeds_give_equal_events_at_equal_times() {
    if !runs_alone(module_path!(), "equal_seeds_give_equal_events_at_equal_times") {
        return;
    }
    let one = run(1);
    assert_eq!(one, run(1));
    assert_ne!(one, run(2));
}

#[test]
fn simulated_device_is_removed_and_opened_again() {
    let mut world = World::new(3);
    let (hub, slot) = (Hub::new(), Slot::new());
    let options = SoftOptions { slot: Some(slot.clone()), ..at(&world, &hub, 1, None) };
    let far = Node::open(at(&world, &hub, 2, None), 4096);
    for _ in 0..2 {
        let near = Node::open(options.clone(), 4096);
        let (ini, _tgt) = connect(&near, &far);
        far.receive(1, 0, 64);
        post(&*ini, SendOperation::Send, &[near.sge(0, 64)], &*far.srq);
        assert_eq!(world.completion(&far).status, CompletionStatus::Success);
        assert!(!near.device.has_async_event());
        slot.remove();
        assert!(near.device.has_async_event());
        assert_eq!(near.device.next_async_event().map(|event| event.kind), Some(AsyncEventKind::DeviceFatal));
        assert_eq!(near.device.port(1).unwrap_err(), VerbsError::Gone);
        assert!(matches!(SoftDevice::open(options.clone()), Err(OpenError::Removed)));
        assert_eq!(slot.devices(), 1);
        drop((ini, near));
        assert_eq!(slot.devices(), 0, "all of it is freed");
        slot.restore();
    }
    for _ in 0..1000 {
        world.turn();
    }
    assert_eq!(world.machines(), 1, "only the other device's machine is left");
}
