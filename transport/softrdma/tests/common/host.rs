//! Processes that share a runtime directory of the test's own, as the processes of one host do.

use std::path::{Path, PathBuf};
use std::process::Command;
use trunkline_softrdma::device::SoftOptions;
use trunkline_testkit::{Folder, Process};

/// What a process that a test started is to do.
const PART: &str = "TRUNKLINE_TEST_PART";
/// Names the runtime directory.
const RUNTIME: &str = "TRUNKLINE_RUNTIME_DIR";

/// A directory of one test, with the runtime directory of its processes in it. Removed when dropped.
#[derive(Debug)]
pub(crate) struct Host(Folder);

impl Host {
    pub(crate) fn new() -> Self {
        Self(Folder::new().unwrap())
    }

    /// The path of a file of the test.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// The runtime directory.
    pub(crate) fn runtime(&self) -> PathBuf {
        self.path("run")
    }

    /// Options of a device of this process that shares the runtime directory.
    pub(crate) fn options(&self) -> SoftOptions {
        SoftOptions { runtime_directory: Some(self.runtime()), ..super::udp() }
    }

    /// The directory of this network namespace in the runtime directory.
    pub(crate) fn namespace_directory(&self) -> PathBuf {
        let mut inside = std::fs::read_dir(self.runtime()).unwrap();
        inside.next().unwrap().unwrap().path()
    }

    /// Starts a process of this host. The command is one of `same_test`.
    pub(crate) fn start(&self, part: &str, command: &mut Command, variables: &[(&str, &str)]) -> Process {
        command.env(PART, part).env(RUNTIME, self.runtime()).envs(variables.iter().copied());
        Process::start(part, command).unwrap()
    }
}

/// What this process is to do; `None` in the test itself.
pub(crate) fn part() -> Option<String> {
    std::env::var(PART).ok()
}

/// Files whose names start so.
pub(crate) fn count_files(folder: &Path, start: &str) -> usize {
    let names = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter(|name| name.to_string_lossy().starts_with(start)).count()
}
