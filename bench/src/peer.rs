//! The peer process.

use crate::echo::{EchoServer, Mirror};
use crate::floor;
use std::error::Error;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::process::{Child, Command, Stdio};
use trunkline::Node;

/// A running peer; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Peer {
    child: Child,
    /// Address of the service.
    pub(crate) service: SocketAddr,
    /// Address of the TCP socket.
    pub(crate) socket: SocketAddr,
}

impl Peer {
    /// Starts this program again as the peer and waits until it serves.
    pub(crate) fn start(address: IpAddr, pollers: u16) -> Result<Self, Box<dyn Error>> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["--peer-address", &address.to_string(), "--pollers", &pollers.to_string(), "peer"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().ok_or("no output")?).read_line(&mut line)?;
        let mut words = line.split_whitespace().map(str::parse);
        match (words.next(), words.next()) {
            (Some(Ok(service)), Some(Ok(socket))) => Ok(Self { child, service, socket }),
            _ => {
                child.wait()?;
                Err("the peer process did not start".into())
            }
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// Serves until the end of standard input.
pub(crate) fn serve(address: IpAddr, pollers: u16) -> Result<(), Box<dyn Error>> {
    let node = Node::builder()
        .listen(SocketAddr::new(address, 0))
        .pollers(pollers)
        .serve(EchoServer::new(|| Mirror))
        .start()?;
    let socket = floor::serve(address)?;
    println!("{} {socket}", node.local_address());
    std::io::stdout().flush()?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    node.shutdown();
    Ok(())
}
