//! The counters of the methods that one poller calls.

use crate::executor::inbox::Inbox;
use crate::observe::counted::MethodCounters;
use crate::wire::name::MethodName;
use std::collections::BTreeMap;
use std::ptr;
use std::sync::Arc;

/// Counters by method, at most as many as the program has methods.
pub(super) struct Counters {
    inbox: Arc<Inbox>,
    all: Vec<Arc<MethodCounters>>,
    /// Index in `all` by the method's hash.
    index: BTreeMap<u64, u32>,
    /// Last result, because calls come in runs.
    last: Option<(&'static MethodName, u32)>,
}

impl Counters {
    pub(super) fn new(inbox: &Arc<Inbox>) -> Self {
        Self { inbox: Arc::clone(inbox), all: Vec::new(), index: BTreeMap::new(), last: None }
    }

    /// Returns the index of a method's counters.
    #[inline]
    pub(super) fn index(&mut self, method: &'static MethodName) -> u32 {
        match self.last {
            Some((last, index)) if ptr::eq(last, method) => index,
            _ => self.find(method),
        }
    }

    #[inline(never)]
    fn find(&mut self, method: &'static MethodName) -> u32 {
        let Self { inbox, all, index, last } = self;
        let index = *index.entry(method.hash).or_insert_with(|| {
            all.push(inbox.called().add(method));
            u32::try_from(all.len() - 1).unwrap_or(u32::MAX)
        });
        *last = Some((method, index));
        index
    }

    /// Returns the counters of an index.
    #[inline]
    pub(super) fn at(&self, index: u32) -> Option<&MethodCounters> {
        self.all.get(index as usize).map(|counters| &**counters)
    }

    /// Returns the counters of a method.
    pub(super) fn of(&mut self, method: &'static MethodName) -> Option<&MethodCounters> {
        let index = self.index(method);
        self.at(index)
    }
}
