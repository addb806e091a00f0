//! The sockets for messages between members.
//!
//! Owns a listening socket per member, and the connections, which are opened when needed. Each connection carries
//! messages in one direction, from the member that opened it. A member that has changed its user or root directory
//! after joining cannot open connections, and sends on the connections that other members opened. Called only by
//! [`Members`](super::Members). Calls never block. A message for which the socket lacks room is dropped and counted,
//! and retransmission repairs the loss.
//!
//! ```text
//! connection:  hello, message, message ...
//! hello:       magic 4, slot of sender 2, slot of receiver 2, generation of each 4 + 4
//! message:     kind 1, body
//! ```
//! If the system lacks descriptors or memory for a connection, attempts are suspended until a later time. This is
//! logged once. Work that does not need a new connection continues.
//!
//! The end of a connection with a member shows that the member has died or left. Only processes of this user can
//! connect (SO_PEERCRED, and the folder is closed to others). Their messages are still checked. This module checks form
//! and length, and the reader of each kind checks the content.
#![forbid(unsafe_code)]

#[cfg(test)]
mod tests;

use super::outcome::{Counts, Undelivered};
use super::socket::{self, Folder};
use super::user::{Listening, Ticks};
use crate::host::memory::area_ffi;
use crate::host::{AreaHandle, Host, HostError, MemberId};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use slab::Slab;
use socket2::Socket;
use std::collections::{HashMap, VecDeque};
use std::io::{self, ErrorKind, IoSlice};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use trunkline_verbs::Counter;
use trunkline_verbs::descriptors::above_stdio;

/// Maximum length of a message body, in bytes.
pub(crate) const MAX_MESSAGE_BYTES: usize = 32 * 1024;
/// Maximum number of parts of a message.
const MAX_PARTS: usize = 8;
const MAGIC: [u8; 4] = *b"TkL1";
const HELLO_BYTES: usize = 16;
/// Maximum number of connections without a hello. If there are more, the oldest is closed.
const MAX_UNNAMED: usize = 32;
/// Maximum number of readable sockets that one system call returns.
const EVENTS: usize = 64;
/// Maximum number of messages, valid or not, that [`Connections::receive`] reads before it returns `None`.
const LOOKS: usize = 64;
/// Key of the listening socket. The key of a connection is its index in the slab.
const LISTENER: u64 = u64::MAX;

/// A message or the loss of a member.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Arrived<'a> {
    /// A message from the member that named itself `from` when it connected.
    Message { from: MemberId, kind: u8, bytes: &'a [u8] },
    /// A message with an area of the sender.
    Handover { from: MemberId, kind: u8, bytes: &'a [u8], area: AreaHandle },
    /// A connection with the member ended. The member has died or left, unless `Host::is_alive` returns true.
    Lost(MemberId),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ConnectionPeer {
    /// Opened by the peer, which has not identified itself.
    Unnamed,
    /// Opened by the peer.
    From(MemberId),
    /// Opened by this member.
    To(MemberId),
}

/// Availability of the resources for connections, which the system may refuse.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shortage {
    None,
    /// The system refuses the resources. Connections are not attempted, and the listener is not watched, until
    /// [`Connections::resume`] is called.
    Now,
    /// The system refused the resources earlier, and all attempts since then have failed.
    Before,
}

#[derive(Debug)]
struct Connection {
    socket: Socket,
    peer: ConnectionPeer,
    /// True if the member no longer accepts messages. The member counts as lost when this connection is empty.
    ends_when_empty: bool,
    /// A time at which the connection already existed.
    made: Ticks,
}

/// A member's connections with other members.
#[derive(Debug)]
pub(super) struct Connections {
    connections: Slab<Connection>,
    to: HashMap<MemberId, usize>,
    from: HashMap<MemberId, usize>,
    /// Keys of connections without a hello, oldest first.
    unnamed: VecDeque<usize>,
    /// Keys of readable sockets. Each is read in turn until it is empty.
    readable: VecDeque<u64>,
    lost: VecDeque<MemberId>,
    /// Members that no longer accept messages, and whose connections to this member may not be accepted yet.
    ending: Vec<MemberId>,
    /// Buffer for one message. It has one extra byte, which is used if a message is too long.
    buffer: Vec<u8>,
    counts: Counts,
    listener: Socket,
    epoll: Arc<Epoll>,
    shortage: Shortage,
    /// True while `shortage` is [`Shortage::Now`].
    is_paused: Arc<AtomicBool>,
    /// True if it has been logged that this process may not connect to other members.
    is_cut_off: bool,
    folder: Folder,
    /// Last field, so that the slot is held until its socket is closed.
    host: Arc<Host>,
}

impl Connections {
    /// Starts to listen in the member's slot.
    pub(super) fn new(host: Arc<Host>, path: &Path) -> Result<Self, HostError> {
        let folder = Folder::new(path)?;
        let listener = folder.listen(host.me().slot)?;
        let watch = || {
            let epoll = Epoll(above_stdio(|| Ok(Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?.0))?);
            epoll.add(&listener, EpollEvent::new(EpollFlags::EPOLLIN, LISTENER))?;
            Ok::<_, io::Error>(epoll)
        };
        let not_watched =
            |source| HostError::Os { doing: "watch the socket in", path: path.to_owned(), source };
        let epoll = watch().map_err(not_watched)?;
        Ok(Self {
            connections: Slab::new(),
            to: HashMap::new(),
            from: HashMap::new(),
            unnamed: VecDeque::new(),
            readable: VecDeque::new(),
            lost: VecDeque::new(),
            ending: Vec::new(),
            buffer: vec![0; 1 + MAX_MESSAGE_BYTES + 1],
            counts: Counts::default(),
            listener,
            epoll: Arc::new(epoll),
            shortage: Shortage::None,
            is_paused: Arc::default(),
            is_cut_off: false,
            folder,
            host,
        })
    }

    /// Returns the epoll set, which becomes readable when messages arrive.
    pub(super) fn epoll(&self) -> &Arc<Epoll> {
        &self.epoll
    }

    /// Sends a message whose body is the concatenation of the parts.
    ///
    /// # Errors
    /// Returns [`Undelivered`]. The message is then dropped and counted.
    pub(super) fn send(&mut self, to: MemberId, kind: u8, parts: &[&[u8]]) -> Result<(), Undelivered> {
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        if bytes > MAX_MESSAGE_BYTES || parts.len() > MAX_PARTS {
            return Err(Undelivered::TooLong);
        }
        let kind = [kind];
        let mut pieces = [IoSlice::new(&[]); 1 + MAX_PARTS];
        for (piece, part) in pieces.iter_mut().zip(std::iter::once(&kind[..]).chain(parts.iter().copied())) {
            *piece = IoSlice::new(part);
        }
        self.deliver(to, |socket| socket::send(socket, &pieces[..=parts.len()]))
    }

    /// Sends a message with an area of this member.
    ///
    /// # Errors
    /// Returns [`Undelivered`]. The message is then dropped and counted.
    pub(super) fn hand_over(
        &mut self,
        to: MemberId,
        kind: u8,
        body: &[u8],
        area: &AreaHandle,
    ) -> Result<(), Undelivered> {
        let AreaHandle::Descriptor(file) = area else { return Err(Undelivered::TooLong) };
        if body.len() > MAX_MESSAGE_BYTES {
            return Err(Undelivered::TooLong);
        }
        let kind = [kind];
        let parts = [IoSlice::new(&kind), IoSlice::new(body)];
        self.deliver(to, |socket| socket::send_with_descriptor(socket, &parts, file.as_fd()))
    }

    /// Sends a message on the connection to a member, and counts the outcome.
    fn deliver(
        &mut self,
        to: MemberId,
        send: impl FnOnce(&Socket) -> io::Result<()>,
    ) -> Result<(), Undelivered> {
        let sent = self.connection_to(to).and_then(|key| {
            send(&self.connections[key].socket).map_err(|error| self.send_failed(key, &error))
        });
        self.counts.sending(&sent);
        sent
    }

    /// See [`Members::watch`](super::Members::watch).
    pub(super) fn watch(&mut self, to: MemberId) -> bool {
        match self.connection_to(to) {
            Err(Undelivered::Gone) => {
                self.end_after_last_messages(to);
                true
            }
            connection => connection.is_ok(),
        }
    }

    /// See [`Members::connect`](super::Members::connect).
    pub(super) fn connect(&mut self, to: MemberId) -> bool {
        self.connection_to(to).is_ok()
    }

    /// See [`Members::is_connected`](super::Members::is_connected).
    pub(super) fn is_connected(&self, member: MemberId) -> bool {
        self.to.contains_key(&member) || self.from.contains_key(&member)
    }

    /// See [`Members::process_of`](super::Members::process_of).
    pub(super) fn process_of(&self, member: MemberId) -> Option<u32> {
        let key = self.to.get(&member).or_else(|| self.from.get(&member))?;
        socket::process_of(&self.connections.get(*key)?.socket)
    }

    /// Returns the process that listens in a member's slot. A connection from the member does not prove the identity,
    /// because the name in its hello is not checked.
    pub(super) fn listening(&mut self, member: MemberId) -> Option<Listening> {
        let key = self.connection_to(member).ok()?;
        let connection = self.connections.get(key)?;
        if connection.peer != ConnectionPeer::To(member) {
            return None;
        }
        Listening::of(&connection.socket, connection.made)
    }

    /// Returns the next message or loss, if any.
    pub(super) fn receive(&mut self) -> Option<Arrived<'_>> {
        let mut asked = false;
        for _ in 0..LOOKS {
            if let Some(member) = self.lost.pop_front() {
                return Some(Arrived::Lost(member));
            }
            let Some(key) = self.readable.pop_front() else {
                if asked || !self.fetch_readable() {
                    return None;
                }
                asked = true;
                continue;
            };
            if key == LISTENER {
                self.accept();
            } else if let Some((from, length, descriptor)) = self.read(key) {
                let (kind, bytes) = (self.buffer[0], &self.buffer[1..length]);
                return Some(match descriptor.map(AreaHandle::Descriptor) {
                    Some(area) => Arrived::Handover { from, kind, bytes, area },
                    None => Arrived::Message { from, kind, bytes },
                });
            }
        }
        None
    }

    /// Returns true if all losses have been reported, and all sockets fetched as readable have been read.
    pub(super) fn is_drained(&self) -> bool {
        self.lost.is_empty() && self.readable.is_empty()
    }

    /// Returns true if a socket is readable or a loss has to be reported.
    pub(super) fn is_readable(&self) -> bool {
        !self.lost.is_empty()
            || !self.readable.is_empty()
            || poll(&mut [PollFd::new(self.epoll.0.as_fd(), PollFlags::POLLIN)], PollTimeout::ZERO)
                .is_ok_and(|ready| ready > 0)
    }

    pub(super) fn counters(&self, into: &mut Vec<Counter>) {
        self.counts.list(into);
    }

    /// Fetches the readable sockets. Returns false if there are none.
    fn fetch_readable(&mut self) -> bool {
        let mut events = [EpollEvent::empty(); EVENTS];
        // If the call was interrupted, the next one reports the events.
        let count = self.epoll.wait(&mut events, EpollTimeout::ZERO).unwrap_or(0);
        self.readable.extend(events[..count].iter().map(EpollEvent::data));
        count > 0
    }

    /// Returns this member's connection to another member, and opens it if necessary.
    fn connection_to(&mut self, to: MemberId) -> Result<usize, Undelivered> {
        if let Some(key) = self.to.get(&to) {
            return Ok(*key);
        }
        if self.host.current(to.slot) != Some(to) {
            return Err(Undelivered::Gone);
        }
        if self.shortage == Shortage::Now {
            return Err(Undelivered::Full);
        }
        let hello = hello(self.host.me(), to);
        let connected = self.folder.connect(to.slot).and_then(|socket| {
            socket::send(&socket, &[IoSlice::new(&hello)])?;
            Ok(socket)
        });
        let key = match connected {
            Ok(socket) => self.add(socket, ConnectionPeer::To(to)).ok_or(Undelivered::Full)?,
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::Interrupted => return Err(Undelivered::Full),
                _ if is_shortage(&error) => {
                    self.pause(&error);
                    return Err(Undelivered::Full);
                }
                _ => self.connection_from(to, &error)?,
            },
        };
        self.to.insert(to, key);
        Ok(key)
    }

    /// Returns the connection that a member opened to this one, if this process may not connect to the
    /// member.
    #[cold]
    fn connection_from(&mut self, member: MemberId, error: &io::Error) -> Result<usize, Undelivered> {
        if !self.folder.is_closed_to_us(error) {
            return Err(Undelivered::Gone);
        }
        let made = self.from.get(&member).copied();
        if made.is_none() && !self.is_cut_off {
            self.is_cut_off = true;
            tracing::warn!(
                %error,
                remedy = "have a process that changes its user or root directory open the device afterwards",
                "other processes of this host no longer reachable"
            );
        }
        made.ok_or(Undelivered::Gone)
    }

    /// Returns a flag that is set while [`Connections::resume`] has to be called later.
    pub(super) fn is_paused(&self) -> &Arc<AtomicBool> {
        &self.is_paused
    }

    /// Resumes attempts after a refusal by the system.
    pub(super) fn resume(&mut self) {
        if self.shortage != Shortage::Now {
            return;
        }
        // Watch the listener again first, which makes the set readable if a connection is waiting.
        if self.epoll.add(&self.listener, EpollEvent::new(EpollFlags::EPOLLIN, LISTENER)).is_ok() {
            self.set(Shortage::Before);
        }
    }

    fn set(&mut self, shortage: Shortage) {
        self.shortage = shortage;
        self.is_paused.store(shortage == Shortage::Now, Ordering::Relaxed);
    }

    /// Records that the system refuses resources for connections. The listener is no longer watched, since it
    /// would stay readable and keep this process awake.
    fn pause(&mut self, error: &io::Error) {
        if self.shortage == Shortage::None {
            tracing::warn!(
                %error,
                remedy = "raise the limit on open files (ulimit -n) or on memory, or end what uses them up",
                "connections with other processes of this host paused"
            );
        }
        if self.shortage != Shortage::Now {
            let _watched = self.epoll.delete(&self.listener);
            self.set(Shortage::Now);
        }
    }

    /// Records that a connection succeeded after a refusal.
    fn recovered(&mut self) {
        if self.shortage == Shortage::Before {
            self.set(Shortage::None);
            tracing::info!("connections with other processes of this host resumed");
        }
    }

    fn send_failed(&mut self, key: usize, error: &io::Error) -> Undelivered {
        match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::Interrupted => Undelivered::Full,
            _ if is_shortage(error) => Undelivered::Full,
            _ if error.raw_os_error() == Some(libc::ETOOMANYREFS) => Undelivered::TooManyDescriptors,
            _ => {
                self.end(key);
                Undelivered::Gone
            }
        }
    }

    fn add(&mut self, socket: Socket, peer: ConnectionPeer) -> Option<usize> {
        let entry = self.connections.vacant_entry();
        let key = entry.key();
        let event = EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLRDHUP, key as u64);
        match self.epoll.add(&socket, event) {
            Ok(()) => {
                entry.insert(Connection { socket, peer, ends_when_empty: false, made: Ticks::now() });
                self.recovered();
                Some(key)
            }
            Err(errno) => {
                self.pause(&errno.into());
                None
            }
        }
    }

    fn accept(&mut self) {
        let socket = match self.folder.accept(&self.listener) {
            Ok(Some(socket)) => socket,
            Ok(None) => {
                self.counts.nonsense();
                return;
            }
            Err(error) => {
                if is_shortage(&error) {
                    self.pause(&error);
                }
                // Other errors mean that the queue of connections is empty.
                self.end_those_ending();
                return;
            }
        };
        if let Some(key) = self.add(socket, ConnectionPeer::Unnamed) {
            self.unnamed.push_back(key);
            if self.unnamed.len() > MAX_UNNAMED
                && let Some(oldest) = self.unnamed.front().copied()
            {
                self.counts.nonsense();
                self.end(oldest);
            }
            // Read the new connection, since its hello has usually arrived already.
            self.readable.push_back(key as u64);
        }
        self.readable.push_back(LISTENER);
    }

    /// Reads one message from a connection. Returns the sender, the length in the buffer, and the descriptor sent with
    /// the message, if any.
    fn read(&mut self, readable: u64) -> Option<(MemberId, usize, Option<OwnedFd>)> {
        let key = usize::try_from(readable).ok()?;
        let connection = self.connections.get(key)?;
        let (length, descriptor) = match area_ffi::receive(connection.socket.as_fd(), &mut self.buffer) {
            Ok((0, _)) => {
                self.end(key);
                return None;
            }
            Ok(received) => received,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock) => {
                if connection.ends_when_empty {
                    self.end(key);
                }
                return None;
            }
            Err(error) if matches!(error.kind(), ErrorKind::Interrupted) => (0, None),
            Err(_) => {
                self.end(key);
                return None;
            }
        };
        self.readable.push_back(readable);
        match connection.peer {
            _ if length == 0 => None,
            // A peer that cannot connect to this member sends on this member's connection.
            ConnectionPeer::From(from) | ConnectionPeer::To(from) if length < self.buffer.len() => {
                self.counts.received();
                Some((from, length, descriptor))
            }
            ConnectionPeer::Unnamed => {
                self.name(key, length);
                None
            }
            // The message is too long, so its sender is faulty.
            ConnectionPeer::From(_) | ConnectionPeer::To(_) => {
                self.counts.nonsense();
                None
            }
        }
    }

    /// Handles a hello.
    fn name(&mut self, key: usize, length: usize) {
        let from = self.buffer[..length].try_into().ok().and_then(|bytes| sender_of(&bytes, self.host.me()));
        // Accept messages from a member that has left, since they are read before the end of its connection.
        let Some(from) = from.filter(|from| self.host.has_joined(*from)) else {
            self.counts.nonsense();
            self.end(key);
            return;
        };
        self.unnamed.retain(|unnamed| *unnamed != key);
        if let Some(connection) = self.connections.get_mut(key) {
            connection.peer = ConnectionPeer::From(from);
        }
        // The member has opened a new connection, and no longer sends on the old one.
        if let Some(old) = self.from.insert(from, key) {
            self.empty(old);
            if self.to.get(&from) == Some(&old) {
                self.to.remove(&from);
            }
        }
    }

    /// Removes a connection that ended.
    fn end(&mut self, key: usize) {
        let Some(connection) = self.connections.try_remove(key) else { return };
        match connection.peer {
            ConnectionPeer::Unnamed => self.unnamed.retain(|unnamed| *unnamed != key),
            ConnectionPeer::From(member) if self.from.get(&member) == Some(&key) => self.lose(member),
            // The member has opened a newer connection.
            ConnectionPeer::From(_) => {}
            ConnectionPeer::To(member) => {
                self.to.remove(&member);
                self.end_after_last_messages(member);
            }
        }
    }

    /// Reports the end of a member that no longer accepts messages, after the messages that it has sent. A member that
    /// exits sends its last messages before its sockets close. The sockets close in any order, and one of its
    /// connections may not be accepted yet.
    fn end_after_last_messages(&mut self, member: MemberId) {
        match self.from.get(&member).copied() {
            Some(key) => self.empty(key),
            None => {
                self.ending.push(member);
                self.readable.push_back(LISTENER);
            }
        }
    }

    /// Marks a connection to be ended when it is empty.
    fn empty(&mut self, key: usize) {
        if let Some(connection) = self.connections.get_mut(key) {
            connection.ends_when_empty = true;
            self.readable.push_back(key as u64);
        }
    }

    /// Ends the connections of the members in `ending` when they are empty. All connections from these
    /// members have been accepted, and their hellos read.
    fn end_those_ending(&mut self) {
        for member in std::mem::take(&mut self.ending) {
            match self.from.get(&member).copied() {
                Some(key) => self.empty(key),
                None => self.lose(member),
            }
        }
    }

    /// Closes the connections in both directions, so that the loss is reported once.
    fn lose(&mut self, member: MemberId) {
        for key in [self.to.remove(&member), self.from.remove(&member)].into_iter().flatten() {
            self.connections.try_remove(key);
        }
        if !self.lost.contains(&member) {
            self.lost.push_back(member);
        }
    }
}

impl Drop for Connections {
    fn drop(&mut self) {
        self.folder.forget(self.host.me().slot);
    }
}

/// Returns true if a system call failed for lack of a resource that others may free.
fn is_shortage(error: &io::Error) -> bool {
    let shortages = [libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::ENOMEM, libc::ENOSPC];
    error.raw_os_error().is_some_and(|errno| shortages.contains(&errno))
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

/// Returns the sender of a hello to `me`.
fn sender_of(bytes: &[u8; HELLO_BYTES], me: MemberId) -> Option<MemberId> {
    let half = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
    let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let to = MemberId { slot: half(6), generation: word(12) };
    (bytes[..4] == MAGIC && to == me).then(|| MemberId { slot: half(4), generation: word(8) })
}
