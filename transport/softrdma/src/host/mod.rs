//! What the members of a host share: who there is, whose numbers are whose.
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
//! | `slot-N` | held by member N for life: whether it lives is asked of this lock, never of a pid |
//!
//! | module | what it owns |
//! |---|---|
//! | `runtime_dir` | which directory, and that nobody else can write there |
//! | `segment` | mapped files whose words are atomics |
//! | `layout` | where the registry's tables lie |
//! | `member` | joining, leaving, who lives, what the dead left |
//! | `tidy` | folders of network namespaces that are gone |
//! | `local` | messages between members |
//! | `numbers` | blocks of QP and SRQ numbers, and whose they are |
//! | `targets` | TGTs that processes share, in a segment of their own |
//! | `away` | devices that the operator has taken away |
//! | `records` | what members put into tables; void without its member |
//! | `services` | who listens for which CM service, who holds port 4791 |
//! | `domains` | who refers to which XRC domain |
//!
//! When the registry is removed while it is in use, its members go on among themselves, and those
//! that come later make a new one: the two do not know each other, so that who comes later finds
//! port 4791 taken by a stranger, and their XRC domains are two.
//!
//! Reading is lock-free and without a system call where packets are handed on; whoever changes
//! something holds `lock`. Everything in the registry may be garbage, written by a member that
//! went mad: it is checked when read, and leads to wrong answers at worst.

mod away;
mod domains;
mod error;
mod layout;
pub(crate) mod local;
mod member;
mod numbers;
mod records;
mod runtime_dir;
mod segment;
mod services;
mod targets;
mod tidy;

#[cfg(test)]
pub(crate) mod testing;

pub(crate) use away::AwayFiles;
pub use away::{put_back, take_away};
pub(crate) use domains::{DomainClaim, FileId};
pub use error::HostError;
pub(crate) use member::{Host, MemberId};
pub(crate) use segment::Segment;
pub(crate) use services::ServiceClaim;
pub(crate) use targets::{Left, TargetRecord, Targets};
