//! Servers of a balanced channel that fail or lag: which are left out, for how long, and which stay.

use super::addresses::options;
use super::servers::HEDGED;
use super::service::ECHO;
use super::{Peer, World, poll};
use crate::node::Node;
use crate::status::Code;
use crate::status::reason::Reason;
use crate::wire::frame::{Header, RepliedBy, RequestHeader};
use crate::wire::metadata::MetadataBytes;
use crate::{Balance, Channel, Policy};
use bytes::Bytes;
use std::time::Duration;
use trunkline_transport::{Connect, Origin};

const MS: Duration = Duration::from_millis(1);

/// Reaction of a server to a call.
#[derive(Debug, Clone, Copy)]
enum Answer {
    Success,
    /// A success after a while.
    Slow(Duration),
    Failure(Code, RepliedBy),
    /// The call ends by its time limit.
    Never,
}

const UNAVAILABLE: Answer = Answer::Failure(Code::Unavailable, RepliedBy::Handler);

/// A node with a balanced channel to connected servers that the test answers for.
struct Rig {
    world: World,
    node: Node,
    servers: Vec<Peer>,
    channel: Channel,
}

impl Rig {
    fn new(servers: usize, balance: Balance) -> Self {
        let mut world = World::new();
        let node = world.node(|builder| builder);
        let servers = (0..servers).map(|_| world.peer()).collect::<Vec<_>>();
        let addresses = servers.iter().map(Peer::address).collect::<Vec<_>>();
        for address in &addresses {
            world.block_on(node.channel(*address).ready()).unwrap();
        }
        let channel = node.channel(addresses).balanced(balance.watch_health(false));
        Self { world, node, servers, channel }
    }

    /// Makes a call. Returns its server, and true if it succeeds.
    fn call(&mut self, answer: &mut dyn FnMut(usize) -> Answer) -> (usize, bool) {
        let options = options(Connect::FailFast).timeout(2000 * MS);
        let mut call = Box::pin(self.channel.call(&options, ECHO, &(), Bytes::new()));
        let servers = &self.servers;
        let (at, from, number) = self.world.until("the request", || {
            assert!(poll(call.as_mut()).is_none());
            servers
                .iter()
                .enumerate()
                .find_map(|(at, server)| arrived(server).map(|(from, call)| (at, from, call)))
        });
        let (code, by) = match answer(at) {
            Answer::Success => (0, RepliedBy::Handler),
            Answer::Slow(time) => {
                self.world.wait(time);
                (0, RepliedBy::Handler)
            }
            Answer::Failure(code, by) => (code.number(), by),
            Answer::Never => return (at, self.world.block_on(call).is_ok()),
        };
        let header =
            Header::Reply { call: number, code, by, number: None, metadata: MetadataBytes::default() };
        let status = &[0; 5][..5 * usize::from(code > 0)];
        self.servers[at].answer(0, from, &header, status, &[]);
        (at, self.world.block_on(call).is_ok())
    }

    /// Makes a hedged call. The first server does not answer, the others do at once. Returns the server of the first attempt.
    fn hedged(&mut self) -> usize {
        let mut call = Box::pin(self.channel.call(&options(Connect::FailFast), &HEDGED, &(), Bytes::new()));
        let (servers, mut first) = (&self.servers, None);
        let outcome = self.world.until("the outcome", || {
            for (at, server) in servers.iter().enumerate() {
                let Some((from, call)) = arrived(server) else { continue };
                first.get_or_insert(at);
                let metadata = MetadataBytes::default();
                let by = RepliedBy::Handler;
                let header = Header::Reply { call, code: 0, by, number: None, metadata };
                if at > 0 {
                    server.answer(0, from, &header, &[], &[]);
                }
            }
            poll(call.as_mut())
        });
        assert!(outcome.is_ok());
        first.expect("a server")
    }

    /// Makes calls for a while. Returns the number at each server.
    fn calls(&mut self, time: Duration, mut answer: impl FnMut(usize) -> Answer) -> Vec<usize> {
        let mut calls = vec![0; self.servers.len()];
        let end = self.world.now() + time;
        while self.world.now() < end {
            calls[self.call(&mut answer).0] += 1;
            self.world.wait(5 * MS);
        }
        calls
    }

    fn states(&self) -> Vec<&'static str> {
        self.node.report().servers.iter().map(|server| server.state).collect()
    }

    fn left_out(&self) -> u64 {
        let report = self.node.report();
        report.counters.iter().find(|counter| counter.name == "servers_left_out").expect("there is one").value
    }
}

/// Takes the next request at a server.
fn arrived(server: &Peer) -> Option<(Origin, u64)> {
    while let Some((from, header, _)) = server.frame() {
        if let Header::Request(RequestHeader { call, .. }) = header {
            return Some((from, call));
        }
    }
    None
}

#[test]
fn failing_server_is_left_out_within_20_calls_until_it_recovers() {
    for policy in [Policy::RoundRobin, Policy::PowerOfTwo] {
        let mut rig = Rig::new(4, policy.into());
        rig.calls(1000 * MS, |_| Answer::Success);
        let mut failed = 0;
        let mut fails = |at| {
            failed += usize::from(at == 0);
            if at == 0 { UNAVAILABLE } else { Answer::Success }
        };
        rig.calls(300 * MS, &mut fails);
        assert_eq!(rig.states(), ["left out: fails", "up", "up", "up"], "{policy:?}");
        let (begun, mut probes) = (rig.world.now(), Vec::new());
        while rig.world.now() < begun + 20_000 * MS {
            let now = rig.world.now();
            if rig.call(&mut fails).0 == 0 {
                probes.push(now);
            }
            rig.world.wait(5 * MS);
        }
        assert!((5..=20).contains(&(failed - probes.len())), "{policy:?}: {failed}");
        let gaps = probes.windows(2).map(|two| (two[1] - two[0]).as_millis() / 100).collect::<Vec<_>>();
        assert_eq!(gaps, [8, 16, 32, 64, 64], "{policy:?}: one call after each pause");
        assert_eq!(rig.left_out(), 1);
        rig.calls(6500 * MS, |_| Answer::Success);
        assert_eq!(rig.states(), ["up"; 4], "{policy:?}");
        assert!(rig.calls(1000 * MS, |_| Answer::Success).iter().all(|&calls| calls > 10));
    }
}

#[test]
fn slow_server_is_left_out_until_a_call_after_the_pause() {
    let slow = |time| move |at| if at == 0 { Answer::Slow(time) } else { Answer::Success };
    let mut rig = Rig::new(4, Policy::RoundRobin.into());
    let lags = |rig: &mut Rig, time| {
        let mut sum = 0;
        while rig.states()[0] == "up" && sum < 30 {
            rig.calls(100 * MS, slow(time));
            sum += 1;
        }
        (rig.states(), rig.left_out())
    };
    assert_eq!(lags(&mut rig, MS / 2), (vec!["up"; 4], 0), "it is less than a millisecond slower");
    let out = vec!["left out: slow", "up", "up", "up"];
    assert_eq!(lags(&mut rig, 5 * MS), (out.clone(), 1));
    assert_eq!(rig.calls(250 * MS, slow(5 * MS))[0], 0);
    assert_eq!(rig.calls(250 * MS, slow(5 * MS))[0], 1, "a call has tried it");
    assert_eq!(rig.states(), out, "the call took as long as those before");
    rig.calls(1000 * MS, |_| Answer::Success);
    assert_eq!(rig.states(), ["up"; 4], "another one did not");
    rig.calls(3000 * MS, |_| Answer::Success);
    assert_eq!(rig.left_out(), 1, "the calls before the pause count no more");
    // It lags again soon, so that the next pause is longer.
    assert_eq!(lags(&mut rig, 5 * MS), (out, 2));
    assert_eq!(rig.calls(650 * MS, slow(5 * MS))[0], 0);
    let all_lag = |at| Answer::Slow(if at == 0 { 8 * MS } else { 2 * MS });
    let mut rig = Rig::new(4, Policy::RoundRobin.into());
    rig.calls(5000 * MS, all_lag);
    assert_eq!(rig.left_out(), 0, "it is less than five times slower");
}

#[test]
fn server_that_fails_half_of_its_calls_is_left_out_at_the_end_of_a_period() {
    for (every, expected) in [(2, "left out: fails"), (3, "up")] {
        let mut rig = Rig::new(2, Policy::RoundRobin.into());
        let mut calls = 0;
        let mut fails = |at| {
            calls += usize::from(at == 0);
            if at == 0 && calls % every == 0 { UNAVAILABLE } else { Answer::Success }
        };
        for _ in 0..30 {
            rig.calls(100 * MS, &mut fails);
            if rig.left_out() > 0 {
                break;
            }
        }
        assert_eq!(rig.states()[0], expected);
    }
}

#[test]
fn few_calls_decide_nothing() {
    let mut rig = Rig::new(2, Policy::RoundRobin.into());
    for turn in 0..40 {
        // Four failures in a row, and less than ten calls in two periods.
        let mut answer = |at| if at == 0 && turn % 10 != 0 { UNAVAILABLE } else { Answer::Success };
        rig.call(&mut answer);
        rig.world.wait(250 * MS);
    }
    assert_eq!(rig.left_out(), 0);
}

#[test]
fn at_most_a_third_of_the_servers_is_left_out_and_never_the_last_one() {
    let mut rig = Rig::new(7, Policy::RoundRobin.into());
    rig.calls(3000 * MS, |at| if at < 3 { UNAVAILABLE } else { Answer::Success });
    let (states, left_out) = (rig.states(), rig.left_out());
    assert_eq!(left_out, 2, "{states:?}");
    let mut rig = Rig::new(2, Policy::RoundRobin.into());
    rig.calls(300 * MS, |at| if at == 1 { UNAVAILABLE } else { Answer::Success });
    assert_eq!(rig.states(), ["up", "left out: fails"]);
    rig.servers[0].end();
    rig.world.wait(50 * MS);
    let begun = rig.world.now();
    assert_eq!(rig.call(&mut |_| Answer::Success), (1, true), "no other server is up");
    assert!(rig.world.now() - begun < 2 * MS, "{:?}", rig.world.now() - begun);
}

#[test]
fn servers_stay_if_all_fail_or_the_channel_leaves_out_none() {
    let mut rig = Rig::new(2, Policy::RoundRobin.into());
    rig.calls(3000 * MS, |_| UNAVAILABLE);
    assert_eq!((rig.states(), rig.left_out()), (vec!["up"; 2], 0));
    let mut rig = Rig::new(2, Balance::from(Policy::RoundRobin).leave_out_failing(false));
    rig.calls(3000 * MS, |at| if at == 0 { UNAVAILABLE } else { Answer::Success });
    assert_eq!((rig.states(), rig.left_out()), (vec!["up"; 2], 0));
}

#[test]
fn only_faults_of_the_server_leave_it_out() {
    let by_node = |reason| RepliedBy::Node { reason: Some(reason), ran: true };
    let refused = RepliedBy::Node { reason: Some(Reason::Overloaded), ran: false };
    for (answer, expected) in [
        (Answer::Failure(Code::NotFound, RepliedBy::Handler), 0),
        (Answer::Failure(Code::ResourceExhausted, RepliedBy::Handler), 0),
        (Answer::Failure(Code::InvalidArgument, by_node(Reason::BadArguments)), 0),
        (Answer::Failure(Code::Unavailable, refused), 0),
        (Answer::Failure(Code::Unknown, RepliedBy::Handler), 1),
        (Answer::Failure(Code::DataLoss, RepliedBy::Handler), 1),
        (Answer::Failure(Code::Internal, by_node(Reason::Panicked)), 1),
        (Answer::Never, 1),
    ] {
        let mut rig = Rig::new(2, Balance::from(Policy::RoundRobin).retry_budget(0, 0));
        for _ in 0..30 {
            rig.call(&mut |at| if at == 0 { answer } else { Answer::Success });
        }
        assert_eq!(rig.left_out(), expected, "{answer:?}");
    }
}

#[test]
fn server_whose_calls_are_all_hedged_is_left_out() {
    let mut rig = Rig::new(4, Balance::from(Policy::RoundRobin).hedge_after(10 * MS));
    let mut sum = 0;
    while rig.states()[0] == "up" && sum < 1000 {
        rig.hedged();
        rig.world.wait(5 * MS);
        sum += 1;
    }
    assert_eq!(rig.states(), ["left out: slow", "up", "up", "up"]);
    assert!((0..20).all(|_| rig.hedged() > 0));
}
