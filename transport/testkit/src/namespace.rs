//! Namespaces for single tests: of the network, where the host's routes, sockets and packets do not interfere, and
//! of file systems, where there is one without room.

use std::ffi::OsStr;
use std::path::Path;
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

/// The same command as root of a new user namespace, with a file system of the given KiB mounted at `directory`, which
/// must exist. `None` where the host allows no such namespaces or mounts; the caller must report a skip.
#[must_use]
pub fn on_small_file_system(directory: &Path, kib: u32, program: &Command) -> Option<Command> {
    let mount = format!("mount -t tmpfs -o size={kib}k,mode=700 tmpfs \"$0\"");
    let inside = |script: String| {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--mount", "--", "sh", "-c"]).arg(script).arg(directory);
        command
    };
    if !inside(mount.clone()).output().is_ok_and(|tried| tried.status.success()) {
        return None;
    }
    let mut command = inside(format!("{mount} && exec \"$@\""));
    command.arg(program.get_program()).args(program.get_args());
    Some(command)
}
