//! Oracle with rules that hold for every call, whatever happens to nodes, machines and packets.
//!
//! Clients and handlers report each step of a call here, in the order in which the steps occur. A run fails on the first
//! violation. If a rule is checked elsewhere, its row names the file. [`NOT_JUDGED`] lists gaps in the rules.
//!
//! # Calls
//! | rule | violated when |
//! |---|---|
//! | every call ends once | a call is open long after its deadline or at the end of the run, or ends twice |
//! | a call runs at most once | a handler is entered twice for one call to a method that is not `#[idempotent]`, at one server or at several |
//! | a call runs its own method | the handler of another method is entered, whatever numbers the server's methods had before |
//! | success is true | a call succeeds although its handler did not run or did not return |
//! | `may_have_run() == false` is true | the handler of such a call has run, before or after the failure |
//! | a successful one-way call arrives | the handler has not run by the end of the calm phase, although the server kept running, kept its device and refused no call |
//! | bytes are unchanged | arguments or a reply differ from the bytes sent |
//! | replies match their calls | a call gets the reply of another call |
//! | errors are unchanged | a code that only handlers return, its text or its details differ from the values that the handler returned |
//! | equal shapes match | a call is refused because of the shape of its types, although all nodes run one program |
//! | a call runs at a server with the expected name | a handler is entered in a process whose certificate lacks the name that the call's channel expects, unless no proof is needed between the two; or a call fails with `Unauthenticated` although every process at its address has the name (also `run/renamed.rs`) |
//! | ordered calls start in order | a call on an ordered channel starts after a call that was made later on the same channel |
//! | remaining time only decreases | the handler of a nested call has more time left than the calling handler had when it made the call |
//! | a late request is not sent | a request is sent after its call's deadline, or a call still staged at its deadline is reported as one that may have run (`network/sent_frames.rs`, `workload/client.rs`) |
//! | an unsent call has not run | the number of calls to a stopped server that may have run exceeds its number of receives (`run/room.rs`) |
//! | a waiting call is not tied to a session | a call with `Connect::Wait` fails because a session had ended when it was made (`workload/client.rs`) |
//!
//! # Streams
//! | rule | violated when |
//! |---|---|
//! | items are unchanged | an item is missing, arrives twice or out of order, or differs from the item sent |
//! | ends are correct | a stream ends as finished before its writer has finished or before all items have arrived; or its error does not give the number of items delivered |
//! | idle streams are idle | a stream ends because of its idle timeout, but its last received item was sent within that timeout |
//! | writers end with their readers | a writer exists long after the reader of its stream was dropped (`workload/streams.rs`) |
//!
//! # Deadlines, draining and shutdown
//! | rule | violated when |
//! |---|---|
//! | handlers end | a handler continues after its deadline, after its caller gave up, or after its peer died (`run/draining.rs`) |
//! | draining starts no handler | a handler is entered in a process that drains or shuts down, or a call refused for this reason is reported as one that may have run |
//! | draining fails no running call | a handler that was running when draining began, or a call made by it, fails within the grace period; or a new call is not refused within 50 ms (`run/draining.rs`) |
//! | shutdown keeps its grace period | a call that ends within the grace period fails |
//! | shutdown is reported | peers' calls or the node end more than 100 ms after the grace period, or the node ends more than 100 ms after its last handler; if a handler blocks its poller, peers have 50 ms more (`run/draining.rs`) |
//! | all objects are released | a QP, another device object or an open address remains after shutdown |
//!
//! # Servers that move, drain or fail
//! | rule | violated when |
//! |---|---|
//! | drained servers get no calls | a poller sends a call to a peer after that peer's DRAINED (`run/replicas.rs`) |
//! | replicas take over | a call on a balanced channel with time left fails while one server drains, or an idempotent call fails while one server is killed or fails it, although another server may run it and the retry budget is not exhausted (`run/replicas.rs`) |
//! | an absent peer costs one attempt | after a failed attempt to connect, a call waits longer than one attempt, or waits although the last attempt has just failed; the server is not reached soon after it returns; or a call with `Connect::Wait` ends other than by success or deadline (`run/absence.rs`) |
//! | vanished clients are forgotten | a node keeps a session for more than 30 s with a client that died while idle (`run/absence.rs`) |
//! | a silent peer is probed | a call takes longer than 1.3 s, or may have run, although its node died more than 1 s after its last message or acknowledgement (`run/absence.rs`) |
//! | packets become as small as the path requires | over a path with a smaller MTU than the interfaces at its ends, a call fails with another cause, more sessions are lost than there are steps down to the path MTU, or calls do not succeed in the end; or a call over another path fails with this cause (`run/narrow.rs`) |
//! | a name leads to its server | a call by name, or a task that waits for its channel, gets an error later than one round takes; or a call with `Connect::Wait` is not sent soon after an address of the name answers (`run/absence.rs`) |
//!
//! # Resources
//! | rule | violated when |
//! |---|---|
//! | senders hold credits | a node sends or receives an RNR NAK |
//! | credits are conserved | a granted credit is neither held, in transit nor consumed, or the grants exceed the SRQ's depth (`credits.rs`) |
//! | all resources are returned | at rest, a receive is not posted, a send slot is not free, a work request is outstanding, message memory is in use or registered without use, or a call, a handler or a deadline remains (`credits.rs`) |
//! | receives are posted | at rest, the number of receives in the SRQs of a device, including lent ones, differs from the number posted by the pollers (`credits.rs`) |
//! | no machine sleeps with ready work | a machine sleeps with work to do, and no wake-up is pending |
//! | budgets are kept | a peer is charged for anything other than the resources held for it, or a peer or its host exceeds its limit (`credits.rs`) |
//! | callers find room | a call waits long after room has become free, a handler waits for the share reserved for handlers, or one of 64 callers of nested calls never succeeds or ends by its deadline (`run/room.rs`) |
//! | jobs start in time | a job in the worker pool starts after its call has ended or without its call's context, or remains at rest (`workload/service.rs`, `run/calm.rs`) |
//! | method limits are kept | more calls to a method run in a process than its limit allows, a call refused for this reason is reported as one that may have run, or a call is still counted at rest (`workload/service.rs`) |
//!
//! # Shared memory
//! | rule | violated when |
//! |---|---|
//! | a path change fails no call | a call fails or takes longer than 50 ms while processes on a host write invalid words into shared memory (`run/paths.rs`) |
//! | memory has one sender | a call fails, is late or runs twice while a process forges another process's packets in its own memory (`run/paths.rs`) |
//! | memory is used | long after the last fault, nodes that share memory exchange packets over another path (`run/paths.rs`) |
//! | memory stays consistent | a process finds invalid words in shared memory before any were written deliberately, although processes die between two stores (`run/paths.rs`) |
//! | memory of dead processes is released | a process has more shared areas than its shards need for the running processes (`run/paths.rs`) |
//!
//! # Hostile peers
//! | rule | violated when |
//! |---|---|
//! | half-open sessions are cheap | a half-open session holds credit, or strangers have more half-open sessions than the bounds allow (`credits.rs`) |
//! | a host gets half of an SRQ | the sessions of a host, with peers that the node has not named, have more connections than the host's share; a session beyond this share is not refused, a node on another host finds no room, or the refused node finds none after the others have ended (`credits.rs`, `run/crowding.rs`) |
//! | greed harms only the greedy | while a peer is at its limit of handlers or decoded arguments, a further call from this peer is not refused with the name of the limit, or another peer's call fails (`run/greed.rs`) |
//! | hostility harms only the hostile | next to a peer that violates the session protocol, an honest call fails or is late, the peer's session does not end in time and with its cause, or state of the peer remains (`run/hostility.rs`) |
//! | no packet is diverted or amplified | a packet is sent to a forger's port (`network/attacker.rs`), or an address receives more bytes than were sent in its name (`network/strangers.rs`) |
//!
//! # Sealing
//! | rule | violated when |
//! |---|---|
//! | a phase ends | a key seals more than 1,000 frames of a lane, or is in use for more than a second; checked when the next frame is sealed |
//! | a nonce is used once | a key seals two frames, two pieces of large messages, or one of each, with the same nonce; checked in programs with deliberate faults |
//! | changed packets are refused | a changed, swapped or repeated packet in a session does not end it, the two nodes report other causes than expected, or no call succeeds afterwards (`run/tampering.rs`) |
//!
//! # Calm
//! | rule | violated when |
//! |---|---|
//! | calm calls succeed in time | without faults, with or without an attacker, a call fails or takes longer than [`CALM_LIMIT`] |

pub(crate) mod credits;

use crate::coverage::{Coverage, EventKind};
use crate::trace::{Pen, Since};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use trunkline::{Bytes, Code, Context, Origin, Reason, Status};
use trunkline_machine::mutants::Sealed;
use trunkline_verbs::{Time, VirtualClock};

/// Known gaps in the workload or the oracle, with reasons.
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

/// Maximum time from the deadline of a call to its end. Pollers check deadlines every few milliseconds, and keepalives or
/// handshake retries may delay the check.
const LATE_LIMIT: Duration = Duration::from_secs(2);

/// Maximum number of frames in a phase.
const PHASE_FRAMES: u32 = 1000;
/// Maximum duration of a phase, including 100 ms for the turn in which the phase ends.
const PHASE_TIME: Duration = Duration::from_millis(1100);

/// Text in the status of calls whose session ended because the path MTU is smaller than the MTU of the interfaces at its
/// ends.
pub(crate) const TOO_LARGE: &str = "large packets vanish on the way";

/// Maximum duration of a call between connected nodes without faults.
pub(crate) const CALM_LIMIT: Duration = Duration::from_millis(20);

/// Resolution of the remaining time in a request.
const TICK: Duration = Duration::from_micros(1);

/// Server address that is recorded for calls on balanced channels.
pub(crate) const ANY_SERVER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// Description of a rule violation.
#[derive(Debug, Clone)]
pub(crate) struct Broken(pub(crate) String);

#[derive(Debug)]
struct Call {
    what: &'static str,
    process: u64,
    server: SocketAddr,
    /// Name that the call's channel expects, or `None` for the server's IP address.
    expected: Option<String>,
    /// Ordered channel on which the call was made, if any.
    channel: Option<u64>,
    /// Process in which the handler was last entered.
    ran_in: Option<u64>,
    made: Time,
    /// Remaining time of the handler that made the call, if any.
    time_left: Option<Duration>,
    entered: u32,
    returned: u32,
    /// Error returned by the handler, as its code, text and details.
    refusal: Option<(Code, String, Bytes)>,
    one_way: bool,
    /// True if the call may run twice.
    idempotent: bool,
    ended: Option<Ended>,
}

#[derive(Debug)]
pub(crate) struct Certified {
    pub(crate) address: SocketAddr,
    pub(crate) names: Vec<String>,
    pub(crate) exempts_local_user: bool,
}

impl Certified {
    /// Returns the name expected by the call's channel if the certificate lacks it.
    fn lacks_name_of(&self, call: &Call) -> Option<String> {
        let expected = call.expected.clone().unwrap_or_else(|| self.address.ip().to_string());
        (!self.names.contains(&expected)).then_some(expected)
    }
}

/// One direction of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Flow {
    pub(crate) call: u64,
    /// True if the client sends the items.
    pub(crate) from_caller: bool,
}

/// State of one direction of a stream.
#[derive(Debug, Clone, Default)]
struct Progress {
    sent: u64,
    received: u64,
    /// Send times of the items in transit.
    under_way: VecDeque<Time>,
    /// Send time of the last received item.
    last_sent: Option<Time>,
    /// True once the writer has reported that there are no more items.
    is_finished: bool,
    /// True once the reader has received the end of the stream.
    has_ended: bool,
    /// True once the writer was dropped.
    is_gone: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Ended {
    Succeeded,
    Failed {
        code: Code,
        may_have_run: bool,
    },
    /// The future was dropped or its process was killed, so the outcome is unknown.
    GivenUp,
}

/// Use of a key with a nonce.
#[derive(Debug, Clone, Copy)]
struct SealUse {
    sealed: Sealed,
    process: u64,
    at: Time,
}

impl fmt::Display for SealUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sealed: Sealed { what, number, .. }, process, at } = *self;
        write!(f, "{what}, number {number}, sealed by process {process} at {}", Since(at))
    }
}

#[derive(Debug, Default)]
struct OracleState {
    calls: BTreeMap<u64, Call>,
    open: BTreeMap<u64, Time>,
    flows: BTreeMap<Flow, Progress>,
    last: u64,
    /// Last started call on each ordered channel.
    started: BTreeMap<u64, u64>,
    /// Identities of processes, including processes that have ended.
    certified: BTreeMap<u64, Certified>,
    /// Process that serves at each address.
    serving: BTreeMap<SocketAddr, u64>,
    /// Process with which a client's process has a session, by client process and server address.
    reached: BTreeMap<(u64, SocketAddr), u64>,
    /// Last time at which a process at the address started, was about to end, ended, or lost or regained its device.
    disturbed: BTreeMap<SocketAddr, Time>,
    /// Address of the peer that violates the session protocol.
    hostile: Option<SocketAddr>,
    /// True if the MTU of a path is smaller than the MTU of the interfaces at its ends.
    is_narrow: bool,
    /// Processes that drain or shut down. Handlers must not start in them.
    draining: BTreeSet<u64>,
    /// Processes in which every call to `repeat` fails.
    failing: BTreeSet<u64>,
    /// Servers for which the last call of a client used a session with an ended process.
    stale: BTreeSet<(u64, SocketAddr)>,
    /// Uses of keys, by fingerprint and nonce.
    sealed: BTreeMap<([u8; 16], [u8; 12]), SealUse>,
    /// First use and number of uses of each key, by fingerprint.
    phases: BTreeMap<[u8; 16], (SealUse, u32)>,
    /// Total time for which machines were stopped. It is added to the time limits of the rules.
    allowance: Duration,
    broken: Option<Broken>,
}

impl OracleState {
    /// Returns the name expected by a call's channel if proof is needed and the certificate of a process lacks the name.
    fn missing_name(&self, call: &Call, process: u64) -> Option<String> {
        let (caller, server) = (self.certified.get(&call.process)?, self.certified.get(&process)?);
        let is_exempt = caller.address.ip() == server.address.ip()
            && caller.exempts_local_user
            && server.exempts_local_user;
        server.lacks_name_of(call).filter(|_| !is_exempt)
    }

    /// Returns true if any process that has served at a call's address lacks the name expected by the channel. Processes
    /// exempt from proof may still have proved a name, if the device could not determine their user in time.
    fn may_be_misnamed(&self, call: &Call) -> bool {
        let mut at_address = self.certified.values().filter(|identity| identity.address == call.server);
        at_address.any(|identity| identity.lacks_name_of(call).is_some())
    }
}

/// The oracle of a run. Clones share their state.
#[derive(Debug, Clone)]
pub(crate) struct Oracle {
    clock: Arc<VirtualClock>,
    coverage: Arc<Coverage>,
    state: Arc<Mutex<OracleState>>,
    /// Writer for the trace, if the trace is kept.
    pen: Option<Pen>,
}

impl Oracle {
    /// Creates an oracle without calls.
    pub(crate) fn new(clock: &Arc<VirtualClock>, coverage: &Arc<Coverage>, pen: Option<Pen>) -> Self {
        let state = Arc::default();
        Self { pen, clock: Arc::clone(clock), coverage: Arc::clone(coverage), state }
    }

    fn note(&self, line: impl FnOnce() -> String) {
        if let Some(pen) = &self.pen {
            pen.line(self.clock.now(), "call", format_args!("{}", line()));
        }
    }

    /// Records a step of a call's handler in the trace.
    pub(crate) fn handler(&self, id: u64, what: &str) {
        self.note(|| format!("call {id}: its handler {what}"));
    }

    pub(crate) fn made(
        &self,
        process: u64,
        server: SocketAddr,
        what: &'static str,
        timeout: Duration,
    ) -> Open<'_> {
        self.coverage.count(EventKind::CallMade);
        let deadline = self.clock.now() + timeout;
        let mut state = self.lock();
        state.last += 1;
        let id = state.last;
        let call = Call {
            what,
            process,
            server,
            expected: None,
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
            self.coverage.count(EventKind::CallAfterRestart);
        }
        drop(state);
        self.note(|| {
            let end = Since(deadline);
            format!("call {id} ({what}) made by process {process} to {server}, to end by {end}")
        });
        Open { oracle: self, id, has_ended: false }
    }

    pub(crate) fn ordered_channel(&self) -> u64 {
        let mut state = self.lock();
        let number = state.started.len() as u64;
        state.started.insert(number, 0);
        number
    }

    /// Records that a process entered a method's handler for a call with these argument bytes.
    pub(crate) fn entered(&self, id: u64, process: u64, method: &str, body: &[u8]) {
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
        let missing = state.calls.get(&id).and_then(|call| state.missing_name(call, process));
        drop(state);
        if let Some(name) = missing {
            self.fail(format!(
                "call {id} ({what}) runs in process {process}, which has not proved the expected name {name}"
            ));
        }
        // A call's description begins with its method.
        if what.split([' ', ',']).next() != Some(method) {
            self.fail(format!("call {id} ({what}) runs as the method {method}"));
        }
        let left = Context::current().and_then(|handler| handler.time_left());
        // Rounding may add up to a microsecond. A request whose time has expired also states one microsecond.
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
            self.coverage.count(EventKind::CallRepeated);
        } else if times > 1 {
            self.fail(format!("call {id} ({what}) runs for the {times}. time"));
        }
        if let Some(Ended::Failed { code, may_have_run: false }) = ended {
            self.fail(format!("call {id} ({what}) runs after its caller was told {code:?}, not run"));
        }
    }

    /// Records that the handler of a call returned a value.
    pub(crate) fn returned(&self, id: u64) {
        self.handler(id, "returns");
        if let Some(call) = self.lock().calls.get_mut(&id) {
            call.returned += 1;
        }
    }

    /// Records that the handler of a call returned an error.
    pub(crate) fn refused(&self, id: u64, status: &Status) {
        self.note(|| format!("call {id}: its handler fails with {status}"));
        if let Some(call) = self.lock().calls.get_mut(&id) {
            call.refusal = Some((status.code(), status.message().to_owned(), status.details().clone()));
        }
    }

    pub(crate) fn item_sent(&self, flow: Flow) {
        let now = self.clock.now();
        let mut state = self.lock();
        let progress = state.flows.entry(flow).or_default();
        progress.sent += 1;
        progress.under_way.push_back(now);
    }

    /// Records that a writer has no more items.
    pub(crate) fn stream_finished(&self, flow: Flow) {
        self.lock().flows.entry(flow).or_default().is_finished = true;
    }

    pub(crate) fn writer_gone(&self, flow: Flow) {
        self.lock().flows.entry(flow).or_default().is_gone = true;
    }

    pub(crate) fn is_writer_gone(&self, flow: Flow) -> bool {
        self.lock().flows.get(&flow).is_some_and(|progress| progress.is_gone)
    }

    /// Records and checks an item that a reader received.
    pub(crate) fn item_received(&self, flow: Flow, bytes: &[u8]) {
        self.coverage.count(EventKind::StreamItem);
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

    /// Records and checks the end of a stream at its reader.
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

    /// Checks the end of a stream by its idle timeout. The send time of the last item is a lower bound for its arrival
    /// time.
    pub(crate) fn stream_idle(&self, flow: Flow, limit: Duration) {
        self.coverage.count(EventKind::StreamIdle);
        let last_sent = self.lock().flows.get(&flow).and_then(|progress| progress.last_sent);
        let now = self.clock.now();
        if let Some(sent) = last_sent.filter(|sent| now < *sent + limit) {
            let ago = now - sent;
            self.fail(format!(
                "{flow:?} ended as idle for {limit:?}, but its last item was sent {ago:?} ago"
            ));
        }
    }

    /// Checks a success. `replied` is the call number in the reply.
    fn succeeded(&self, id: u64, replied: u64) {
        self.coverage.count(EventKind::CallSucceeded);
        if replied != id {
            self.fail(format!("call {id} got the reply of call {replied}"));
        }
        let is_unanswered = |call: &Call| call.returned == 0 && !call.one_way;
        let is_unanswered = self.lock().calls.get(&id).is_none_or(is_unanswered);
        self.reached(id);
        if is_unanswered {
            self.fail(format!("call {id} succeeded, but its handler has not returned"));
        }
        self.end(id, Ended::Succeeded);
    }

    /// Records that a process starts to serve at an address.
    pub(crate) fn serves(&self, address: SocketAddr, process: u64) {
        self.lock().serving.insert(address, process);
        self.disturbed(address);
    }

    pub(crate) fn presents(&self, process: u64, identity: Certified) {
        self.lock().certified.insert(process, identity);
    }

    /// Returns true if processes have identities.
    pub(crate) fn has_names(&self) -> bool {
        !self.lock().certified.is_empty()
    }

    /// Records that a process begins to drain or shut down. It then starts no more handlers.
    pub(crate) fn drains(&self, process: u64) {
        self.lock().draining.insert(process);
    }

    /// Makes every call to `repeat` in a process fail.
    pub(crate) fn fails_repeats(&self, process: u64) {
        self.lock().failing.insert(process);
    }

    /// Returns true if every call to `repeat` in a process fails.
    pub(crate) fn is_failing(&self, process: u64) -> bool {
        self.lock().failing.contains(&process)
    }

    /// Records that messages to an address may be lost, because its process starts, ends or is about to end, or its
    /// device is removed or restored.
    pub(crate) fn disturbed(&self, address: SocketAddr) {
        let now = self.clock.now();
        self.lock().disturbed.insert(address, now);
    }

    /// Checks one-way calls when no packets are in transit. The handler of each successful call must have run, unless its
    /// server refused the call or was disturbed after the call was sent. Callers are not notified of refused one-way
    /// calls.
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

    /// Records the process with which a client has a session.
    fn reached(&self, id: u64) {
        let mut state = self.lock();
        let Some(call) = state.calls.get(&id) else { return };
        let (pair, Some(server)) = ((call.process, call.server), call.ran_in) else { return };
        if call.server == ANY_SERVER {
            return;
        }
        state.reached.insert(pair, server);
        if state.stale.remove(&pair) {
            self.coverage.count(EventKind::SuccessorReached);
        }
    }

    /// Checks the bytes of a reply.
    pub(crate) fn judge_reply(&self, id: u64, body: &[u8], bytes: usize) {
        if body.len() != bytes || body != pattern(!id, body.len()) {
            self.fail(format!("call {id}: the reply's {} bytes are not the {bytes} sent", body.len()));
        }
    }

    /// Checks a failure.
    fn failed(&self, id: u64, status: &Status) {
        self.coverage.count(EventKind::CallFailed);
        if status.code() == Code::DeadlineExceeded {
            self.coverage.count(EventKind::CallTimedOut);
        }
        let (entered, what) =
            self.lock().calls.get(&id).map_or((0, "unknown"), |call| (call.entered, call.what));
        if entered > 0 && !status.may_have_run() {
            self.fail(format!(
                "call {id} ({what}) has run, but its caller was told that it did not: {status}"
            ));
        }
        if status.to_string().contains(TOO_LARGE) && !self.lock().is_narrow {
            self.fail(format!(
                "call {id} ({what}) failed for the size of packets that all paths carry: {status}"
            ));
        }
        // A call whose handler was entered is not refused, but ends with the grace period.
        let is_draining = status.origin() == Origin::Peer && status.reason() == Some(Reason::Draining);
        if is_draining && entered == 0 {
            self.coverage.count(EventKind::CallRefusedDraining);
            if status.may_have_run() {
                self.fail(format!("call {id} ({what}) was refused and may have run: {status}"));
            }
        }
        let is_at_limit =
            status.reason() == Some(Reason::Overloaded) && status.message().contains("which is its limit");
        if is_at_limit {
            self.coverage.count(EventKind::CallRefusedByLimit);
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

    /// Checks that a code that nodes do not generate was returned by the handler of the call.
    fn judge_error(&self, id: u64, status: &Status) {
        let own = [Code::Unavailable, Code::DeadlineExceeded, Code::ResourceExhausted, Code::Cancelled];
        if own.contains(&status.code()) {
            return;
        }
        let state = self.lock();
        let Some(call) = state.calls.get(&id) else { return };
        let may_not_follow = call.channel.is_some() && !status.may_have_run();
        // By chance, the frames of the hostile peer may look like another protocol.
        let is_strange = state.hostile == Some(call.server) && status.reason() == Some(Reason::OtherProtocol);
        let refusal = call.refusal.clone();
        let is_misnamed = state.may_be_misnamed(call);
        drop(state);
        match status.code() {
            Code::Unauthenticated if is_misnamed && !status.may_have_run() => {
                return self.coverage.count(EventKind::NameRefused);
            }
            Code::Aborted if may_not_follow => return,
            Code::FailedPrecondition if is_strange => return,
            _ => {}
        }
        let mut text = status.message().to_owned();
        if status.origin() == Origin::Peer
            && let Some((method, (_, why))) =
                text.split_once(" at ").and_then(|(method, rest)| Some((method, rest.split_once(": ")?)))
        {
            // The handler's text does not contain the server's address.
            text = format!("{method}: {why}");
        }
        let is_equal = refusal.as_ref().is_some_and(|(code, message, details)| {
            *code == status.code() && *message == text && details == status.details()
        });
        if !is_equal {
            self.fail(format!("call {id} failed with {status}, but its handler returned {refusal:?}"));
        }
    }

    /// Records that a process was killed, so that its open calls have no caller.
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

    /// Records that a machine was stopped for the given time.
    pub(crate) fn allow(&self, pause: Duration) {
        let mut state = self.lock();
        state.allowance = state.allowance.saturating_add(pause);
    }

    /// Records the address of the peer that violates the session protocol.
    pub(crate) fn is_hostile(&self, address: SocketAddr) {
        self.lock().hostile = Some(address);
    }

    /// Sets whether a path has a smaller MTU than the interfaces at its ends.
    pub(crate) fn set_narrow(&self, is_narrow: bool) {
        self.lock().is_narrow = is_narrow;
    }

    /// Returns the number of calls that have not ended.
    pub(crate) fn open(&self) -> usize {
        self.lock().open.len()
    }

    /// Records uses of keys by a process.
    pub(crate) fn sealed(&self, process: u64, all: Vec<Sealed>) {
        for sealed in all {
            let this = SealUse { sealed, process, at: self.clock.now() };
            let (earlier, first, uses) = {
                let mut state = self.lock();
                let (first, uses) = state.phases.entry(sealed.key).or_insert((this, 0));
                *uses += 1;
                let (first, uses) = (*first, *uses);
                (state.sealed.insert((sealed.key, sealed.nonce), this), first, uses)
            };
            if let Some(earlier) = earlier {
                self.fail(format!("a key and a nonce are used twice: {earlier}; and {this}"));
            }
            if sealed.what == Sealed::FRAME
                && (uses > PHASE_FRAMES || this.at.saturating_duration_since(first.at) > PHASE_TIME)
            {
                self.fail(format!("a key outlasts its phase, with {uses} uses: {first}; and {this}"));
            }
        }
    }

    /// Records a violation. Only the first violation is kept.
    pub(crate) fn fail(&self, why: String) {
        let mut state = self.lock();
        if state.broken.is_none() {
            self.note(|| format!("RULE BROKEN: {why}"));
            state.broken = Some(Broken(why));
        }
    }

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

    fn lock(&self) -> MutexGuard<'_, OracleState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A call in progress. If this value is dropped before the call ends, because the future was dropped or the node ended,
/// the call counts as given up.
#[derive(Debug)]
pub(crate) struct Open<'a> {
    oracle: &'a Oracle,
    id: u64,
    has_ended: bool,
}

impl Open<'_> {
    /// Returns the call's number, which is one of the call's arguments.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn one_way(self) -> Self {
        self.set(|call| call.one_way = true)
    }

    /// Marks the call as one that may run more than once.
    pub(crate) fn idempotent(self) -> Self {
        self.set(|call| call.idempotent = true)
    }

    /// Sets the name that the call's channel expects.
    pub(crate) fn expects(self, name: &str) -> Self {
        self.set(|call| call.expected = Some(name.to_owned()))
    }

    pub(crate) fn ordered(self, channel: u64) -> Self {
        self.set(|call| call.channel = Some(channel))
    }

    fn set(self, set: impl FnOnce(&mut Call)) -> Self {
        self.oracle.lock().calls.get_mut(&self.id).map(set);
        self
    }

    /// Checks the outcome, which is the call number in the reply or an error. Returns the error.
    pub(crate) fn end(mut self, outcome: Result<u64, Status>) -> Option<Status> {
        self.has_ended = true;
        match outcome {
            Ok(replied) => {
                self.oracle.succeeded(self.id, replied);
                None
            }
            Err(status) => {
                self.oracle.failed(self.id, &status);
                Some(status)
            }
        }
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        if !self.has_ended {
            self.oracle.end(self.id, Ended::GivenUp);
        }
    }
}

/// Returns the argument or reply bytes of a call.
pub(crate) fn pattern(id: u64, bytes: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(id);
    let mut all = vec![0; bytes];
    random.fill(&mut all);
    all
}

/// Returns an item of a stream. Most items are small, and some are larger than a frame.
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
