//! Processes that meet in a runtime directory of the test's own.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use trunkline_softrdma::device::SoftOptions;

/// What a process that a test started is to do.
const PART: &str = "TRUNKLINE_TEST_PART";

/// A folder of one test, removed with it.
#[derive(Debug)]
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("trunkline-test-{}-{number}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// The runtime directory of those that the test starts.
    pub(crate) fn runtime(&self) -> PathBuf {
        self.path("run")
    }

    /// Options of a device that meets them.
    pub(crate) fn options(&self) -> SoftOptions {
        SoftOptions { runtime_directory: Some(self.runtime()), ..super::udp() }
    }

    /// Where its devices of this network namespace meet.
    pub(crate) fn meeting_place(&self) -> PathBuf {
        let mut inside = std::fs::read_dir(self.runtime()).unwrap();
        inside.next().unwrap().unwrap().path()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _gone = std::fs::remove_dir_all(&self.0);
    }
}

/// The part that this process is to play; `None` in the test itself.
pub(crate) fn part() -> Option<String> {
    std::env::var(PART).ok()
}

/// A process that plays a part: the test `play` of this binary. It is killed if the test ends early.
#[derive(Debug)]
pub(crate) struct Player {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Player {
    pub(crate) fn start(part: &str, folder: &Folder, variables: &[(&str, &str)]) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["play", "--exact", "--nocapture"])
            .env(PART, part)
            .env("TRUNKLINE_RUNTIME_DIR", folder.runtime())
            .envs(variables.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { input: child.stdin.take(), child, output }
    }

    /// What it says next after `word`.
    pub(crate) fn hear(&mut self, word: &str) -> String {
        for line in self.output.by_ref().lines() {
            if let Some(rest) = line.unwrap().strip_prefix(word) {
                return rest.trim().to_owned();
            }
        }
        panic!("a process ended without saying {word:?}");
    }

    /// Lets it go on.
    pub(crate) fn go(&mut self) {
        self.input.as_mut().unwrap().write_all(b"go\n").unwrap();
    }

    /// Ends it by SIGKILL.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Lets it end by itself.
    pub(crate) fn finish(mut self) {
        self.input = None;
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _status = self.child.wait();
    }
}

/// In a player: says something.
pub(crate) fn say(text: &str) {
    println!("\n{text}");
}

/// In a player: waits until the test lets it go on; `false` at its end.
pub(crate) fn wait_for_go() -> bool {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).is_ok_and(|bytes| bytes > 0)
}

/// Files whose names start so.
pub(crate) fn count_files(folder: &Path, start: &str) -> usize {
    let names = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter(|name| name.to_string_lossy().starts_with(start)).count()
}
