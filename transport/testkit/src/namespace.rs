//! Network namespaces for single tests, where the host's routes, sockets and packets do not interfere.

use std::ffi::OsStr;
use std::process::Command;

/// A command that runs a program as root of a new user namespace, in a network namespace where only
/// loopback is up. It fails before the program starts where the host allows no such namespaces; the caller
/// must tell the two apart and report a skip.
#[must_use]
pub fn in_network_namespace(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("unshare");
    command
        .args(["--user", "--map-root-user", "--net", "--", "sh", "-c"])
        .arg("ip link set lo up && exec \"$0\" \"$@\"")
        .arg(program);
    command
}
