//! The user of the process that listens at a member's socket.
//!
//! The socket shows the user and the PID that the process had when it began to listen. `/proc` shows the
//! current user of the process with that PID, and a pidfd of the socket shows that it is the same process
//! (Linux 6.5). Without a pidfd, the process must have started before the connection was opened. A value that
//! cannot be read counts as another user.
#![forbid(unsafe_code)]

use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::{PeerCredentials, PeerPidfd};
use nix::time::ClockId;
use nix::unistd::geteuid;
use socket2::Socket;
use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::time::Duration;
use trunkline_verbs::descriptors::above_stdio;

/// Ticks per second in `/proc` (`USER_HZ`).
const TICKS_PER_SECOND: u64 = 100;

/// Time since the system started, in ticks, as in `/proc/PID/stat`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ticks(u64);

impl Ticks {
    /// Returns the current time; 0 if it is unknown, in which case every process counts as started later.
    pub(super) fn now() -> Self {
        #[expect(clippy::disallowed_methods, reason = "compared with the system's times of processes")]
        let now = nix::time::clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(Duration::ZERO, Duration::from);
        Self(now.as_secs() * TICKS_PER_SECOND + u64::from(now.subsec_millis()) * TICKS_PER_SECOND / 1000)
    }
}

/// Credentials of the process that listens at the other end of a connection, as reported by the socket.
#[derive(Debug)]
pub(super) struct Listening {
    uid: u32,
    pid: u32,
    /// `None` if the system does not provide a pidfd.
    pidfd: Option<OwnedFd>,
    /// A time at which the connection already existed.
    made: Ticks,
}

impl Listening {
    /// Returns the process at the other end of a socket, or `None` if it cannot be determined.
    pub(super) fn of(socket: &Socket, made: Ticks) -> Option<Self> {
        let peer = getsockopt(socket, PeerCredentials).ok()?;
        let pidfd = match above_stdio(|| Ok(getsockopt(socket, PeerPidfd)?)) {
            Ok(pidfd) => Some(pidfd),
            Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => None,
            Err(_) => return None,
        };
        Some(Self { uid: peer.uid(), pid: u32::try_from(peer.pid()).ok()?, pidfd, made })
    }

    /// Returns this process's effective uid if the listening process has the same uid in this user namespace.
    pub(super) fn user(&self) -> Option<u32> {
        let own = geteuid().as_raw();
        let overflow = fs::read_to_string("/proc/sys/kernel/overflowuid").ok()?.trim().parse().ok()?;
        let is_ours = is_own_user(self.uid, own, overflow)
            && match &self.pidfd {
                Some(pidfd) => is_like_us_by_pidfd(pidfd, own),
                None => is_like_us_by_start(self.pid, self.made, own),
            };
        is_ours.then_some(own)
    }
}

/// Returns true if a uid is the uid `own`. The overflow uid is never accepted, since it stands for all users that are
/// not mapped in this namespace.
fn is_own_user(uid: u32, own: u32, overflow: u32) -> bool {
    uid == own && uid != overflow
}

/// Returns true if the process of a pidfd runs with this effective uid in this user namespace.
fn is_like_us_by_pidfd(pidfd: &OwnedFd, own: u32) -> bool {
    let path = format!("/proc/thread-self/fdinfo/{}", pidfd.as_raw_fd());
    // The PID is negative after the process has exited, and 0 if the process is not visible in this `/proc`.
    let pid = || number_after("Pid:", 0, &fs::read_to_string(&path).ok()?).filter(|pid| *pid != 0);
    // The PID belongs to the process at both reads, and therefore between them.
    pid().is_some_and(|first| is_like_us(first, own) && pid() == Some(first))
}

/// Returns true if the process runs with this effective uid in this user namespace, and started before
/// `made`.
fn is_like_us_by_start(pid: u32, made: Ticks, own: u32) -> bool {
    // The `/proc` of another PID namespace would show another process.
    let is_our_proc =
        fs::read_link("/proc/self").is_ok_and(|link| link == Path::new(&std::process::id().to_string()));
    let stat = || fs::read(format!("/proc/{pid}/stat")).unwrap_or_default();
    pid != 0 && is_our_proc && is_like_us(pid, own) && began_before(&stat(), made)
}

/// Returns true if `/proc/PID/stat` shows a process that started before `made`.
fn began_before(stat: &[u8], made: Ticks) -> bool {
    let start = stat_fields(stat).nth(19).and_then(|start| start.parse().ok());
    start.is_some_and(|start| Ticks(start) < made)
}

/// Returns the fields of a `/proc/PID/stat` from the third, the state, on (proc_pid_stat(5)).
pub(crate) fn stat_fields(stat: &[u8]) -> impl Iterator<Item = &str> {
    // The second field, the name in parentheses, may contain any characters.
    let after_name = stat.rsplit(|byte| *byte == b')').next().and_then(|text| str::from_utf8(text).ok());
    after_name.unwrap_or_default().split_ascii_whitespace()
}

/// Returns true if the process that has this PID runs with this effective uid in this user namespace.
fn is_like_us(pid: u32, own: u32) -> bool {
    let namespace = |process: &str| fs::read_link(format!("/proc/{process}/ns/user")).ok();
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let other = namespace(&pid.to_string());
    other.is_some() && other == namespace("thread-self") && number_after("Uid:", 1, &status) == Some(own)
}

/// Returns the number in a column of the line that begins with `name`.
fn number_after(name: &str, column: usize, text: &str) -> Option<u32> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_ascii_whitespace().nth(column)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use socket2::{Domain, Type};

    #[test]
    fn overflow_uid_is_not_user() {
        assert!(is_own_user(1000, 1000, 65534));
        assert!(!is_own_user(1001, 1000, 65534));
        assert!(!is_own_user(65534, 65534, 65534));
    }

    #[test]
    fn process_started_after_connection_is_refused() {
        let stat = |start| format!("12 (a) (b) S {} {start} 0 0", ["1"; 18].join(" "));
        let began = [199, 200, 201].map(|start| began_before(stat(start).as_bytes(), Ticks(200)));
        assert_eq!(began, [true, false, false]);
        assert!(!began_before(b"", Ticks(200)), "a process that cannot be read");
    }

    #[test]
    fn pid_of_ended_or_invisible_process_is_refused() {
        let pid = |text| number_after("Pid:", 0, text).filter(|pid| *pid != 0);
        let [alive, ended, invisible] = ["NSpid:\t7\nPid:\t12\n", "Pid:\t-1\n", "Pid:\t0\n"].map(pid);
        assert_eq!((alive, ended, invisible), (Some(12), None, None));
    }

    #[test]
    fn user_of_this_process_is_proved_with_and_without_pidfd() {
        let (socket, _other) = Socket::pair(Domain::UNIX, Type::SEQPACKET, None).unwrap();
        let (own, later) = (geteuid().as_raw(), Ticks(u64::MAX));
        let user = Some(own).filter(|uid| *uid != 65534);
        let process = Listening::of(&socket, later).unwrap();
        assert_eq!(process.user(), user);
        let process = Listening { pidfd: None, ..process };
        assert_eq!(process.user(), user);
        assert_eq!(Listening { uid: own + 1, ..process }.user(), None, "another user");
        let pid = std::process::id();
        assert!(!is_like_us_by_start(pid, later, own + 1), "changed its user");
        assert!(!is_like_us_by_start(pid, Ticks(0), own), "began later");
        assert!(!is_like_us_by_start(0, later, own), "in another PID namespace");
        assert!(Ticks::now() > Ticks(0));
    }
}
