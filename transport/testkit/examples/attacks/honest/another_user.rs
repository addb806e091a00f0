//! Nodes of another user. Only root can start them.

use crate::Outcome;
use std::os::unix::fs::{PermissionsExt as _, chown};
use trunkline_testkit::Folder;

/// Program and arguments that start a node as another user.
pub(crate) const ANOTHER: [&str; 3] = ["setpriv", "--reuid=64123", "--clear-groups"];
const USER: u32 = 64_123;

/// Creates a runtime directory of the other user.
pub(crate) fn runtime_of_another() -> Outcome<Folder> {
    let runtime = Folder::new()?;
    chown(runtime.path(), Some(USER), None)?;
    Ok(runtime)
}

/// Lets the other user reach a folder.
pub(crate) fn open_to_all(folder: &Folder) -> Outcome<()> {
    Ok(std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755))?)
}
