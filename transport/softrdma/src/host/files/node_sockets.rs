//! Sockets through which the running nodes of a user describe themselves.
//!
//! Each node listens in the folder `nodes` of the members' folder (mode 0700, sockets 0600). It answers each
//! connection from the same user with one message. The name of the connecting socket identifies the request,
//! since a message could arrive later than the connection. Answering never blocks: bytes that do not fit in
//! the connection's buffer are dropped. A socket is bound under another name, and renamed once it listens. A
//! socket that refuses connections therefore belongs to a dead node. It is removed by the next node that
//! starts, or by the next query.
#![forbid(unsafe_code)]

use super::private_file::{is_private_directory, private_directory};
use super::runtime_dir::{existing_folder, namespace_folder};
use crate::host::HostError;
use crate::host::members::{Folder, send};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use socket2::{SockAddr, Socket};
use std::ffi::OsStr;
use std::fs;
use std::io::{ErrorKind, IoSlice, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;
use trunkline_machine::Runtime;
use trunkline_verbs::Time;
use trunkline_verbs::fork::Process;

/// The folder of the sockets.
const FOLDER: &str = "nodes";
/// Suffixes of the names of sockets that listen, and of sockets that do not listen yet.
const LISTENING: &str = ".sock";
const UNFINISHED: &str = ".new";
/// Age from which a socket that does not listen counts as left by a dead node.
const UNFINISHED_FOR: Duration = Duration::from_secs(60);
/// Maximum number of connections answered in one call.
const MAX_ANSWERS: usize = 16;
/// Maximum number of sockets that a starting node checks, to remove the sockets of dead nodes.
const MAX_EXAMINED: usize = 16;
/// Maximum number of nodes queried concurrently. Each takes a descriptor.
const MAX_ASKED: usize = 64;

/// Maximum size of a node's description, in bytes.
pub const MAX_NODE_BYTES: usize = 64 << 10;
/// Maximum number of nodes that [`ask_nodes`] returns.
pub const MAX_NODES: usize = 1024;

/// Request to a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeRequest {
    /// The node's description of itself.
    Status,
    /// The last events of the node.
    Record,
}

impl NodeRequest {
    /// Prefix of the abstract name of a socket that requests the record. A socket that requests the status does not
    /// have a name.
    const RECORD: &[u8] = b"trunkline-record-";

    /// Returns the address of the client's socket for the request. `random` makes it unique.
    fn address(self, random: u64) -> std::io::Result<Option<SockAddr>> {
        match self {
            Self::Status => Ok(None),
            Self::Record => {
                let name = [b"\0", Self::RECORD, format!("{random:016x}").as_bytes()].concat();
                SockAddr::unix(OsStr::from_bytes(&name)).map(Some)
            }
        }
    }

    /// Returns the request that a connecting socket's name identifies.
    fn of(socket: &Socket) -> Self {
        let peer = socket.peer_addr().ok();
        let name = peer.as_ref().and_then(SockAddr::as_abstract_namespace);
        if name.is_some_and(|name| name.starts_with(Self::RECORD)) { Self::Record } else { Self::Status }
    }
}

/// The socket at which a node describes itself. Dropping it removes the socket file.
#[derive(Debug)]
pub struct NodeSocket {
    listener: Socket,
    folder: Folder,
    path: PathBuf,
    process: Process,
}

impl NodeSocket {
    /// Listens in the runtime directory (`None` takes it from the environment), and removes the sockets of
    /// dead nodes. `number` is random and names the socket.
    ///
    /// # Errors
    /// Fails if the runtime directory cannot be used, or the socket cannot be created.
    pub fn open(directory: Option<&Path>, number: u64) -> Result<Self, HostError> {
        let path = nodes_folder(directory)?;
        let folder = Folder::new(&path)?;
        remove_left(&folder, &path, number);
        let name = format!("{number:016x}");
        let [unfinished, finished] = [UNFINISHED, LISTENING].map(|end| format!("{name}{end}"));
        let listener = folder.listen_at(&unfinished)?;
        let (from, path) = (path.join(&unfinished), path.join(finished));
        if let Err(source) = fs::rename(&from, &path) {
            let _absent = fs::remove_file(&from);
            return Err(HostError::Os { doing: "rename the socket of a node to", path, source });
        }
        Ok(Self { listener, folder, path, process: Process::current() })
    }

    /// Answers the waiting connections with the text that `describe` returns, truncated to
    /// [`MAX_NODE_BYTES`]. Returns true if there was a connection, in which case more may be waiting.
    pub fn answer(&self, describe: impl Fn(NodeRequest) -> String) -> bool {
        // Connections are rare, so this is usually the only system call.
        let is_asked = poll(&mut [PollFd::new(self.as_fd(), PollFlags::POLLIN)], PollTimeout::ZERO);
        if is_asked.is_ok_and(|ready| ready == 0) {
            return false;
        }
        let mut texts = [None, None];
        let mut answered = false;
        for _ in 0..MAX_ANSWERS {
            // The queue is empty, or the connection cannot be accepted. A later connection wakes the node
            // again.
            let Ok(accepted) = self.folder.accept(&self.listener) else { break };
            answered = true;
            let Some(socket) = accepted else { continue };
            let request = NodeRequest::of(&socket);
            let text =
                texts[usize::from(request == NodeRequest::Record)].get_or_insert_with(|| describe(request));
            // The kernel may grant a smaller buffer.
            let _less = socket.set_send_buffer_size(4 * MAX_NODE_BYTES);
            let bytes = &text.as_bytes()[..text.len().min(MAX_NODE_BYTES)];
            if let Err(error) = send(&socket, &[IoSlice::new(bytes)]) {
                tracing::debug!(%error, "node description not sent");
            }
        }
        answered
    }
}

impl AsFd for NodeSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Drop for NodeSocket {
    fn drop(&mut self) {
        if !self.process.is_forked() {
            // The folder may have been removed.
            let _absent = fs::remove_file(&self.path);
        }
    }
}

/// A node that [`ask_nodes`] found.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct FoundNode {
    /// Name of its socket, unique among all nodes.
    pub name: String,
    /// Process of the node; `None` if the process is not visible in this PID namespace.
    pub pid: Option<u32>,
    /// The node's answer; `None` if it did not answer in time.
    pub answer: Option<String>,
}

impl FoundNode {
    /// Creates a node from its parts.
    #[must_use]
    pub fn new(name: String, pid: Option<u32>, answer: Option<String>) -> Self {
        Self { name, pid, answer }
    }
}

/// Requests descriptions from the running nodes of this user in this network namespace and runtime directory
/// (`None` takes it from the environment). Waits at most `patience` for each group of 64 nodes, and queries
/// at most [`MAX_NODES`]. Removes the sockets of dead nodes.
///
/// # Errors
/// Fails if the runtime directory cannot be used, or does not exist ([`HostError::Absent`]).
pub fn ask_nodes(
    directory: Option<&Path>,
    request: NodeRequest,
    patience: Duration,
) -> Result<Vec<FoundNode>, HostError> {
    let Some(path) = existing_folder(directory)?.map(|folder| folder.join(FOLDER)) else {
        return Ok(Vec::new());
    };
    if !is_private_directory(&path)? {
        return Ok(Vec::new());
    }
    let folder = Folder::new(&path)?;
    let mut names =
        names(&path).map_err(|source| HostError::Os { doing: "list", path: path.clone(), source })?;
    names.sort_unstable();
    names.truncate(MAX_NODES);
    let runtime = Runtime::threads();
    let mut found = Vec::new();
    for names in names.chunks(MAX_ASKED) {
        // Send all requests before waiting for answers, so that a stopped node does not delay the others.
        let ask = |name: &String| connect(&folder, &path, name, request, runtime.random());
        let asked: Vec<_> = names.iter().filter_map(ask).collect();
        let until = runtime.clock().now() + patience;
        found.extend(asked.into_iter().map(|(mut node, socket)| {
            node.answer = socket.and_then(|socket| receive(&socket, &runtime, until));
            node
        }));
    }
    Ok(found)
}

fn nodes_folder(directory: Option<&Path>) -> Result<PathBuf, HostError> {
    let path = namespace_folder(directory)?.join(FOLDER);
    private_directory(&path)?;
    Ok(path)
}

/// Returns the names of the files in the folder.
fn names(path: &Path) -> std::io::Result<Vec<String>> {
    let entries = fs::read_dir(path)?.take(4 * MAX_NODES);
    entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}

/// Connects to a node. Removes its socket and returns `None` if the node is dead.
fn connect(
    folder: &Folder,
    path: &Path,
    name: &str,
    request: NodeRequest,
    random: u64,
) -> Option<(FoundNode, Option<Socket>)> {
    let Some(stem) = name.strip_suffix(LISTENING) else {
        if name.ends_with(UNFINISHED) && is_old(&path.join(name)) {
            let _absent = fs::remove_file(path.join(name));
        }
        return None;
    };
    let found = |pid| FoundNode { name: stem.to_owned(), pid, answer: None };
    match request.address(random).and_then(|own| folder.connect_from(own.as_ref(), name)) {
        Ok(socket) if folder.is_ours(&socket) => {
            let peer = getsockopt(&socket, PeerCredentials).ok()?;
            let pid = u32::try_from(peer.pid()).ok().filter(|pid| *pid != 0);
            Some((found(pid), Some(socket)))
        }
        Ok(_) => None,
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
            let _absent = fs::remove_file(path.join(name));
            None
        }
        // Too many processes query the node at once.
        Err(error) if error.kind() == ErrorKind::WouldBlock => Some((found(None), None)),
        Err(error) => {
            tracing::debug!(%error, name, "node description not read");
            None
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "compared with times of the file system")]
fn is_old(path: &Path) -> bool {
    let changed = fs::symlink_metadata(path).and_then(|found| found.modified());
    changed.is_ok_and(|changed| {
        std::time::SystemTime::now().duration_since(changed).is_ok_and(|age| age > UNFINISHED_FOR)
    })
}

/// Removes the sockets of some dead nodes. `random` selects the sockets to check.
fn remove_left(folder: &Folder, path: &Path, random: u64) {
    let Ok(mut names) = names(path) else { return };
    names.sort_unstable();
    let start = usize::try_from(random % names.len().max(1) as u64).unwrap_or(0);
    names.rotate_left(start);
    for name in names.iter().take(MAX_EXAMINED) {
        drop(connect(folder, path, name, NodeRequest::Status, random));
    }
}

/// Receives a node's answer, until a time limit. An answer that has arrived is taken even after the limit.
fn receive(socket: &Socket, runtime: &Runtime, until: Time) -> Option<String> {
    let mut bytes = vec![0; MAX_NODE_BYTES];
    loop {
        let mut reader = socket;
        match reader.read(&mut bytes) {
            // The node has closed the connection without an answer.
            Ok(0) => return None,
            Ok(length) => {
                bytes.truncate(length);
                return String::from_utf8(bytes).ok();
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => return None,
        }
        let now = runtime.clock().now();
        if now >= until {
            return None;
        }
        let left = (until - now).as_millis().saturating_add(1);
        let left = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        // The loop continues if the wait was interrupted.
        let _ready = poll(&mut [PollFd::new(socket.as_fd(), PollFlags::POLLIN)], left);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use trunkline_testkit::Folder as TestFolder;

    /// Only a failing test waits this long.
    const LONG: Duration = Duration::from_secs(60);

    /// Queries the nodes while a thread answers for one of them.
    #[expect(clippy::disallowed_methods, reason = "a node answers on a thread of its own")]
    fn ask_beside(node: &NodeSocket, text: &str, root: &Path) -> Vec<FoundNode> {
        std::thread::scope(|scope| {
            let asked = scope.spawn(|| ask_nodes(Some(root), NodeRequest::Status, LONG).unwrap());
            while !asked.is_finished() {
                node.answer(|_| text.to_owned());
                std::thread::yield_now();
            }
            asked.join().unwrap()
        })
    }

    fn sockets(root: &Path) -> usize {
        names(&nodes_folder(Some(root)).unwrap()).unwrap().len()
    }

    #[test]
    fn node_answers_at_private_socket_until_drop() {
        let folder = TestFolder::new().unwrap();
        let root = folder.join("run");
        let node = NodeSocket::open(Some(&root), 7).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&node.path), mode(node.path.parent().unwrap())), (0o600, 0o700));
        let found = ask_beside(&node, "as it is", &root);
        let expected = FoundNode {
            name: format!("{:016x}", 7),
            pid: Some(std::process::id()),
            answer: Some("as it is".to_owned()),
        };
        assert_eq!(found, [expected]);
        let long = "x".repeat(MAX_NODE_BYTES + 1);
        let found = ask_beside(&node, &long, &root);
        assert_eq!(found[0].answer.as_ref().map(String::len), Some(MAX_NODE_BYTES));
        drop(node);
        assert_eq!(
            (ask_nodes(Some(&root), NodeRequest::Status, LONG).unwrap(), sockets(&root)),
            (Vec::new(), 0)
        );
    }

    #[test]
    fn node_answers_each_connection_according_to_request() {
        let folder = TestFolder::new().unwrap();
        let root = folder.join("run");
        let node = NodeSocket::open(Some(&root), 7).unwrap();
        let (path, name) = (nodes_folder(Some(&root)).unwrap(), "0000000000000007.sock");
        let opened = Folder::new(&path).unwrap();
        let asks = [NodeRequest::Record, NodeRequest::Status, NodeRequest::Record];
        let asked = (0..)
            .zip(asks)
            .map(|(random, request)| connect(&opened, &path, name, request, random).unwrap().1);
        let asked: Vec<_> = asked.map(Option::unwrap).collect();
        assert!(node.answer(|request| format!("{request:?}")));
        let runtime = Runtime::threads();
        let answers: Vec<_> =
            asked.iter().map(|socket| receive(socket, &runtime, runtime.clock().now()).unwrap()).collect();
        assert_eq!(answers, ["Record", "Status", "Record"]);
    }

    #[test]
    fn query_does_not_create_files() {
        let folder = TestFolder::new().unwrap();
        let root = folder.join("run");
        let error = ask_nodes(Some(&root), NodeRequest::Status, LONG).unwrap_err();
        assert!(matches!(&error, HostError::Absent { path, .. } if *path == root), "{error}");
        assert!(!root.exists());
        // The directory is also used by programs that are not nodes.
        let namespace = namespace_folder(Some(&root)).unwrap();
        assert_eq!(ask_nodes(Some(&root), NodeRequest::Status, LONG).unwrap(), []);
        assert_eq!(names(&namespace).unwrap().len(), 0);
    }

    #[test]
    fn sockets_of_dead_nodes_are_removed_by_queries_and_starts() {
        let folder = TestFolder::new().unwrap();
        let root = folder.join("run");
        let leave = |number| {
            let node = NodeSocket::open(Some(&root), number).unwrap();
            let kept = node.path.with_extension("kept");
            fs::rename(&node.path, &kept).unwrap();
            let path = node.path.clone();
            drop(node);
            fs::rename(kept, path).unwrap();
        };
        leave(1);
        assert_eq!(sockets(&root), 1);
        assert!(ask_nodes(Some(&root), NodeRequest::Status, LONG).unwrap().is_empty());
        assert_eq!(sockets(&root), 0);
        leave(2);
        let _node = NodeSocket::open(Some(&root), 3).unwrap();
        assert_eq!(sockets(&root), 1, "that of the dead one is gone");
    }

    #[test]
    fn silent_node_is_found_and_does_not_delay_other_answers() {
        let folder = TestFolder::new().unwrap();
        let root = folder.join("run");
        let silent = NodeSocket::open(Some(&root), 1).unwrap();
        assert_eq!(ask_nodes(Some(&root), NodeRequest::Status, Duration::ZERO).unwrap().len(), 1);
        // A second node, which answers before the wait for the first one begins.
        let speaking = nodes_folder(Some(&root)).unwrap().join("0000000000000002.sock");
        let folder = Folder::new(speaking.parent().unwrap()).unwrap();
        let listener = folder.listen_at("0000000000000002.sock").unwrap();
        let other = NodeSocket { listener, folder, path: speaking, process: Process::current() };
        let path = nodes_folder(Some(&root)).unwrap();
        let opened = Folder::new(&path).unwrap();
        let asked: Vec<_> = ["0000000000000001.sock", "0000000000000002.sock"]
            .iter()
            .filter_map(|name| connect(&opened, &path, name, NodeRequest::Status, 0))
            .collect();
        assert!(other.answer(|_| "here".to_owned()));
        let runtime = Runtime::threads();
        let now = runtime.clock().now();
        let answers: Vec<_> =
            asked.iter().map(|(_, socket)| receive(socket.as_ref().unwrap(), &runtime, now)).collect();
        assert_eq!(answers, [None, Some("here".to_owned())]);
        drop(silent);
    }
}
