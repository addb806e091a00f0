//! Server process. It serves until its standard input is closed, which also happens when its parent is killed.

use crate::Exchange;
use crate::meter::child::{Child, await_parent};
use std::ffi::OsString;
use std::io::Write as _;
use std::path::Path;
use std::thread;

/// A running server, which is stopped when this value is dropped.
pub(crate) struct Server {
    child: Child,
    /// Address reported by the server.
    pub(crate) address: String,
}

impl Server {
    /// Starts a server on the given core, and waits until it serves.
    ///
    /// # Errors
    /// Returns an error if the server does not start.
    pub(crate) fn start(exchange: &Exchange, folder: &Path, core: Option<usize>) -> Result<Self, String> {
        let (size, reply, outstanding) = (exchange.size, exchange.reply, exchange.outstanding);
        let mut words = vec!["serve".to_owned(), exchange.name(), format!("--size={size}")];
        words.extend([format!("--reply={reply}"), format!("--outstanding={outstanding}")]);
        words.extend(exchange.workers.map(|workers| format!("--workers={workers}")));
        // All threads of a server run on one core.
        words.extend(core.map(|core| format!("--pin={core},{core}")));
        let mut arguments: Vec<OsString> = words.into_iter().map(OsString::from).collect();
        arguments.extend([OsString::from("--folder"), folder.into()]);
        let mut child = Child::start(arguments)?;
        let address = child.read_line().map_err(|why| format!("the server has not started: {why}"))?;
        Ok(Self { child, address })
    }

    pub(crate) fn process(&self) -> u32 {
        self.child.process()
    }

    /// Returns the server's exit status, if it has exited.
    pub(crate) fn death(&self) -> Option<String> {
        self.child.death().map(|death| death.to_string())
    }
}

/// Prints the server's address for the client.
///
/// # Errors
/// Returns an error if the reader has closed the pipe.
pub(crate) fn announce(address: &str) -> Result<(), String> {
    let mut out = std::io::stdout();
    writeln!(out, "{address}").and_then(|()| out.flush()).map_err(|error| error.to_string())
}

pub(crate) fn at_end(end: impl FnOnce() + Send + 'static) {
    thread::spawn(move || {
        await_parent();
        end();
    });
}
