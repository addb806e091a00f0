//! Endpoint that a Prometheus server scrapes.

use std::io::{self, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};
use trunkline::Node;

/// Maximum length of a scrape request, in bytes.
const MOST_BYTES: usize = 4096;
/// Time limit for a client to send its request, and to receive each part of the response. Other clients wait during this
/// time.
const LIMIT: Duration = Duration::from_millis(500);

/// Answers one scrape at a time and never returns.
pub(crate) fn serve(listener: &TcpListener, node: &Node) {
    for client in listener.incoming() {
        // If a client disconnects or is too slow, only its own response is lost. If file descriptors run out, a pause
        // avoids a busy loop.
        match client {
            Ok(client) => drop(answer(client, node)),
            Err(_) => std::thread::sleep(Duration::from_millis(100)),
        }
    }
}

fn answer(mut client: TcpStream, node: &Node) -> io::Result<()> {
    client.set_write_timeout(Some(LIMIT))?;
    let (status, body) = match read_head(&mut client)? {
        None => ("431 Request Header Fields Too Large", String::new()),
        Some(head) if head.starts_with(b"GET /metrics ") => ("200 OK", node.report().prometheus()),
        Some(_) => ("404 Not Found", String::new()),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    client.write_all((head + &body).as_bytes())
}

/// Reads the head of a request. Returns `None` if the head is too large.
fn read_head(client: &mut TcpStream) -> io::Result<Option<Vec<u8>>> {
    let until = Instant::now() + LIMIT;
    let (mut head, mut part) = (Vec::new(), [0; 512]);
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        if head.len() >= MOST_BYTES {
            return Ok(None);
        }
        // A timeout of 0 is an error, which ends the connection.
        client.set_read_timeout(Some(until.saturating_duration_since(Instant::now())))?;
        match client.read(&mut part)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            bytes => head.extend_from_slice(&part[..bytes]),
        }
    }
    Ok(Some(head))
}
