//! Rules that hold for every call, whatever happens to nodes, machines and packets.
//!
//! | rule | broken when |
//! |---|---|
//! | each call ends, once | a call is open long after its deadline, or when the run is over |
//! | no call runs twice | a handler is entered twice for one call whose method is not `#[idempotent]`, at one server or at several |
//! | drained servers get no calls | a poller sends a call to a peer after that peer's DRAINED (`run/replicas.rs`) |
//! | replicas stand in | a call with time left, of a channel over several servers, fails while one of these drains, or an idempotent one while one is killed (`run/replicas.rs`) |
//! | no call runs as another | the handler of another method is entered for a call, whatever numbers methods have had at its server before |
//! | ordered calls start in order | a call on an ordered channel starts after one that was made later on it |
//! | bytes are equal | arguments or a reply differ from what was sent |
//! | items are equal | an item of a stream is missing, comes twice or out of order, or differs from what was sent |
//! | ends of streams are true | a stream ends as finished although its writer has not finished, or before all of its items; or its error does not say how many items came |
//! | idle streams are idle | a stream ends by its idle timeout although an item that its reader got was sent within it |
//! | streams end together | a writer is kept long after the reader of its stream was dropped (`streams.rs`) |
//! | no reply crosses | a reply is another call's |
//! | time only passes | the handler of a call that another handler made has more time left than that handler had when it made the call |
//! | success is true | a call succeeds whose handler did not run, or had not returned |
//! | equal shapes fit | a call is refused because its types have another shape, though all nodes run one program |
//! | errors are equal | a code that only handlers return, its text or its details differ from what this call's handler returned |
//! | a one-way success arrives | after the calm phase its handler has not run, though its server lived, kept its device and refused nobody |
//! | `may_have_run() == false` is true | the handler of such a call has run, before or after |
//! | a late request stays | a request leaves after its call's deadline, or a call that was still staged then counts as one that may have run (`departed.rs`, `late.rs`) |
//! | a call that waits is tied to no session | a call that asked to wait for its server fails because a session was over when it was made (`client.rs`) |
//! | what never left has not run | more calls to a server that is stopped may have run than it has receives (`run/unsent.rs`) |
//! | no machine sleeps beside ready work | a machine sleeps, nobody is about to wake it, and it has work |
//! | senders hold credits | a node sent or received an RNR NAK |
//! | credits are conserved | of what a grantor granted, any is neither held, on its way nor used, or all exceed its SRQ's depth (`credits`) |
//! | everything comes back | at rest a receive is not posted, a send slot not free, a work request outstanding, memory for large messages in use or registered for no use, or a call, a handler or its deadline left (`credits`) |
//! | receives are posted | at rest the SRQs of a device hold fewer or more receives, lent ones included, than the pollers have posted (`credits`) |
//! | a change of path fails no call | a call fails, or takes longer than 50 ms, while processes of a host write nonsense into the memory that they share (`run/paths.rs`) |
//! | memory has one sender | a call fails, is late or runs twice while a process puts packets into its own memory in the name of another one (`run/paths.rs`) |
//! | memory is used | long after the last fault, nodes of one host that share memory exchange packets otherwise (`run/paths.rs`) |
//! | memory makes sense | a process finds nonsense in shared memory before any was written on purpose, although processes die between two stores (`run/paths.rs`) |
//! | memory of the dead is released | a process shares memory more often than it has shards to share with living ones (`run/paths.rs`) |
//! | handlers end | one runs on although its deadline has passed, its caller gave up, or its peer died (`run/endings.rs`) |
//! | draining starts nothing | a handler is entered in a process that drains or shuts down; a call that is refused so counts as one that may have run |
//! | draining ends nothing | a handler that ran when its node began to drain, or the calls that it makes, fail within the grace, or a new call is not refused within 50 ms (`run/draining.rs`) |
//! | shutdown keeps its grace | a call that runs when its server is shut down, and ends within the grace, fails |
//! | peers notice a shutdown | its peers' calls end, or the node itself, later than the grace and a tenth of a second, or the node that long after its last handler; when a handler blocks its poller, its peers' calls another twentieth later (`run/draining.rs`) |
//! | a peer that is away | once an attempt to connect has failed, a call waits longer than for one attempt, or waits although the last one has just failed; or its server is not reached soon after it is back; or a call that asked to wait for it ends otherwise than by a success or its deadline (`run/away.rs`) |
//! | a name leads to its server | a call by a name, or a waiter for its channel, is told later than a round takes, or a call that asked to wait is not made soon after one of the name's addresses answers, wherever it is in the list and whatever the name led to before (`run/moving.rs`) |
//! | nothing is left | after shutdown a QP, a device's object or an open address remains |
//! | budgets are kept | a peer is charged for other than what it holds, or it or its host has more than the limit (`budgets.rs`) |
//! | callers find room | a call that waits for room has none long after there is some, a handler waits for the share that is left to it, or one of 64 callers of nested calls never succeeds or ends by its deadline (`run/admission.rs`) |
//! | jobs start in time | a job of the worker pool starts although its call is over, or without the context of its call, or one is left at rest (`pooled.rs`, `run/calm.rs`) |
//! | limits of services are kept | more calls of a method run in a process than its limit allows, a call refused for it counts as one that may have run, or one counts at rest (`service.rs`) |
//! | half-open sessions are cheap | one holds credit, or strangers have more of them than the bounds allow (`half_open.rs`) |
//! | greed harms its owner | while a peer is at its limit of handlers, or of decoded arguments, more calls of it are not refused by name, or another's fail (`run/greed.rs`) |
//! | hostility harms its owner | next to a peer that breaks the rules of the session protocol an honest call fails or is late, its session does not end in time and with its cause, or anything of it is left (`run/hostility.rs`) |
//! | nothing is diverted or amplified | a packet goes to a forger's port (`attacker`), or more bytes to an address than were sent in its name (`strangers`) |
//! | calm is calm | without faults, with an attacker or not, a call takes longer than [`CALM_LIMIT`] or fails |
//!
//! [`NOT_JUDGED`] lists what is left out so far.

use crate::coverage::{Coverage, Kind};
use crate::trace::{Pen, Since};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use trunkline::{Bytes, Code, Context, Origin, Reason, Status};
use trunkline_verbs::{Time, VirtualClock};

/// Omissions of the workload or the oracle, with reasons.
pub(crate) const NOT_JUDGED: &[(&str, &str)] = &[
    ("may_have_run", "`true` is held against calls that were never handed to the device as a number only"),
    ("abandoned threads", "that a node ends without a thread that never returns is tested with real threads"),
    (
        "deadlines under faults",
        "a handler's end after its deadline is judged once all faults are over, not among them",
    ),
    (
        "lost DREQs",
        "the network loses nothing while a node's shutdown is timed; that a DREQ is repeated is tested in trunkline-roce",
    ),
    ("loss recovery", "how soon lost packets are sent again is not judged, only that calls end"),
    (
        "memory within a run",
        "what a session leaves when it breaks is counted at rest, of nodes that live until then",
    ),
    ("order", "calls on channels that are not ordered may start in another order than they were made in"),
];

/// Maximum time from the deadline of a call to its end: pollers look at deadlines every few milliseconds, and
/// keepalives and retries of the handshake come before some.
const LATE_LIMIT: Duration = Duration::from_secs(2);

/// Maximum time of a call between connected nodes without faults.
pub(crate) const CALM_LIMIT: Duration = Duration::from_millis(20);

/// The resolution of the time that requests carry.
const TICK: Duration = Duration::from_micros(1);

/// The server of a call on a balanced channel.
pub(crate) const ANY_SERVER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// A rule was broken.
#[derive(Debug, Clone)]
pub(crate) struct Broken(pub(crate) String);

#[derive(Debug)]
struct Call {
    what: &'static str,
    process: u64,
    server: SocketAddr,
    /// The ordered channel that it was made on.
    channel: Option<u64>,
    /// The process that its handler was entered in last.
    ran_in: Option<u64>,
    made: Time,
    /// Time that the handler that makes it has left.
    time_left: Option<Duration>,
    entered: u32,
    returned: u32,
    /// The error that its handler returned: code, text and details.
    refusal: Option<(Code, String, Bytes)>,
    one_way: bool,
    /// It may run twice.
    idempotent: bool,
    ended: Option<Ended>,
}

/// One direction of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Flow {
    pub(crate) call: u64,
    /// True for the items that the client sends.
    pub(crate) from_caller: bool,
}

/// State of one direction of a stream.
#[derive(Debug, Clone, Default)]
struct Progress {
    sent: u64,
    received: u64,
    /// When the items that were not received yet were sent.
    under_way: VecDeque<Time>,
    /// When the last received item was sent.
    last_sent: Option<Time>,
    /// True once its writer has no more items.
    is_finished: bool,
    /// True once its reader was told so.
    has_ended: bool,
    /// True once its writer was dropped.
    is_gone: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Ended {
    Succeeded,
    Failed {
        code: Code,
        may_have_run: bool,
    },
    /// The future was dropped, or its process killed: nobody knows.
    GivenUp,
}

#[derive(Debug, Default)]
struct State {
    calls: BTreeMap<u64, Call>,
    open: BTreeMap<u64, Time>,
    flows: BTreeMap<Flow, Progress>,
    last: u64,
    /// The last-made call among those that have started, by ordered channel.
    started: BTreeMap<u64, u64>,
    /// The process that serves at an address.
    serving: BTreeMap<SocketAddr, u64>,
    /// The process whose session a client's process has, by the address.
    reached: BTreeMap<(u64, SocketAddr), u64>,
    /// When a process at an address last began, was about to end, ended, or lost or got its device.
    disturbed: BTreeMap<SocketAddr, Time>,
    /// Address of a peer that breaks the rules of the session protocol.
    hostile: Option<SocketAddr>,
    /// Processes that drain or shut down: no handler starts there.
    draining: BTreeSet<u64>,
    /// Servers at which a client's last call met a session with a process that was gone.
    stale: BTreeSet<(u64, SocketAddr)>,
    /// Total time for which machines were stopped. Time limits of the rules are extended by it.
    allowance: Duration,
    broken: Option<Broken>,
}

/// The judge of a run. Clones are the same one.
#[derive(Debug, Clone)]
pub(crate) struct Oracle {
    clock: Arc<VirtualClock>,
    coverage: Arc<Coverage>,
    state: Arc<Mutex<State>>,
    /// Writes the trace, if there is one.
    pen: Option<Pen>,
}

impl Oracle {
    /// Knows of no call yet.
    pub(crate) fn new(clock: &Arc<VirtualClock>, coverage: &Arc<Coverage>, pen: Option<Pen>) -> Self {
        let state = Arc::default();
        Self { pen, clock: Arc::clone(clock), coverage: Arc::clone(coverage), state }
    }

    fn note(&self, line: impl FnOnce() -> String) {
        if let Some(pen) = &self.pen {
            pen.line(self.clock.now(), "call", format_args!("{}", line()));
        }
    }

    /// Records a step of a call's handler, for the trace.
    pub(crate) fn handler(&self, id: u64, what: &str) {
        self.note(|| format!("call {id}: its handler {what}"));
    }

    /// A client makes a call; returns the call's number, which its arguments carry.
    pub(crate) fn made(
        &self,
        process: u64,
        server: SocketAddr,
        what: &'static str,
        timeout: Duration,
    ) -> u64 {
        self.coverage.count(Kind::CallMade);
        let deadline = self.clock.now() + timeout;
        let mut state = self.lock();
        state.last += 1;
        let id = state.last;
        let call = Call {
            what,
            process,
            server,
            channel: None,
            ran_in: None,
            made: self.clock.now(),
            time_left: Context::current().and_then(|handler| handler.time_left()),
            entered: 0,
            returned: 0,
            refusal: None,
            one_way: false,
            idempotent: false,
            ended: None,
        };
        state.calls.insert(id, call);
        state.open.insert(id, deadline);
        let now_there = state.serving.get(&server).copied();
        if state.reached.get(&(process, server)).is_some_and(|then| Some(*then) != now_there) {
            state.reached.remove(&(process, server));
            state.stale.insert((process, server));
            self.coverage.count(Kind::CallAfterRestart);
        }
        drop(state);
        self.note(|| {
            let end = Since(deadline);
            format!("call {id} ({what}) made by process {process} to {server}, to end by {end}")
        });
        id
    }

    /// The number of another ordered channel.
    pub(crate) fn ordered_channel(&self) -> u64 {
        let mut state = self.lock();
        let number = state.started.len() as u64;
        state.started.insert(number, 0);
        number
    }

    /// A call that was just made is made on an ordered channel.
    pub(crate) fn is_ordered(&self, id: u64, channel: u64) {
        if let Some(call) = self.lock().calls.get_mut(&id) {
            call.channel = Some(channel);
        }
    }

    /// A call that was just made may run twice.
    pub(crate) fn is_idempotent(&self, id: u64) {
        if let Some(call) = self.lock().calls.get_mut(&id) {
            call.idempotent = true;
        }
    }

    /// The handler of a method was entered for a call in a process, with these bytes.
    pub(crate) fn entered(&self, id: u64, (process, method): (u64, &str), body: &[u8]) {
        self.note(|| format!("call {id}: its handler starts in process {process}"));
        if body != pattern(id, body.len()) {
            return self.fail(format!("call {id}: the handler got other bytes than were sent"));
        }
        let mut state = self.lock();
        let Some(call) = state.calls.get_mut(&id) else {
            drop(state);
            return self.fail(format!("a handler runs for call {id}, which nobody made"));
        };
        call.entered += 1;
        call.ran_in = Some(process);
        let (what, times, ended, channel) = (call.what, call.entered, call.ended.clone(), call.channel);
        let (most, idempotent) = (call.time_left, call.idempotent);
        let before = channel.and_then(|channel| state.started.insert(channel, id));
        let drains = state.draining.contains(&process);
        drop(state);
        // A call's description begins with its method.
        if what.split([' ', ',']).next() != Some(method) {
            self.fail(format!("call {id} ({what}) runs as the method {method}"));
        }
        let left = Context::current().and_then(|handler| handler.time_left());
        // Less than a microsecond may come from rounding: a request with no time left has one.
        if let Some(most) = most.filter(|most| left.is_none_or(|left| left > *most + TICK)) {
            self.fail(format!(
                "the handler of call {id} ({what}) has {left:?} left, its caller had {most:?}"
            ));
        }
        if drains {
            self.fail(format!("the handler of call {id} ({what}) starts in process {process}, which drains"));
        }
        if let Some(before) = before.filter(|before| *before > id) {
            self.fail(format!(
                "call {id} ({what}) starts after call {before}, which was made later on its channel"
            ));
        }
        if times > 1 && idempotent {
            self.coverage.count(Kind::CallRepeated);
        } else if times > 1 {
            self.fail(format!("call {id} ({what}) runs for the {times}. time"));
        }
        if let Some(Ended::Failed { code, may_have_run: false }) = ended {
            self.fail(format!("call {id} ({what}) runs after its caller was told {code:?}, not run"));
        }
    }

    /// The handler of a call returned a value.
    pub(crate) fn returned(&self, id: u64) {
        self.handler(id, "returns");
        if let Some(call) = self.lock().calls.get_mut(&id) {
            call.returned += 1;
        }
    }

    /// The handler of a call returns an error.
    pub(crate) fn refused(&self, id: u64, status: &Status) {
        self.note(|| format!("call {id}: its handler fails with {status}"));
        if let Some(call) = self.lock().calls.get_mut(&id) {
            call.refusal = Some((status.code(), status.message().to_owned(), status.details().clone()));
        }
    }

    /// A writer passes an item on.
    pub(crate) fn item_sent(&self, flow: Flow) {
        let now = self.clock.now();
        let mut state = self.lock();
        let progress = state.flows.entry(flow).or_default();
        progress.sent += 1;
        progress.under_way.push_back(now);
    }

    /// A writer has no more items.
    pub(crate) fn stream_finished(&self, flow: Flow) {
        self.lock().flows.entry(flow).or_default().is_finished = true;
    }

    /// A writer was dropped.
    pub(crate) fn writer_gone(&self, flow: Flow) {
        self.lock().flows.entry(flow).or_default().is_gone = true;
    }

    /// Returns true if the writer was dropped.
    pub(crate) fn is_writer_gone(&self, flow: Flow) -> bool {
        self.lock().flows.get(&flow).is_some_and(|progress| progress.is_gone)
    }

    /// A reader got an item.
    pub(crate) fn item_received(&self, flow: Flow, bytes: &[u8]) {
        self.coverage.count(Kind::StreamItem);
        let mut state = self.lock();
        let progress = state.flows.entry(flow).or_default();
        let number = progress.received;
        progress.received += 1;
        progress.last_sent = progress.under_way.pop_front();
        let Progress { sent, has_ended, .. } = *progress;
        drop(state);
        if has_ended || number >= sent {
            self.fail(format!("item {number} of {flow:?} came after the end, or was not sent"));
        } else if bytes != item(flow, number) {
            self.fail(format!("item {number} of {flow:?} differs from what was sent, or is another one"));
        }
    }

    /// A reader was told that its writer has finished.
    pub(crate) fn stream_ended(&self, flow: Flow) {
        let mut state = self.lock();
        let progress = state.flows.entry(flow).or_default();
        let before = progress.clone();
        progress.has_ended = true;
        drop(state);
        if !before.is_finished || before.sent != before.received || before.has_ended {
            self.fail(format!("{flow:?} ended as finished, which is not true: {before:?}"));
        }
    }

    /// A stream ended by its idle timeout. An item did not arrive before it was sent.
    pub(crate) fn stream_idle(&self, flow: Flow, limit: Duration) {
        self.coverage.count(Kind::StreamIdle);
        let last_sent = self.lock().flows.get(&flow).and_then(|progress| progress.last_sent);
        let now = self.clock.now();
        if let Some(sent) = last_sent.filter(|sent| now < *sent + limit) {
            let ago = now - sent;
            self.fail(format!(
                "{flow:?} ended as idle for {limit:?}, but its last item was sent {ago:?} ago"
            ));
        }
    }

    /// A call succeeded, and its reply names this call.
    pub(crate) fn succeeded(&self, id: u64, replied: u64, one_way: bool) {
        self.coverage.count(Kind::CallSucceeded);
        if replied != id {
            self.fail(format!("call {id} got the reply of call {replied}"));
        }
        let returned = self.lock().calls.get_mut(&id).map_or(0, |call| {
            call.one_way = one_way;
            call.returned
        });
        self.reached(id);
        if returned == 0 && !one_way {
            self.fail(format!("call {id} succeeded, but its handler has not returned"));
        }
        self.end(id, Ended::Succeeded);
    }

    /// A process serves at an address from now on.
    pub(crate) fn serves(&self, address: SocketAddr, process: u64) {
        self.lock().serving.insert(address, process);
        self.disturbed(address);
    }

    /// A process drains or shuts down from now on: it starts no handler any more.
    pub(crate) fn drains(&self, process: u64) {
        self.lock().draining.insert(process);
    }

    /// Messages at an address may be lost: its process begins, is about to end, or ends, or its
    /// device goes or comes.
    pub(crate) fn disturbed(&self, address: SocketAddr) {
        let now = self.clock.now();
        self.lock().disturbed.insert(address, now);
    }

    /// Judges one-way calls once nothing is under way: the handler of each call that succeeded has run, unless its
    /// server was disturbed after the call was made, or refused it. Nobody is told of a refused one-way call.
    pub(crate) fn judge_one_ways(&self, refused: impl Fn(SocketAddr) -> u64) {
        let state = self.lock();
        let is_lost = |call: &Call| {
            let disturbed = state.disturbed.get(&call.server).is_some_and(|at| *at >= call.made);
            call.one_way && call.entered == 0 && call.ended == Some(Ended::Succeeded) && !disturbed
        };
        let mut lost = BTreeMap::<SocketAddr, Vec<u64>>::new();
        for (id, call) in state.calls.iter().filter(|(_, call)| is_lost(call)) {
            lost.entry(call.server).or_default().push(*id);
        }
        drop(state);
        for (server, ids) in lost {
            let refused = refused(server);
            if ids.len() as u64 > refused {
                self.fail(format!(
                    "one-way calls {ids:?} to {server} succeeded, but their handlers have not run, and only \
                     {refused} calls were refused there"
                ));
            }
        }
    }

    /// Notes which process a client has a session with.
    fn reached(&self, id: u64) {
        let mut state = self.lock();
        let Some(call) = state.calls.get(&id) else { return };
        let (pair, Some(server)) = ((call.process, call.server), call.ran_in) else { return };
        if call.server == ANY_SERVER {
            return;
        }
        state.reached.insert(pair, server);
        if state.stale.remove(&pair) {
            self.coverage.count(Kind::SuccessorReached);
        }
    }

    /// A reply's bytes differ from what the handler sent.
    pub(crate) fn judge_reply(&self, id: u64, body: &[u8], bytes: usize) {
        if body.len() != bytes || body != pattern(!id, body.len()) {
            self.fail(format!("call {id}: the reply's {} bytes are not the {bytes} sent", body.len()));
        }
    }

    /// A call failed.
    pub(crate) fn failed(&self, id: u64, status: &Status) {
        self.coverage.count(Kind::CallFailed);
        if status.code() == Code::DeadlineExceeded {
            self.coverage.count(Kind::CallTimedOut);
        }
        let (entered, what) =
            self.lock().calls.get(&id).map_or((0, "unknown"), |call| (call.entered, call.what));
        if entered > 0 && !status.may_have_run() {
            self.fail(format!(
                "call {id} ({what}) has run, but its caller was told that it did not: {status}"
            ));
        }
        let is_stream = matches!(what, "watch" | "upload" | "chat");
        // A stream that runs is not refused, but ends with the grace period.
        if is_refused_by_draining(status) && !(is_stream && entered > 0) {
            self.coverage.count(Kind::CallRefusedDraining);
            if status.may_have_run() {
                self.fail(format!("call {id} ({what}) was refused and may have run: {status}"));
            }
        }
        if is_refused_by_a_limit(status) {
            self.coverage.count(Kind::CallRefusedByLimit);
            if status.may_have_run() {
                self.fail(format!("call {id} ({what}) was refused and may have run: {status}"));
            }
        }
        if status.reason() == Some(Reason::OtherShape) {
            self.fail(format!(
                "call {id} ({what}) was refused for its types, which are its server's: {status}"
            ));
        }
        self.judge_error(id, status);
        self.end(id, Ended::Failed { code: status.code(), may_have_run: status.may_have_run() });
    }

    /// Codes other than those by which a node reports that a call did not get through come from
    /// handlers.
    fn judge_error(&self, id: u64, status: &Status) {
        let own = [Code::Unavailable, Code::DeadlineExceeded, Code::ResourceExhausted, Code::Cancelled];
        if own.contains(&status.code()) {
            return;
        }
        let state = self.lock();
        let Some(call) = state.calls.get(&id) else { return };
        let may_not_follow = call.channel.is_some() && !status.may_have_run();
        // Its frames may be of another protocol by chance.
        let is_strange = state.hostile == Some(call.server) && status.reason() == Some(Reason::OtherProtocol);
        let refusal = call.refusal.clone();
        drop(state);
        match status.code() {
            Code::Aborted if may_not_follow => return,
            Code::FailedPrecondition if is_strange => return,
            _ => {}
        }
        let is_equal = refusal.as_ref().is_some_and(|(code, message, details)| {
            *code == status.code() && message == status.message() && details == status.details()
        });
        if !is_equal {
            self.fail(format!("call {id} failed with {status}, but its handler returned {refusal:?}"));
        }
    }

    /// A call's future was dropped.
    pub(crate) fn given_up(&self, id: u64) {
        self.end(id, Ended::GivenUp);
    }

    /// A process was killed: its calls have no callers any more.
    pub(crate) fn killed(&self, process: u64) {
        let mut open = Vec::new();
        let state = self.lock();
        for id in state.open.keys() {
            if state.calls.get(id).is_some_and(|call| call.process == process) {
                open.push(*id);
            }
        }
        drop(state);
        for id in open {
            self.end(id, Ended::GivenUp);
        }
    }

    /// Records that a machine was stopped for this time.
    pub(crate) fn allow(&self, pause: Duration) {
        let mut state = self.lock();
        state.allowance = state.allowance.saturating_add(pause);
    }

    /// The peer at this address breaks the rules of the session protocol.
    pub(crate) fn is_hostile(&self, address: SocketAddr) {
        self.lock().hostile = Some(address);
    }

    /// Calls that have not ended.
    pub(crate) fn open(&self) -> usize {
        self.lock().open.len()
    }

    /// A rule was broken; only the first one counts.
    pub(crate) fn fail(&self, why: String) {
        let mut state = self.lock();
        if state.broken.is_none() {
            self.note(|| format!("RULE BROKEN: {why}"));
            state.broken = Some(Broken(why));
        }
    }

    /// The rule that was broken, if one was.
    pub(crate) fn verdict(&self, now: Time) -> Option<Broken> {
        let state = self.lock();
        if state.broken.is_some() {
            return state.broken.clone();
        }
        let late = |deadline: &Time| *deadline + LATE_LIMIT + state.allowance;
        let (id, _) = state.open.iter().find(|(_, deadline)| late(deadline) < now)?;
        let what = state.calls.get(id).map_or("unknown", |call| call.what);
        Some(Broken(format!("call {id} ({what}) is still open, long after its deadline")))
    }

    fn end(&self, id: u64, ended: Ended) {
        self.note(|| format!("call {id} ends: {ended:?}"));
        let mut state = self.lock();
        state.open.remove(&id);
        let Some(call) = state.calls.get_mut(&id) else { return };
        let (what, before) = (call.what, call.ended.replace(ended.clone()));
        drop(state);
        if let Some(before) = before.filter(|before| *before != Ended::GivenUp) {
            self.fail(format!("call {id} ({what}) ended twice: {before:?}, {ended:?}"));
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A call that counts as given up when its future is dropped before it has ended.
#[derive(Debug)]
pub(crate) struct Open<'a> {
    oracle: &'a Oracle,
    id: Option<u64>,
}

impl<'a> Open<'a> {
    /// A call that was made.
    pub(crate) fn new(oracle: &'a Oracle, id: u64) -> Self {
        Self { oracle, id: Some(id) }
    }

    /// It has ended.
    pub(crate) fn ended(mut self) {
        self.id = None;
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.oracle.given_up(id);
        }
    }
}

/// Returns true if a server refused a call because it drains.
fn is_refused_by_draining(status: &Status) -> bool {
    status.origin() == Origin::Peer && status.reason() == Some(Reason::Draining)
}

/// Returns true if a server has refused a call because as many of its method run as may.
fn is_refused_by_a_limit(status: &Status) -> bool {
    status.reason() == Some(Reason::Overloaded) && status.message().contains("which is its limit")
}

/// Bytes that belong to one call.
pub(crate) fn pattern(id: u64, bytes: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(id);
    let mut all = vec![0; bytes];
    random.fill(&mut all);
    all
}

/// An item of a stream: mostly small, some larger than a frame.
pub(crate) fn item(flow: Flow, number: u64) -> Vec<u8> {
    let seed = (flow.call << 21 | u64::from(flow.from_caller) << 20) + number;
    let mut random = fastrand::Rng::with_seed(!seed);
    let bytes = match random.u8(..32) {
        0..=27 => random.usize(8..200),
        28..=29 => random.usize(1 << 10..12 << 10),
        _ => random.usize(16 << 10..50 << 10),
    };
    pattern(seed, bytes)
}
