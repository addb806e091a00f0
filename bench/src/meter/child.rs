//! Child processes that run this program. A child exits when its standard input is closed, which also happens when its
//! parent is killed.

use crate::meter::failure::Failure;
use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::process::CommandExt as _;
use std::process::{self, Command, Stdio};
use std::sync::{Mutex, PoisonError};

/// A child process, which is stopped when this value is dropped.
#[derive(Debug)]
pub(crate) struct Child(Mutex<process::Child>);

impl Child {
    /// Starts this program with these arguments.
    ///
    /// # Errors
    /// Returns an error if the process does not start.
    pub(crate) fn start<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>) -> Result<Self, String> {
        let program =
            std::env::current_exe().map_err(|error| format!("cannot find this program: {error}"))?;
        let mut command = Command::new(program);
        // In a separate process group, a child does not receive Ctrl-C, so it exits after its parent.
        command.args(arguments).process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped());
        let child = command.spawn().map_err(|error| format!("cannot start a child process: {error}"))?;
        Ok(Self(Mutex::new(child)))
    }

    /// Returns the next line printed by the process.
    ///
    /// # Errors
    /// Returns an error with the exit status if the process has exited.
    pub(crate) fn read_line(&mut self) -> Result<String, String> {
        let child = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        let mut line = String::new();
        if let Some(stdout) = child.stdout.as_mut() {
            // An unreadable line is treated as a missing line.
            let _unread = BufReader::new(stdout).read_line(&mut line);
        }
        if let Some(line) = line.strip_suffix('\n') {
            return Ok(line.to_owned());
        }
        drop(child.stdin.take());
        let status = child.wait().map_err(|error| error.to_string())?;
        Err(format!("it has ended, {status}"))
    }

    pub(crate) fn process(&self) -> u32 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).id()
    }

    /// If the process has exited, returns its exit status as a failure.
    pub(crate) fn death(&self) -> Option<Failure> {
        let mut child = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let status = child.try_wait().ok().flatten()?;
        Some(Failure::ServerDied(format!("process {}, {status}", child.id())))
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let child = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        drop(child.stdin.take());
        let _ended = child.wait();
    }
}

/// Waits in a child process until its parent exits.
pub(crate) fn await_parent() {
    let _end = std::io::stdin().read_to_end(&mut Vec::new());
}
