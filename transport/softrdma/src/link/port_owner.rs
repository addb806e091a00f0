//! Owner of a UDP port at an address, as reported by the kernel in `/proc`.
//!
//! Used for the texts of errors and warnings, and to refuse requests to addresses without a receiver. The
//! result may be out of date when it is returned. The search reads only the descriptor links and the
//! environment of other processes, and never waits.
#![forbid(unsafe_code)]

use crate::host::stat_fields;
use nix::unistd::geteuid;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;
use trunkline_verbs::Time;

/// Maximum number of processes whose descriptors are read.
const MOST_PROCESSES: usize = 65_536;
/// Time for which a list of the host's sockets is cached.
const KEPT_FOR: Duration = Duration::from_millis(100);

/// The owner of a UDP port at an address, as far as it can be determined.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortOwner {
    /// Address to which the port is bound, which is the requested or an unspecified address.
    pub address: IpAddr,
    /// The port.
    pub port: u16,
    /// The owner.
    pub who: Owner,
}

/// The owner of a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Owner {
    /// A process.
    Process {
        /// Process id.
        pid: u32,
        /// Name of its program.
        program: String,
        /// Runtime directory in which the process is a member, if any.
        runtime_directory: Option<RuntimeDirectory>,
    },
    /// The kernel's rxe driver.
    Kernel,
    /// A process of this user whose descriptors were not found, or a process of another user.
    Hidden {
        /// User id of the process.
        uid: u32,
    },
}

/// The runtime directory of another process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuntimeDirectory {
    /// Path of the directory. It begins with `/proc/PID/root` if the process has another directory mounted at the path.
    pub path: PathBuf,
    /// True if the process's files in the directory were removed, so that processes that start later do not
    /// find it.
    pub is_emptied: bool,
}

/// Remedy that applies in all cases.
const OTHER_PORT: &str = "set TRUNKLINE_PORT of one of the two to another port";

impl PortOwner {
    /// Returns a remedy for a client that finds the port taken, or for a listening program if `is_of_client` is
    /// false.
    #[must_use]
    pub fn remedy(&self, is_of_client: bool) -> String {
        let both = match &self.who {
            Owner::Process { runtime_directory: Some(RuntimeDirectory { is_emptied: true, .. }), .. } => {
                return "restart that one, and keep cleaners such as systemd-tmpfiles from the directory, or set \
                        TRUNKLINE_RUNTIME_DIR of both programs to one that nothing cleans"
                    .to_owned();
            }
            Owner::Process { runtime_directory: Some(_), .. } => {
                "give both programs the same runtime directory (TRUNKLINE_RUNTIME_DIR), "
            }
            _ => "",
        };
        if self.address.is_unspecified() {
            // The port is taken at all addresses.
            let both = both.strip_suffix(", ").map(|both| format!("{both}, or "));
            return format!("{}stop that one, or {OTHER_PORT}", both.unwrap_or_default());
        }
        let other = if is_of_client {
            "set TRUNKLINE_ADDRESS to another address"
        } else {
            "listen on another address"
        };
        let is_v4_loopback = self.address.is_ipv4() && self.address.is_loopback();
        let such_as = if is_v4_loopback { ", such as another one of 127.0.0.0/8" } else { "" };
        format!("{both}stop that one, {OTHER_PORT}, or {other}{such_as}")
    }

    /// Returns true if the owner is a live program that shares no runtime directory with this process. Returns false for a
    /// process of this user whose descriptors cannot be read, since it may be ending.
    pub(super) fn is_stranger(&self) -> bool {
        match &self.who {
            Owner::Process { pid, runtime_directory, .. } => {
                let own = Path::new("/proc/self");
                let descriptors = descriptors_of(own);
                let mut shared = descriptors.iter().filter_map(|of| runtime_directory_of(own, of));
                let is_member = runtime_directory.as_ref().is_some_and(|of| shared.any(|own| own == *of));
                !is_member && !is_ending(*pid)
            }
            Owner::Kernel => true,
            Owner::Hidden { uid } => *uid != geteuid().as_raw(),
        }
    }

    /// Returns the pid of the process that holds the port at exactly this address, if a signal such as SIGSTOP has
    /// stopped it. The kernel drops packets for the process's socket once the socket's buffer is full.
    #[must_use]
    pub fn stopped_at(at: SocketAddr) -> Option<u32> {
        let socket = receiving_at(at)?.into_iter().find(|socket| socket.address == at.ip())?;
        let own = descriptors_of(Path::new("/proc/self"));
        if own.iter().any(|descriptor| descriptor.link == link_to(socket.inode)) {
            return None;
        }
        let Owner::Process { pid, .. } = processes_with(&[socket.inode].into()).remove(&socket.inode)? else {
            return None;
        };
        is_stopped(pid).then_some(pid)
    }

    /// Returns the owner of the port at this address; `None` if the port is free, or `/proc` cannot be read.
    #[must_use]
    pub fn find(at: SocketAddr) -> Option<Self> {
        Self::find_all(&[at]).remove(&at)
    }

    /// Returns the owners of several ports, as [`PortOwner::find`] does for one. Reads each process only once.
    #[must_use]
    pub fn find_all(all: &[SocketAddr]) -> BTreeMap<SocketAddr, Self> {
        let sockets = all_sockets().unwrap_or_default();
        let receiving = |at: &SocketAddr| Some((*at, sockets.iter().find(|socket| socket.receives_at(*at))?));
        let found: Vec<_> = all.iter().filter_map(receiving).collect();
        let processes = processes_with(&found.iter().map(|(_, socket)| socket.inode).collect());
        let owner = |(at, socket): (SocketAddr, &Listed)| {
            let who = match processes.get(&socket.inode) {
                _ if socket.inode == 0 => Owner::Kernel,
                Some(process) => process.clone(),
                None => Owner::Hidden { uid: socket.uid },
            };
            (at, Self { address: socket.address, port: socket.port, who })
        };
        found.into_iter().map(owner).collect()
    }
}

/// Escapes control and format characters of a text from another process or host, so that it can neither control
/// a terminal nor change the order of the displayed text.
#[must_use]
pub fn printable(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '"' | '\'' | '\\' => plain.push(letter),
            _ => plain.extend(letter.escape_debug()),
        }
    }
    plain
}

/// Names are escaped, since another user may have chosen them and they are printed to terminals and logs.
impl fmt::Display for PortOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.who {
            Owner::Process { pid, program, runtime_directory } => {
                write!(f, "process {pid} ({})", printable(program))?;
                match runtime_directory {
                    Some(RuntimeDirectory { path, is_emptied }) => {
                        let path = path.to_string_lossy();
                        write!(f, ", whose runtime directory is {}", printable(&path))?;
                        if *is_emptied {
                            f.write_str(", emptied while the process ran")?;
                        }
                    }
                    None => f.write_str(", which has no runtime directory of ours")?,
                }
            }
            Owner::Kernel => f.write_str("the kernel's rxe driver (`rdma link` shows it)")?,
            Owner::Hidden { uid } => write!(
                f,
                "a process of user {uid} whose descriptors cannot be read here (`sudo ss -lunp sport = {}` names \
                 it)",
                self.port
            )?,
        }
        if self.address.is_unspecified() {
            write!(f, ", at all addresses ({})", self.address)?;
        }
        Ok(())
    }
}

/// Maximum number of sockets in a list that is read again before an address counts as free. Reading the list
/// then takes less than a millisecond.
const FEW: usize = 1024;

/// The UDP sockets of this host. A socket in the list counts as present for up to [`KEPT_FOR`]. If no socket is
/// found, the list is read again, because a request may be sent to a program right after its start.
#[derive(Debug, Default)]
pub(crate) struct UdpSockets {
    /// Time at which the list was last read.
    read: Option<Time>,
    /// `None` if the kernel's lists cannot be read.
    sockets: Option<Vec<Listed>>,
}

impl UdpSockets {
    /// Returns true if an address and port are not in use. `own` is the local socket that sends packets there. Returns
    /// false if the list does not contain `own`, since the list may then describe another network namespace.
    pub(crate) fn is_free(&mut self, at: SocketAddr, own: SocketAddr, now: Time) -> bool {
        let read = self.read;
        if read.is_none_or(|read| now >= read + KEPT_FOR) {
            self.list(now);
        }
        let is_free = self.lists_as_free(at, own);
        let is_short = self.sockets.as_ref().is_some_and(|sockets| sockets.len() <= FEW);
        if is_free && is_short && self.read == read && read != Some(now) {
            self.list(now);
            return self.lists_as_free(at, own);
        }
        is_free
    }

    fn list(&mut self, now: Time) {
        (self.read, self.sockets) = (Some(now), all_sockets());
    }

    fn lists_as_free(&self, at: SocketAddr, own: SocketAddr) -> bool {
        let is_own = |socket: &Listed| (socket.address, socket.port) == (own.ip(), own.port());
        self.sockets.as_ref().is_some_and(|sockets| {
            sockets.iter().any(is_own) && !sockets.iter().any(|socket| socket.receives_at(at))
        })
    }
}

/// A UDP socket in the kernel's list.
#[derive(Debug, PartialEq, Eq)]
struct Listed {
    address: IpAddr,
    port: u16,
    uid: u32,
    /// Inode of the socket; 0 for a socket of the kernel.
    inode: u64,
}

impl Listed {
    /// Returns true if the socket is bound to this port at this address or at an unspecified address. A socket at the
    /// unspecified IPv6 address may also receive over IPv4.
    fn receives_at(&self, at: SocketAddr) -> bool {
        let address = at.ip();
        let is_any = self.address.is_unspecified() && (self.address.is_ipv6() || address.is_ipv4());
        self.port == at.port() && (self.address == address || is_any)
    }
}

/// Returns the sockets that receive at this address and port.
fn receiving_at(at: SocketAddr) -> Option<Vec<Listed>> {
    let mut sockets = all_sockets()?;
    sockets.retain(|socket| socket.receives_at(at));
    Some(sockets)
}

/// Returns true if a signal has stopped a process. Stops by a tracer (state `t`) do not count, since they
/// last only moments under strace.
pub(super) fn is_stopped(pid: u32) -> bool {
    stat_fields(&stat_of(pid)).next() == Some("T")
}

/// Returns true if a process is ending, although its sockets may still be open.
fn is_ending(pid: u32) -> bool {
    /// `PF_EXITING` (`include/linux/sched.h`).
    const EXITING: u32 = 4;
    let flags = stat_fields(&stat_of(pid)).nth(6).and_then(|flags| flags.parse::<u32>().ok());
    flags.is_none_or(|flags| flags & EXITING != 0)
}

fn stat_of(pid: u32) -> Vec<u8> {
    fs::read(format!("/proc/{pid}/stat")).unwrap_or_default()
}

/// Returns the UDP sockets of this thread's network namespace. `/proc/net` would show the namespace of the
/// main thread.
fn all_sockets() -> Option<Vec<Listed>> {
    let v4 = fs::read_to_string("/proc/thread-self/net/udp").ok()?;
    // The file does not exist on a host without IPv6.
    let v6 = fs::read_to_string("/proc/thread-self/net/udp6").unwrap_or_default();
    Some(sockets_of(&v4).chain(sockets_of(&v6)).collect())
}

/// Parses a socket table of the kernel.
fn sockets_of(table: &str) -> impl Iterator<Item = Listed> {
    table.lines().skip(1).filter_map(|line| {
        let mut fields = line.split_ascii_whitespace().skip(1);
        let (at, port) = fields.next()?.split_once(':')?;
        let (address, port) = (address_of(at)?, u16::from_str_radix(port, 16).ok()?);
        let mut fields = fields.skip(5);
        let uid = fields.next()?.parse().ok()?;
        let inode = fields.nth(1)?.parse().ok()?;
        Some(Listed { address, port, uid, inode })
    })
}

/// Parses an address in the kernel's notation, which consists of 32-bit words in host byte order.
fn address_of(text: &str) -> Option<IpAddr> {
    let word = |at: usize| u32::from_str_radix(text.get(at * 8..at * 8 + 8)?, 16).ok();
    match text.len() {
        8 => Some(Ipv4Addr::from(word(0)?.to_ne_bytes()).into()),
        32 => {
            let mut octets = [0; 16];
            for (at, four) in octets.chunks_exact_mut(4).enumerate() {
                four.copy_from_slice(&word(at)?.to_ne_bytes());
            }
            Some(IpAddr::from(octets).to_canonical())
        }
        _ => None,
    }
}

/// Returns the processes with descriptors of these sockets, by inode, if this user may read their
/// descriptors.
fn processes_with(inodes: &BTreeSet<u64>) -> BTreeMap<u64, Owner> {
    let mut wanted: BTreeMap<_, _> =
        inodes.iter().filter(|inode| **inode != 0).map(|inode| (link_to(*inode), *inode)).collect();
    let mut found = BTreeMap::new();
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten().take(MOST_PROCESSES);
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    for pid in pids {
        if wanted.is_empty() {
            break;
        }
        let process = PathBuf::from(format!("/proc/{pid}"));
        let descriptors = descriptors_of(&process);
        let own: Vec<_> = descriptors.iter().filter_map(|of| wanted.remove(&of.link)).collect();
        if own.is_empty() {
            continue;
        }
        let program = fs::read(process.join("comm")).unwrap_or_default();
        let program = String::from_utf8_lossy(&program).trim_end().to_owned();
        let directories = descriptors.iter().filter_map(|of| runtime_directory_of(&process, of));
        let runtime_directory = directories.reduce(|first, other| match first.is_emptied {
            true => other,
            false => first,
        });
        let owner = Owner::Process { pid, program, runtime_directory };
        found.extend(own.into_iter().map(|inode| (inode, owner.clone())));
    }
    found
}

/// Returns the target of the links in `/proc/PID/fd` that refer to a socket.
fn link_to(inode: u64) -> PathBuf {
    PathBuf::from(format!("socket:[{inode}]"))
}

/// An open descriptor of a process.
struct Descriptor {
    /// Its entry in `/proc/PID/fd`.
    entry: PathBuf,
    /// Target of the entry.
    link: PathBuf,
}

/// Returns the descriptors of a process.
fn descriptors_of(process: &Path) -> Vec<Descriptor> {
    let entries = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
    let descriptor = |entry: PathBuf| Some(Descriptor { link: fs::read_link(&entry).ok()?, entry });
    entries.filter_map(|entry| descriptor(entry.path())).collect()
}

/// Returns the runtime directory if a descriptor of the process refers to the lock file of a member. The kernel marks links
/// to removed files.
fn runtime_directory_of(process: &Path, descriptor: &Descriptor) -> Option<RuntimeDirectory> {
    let Descriptor { entry, link } = descriptor;
    let name = link.file_name()?.to_str()?;
    let folder = link.parent().filter(|_| name.starts_with("slot-"))?;
    let is_network = folder.file_name()?.to_str()?.starts_with("net-");
    let path = folder.parent().filter(|_| is_network)?.to_owned();
    if name.ends_with(" (deleted)") {
        return Some(RuntimeDirectory { path, is_emptied: true });
    }
    // The path is valid in the mount namespace of the process. Another user can open a file at any path there, but not this
    // user's file.
    let identity = |path: &Path| fs::metadata(path).map(|found| (found.dev(), found.ino())).ok();
    let is_here = identity(entry).is_some_and(|opened| identity(link) == Some(opened));
    let path = if is_here { path } else { process.join("root").join(path.strip_prefix("/").ok()?) };
    Some(RuntimeDirectory { path, is_emptied: false })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops\n \
        7406: 7A494B7F:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000  1000        0 1595530 2 00000000d7f59484 0\n \
        7406: 0100007F:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 0 2 00000000e593f53b 0\n \
        7407: 0200007F:12B8 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 7 2 00000000e593f53b 0\n";

    #[test]
    #[cfg(target_endian = "little")]
    fn kernel_udp_table_is_parsed() {
        let at = |table: &str, text: &str| {
            let at = SocketAddr::new(text.parse().unwrap(), 4791);
            sockets_of(table).filter(|socket| socket.receives_at(at)).collect::<Vec<_>>()
        };
        let of = |text| at(TABLE, text);
        let found = of("127.75.73.122");
        assert_eq!((found.len(), found[0].uid, found[0].inode), (1, 1000, 1_595_530));
        assert_eq!(of("127.0.0.1")[0].inode, 0);
        assert!(of("127.0.0.2").is_empty(), "it has another port");
        let any = TABLE.replace("0200007F:12B8", "00000000:12B7");
        let found = at(&any, "127.0.0.2");
        assert!(found[0].address.is_unspecified() && found[0].inode == 7);
        assert!(at(&any, "::1").is_empty());
        assert_eq!(sockets_of("garbage\n:\n1: zz:zz").count(), 0);
        let v6 = |text| address_of(text).unwrap();
        assert_eq!(v6("00000000000000000000000001000000"), "::1".parse::<IpAddr>().unwrap());
        assert_eq!(v6("0000000000000000FFFF00000100007F"), "127.0.0.1".parse::<IpAddr>().unwrap());
    }

    #[test]
    fn address_counts_as_free_only_in_list_with_own_socket() {
        let [own, other]: [SocketAddr; 2] =
            ["127.0.0.2:4792", "127.0.0.2:4793"].map(|at| at.parse().unwrap());
        let listed = |at: SocketAddr| Listed { address: at.ip(), port: at.port(), uid: 0, inode: 7 };
        let is_free = |sockets: Option<Vec<SocketAddr>>, address: &str| {
            let sockets = sockets.map(|sockets| sockets.into_iter().map(listed).collect());
            UdpSockets { read: Some(Time(1)), sockets }.is_free(
                SocketAddr::new(address.parse().unwrap(), 4791),
                own,
                Time(1),
            )
        };
        assert!(is_free(Some(vec![own]), "127.0.0.3"));
        assert!(!is_free(Some(vec![other]), "127.0.0.3"), "the list of another network namespace");
        assert!(!is_free(Some(vec![own, "127.0.0.3:4791".parse().unwrap()]), "127.0.0.3"));
        assert!(!is_free(Some(vec![own, "[::]:4791".parse().unwrap()]), "127.0.0.3"));
        assert!(is_free(Some(vec![own, "0.0.0.0:4791".parse().unwrap()]), "::1"));
        assert!(!is_free(None, "127.0.0.3"), "no list");
    }

    #[test]
    fn sockets_are_listed_at_most_every_100_ms_unless_address_seems_free() {
        let [own, held] = [(); 2].map(|()| std::net::UdpSocket::bind("127.0.0.1:0").unwrap());
        let own = own.local_addr().unwrap();
        let mut sockets = UdpSockets::default();
        let _first = sockets.is_free(own, own, Time(0));
        let count = |sockets: &UdpSockets| {
            let port = held.local_addr().unwrap().port();
            sockets.sockets.iter().flatten().filter(|socket| socket.port == port).count()
        };
        assert_eq!(count(&sockets), 1);
        sockets.sockets = Some(Vec::new());
        let _kept = sockets.is_free(own, own, Time(0) + KEPT_FOR / 2);
        assert_eq!(count(&sockets), 0);
        let _again = sockets.is_free(own, own, Time(0) + KEPT_FOR);
        assert_eq!(count(&sockets), 1);
        // This socket is not in the cached list.
        let newer = std::net::UdpSocket::bind((trunkline_testkit::fresh_ip(), 4791)).unwrap();
        let at = newer.local_addr().unwrap();
        assert!(!sockets.is_free(at, own, Time(1) + KEPT_FOR));
        drop(newer);
        assert!(sockets.is_free(at, own, Time(2) + KEPT_FOR * 2));
    }

    #[test]
    fn another_address_is_suggested_only_for_specific_address() {
        let owner = |address: &str, who| PortOwner { address: address.parse().unwrap(), port: 4791, who };
        let remedy = |address| owner(address, Owner::Kernel).remedy(false);
        let other_port = format!("stop that one, or {OTHER_PORT}");
        assert_eq!([remedy("0.0.0.0"), remedy("::")], [other_port.clone(), other_port]);
        assert_eq!(remedy("10.0.0.1"), format!("stop that one, {OTHER_PORT}, or listen on another address"));
        assert!(remedy("127.0.0.2").ends_with("another address, such as another one of 127.0.0.0/8"));
        let member = |is_emptied| {
            let runtime_directory = Some(RuntimeDirectory { path: "/run".into(), is_emptied });
            owner("0.0.0.0", Owner::Process { pid: 7, program: "a".into(), runtime_directory })
        };
        let text = member(false).remedy(true);
        assert!(text.contains("(TRUNKLINE_RUNTIME_DIR), or stop that one, or set TRUNKLINE_PORT"), "{text}");
        // The same runtime directory is not a remedy, since the process's files in it are removed.
        let text = format!("{}: {}", member(true), member(true).remedy(true));
        assert!(text.contains("whose runtime directory is /run, emptied while the process ran"), "{text}");
        assert!(text.contains("restart that one") && !text.contains("give both programs"), "{text}");
    }

    #[test]
    fn program_and_directory_names_of_port_owner_are_escaped() {
        let directory = |path: &str| Some(RuntimeDirectory { path: path.into(), is_emptied: false });
        let who = Owner::Process {
            pid: 7,
            program: "\u{1b}[2J\nroot: ok".to_owned(),
            runtime_directory: directory("/tmp/\u{1b}]0;x\u{7}\u{202e}"),
        };
        let text = PortOwner { address: Ipv4Addr::LOCALHOST.into(), port: 4791, who }.to_string();
        assert!(
            text.starts_with(r"process 7 (\u{1b}[2J\nroot: ok), whose runtime directory is /tmp/\u{1b}]0;x"),
            "{text}"
        );
        assert!(!text.contains(|letter: char| letter.is_control() || letter == '\u{202e}'), "{text}");
        let plain = Owner::Process { pid: 7, program: "a b".into(), runtime_directory: directory("/run/é") };
        let text = PortOwner { address: Ipv4Addr::LOCALHOST.into(), port: 4791, who: plain }.to_string();
        assert_eq!(text, "process 7 (a b), whose runtime directory is /run/é");
        assert_eq!(printable("expected \"a\\b\" or 'c'\u{202e}\n"), r#"expected "a\b" or 'c'\u{202e}\n"#);
    }

    #[test]
    fn runtime_directory_is_found_through_lock_of_member() {
        let folder = trunkline_testkit::Folder::new().unwrap();
        let [network, process] = ["net-4026531840.6", "process"].map(|name| folder.path().join(name));
        for path in [&network, &process] {
            fs::create_dir(path).unwrap();
        }
        let [slot, other] = [network.join("slot-3"), network.join("slot-4")];
        for path in [&slot, &other] {
            fs::write(path, "").unwrap();
        }
        let of = |link: &Path, entry: &Path| {
            let descriptor = Descriptor { entry: entry.to_owned(), link: link.to_owned() };
            runtime_directory_of(&process, &descriptor).map(|found| (found.path, found.is_emptied))
        };
        assert_eq!(of(&slot, &slot), Some((folder.path().to_owned(), false)));
        // Another file is mounted at the path, or was when it was opened.
        let elsewhere = process.join("root").join(folder.path().strip_prefix("/").unwrap());
        for entry in [&other, &network.join("absent")] {
            assert_eq!(of(&slot, entry), Some((elsewhere.clone(), false)));
        }
        let removed = format!("{} (deleted)", slot.display());
        assert_eq!(of(Path::new(&removed), &other), Some((folder.path().to_owned(), true)));
        for link in ["/run/net-4026531840.6/registry", "/run/other/slot-3", "socket:[7]", "/"] {
            assert_eq!(of(Path::new(link), Path::new(link)), None, "{link}");
        }
    }
}
