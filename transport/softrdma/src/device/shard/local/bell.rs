//! Wake-up of a shard by the members that share memory with it. A wake-up takes one system call in the sender, and none
//! in the receiver.
//!
//! Owns a shard's eventfd, which the thread that sleeps for the shard watches edge-triggered, and copies of other
//! shards' eventfds. The eventfds are never read, so a thread that wakes polls all rings whose senders have the bell. A
//! process of the same user can block this process with a blocking eventfd, just as it can stop it with a signal.
#![forbid(unsafe_code)]

use crate::device::threads::signal::event_fd;
use crate::host::AreaHandle;
use std::fs::{File, read_link};
use std::io::{self, Write as _};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

/// The eventfd of this shard or of a peer's shard.
#[derive(Debug)]
pub(super) struct ShardBell(File);

impl ShardBell {
    /// Creates the bell of a shard. Returns `None` if the process is out of descriptors. The shard is then woken by
    /// messages.
    pub(super) fn new() -> Option<Self> {
        Some(Self(OwnedFd::from(event_fd().ok()?).into()))
    }

    /// Returns a handle through which another member can ring the bell.
    pub(super) fn handle(&self) -> io::Result<AreaHandle> {
        Ok(AreaHandle::Descriptor(self.0.try_clone()?.into()))
    }

    /// Takes another member's bell. Returns `None` for a descriptor that is not an eventfd, since writing to
    /// it might block.
    pub(super) fn take(handle: AreaHandle) -> Option<Self> {
        let AreaHandle::Descriptor(descriptor) = handle else { return None };
        let kind = read_link(format!("/proc/self/fd/{}", descriptor.as_raw_fd())).ok()?;
        (kind.as_os_str() == "anon_inode:[eventfd]").then(|| Self(descriptor.into()))
    }

    /// Wakes the shard. Returns false if writing to the descriptor fails.
    pub(super) fn ring(&self) -> bool {
        // An eventfd takes all eight bytes or none. If its counter is full, it is readable already.
        match (&self.0).write_all(&1_u64.to_ne_bytes()) {
            Ok(()) => true,
            Err(error) => error.kind() == io::ErrorKind::WouldBlock,
        }
    }

    /// Returns the descriptor that a sleeping thread watches.
    pub(super) fn descriptor(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn only_eventfd_is_taken_as_bell() {
        let own = ShardBell::new().unwrap();
        let peer = ShardBell::take(own.handle().unwrap()).unwrap();
        assert!(peer.ring());
        let mut count = [0; 8];
        assert_eq!(io::Read::read(&mut &own.0, &mut count).unwrap(), 8);
        assert_eq!(u64::from_ne_bytes(count), 1);
        let (socket, _other) = UnixStream::pair().unwrap();
        assert!(ShardBell::take(AreaHandle::Descriptor(socket.into())).is_none());
    }
}
