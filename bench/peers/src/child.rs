//! The server process runs this program until the end of its standard input, which is also closed when its parent is killed.

use crate::Exchange;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;

/// A running server, which ends when this value is dropped.
pub(crate) struct Server {
    child: Mutex<Child>,
    /// Address that the server has reported.
    pub(crate) address: String,
}

impl Server {
    /// Starts a server on a core, and waits until it serves.
    ///
    /// # Errors
    /// Fails with the reason if it does not start.
    pub(crate) fn start(exchange: &Exchange, folder: &Path, core: Option<usize>) -> Result<Self, String> {
        let program =
            std::env::current_exe().map_err(|error| format!("cannot find this program: {error}"))?;
        let mut command = Command::new(program);
        command.args(["serve", &exchange.name()]).arg("--folder").arg(folder);
        for (name, value) in
            [("--size", exchange.size), ("--reply", exchange.reply), ("--outstanding", exchange.outstanding)]
        {
            command.args([name, &value.to_string()]);
        }
        if let Some(workers) = exchange.workers {
            command.args(["--workers", &workers.to_string()]);
        }
        if let Some(core) = core {
            // A server runs on one core only.
            command.args(["--pin", &format!("{core},{core}")]);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|error| format!("cannot start the server: {error}"))?;
        let mut line = String::new();
        if let Some(stdout) = child.stdout.take() {
            // An unreadable line counts as no address.
            let _unread = BufReader::new(stdout).read_line(&mut line);
        }
        let server = Self { child: Mutex::new(child), address: line.trim().to_owned() };
        if server.address.is_empty() { Err("the server has not started".to_owned()) } else { Ok(server) }
    }

    /// Returns the number of the process.
    pub(crate) fn process(&self) -> u32 {
        self.child.lock().unwrap_or_else(PoisonError::into_inner).id()
    }

    /// Returns how the server ended, if it has ended.
    pub(crate) fn death(&self) -> Option<String> {
        let status = self.child.lock().unwrap_or_else(PoisonError::into_inner).try_wait().ok().flatten()?;
        Some(format!("the server has ended, {status}"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let child = self.child.get_mut().unwrap_or_else(PoisonError::into_inner);
        drop(child.stdin.take());
        let _ended = child.wait();
    }
}

/// Prints the server's address for the client.
///
/// # Errors
/// Fails if the reader has closed the pipe.
pub(crate) fn announce(address: &str) -> Result<(), String> {
    let mut out = std::io::stdout();
    writeln!(out, "{address}").and_then(|()| out.flush()).map_err(|error| error.to_string())
}

/// Calls `end` at the end of the server's standard input.
pub(crate) fn at_end(end: impl FnOnce() + Send + 'static) {
    thread::spawn(move || {
        let _end = std::io::stdin().read_to_end(&mut Vec::new());
        end();
    });
}
