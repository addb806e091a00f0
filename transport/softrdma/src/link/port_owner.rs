//! Owner of UDP port 4791 at an address, as reported by the kernel in `/proc`.
//!
//! Used for the texts of errors and warnings, and to refuse a request to an address where nothing receives: the
//! result may be out of date when it is read. It opens only
//! the descriptor links and the environment of the other process, and it never waits.
#![forbid(unsafe_code)]

use std::fmt;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use trunkline_roce::wire::ROCE_PORT;

/// Maximum number of processes whose descriptors are examined.
const MOST_PROCESSES: usize = 65_536;

/// The owner of UDP port 4791 at an address, as far as it can be known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortOwner {
    /// Address that the port is bound to: the requested one, or the unspecified one of its family.
    pub address: IpAddr,
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
        /// Runtime directory whose devices it is a member of, if any.
        runtime_directory: Option<PathBuf>,
    },
    /// The kernel: its rxe driver.
    Kernel,
    /// A process of this user whose descriptors were not found, or a process of another user.
    Hidden {
        /// The user.
        uid: u32,
    },
}

impl PortOwner {
    /// Returns what the user can do: of a program that listens, or of one that only makes calls.
    #[must_use]
    pub fn remedy(&self, is_of_client: bool) -> String {
        let both = match self.who {
            Owner::Process { runtime_directory: Some(_), .. } => {
                "give both programs the same runtime directory (TRUNKLINE_RUNTIME_DIR), "
            }
            _ => "",
        };
        if self.address.is_unspecified() {
            // No other address is free.
            let both = both.strip_suffix(", ").map(|both| format!("{both}, or "));
            return format!("{}stop that one", both.unwrap_or_default());
        }
        let other = if is_of_client {
            "set TRUNKLINE_ADDRESS to another address"
        } else {
            "listen on another address"
        };
        let is_v4_loopback = self.address.is_ipv4() && self.address.is_loopback();
        let such_as = if is_v4_loopback { ", such as another one of 127.0.0.0/8" } else { "" };
        format!("{both}stop that one, or {other}{such_as}")
    }

    /// Returns the process that has the port at exactly this address, if it is stopped, as by SIGSTOP. The kernel
    /// drops what arrives at its socket.
    #[must_use]
    pub fn stopped_at(address: IpAddr) -> Option<u32> {
        let socket = sockets_at(address)?.into_iter().find(|socket| socket.address == address)?;
        if links_of(Path::new("/proc/self")).contains(&link_to(socket.inode)) {
            return None;
        }
        let Owner::Process { pid, .. } = process_with(socket.inode)? else { return None };
        let status = fs::read(format!("/proc/{pid}/status")).ok()?;
        status.split(|byte| *byte == b'\n').any(|line| line.starts_with(b"State:\tT")).then_some(pid)
    }

    /// Returns true if no socket receives at the port of this address; false if `/proc` cannot be read.
    pub(crate) fn is_free(address: IpAddr) -> bool {
        receiving_at(address).is_some_and(|sockets| sockets.is_empty())
    }

    /// Returns the owner of the port at this address; `None` if the port is free, or `/proc` cannot be read.
    #[must_use]
    pub fn find(address: IpAddr) -> Option<Self> {
        let socket = receiving_at(address)?.into_iter().next()?;
        let who = if socket.inode == 0 {
            Owner::Kernel
        } else {
            process_with(socket.inode).unwrap_or(Owner::Hidden { uid: socket.uid })
        };
        Some(Self { address: socket.address, who })
    }
}

/// Names are escaped: another user may have chosen them, and they are printed to terminals and logs.
impl fmt::Display for PortOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.who {
            Owner::Process { pid, program, runtime_directory } => {
                write!(f, "process {pid} ({})", program.escape_debug())?;
                match runtime_directory {
                    Some(directory) => {
                        let directory = directory.to_string_lossy();
                        write!(f, ", whose runtime directory is {}", directory.escape_debug())?;
                    }
                    None => f.write_str(", which has no runtime directory of ours")?,
                }
            }
            Owner::Kernel => f.write_str("the kernel's rxe driver (`rdma link` shows it)")?,
            Owner::Hidden { uid } => write!(
                f,
                "a process of user {uid} whose descriptors cannot be read here (`sudo ss -lunp sport = {ROCE_PORT}` \
                 names it)"
            )?,
        }
        if self.address.is_unspecified() {
            write!(f, ", at all addresses ({})", self.address)?;
        }
        Ok(())
    }
}

/// A socket with the port, as the kernel lists it.
#[derive(Debug, PartialEq, Eq)]
struct Listed {
    address: IpAddr,
    uid: u32,
    /// Inode of the socket; 0 for a socket of the kernel itself.
    inode: u64,
}

/// Returns the sockets that receive at the port of this address.
fn receiving_at(address: IpAddr) -> Option<Vec<Listed>> {
    let mut sockets = sockets_at(address)?;
    if address.is_ipv4() {
        // A socket of both families has the IPv4 port, too.
        let any = fs::read_to_string("/proc/net/udp6").unwrap_or_default();
        sockets.extend(sockets_of(&any, Ipv6Addr::UNSPECIFIED.into()));
    }
    Some(sockets)
}

/// Returns the sockets of the address's family that have the port there, or at every address.
fn sockets_at(address: IpAddr) -> Option<Vec<Listed>> {
    let table = if address.is_ipv4() { "/proc/net/udp" } else { "/proc/net/udp6" };
    Some(sockets_of(&fs::read_to_string(table).ok()?, address))
}

/// Returns the sockets of a table that have the port at this address, or at every address.
fn sockets_of(table: &str, address: IpAddr) -> Vec<Listed> {
    let listed = table.lines().skip(1).filter_map(|line| {
        let mut fields = line.split_ascii_whitespace().skip(1);
        let (at, port) = fields.next()?.split_once(':')?;
        let at = address_of(at)?;
        let mut fields = fields.skip(5);
        let uid = fields.next()?.parse().ok()?;
        let inode = fields.nth(1)?.parse().ok()?;
        let is_it = u16::from_str_radix(port, 16) == Ok(ROCE_PORT) && (at == address || at.is_unspecified());
        is_it.then_some(Listed { address: at, uid, inode })
    });
    listed.collect()
}

/// Parses an address in the kernel's notation: words of 32 bits in the host's order.
fn address_of(text: &str) -> Option<IpAddr> {
    let word = |at: usize| u32::from_str_radix(text.get(at * 8..at * 8 + 8)?, 16).ok();
    match text.len() {
        8 => Some(Ipv4Addr::from(word(0)?.to_ne_bytes()).into()),
        32 => {
            let mut octets = [0; 16];
            for (at, four) in octets.chunks_exact_mut(4).enumerate() {
                four.copy_from_slice(&word(at)?.to_ne_bytes());
            }
            Some(Ipv6Addr::from(octets).into())
        }
        _ => None,
    }
}

/// Returns the process that has a descriptor of this socket, among those that this user may examine.
fn process_with(inode: u64) -> Option<Owner> {
    let wanted = link_to(inode);
    let processes = fs::read_dir("/proc").ok()?.flatten().take(MOST_PROCESSES);
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    for pid in pids {
        let process = PathBuf::from(format!("/proc/{pid}"));
        let links = links_of(&process);
        if links.contains(&wanted) {
            let program = fs::read(process.join("comm")).unwrap_or_default();
            let program = String::from_utf8_lossy(&program).trim_end().to_owned();
            let runtime_directory = links.iter().find_map(|link| runtime_directory_of(link));
            return Some(Owner::Process { pid, program, runtime_directory });
        }
    }
    None
}

/// Returns the target of the descriptors of a socket.
fn link_to(inode: u64) -> PathBuf {
    PathBuf::from(format!("socket:[{inode}]"))
}

/// Returns the targets of a process's descriptors.
fn links_of(process: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
    entries.filter_map(|entry| fs::read_link(entry.path()).ok()).collect()
}

/// Returns the runtime directory, if the link is the lock of one of its members.
fn runtime_directory_of(link: &Path) -> Option<PathBuf> {
    let is_lock = link.file_name()?.to_str()?.starts_with("slot-");
    let folder = link.parent().filter(|_| is_lock)?;
    folder.file_name()?.to_str()?.starts_with("net-").then(|| folder.parent().map(Path::to_owned))?
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
    fn the_kernels_table_is_read() {
        let of = |text: &str| sockets_of(TABLE, text.parse().unwrap());
        let found = of("127.75.73.122");
        assert_eq!((found.len(), found[0].uid, found[0].inode), (1, 1000, 1_595_530));
        assert_eq!(of("127.0.0.1")[0].inode, 0);
        assert!(of("127.0.0.2").is_empty(), "it has another port");
        let any = TABLE.replace("0200007F:12B8", "00000000:12B7");
        let found = sockets_of(&any, "127.0.0.2".parse().unwrap());
        assert!(found[0].address.is_unspecified() && found[0].inode == 7);
        assert!(sockets_of("garbage\n:\n1: zz:zz", "127.0.0.2".parse().unwrap()).is_empty());
        let v6 = address_of("00000000000000000000000001000000").unwrap();
        assert_eq!(v6, "::1".parse::<IpAddr>().unwrap());
    }

    #[test]
    fn another_address_is_suggested_only_if_it_can_be_free() {
        let owner = |address: &str, who| PortOwner { address: address.parse().unwrap(), who };
        let remedy = |address| owner(address, Owner::Kernel).remedy(false);
        assert_eq!(remedy("0.0.0.0"), "stop that one");
        assert_eq!(remedy("::"), "stop that one");
        assert_eq!(remedy("10.0.0.1"), "stop that one, or listen on another address");
        assert!(remedy("127.0.0.2").ends_with("another address, such as another one of 127.0.0.0/8"));
        let who = Owner::Process { pid: 7, program: "a".into(), runtime_directory: Some("/run".into()) };
        let text = owner("0.0.0.0", who).remedy(true);
        assert!(text.ends_with("(TRUNKLINE_RUNTIME_DIR), or stop that one"), "{text}");
    }

    #[test]
    fn names_of_other_users_are_escaped() {
        let who = Owner::Process {
            pid: 7,
            program: "\u{1b}[2J\nroot: ok".to_owned(),
            runtime_directory: Some("/tmp/\u{1b}]0;x\u{7}\u{202e}".into()),
        };
        let text = PortOwner { address: Ipv4Addr::LOCALHOST.into(), who }.to_string();
        assert!(
            text.starts_with(r"process 7 (\u{1b}[2J\nroot: ok), whose runtime directory is /tmp/\u{1b}]0;x"),
            "{text}"
        );
        assert!(!text.contains(|letter: char| letter.is_control() || letter == '\u{202e}'), "{text}");
        let plain =
            Owner::Process { pid: 7, program: "a b".into(), runtime_directory: Some("/run/é".into()) };
        let text = PortOwner { address: Ipv4Addr::LOCALHOST.into(), who: plain }.to_string();
        assert_eq!(text, "process 7 (a b), whose runtime directory is /run/é");
    }

    #[test]
    fn locks_of_members_lead_to_their_directory() {
        let of = |text| runtime_directory_of(Path::new(text));
        assert_eq!(of("/run/user/1/trunkline/net-4026531840.6/slot-3"), Some("/run/user/1/trunkline".into()));
        for other in ["/run/net-4026531840.6/registry", "/run/other/slot-3", "socket:[7]", "/"] {
            assert_eq!(of(other), None, "{other}");
        }
    }
}
