//! Lookups of a server's addresses: when they start, and how their results are used.

use super::addresses::{Rig, options, silent};
use super::service::ECHO;
use super::{World, poll};
use crate::wire::frame::{Header, RepliedBy, RequestHeader};
use crate::wire::metadata::MetadataBytes;
use crate::{AddressWatcher, Balance, Policy, Resolve, Resolving, Target};
use bytes::Bytes;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Poll, Waker};
use std::time::Duration;
use trunkline_transport::{Connect, PeerKey};
use trunkline_verbs::Time;

const MS: Duration = Duration::from_millis(1);

/// A resolver whose results the test determines.
#[derive(Debug, Default)]
struct Slow(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Number of lookups that have started.
    begun: usize,
    result: Option<Vec<SocketAddr>>,
    waker: Option<Waker>,
    watcher: Option<AddressWatcher>,
}

impl Slow {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// Ends the lookup in progress.
    fn end(&self, world: &mut World, addresses: &[SocketAddr]) {
        let mut state = self.state();
        state.result = Some(addresses.to_vec());
        let waker = state.waker.take().expect("a lookup is in progress");
        drop(state);
        waker.wake();
        world.run();
        assert!(self.state().result.is_none(), "it is taken");
    }

    /// Reports that the addresses have changed. Returns the number of lookups that have started.
    fn notify(&self, world: &mut World) -> usize {
        let watcher = self.state().watcher.clone();
        watcher.expect("a channel").notify();
        world.run();
        self.state().begun
    }
}

impl Resolve for Slow {
    fn resolve(&self) -> Resolving<'_> {
        self.state().begun += 1;
        Box::pin(poll_fn(|context| {
            let mut state = self.state();
            state.waker = Some(context.waker().clone());
            state
                .result
                .take()
                .map_or(Poll::Pending, |found| Poll::Ready(Ok(found.into_iter().map(PeerKey::new).collect())))
        }))
    }

    fn watch(&self, watcher: AddressWatcher) {
        self.state().watcher = Some(watcher);
    }
}

#[test]
fn requested_lookup_follows_round_or_lookup_in_progress() {
    let mut rig = Rig::new();
    let slow = Arc::new(Slow::default());
    let channel = rig.node.channel(Target::resolver(Arc::clone(&slow)));
    let mut ready = pin!(channel.ready());
    assert!(poll(ready.as_mut()).is_none());
    rig.world.run();
    assert_eq!(slow.notify(&mut rig.world), 1, "the round looks them up itself");
    slow.end(&mut rig.world, &[silent(), rig.peer.address()]);
    assert_eq!(slow.notify(&mut rig.world), 1, "it tries them now");
    rig.world.block_on(ready).unwrap();
    rig.world.run();
    assert_eq!(slow.state().begun, 2, "the lookup follows the round");
    for begun in 2..5 {
        for _ in 0..3 {
            rig.world.wait(100 * MS);
            assert_eq!(slow.notify(&mut rig.world), begun, "the one in progress is not replaced");
        }
        slow.end(&mut rig.world, &[rig.peer.address()]);
        assert_eq!(slow.state().begun, begun + 1, "one follows");
    }
    slow.end(&mut rig.world, &[rig.peer.address()]);
    rig.world.wait(1000 * MS);
    assert_eq!(slow.state().begun, 5, "nothing has changed since");
}

/// Without the pause, a source that changes constantly, or calls that fail, would keep a lookup thread and the poller busy.
#[test]
fn lookups_outside_of_rounds_are_100_ms_apart() {
    let mut rig = Rig::new();
    let slow = Arc::new(Slow::default());
    let channel = rig.node.channel(Target::resolver(Arc::clone(&slow)));
    let mut ready = pin!(channel.ready());
    assert!(poll(ready.as_mut()).is_none());
    rig.world.run();
    slow.end(&mut rig.world, &[rig.peer.address()]);
    rig.world.block_on(ready).unwrap();
    let (begun, mut times) = (slow.state().begun, Vec::new());
    while times.len() < 10 {
        assert!(rig.world.now() < Time(5_000_000_000), "{times:?}");
        if slow.notify(&mut rig.world) > begun + times.len() {
            times.push(rig.world.now());
            slow.end(&mut rig.world, &[rig.peer.address()]);
        }
    }
    let are_apart = times.windows(2).all(|pair| (98 * MS..110 * MS).contains(&(pair[1] - pair[0])));
    assert!(are_apart, "{times:?}");
    assert_eq!(slow.notify(&mut rig.world), begun + 10);
    rig.world.wait(100 * MS);
    assert_eq!(slow.state().begun, begun + 11, "the last change is found without another one");
}

#[test]
fn empty_lookup_keeps_known_servers() {
    let mut rig = Rig::new();
    let (slow, dead) = (Arc::new(Slow::default()), rig.dead(9));
    let channel = rig.node.channel(Target::resolver(Arc::clone(&slow)));
    let options = options(Connect::FailFast);
    for found in [&[dead][..], &[]] {
        let call = channel.call(&options, ECHO, &(), Bytes::new());
        rig.world.run();
        slow.end(&mut rig.world, found);
        let status = rig.world.block_on(call).unwrap_err();
        assert!(status.message().contains(&dead.to_string()), "{status}");
        assert_eq!(rig.dials.take_addresses(), [dead]);
        rig.world.wait(100 * MS);
    }
}

/// A resolver whose addresses the test changes. It reports changes only if it stores the watcher.
#[derive(Debug, Default)]
struct Changing {
    keeps_watcher: bool,
    found: Mutex<Vec<SocketAddr>>,
    state: Mutex<State>,
}

impl Changing {
    fn begun(&self) -> usize {
        self.state.lock().unwrap().begun
    }

    fn set(&self, found: &[SocketAddr]) {
        *self.found.lock().unwrap() = found.to_vec();
    }
}

impl Resolve for Changing {
    fn resolve(&self) -> Resolving<'_> {
        self.state.lock().unwrap().begun += 1;
        let found = self.found.lock().unwrap().iter().copied().map(PeerKey::new).collect::<Vec<_>>();
        Box::pin(async { if found.is_empty() { Err("no answer".into()) } else { Ok(found) } })
    }

    fn watch(&self, watcher: AddressWatcher) {
        if self.keeps_watcher {
            self.state.lock().unwrap().watcher = Some(watcher);
        }
    }
}

#[test]
fn calls_of_balanced_channel_follow_name_without_change_reports() {
    for policy in [Policy::PickFirst, Policy::RoundRobin, Policy::PowerOfTwo] {
        let mut rig = Rig::new();
        let (other, changing) = (rig.world.peer(), Arc::new(Changing::default()));
        changing.set(&[rig.peer.address()]);
        let balance = Balance::from(policy).watch_health(false);
        let channel = rig.node.channel(Target::resolver(Arc::clone(&changing))).balanced(balance);
        let options = options(Connect::FailFast);
        let call = || channel.call(&options, ECHO, &(), Bytes::new());
        let first = call();
        let (origin, header, _) = rig.world.until("the request", || rig.peer.frame());
        let Header::Request(RequestHeader { call: number, .. }) = header else { panic!("{header:?}") };
        let second = call();
        rig.world.until("the request", || rig.peer.frame());
        rig.world.wait(1000 * MS);
        changing.set(&[other.address()]);
        let before = changing.begun();
        rig.world.wait(38_000 * MS);
        assert_eq!(changing.begun(), before + 1, "{policy:?}");
        let later = [(); 10].map(|()| call());
        rig.world.wait(100 * MS);
        assert_eq!((rig.peer.frames().len(), other.frames().len()), (0, 10), "{policy:?}");
        let metadata = MetadataBytes::default();
        let reply = Header::Reply { call: number, code: 0, by: RepliedBy::Handler, number: None, metadata };
        rig.peer.answer(0, origin, &reply, &[], &[]);
        rig.world.block_on(first).expect("a call in flight ends at its server");
        drop((second, later));

        changing.set(&[]);
        let before = changing.begun();
        rig.world.wait(300_000 * MS);
        let failed = changing.begun() - before;
        assert!((7..=10).contains(&failed), "{failed}");
        let last = call();
        rig.world.until("the request", || other.frame());
        let before = changing.begun();
        drop(last);
        drop(channel);
        rig.world.wait(100_000 * MS);
        assert_eq!(changing.begun(), before, "the channel is gone");
    }
}

#[test]
fn names_are_not_looked_up_periodically_without_need() {
    for (is_balanced, keeps_watcher) in [(true, true), (false, false)] {
        let mut rig = Rig::new();
        let changing = Arc::new(Changing { keeps_watcher, ..Changing::default() });
        changing.set(&[rig.peer.address()]);
        let plain = rig.node.channel(Target::resolver(Arc::clone(&changing)));
        let channel = if is_balanced { plain.balanced(Policy::RoundRobin) } else { plain.clone() };
        rig.world.block_on(channel.ready()).unwrap();
        rig.world.wait(300_000 * MS);
        assert_eq!(changing.begun(), 1, "balanced: {is_balanced}");
    }
}
