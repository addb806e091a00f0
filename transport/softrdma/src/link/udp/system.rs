//! The operating system's UDP sockets.
//!
//! Owns the sockets' options: each packet is sent with DF set and identification 0, which the ICRC covers
//! (contract rocev2 5.1, 5.2). A socket is not connected, since that would change the identification. One
//! system call transfers up to 32 messages. A message to a software device may consist of several datagrams,
//! which the kernel splits and joins (`UDP_SEGMENT`, `UDP_GRO`). These datagrams have the identifications 0,
//! 1, 2 and so on.
#![forbid(unsafe_code)]

use super::icmp;
use crate::link::interface::Interface;
use crate::link::sockets::{DatagramSocket, IcmpError, Received, Sockets};
use crate::link::udp_ffi::BATCH;
use crate::link::{LinkError, PortOwner, ReceiveBatch, SendBatch, udp_ffi};
use socket2::{Domain, Protocol, Socket, Type};
use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use trunkline_verbs::VerbsError;
use trunkline_verbs::descriptors::above_stdio;

/// Requested size of the send buffer, in bytes. The kernel may grant less without an error.
pub const SEND_BUFFER_BYTES: usize = 4 << 20;
/// Requested size of the receive buffer, in bytes. Linux charges about 8 KiB for a packet of 4 KiB.
pub const RECEIVE_BUFFER_BYTES: i32 = 8 << 20;
/// Time for which the interface of a local address is cached. Without the cache, all interfaces would be listed for
/// each request from an unknown peer, which needs the interface's MTU.
const INTERFACE_KEPT_FOR: Duration = Duration::from_secs(1);

/// Number of datagrams expected in a message until the first message is received.
const MOST_JOINED: usize = 16;
/// Number of messages for which a receive prepares when few arrive. Preparing costs instructions even for
/// messages that do not arrive.
const FEW_MESSAGES: usize = 4;

/// Creates sockets of the operating system.
#[derive(Debug)]
pub(super) struct SystemSockets {
    /// Size of the receive buffer to request, in bytes.
    receive_buffer: i32,
    /// Interfaces of local addresses, and the times until which they are cached.
    interfaces: Mutex<BTreeMap<IpAddr, (Instant, Interface)>>,
}

impl Default for SystemSockets {
    fn default() -> Self {
        Self::with_receive_buffer(RECEIVE_BUFFER_BYTES)
    }
}

impl SystemSockets {
    /// Creates a factory for sockets that request receive buffers of this size, in bytes.
    pub(super) fn with_receive_buffer(bytes: i32) -> Self {
        Self { receive_buffer: bytes, interfaces: Mutex::default() }
    }
}

impl Sockets for SystemSockets {
    fn is_held_by_stranger(&self, at: SocketAddr) -> bool {
        PortOwner::find(at).is_some_and(|owner| owner.is_stranger())
    }

    fn bind(&self, address: IpAddr, port: u16) -> Result<Box<dyn DatagramSocket>, LinkError> {
        VerbsError::check_scope(address).map_err(|why| LinkError::Scoped { address, why })?;
        let failed = |doing: &'static str| move |source: io::Error| LinkError::Os { doing, address, source };
        let is_v4 = address.is_ipv4();
        let domain = if is_v4 { Domain::IPV4 } else { Domain::IPV6 };
        let socket = above_stdio(|| Socket::new(domain, Type::DGRAM, Some(Protocol::UDP)))
            .map_err(failed("create a UDP socket"))?;
        socket.set_nonblocking(true).map_err(failed("make a UDP socket non-blocking"))?;
        if !is_v4 {
            socket.set_only_v6(true).map_err(failed("restrict a UDP socket to IPv6"))?;
        }
        udp_ffi::set_roce_options(socket.as_fd(), is_v4)
            .map_err(failed("forbid fragments (IP_MTU_DISCOVER)"))?;
        udp_ffi::use_ecn(socket.as_fd(), is_v4);
        udp_ffi::ask_receive_buffer(socket.as_fd(), self.receive_buffer);
        // A smaller buffer only delays a batch.
        let _less = socket.set_send_buffer_size(SEND_BUFFER_BYTES);
        socket.bind(&SocketAddr::new(address, port).into()).map_err(|source| match source.kind() {
            ErrorKind::AddrInUse => LinkError::AddressInUse { address, port },
            ErrorKind::AddrNotAvailable => LinkError::NoSuchAddress { address },
            _ => LinkError::Os { doing: "bind a UDP port", address, source },
        })?;
        let named = socket.local_addr().map_err(failed("read the port of a UDP socket"))?;
        let local = named.as_socket().ok_or(LinkError::NoSuchAddress { address })?;
        let can_segment = udp_ffi::can_segment(socket.as_fd());
        let joins = udp_ffi::join_received(socket.as_fd());
        Ok(Box::new(SystemSocket {
            local,
            socket: Arc::new(socket),
            can_segment,
            joins,
            joined: MOST_JOINED,
            messages: BATCH,
        }))
    }

    fn mtu(&self, address: IpAddr) -> Result<u32, LinkError> {
        #[expect(clippy::disallowed_methods, reason = "a simulation has no sockets of the system")]
        let now = Instant::now();
        let mut interfaces = self.interfaces.lock().unwrap_or_else(PoisonError::into_inner);
        interfaces.retain(|_, (until, _)| now < *until);
        if let Some(mtu) = interfaces.get(&address).and_then(|(_, kept)| kept.mtu(address).ok()) {
            return Ok(mtu);
        }
        let interface = Interface::of(address)?;
        let mtu = interface.mtu(address)?;
        interfaces.insert(address, (now + INTERFACE_KEPT_FOR, interface));
        Ok(mtu)
    }
}

#[derive(Debug)]
struct SystemSocket {
    local: SocketAddr,
    socket: Arc<Socket>,
    /// True while messages of several datagrams can be sent.
    can_segment: bool,
    /// True if messages of several datagrams may be received.
    joins: bool,
    /// Largest number of datagrams in a message of the last receive. It limits the number of messages for which the
    /// next receive prepares.
    joined: usize,
    /// Number of messages for which the next receive prepares.
    messages: usize,
}

impl DatagramSocket for SystemSocket {
    fn local(&self) -> SocketAddr {
        self.local
    }

    fn share(&self) -> Option<Box<dyn DatagramSocket>> {
        Some(Box::new(Self { socket: Arc::clone(&self.socket), ..*self }))
    }

    fn can_segment(&self) -> bool {
        self.can_segment
    }

    fn stop_segmenting(&mut self) {
        self.can_segment = false;
    }

    fn send(&mut self, batch: &SendBatch, count: usize) -> io::Result<usize> {
        udp_ffi::send(self.socket.as_fd(), batch.messages(count))
    }

    fn receive(&mut self, batch: &mut ReceiveBatch) -> io::Result<Received> {
        if self.joins {
            batch.make_room_for_joined();
        }
        let (most, before) = ((batch.room() / self.joined).clamp(1, self.messages), batch.len());
        let received = udp_ffi::receive(self.socket.as_fd(), self.local, batch, self.joins, most)?;
        self.joined = received.most_joined.max(1);
        let is_full = received.may_have_more;
        self.messages = if is_full { BATCH } else { (2 * (batch.len() - before)).clamp(FEW_MESSAGES, BATCH) };
        Ok(received)
    }

    fn read_icmp_errors(&mut self, into: &mut Vec<IcmpError>) -> usize {
        icmp::read(self.socket.as_fd(), self.local, into)
    }

    fn is_readable(&self) -> bool {
        udp_ffi::any_readable(std::iter::once(self.socket.as_fd()))
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }

    fn dropped(&self) -> u64 {
        udp_ffi::dropped_by_kernel(self.socket.as_fd())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::udp::tests::own_address;
    use crate::link::{CE, Datagram, ECT_0, Segmentation};
    use socket2::SockRef;
    use std::net::Ipv6Addr;
    use std::time::Duration;
    use trunkline_verbs::UnreachableCause;

    /// The kernel puts the traffic class of IPv6 before the error, so the buffer needs room for both.
    #[test]
    fn icmp_errors_of_both_families_are_read() {
        let sockets = SystemSockets::default();
        for address in [own_address(), Ipv6Addr::LOCALHOST.into()] {
            let mut sender = sockets.bind(address, 0).unwrap();
            let closed = sockets.bind(address, 0).unwrap().local();
            let mut errors = Vec::new();
            trunkline_testkit::wait_until("an ICMP error", Duration::from_secs(60), || {
                let mut batch = SendBatch::new();
                batch.push(Datagram { source: sender.local(), destination: closed, bytes: &[0; 60] });
                // This call may return the error.
                let _sent = sender.send(&batch, 1);
                sender.read_icmp_errors(&mut errors);
                (!errors.is_empty()).then_some(())
            });
            assert_eq!((errors[0].destination, errors[0].cause), (closed, UnreachableCause::Port));
        }
    }

    #[test]
    fn ecn_marks_are_sent_and_received() {
        let sockets = SystemSockets::default();
        for address in [own_address(), Ipv6Addr::LOCALHOST.into()] {
            let [mut sender, mut receiver] = [(); 2].map(|()| sockets.bind(address, 0).unwrap());
            let (source, destination) = (sender.local(), receiver.local());
            let mut got = ReceiveBatch::new(64);
            for (round, ecn) in [ECT_0, CE, ECT_0].into_iter().enumerate() {
                let fd = sender.fd().unwrap();
                let raw = SockRef::from(&fd);
                if address.is_ipv4() {
                    assert!(round > 0 || raw.tos_v4().unwrap() == u32::from(ECT_0));
                    raw.set_tos_v4(ecn.into()).unwrap();
                } else {
                    assert!(round > 0 || raw.tclass_v6().unwrap() == u32::from(ECT_0));
                    raw.set_tclass_v6(ecn.into()).unwrap();
                }
                let mut batch = SendBatch::new();
                batch.push_run(source, destination, Segmentation::Plain, 3, |out| {
                    out.extend_from_slice(&[0; 400]);
                    true
                });
                batch.segment(|_| true);
                assert_eq!(sender.send(&batch, 3).unwrap(), 3);
                trunkline_testkit::wait_until("all to arrive", Duration::from_secs(60), || {
                    let _empty = receiver.receive(&mut got);
                    (got.len() == 3 * (round + 1)).then_some(())
                });
            }
            let marks = got.iter_with_origin().map(|(_, origin)| origin.is_marked).collect::<Vec<_>>();
            assert_eq!(marks, [false, false, false, true, true, true, false, false, false], "{address}");
        }
    }

    #[test]
    fn datagrams_dropped_by_kernel_are_counted() {
        // The kernel doubles this value, and enforces a minimum.
        let sockets = SystemSockets::with_receive_buffer(1);
        let [mut sender, mut receiver] = [(); 2].map(|()| sockets.bind(own_address(), 0).unwrap());
        let (source, destination) = (sender.local(), receiver.local());
        let mut batch = SendBatch::new();
        for _ in 0..64 {
            batch.push(Datagram { source, destination, bytes: &[0; 4000] });
        }
        while !batch.is_empty() {
            let sent = sender.send(&batch, batch.len()).unwrap();
            batch.remove_first(sent);
        }
        let mut got = ReceiveBatch::new(64);
        // The loopback may deliver datagrams after the sending call has returned.
        trunkline_testkit::wait_until("all to arrive or be dropped", Duration::from_secs(60), || {
            while receiver.receive(&mut got).is_ok() && !got.is_full() {}
            (got.len() as u64 + receiver.dropped() == 64).then_some(())
        });
        assert!(receiver.dropped() > 0);
    }
}
