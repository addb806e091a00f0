//! Devices in virtual time: they have no threads and use only a simulated clock, and equal seeds give equal
//! events at equal times.
//!
//! One test runs in its own process because it inspects all threads of the process.

use crate::common::node::{Node, connect, post};
use std::fs;
use std::sync::Arc;
use trunkline_machine::{Machine, Runtime, Simulator, Turn};
use trunkline_softrdma::device::{LinkChoice, LinkFactory, OpenError, Slot, SoftDevice, SoftOptions};
use trunkline_softrdma::link::{Hub, Link};
use trunkline_testkit::{Stepped, runs_alone};
use trunkline_verbs::{
    Access, AsyncEventKind, Clock, Completion, CompletionStatus, Device, IoAddress, Memory, Notify,
    RemoteAddress, SendOperation, Time, VerbsError, VirtualClock,
};

/// Number of turns after which a run counts as stuck.
const TURNS: usize = 200_000;

/// A machine, and the time until which it sleeps; `None` while it is awake.
type Task = (Box<dyn Machine>, Option<Option<Time>>);

/// Runs the machines of all devices in turn, on this thread.
struct World {
    clock: Arc<VirtualClock>,
    stepped: Arc<Stepped>,
    runtime: Runtime,
    tasks: Vec<Task>,
}

impl World {
    fn new(seed: u64) -> Self {
        let clock = VirtualClock::new();
        let stepped = Stepped::new(seed);
        let simulator: Arc<dyn Simulator> = Arc::<Stepped>::clone(&stepped);
        let runtime = Runtime::simulated(Clock::simulated(Arc::clone(&clock)), simulator);
        Self { clock, stepped, runtime, tasks: Vec::new() }
    }

    fn options(&self, hub: &Arc<Hub>, last: u8, faults: Option<&str>) -> SoftOptions {
        let hub = Arc::clone(hub);
        SoftOptions {
            addresses: vec![[10, 0, 0, last].into()],
            link: LinkChoice::Custom(LinkFactory::new(move || Ok(Box::new(hub.link()?) as Box<dyn Link>))),
            faults: faults.map(|plan| plan.parse().expect("a plan")),
            runtime: self.runtime.clone(),
            ..SoftOptions::default()
        }
    }

    /// Runs one turn of each awake machine. If all sleep, the clock advances to the first deadline.
    fn turn(&mut self) {
        for (_name, make) in self.stepped.take() {
            self.tasks.push((make().unwrap(), None));
        }
        let now = self.clock.now();
        let mut any = false;
        self.tasks.retain_mut(|(machine, sleeps)| {
            if sleeps.is_some_and(|until| !machine.is_woken() && until.is_none_or(|until| until > now)) {
                return true;
            }
            any = true;
            *sleeps = match machine.turn() {
                Turn::Sleep(until) => Some(until),
                Turn::Done => return false,
                Turn::Again | Turn::Spin | Turn::Yield => None,
            };
            true
        });
        if !any {
            let next = self.tasks.iter().filter_map(|(_, sleeps)| (*sleeps)?).min();
            // Without a deadline, the clock advances by a microsecond. The caller gives up after a number of
            // turns.
            self.clock.set(next.unwrap_or(now.plus_ns(1000)).max(now));
        }
    }

    /// Runs until `there` returns a value.
    fn until<T>(&mut self, mut there: impl FnMut() -> Option<T>) -> T {
        for _ in 0..TURNS {
            if let Some(found) = there() {
                return found;
            }
            self.turn();
        }
        panic!("nothing came within {TURNS} turns, at {:?}", self.clock.now());
    }

    /// Returns the next completion of a program that sleeps on its channel, so that the background machine
    /// does the device's work.
    fn completion(&mut self, node: &Node) -> Completion {
        let take = || {
            let mut one = [Completion::default()];
            node.cq.request_notify(Notify::Any).unwrap();
            (node.cq.poll(&mut one) > 0).then(|| one[0])
        };
        // The event may be for a completion that was polled already.
        take().unwrap_or_else(|| self.until(|| node.channel.next_event().and_then(|_| take())))
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
    let [near, far] = [1, 2].map(|last| Node::open(world.options(&hub, last, Some(&faults)), 8192));
    let (ini, _tgt) = connect(&near, &far);
    let memory = Memory::zeroed(64).unwrap();
    let start = IoAddress::from_random(world.runtime.random());
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
        log.push(format!("{:?} {received:?} {sent:?}", world.clock.now()));
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
    assert_eq!(near.device.clock().now(), world.clock.now());
    assert!(threads().iter().all(|name| name != "trunkline-card"), "{:?}", threads());
    assert!(near.counter("retransmits") > 0 && world.clock.now() > Time(1_000_000));
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
fn a_simulated_device_is_removed_and_opened_again() {
    let mut world = World::new(3);
    let (hub, slot) = (Hub::new(), Slot::new());
    let options = SoftOptions { slot: Some(slot.clone()), ..world.options(&hub, 1, None) };
    let far = Node::open(world.options(&hub, 2, None), 4096);
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
    for _ in 0..10 {
        world.turn();
    }
    assert_eq!(world.tasks.len(), 1, "only the other device's machine is left");
}
