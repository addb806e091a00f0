//! Tests of links over real sockets on the loopback interface.

use super::transfer::MAX_REPEATS;
use super::*;
use crate::link::sockets::{DatagramSocket, Received};
use crate::link::{Datagram, ROCE_PORT, Segmentation};
use socket2::{Domain, Protocol, Socket, Type};
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};
use trunkline_roce::wire::{IpUdp, icrc};
use trunkline_verbs::UnreachableCause;

/// Returns an address in 127.0.0.0/8 that no other test uses, in this process or another.
pub(super) fn own_address() -> IpAddr {
    trunkline_testkit::fresh_ip().into()
}

fn open(address: IpAddr) -> UdpLink {
    let mut link = UdpLink::new();
    link.open(address).unwrap();
    link
}

/// Receives until `count` datagrams have arrived, or a minute has passed.
#[expect(clippy::disallowed_methods, reason = "bounds a wait for real sockets")]
fn collect(link: &mut UdpLink, count: usize) -> Vec<(SocketAddr, SocketAddr, Vec<u8>)> {
    let mut batch = ReceiveBatch::new(48);
    let mut all = Vec::new();
    let end = Instant::now() + Duration::from_secs(60);
    while all.len() < count && Instant::now() < end {
        link.receive(&mut batch);
        all.extend(batch.iter().map(|got| (got.source, got.destination, got.bytes.to_vec())));
    }
    all
}

fn exchange(from: IpAddr, to: IpAddr, sender: &mut UdpLink, receiver: &mut UdpLink) {
    let (source, destination) = (SocketAddr::new(from, ROCE_PORT), SocketAddr::new(to, ROCE_PORT));
    let mut batch = SendBatch::new();
    let messages: Vec<Vec<u8>> = (1..=100u8).map(|number| vec![number; 40 * usize::from(number)]).collect();
    for message in &messages {
        batch.push(Datagram { source, destination, bytes: message });
    }
    while !batch.is_empty() {
        sender.send(&mut batch, Time(0));
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
fn datagrams_cross_loopback() {
    let (a, b) = (own_address(), own_address());
    let (mut link_a, mut link_b) = (open(a), open(b));
    exchange(a, b, &mut link_a, &mut link_b);
    exchange(b, a, &mut link_b, &mut link_a);
}

#[test]
fn one_link_serves_both_families() {
    // ::1 is the only IPv6 address of the loopback, so only this test may use it.
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
    link.send(&mut batch, Time(0));
    assert!(batch.is_empty());
    let all = collect(&mut link, 3);
    let of = |address| all.iter().filter(|got| got.0.ip() == address && got.1.ip() == address).count();
    assert_eq!((of(v4), of(v6)), (2, 1));
    assert_eq!(link.fds().len(), 2);
    link.close(v6);
    assert_eq!(link.fds().len(), 1);
}

#[test]
fn error_for_taken_address_names_remedy_and_close_frees_address() {
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
fn datagrams_dropped_by_interface_queue_are_not_repeated() {
    let address = own_address();
    let sockets = PickySockets::default();
    sockets.0.lock().unwrap().has_full_queue = true;
    let mut link = UdpLink::over(Box::new(sockets));
    link.open(address).unwrap();
    let source = SocketAddr::new(address, ROCE_PORT);
    let mut batch = SendBatch::new();
    for bytes in [b"one", b"two"] {
        batch.push(Datagram { source, destination: source, bytes });
    }
    link.send(&mut batch, Time(0));
    assert!(batch.is_empty());
    let mut counters = Vec::new();
    link.counters(&mut counters);
    assert!(counters.contains(&Counter { name: "drop_send_queue_full", value: 2 }), "{counters:?}");
}

/// Appends packets of these lengths, with their ICRCs. The packets may be sent as segments.
fn push_segments(batch: &mut SendBatch, source: SocketAddr, destination: SocketAddr, lengths: &[usize]) {
    let headers = IpUdp::new(source, destination);
    let mut packets = lengths.iter().zip(0u8..);
    batch.push_run(source, destination, Segmentation::Numbered, lengths.len(), |out| {
        let Some((length, number)) = packets.next() else { return false };
        let mut packet = vec![number; *length];
        icrc::append(&headers, &mut packet);
        out.extend(packet);
        true
    });
}

/// Returns the identification that the ICRC of each packet covers, and the packet's first byte.
fn identifications(got: &[(SocketAddr, SocketAddr, Vec<u8>)]) -> Vec<(Option<u16>, u8)> {
    let of = |(source, destination, bytes): &(SocketAddr, SocketAddr, Vec<u8>)| {
        (icrc::solve_identification(&IpUdp::new(*source, *destination), bytes), bytes[0])
    };
    got.iter().map(of).collect()
}

#[test]
fn segments_arrive_as_datagrams_with_identifications_in_order() {
    let (a, b) = (own_address(), own_address());
    let mut links = [open(a), open(b)];
    for (from, to) in [(a, b), (b, a)] {
        let [sender, receiver] = &mut links;
        let (source, destination) = (SocketAddr::new(from, ROCE_PORT), SocketAddr::new(to, ROCE_PORT));
        let plain = Socket::new(Domain::IPV4, Type::DGRAM, None).unwrap();
        plain.bind(&SocketAddr::new(to, 0).into()).unwrap();
        let elsewhere = plain.local_addr().unwrap().as_socket().unwrap();
        let mut batch = SendBatch::new();
        push_segments(&mut batch, source, destination, &[4116, 4112, 4112, 4112, 400, 16]);
        push_segments(&mut batch, source, elsewhere, &[96, 96, 16]);
        while !batch.is_empty() {
            sender.send(&mut batch, Time(0));
        }
        let got = identifications(&collect(receiver, 6));
        let expected = [(0, 0), (1, 1), (0, 2), (1, 3), (2, 4), (0, 5)];
        assert_eq!(got, expected.map(|(identification, number)| (Some(identification), number)));
        assert_eq!((counter(sender, "packets_segmented"), counter(receiver, "packets_joined")), (8, 5));
        // A socket that does not join datagrams gets the same packets.
        let plain = std::net::UdpSocket::from(plain);
        plain.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        for number in 0..3 {
            let mut bytes = [0; 200];
            let (length, from) = plain.recv_from(&mut bytes).unwrap();
            let got = identifications(&[(from, elsewhere, bytes[..length].to_vec())]);
            assert_eq!(got, [(Some(number), bytes[0])]);
            assert_eq!(u16::from(bytes[0]), number);
        }
        links.reverse();
    }
}

/// Datagrams sent through a [`PickySocket`], and a flag that is set when its segmentation is disabled.
#[derive(Debug, Default)]
struct PickyState {
    sent: Vec<Vec<u8>>,
    does_not_segment: bool,
    has_full_queue: bool,
    is_forbidden: bool,
    /// Number of further sends that fail with the error of a report.
    reports: usize,
    sends_segments: bool,
}

/// A socket that refuses messages of several datagrams, and datagrams larger than a path MTU. The queue of its
/// interface may be full.
#[derive(Debug)]
struct PickySocket(SocketAddr, Arc<std::sync::Mutex<PickyState>>);

/// Creates [`PickySocket`]s.
#[derive(Debug, Default)]
struct PickySockets(Arc<std::sync::Mutex<PickyState>>);

impl Sockets for PickySockets {
    fn bind(&self, address: IpAddr, port: u16) -> Result<Box<dyn DatagramSocket>, LinkError> {
        Ok(Box::new(PickySocket(SocketAddr::new(address, port), Arc::clone(&self.0))))
    }

    fn mtu(&self, _: IpAddr) -> Result<u32, LinkError> {
        Ok(1500)
    }
}

impl DatagramSocket for PickySocket {
    fn local(&self) -> SocketAddr {
        self.0
    }

    fn can_segment(&self) -> bool {
        !self.1.lock().unwrap().does_not_segment
    }

    fn stop_segmenting(&mut self) {
        self.1.lock().unwrap().does_not_segment = true;
    }

    fn send(&mut self, batch: &SendBatch, count: usize) -> io::Result<usize> {
        let message = batch.messages(count).next().unwrap();
        let mut state = self.1.lock().unwrap();
        let error = match (message.count, message.bytes.len()) {
            _ if state.has_full_queue => libc::ENOBUFS,
            _ if state.is_forbidden => libc::EPERM,
            _ if state.reports > 0 => libc::EOPNOTSUPP,
            (2.., _) if !state.sends_segments => libc::EINVAL,
            (1, 1400..) => libc::EMSGSIZE,
            _ => {
                state.sent.push(message.bytes.to_vec());
                return Ok(message.count);
            }
        };
        Err(io::Error::from_raw_os_error(error))
    }

    fn read_icmp_errors(&mut self, _: &mut Vec<IcmpError>) -> usize {
        let mut state = self.1.lock().unwrap();
        let read = state.reports.min(1);
        state.reports -= read;
        read
    }

    fn receive(&mut self, _: &mut ReceiveBatch) -> io::Result<Received> {
        Err(io::ErrorKind::WouldBlock.into())
    }

    fn is_readable(&self) -> bool {
        false
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn dropped(&self) -> u64 {
        0
    }
}

#[test]
fn segments_refused_by_kernel_are_sent_one_by_one() {
    let sockets = PickySockets::default();
    let state = Arc::clone(&sockets.0);
    let address = own_address();
    let mut link = UdpLink::over(Box::new(sockets));
    link.open(address).unwrap();
    let source = SocketAddr::new(address, ROCE_PORT);
    let mut batch = SendBatch::new();
    push_segments(&mut batch, source, source, &[1500; 3]);
    link.send(&mut batch, Time(0));
    assert!(batch.is_empty());
    assert_eq!(counter(&link, "drop_send_too_big"), 3, "the size was to blame");
    assert_eq!(counter(&link, "segmentation_refused"), 0);
    push_segments(&mut batch, source, source, &[100, 100, 40, 100, 100]);
    link.send(&mut batch, Time(0));
    assert!(batch.is_empty() && state.lock().unwrap().does_not_segment);
    push_segments(&mut batch, source, source, &[100, 100]);
    link.send(&mut batch, Time(0));
    let sent: Vec<_> =
        state.lock().unwrap().sent.iter().map(|bytes| (source, source, bytes.clone())).collect();
    let expected = [0, 1, 2, 3, 4, 0, 1].map(|number| (Some(0), number));
    assert_eq!(identifications(&sent), expected);
    assert_eq!((counter(&link, "segmentation_refused"), counter(&link, "drop_send_refused")), (1, 0));
}

#[test]
fn datagram_forbidden_by_own_firewall_is_reported_as_prohibited() {
    let sockets = PickySockets::default();
    sockets.0.lock().unwrap().is_forbidden = true;
    let address = own_address();
    let mut link = UdpLink::over(Box::new(sockets));
    link.open(address).unwrap();
    let source = SocketAddr::new(address, ROCE_PORT);
    let mut batch = SendBatch::new();
    for _ in 0..100 {
        push_segments(&mut batch, source, source, &[100]);
    }
    link.send(&mut batch, Time(0));
    assert_eq!(counter(&link, "drop_send_refused"), 100);
    let reports: Vec<_> = std::iter::from_fn(|| link.next_icmp_error()).collect();
    let first = reports[0];
    assert_eq!((first.destination, first.cause), (source, UnreachableCause::Prohibited));
    assert_eq!(reports.len(), 64, "their number is bounded");
}

#[test]
fn flood_of_reports_does_not_disable_segmentation() {
    let sockets = PickySockets::default();
    let state = Arc::clone(&sockets.0);
    (state.lock().unwrap().reports, state.lock().unwrap().sends_segments) = (MAX_REPEATS - 1, true);
    let address = own_address();
    let mut link = UdpLink::over(Box::new(sockets));
    link.open(address).unwrap();
    let source = SocketAddr::new(address, ROCE_PORT);
    let mut batch = SendBatch::new();
    push_segments(&mut batch, source, source, &[100; 3]);
    link.send(&mut batch, Time(0));
    assert_eq!(state.lock().unwrap().sent.len(), 1);
    // With even more reports, the datagrams are lost, but later ones are sent together.
    state.lock().unwrap().reports = 10 * MAX_REPEATS;
    push_segments(&mut batch, source, source, &[100; 3]);
    link.send(&mut batch, Time(0));
    assert!(batch.is_empty() && !state.lock().unwrap().does_not_segment);
    assert_eq!(counter(&link, "segmentation_refused"), 0);
}

#[test]
fn unsendable_datagrams_are_counted_and_do_not_block() {
    let (a, b) = (own_address(), own_address());
    let (mut sender, mut receiver) = (open(a), open(b));
    let (source, destination) = (SocketAddr::new(a, ROCE_PORT), SocketAddr::new(b, ROCE_PORT));
    let mut batch = SendBatch::new();
    batch.push(Datagram { source, destination, bytes: &[0; 65_507 + 1] });
    batch.push(Datagram { source: destination, destination: source, bytes: b"not ours" });
    // The port is closed; the ICMP error must not affect the next datagram.
    batch.push(Datagram { source, destination: SocketAddr::new(b, 9), bytes: b"closed" });
    batch.push(Datagram { source, destination, bytes: &[1; 5000] });
    batch.push(Datagram { source, destination, bytes: b"arrives" });
    sender.send(&mut batch, Time(0));
    assert!(batch.is_empty());
    let all = collect(&mut receiver, 1);
    assert_eq!(all[0].2, b"arrives");
    assert_eq!(counter(&sender, "drop_send_too_big"), 1);
    assert_eq!(counter(&sender, "drop_send_address_not_open"), 1);
    assert_eq!(counter(&receiver, "drop_receive_too_long"), 1);
}

#[test]
fn watcher_is_notified_of_each_datagram_without_arming_again() {
    let (a, b) = (own_address(), own_address());
    let (mut sender, mut receiver) = (open(a), open(b));
    assert!(receiver.stays_armed() && !receiver.arm());
    let mut poll = mio::Poll::new().unwrap();
    let fd = receiver.fds()[0].as_raw_fd();
    poll.registry().register(&mut mio::unix::SourceFd(&fd), mio::Token(0), mio::Interest::READABLE).unwrap();
    let mut events = mio::Events::with_capacity(4);
    let (source, destination) = (SocketAddr::new(a, ROCE_PORT), SocketAddr::new(b, ROCE_PORT));
    for round in 0..3 {
        let mut batch = SendBatch::new();
        batch.push(Datagram { source, destination, bytes: b"edge" });
        sender.send(&mut batch, Time(0));
        poll.poll(&mut events, Some(Duration::from_secs(60))).unwrap();
        assert!(!events.is_empty(), "round {round}");
        assert_eq!(collect(&mut receiver, 1).len(), 1);
    }
}

#[test]
fn arm_reports_waiting_datagrams() {
    let (a, b) = (own_address(), own_address());
    let (mut sender, mut receiver) = (open(a), open(b));
    assert!(!receiver.arm());
    let mut batch = SendBatch::new();
    batch.push(Datagram {
        source: SocketAddr::new(a, ROCE_PORT),
        destination: SocketAddr::new(b, ROCE_PORT),
        bytes: b"wake",
    });
    sender.send(&mut batch, Time(0));
    // Usually the loopback delivers the datagram before the call returns, but under load only later.
    trunkline_testkit::wait_until("the datagram arrives", Duration::from_secs(60), || {
        receiver.arm().then_some(())
    });
    assert_eq!(collect(&mut receiver, 1).len(), 1);
    assert!(!receiver.arm());
}

/// Returns the value of a link's counter.
fn counter(link: &UdpLink, name: &str) -> u64 {
    let mut counters = Vec::new();
    link.counters(&mut counters);
    counters.into_iter().find(|counter| counter.name == name).unwrap().value
}

/// Sends the ICMP error "fragmentation needed, MTU 552" for a datagram between two addresses, with a third
/// address as the router. Returns false if this user may not send it.
fn forge_fragmentation_needed([from, to, router]: [Ipv4Addr; 3]) -> bool {
    let Ok(raw) = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::ICMPV4)) else { return false };
    let mut message = vec![3, 4, 0, 0, 0, 0, 2, 40];
    message.extend([0x45, 0, 15, 160, 0, 0, 0x40, 0, 64, 17, 0, 0]);
    message.extend(from.octets().into_iter().chain(to.octets()));
    let ports = ROCE_PORT.to_be_bytes();
    message.extend([ports[0], ports[1], ports[0], ports[1], 15, 140, 0, 0]);
    let words = message.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1]));
    let sum = words.sum::<u32>();
    let checksum = !u16::try_from((sum >> 16) + (sum & 0xffff)).unwrap();
    message[2..4].copy_from_slice(&checksum.to_be_bytes());
    raw.bind(&SocketAddr::from((router, 0)).into()).unwrap();
    raw.send_to(&message, &SocketAddr::from((from, 0)).into()).unwrap();
    true
}

#[test]
fn forged_path_mtu_does_not_stop_datagrams() {
    let addresses = [(); 3].map(|()| trunkline_testkit::fresh_ip());
    let [a, b] = [addresses[0], addresses[1]].map(IpAddr::from);
    let (mut sender, mut receiver) = (open(a), open(b));
    if !forge_fragmentation_needed(addresses) {
        return;
    }
    trunkline_testkit::wait_until("the error arrives", Duration::from_secs(60), || {
        sender.arm();
        (counter(&sender, "icmp_errors") > 0).then_some(())
    });
    exchange(a, b, &mut sender, &mut receiver);
    assert_eq!(counter(&sender, "drop_send_too_big"), 0);
}

#[test]
fn icmp_errors_of_one_peer_do_not_affect_another_peer() {
    let (a, b, nowhere) = (own_address(), own_address(), own_address());
    let (mut sender, mut receiver) = (open(a), open(b));
    let source = SocketAddr::new(a, ROCE_PORT);
    let [to, dead] = [b, nowhere].map(|address| SocketAddr::new(address, ROCE_PORT));
    for number in 0..100u8 {
        let mut batch = SendBatch::new();
        for destination in [dead, to, dead, dead] {
            batch.push(Datagram { source, destination, bytes: &[number; 60] });
        }
        sender.send(&mut batch, Time(0));
        assert!(batch.is_empty());
        // Every other time, a receiving call returns the errors.
        if number % 2 == 0 {
            sender.receive(&mut ReceiveBatch::new(8));
        }
    }
    assert_eq!(collect(&mut receiver, 100).len(), 100);
    assert_eq!(counter(&sender, "drop_send_refused"), 0);
    let report = sender.next_icmp_error().expect("a report");
    assert_eq!((report.source, report.destination), (source, dead));
    assert_eq!(report.cause, UnreachableCause::Port);
    // After the reports are read, a sleeping watcher is not kept awake.
    trunkline_testkit::wait_until("the queue of errors is empty", Duration::from_secs(60), || {
        while sender.next_icmp_error().is_some() {}
        (!sender.arm()).then_some(())
    });
    // The kernel limits the rate of its errors.
    assert!(counter(&sender, "icmp_errors") > 0);
}
