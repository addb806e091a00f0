//! The sockets between members. They are SEQPACKET sockets, so that a message arrives whole or not at all.
//!
//! Owns the creation of the sockets, and the check of the peer's identity. Called by `connections`, and by
//! `node_sockets` for the sockets of nodes. Never blocks.
#![forbid(unsafe_code)]

use crate::host::HostError;
use crate::host::files::private_file::is_at;
use nix::fcntl::AT_FDCWD;
use nix::sys::socket::{ControlMessage, MsgFlags, getsockopt, sendmsg, sockopt::PeerCredentials};
use nix::sys::stat::{FchmodatFlags, Mode, fchmodat};
use socket2::{Domain, SockAddr, Socket, Type};
use std::fs::File;
use std::io::{self, ErrorKind, IoSlice};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use trunkline_verbs::descriptors::{HeldStdio, above_stdio, lift};

/// Requested size of the send buffer in bytes; the kernel may grant less.
const SEND_BUFFER_BYTES: usize = 1 << 20;
const BACKLOG: i32 = 64;
/// Permissions of a socket's file.
const PRIVATE: Mode = Mode::S_IRUSR.union(Mode::S_IWUSR);
/// Length of the path in `sockaddr_un` in bytes, including its final zero.
const PATH_BYTES: usize = 108;

/// An open folder with sockets. Its descriptor gives a short path to sockets whose path is too long for a
/// socket address.
#[derive(Debug)]
pub(in crate::host) struct Folder {
    path: PathBuf,
    open: File,
    /// User of all members at the time when they joined.
    owner: u32,
}

impl Folder {
    pub(in crate::host) fn new(path: &Path) -> Result<Self, HostError> {
        let open = above_stdio(|| File::open(path)).map_err(failed("open", path))?;
        let owner = open.metadata().map_err(failed("examine", path))?.uid();
        Ok(Self { path: path.to_owned(), open, owner })
    }

    /// Returns the path of a slot's socket.
    fn path(&self, slot: u16) -> PathBuf {
        self.path.join(name(slot))
    }

    fn address(&self, name: &str) -> io::Result<SockAddr> {
        let path = self.path.join(name);
        if path.as_os_str().len() < PATH_BYTES {
            return SockAddr::unix(path);
        }
        SockAddr::unix(format!("/proc/self/fd/{}/{name}", self.open.as_raw_fd()))
    }

    /// Listens as the member in `slot`. A socket file that exists there belongs to a member that died.
    pub(super) fn listen(&self, slot: u16) -> Result<Socket, HostError> {
        self.listen_at(&name(slot))
    }

    /// Listens at a name. An existing socket of that name is replaced.
    pub(in crate::host) fn listen_at(&self, name: &str) -> Result<Socket, HostError> {
        let path = self.path.join(name);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(failed("remove the socket of an ended process", &path)(error));
            }
            _ => {}
        }
        let listen = || {
            let socket = new_socket()?;
            socket.bind(&self.address(name)?)?;
            // Set the permission to write, which connecting requires and the umask may have removed.
            fchmodat(&self.open, name, PRIVATE, FchmodatFlags::FollowSymlink)?;
            socket.listen(BACKLOG)?;
            Ok(socket)
        };
        listen().map_err(failed("make the socket for this host's other processes", &path))
    }

    /// Removes the socket of a slot.
    pub(super) fn forget(&self, slot: u16) {
        // The file may not exist.
        let _absent = std::fs::remove_file(self.path(slot));
    }

    /// Connects to the member in `slot`.
    pub(super) fn connect(&self, slot: u16) -> io::Result<Socket> {
        let socket = self.connect_to(&name(slot))?;
        // A smaller buffer only means that more messages are dropped under load.
        let _less = socket.set_send_buffer_size(SEND_BUFFER_BYTES);
        if !self.is_ours(&socket) {
            return Err(ErrorKind::PermissionDenied.into());
        }
        Ok(socket)
    }

    /// Connects to the socket of this name, regardless of the user that listens there.
    pub(in crate::host) fn connect_to(&self, name: &str) -> io::Result<Socket> {
        self.connect_from(None, name)
    }

    /// Connects to the socket of this name. `own` is the address that the listener sees.
    pub(in crate::host) fn connect_from(&self, own: Option<&SockAddr>, name: &str) -> io::Result<Socket> {
        let socket = new_socket()?;
        own.map_or(Ok(()), |own| socket.bind(own))?;
        socket.connect(&self.address(name)?)?;
        Ok(socket)
    }

    /// Accepts a connection, if one is waiting. Closes a connection from another user, and returns `Ok(None)`.
    pub(in crate::host) fn accept(&self, listener: &Socket) -> io::Result<Option<Socket>> {
        let _held = HeldStdio::take()?;
        let (socket, _unnamed) = listener.accept()?;
        let socket = Socket::from(lift(socket.into())?);
        socket.set_nonblocking(true)?;
        Ok(self.is_ours(&socket).then_some(socket))
    }

    /// Returns true if the peer is a process of the members' user.
    pub(in crate::host) fn is_ours(&self, socket: &Socket) -> bool {
        getsockopt(socket, PeerCredentials).is_ok_and(|peer| peer.uid() == self.owner)
    }

    /// Returns true if a failure to connect means that this process may not, or may no longer, open the
    /// sockets in the folder.
    pub(super) fn is_closed_to_us(&self, error: &io::Error) -> bool {
        match error.kind() {
            ErrorKind::PermissionDenied => true,
            ErrorKind::NotFound => !is_at(&self.open, AT_FDCWD, &self.path),
            _ => false,
        }
    }
}

/// Returns the pid of the peer, if it is visible in this PID namespace.
pub(super) fn process_of(socket: &Socket) -> Option<u32> {
    let pid = getsockopt(socket, PeerCredentials).ok()?.pid();
    u32::try_from(pid).ok().filter(|pid| *pid != 0)
}

/// Sends a message completely, or fails without sending.
pub(in crate::host) fn send(socket: &Socket, parts: &[IoSlice<'_>]) -> io::Result<()> {
    socket.send_vectored_with_flags(parts, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL).map(|_whole| ())
}

/// Sends a message with a descriptor, of which the receiver gets a copy. See [`send`].
pub(super) fn send_with_descriptor(
    socket: &Socket,
    parts: &[IoSlice<'_>],
    descriptor: BorrowedFd<'_>,
) -> io::Result<()> {
    let descriptors = [descriptor.as_raw_fd()];
    let rights = [ControlMessage::ScmRights(&descriptors)];
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
    Ok(sendmsg::<()>(socket.as_raw_fd(), parts, &rights, flags, None).map(|_whole| ())?)
}

fn name(slot: u16) -> String {
    format!("slot-{slot}.sock")
}

fn failed(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> HostError {
    move |source| HostError::Os { doing, path: path.to_owned(), source }
}

fn new_socket() -> io::Result<Socket> {
    let socket = above_stdio(|| Socket::new(Domain::UNIX, Type::SEQPACKET, None))?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}
