//! Transfer in one direction. The kernel splits large datagrams, and the receiver takes many pieces with one recvmmsg.

use super::udp::{BATCH, LOST_NS, Receive, pair, receive};
use super::{Shape, with_server};
use crate::meter::recorder::{Recorder, Sample};
use crate::meter::stopwatch::nanoseconds;
use nix::sys::socket::{ControlMessage, MsgFlags, SockaddrIn, sendmsg};
use std::io::IoSlice;
use std::net::UdpSocket;
use std::os::fd::AsRawFd as _;
use std::sync::atomic::{AtomicBool, Ordering};

/// Size of a piece in bytes, which is the payload of a 1,500-byte Ethernet frame without the IP and UDP headers.
const PIECE: u16 = 1472;
/// Number of bytes per system call, the largest multiple of a piece that fits in a datagram.
const CHUNK: usize = 44 * PIECE as usize;
/// Maximum number of bytes in flight. The pieces of two chunks fit in the receive buffer of a socket.
const WINDOW: u64 = 2 * CHUNK as u64;

/// Measures a continuous transfer, with its rate in bytes per second. The receiver reports the number of bytes that have
/// arrived.
pub(super) fn stream(shape: &Shape) -> Result<Sample, String> {
    let (client, server) = pair(Receive::Polling).map_err(|error| error.to_string())?;
    let serve = |stop: &AtomicBool| absorb(&server, stop);
    with_server(shape.cores.map(|cores| cores.server), serve, |watch| {
        let mut recorder = Recorder::new(nanoseconds(shape.measured));
        let chunk = vec![0x5a; CHUNK];
        let mut reports = vec![vec![0; 8]; BATCH];
        let (mut sent, mut arrived, mut last_ns) = (0, 0, 0);
        loop {
            if sent - arrived < WINDOW && send(&client, &chunk)? {
                sent += CHUNK as u64;
            }
            let reported = receive(&client, &mut reports, |_| ())?;
            let now = watch.now_ns();
            if reported > 0 {
                let total = reports[..reported].iter().filter_map(|report| {
                    let bytes = report.get(..8)?.try_into().ok()?;
                    Some(u64::from_le_bytes(bytes))
                });
                let bytes = total.max().unwrap_or(0).saturating_sub(arrived);
                arrived += bytes;
                // Datagrams that were counted as lost may arrive late.
                sent = sent.max(arrived);
                if !recorder.ended_many(last_ns, now, bytes) {
                    return recorder.finish();
                }
                last_ns = now;
            } else if now - last_ns > LOST_NS {
                sent = arrived;
                last_ns = now;
            }
        }
    })
}

fn send(socket: &UdpSocket, chunk: &[u8]) -> Result<bool, String> {
    let cut = [ControlMessage::UdpGsoSegments(&PIECE)];
    let flags = MsgFlags::MSG_DONTWAIT;
    match sendmsg::<SockaddrIn>(socket.as_raw_fd(), &[IoSlice::new(chunk)], &cut, flags, None) {
        Ok(_) => Ok(true),
        Err(nix::Error::EAGAIN | nix::Error::EINTR) => Ok(false),
        Err(error) => Err(error.to_string()),
    }
}

/// Receives data, and reports the total number of bytes after each batch.
fn absorb(socket: &UdpSocket, stop: &AtomicBool) -> Result<(), String> {
    let mut buffers = vec![vec![0; usize::from(PIECE)]; BATCH];
    let mut arrived = 0_u64;
    while !stop.load(Ordering::Relaxed) {
        if receive(socket, &mut buffers, |bytes| arrived += bytes as u64)? > 0 {
            // A report may be lost if the socket buffer is full. The next report covers it.
            let _full = socket.send(&arrived.to_le_bytes());
        }
    }
    Ok(())
}
