//! The server process, which runs this same program. It exits when its standard input is closed, which also happens if its
//! parent is killed.

use crate::meter::load::Quota;
use crate::transport::{Failure, Runtime, Transport};
use std::future::Future;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;

/// A running server process, which is stopped when this value is dropped.
pub(crate) struct Server {
    child: Child,
    /// Address reported by the server.
    pub(crate) address: String,
}

impl Server {
    /// Starts a server on a core and with a CPU quota, and waits until it serves.
    pub(crate) fn start(
        transport: Transport,
        folder: &Path,
        core: Option<usize>,
        runtime: Runtime,
        quota: Option<&Quota>,
    ) -> Result<Self, Failure> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["serve", &transport.name()]).arg(folder).args(["--runtime", &runtime.name()]);
        if let Some(core) = core {
            command.args(["--core", &core.to_string()]);
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let stdout = child.stdout.take();
        let mut server = Self { child, address: String::new() };
        quota.map_or(Ok(()), |quota| quota.join_server(server.child.id()))?;
        let mut line = String::new();
        if let Some(stdout) = stdout {
            BufReader::new(stdout).read_line(&mut line)?;
        }
        line.trim().clone_into(&mut server.address);
        if server.address.is_empty() { Err("the server has not started".into()) } else { Ok(server) }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        // The server's exit status is not needed.
        let _ended = self.child.wait();
    }
}

/// Prints the server's address for the parent process.
pub(crate) fn announce(address: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout();
    Ok(writeln!(out, "{address}").and_then(|()| out.flush())?)
}

/// Completes in the server process when standard input is closed.
pub(crate) fn at_end() -> impl Future<Output = ()> {
    let (sender, receiver) = tokio::sync::oneshot::channel::<()>();
    thread::spawn(move || {
        let _end = std::io::stdin().read_to_end(&mut Vec::new());
        drop(sender);
    });
    async {
        // The sender is dropped when standard input is closed.
        let _dropped = receiver.await;
    }
}
