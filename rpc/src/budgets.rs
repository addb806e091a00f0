//! Budgets of handlers, decoded arguments and outgoing calls: per peer and in all.
//!
//! The builder holds the limits, a node the budgets made of them; each poller gets its share of both.

use crate::start_error::StartError;
use std::sync::Arc;
use trunkline_transport::budget::{Budget, Share};
use trunkline_transport::{BudgetReport, Limit, PollerIndex};

/// The setting of the limit of decoded values, by which refusals name it.
pub(crate) const DECODED_BYTES: &str = "decoded_bytes";
/// The name of the budget of decoded arguments.
pub(crate) const ARGUMENTS: &str = "bytes of decoded arguments";
/// Least that decoded values may take.
const LEAST_DECODED: usize = 64 << 10;

/// The limits of a node.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) handlers: Limit,
    pub(crate) calls: Limit,
    /// Bytes.
    pub(crate) decoded: Limit,
    /// Bytes: as many as may be queued.
    pub(crate) waiting_replies: Limit,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            handlers: Limit { per_peer: 16_384, in_all: 65_536 },
            calls: Limit { per_peer: 65_536, in_all: 262_144 },
            decoded: Limit { per_peer: 256 << 20, in_all: 1 << 30 },
            waiting_replies: Limit { per_peer: 128 << 20, in_all: 512 << 20 },
        }
    }
}

impl Limits {
    /// Refuses limits of 0, and those for all that are lower than those for one.
    pub(crate) fn check(&self) -> Result<(), StartError> {
        for (option, limit) in [("handler_limit", self.handlers), ("call_limit", self.calls)] {
            limit.check(option, 1, "choose 1 or more").map_err(StartError::from_transport)?;
            if u32::try_from(limit.in_all).is_err() {
                return Err(StartError::bad_option(option, limit.in_all, "choose less than 2^32"));
            }
        }
        let decoded = self.decoded.check(DECODED_BYTES, LEAST_DECODED, "choose 64 KiB or more");
        decoded.map_err(StartError::from_transport)
    }
}

/// The budgets of a node.
#[derive(Debug, Clone)]
pub(crate) struct Budgets {
    handlers: Arc<Budget>,
    calls: Arc<Budget>,
    decoded: Arc<Budget>,
    waiting_replies: Arc<Budget>,
    /// Most bytes that one decoded reply may take.
    pub(crate) most_decoded: usize,
}

impl Budgets {
    /// Of a node with so many pollers.
    pub(crate) fn new(limits: Limits, pollers: u16) -> Self {
        Self {
            handlers: Budget::new("running handlers", limits.handlers, pollers),
            calls: Budget::new("calls under way", limits.calls, pollers),
            decoded: Budget::new(ARGUMENTS, limits.decoded, pollers),
            waiting_replies: Budget::new("bytes of replies that wait", limits.waiting_replies, pollers),
            most_decoded: limits.decoded.per_peer,
        }
    }

    /// A poller's share of the handlers that may run.
    pub(crate) fn handlers(&self, poller: PollerIndex) -> Share {
        Share::new(&self.handlers, poller.0)
    }

    /// A poller's share of the calls that may be under way.
    pub(crate) fn calls(&self, poller: PollerIndex) -> Share {
        Share::new(&self.calls, poller.0)
    }

    /// A poller's share of the bytes that decoded arguments may take.
    pub(crate) fn arguments(&self, poller: PollerIndex) -> Share {
        Share::new(&self.decoded, poller.0)
    }

    /// A poller's share of the bytes that replies may have that wait for room in the queue of messages.
    pub(crate) fn waiting_replies(&self, poller: PollerIndex) -> Share {
        Share::new(&self.waiting_replies, poller.0)
    }

    pub(crate) fn report(&self) -> [BudgetReport; 4] {
        [&self.handlers, &self.decoded, &self.waiting_replies, &self.calls].map(|budget| budget.report())
    }
}
