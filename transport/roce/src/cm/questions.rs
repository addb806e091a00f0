//! All SIDR requests ("questions" in the code) of this node and of its peers, with indices.
//!
//! Every change goes through this module, so that the indices, the listeners' backlogs and the counts of
//! undecided requests always agree with the requests.

use super::connection::{Addresses, ConnectionId, Refusals};
use super::listener::{ListenerId, Listeners};
use crate::wire::cm::{CmMessage, ServiceId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use trunkline_verbs::PeerHost;

/// The state of a SIDR request.
#[derive(Debug)]
pub(super) enum Stage {
    /// A request of this node, which is repeated until it is answered or `until` has passed.
    Asked { message: Box<CmMessage>, sent: u32, until: u64, refusals: Refusals },
    /// The program decides. The request counts against the limit of `host` and, until it is delivered to the program,
    /// against the backlog of the listener.
    Undecided { host: PeerHost, waiting: Option<ListenerId> },
    /// The request was answered or refused with this message, which is sent again for each repetition of the request.
    Answered(Box<CmMessage>),
}

/// Identity of a SIDR request, by which its repetitions are recognised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct QuestionKey {
    pub(super) addresses: Addresses,
    pub(super) request_id: u32,
    pub(super) service_id: ServiceId,
    pub(super) transaction: u64,
}

#[derive(Debug)]
pub(super) struct Question {
    pub(super) id: ConnectionId,
    /// Key of the request. In requests of this node, `request_id` equals `id`.
    pub(super) key: QuestionKey,
    pub(super) stage: Stage,
    /// Time at which the timer fires. The timer always runs.
    pub(super) timer: u64,
}

#[derive(Debug, Default)]
pub(super) struct Questions {
    questions: BTreeMap<ConnectionId, Question>,
    /// Requests of peers.
    by_key: BTreeMap<QuestionKey, ConnectionId>,
    timers: BTreeSet<(u64, ConnectionId)>,
    undecided: BTreeMap<PeerHost, usize>,
    undecided_total: usize,
    /// Answered requests, oldest first. All are kept for the same time.
    answered: VecDeque<ConnectionId>,
}

impl Questions {
    pub(super) fn len(&self) -> usize {
        self.questions.len()
    }

    pub(super) const fn undecided_total(&self) -> usize {
        self.undecided_total
    }

    pub(super) fn undecided_of(&self, host: PeerHost) -> usize {
        self.undecided.get(&host).copied().unwrap_or(0)
    }

    pub(super) fn get(&self, id: ConnectionId) -> Option<&Question> {
        self.questions.get(&id)
    }

    /// Returns the peer's request with this key.
    pub(super) fn same(&self, key: &QuestionKey) -> Option<&Question> {
        self.by_key.get(key).and_then(|id| self.get(*id))
    }

    pub(super) fn next_timer(&self) -> Option<(u64, ConnectionId)> {
        self.timers.first().copied()
    }

    pub(super) fn insert(&mut self, listeners: &mut Listeners, question: Question) {
        let (id, timer) = (question.id, question.timer);
        if !matches!(question.stage, Stage::Asked { .. }) {
            self.by_key.insert(question.key, id);
        }
        self.timers.insert((timer, id));
        self.questions.insert(id, question);
        self.count(listeners, id, true);
    }

    /// Returns the refusals of a request of this node.
    pub(super) fn refusals(&mut self, id: ConnectionId) -> Option<&mut Refusals> {
        match &mut self.questions.get_mut(&id)?.stage {
            Stage::Asked { refusals, .. } => Some(refusals),
            _ => None,
        }
    }

    /// Counts one more transmission of a request of this node, and returns the message to send.
    pub(super) fn repeat(&mut self, id: ConnectionId, timer: u64) -> Option<(QuestionKey, CmMessage)> {
        let question = self.questions.get_mut(&id)?;
        let Stage::Asked { message, sent, .. } = &mut question.stage else { return None };
        *sent = sent.saturating_add(1);
        let copy = (question.key, **message);
        self.timers.remove(&(question.timer, id));
        question.timer = timer;
        self.timers.insert((timer, id));
        Some(copy)
    }

    /// Records that a request was delivered to its program and no longer counts against the backlog.
    pub(super) fn stop_counting(&mut self, listeners: &mut Listeners, id: ConnectionId) {
        let stage = self.questions.get_mut(&id).map(|question| &mut question.stage);
        let Some(Stage::Undecided { waiting, .. }) = stage else { return };
        if let Some(listener) = waiting.take() {
            listeners.count(listener, false);
        }
    }

    /// Keeps the program's answer for repetitions. Beyond `limit` answers, the oldest is dropped.
    pub(super) fn answer(
        &mut self,
        listeners: &mut Listeners,
        id: ConnectionId,
        answer: CmMessage,
        until: u64,
        limit: usize,
    ) {
        self.count(listeners, id, false);
        let Some(question) = self.questions.get_mut(&id) else { return };
        question.stage = Stage::Answered(Box::new(answer));
        self.timers.remove(&(question.timer, id));
        question.timer = until;
        self.timers.insert((until, id));
        self.answered.push_back(id);
        if self.answered.len() > limit
            && let Some(oldest) = self.answered.front().copied()
        {
            self.remove(listeners, oldest);
        }
    }

    pub(super) fn remove(&mut self, listeners: &mut Listeners, id: ConnectionId) {
        self.count(listeners, id, false);
        let Some(question) = self.questions.remove(&id) else { return };
        self.timers.remove(&(question.timer, id));
        if self.by_key.get(&question.key) == Some(&id) {
            self.by_key.remove(&question.key);
        }
        // The search is short, because requests are removed at or near the front of the list, which is ordered from oldest
        // to newest.
        if matches!(question.stage, Stage::Answered(_))
            && let Some(at) = self.answered.iter().position(|other| *other == id)
        {
            self.answered.remove(at);
        }
    }

    fn count(&mut self, listeners: &mut Listeners, id: ConnectionId, more: bool) {
        let Some(question) = self.questions.get(&id) else { return };
        let Stage::Undecided { host, waiting } = question.stage else { return };
        if let Some(listener) = waiting {
            listeners.count(listener, more);
        }
        let of_host = self.undecided.entry(host).or_default();
        let step = |count: usize| if more { count + 1 } else { count.saturating_sub(1) };
        *of_host = step(*of_host);
        self.undecided_total = step(self.undecided_total);
        if *of_host == 0 {
            self.undecided.remove(&host);
        }
    }

    /// Checks the indices, for tests and fuzzing.
    ///
    /// # Panics
    /// When an index disagrees with the requests.
    pub(super) fn check(&self) {
        let of_stage = |wanted: fn(&Stage) -> bool| {
            self.questions.values().filter(|question| wanted(&question.stage)).count()
        };
        let undecided = of_stage(|stage| matches!(stage, Stage::Undecided { .. }));
        assert_eq!((undecided, undecided), (self.undecided_total, self.undecided.values().sum()));
        let answered = of_stage(|stage| matches!(stage, Stage::Answered(_)));
        assert_eq!(answered, self.answered.len());
        assert_eq!(undecided + answered, self.by_key.len());
        assert_eq!(self.questions.len(), self.timers.len());
        for question in self.questions.values() {
            assert!(self.timers.contains(&(question.timer, question.id)));
        }
    }
}
