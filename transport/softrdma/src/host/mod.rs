//! The registry of a host: its members, and the numbers, services and domains that each owns.
//!
//! A *member* is one opened device over UDP; a process may have several. The members of one user
//! in one network namespace share the addresses of the one device `trunkline0`, and find each
//! other through files in the runtime directory:
//!
//! | file | what it is |
//! |---|---|
//! | `registry` | the tables, mapped by every member |
//! | `lock` | held around slow changes; the kernel frees it when its holder dies |
//! | `away`, `away-ADDRESS` | all removable devices, or those at the address, are taken away |
//! | `nodes` | a socket of each running node, at which it describes itself |
//! | `slot-N` | held by member N for life: the lock, never a pid, shows that the member lives |
//!
//! | module | what it owns |
//! |---|---|
//! | `runtime_dir` | the choice of the directory |
//! | `private_file` | the check that only their user can access files and directories |
//! | `segment` | mapped files, or memory of a simulation, whose words are atomics |
//! | `layout` | offset and size of each of the registry's tables, and members' identifiers |
//! | `member` | joining, leaving, the list of living members, cleaning up after the dead |
//! | `slot_locks` | the locks that show which members live |
//! | `members` | messages between members |
//! | `area` | memory that one member writes and another reads |
//! | `memory` | the replacement of the files in a simulation |
//! | `folder_lock` | the lock around slow changes |
//! | `tidy` | folders of network namespaces that are gone |
//! | `node_sockets` | the sockets of nodes |
//! | `numbering` | the host's key, which turns table indices into numbers on the wire |
//! | `numbers` | blocks of QP and SRQ numbers, and their owners |
//! | `targets` | TGTs that processes share, in a segment of their own |
//! | `away` | devices that the operator has taken away |
//! | `records` | records of members in tables; a record is void without its member |
//! | `ports` | the UDP ports that members send from, and the holder of port 4791 |
//! | `services` | the member that listens for each CM service |
//! | `domains` | the members that refer to each XRC domain |
//!
//! When the registry is removed while it is in use, its members continue among themselves, and later members
//! create a new one. The two groups do not know each other: the later one finds port 4791 taken by a process
//! that is not a member, and their XRC domains are distinct.
//!
//! Reading takes no lock, and makes no system call on the path of packets. Every change is made under `lock`.
//! The registry may contain garbage from a faulty member: it is checked when it is read, and leads to wrong
//! results at worst.

mod area;
mod area_ffi;
mod away;
mod default_dir;
mod domains;
mod error;
mod folder_lock;
mod layout;
mod member;
mod members;
pub(crate) mod memory;
mod node_sockets;
mod numbering;
mod numbers;
mod ports;
mod private_file;
mod records;
mod runtime_dir;
mod segment;
mod services;
mod slot_locks;
mod targets;
mod tidy;

#[cfg(test)]
pub(crate) use members::MAX_QUEUED;
#[cfg(test)]
pub(crate) mod testing;

pub(crate) use area::{AreaHandle, Areas, MappedArea, OwnArea};
pub(crate) use away::AwayFiles;
pub use away::{DeviceList, list_devices, put_back, take_away};
pub(crate) use domains::{DomainClaim, FileId};
pub use error::HostError;
pub(crate) use layout::MemberId;
pub(crate) use member::Host;
pub(crate) use members::{MAX_MESSAGE_BYTES, MemberMessage, Members, Received, Undelivered};
pub use node_sockets::{FoundNode, MAX_NODE_BYTES, MAX_NODES, NodeSocket, ask_nodes};
pub(crate) use ports::{MemberPorts, PortHolder, PortRefused, Source};
pub(crate) use segment::{Life, Segment};
pub(crate) use services::ServiceClaim;
pub(crate) use targets::{BUFFER_WORDS, Left, TargetRecord, Targets};
