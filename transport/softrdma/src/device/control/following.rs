//! Opens addresses for wildcard listeners when the host gets them later, for example from a DHCP client or a failover.
//!
//! Owns the schedule for reading the host's addresses again. While a wildcard listener exists, the kernel's
//! notifications are checked every second. The host's addresses are read again only if an address or interface has
//! changed. Sockets at a removed address stay open, and work again when the address returns.

use super::Control;
use crate::device::shards::reach::Reach;
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, socket,
};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;
use trunkline_verbs::Time;
use trunkline_verbs::descriptors::above_stdio;

/// Interval between two checks for notifications.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Maximum number of notifications read in one check. They count as one change.
const READS: usize = 1024;
/// Groups of netlink notifications: interfaces, IPv4 addresses and IPv6 addresses.
const GROUPS: i32 = libc::RTMGRP_LINK | libc::RTMGRP_IPV4_IFADDR | libc::RTMGRP_IPV6_IFADDR;

/// Socket for the kernel's notifications of changed addresses.
#[derive(Debug)]
struct Notifications(OwnedFd);

impl Notifications {
    fn open() -> Result<Self, Errno> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let make = || Ok(socket(AddressFamily::Netlink, SockType::Raw, flags, SockProtocol::NetlinkRoute)?);
        let socket = above_stdio(make)
            .map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or(libc::EMFILE)))?;
        bind(socket.as_raw_fd(), &NetlinkAddr::new(0, GROUPS.cast_unsigned()))?;
        Ok(Self(socket))
    }

    /// Returns true if an address or interface has changed since the last call, or if the notifications
    /// cannot be read.
    fn take(&self) -> bool {
        let mut bytes = [0; 4096];
        for read in 0..READS {
            match recv(self.0.as_raw_fd(), &mut bytes, MsgFlags::empty()) {
                Ok(_) => {}
                Err(Errno::EAGAIN) => return read > 0,
                Err(_) => return true,
            }
        }
        true
    }
}

/// Schedule and state of the checks.
#[derive(Debug, Default)]
pub(super) struct Following {
    /// Time of the next check; `None` without a wildcard listener.
    next: Option<Time>,
    /// `None` if the kernel refuses notifications. Each check then reads the addresses.
    notifications: Option<Notifications>,
    /// True until the host's addresses are read. Set again if reading fails.
    is_new: bool,
    /// True if some addresses could not be opened. Each check then tries to open them again.
    is_behind: bool,
}

impl Following {
    /// Starts the checks for a wildcard listener. Does nothing if they are running.
    pub(super) fn begin(&mut self) {
        if self.next.is_none() {
            let opened = Notifications::open();
            *self = Self { next: Some(Time(0)), notifications: opened.ok(), is_new: true, is_behind: false };
        }
    }

    /// Returns the time of the next [`Control::follow_addresses`].
    pub(super) fn next_look(&self) -> Option<Time> {
        self.next
    }

    /// Returns true if the addresses of the host may have changed since the last call.
    fn has_changed(&mut self) -> bool {
        let is_first = std::mem::take(&mut self.is_new);
        self.notifications.as_ref().is_none_or(Notifications::take) || is_first
    }
}

impl Control {
    /// Opens the new addresses of the host for wildcard listeners, if a check is due.
    pub(super) fn follow_addresses(&mut self, shards: &mut Reach<'_>, now: Time) {
        if self.following.next.is_none_or(|next| next > now) {
            return;
        }
        let wildcards = self.connections.wildcards();
        if wildcards.is_empty() {
            self.following = Following::default();
            return;
        }
        self.following.next = Some(now + LOOK_EVERY);
        let has_changed = self.following.has_changed();
        if !has_changed && !self.following.is_behind {
            return;
        }
        let addresses = self.qps.addresses();
        let mut is_behind = false;
        if has_changed && let Err(error) = addresses.refresh() {
            tracing::debug!(%error, "host addresses not read");
            self.following.is_new = true;
        }
        for (address, is_family_only) in wildcards {
            is_behind |= !addresses.open_covered(shards, address, is_family_only).is_complete;
        }
        self.following.is_behind = is_behind;
    }
}
