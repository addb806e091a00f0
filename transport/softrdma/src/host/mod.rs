//! The registry of a host, which contains its members, and the numbers, services and domains of each member.
//!
//! A *member* is an opened device over UDP; a process may have several. The members of one user in one network
//! namespace share the addresses of the device `trunkline0`, and find each other through files in the runtime
//! directory:
//!
//! | file | what it is |
//! |---|---|
//! | `registry` | the tables, mapped by every member |
//! | `lock` | held during slow changes; the kernel frees it when its holder dies |
//! | `away` | requests the removal of all removable devices |
//! | `away-ADDRESS` | requests the removal of the removable devices at the address |
//! | `nodes` | folder with a socket of each running node, through which the node describes itself |
//! | `slot-N` | locked by member N while it exists; the lock, and not a pid, shows that the member lives |
//!
//! | module | what it owns |
//! |---|---|
//! | `member` | joining, leaving, the list of living members, and clean-up after dead members |
//! | `members` | messages between members |
//! | `registry` | the registry's tables |
//! | `files` | the runtime directory, its other files, and the locks |
//! | `memory` | mapped files and areas, and their replacement in a simulation |
//!
//! If the registry is removed while it is in use, its members continue with it, and later members create a
//! new one. The two groups are independent: the later group finds the UDP port taken by a process that is not a
//! member, and the XRC domains of the groups are distinct.
//!
//! Readers do not take a lock, and packet processing reads without system calls. Slow changes are made under `lock`.
//! The registry may contain arbitrary values written by a faulty member. Values are checked when they are read, so that
//! the worst consequence is a wrong result.

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
pub use files::runtime_dir::{existing_folder, runtime_directory};
pub(crate) use member::Host;
pub(crate) use members::{MAX_MESSAGE_BYTES, MemberMessage, Members, Received, Undelivered, stat_fields};
pub(crate) use memory::area::{AreaHandle, Areas, MappedArea, OwnArea};
pub(crate) use memory::segment::{Life, Segment};
pub(crate) use registry::domains::{DomainClaim, FileId};
pub(crate) use registry::layout::MemberId;
pub(crate) use registry::ports::{MemberPorts, PortHolder, PortRefused, Source};
pub(crate) use registry::services::ServiceClaim;
pub(crate) use registry::targets::{BUFFER_WORDS, Left, TargetRecord, Targets};
