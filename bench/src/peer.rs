//! The server: a separate process, or a second node in this one.
//!
//! The process runs this program. It prints its address, and serves until the end of its standard input, which is also closed
//! when its parent is killed.

use crate::echo::{EchoServer, Mirror};
use crate::failure::Failure;
use crate::feed::{FeedServer, Source, stream_budget};
use crate::nodes::LinkFlag;
use crate::pin;
use crate::servers::{self, Wanted};
use clap::Args;
use std::io::{BufRead as _, BufReader, Read as _};
use std::net::{IpAddr, SocketAddr};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;
use trunkline::Node;
use trunkline_testkit::output;

/// Time after the death of its parent after which the process exits even if its node does not shut down.
const LAST: Duration = Duration::from_secs(5);

/// Arguments of the server process.
#[derive(Debug, Args)]
pub(crate) struct Serve {
    #[arg(long)]
    address: IpAddr,
    #[arg(long, value_enum)]
    link: LinkFlag,
    #[arg(long)]
    pollers: u16,
    #[arg(long)]
    core: Option<usize>,
}

/// A running server process, which ends when this value is dropped.
#[derive(Debug)]
pub(crate) struct Peer {
    child: Mutex<Child>,
    /// Addresses on which the server listens; one per node for a fleet.
    pub(crate) addresses: Vec<SocketAddr>,
}

impl Peer {
    /// Starts this program as the server process, and waits until it serves.
    ///
    /// # Errors
    /// Fails with the reason if it does not start. The process prints details itself.
    pub(crate) fn start(
        address: IpAddr,
        link: LinkFlag,
        pollers: u16,
        core: Option<usize>,
    ) -> Result<Self, Failure> {
        link.check()?;
        let [address, pollers] = [address.to_string(), pollers.to_string()];
        Self::with(&["serve", "--address", &address, "--link", link.name(), "--pollers", &pollers], core)
    }

    /// Starts the process with the servers of a fleet.
    ///
    /// # Errors
    /// See [`Peer::start`].
    pub(crate) fn start_fleet(wanted: Wanted, link: LinkFlag, core: Option<usize>) -> Result<Self, Failure> {
        link.check()?;
        let Wanted { servers, pollers, services } = wanted;
        let [servers, pollers, services] = [servers, pollers, services].map(|count| count.to_string());
        Self::with(
            &[
                "serve-fleet",
                "--link",
                link.name(),
                "--servers",
                &servers,
                "--pollers",
                &pollers,
                "--services",
                &services,
            ],
            core,
        )
    }

    fn with(arguments: &[&str], core: Option<usize>) -> Result<Self, Failure> {
        let program =
            std::env::current_exe().map_err(|error| format!("cannot find this program: {error}"))?;
        let mut command = Command::new(program);
        command.args(arguments);
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
            // An unreadable line counts as no address.
            let _unread = BufReader::new(stdout).read_line(&mut line);
        }
        let addresses = line.split_whitespace().map_while(|address| address.parse().ok()).collect::<Vec<_>>();
        if !addresses.is_empty() {
            return Ok(Self { child: Mutex::new(child), addresses });
        }
        drop(child.stdin.take());
        let status = child.wait().map_err(|error| error.to_string())?;
        Err(Failure::ServerDied(format!("it did not start, {status}")))
    }

    /// Returns the number of the process.
    pub(crate) fn process(&self) -> u32 {
        self.child.lock().unwrap_or_else(PoisonError::into_inner).id()
    }

    /// Returns how the process ended, if it has ended.
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
/// Fails with the reason if the node does not start.
pub(crate) fn serve(serve: &Serve) -> Result<(), Failure> {
    serve.core.map_or(Ok(()), pin::to)?;
    let node = stream_budget(serve.link.builder())
        .listen(SocketAddr::new(serve.address, 0))
        .pollers(serve.pollers)
        .serve(EchoServer::new(Mirror))
        .serve(FeedServer::new(Source))
        .start()
        .map_err(|error| error.to_string())?;
    until_the_end(&[node])
}

/// Serves a fleet's servers until the end of standard input.
///
/// # Errors
/// Fails with the reason if a node does not start.
pub(crate) fn serve_fleet(wanted: Wanted, link: LinkFlag, core: Option<usize>) -> Result<(), Failure> {
    core.map_or(Ok(()), pin::to)?;
    until_the_end(&servers::start(wanted, link)?)
}

fn until_the_end(nodes: &[Node]) -> Result<(), Failure> {
    let addresses = nodes.iter().map(|node| node.local_address().to_string()).collect::<Vec<_>>();
    output::out(&addresses.join(" "))?;
    let _end = std::io::stdin().read_to_end(&mut Vec::new());
    thread::spawn(|| {
        thread::sleep(LAST);
        std::process::exit(i32::from(Failure::ServerDied(String::new()).code()));
    });
    nodes.iter().for_each(Node::shutdown);
    Ok(())
}
