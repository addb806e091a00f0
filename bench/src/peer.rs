//! The server: a process of its own, or a second node in this one.
//!
//! The process is this program again. It prints its address, and serves until the end of its standard input, which also
//! comes when its parent is killed.

use crate::echo::{EchoServer, Mirror};
use crate::failure::Failure;
use crate::pin;
use std::io::{BufRead as _, BufReader, Read as _};
use std::net::{IpAddr, SocketAddr};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;
use trunkline::Node;
use trunkline_testkit::output;

/// A process whose parent has gone ends after so long, even if its node does not shut down.
const LAST: Duration = Duration::from_secs(5);

/// A running server process; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Peer {
    child: Mutex<Child>,
    /// Where it listens.
    pub(crate) address: SocketAddr,
}

impl Peer {
    /// Starts this program again as the server and waits until it serves.
    ///
    /// # Errors
    /// Why it does not start; it has printed more itself.
    pub(crate) fn start(address: IpAddr, pollers: u16, core: Option<usize>) -> Result<Self, Failure> {
        let program =
            std::env::current_exe().map_err(|error| format!("cannot find this program: {error}"))?;
        let mut command = Command::new(program);
        command.args(["serve", "--address", &address.to_string(), "--pollers", &pollers.to_string()]);
        if let Some(core) = core {
            command.args(["--core", &core.to_string()]);
        }
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("cannot start the server process: {error}"))?;
        let mut line = String::new();
        if let Some(stdout) = child.stdout.take() {
            // What cannot be read is no address.
            let _unread = BufReader::new(stdout).read_line(&mut line);
        }
        if let Ok(address) = line.trim().parse() {
            return Ok(Self { child: Mutex::new(child), address });
        }
        drop(child.stdin.take());
        let status = child.wait().map_err(|error| error.to_string())?;
        Err(Failure::ServerDied(format!("it did not start, {status}")))
    }

    /// How it ended, if it has.
    pub(crate) fn death(&self) -> Option<Failure> {
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        let status = child.try_wait().ok().flatten()?;
        Some(Failure::ServerDied(format!("process {}, {status}", child.id())))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let child = self.child.get_mut().unwrap_or_else(PoisonError::into_inner);
        drop(child.stdin.take());
        let _ended = child.wait();
    }
}

/// Serves until the end of standard input.
///
/// # Errors
/// Why the node does not start.
pub(crate) fn serve(address: IpAddr, pollers: u16, core: Option<usize>) -> Result<(), Failure> {
    core.map_or(Ok(()), pin::to)?;
    let node = Node::builder()
        .listen(SocketAddr::new(address, 0))
        .pollers(pollers)
        .serve(EchoServer::new(|| Mirror))
        .start()
        .map_err(|error| error.to_string())?;
    output::out(&node.local_address().to_string())?;
    let _end = std::io::stdin().read_to_end(&mut Vec::new());
    thread::spawn(|| {
        thread::sleep(LAST);
        std::process::exit(i32::from(Failure::ServerDied(String::new()).code()));
    });
    node.shutdown();
    Ok(())
}
