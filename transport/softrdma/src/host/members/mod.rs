//! Messages between the members of one host.
//!
//! [`Members`] owns this member's connections with other members, and the messages for the device that were read but
//! not taken yet. The link's relay uses it to exchange datagrams with other members, and the device uses it for all
//! other messages. Each call takes a lock for a bounded time, and does not wait for another member.
#![forbid(unsafe_code)]

mod connections;
mod inbox;
mod outcome;
mod socket;
mod user;

pub(crate) use connections::MAX_MESSAGE_BYTES;
pub(crate) use outcome::Undelivered;
pub(super) use socket::{Folder, send};
pub(crate) use user::stat_fields;

use super::{AreaHandle, Host, HostError, MemberId};
use connections::{Arrived, Connections};
use inbox::SimulatedInbox;
use nix::sys::epoll::Epoll;
use nix::unistd::geteuid;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use trunkline_verbs::Counter;

/// Maximum number of messages queued for the device; further messages stay in their sockets.
pub(crate) const MAX_QUEUED: usize = 256;
/// Limits on the number and size of the buffers kept for reuse. Most messages are short wake-ups.
const MAX_SPARE: usize = 16;
const SPARE_BYTES: usize = 256;

/// A message for the device.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum MemberMessage {
    /// A message from another member that is not for the relay.
    Message {
        /// Sender of the message.
        from: MemberId,
        /// Kind of the message.
        kind: u8,
        /// Body of the message.
        bytes: Vec<u8>,
    },
    /// A message with an area of its sender.
    Handover {
        /// Sender of the message.
        from: MemberId,
        /// Kind of the message.
        kind: u8,
        /// Body of the message.
        bytes: Vec<u8>,
        /// The area.
        area: AreaHandle,
    },
    /// A connection with the member ended. [`Host::is_alive`] returns false if the member has died.
    Lost(MemberId),
}

/// Result of [`Members::receive`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Received {
    /// A message of the requested kind. Its body is in the buffer.
    Message,
    /// A message of another kind was queued for the device.
    Queued,
    /// A connection with a member ended. The end was also queued for the device.
    Lost,
}

/// This member's messages to and from other members.
#[derive(Debug)]
pub(crate) struct Members {
    state: Mutex<MessageQueues>,
    /// True if a message is queued for the device. Checked without the lock, for an idle device.
    has_queued: AtomicBool,
    /// True if connections wait for descriptors or memory. Checked without the lock.
    is_short: Arc<AtomicBool>,
    /// Becomes readable when messages arrive; `None` on a simulated host.
    epoll: Option<Arc<Epoll>>,
    host: Arc<Host>,
}

#[derive(Debug)]
struct MessageQueues {
    way: Way,
    /// Messages for the device, oldest first.
    queued: VecDeque<MemberMessage>,
    spare: Vec<Vec<u8>>,
}

/// Transport of messages, which are sockets, or inboxes in a simulation.
#[derive(Debug)]
enum Way {
    Sockets(Box<Connections>),
    Memory(SimulatedInbox),
}

impl Members {
    /// Starts to listen in the member's slot.
    ///
    /// # Errors
    /// Fails if the sockets cannot be created.
    pub(crate) fn new(host: Arc<Host>) -> Result<Arc<Self>, HostError> {
        let mut is_short = Arc::default();
        let (way, epoll) = match (host.memory(), host.directory()) {
            (Some(memory), _) => {
                (Way::Memory(SimulatedInbox::new(Arc::clone(memory), Arc::clone(&host))), None)
            }
            (None, Some(folder)) => {
                let connections = Connections::new(Arc::clone(&host), folder)?;
                let epoll = Arc::clone(connections.epoll());
                is_short = Arc::clone(connections.is_paused());
                (Way::Sockets(Box::new(connections)), Some(epoll))
            }
            (None, None) => {
                let source = io::ErrorKind::Unsupported.into();
                return Err(HostError::Os { doing: "make sockets in", path: PathBuf::new(), source });
            }
        };
        let state = Mutex::new(MessageQueues { way, queued: VecDeque::new(), spare: Vec::new() });
        Ok(Arc::new(Self { state, has_queued: AtomicBool::new(false), is_short, epoll, host }))
    }

    pub(crate) fn host(&self) -> &Arc<Host> {
        &self.host
    }

    /// Sends a message whose body is the concatenation of the parts.
    ///
    /// # Errors
    /// Returns [`Undelivered`]. The message is then dropped and counted.
    pub(crate) fn send(&self, to: MemberId, kind: u8, parts: &[&[u8]]) -> Result<(), Undelivered> {
        match &mut self.lock().way {
            Way::Sockets(connections) => connections.send(to, kind, parts),
            Way::Memory(inbox) => inbox.send(to, kind, parts),
        }
    }

    /// Sends a message with an area of this member.
    ///
    /// # Errors
    /// Returns [`Undelivered`]. The message is then dropped and counted.
    pub(crate) fn hand_over(
        &self,
        to: MemberId,
        kind: u8,
        body: &[u8],
        area: &AreaHandle,
    ) -> Result<(), Undelivered> {
        match &mut self.lock().way {
            Way::Sockets(connections) => connections.hand_over(to, kind, body, area),
            Way::Memory(inbox) => inbox.hand_over(to, kind, body, area),
        }
    }

    /// Ensures that the death of a member is reported as a loss, even if the member is already dead. Returns false if
    /// the member cannot be watched now; call the function again later.
    pub(crate) fn watch(&self, member: MemberId) -> bool {
        match &mut self.lock().way {
            Way::Sockets(connections) => connections.watch(member),
            Way::Memory(inbox) => inbox.watch(member),
        }
    }

    /// Connects to a member, so that its death is reported as a loss. Returns false if the member cannot be
    /// reached now, or is dead.
    pub(crate) fn connect(&self, member: MemberId) -> bool {
        match &mut self.lock().way {
            Way::Sockets(connections) => connections.connect(member),
            Way::Memory(inbox) => inbox.connect(member).is_ok(),
        }
    }

    /// Returns true if a connection with a member is open, without a system call. Always false on a simulated
    /// host. The end of the connection is reported by [`Members::receive`] as a loss.
    pub(crate) fn is_connected(&self, member: MemberId) -> bool {
        match &self.lock().way {
            Way::Sockets(connections) => connections.is_connected(member),
            Way::Memory(_) => false,
        }
    }

    /// Returns the pid of a member that is connected to this one; `None` on a simulated host.
    pub(crate) fn process_of(&self, member: MemberId) -> Option<u32> {
        match &self.lock().way {
            Way::Sockets(connections) => connections.process_of(member),
            Way::Memory(_) => None,
        }
    }

    /// Returns this process's effective uid if a member's process has the same uid in this user namespace. Connects to
    /// the member.
    pub(crate) fn user_of(&self, member: MemberId) -> Option<u32> {
        let process = match &mut self.lock().way {
            Way::Sockets(connections) => connections.listening(member)?,
            Way::Memory(_) => return self.host.is_alive(member).then(|| geteuid().as_raw()),
        };
        // Query the process without holding the lock, which shards take.
        process.user()
    }

    /// Returns true if connections wait for descriptors or memory. Call [`Members::resume`] later in that
    /// case.
    pub(crate) fn is_short(&self) -> bool {
        self.is_short.load(Ordering::Relaxed)
    }

    /// Attempts the waiting connections again.
    pub(crate) fn resume(&self) {
        if let Way::Sockets(connections) = &mut self.lock().way {
            connections.resume();
        }
    }

    /// Reads the next message. The body of a message of `kind` replaces the content of the buffer; other
    /// messages are queued for the device. Returns `None` if the sockets are empty or the queue for the
    /// device is full.
    pub(crate) fn receive(&self, kind: u8, into: &mut Vec<u8>) -> Option<Received> {
        let mut state = self.lock();
        let MessageQueues { way, queued, spare } = &mut *state;
        if queued.len() >= MAX_QUEUED {
            return None;
        }
        let arrived = match way {
            Way::Sockets(connections) => connections.receive()?,
            Way::Memory(inbox) => inbox.receive()?,
        };
        let (message, received) = match arrived {
            Arrived::Message { kind: read, bytes, .. } if read == kind => {
                into.clear();
                into.extend_from_slice(bytes);
                return Some(Received::Message);
            }
            Arrived::Message { from, kind, bytes } => {
                let mut kept = spare.pop().unwrap_or_default();
                kept.extend_from_slice(bytes);
                (MemberMessage::Message { from, kind, bytes: kept }, Received::Queued)
            }
            Arrived::Handover { from, kind, bytes, area } => {
                (MemberMessage::Handover { from, kind, bytes: bytes.to_vec(), area }, Received::Queued)
            }
            Arrived::Lost(member) => (MemberMessage::Lost(member), Received::Lost),
        };
        queued.push_back(message);
        self.has_queued.store(true, Ordering::Relaxed);
        Some(received)
    }

    /// Returns true if a message is queued for the device. Call it only in the turn in which messages are read.
    pub(crate) fn has_queued(&self) -> bool {
        self.has_queued.load(Ordering::Relaxed)
    }

    /// Takes the oldest message queued for the device.
    pub(crate) fn next_message(&self) -> Option<MemberMessage> {
        // Messages are queued and taken in turns of the first shard, so the order of this flag and the queue
        // does not matter.
        if !self.has_queued() {
            return None;
        }
        let mut state = self.lock();
        let message = state.queued.pop_front();
        self.has_queued.store(!state.queued.is_empty(), Ordering::Relaxed);
        message
    }

    /// Keeps the buffer of a handled message for reuse.
    pub(crate) fn reuse(&self, mut bytes: Vec<u8>) {
        if bytes.capacity() > SPARE_BYTES {
            return;
        }
        bytes.clear();
        let spare = &mut self.lock().spare;
        if spare.len() < MAX_SPARE {
            spare.push(bytes);
        }
    }

    /// Returns true if all messages read from the sockets were delivered.
    pub(crate) fn is_drained(&self) -> bool {
        match &self.lock().way {
            Way::Sockets(connections) => connections.is_drained(),
            Way::Memory(inbox) => !inbox.has_arrivals(),
        }
    }

    /// Returns true if [`Members::receive`] may return something.
    pub(crate) fn has_arrivals(&self) -> bool {
        match &self.lock().way {
            Way::Sockets(connections) => connections.is_readable(),
            Way::Memory(inbox) => inbox.has_arrivals(),
        }
    }

    /// Returns a descriptor that becomes readable when messages arrive. It may be watched edge-triggered.
    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.epoll.as_ref().map(|epoll| epoll.0.as_fd())
    }

    pub(crate) fn counters(&self, into: &mut Vec<Counter>) {
        match &self.lock().way {
            Way::Sockets(connections) => connections.counters(into),
            Way::Memory(inbox) => inbox.counters(into),
        }
    }

    #[cfg(test)]
    pub(crate) fn queued_for_tests(&self) -> usize {
        self.lock().queued.len()
    }

    fn lock(&self) -> MutexGuard<'_, MessageQueues> {
        // Every method leaves the state consistent at each point where it could panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
