//! A balanced channel with servers that fail or are slow, and are left out for a time.

use super::addresses::{options, silent};
use super::servers::HEDGED;
use super::service::ECHO;
use super::{Peer, World, poll};
use crate::node::Node;
use crate::status::reason::Reason;
use crate::status::{Code, Status};
use crate::wire::frame::{Header, RepliedBy, RequestHeader};
use crate::wire::metadata::MetadataBytes;
use crate::wire::name::MethodName;
use crate::{Balance, CallOptions, Channel, Policy};
use bytes::Bytes;
use std::time::Duration;
use trunkline_transport::{Connect, Origin};
use trunkline_verbs::Time;

const MS: Duration = Duration::from_millis(1);

/// Reaction of a server to a call.
#[derive(Debug, Clone, Copy)]
enum Answer {
    Success,
    /// A success after this time.
    Slow(Duration),
    Failure(Code, RepliedBy),
    /// No answer, so that the call reaches its time limit.
    Never,
}

const UNAVAILABLE: Answer = Answer::Failure(Code::Unavailable, RepliedBy::Handler);

/// A reply that a server has not sent.
struct Reply {
    due: Time,
    server: usize,
    to: Origin,
    call: u64,
    code: u8,
    by: RepliedBy,
}

/// A node with a balanced channel to connected servers, for which the test answers.
struct Rig {
    world: World,
    node: Node,
    servers: Vec<Peer>,
    channel: Channel,
    replies: Vec<Reply>,
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
        Self { world, node, servers, channel, replies: Vec::new() }
    }

    /// Makes a call. Returns its first server, and true if the call succeeds.
    fn call(&mut self, answer: &mut dyn FnMut(usize) -> Answer) -> (usize, bool) {
        let (servers, outcome) = self.call_of(ECHO, answer);
        (servers[0], outcome.is_ok())
    }

    /// Calls a method. Returns the servers that get the call.
    fn call_of(
        &mut self,
        method: &'static MethodName,
        answer: &mut dyn FnMut(usize) -> Answer,
    ) -> (Vec<usize>, Result<(), Status>) {
        self.call_with(&options(Connect::FailFast).timeout(2000 * MS), method, answer)
    }

    fn call_with(
        &mut self,
        options: &CallOptions,
        method: &'static MethodName,
        answer: &mut dyn FnMut(usize) -> Answer,
    ) -> (Vec<usize>, Result<(), Status>) {
        let channel = self.channel.clone();
        let mut call = Box::pin(channel.call(options, method, &(), Bytes::new()));
        let mut servers = Vec::new();
        loop {
            if let Some(outcome) = poll(call.as_mut()) {
                return (servers, outcome.map(drop));
            }
            self.serve(answer, &mut servers);
        }
    }

    /// Takes the requests that have arrived, sends the replies that are due, and advances the time. Appends the server of
    /// each request to `servers`.
    fn serve(&mut self, answer: &mut dyn FnMut(usize) -> Answer, servers: &mut Vec<usize>) {
        let now = self.world.now();
        for (server, peer) in self.servers.iter().enumerate() {
            while let Some((to, call)) = arrived(peer) {
                servers.push(server);
                let (time, code, by) = match answer(server) {
                    Answer::Success => (Duration::ZERO, 0, RepliedBy::Handler),
                    Answer::Slow(time) => (time, 0, RepliedBy::Handler),
                    Answer::Failure(code, by) => (Duration::ZERO, code.number(), by),
                    Answer::Never => continue,
                };
                self.replies.push(Reply { due: now + time, server, to, call, code, by });
            }
        }
        let servers = &self.servers;
        let is_sent = |reply: &mut Reply| {
            let Reply { due, server, to, call, code, by } = *reply;
            let metadata = MetadataBytes::default();
            let header = Header::Reply { call, code, by, number: None, metadata };
            if due <= now {
                servers[server].answer(0, to, &header, &[0; 5][..5 * usize::from(code > 0)], &[]);
            }
            due <= now
        };
        self.replies.extract_if(.., is_sent).for_each(drop);
        let until = self.replies.iter().map(|reply| reply.due).min();
        self.world.step(until.unwrap_or(now + 10 * MS));
    }

    /// Makes calls for this time. Returns the number of calls at each server.
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
        self.node.report().counter("servers_left_out").expect("there is one")
    }
}

/// Takes the next request that has reached a server.
fn arrived(server: &Peer) -> Option<(Origin, u64)> {
    while let Some((from, header, _)) = server.frame() {
        if let Header::Request(RequestHeader { call, .. }) = header {
            return Some((from, call));
        }
    }
    None
}

#[test]
fn failing_server_is_left_out_within_20_calls_until_recovery() {
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
fn slow_server_is_left_out_until_call_after_pause() {
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
    // The server becomes slow soon after its return, so its next pause is longer.
    assert_eq!(lags(&mut rig, 5 * MS), (out, 2));
    assert_eq!(rig.calls(650 * MS, slow(5 * MS))[0], 0);
    let all_lag = |at| Answer::Slow(if at == 0 { 8 * MS } else { 2 * MS });
    let mut rig = Rig::new(4, Policy::RoundRobin.into());
    rig.calls(5000 * MS, all_lag);
    assert_eq!(rig.left_out(), 0, "it is less than five times slower");
}

#[test]
fn servers_slower_than_one_fast_server_are_not_left_out() {
    let one_is_fast = |at| if at == 0 { Answer::Success } else { Answer::Slow(50 * MS) };
    let mut rig = Rig::new(2, Policy::RoundRobin.into());
    rig.calls(6000 * MS, one_is_fast);
    assert_eq!(rig.left_out(), 0);
    let mut rig = Rig::new(3, Policy::RoundRobin.into());
    rig.calls(6000 * MS, one_is_fast);
    assert_eq!(rig.left_out(), 0, "two servers are as slow");
}

#[test]
fn server_failing_half_of_calls_is_left_out_at_end_of_period() {
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
fn few_calls_do_not_leave_server_out() {
    let mut rig = Rig::new(2, Policy::RoundRobin.into());
    for turn in 0..40 {
        // There are four failures in a row, and fewer than ten calls in two periods.
        let mut answer = |at| if at == 0 && turn % 10 != 0 { UNAVAILABLE } else { Answer::Success };
        rig.call(&mut answer);
        rig.world.wait(250 * MS);
    }
    assert_eq!(rig.left_out(), 0);
}

#[test]
fn at_most_third_of_servers_is_left_out_and_never_last_one() {
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
fn servers_stay_if_all_fail_or_channel_leaves_out_none() {
    let mut rig = Rig::new(2, Policy::RoundRobin.into());
    rig.calls(3000 * MS, |_| UNAVAILABLE);
    assert_eq!((rig.states(), rig.left_out()), (vec!["up"; 2], 0));
    let mut rig = Rig::new(2, Balance::from(Policy::RoundRobin).leave_out_failing(false));
    rig.calls(3000 * MS, |at| if at == 0 { UNAVAILABLE } else { Answer::Success });
    assert_eq!((rig.states(), rig.left_out()), (vec!["up"; 2], 0));
}

/// Origin of an error that the server's node reports after the handler has started.
fn by_node(reason: Reason) -> RepliedBy {
    RepliedBy::Node { reason: Some(reason), ran: true }
}

#[test]
fn server_is_left_out_only_for_its_own_faults() {
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
fn server_with_all_calls_hedged_is_left_out_as_slow() {
    let mut rig = Rig::new(4, Balance::from(Policy::RoundRobin).hedge_after(10 * MS));
    let hedged = |rig: &mut Rig| {
        let answer = &mut |at| if at == 0 { Answer::Never } else { Answer::Success };
        let (servers, outcome) = rig.call_of(&HEDGED, answer);
        assert_eq!(outcome, Ok(()));
        servers[0]
    };
    let mut sum = 0;
    while rig.states()[0] == "up" && sum < 1000 {
        hedged(&mut rig);
        rig.world.wait(5 * MS);
        sum += 1;
    }
    assert_eq!(rig.states(), ["left out: slow", "up", "up", "up"]);
    assert!((0..20).all(|_| hedged(&mut rig) > 0));
}

/// Makes 1,000 calls, one at a time, to four servers. One of them takes 50 ms, the others 1 ms. Returns the number of
/// requests and the 99th percentile of the call time.
fn beside_a_slow_server(balance: Balance) -> (usize, Duration) {
    let mut rig = Rig::new(4, balance.leave_out_failing(false));
    let (mut requests, mut times) = (0, Vec::new());
    for _ in 0..1000 {
        let begun = rig.world.now();
        let answer = &mut |at| Answer::Slow(if at == 0 { 50 * MS } else { MS });
        let (servers, outcome) = rig.call_of(&HEDGED, answer);
        assert_eq!(outcome, Ok(()));
        requests += servers.len();
        times.push(rig.world.now() - begun);
    }
    times.sort_unstable();
    (requests, times[990])
}

#[test]
fn hedges_halve_tail_beside_slow_server_and_are_few() {
    let (requests, without) = beside_a_slow_server(Policy::PowerOfTwo.into());
    assert_eq!(requests, 1000);
    let (requests, with) = beside_a_slow_server(Balance::from(Policy::PowerOfTwo).hedge_after(10 * MS));
    assert!((1001..=1060).contains(&requests), "{requests}");
    assert!(with <= without / 2, "{with:?}, {without:?} without hedging");
}

/// An error returned by a handler.
fn error(code: Code) -> Answer {
    Answer::Failure(code, RepliedBy::Handler)
}

#[test]
fn idempotent_calls_succeed_beside_failing_server() {
    let panic = Answer::Failure(Code::Internal, by_node(Reason::Panicked));
    for failure in [error(Code::Unavailable), error(Code::Internal), error(Code::Unknown), panic] {
        let mut rig = Rig::new(4, Policy::RoundRobin.into());
        let mut fails = |at| if at == 0 { failure } else { Answer::Success };
        let mut repeated = 0;
        for _ in 0..400 {
            let (servers, outcome) = rig.call_of(&HEDGED, &mut fails);
            assert_eq!(outcome, Ok(()));
            repeated += servers.len() - 1;
            rig.world.wait(5 * MS);
        }
        assert_eq!(rig.states(), ["left out: fails", "up", "up", "up"], "{failure:?}");
        assert!((5..=20).contains(&repeated), "{failure:?}: {repeated}");
    }
}

#[test]
fn call_failed_by_picked_server_moves_to_next_or_returns_failure() {
    for (dead, is_late) in [(false, false), (true, false), (true, true)] {
        let mut world = World::new();
        let node = world.node(|builder| builder);
        let servers = vec![world.peer(), world.peer()];
        let next = if dead { silent() } else { servers[1].address() };
        let balance = Balance::from(Policy::PickFirst).watch_health(false);
        let channel = node.channel([servers[0].address(), next]).balanced(balance);
        world.block_on(channel.ready()).unwrap();
        let mut rig = Rig { world, node, servers, channel, replies: Vec::new() };
        let mut answer = |at| if at == 0 { error(Code::Internal) } else { Answer::Success };
        let timeout = if is_late { 100 * MS } else { 20_000 * MS };
        let begun = rig.world.now();
        let (servers, outcome) =
            rig.call_with(&options(Connect::Wait).timeout(timeout), &HEDGED, &mut answer);
        if dead {
            let status = outcome.unwrap_err();
            assert_eq!((status.code(), status.may_have_run()), (Code::Internal, true), "{status}");
            assert!(rig.world.now() - begun < 10_000 * MS, "it waits for one attempt to connect");
            let begun = rig.world.now();
            rig.call_of(&HEDGED, &mut answer).1.unwrap_err();
            assert!(is_late || rig.world.now() - begun < 100 * MS, "a later call waits for no dead server");
        } else {
            assert_eq!((servers, outcome), (vec![0, 1], Ok(())));
        }
    }
}

#[test]
fn only_server_failures_are_retried_and_only_if_safe() {
    let unauthorised = RepliedBy::Node { reason: Some(Reason::Unauthorised), ran: false };
    for (method, answer, attempts) in [
        (&HEDGED, error(Code::DataLoss), 2),
        (&HEDGED, error(Code::InvalidArgument), 1),
        (&HEDGED, error(Code::NotFound), 1),
        (&HEDGED, error(Code::Aborted), 1),
        (&HEDGED, error(Code::ResourceExhausted), 1),
        (&HEDGED, error(Code::DeadlineExceeded), 1),
        (&HEDGED, Answer::Failure(Code::PermissionDenied, unauthorised), 1),
        (&HEDGED, Answer::Failure(Code::InvalidArgument, by_node(Reason::BadArguments)), 1),
        (ECHO, error(Code::Unavailable), 1),
        // The failure of a call whose authorizer panics.
        (ECHO, Answer::Failure(Code::Internal, RepliedBy::Node { reason: None, ran: false }), 2),
    ] {
        let mut rig = Rig::new(3, Policy::RoundRobin.into());
        let (servers, outcome) = rig.call_of(method, &mut |_| answer);
        assert_eq!(servers.len(), attempts, "{answer:?}");
        assert!(
            servers.windows(2).all(|two| two[0] != two[1]) && outcome.is_err(),
            "{answer:?}: {servers:?}"
        );
    }
}

#[test]
fn failures_of_all_servers_cost_one_attempt_per_call_within_budget() {
    let mut rig = Rig::new(4, Balance::from(Policy::RoundRobin).retry_budget(30, 20));
    let mut attempts = Vec::new();
    for call in 0..100 {
        let (servers, outcome) = rig.call_of(&HEDGED, &mut |_| error(Code::Internal));
        let status = outcome.unwrap_err();
        assert_eq!((status.code(), status.may_have_run()), (Code::Internal, true), "{status}");
        let names_budget = status.causes().iter().any(|cause| cause.contains("retry budget (30 calls"));
        assert_eq!(names_budget, call >= 30, "{status}");
        attempts.push(servers.len());
    }
    assert_eq!(attempts, [vec![2; 30], vec![1; 70]].concat());
    assert_eq!((rig.left_out(), rig.node.report().servers[0].unretried), (0, 70));
}
