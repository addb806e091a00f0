//! The baseline: an echo over a kernel TCP socket with blocking reads.

use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};

/// The measuring end.
#[derive(Debug)]
pub(crate) struct Socket {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Socket {
    /// Connects to [`serve`].
    pub(crate) fn connect(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, buffer: Vec::new() })
    }

    /// Makes one round trip.
    pub(crate) fn round_trip(&mut self, payload: &[u8]) -> io::Result<()> {
        let length = u32::try_from(payload.len()).map_err(io::Error::other)?;
        self.stream.write_all(&length.to_le_bytes())?;
        self.stream.write_all(payload)?;
        self.buffer.resize(payload.len(), 0);
        self.stream.read_exact(&mut self.buffer)
    }
}

/// Listens at `address` and echoes one connection on its own thread.
pub(crate) fn serve(address: IpAddr) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind((address, 0))?;
    let local = listener.local_addr()?;
    std::thread::spawn(move || -> io::Result<()> {
        let (mut stream, _) = listener.accept()?;
        stream.set_nodelay(true)?;
        let mut buffer = Vec::new();
        loop {
            let mut length = [0; 4];
            stream.read_exact(&mut length)?;
            buffer.resize(usize::try_from(u32::from_le_bytes(length)).map_err(io::Error::other)?, 0);
            stream.read_exact(&mut buffer)?;
            stream.write_all(&buffer)?;
        }
    });
    Ok(local)
}
