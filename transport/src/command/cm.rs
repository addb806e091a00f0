//! Commands of pollers and the node to the CM machine.

use crate::{Connect, PeerDown, PeerKey, PollerIndex};
use crossbeam_queue::SegQueue;
use std::fmt;
use std::sync::Arc;
use trunkline_machine::Waker;
use trunkline_verbs::{CmId, Time, VerbsError};

/// An endpoint whose route to a peer is resolved, or why that failed.
pub(crate) type DialOutcome = Result<Arc<dyn CmId>, VerbsError>;

/// A command to the CM machine.
#[derive(Debug)]
pub(crate) enum CmCommand {
    /// A poller has something to send to this peer, or is about to.
    Want { peer: PeerKey, connect: Connect },
    /// Resolving the address of a peer has ended, for one INI of a session.
    Resolved { peer: PeerKey, number: u32, poller: u16, hello: Vec<u8>, outcome: DialOutcome },
    /// A poller found a session unusable.
    Broken { peer: PeerKey, number: u32, cause: PeerDown },
    /// A poller has taken what the removed device had received.
    Emptied { poller: PollerIndex },
    /// A poller has released the removed device.
    Released { poller: PollerIndex },
    /// A poller has nothing in progress any more, after the command to shut down.
    Drained { poller: PollerIndex },
    /// The node shuts down, and its grace period ends at the deadline. Close everything soon after it, even
    /// if not every poller has reported.
    ShutDownBy { deadline: Time },
    /// Close everything now.
    Shutdown,
}

struct Shared {
    commands: SegQueue<CmCommand>,
    waker: Waker,
}

/// Handle of the CM machine.
#[derive(Clone)]
pub(crate) struct CmHandle(Arc<Shared>);

impl CmHandle {
    pub(crate) fn new(waker: Waker) -> Self {
        Self(Arc::new(Shared { commands: SegQueue::new(), waker }))
    }

    pub(crate) fn command(&self, command: CmCommand) {
        self.0.commands.push(command);
        self.0.waker.wake();
    }

    pub(crate) fn next_command(&self) -> Option<CmCommand> {
        self.0.commands.pop()
    }

    pub(crate) fn has_commands(&self) -> bool {
        !self.0.commands.is_empty()
    }
}

impl fmt::Debug for CmHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CmHandle")
    }
}
