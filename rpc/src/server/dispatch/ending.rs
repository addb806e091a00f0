//! Ends calls that were cancelled or have expired, and calls whose peer or node is lost.
//!
//! When the grace period of the node ends, running calls and calls whose reply waits for room end with a small reply. The
//! session is still open then, so the caller gets the reason. Handlers of one-way calls end at the same time, without a
//! reply.

use super::Dispatch;
use crate::executor::TaskId;
use crate::observe::counted::CallFailure;
use crate::server::Failure;
use crate::server::caller::{Caller, Key};
use crate::status::reason::Reason;
use crate::status::{Code, Status};
use crate::wire::metadata::ReplyMetadata;
use std::collections::btree_map::Entry;
use trunkline_machine::mutant;
use trunkline_machine::rings::panics::catch;
use trunkline_transport::{Leaves, Origin, PeerKey, Transport};
use trunkline_verbs::Time;

/// Maximum numbers of handlers that one turn drops for lost peers, and after their deadlines. A higher number would delay the
/// calls of other peers.
const TURN: usize = 64;

impl Dispatch {
    /// Drops the handler of a call that its caller cancelled.
    pub(crate) fn cancel(&mut self, now: Time, from: Origin, call: u64) {
        let first = || self.running.keys().next().copied().filter(|_| mutant!(cancel_ends_another_call));
        if let Some(task) = first().or_else(|| self.by_key.get(&Key::new(from, call)).copied()) {
            return self.drop_counted(now, task, Code::Cancelled);
        }
        if !self.replies.is_empty() {
            self.replies.cancel(Key::new(from, call));
        }
    }

    /// Drops handlers whose deadline has passed, at most [`TURN`]. Returns true if it dropped any.
    pub(crate) fn expire(&mut self, transport: &mut Transport) -> bool {
        let mut any = false;
        for _ in 0..TURN {
            let Some(task) = self.deadlines.due(transport.now()) else { break };
            any = true;
            let caller = self.running.get_mut(&task).map(|running| {
                running.timer = None;
                running.caller
            });
            self.current.take_withdrawn();
            self.drop_task(transport.now(), task);
            let is_withdrawn = self.current.take_withdrawn();
            if let Some(caller) = caller.filter(|_| is_withdrawn) {
                let text = "the deadline passed while the call waited for a worker";
                let status = Status::not_run(Code::DeadlineExceeded, text).because(Reason::Expired);
                self.reply(transport, caller, Err(Failure::Node(status)), None);
            } else if let Some(caller) = caller {
                let failure = CallFailure::because(Code::DeadlineExceeded, Reason::Expired);
                self.count_failed(task.table, caller.key.peer, failure);
                if caller.one_way {
                    self.inbox.lifecycle().counters.one_way_failed.add();
                } else {
                    self.unanswered.insert(caller.key.peer);
                }
            }
        }
        any
    }

    /// Ends the calls from a lost peer. Their handlers are dropped in this turn and later ones.
    pub(crate) fn down(&mut self, now: Time, peer: PeerKey) {
        if mutant!(handlers_outlive_their_peer) {
            return;
        }
        let lost = self
            .running
            .iter()
            .filter(|(_, running)| running.caller.key.peer == peer && !running.caller.one_way);
        self.lost.extend(lost.map(|(task, running)| (*task, running.caller.key)));
        self.budget.leave(peer);
        self.arguments.leave(peer);
        self.replies.down(peer, now);
        self.unanswered.remove(&peer);
    }

    /// Returns true if handlers of lost peers remain to be dropped.
    pub(crate) fn has_lost(&self) -> bool {
        !self.lost.is_empty()
    }

    /// Drops handlers of lost peers, at most [`TURN`]. Returns true if there were any.
    pub(crate) fn end_lost(&mut self, now: Time) -> bool {
        let count = self.lost.len().min(TURN);
        for (task, key) in self.lost.drain(..count).collect::<Vec<_>>() {
            // The handler may have ended, and another call may run in its slot.
            if self.running.get(&task).is_some_and(|running| running.caller.key == key) {
                self.drop_counted(now, task, Code::Cancelled);
            }
        }
        count > 0
    }

    /// Drops all handlers one by one, so that a panic in one destructor does not affect the others.
    pub(crate) fn close(&mut self) {
        for task in self.running.keys().copied().collect::<Vec<_>>() {
            // The time is unknown here, so the report counts a duration of zero.
            self.drop_counted(Time::default(), task, Code::Cancelled);
        }
        self.replies.close();
    }

    /// Drops the services of an ending poller. All of its handlers have ended.
    pub(crate) fn drop_services(&mut self) {
        for served in self.methods.drain(..) {
            // Dropping the last method of a service drops the service's handler, which may panic.
            let _ended = catch(|| drop(served));
        }
    }

    /// Ends all calls because the node's grace period has ended. Returns true if any of them got a reply.
    #[cold]
    pub(crate) fn end_all(&mut self, transport: &mut Transport) -> bool {
        let waiting = self.replies.take_all();
        let mut has_told = !waiting.is_empty();
        for reply in waiting {
            // Otherwise the reply would wait behind items that the peer does not accept.
            let caller = Caller { overtakes: true, ..reply.caller };
            self.reply(transport, caller, Err(Failure::Node(outlasted("its reply was taken"))), None);
        }
        let running = self.running.iter().map(|(task, running)| (*task, running.caller));
        for (task, caller) in running.collect::<Vec<_>>() {
            has_told |= !caller.one_way;
            self.fail(
                transport,
                task,
                outlasted(if caller.streams.any() { "the stream" } else { "the call" }),
            );
        }
        has_told
    }

    /// Drops a handler. Returns false if the handler is not running.
    pub(super) fn drop_task(&mut self, now: Time, task: TaskId) -> bool {
        if self.forget(now, task, true).is_none() {
            return false;
        }
        if let Some(served) = self.methods.get_mut(task.table as usize) {
            self.inbox.running().handler(task.table);
            let _inside = self.runtime_guard.enter();
            served.calls.cancel(task.slot);
        }
        true
    }

    /// Removes a handler that has ended. Returns its caller and the response metadata. If `has_run` is false, the call is
    /// not counted.
    pub(super) fn forget(
        &mut self,
        now: Time,
        task: TaskId,
        has_run: bool,
    ) -> Option<(Caller, Option<Box<ReplyMetadata>>)> {
        let running = self.running.remove(&task)?;
        let counters = self.counters(task.table);
        let ns = now.since(running.started);
        if !has_run {
            counters.withdrawn();
        } else if counters.ended(ns) {
            self.inbox.recorder().call(counters, running.caller.key.peer, ns);
        }
        if !mutant!(ended_handlers_stay_charged) {
            self.ended(running.caller.key.peer, task.table);
        }
        self.arguments.put_back(running.caller.key.peer, running.decoded);
        if let Some(stream) = &running.stream {
            self.arguments.put_back(running.caller.key.peer, stream.close());
        }
        // The entry may belong to a later call that reused the number.
        if let Entry::Occupied(entry) = self.by_key.entry(running.caller.key)
            && *entry.get() == task
        {
            entry.remove();
        }
        running.timer.and_then(|timer| self.deadlines.remove(timer));
        let metadata = running.context.and_then(|context| context.end());
        Some((running.caller, metadata))
    }

    /// Releases the charges of a call that has ended.
    #[inline]
    pub(super) fn ended(&mut self, peer: PeerKey, table: u32) {
        self.budget.put_back_one(peer, Leaves::Nothing);
        self.served(table).inspect(|served| served.limits.put_back());
    }
}

/// Returns the status of a call that outlasted this node's grace period.
fn outlasted(what: &str) -> Status {
    let text = format!("the server shuts down, and its grace period ended before {what}");
    Status::ran(Code::Unavailable, text).because(Reason::Draining)
}
