//! Datagrams over ordinary UDP sockets, without privileges.
//!
//! Owns one unconnected socket per open address, bound to port 4791 there, so that each packet
//! leaves with DF set and identification 0, which the ICRC covers (contract rocev2 5.1, 5.2).
//! A socket is never connected, and segmentation offload is left alone: either would change the
//! identification.
//!
//! One system call moves up to 32 datagrams.
#![forbid(unsafe_code)]

use super::interface::Interface;
use super::{Link, LinkError, ROCE_PORT, ReceiveBatch, SendBatch, udp_ffi};
use socket2::{Domain, Protocol, Socket, Type};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;
use trunkline_verbs::Counter;

/// Asked of the kernel, which may give less without saying so.
const SEND_BUFFER_BYTES: usize = 4 << 20;
/// The same for what waits to be received; Linux counts about 8 KiB for a packet of 4.
const RECEIVE_BUFFER_BYTES: i32 = 8 << 20;

#[derive(Debug)]
struct Bound {
    address: IpAddr,
    local: SocketAddr,
    socket: Socket,
}

#[derive(Debug, Default)]
struct Counts {
    too_big: u64,
    not_open: u64,
    refused: u64,
    no_room: u64,
    too_long: u64,
}

/// A link over UDP.
#[derive(Debug, Default)]
pub struct UdpLink {
    sockets: Vec<Bound>,
    /// Asked for in place of [`RECEIVE_BUFFER_BYTES`].
    receive_buffer: Option<i32>,
    /// Which socket is read first next time, so that a busy address does not starve others.
    turn: usize,
    counts: Counts,
}

impl UdpLink {
    /// A link with no address open.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// With receive buffers of this many bytes at most, as on a host that allows no more.
    #[must_use]
    pub fn with_receive_buffer(bytes: i32) -> Self {
        Self { receive_buffer: Some(bytes), ..Self::default() }
    }
}

impl Link for UdpLink {
    fn name(&self) -> &'static str {
        "udp"
    }

    fn open(&mut self, address: IpAddr) -> Result<(), LinkError> {
        if self.sockets.iter().any(|bound| bound.address == address) {
            return Ok(());
        }
        let bytes = self.receive_buffer.unwrap_or(RECEIVE_BUFFER_BYTES);
        self.sockets.push(bind(address, bytes)?);
        Ok(())
    }

    fn close(&mut self, address: IpAddr) {
        self.sockets.retain(|bound| bound.address != address);
    }

    fn mtu(&self, address: IpAddr) -> Result<u32, LinkError> {
        Interface::of(address)?.mtu(address)
    }

    fn send(&mut self, batch: &mut SendBatch, _now: Instant) {
        while let Some(first) = batch.at(0) {
            let source = first.source.ip();
            let Some(bound) = self.sockets.iter().find(|bound| bound.address == source) else {
                self.counts.not_open += 1;
                batch.remove_first(1);
                continue;
            };
            let run = batch.iter().take_while(|datagram| datagram.source.ip() == source);
            match udp_ffi::send(bound.socket.as_fd(), run) {
                Ok(sent) => batch.remove_first(sent),
                Err(error) => match error.raw_os_error() {
                    Some(libc::EINTR) => {}
                    Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) => {
                        self.counts.no_room += 1;
                        return;
                    }
                    // What the network says of earlier datagrams is no reason to drop this one,
                    // and reading the error took it off the socket.
                    Some(libc::ECONNREFUSED) => {}
                    Some(libc::EMSGSIZE) => {
                        self.counts.too_big += 1;
                        batch.remove_first(1);
                    }
                    _ => {
                        self.counts.refused += 1;
                        tracing::debug!(%error, %source, "a datagram was refused by the system");
                        batch.remove_first(1);
                    }
                },
            }
        }
    }

    fn receive(&mut self, batch: &mut ReceiveBatch) -> usize {
        batch.clear();
        let count = self.sockets.len();
        for step in 0..count {
            let bound = &self.sockets[(self.turn + step) % count];
            while !batch.is_full() {
                match udp_ffi::receive(bound.socket.as_fd(), bound.local, batch) {
                    Ok(received) => {
                        self.counts.too_long += received.too_long as u64;
                        if batch.is_full() && batch.is_empty() {
                            // Nothing but refuse: an answer of 0 would say that nothing waits.
                            batch.clear();
                        } else if received.taken < udp_ffi::BATCH {
                            // Less than a full table: drained, or the batch is full.
                            break;
                        }
                    }
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) if error.kind() == ErrorKind::ConnectionRefused => {}
                    Err(_) => break,
                }
            }
        }
        self.turn = if count == 0 { 0 } else { (self.turn + 1) % count };
        batch.len()
    }

    fn arm(&mut self) -> bool {
        udp_ffi::any_readable(self.sockets.iter().map(|bound| bound.socket.as_fd()))
    }

    fn stays_armed(&self) -> bool {
        true
    }

    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        self.sockets.iter().map(|bound| bound.socket.as_fd()).collect()
    }

    fn counters(&self, into: &mut Vec<Counter>) {
        let counts = &self.counts;
        let full: u64 =
            self.sockets.iter().map(|bound| udp_ffi::dropped_by_kernel(bound.socket.as_fd())).sum();
        into.extend([
            Counter { name: "drop_receive_queue_full", value: full },
            Counter { name: "drop_send_too_big", value: counts.too_big },
            Counter { name: "drop_send_address_not_open", value: counts.not_open },
            Counter { name: "drop_send_refused", value: counts.refused },
            Counter { name: "send_postponed", value: counts.no_room },
            Counter { name: "drop_receive_too_long", value: counts.too_long },
        ]);
    }
}

fn bind(address: IpAddr, receive_buffer: i32) -> Result<Bound, LinkError> {
    let failed = |doing: &'static str| move |source: io::Error| LinkError::Os { doing, address, source };
    let is_v4 = udp_ffi::is_v4(address);
    let domain = if is_v4 { Domain::IPV4 } else { Domain::IPV6 };
    let socket =
        Socket::new(domain, Type::DGRAM, Some(Protocol::UDP)).map_err(failed("make a UDP socket"))?;
    socket.set_nonblocking(true).map_err(failed("make a UDP socket non-blocking"))?;
    if !is_v4 {
        socket.set_only_v6(true).map_err(failed("restrict a UDP socket to IPv6"))?;
    }
    udp_ffi::set_roce_options(socket.as_fd(), is_v4).map_err(failed("forbid fragments (PMTUDISC_DO)"))?;
    udp_ffi::ask_receive_buffer(socket.as_fd(), receive_buffer);
    // A smaller buffer only makes a batch wait.
    let _less = socket.set_send_buffer_size(SEND_BUFFER_BYTES);
    let local = local_address(address)?;
    socket.bind(&local.into()).map_err(|source| match source.kind() {
        ErrorKind::AddrInUse => LinkError::AddressInUse { address },
        ErrorKind::AddrNotAvailable => LinkError::NoSuchAddress { address },
        _ => LinkError::Os { doing: "bind UDP port 4791", address, source },
    })?;
    Ok(Bound { address, local, socket })
}

/// A link-local address means nothing without its interface.
fn local_address(address: IpAddr) -> Result<SocketAddr, LinkError> {
    Ok(match address {
        IpAddr::V6(v6) if v6.is_unicast_link_local() => {
            SocketAddrV6::new(v6, ROCE_PORT, 0, Interface::of(address)?.index).into()
        }
        _ => SocketAddr::new(address, ROCE_PORT),
    })
}

#[cfg(test)]
mod tests {
    use super::super::Datagram;
    use super::*;
    use std::os::fd::AsRawFd;
    use std::time::Duration;

    /// An address of 127/8 that no other test uses, in this process or another.
    fn own_address() -> IpAddr {
        use std::sync::atomic::{AtomicU32, Ordering};
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let process = std::process::id();
        let [_, _, high, low] = process.to_be_bytes();
        let number = NEXT.fetch_add(1, Ordering::Relaxed).to_be_bytes()[3];
        IpAddr::from([127, 100 + number, high, low])
    }

    fn open(address: IpAddr) -> UdpLink {
        let mut link = UdpLink::new();
        link.open(address).unwrap();
        link
    }

    /// Receives until there are `count`, or 10 s are over.
    fn collect(link: &mut UdpLink, count: usize) -> Vec<(SocketAddr, SocketAddr, Vec<u8>)> {
        let mut batch = ReceiveBatch::new(48);
        let mut all = Vec::new();
        let end = Instant::now() + Duration::from_secs(10);
        while all.len() < count && Instant::now() < end {
            link.receive(&mut batch);
            all.extend(batch.iter().map(|got| (got.source, got.destination, got.bytes.to_vec())));
        }
        all
    }

    fn exchange(from: IpAddr, to: IpAddr, sender: &mut UdpLink, receiver: &mut UdpLink) {
        let (source, destination) = (SocketAddr::new(from, ROCE_PORT), SocketAddr::new(to, ROCE_PORT));
        let mut batch = SendBatch::new();
        let messages: Vec<Vec<u8>> =
            (1..=100u8).map(|number| vec![number; 40 * usize::from(number)]).collect();
        for message in &messages {
            batch.push(Datagram { source, destination, bytes: message });
        }
        while !batch.is_empty() {
            sender.send(&mut batch, Instant::now());
        }
        let all = collect(receiver, 100);
        assert_eq!(all.len(), 100);
        for (message, got) in messages.iter().zip(all) {
            assert_eq!(got, (source, destination, message.clone()));
        }
        let mut rest = ReceiveBatch::new(1);
        assert_eq!(receiver.receive(&mut rest), 0);
    }

    #[test]
    fn datagrams_cross_the_loopback() {
        let (a, b) = (own_address(), own_address());
        let (mut link_a, mut link_b) = (open(a), open(b));
        exchange(a, b, &mut link_a, &mut link_b);
        exchange(b, a, &mut link_b, &mut link_a);
    }

    #[test]
    fn one_link_serves_both_families() {
        // ::1 is the only IPv6 address of a loopback, so it is the only test that takes it.
        let v6: IpAddr = "::1".parse().unwrap();
        let v4 = own_address();
        let mut link = open(v4);
        let to_self = |address| (SocketAddr::new(address, ROCE_PORT), SocketAddr::new(address, ROCE_PORT));
        match link.open(v6) {
            Ok(()) => {}
            Err(error @ (LinkError::NoSuchAddress { .. } | LinkError::AddressInUse { .. })) => {
                eprintln!("SKIPPED the IPv6 half: {error}");
                return;
            }
            Err(error) => panic!("{error}"),
        }
        let mut batch = SendBatch::new();
        for (source, destination) in [to_self(v4), to_self(v6), to_self(v4)] {
            batch.push(Datagram { source, destination, bytes: b"hello" });
        }
        link.send(&mut batch, Instant::now());
        assert!(batch.is_empty());
        let all = collect(&mut link, 3);
        let of = |address| all.iter().filter(|got| got.0.ip() == address && got.1.ip() == address).count();
        assert_eq!((of(v4), of(v6)), (2, 1));
        assert_eq!(link.fds().len(), 2);
        link.close(v6);
        assert_eq!(link.fds().len(), 1);
    }

    #[test]
    fn a_taken_address_says_what_to_do_and_is_free_after_close() {
        let address = own_address();
        let mut first = open(address);
        let mut second = UdpLink::new();
        let error = second.open(address).unwrap_err();
        assert!(matches!(error, LinkError::AddressInUse { .. }));
        let text = error.to_string();
        assert!(text.contains("4791") && text.contains("rxe") && text.contains("ss -lunp"), "{text}");
        first.open(address).unwrap();
        first.close(address);
        second.open(address).unwrap();
        drop(second);
        first.open(address).unwrap();
        let nowhere: IpAddr = "192.0.2.77".parse().unwrap();
        assert!(matches!(first.open(nowhere), Err(LinkError::NoSuchAddress { .. })));
    }

    #[test]
    fn what_cannot_be_sent_is_counted_and_does_not_block() {
        let (a, b) = (own_address(), own_address());
        let (mut sender, mut receiver) = (open(a), open(b));
        let (source, destination) = (SocketAddr::new(a, ROCE_PORT), SocketAddr::new(b, ROCE_PORT));
        let mut batch = SendBatch::new();
        batch.push(Datagram { source, destination, bytes: &[0; 65_507 + 1] });
        batch.push(Datagram { source: destination, destination: source, bytes: b"not ours" });
        // Nobody listens there; the answer of the network must not reach the next datagram.
        batch.push(Datagram { source, destination: SocketAddr::new(b, 9), bytes: b"closed" });
        batch.push(Datagram { source, destination, bytes: &[1; 5000] });
        batch.push(Datagram { source, destination, bytes: b"arrives" });
        sender.send(&mut batch, Instant::now());
        assert!(batch.is_empty());
        let all = collect(&mut receiver, 1);
        assert_eq!(all[0].2, b"arrives");
        let counter = |link: &UdpLink, name| {
            let mut counters = Vec::new();
            link.counters(&mut counters);
            counters.into_iter().find(|counter| counter.name == name).unwrap().value
        };
        assert_eq!(counter(&sender, "drop_send_too_big"), 1);
        assert_eq!(counter(&sender, "drop_send_address_not_open"), 1);
        assert_eq!(counter(&receiver, "drop_receive_too_long"), 1);
    }

    #[test]
    fn what_the_kernel_drops_is_counted() {
        let (a, b) = (own_address(), own_address());
        let (mut sender, mut receiver) = (open(a), open(b));
        // A buffer as small as the kernel allows.
        receiver.sockets[0].socket.set_recv_buffer_size(1).unwrap();
        let (source, destination) = (SocketAddr::new(a, ROCE_PORT), SocketAddr::new(b, ROCE_PORT));
        let mut batch = SendBatch::new();
        for _ in 0..64 {
            batch.push(Datagram { source, destination, bytes: &[0; 4000] });
        }
        while !batch.is_empty() {
            sender.send(&mut batch, Instant::now());
        }
        let mut got = ReceiveBatch::new(64);
        let arrived = receiver.receive(&mut got) as u64;
        let mut counters = Vec::new();
        receiver.counters(&mut counters);
        let dropped = counters.iter().find(|counter| counter.name == "drop_receive_queue_full").unwrap();
        assert!(dropped.value > 0);
        assert_eq!(arrived + dropped.value, 64);
    }

    #[test]
    fn a_watcher_is_told_of_each_datagram_without_arming_again() {
        let (a, b) = (own_address(), own_address());
        let (mut sender, mut receiver) = (open(a), open(b));
        assert!(receiver.stays_armed() && !receiver.arm());
        let mut poll = mio::Poll::new().unwrap();
        let fd = receiver.sockets[0].socket.as_raw_fd();
        poll.registry()
            .register(&mut mio::unix::SourceFd(&fd), mio::Token(0), mio::Interest::READABLE)
            .unwrap();
        let mut events = mio::Events::with_capacity(4);
        let (source, destination) = (SocketAddr::new(a, ROCE_PORT), SocketAddr::new(b, ROCE_PORT));
        for round in 0..3 {
            let mut batch = SendBatch::new();
            batch.push(Datagram { source, destination, bytes: b"edge" });
            sender.send(&mut batch, Instant::now());
            poll.poll(&mut events, Some(Duration::from_secs(10))).unwrap();
            assert!(!events.is_empty(), "round {round}");
            assert_eq!(collect(&mut receiver, 1).len(), 1);
        }
    }

    #[test]
    fn arm_tells_of_what_waits() {
        let (a, b) = (own_address(), own_address());
        let (mut sender, mut receiver) = (open(a), open(b));
        assert!(!receiver.arm());
        let mut batch = SendBatch::new();
        batch.push(Datagram {
            source: SocketAddr::new(a, ROCE_PORT),
            destination: SocketAddr::new(b, ROCE_PORT),
            bytes: b"wake",
        });
        sender.send(&mut batch, Instant::now());
        // The loopback delivers before the call returns.
        assert!(receiver.arm());
        assert_eq!(collect(&mut receiver, 1).len(), 1);
        assert!(!receiver.arm());
    }
}
