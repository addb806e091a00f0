//! Duplicates of the socket of port 4791, for when the process that holds the port is stopped.
//!
//! A stopped process, as by SIGSTOP, keeps the port bound and reads nothing, so no first packet reaches the other
//! processes at its address. Therefore each member asks the holder for a duplicate of its socket, and looks every
//! [`CHECK_EVERY`] whether the same datagram still waits there as at the last look. If so, it reads the socket as well. Any
//! program can send equal datagrams all the time, so a look that finds one also asks the holder again: an answer shows
//! that it reads.
//! Several members may do so, and the holder once it continues: each datagram is read by one of them, and all forward
//! alike. A duplicate keeps the port bound when the holder dies, so a member that has one takes over by it.
//!
//! A member that opens an address whose holder is stopped already gets a duplicate from no one, unless another member has
//! taken over since. It logs that.
#![forbid(unsafe_code)]

use super::ports::{Bound, Ports};
use crate::host::{AreaHandle, MemberId, PortHolder, PortRefused};
use crate::link::LinkError;
use crate::link::relay::SocketMessage;
use crate::link::sockets::{DatagramSocket, START_BYTES};
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;
use trunkline_verbs::Time;

/// Interval at which duplicates are examined. A datagram waits for two intervals at most.
const CHECK_EVERY: Duration = Duration::from_millis(400);
/// Length of the messages about sockets: an address as IPv6, and the holder's process id.
const BODY_BYTES: usize = 20;

/// Duplicates that this member does not read, and those that it has asked for.
#[derive(Debug, Default)]
pub(super) struct Duplicates {
    list: Vec<Duplicate>,
    asked: Vec<Asked>,
    next_check: Option<Time>,
}

#[derive(Debug)]
struct Duplicate {
    address: IpAddr,
    socket: Box<dyn DatagramSocket>,
    holder: MemberId,
    /// Process id of the holder.
    process: u32,
    /// Start of the datagram that waited at the last look, unless the holder has answered since.
    waiting: Option<[u8; START_BYTES]>,
}

/// A request for a duplicate that was not answered yet.
#[derive(Debug)]
struct Asked {
    address: IpAddr,
    holder: MemberId,
    /// Number of looks since.
    looks: u32,
}

impl Duplicates {
    /// Drops the duplicate of an address that is closed.
    pub(super) fn forget(&mut self, address: IpAddr) {
        self.list.retain(|duplicate| duplicate.address != address);
        self.asked.retain(|asked| asked.address != address);
    }

    /// Returns the time of the next look; time 0 means that the interval begins at the next poll.
    pub(super) fn next_check(&self) -> Option<Time> {
        let is_needed = !self.list.is_empty() || !self.asked.is_empty();
        is_needed.then(|| self.next_check.unwrap_or_default())
    }
}

impl Ports {
    /// Asks the holder of port 4791 for a duplicate of its socket, unless there is one.
    pub(super) fn ask_for_duplicate(&mut self, address: IpAddr, holder: MemberId) {
        let Some(members) = self.members.as_ref().filter(|_| self.sockets().are_shareable()) else { return };
        if !self.has_duplicate(address) {
            members.ask_for_socket(holder, &body(address));
            self.duplicates.asked.retain(|asked| asked.address != address);
            self.duplicates.asked.push(Asked { address, holder, looks: 0 });
        }
    }

    /// Answers a request for a duplicate, or keeps a duplicate that has arrived.
    pub(super) fn handle_socket_message(&mut self, message: SocketMessage) {
        let SocketMessage { from, body: bytes, socket } = message;
        let Some((address, process)) = read(&bytes) else { return };
        match socket {
            None => {
                let bound = self.bound.iter_mut().find(|bound| bound.address == address && bound.is_roce());
                if let (Some(bound), Some(members)) = (bound, &self.members)
                    && let Some(socket) = bound.socket.duplicate()
                {
                    bound.is_shared |= members.share_socket(from, &body(address), socket);
                }
            }
            Some(AreaHandle::Descriptor(socket)) => {
                let is_of_holder = |known: &Duplicate| known.address == address && known.holder == from;
                let is_wanted = self.duplicates.asked.iter().any(|asked| asked.address == address)
                    || self.duplicates.list.iter().any(is_of_holder);
                let Some(socket) = is_wanted.then(|| self.sockets().adopt(address, socket).ok()).flatten()
                else {
                    return;
                };
                self.duplicates.forget(address);
                self.duplicates.list.push(Duplicate {
                    address,
                    socket,
                    holder: from,
                    process,
                    waiting: None,
                });
            }
            Some(AreaHandle::Memory(_)) => {}
        }
    }

    /// Returns true if this member has a duplicate for an address, read or not.
    pub(super) fn has_duplicate(&self, address: IpAddr) -> bool {
        self.duplicates.list.iter().any(|duplicate| duplicate.address == address)
            || self.bound.iter().any(|bound| bound.address == address && bound.is_borrowed)
    }

    /// Looks whether datagrams wait that the holder does not read, if the time has come.
    pub(super) fn check_duplicates(&mut self, now: Time) {
        let Some(due) = self.duplicates.next_check() else { return };
        if due == Time(0) || due > now {
            self.duplicates.next_check.get_or_insert(now + CHECK_EVERY);
            return;
        }
        self.duplicates.next_check = Some(now + CHECK_EVERY);
        let mut unread = Vec::new();
        for duplicate in &mut self.duplicates.list {
            let before = std::mem::replace(&mut duplicate.waiting, duplicate.socket.first_waiting());
            match (duplicate.waiting, &self.members) {
                (None, _) => {}
                (start, _) if start == before => unread.push((duplicate.address, duplicate.process)),
                (Some(_), Some(members)) => {
                    members.ask_for_socket(duplicate.holder, &body(duplicate.address));
                }
                (Some(_), None) => {}
            }
        }
        for (address, process) in unread {
            tracing::warn!(
                %address,
                process,
                "the process, which holds UDP port 4791 of the address, does not read it, and is probably stopped; this \
                 process reads it, too"
            );
            self.borrow(address);
        }
        self.warn_of_silent_holders();
    }

    /// Asks again, and logs once for each address, when a holder does not answer.
    fn warn_of_silent_holders(&mut self) {
        for asked in &mut self.duplicates.asked {
            asked.looks += 1;
            if asked.looks == 2 {
                tracing::warn!(
                    address = %asked.address,
                    holder = ?asked.holder,
                    "the process that holds UDP port 4791 of the address does not answer: if it is stopped, connections \
                     from and to other hosts fail here until it continues or ends"
                );
            }
            if let Some(members) = self.members.as_ref().filter(|_| asked.looks >= 2) {
                members.ask_for_socket(asked.holder, &body(asked.address));
            }
        }
    }

    /// Reads the duplicate from now on.
    fn borrow(&mut self, address: IpAddr) {
        let Some(at) = self.duplicates.list.iter().position(|duplicate| duplicate.address == address) else {
            return;
        };
        let socket = self.duplicates.list.swap_remove(at).socket;
        self.bound.push(Bound { is_shared: true, is_borrowed: true, ..Bound::new(address, socket) });
        self.changes += 1;
    }

    /// Becomes the holder of port 4791 by a duplicate, since the holder has died.
    pub(super) fn hold_by_duplicate(&mut self, address: IpAddr) -> Result<(), (LinkError, PortHolder)> {
        let Some(members) = &self.members else { return Ok(()) };
        members.host().hold_port_by_duplicate(address).map_err(|refused| match refused {
            PortRefused::Bind((), holder) => (LinkError::AddressInUse { address }, holder),
            PortRefused::Record(source) => (LinkError::NotRecorded { address, source }, PortHolder::Nobody),
        })?;
        self.borrow(address);
        for bound in self.bound.iter_mut().filter(|bound| bound.address == address) {
            bound.is_borrowed = false;
        }
        Ok(())
    }
}

fn body(address: IpAddr) -> [u8; BODY_BYTES] {
    let mut bytes = [0; BODY_BYTES];
    let v6 = match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    bytes[..16].copy_from_slice(&v6.octets());
    bytes[16..].copy_from_slice(&std::process::id().to_le_bytes());
    bytes
}

/// Returns the address and the sender's process id of a message.
fn read(bytes: &[u8]) -> Option<(IpAddr, u32)> {
    let (address, process) = bytes.split_first_chunk::<16>()?;
    let process = u32::from_le_bytes(process.try_into().ok()?);
    Some((IpAddr::V6(Ipv6Addr::from(*address)).to_canonical(), process))
}
