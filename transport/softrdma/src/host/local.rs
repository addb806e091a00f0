//! Messages between the members of one host.
//!
//! Owns a listening socket per member and the connections, made on demand: each carries messages
//! one way, from the member that made it. Called by the UDP link, which hands on datagrams, and
//! through it by the card. It never waits and never keeps what a socket has no room for: that is
//! dropped and counted, and retransmission repairs it.
//!
//! ```text
//! connection:  hello, message, message ...
//! hello:       magic 4, slot of sender 2, slot of receiver 2, generation of each 4 + 4
//! message:     kind 1, body
//! ```
//! A member that dies or leaves is noticed by the end of any connection with it. Whoever can
//! connect is of our user (SO_PEERCRED, and the folder is closed to others); what it sends is
//! checked all the same, here for form and length, then by the kind's own reader.
#![forbid(unsafe_code)]

mod socket;

#[cfg(test)]
mod tests;

use super::{Host, MemberId};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use slab::Slab;
use socket::Folder;
use socket2::Socket;
use std::collections::{HashMap, VecDeque};
use std::io::{self, ErrorKind, IoSlice, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use trunkline_verbs::Counter;

/// Longest body of a message.
pub(crate) const MAX_LOCAL_BYTES: usize = 32 * 1024;
/// Parts of a message at most.
const MAX_PARTS: usize = 8;
const MAGIC: [u8; 4] = *b"TkL1";
const HELLO_BYTES: usize = 16;
/// Connections that have not said hello yet; beyond that the oldest goes.
const MAX_UNNAMED: usize = 32;
/// Readable sockets asked for at once.
const EVENTS: usize = 64;
/// Messages looked at, good or not, before [`LocalLink::receive`] answers that there is none.
const LOOKS: usize = 64;
/// The key of the listening socket; connections have their place in the slab.
const LISTENER: u64 = u64::MAX;

/// Why a message did not leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum LocalError {
    /// The member has died or left.
    #[error("the member is gone")]
    Gone,
    /// The socket has no room now.
    #[error("the member has more messages waiting than its socket holds")]
    Full,
    /// More than [`MAX_LOCAL_BYTES`], or too many parts.
    #[error("the message is too long")]
    TooLong,
}

/// What arrived.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum LocalEvent<'a> {
    /// A message, as `from` says it is.
    Message { from: MemberId, kind: u8, bytes: &'a [u8] },
    /// A connection with the member ended: it died or left, unless `Host::is_alive` says else.
    Lost(MemberId),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Peer {
    /// It made the connection and has not said who it is.
    Unnamed,
    /// It made the connection.
    From(MemberId),
    /// We made the connection.
    To(MemberId),
}

#[derive(Debug)]
struct Connection {
    socket: Socket,
    peer: Peer,
}

#[derive(Debug, Default)]
struct Counts {
    sent: u64,
    received: u64,
    full: u64,
    gone: u64,
    nonsense: u64,
}

/// One member's connections with the others.
#[derive(Debug)]
pub(crate) struct LocalLink {
    connections: Slab<Connection>,
    to: HashMap<MemberId, usize>,
    from: HashMap<MemberId, usize>,
    /// Oldest first.
    unnamed: VecDeque<usize>,
    /// Keys of sockets that were readable, each read in turn until it is empty.
    readable: VecDeque<u64>,
    lost: VecDeque<MemberId>,
    /// One message and a byte more, by which a longer one is told.
    buffer: Vec<u8>,
    counts: Counts,
    listener: Socket,
    epoll: Epoll,
    folder: Folder,
    /// Last, so that the slot is ours until the socket in it is gone.
    host: Arc<Host>,
}

impl LocalLink {
    /// Starts to listen in the member's slot.
    pub(crate) fn new(host: Arc<Host>) -> io::Result<Self> {
        let folder = Folder::new(host.directory())?;
        let listener = folder.listen(host.me().slot)?;
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        epoll.add(&listener, EpollEvent::new(EpollFlags::EPOLLIN, LISTENER))?;
        Ok(Self {
            connections: Slab::new(),
            to: HashMap::new(),
            from: HashMap::new(),
            unnamed: VecDeque::new(),
            readable: VecDeque::new(),
            lost: VecDeque::new(),
            buffer: vec![0; 1 + MAX_LOCAL_BYTES + 1],
            counts: Counts::default(),
            listener,
            epoll,
            folder,
            host,
        })
    }

    /// The registry.
    pub(crate) fn host(&self) -> &Arc<Host> {
        &self.host
    }

    /// Sends a message whose body is the parts, one behind the other.
    ///
    /// # Errors
    /// [`LocalError`]; the message is dropped then, and counted.
    pub(crate) fn send(&mut self, to: MemberId, kind: u8, parts: &[&[u8]]) -> Result<(), LocalError> {
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        if bytes > MAX_LOCAL_BYTES || parts.len() > MAX_PARTS {
            return Err(LocalError::TooLong);
        }
        let kind = [kind];
        let mut pieces = [IoSlice::new(&[]); 1 + MAX_PARTS];
        for (piece, part) in pieces.iter_mut().zip(std::iter::once(&kind[..]).chain(parts.iter().copied())) {
            *piece = IoSlice::new(part);
        }
        let result = self.connection_to(to).and_then(|key| {
            let sent = socket::send(&self.connections[key].socket, &pieces[..=parts.len()]);
            sent.map_err(|error| self.send_failed(key, &error))
        });
        match result {
            Ok(()) => self.counts.sent += 1,
            Err(LocalError::Gone) => self.counts.gone += 1,
            Err(_) => self.counts.full += 1,
        }
        result
    }

    /// Sees to it that the death of a member is told. One that is dead already is told as well.
    /// Answers whether that is so; else ask again later.
    pub(crate) fn connect(&mut self, to: MemberId) -> bool {
        match self.connection_to(to) {
            Err(LocalError::Gone) => {
                self.lose(to);
                true
            }
            connection => connection.is_ok(),
        }
    }

    /// The next message or loss, if one waits.
    pub(crate) fn receive(&mut self) -> Option<LocalEvent<'_>> {
        let mut asked = false;
        for _ in 0..LOOKS {
            if let Some(member) = self.lost.pop_front() {
                return Some(LocalEvent::Lost(member));
            }
            let Some(key) = self.readable.pop_front() else {
                if asked || !self.ask() {
                    return None;
                }
                asked = true;
                continue;
            };
            if key == LISTENER {
                self.accept();
            } else if let Some((from, length)) = self.read(key) {
                return Some(LocalEvent::Message {
                    from,
                    kind: self.buffer[0],
                    bytes: &self.buffer[1..length],
                });
            }
        }
        None
    }

    /// Whether `receive` has something to look at.
    pub(crate) fn is_readable(&self) -> bool {
        !self.lost.is_empty()
            || !self.readable.is_empty()
            || crate::link::any_readable(std::iter::once(self.epoll.0.as_fd()))
    }

    /// Becomes readable with the first message; fit for edge-triggered watchers.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }

    /// Appends its counters.
    pub(crate) fn counters(&self, into: &mut Vec<Counter>) {
        into.extend([
            Counter { name: "local_sent", value: self.counts.sent },
            Counter { name: "local_received", value: self.counts.received },
            Counter { name: "drop_local_full", value: self.counts.full },
            Counter { name: "drop_local_gone", value: self.counts.gone },
            Counter { name: "drop_local_nonsense", value: self.counts.nonsense },
        ]);
    }

    /// Asks which sockets are readable; whether any is.
    fn ask(&mut self) -> bool {
        let mut events = [EpollEvent::empty(); EVENTS];
        // Interrupted or not: what is not told now is told the next time.
        let count = self.epoll.wait(&mut events, EpollTimeout::ZERO).unwrap_or(0);
        self.readable.extend(events[..count].iter().map(EpollEvent::data));
        count > 0
    }

    /// Our connection to a member.
    fn connection_to(&mut self, to: MemberId) -> Result<usize, LocalError> {
        if let Some(key) = self.to.get(&to) {
            return Ok(*key);
        }
        if self.host.current(to.slot) != Some(to) {
            return Err(LocalError::Gone);
        }
        let refused = |error: &io::Error| match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::Interrupted => LocalError::Full,
            _ => LocalError::Gone,
        };
        let socket = self.folder.connect(to.slot).map_err(|error| refused(&error))?;
        let hello = hello(self.host.me(), to);
        socket::send(&socket, &[IoSlice::new(&hello)]).map_err(|error| refused(&error))?;
        let key = self.watch(socket, Peer::To(to)).ok_or(LocalError::Full)?;
        self.to.insert(to, key);
        Ok(key)
    }

    fn send_failed(&mut self, key: usize, error: &io::Error) -> LocalError {
        match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::Interrupted => LocalError::Full,
            _ if error.raw_os_error() == Some(libc::ENOBUFS) => LocalError::Full,
            _ => {
                self.end(key);
                LocalError::Gone
            }
        }
    }

    fn watch(&mut self, socket: Socket, peer: Peer) -> Option<usize> {
        let entry = self.connections.vacant_entry();
        let key = entry.key();
        let event = EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLRDHUP, key as u64);
        match self.epoll.add(&socket, event) {
            Ok(()) => {
                entry.insert(Connection { socket, peer });
                Some(key)
            }
            Err(error) => {
                tracing::warn!(%error, "a connection between processes cannot be watched");
                None
            }
        }
    }

    fn accept(&mut self) {
        let socket = match socket::accept(&self.listener) {
            Ok(Some(socket)) => socket,
            Ok(None) => {
                self.counts.nonsense += 1;
                return;
            }
            // None waits any more, or none can be taken: those that wait are told of again.
            Err(_) => return,
        };
        if let Some(key) = self.watch(socket, Peer::Unnamed) {
            self.unnamed.push_back(key);
            if self.unnamed.len() > MAX_UNNAMED
                && let Some(oldest) = self.unnamed.front().copied()
            {
                self.counts.nonsense += 1;
                self.end(oldest);
            }
            // Its hello is most often there.
            self.readable.push_back(key as u64);
        }
        self.readable.push_back(LISTENER);
    }

    /// Reads one message of a connection: its sender, and how many bytes of the buffer it has.
    fn read(&mut self, readable: u64) -> Option<(MemberId, usize)> {
        let key = usize::try_from(readable).ok()?;
        let connection = self.connections.get(key)?;
        let length = match (&connection.socket).read(&mut self.buffer) {
            Ok(0) => {
                self.end(key);
                return None;
            }
            Ok(length) => length,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock) => return None,
            Err(error) if matches!(error.kind(), ErrorKind::Interrupted) => 0,
            Err(_) => {
                self.end(key);
                return None;
            }
        };
        self.readable.push_back(readable);
        match connection.peer {
            _ if length == 0 => None,
            Peer::From(from) if length < self.buffer.len() => {
                self.counts.received += 1;
                Some((from, length))
            }
            Peer::Unnamed => {
                self.name(key, length);
                None
            }
            // Nobody of ours sends what is too long, or answers on a connection that we made.
            Peer::From(_) | Peer::To(_) => {
                self.counts.nonsense += 1;
                None
            }
        }
    }

    /// Takes a hello.
    fn name(&mut self, key: usize, length: usize) {
        let from = self.buffer[..length].try_into().ok().and_then(|bytes| heard(&bytes, self.host.me()));
        let known = from.filter(|from| self.host.current(from.slot) == Some(*from));
        let Some(from) = known else {
            self.counts.nonsense += 1;
            self.end(key);
            return;
        };
        self.unnamed.retain(|unnamed| *unnamed != key);
        if let Some(connection) = self.connections.get_mut(key) {
            connection.peer = Peer::From(from);
        }
        // It made a new one, so that it reads no more from the old.
        if let Some(old) = self.from.insert(from, key) {
            self.connections.try_remove(old);
        }
    }

    /// A connection ended.
    fn end(&mut self, key: usize) {
        let Some(connection) = self.connections.try_remove(key) else { return };
        match connection.peer {
            Peer::Unnamed => self.unnamed.retain(|unnamed| *unnamed != key),
            Peer::From(member) | Peer::To(member) => self.lose(member),
        }
    }

    /// Both directions go with a member, so that it is told once.
    fn lose(&mut self, member: MemberId) {
        for key in [self.to.remove(&member), self.from.remove(&member)].into_iter().flatten() {
            self.connections.try_remove(key);
        }
        if !self.lost.contains(&member) {
            self.lost.push_back(member);
        }
    }
}

impl Drop for LocalLink {
    fn drop(&mut self) {
        self.folder.forget(self.host.me().slot);
    }
}

fn hello(from: MemberId, to: MemberId) -> [u8; HELLO_BYTES] {
    let mut bytes = [0; HELLO_BYTES];
    bytes[..4].copy_from_slice(&MAGIC);
    bytes[4..6].copy_from_slice(&from.slot.to_le_bytes());
    bytes[6..8].copy_from_slice(&to.slot.to_le_bytes());
    bytes[8..12].copy_from_slice(&from.generation.to_le_bytes());
    bytes[12..].copy_from_slice(&to.generation.to_le_bytes());
    bytes
}

/// Who says hello to `me`.
fn heard(bytes: &[u8; HELLO_BYTES], me: MemberId) -> Option<MemberId> {
    let half = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
    let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let to = MemberId { slot: half(6), generation: word(12) };
    (bytes[..4] == MAGIC && to == me).then(|| MemberId { slot: half(4), generation: word(8) })
}
