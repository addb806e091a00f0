//! Dispatches requests on one poller. Requests are mapped to methods, and outcomes of handlers to replies.
//!
//! This file contains the state of [`Dispatch`]. Each submodule contains one `impl` block:
//! - `finding`, `screening`: finding the method of a request, and authorization
//! - `running`: running the handler, from the request to the last poll
//! - `replying`, `not_sent`: replies, refusals, and replacements for replies that could not be sent
//! - `ending`: calls that end before their handlers do
//! - `streams`: frames of streams
//! - `counting`: counters and logs

use super::authorize::{Authorizers, RefusalLog};
use super::caller::{Caller, Key};
use super::limits::MethodLimits;
use super::method::Method;
use super::replies::WaitingReplies;
use super::{ArgumentMemory, MethodNumbers, Service};
use crate::call::LocalQueue;
use crate::call::context::{Context, CurrentCall, PollerContext};
use crate::executor::TaskId;
use crate::executor::inbox::Inbox;
use crate::executor::pool::Pool;
use crate::executor::runtime_guard::RuntimeGuard;
use crate::node::start_error::HandlerInitError;
use crate::observe::counted::MethodCounters;
use crate::stream::CallStream;
use crate::wire::method_shapes::MethodShapes;
use crate::wire::name::{MethodName, ServiceName, Streams};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use trunkline_transport::budget::Share;
use trunkline_transport::ledger::BudgetLedger;
use trunkline_transport::{DeadlineKey, Deadlines, PeerKey};
use trunkline_verbs::Time;

mod counting;
mod ending;
mod finding;
mod not_sent;
mod replying;
mod running;
mod screening;
mod streams;

use counting::FailureLog;

struct Running {
    caller: Caller,
    started: Time,
    /// Key of the call's deadline.
    timer: Option<DeadlineKey>,
    /// Charge of the decoded arguments, in bytes.
    decoded: usize,
    /// Context, if the handler has used it.
    context: Option<Context>,
    stream: Option<Arc<CallStream>>,
}

/// A served method and the properties of its calls.
struct Served {
    name: &'static MethodName,
    calls: Box<dyn Method>,
    /// True if calls to the method have no reply.
    one_way: bool,
    /// Directions in which calls to the method stream items.
    streams: Streams,
    /// Limits on the method's running calls, across all pollers.
    limits: MethodLimits,
    /// Number of the method; `None` if callers identify it by its hash.
    number: Option<u16>,
    /// Shapes of the method's types.
    shapes: Option<&'static MethodShapes>,
    counters: Arc<MethodCounters>,
}

impl Served {
    /// Returns the call kind, as text.
    fn kind(&self) -> &'static str {
        match self.streams {
            Streams::Neither if self.one_way => "it is one-way",
            Streams::Neither => "it has a reply",
            Streams::FromServer => "its server streams items",
            Streams::FromClient => "its client streams items",
            Streams::Both => "both sides stream items",
        }
    }
}

/// The services of a poller, and the requests that run on it.
pub(crate) struct Dispatch {
    /// Budget for running handlers.
    budget: Share,
    arguments: Rc<ArgumentMemory>,
    /// Maximum size of one call's metadata in each direction, in bytes.
    most_metadata: usize,
    /// The call whose handler is being polled.
    current: Rc<CurrentCall>,
    /// Replies that wait for room in the message queue.
    replies: WaitingReplies,
    /// Peers that did not get a reply to a started call.
    unanswered: BTreeSet<PeerKey>,
    services: BTreeMap<u64, &'static ServiceName>,
    methods: Vec<Served>,
    /// Counters for requests to methods that are not served.
    others: Arc<MethodCounters>,
    /// Index in `methods` and the service, by hash of the method.
    index: BTreeMap<u64, (u32, &'static ServiceName)>,
    /// Index in `methods`, by number of the method.
    by_number: Vec<Option<u32>>,
    running: BTreeMap<TaskId, Running>,
    by_key: BTreeMap<Key, TaskId>,
    deadlines: Deadlines<TaskId>,
    /// Handlers to drop because the caller's peer is lost.
    lost: VecDeque<(TaskId, Key)>,
    scratch: Vec<u8>,
    /// Rate limits of the log lines about failed calls.
    log: FailureLog,
    /// Authorizers of the program; `None` if there are none.
    authorizers: Option<Box<(Authorizers, RefusalLog)>>,
    poller: Rc<LocalQueue>,
    /// Foreign runtime, entered while code of the program runs.
    runtime_guard: RuntimeGuard,
    /// Inbox of the poller. It also provides the node's lifecycle and the marker of the running code.
    inbox: Arc<Inbox>,
}

impl Dispatch {
    pub(crate) fn new(
        services: &[Service],
        numbers: &MethodNumbers,
        context: &PollerContext,
        pool: &Pool,
        budget: Share,
        arguments: Share,
        replies: Share,
        most_metadata: usize,
        inbox: &Arc<Inbox>,
    ) -> Result<Self, HandlerInitError> {
        let mut dispatch = Self {
            budget,
            arguments: Rc::new(ArgumentMemory::new(arguments, Rc::clone(context.call()))),
            most_metadata,
            current: Rc::clone(context.call()),
            replies: WaitingReplies::new(replies),
            unanswered: BTreeSet::new(),
            services: BTreeMap::new(),
            methods: Vec::new(),
            others: inbox.served().add_others(),
            index: BTreeMap::new(),
            by_number: Vec::new(),
            running: BTreeMap::new(),
            by_key: BTreeMap::new(),
            deadlines: Deadlines::default(),
            lost: VecDeque::new(),
            scratch: Vec::new(),
            log: FailureLog::default(),
            authorizers: None,
            poller: context.calls(),
            runtime_guard: context.runtime_guard().clone(),
            inbox: Arc::clone(inbox),
        };
        let mut names = Vec::new();
        let _inside = context.runtime_guard().enter();
        for service in services {
            dispatch.services.insert(service.name.hash, service.name);
            for (name, calls) in service.methods(context, pool)?.all {
                // A service has at most 1024 methods, and a node has far fewer than 2^20 services.
                let table = u32::try_from(dispatch.methods.len()).unwrap_or(u32::MAX);
                dispatch.index.insert(name.hash, (table, service.name));
                let number = numbers.of(name.hash);
                if let Some(number) = number {
                    let at = usize::from(number);
                    dispatch.by_number.resize(dispatch.by_number.len().max(at + 1), None);
                    dispatch.by_number[at] = Some(table);
                }
                names.push(name);
                let limits = service.limits_of(name);
                let (one_way, streams, shapes) = (name.one_way, name.streams, name.shapes);
                shapes.into_iter().for_each(|shapes| _ = shapes.trace());
                let counters = inbox.served().add(name);
                dispatch.methods.push(Served {
                    name,
                    calls,
                    one_way,
                    streams,
                    limits,
                    number,
                    shapes,
                    counters,
                });
            }
        }
        inbox.running().set_methods(names);
        inbox.running().runs_here();
        Ok(dispatch)
    }

    /// Returns true if all calls from a peer that ended in this session got the replies that they require.
    pub(crate) fn has_answered(&self, peer: PeerKey) -> bool {
        !self.unanswered.contains(&peer)
    }

    /// Returns true if all handlers of a peer's calls have ended and all replies to the peer have been sent.
    pub(crate) fn has_ended(&self, peer: PeerKey) -> bool {
        // Uses the budget, because searching `running` for each peer would delay the remaining handlers of a draining
        // poller.
        !self.replies.has_any_to(peer) && self.budget.used_by(peer) == 0
    }

    /// Returns the time when `expire` or `send_waiting` must be called next.
    pub(crate) fn next_deadline(&self) -> Option<Time> {
        self.deadlines.next().into_iter().chain(self.replies.next_timer()).min()
    }

    /// Returns the number of running handlers and waiting replies.
    pub(crate) fn len(&self) -> usize {
        self.running.len() + self.replies.len()
    }

    /// Returns the ledgers of running handlers, decoded arguments and waiting replies. `bytes` contains the bytes charged
    /// for streams opened by this node, which count as arguments.
    pub(crate) fn budgets(&self, mut bytes: BTreeMap<PeerKey, usize>) -> [BudgetLedger; 3] {
        let mut handlers = BTreeMap::new();
        for Running { caller: Caller { key, .. }, decoded, stream, .. } in self.running.values() {
            *handlers.entry(key.peer).or_default() += 1;
            let decoded = decoded + stream.as_ref().map_or(0, |stream| stream.charged());
            if decoded > 0 {
                *bytes.entry(key.peer).or_default() += decoded;
            }
        }
        [self.budget.ledger(handlers), self.arguments.ledger(bytes), self.replies.ledger()]
    }

    /// Returns the number of occupied slots in the methods' tables, one per running handler.
    pub(crate) fn slots(&self) -> usize {
        self.methods.iter().map(|served| served.calls.len()).sum()
    }

    #[inline]
    fn served(&self, table: u32) -> Option<&Served> {
        self.methods.get(table as usize)
    }

    /// Ends a turn and publishes the exact budget to other pollers.
    pub(crate) fn settle(&self) {
        self.budget.settle_cache();
    }
}

impl std::fmt::Debug for Dispatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Dispatch").field("running", &self.running.len()).finish_non_exhaustive()
    }
}
