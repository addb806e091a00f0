//! Datagrams over ordinary UDP sockets, without privileges.
//!
//! Owns one unconnected socket per open address, bound to port 4791 there, so that each packet
//! leaves with DF set and identification 0, which the ICRC covers (contract rocev2 5.1, 5.2).
//! A socket is never connected, and segmentation offload is left alone: either would change the
//! identification.
//!
//! Several processes of one host share an address: the first has port 4791 and hands on what is
//! for others (`relay`); the others have a port of the system's choice, from which they send and at
//! which peers that know it reach them. When the holder dies, whoever is told first takes 4791 as
//! well, and keeps its other socket, since peers know that port.
//!
//! One system call moves up to 32 datagrams.
#![forbid(unsafe_code)]

use super::interface::Interface;
use super::relay::{MemberMessage, Relay};
use super::{Link, LinkError, ROCE_PORT, ReceiveBatch, SendBatch, udp_ffi};
use crate::host::Targets;
use crate::host::local::LocalLink;
use socket2::{Domain, Protocol, Socket, Type};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};
use trunkline_verbs::Counter;

/// Asked of the kernel, which may give less without saying so.
const SEND_BUFFER_BYTES: usize = 4 << 20;
/// The same for what waits to be received; Linux counts about 8 KiB for a packet of 4.
const RECEIVE_BUFFER_BYTES: i32 = 8 << 20;

/// How long `open` waits for a dead holder's successor, and for a new holder to say that it is one.
const TAKE_OVER: Duration = Duration::from_millis(150);
const SAYING_SO: Duration = Duration::from_millis(20);
/// Between two tries to bind port 4791; doubled each time, up to the second.
const FIRST_TRY: Duration = Duration::from_millis(2);
const LAST_TRY: Duration = Duration::from_millis(50);

#[derive(Debug)]
struct Bound {
    address: IpAddr,
    /// The port is the one that it got.
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
    taken_over: u64,
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
    /// Grows when a socket is added but by `open`.
    changes: u64,
    /// When to try again to take over port 4791, and how long to wait after that.
    again: Option<(Instant, Duration)>,
    /// The other processes at our addresses. Behind the sockets, so that port 4791 is free when
    /// they are told that we left.
    relay: Option<Relay>,
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

    /// Shares its addresses with the other members of the host.
    #[must_use]
    pub(crate) fn shared(self, local: LocalLink) -> Self {
        Self { relay: Some(Relay::new(local)), ..self }
    }

    /// Hands packets for shared TGTs on to the members that execute them.
    pub(crate) fn follow(&mut self, targets: Arc<Targets>) {
        if let Some(relay) = &mut self.relay {
            relay.follow(targets);
        }
    }

    /// The way to the other members, if addresses are shared.
    pub(crate) fn local(&mut self) -> Option<&mut LocalLink> {
        self.relay.as_mut().map(Relay::local)
    }

    /// The oldest message of another member for the card.
    pub(crate) fn next_message(&mut self) -> Option<MemberMessage> {
        self.relay.as_mut()?.next_message()
    }

    #[cfg(test)]
    pub(super) fn relay_for_tests(&self) -> &Relay {
        self.relay.as_ref().expect("the link shares its addresses")
    }

    fn receive_buffer(&self) -> i32 {
        self.receive_buffer.unwrap_or(RECEIVE_BUFFER_BYTES)
    }

    fn holds(&self, address: IpAddr) -> bool {
        self.sockets.iter().any(|bound| bound.address == address && bound.local.port() == ROCE_PORT)
    }

    /// Port 4791, or a port behind the member that has it.
    ///
    /// It sleeps, although the card's lock is held and others who poll the card wait for that. Only who
    /// uses an address for the first time comes here, and it sleeps only while port 4791 is taken and no
    /// member that lives says that it has it: for the moment between a bind and the word about it, or
    /// between a holder's death and its successor. A stranger's socket there is an error, after
    /// [`SAYING_SO`] or [`TAKE_OVER`]. Connections outlast that much: a peer that hears nothing
    /// repeats, and gives up only after several ACK timeouts of 134 ms or more.
    fn bind_or_share(&mut self, address: IpAddr) -> Result<Bound, LinkError> {
        let start = Instant::now();
        loop {
            let error = match bind(address, ROCE_PORT, self.receive_buffer()) {
                Err(error @ LinkError::AddressInUse { .. }) => error,
                other => {
                    if let (Ok(_), Some(relay)) = (&other, &self.relay) {
                        relay.host().set_port_holder(address);
                    }
                    return other;
                }
            };
            let buffer = self.receive_buffer();
            let Some(relay) = &mut self.relay else { return Err(error) };
            let holder = relay.host().port_holder(address);
            if let Some(holder) = holder.filter(|holder| relay.host().is_alive(*holder)) {
                relay.local().connect(holder);
                return bind(address, 0, buffer);
            }
            let patience = if holder.is_some() { TAKE_OVER } else { SAYING_SO };
            if start.elapsed() > patience {
                return Err(error);
            }
            std::thread::sleep(FIRST_TRY);
        }
    }

    /// A member is gone, maybe one that had port 4791: takes it wherever it is free, and watches
    /// who else has it.
    fn take_over(&mut self, now: Instant, wait: Duration) {
        let mut again = false;
        let addresses: Vec<IpAddr> = self.sockets.iter().map(|bound| bound.address).collect();
        for address in addresses {
            if self.holds(address) {
                continue;
            }
            let bound = bind(address, ROCE_PORT, self.receive_buffer());
            let Some(relay) = &mut self.relay else { return };
            match bound {
                Ok(bound) => {
                    relay.host().set_port_holder(address);
                    self.sockets.push(bound);
                    self.changes += 1;
                    self.counts.taken_over += 1;
                    tracing::debug!(%address, "took over UDP port 4791");
                }
                Err(LinkError::AddressInUse { .. }) => {
                    match relay.host().port_holder(address).filter(|holder| relay.host().is_alive(*holder)) {
                        Some(holder) => again |= !relay.local().connect(holder),
                        // Another is about to say that it has it, or the dead one is not quite gone.
                        None => again = true,
                    }
                }
                Err(error) => {
                    tracing::warn!(%address, %error, "UDP port 4791 cannot be taken over");
                    again = true;
                }
            }
        }
        self.again = again.then(|| (now + wait, (wait * 2).min(LAST_TRY)));
    }
}

/// Receives from one socket into the batch, and hands on what is another member's; answers how
/// many slots it used, or `None` when the socket is empty.
fn receive_from(
    bound: &Bound,
    relay: Option<&mut Relay>,
    batch: &mut ReceiveBatch,
    counts: &mut Counts,
) -> Option<usize> {
    let (used, before) = (batch.used(), batch.len());
    let received = match udp_ffi::receive(bound.socket.as_fd(), bound.local, batch) {
        Ok(received) => received,
        Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionRefused) => {
            return Some(0);
        }
        Err(_) => return None,
    };
    counts.too_long += received.too_long as u64;
    let slots = batch.used() - used;
    if let Some(relay) = relay.filter(|_| bound.local.port() == ROCE_PORT) {
        batch.retain_from(before, |datagram| match relay.owner(datagram) {
            Some(owner) => {
                relay.hand_on(owner, datagram);
                false
            }
            None => true,
        });
    }
    // Less than a full table: drained, or the batch is full.
    (received.taken == udp_ffi::BATCH).then_some(slots)
}

impl Link for UdpLink {
    fn name(&self) -> &'static str {
        "udp"
    }

    fn open(&mut self, address: IpAddr) -> Result<(), LinkError> {
        if self.sockets.iter().any(|bound| bound.address == address) {
            return Ok(());
        }
        let bound = self.bind_or_share(address)?;
        self.sockets.push(bound);
        Ok(())
    }

    fn close(&mut self, address: IpAddr) {
        if let Some(relay) = &self.relay {
            relay.host().clear_port_holder(address);
        }
        self.sockets.retain(|bound| bound.address != address);
    }

    fn source(&self, address: IpAddr) -> SocketAddr {
        let bound = self.sockets.iter().find(|bound| bound.address == address);
        SocketAddr::new(address, bound.map_or(ROCE_PORT, |bound| bound.local.port()))
    }

    fn mtu(&self, address: IpAddr) -> Result<u32, LinkError> {
        Interface::of(address)?.mtu(address)
    }

    fn send(&mut self, batch: &mut SendBatch, _now: Instant) {
        while let Some(first) = batch.at(0) {
            let source = first.source;
            let is_of = |bound: &&Bound| bound.address == source.ip() && bound.local.port() == source.port();
            let Some(bound) = self.sockets.iter().find(is_of) else {
                self.counts.not_open += 1;
                batch.remove_first(1);
                continue;
            };
            let run = batch.iter().take_while(|datagram| datagram.source == source);
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
        // Slots that were used for datagrams of others are free again, and count all the same.
        let mut used = 0;
        let mut lost = false;
        if let Some(relay) = &mut self.relay {
            let sockets = &self.sockets;
            lost = relay.take(batch, |address| sockets.iter().any(|bound| bound.address == address));
            used = batch.used();
        }
        for step in 0..count {
            let bound = &self.sockets[(self.turn + step) % count];
            while !batch.is_full() && used < batch.capacity() {
                let Some(slots) = receive_from(bound, self.relay.as_mut(), batch, &mut self.counts) else {
                    break;
                };
                used += slots;
            }
        }
        self.turn = if count == 0 { 0 } else { (self.turn + 1) % count };
        if let Some(relay) = &mut self.relay {
            relay.flush();
        }
        if lost {
            self.take_over(Instant::now(), FIRST_TRY);
        }
        used.max(batch.used())
    }

    fn arm(&mut self) -> bool {
        // First, so that the next `receive` looks there whatever waits here.
        let members = self.relay.as_mut().is_some_and(Relay::is_readable);
        members || udp_ffi::any_readable(self.sockets.iter().map(|bound| bound.socket.as_fd()))
    }

    fn stays_armed(&self) -> bool {
        true
    }

    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        let local = self.relay.iter().map(Relay::fd);
        self.sockets.iter().map(|bound| bound.socket.as_fd()).chain(local).collect()
    }

    fn changes(&self) -> u64 {
        self.changes
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.again.map(|(when, _)| when)
    }

    fn poll(&mut self, now: Instant) {
        if let Some((_, wait)) = self.again.take_if(|(when, _)| *when <= now) {
            self.take_over(now, wait);
        }
    }

    fn udp(&mut self) -> Option<&mut UdpLink> {
        Some(self)
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
            Counter { name: "port_taken_over", value: counts.taken_over },
        ]);
        if let Some(relay) = &self.relay {
            relay.counters(into);
        }
    }
}

fn bind(address: IpAddr, port: u16, receive_buffer: i32) -> Result<Bound, LinkError> {
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
    let asked = local_address(address, port)?;
    socket.bind(&asked.into()).map_err(|source| match source.kind() {
        ErrorKind::AddrInUse => LinkError::AddressInUse { address },
        ErrorKind::AddrNotAvailable => LinkError::NoSuchAddress { address },
        _ => LinkError::Os { doing: "bind a UDP port", address, source },
    })?;
    let named = socket.local_addr().map_err(failed("ask for the port of a UDP socket"))?;
    let local = named.as_socket().ok_or(LinkError::NoSuchAddress { address })?;
    Ok(Bound { address, local, socket })
}

/// A link-local address means nothing without its interface.
fn local_address(address: IpAddr, port: u16) -> Result<SocketAddr, LinkError> {
    Ok(match address {
        IpAddr::V6(v6) if v6.is_unicast_link_local() => {
            SocketAddrV6::new(v6, port, 0, Interface::of(address)?.index).into()
        }
        _ => SocketAddr::new(address, port),
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
