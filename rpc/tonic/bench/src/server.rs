//! The server's process: this program again. The process exits at the end of its standard input, which also ends when the
//! parent is killed.

use crate::meter::load::Quota;
use crate::transport::{Failure, Runtime, Transport};
use std::future::Future;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;

/// A running server process. Dropping this ends the process.
pub(crate) struct Server {
    child: Child,
    /// Address that the server has reported.
    pub(crate) address: String,
}

impl Server {
    /// Starts a server on a core and within a quota, and waits until it serves.
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
        // The process has ended, or cannot be waited for.
        let _ended = self.child.wait();
    }
}

/// Reports the address of the server to the parent process.
pub(crate) fn announce(address: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout();
    Ok(writeln!(out, "{address}").and_then(|()| out.flush())?)
}

/// Completes at the end of standard input, in the server process.
pub(crate) fn at_end() -> impl Future<Output = ()> {
    let (sender, receiver) = tokio::sync::oneshot::channel::<()>();
    thread::spawn(move || {
        let _end = std::io::stdin().read_to_end(&mut Vec::new());
        drop(sender);
    });
    async {
        // The sender is dropped at the end.
        let _dropped = receiver.await;
    }
}
