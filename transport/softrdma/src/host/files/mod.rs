//! Files and locks of the runtime directory.
//!
//! | module | what it owns |
//! |---|---|
//! | `runtime_dir`, `default_dir` | the choice of the directory |
//! | `private_file` | the check that only this user can access a file or directory |
//! | `folder_lock` | the lock that protects slow changes |
//! | `slot_locks` | the locks that show which members live |
//! | `tidy` | folders of network namespaces that no longer exist |
//! | `node_sockets` | the sockets of nodes |
//! | `away` | requests to remove devices |

pub(super) mod away;
pub(super) mod default_dir;
pub(super) mod folder_lock;
pub(super) mod node_sockets;
pub(super) mod private_file;
pub(super) mod runtime_dir;
pub(super) mod slot_locks;
pub(super) mod tidy;
