//! Load and limits during a measurement: concurrent busy loops, and a CPU quota for each side.
//!
//! A busy loop is a child process. A quota is a control group (cgroup v2 or v1) below the group of this process. A child
//! process removes the groups after this process has exited or was killed.

use crate::meter::child::{Child, await_parent};
use clap::{Args, Subcommand};
use std::ffi::OsStr;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

/// Period of a quota in microseconds, which is the kernel's default.
const PERIOD_US: f64 = 100_000.0;
/// Number of attempts to remove a group. A group is in use until its processes have exited.
const ATTEMPTS: usize = 100;
/// Pause between two attempts.
const PAUSE: Duration = Duration::from_millis(50);

// A doc comment here would replace the description of the command.
#[derive(Debug, Clone, Copy, PartialEq, Default, Args)]
pub(crate) struct Load {
    /// Number of busy loops that run next to the measurement, each in a separate process.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=256))]
    pub(crate) neighbours: u32,
    /// CPU quota of the client process, and an equal one of the server process, in cores. Needs a writable cgroup.
    #[arg(long, value_name = "CORES", value_parser = quota)]
    pub(crate) quota: Option<f64>,
}

/// Child processes for [`Load`], which the program starts itself.
#[derive(Debug, Subcommand)]
pub(crate) enum Helper {
    /// Spins until standard input is closed.
    #[command(hide = true)]
    Spin,
    /// Removes control groups when standard input is closed.
    #[command(hide = true)]
    RemoveGroups { groups: Vec<PathBuf> },
}

fn quota(text: &str) -> Result<f64, String> {
    let cores = text.parse::<f64>().ok().filter(|cores| (0.01..=1024.0).contains(cores));
    cores.ok_or_else(|| "expected cores from 0.01 to 1024".to_owned())
}

impl Load {
    /// Returns true if the sides share their cores with other load.
    pub(crate) const fn is_any(&self) -> bool {
        self.neighbours > 0 || self.quota.is_some()
    }
}

impl Helper {
    /// Runs in the child process until standard input is closed.
    pub(crate) fn run(&self) {
        match self {
            Self::Spin => {
                thread::spawn(|| {
                    await_parent();
                    std::process::exit(0);
                });
                loop {
                    std::hint::spin_loop();
                }
            }
            Self::RemoveGroups { groups } => {
                await_parent();
                for group in groups {
                    for _ in 0..ATTEMPTS {
                        if fs::remove_dir(group).is_ok() || !group.exists() {
                            break;
                        }
                        thread::sleep(PAUSE);
                    }
                }
            }
        }
    }
}

/// Running busy loops, stopped on drop.
#[derive(Debug)]
pub(crate) struct Neighbours {
    _loops: Vec<Child>,
}

impl Neighbours {
    /// Starts busy loops. They inherit the affinity of the calling thread, so this function must be called before the
    /// thread is pinned.
    ///
    /// # Errors
    /// Returns an error if a process does not start.
    pub(crate) fn start(count: u32) -> Result<Self, String> {
        let loops = (0..count).map(|_| Child::start(["spin"]));
        Ok(Self { _loops: loops.collect::<Result<_, _>>()? })
    }
}

/// CPU quota of this process, and an equal one of its server. Both are removed on drop.
#[derive(Debug)]
pub(crate) struct Quota {
    /// Control group of this process before the measurement.
    parent: PathBuf,
    server: PathBuf,
    _remover: Child,
}

impl Quota {
    /// Creates the groups, and moves this process into one of them.
    ///
    /// # Errors
    /// Returns an error if the groups cannot be created, for example for lack of privileges.
    pub(crate) fn start(cores: f64) -> Result<Self, String> {
        let mounts = read(Path::new("/proc/self/mounts"))?;
        let own = read(Path::new("/proc/self/cgroup"))?;
        let mut why = "no cgroup with a CPU controller is mounted".to_owned();
        for parent in parents(&mounts, &own) {
            match Self::below(parent, cores) {
                Ok(quota) => return Ok(quota),
                Err(error) => why = error,
            }
        }
        Err(format!("cannot set a CPU quota: {why}"))
    }

    fn below(parent: PathBuf, cores: f64) -> Result<Self, String> {
        let group = |side: &str| parent.join(format!("trunkline-bench-{}-{side}", std::process::id()));
        let (client, server) = (group("client"), group("server"));
        // Start the remover first, so that the groups are removed even if the next steps fail.
        let remover = Child::start([OsStr::new("remove-groups"), client.as_os_str(), server.as_os_str()])?;
        for group in [&client, &server] {
            fs::create_dir(group).map_err(|error| format!("cannot create {}: {error}", group.display()))?;
            limit(group, cores)?;
        }
        let quota = Self { parent, server, _remover: remover };
        join(&client, std::process::id())?;
        Ok(quota)
    }

    /// Moves the server process into its group.
    ///
    /// # Errors
    /// Returns an error of the operating system.
    pub(crate) fn join_server(&self, process: u32) -> Result<(), String> {
        join(&self.server, process)
    }
}

impl Drop for Quota {
    fn drop(&mut self) {
        // If this process cannot leave the group, the remover removes the group after the process has exited.
        let _left = join(&self.parent, std::process::id());
    }
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("cannot read {}: {error}", path.display()))
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    // Do not create the file. If it is missing, the group lacks the controller.
    let written =
        fs::OpenOptions::new().write(true).open(path).and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|error| format!("cannot write {}: {error}", path.display()))
}

fn join(group: &Path, process: u32) -> Result<(), String> {
    write(&group.join("cgroup.procs"), &process.to_string())
}

#[expect(clippy::cast_possible_truncation, reason = "at most 1024 periods")]
fn limit(group: &Path, cores: f64) -> Result<(), String> {
    let quota_us = (cores * PERIOD_US) as i64;
    if group.join("cpu.cfs_quota_us").exists() {
        write(&group.join("cpu.cfs_period_us"), &PERIOD_US.to_string())?;
        return write(&group.join("cpu.cfs_quota_us"), &quota_us.to_string());
    }
    write(&group.join("cpu.max"), &format!("{quota_us} {PERIOD_US}"))
}

/// Returns the groups in which new groups may be created: the group of this process and the root, each in v1 and v2.
fn parents(mounts: &str, own: &str) -> Vec<PathBuf> {
    let is_of = |list: &str, name: &str| list.split(',').any(|item| item == name);
    let mut parents = Vec::new();
    for mount in mounts.lines() {
        let fields: Vec<_> = mount.split(' ').collect();
        let [_, root, kind, options, ..] = fields[..] else { continue };
        let controllers = match kind {
            "cgroup" if is_of(options, "cpu") => "cpu",
            "cgroup2" => "",
            _ => continue,
        };
        let group = own.lines().find_map(|line| {
            let (list, group) = line.split_once(':')?.1.split_once(':')?;
            is_of(list, controllers).then_some(group.trim_start_matches('/'))
        });
        parents.extend(group.filter(|group| !group.is_empty()).map(|group| Path::new(root).join(group)));
        parents.push(root.into());
    }
    parents
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_below_own_group_or_root() {
        let paths = |mounts, own| {
            parents(mounts, own).iter().map(|path| path.display().to_string()).collect::<Vec<_>>()
        };
        let v1 = "tmpfs /g tmpfs rw 0 0\ncgroup /g/cpuset cgroup rw,cpuset 0 0\ncgroup /g/cpu cgroup rw,cpu,cpuacct 0 0\n";
        assert_eq!(paths(v1, "3:cpuset:/x\n2:cpu,cpuacct:/a/b\n0::/c\n"), ["/g/cpu/a/b", "/g/cpu"]);
        assert_eq!(paths("cgroup2 /g cgroup2 rw 0 0\n", "0::/user.slice\n"), ["/g/user.slice", "/g"]);
        assert_eq!(paths("cgroup2 /g cgroup2 rw 0 0\n", "0::/\n"), ["/g"]);
        assert!(paths("tmpfs /g tmpfs rw 0 0\n", "0::/\n").is_empty());
    }

    #[test]
    fn quota_without_time_is_refused() {
        assert_eq!(quota("0.5"), Ok(0.5));
        for text in ["0", "-1", "x", "inf", "nan"] {
            assert!(quota(text).unwrap_err().contains("0.01"), "{text}");
        }
    }
}
