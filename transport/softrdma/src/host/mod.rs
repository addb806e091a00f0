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
//! | `member` | joining, leaving, the list of living members, cleaning up after the dead |
//! | `members` | messages between members |
//! | `registry` | the registry's tables |
//! | `files` | the runtime directory, its other files, and locks |
//! | `memory` | mapped files and areas, and their replacement in a simulation |
//!
//! When the registry is removed while it is in use, its members continue among themselves, and later members
//! create a new one. The two groups are independent: the later one finds port 4791 taken by a process that is
//! not a member, and their XRC domains are distinct.
//!
//! Reading does not lock, and packet processing reads without system calls. Every change is made under
//! `lock`. The registry may contain garbage from a faulty member: it is checked when it is read, and causes
//! wrong results at worst.

mod error;
mod files;
mod member;
mod members;
pub(crate) mod memory;
mod registry;

#[cfg(test)]
pub(crate) use members::MAX_QUEUED;
#[cfg(test)]
pub(crate) mod testing;

pub use error::HostError;
pub(crate) use files::away::AwayFiles;
pub use files::away::{DeviceList, list_devices, put_back, take_away};
pub use files::node_sockets::{FoundNode, MAX_NODE_BYTES, MAX_NODES, NodeRequest, NodeSocket, ask_nodes};
pub use files::runtime_dir::runtime_directory;
pub(crate) use member::Host;
pub(crate) use members::{MAX_MESSAGE_BYTES, MemberMessage, Members, Received, Undelivered};
pub(crate) use memory::area::{AreaHandle, Areas, MappedArea, OwnArea};
pub(crate) use memory::segment::{Life, Segment};
pub(crate) use registry::domains::{DomainClaim, FileId};
pub(crate) use registry::layout::MemberId;
pub(crate) use registry::ports::{MemberPorts, PortHolder, PortRefused, Source};
pub(crate) use registry::services::ServiceClaim;
pub(crate) use registry::targets::{BUFFER_WORDS, Left, TargetRecord, Targets};
