//! The arguments of both programs.

use std::error::Error;
use std::net::SocketAddr;

/// Address of the server if none is given.
const DEFAULT_ADDRESS: &str = "127.0.0.1:7474";

/// Arguments of either program: `[--tcp] [IP:PORT]`.
#[derive(Debug)]
pub struct Options {
    /// If true, use tonic's own transport, which is HTTP/2 over TCP.
    pub tcp: bool,
    /// Address of the server.
    pub address: SocketAddr,
}

impl Options {
    /// Parses the arguments of this program.
    ///
    /// # Errors
    /// Returns an error if an argument is neither `--tcp` nor an address.
    pub fn parse() -> Result<Self, Box<dyn Error + Send + Sync>> {
        let mut arguments = std::env::args().skip(1).peekable();
        let tcp = arguments.next_if(|argument| argument == "--tcp").is_some();
        let address = arguments.next().unwrap_or_else(|| DEFAULT_ADDRESS.to_owned());
        match (address.parse(), arguments.next()) {
            (Ok(address), None) => Ok(Self { tcp, address }),
            _ => Err("invalid arguments: expected [--tcp] [IP:PORT]".into()),
        }
    }
}
