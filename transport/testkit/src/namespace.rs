//! Namespaces for single tests. A network namespace excludes the host's routes, sockets and packets. A mount namespace
//! provides a small file system.

use crate::{Folder, same_test};
use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;

/// Environment variable that is set for the process in the namespace.
const INSIDE: &str = "TRUNKLINE_TEST_INSIDE";

/// Returns true in a separate network namespace. Outside, it creates the namespace, runs the shell command `setup` and the
/// test there, and returns false. If the host does not allow the namespace, it reports that the test is skipped.
///
/// # Panics
/// Panics if the test fails in the namespace, or if a temporary directory cannot be created.
#[must_use]
pub fn is_in_network_namespace(module: &str, test: &str, setup: &str) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    let runtime = Folder::new().expect("a temporary directory can be made");
    let again = same_test(module, test);
    let made = in_network_namespace("sh")
        .args(["-c", &format!("{setup} && exec \"$0\" \"$@\"")])
        .arg(again.get_program())
        .args(again.get_args())
        .env(INSIDE, "1")
        .env("TRUNKLINE_RUNTIME_DIR", runtime.path())
        .env_remove("TRUNKLINE_ADDRESS")
        .output();
    let outcome = made.map(|output| {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.success(), text(&output.stdout), text(&output.stderr))
    });
    match outcome {
        Ok((true, out, _)) if out.contains("1 passed") => {}
        Ok((_, out, err)) if out.contains("running 1 test") => panic!("{out}{err}"),
        other => eprintln!("skipped: cannot make a network namespace here: {other:?}"),
    }
    false
}

/// Returns a command that runs a program as root of a new user namespace, in a network namespace where only loopback is up.
/// If the host does not allow such namespaces, the command fails before the program starts. The caller must distinguish
/// this case from a failure of the program and report that the test is skipped.
#[must_use]
pub fn in_network_namespace(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("unshare");
    command
        .args(["--user", "--map-root-user", "--net", "--", "sh", "-c"])
        .arg("ip link set lo up && exec \"$0\" \"$@\"")
        .arg(program);
    command
}

/// Returns a command that runs a program as root of a new user namespace, with a file system of `kib` KiB mounted at the
/// existing `directory`. Returns `None` if the host does not allow such namespaces or mounts. The caller must then report
/// that the test is skipped.
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
