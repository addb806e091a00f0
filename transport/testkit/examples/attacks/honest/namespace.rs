//! Namespaces in which an attack runs or starts nodes, and nodes of another user. Only root can start the latter.

use crate::Outcome;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use trunkline_testkit::Folder;

/// Program and arguments that start a node as another user.
pub(crate) const ANOTHER: [&str; 3] = ["setpriv", "--reuid=64123", "--clear-groups"];
const USER: u32 = 64_123;
/// Environment variable of a process that runs in a separate mount namespace.
const INSIDE: &str = "TRUNKLINE_ATTACKS_INSIDE";

/// Runs this program again in a user and mount namespace, where it may mount file systems. Returns `Some` there, and `None`
/// if the host does not permit such a namespace.
pub(crate) fn mount_namespace() -> Outcome<Option<()>> {
    if std::env::var_os(INSIDE).is_some() {
        return Ok(Some(()));
    }
    let words = ["--user", "--map-root-user", "--mount"];
    if !Command::new("unshare").args(words).arg("true").status().is_ok_and(|status| status.success()) {
        return Ok(None);
    }
    let arguments = std::env::args_os().skip(1);
    let program = std::env::current_exe()?;
    Err(Command::new("unshare").args(words).arg(program).args(arguments).env(INSIDE, "1").exec().into())
}

/// Returns a command that starts `words` in a network namespace in which only loopback is up. The caller may append
/// arguments.
pub(crate) fn network_namespace(words: &[&str]) -> Outcome<Command> {
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-current-user", "--keep-caps", "--net", "--", "sh", "-c"]);
    command.args(["ip link set lo up && exec \"$@\"", "sh"]);
    command.args(words);
    Ok(command)
}

/// Creates a runtime directory for the other user.
pub(crate) fn runtime_of_another() -> Outcome<Folder> {
    let runtime = Folder::new()?;
    chown(runtime.path(), Some(USER), None)?;
    Ok(runtime)
}

/// Makes a folder accessible to the other user.
pub(crate) fn open_to_all(folder: &Folder) -> Outcome<()> {
    Ok(std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755))?)
}
