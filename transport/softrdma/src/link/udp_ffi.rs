//! System calls for UDP that the standard library lacks.
//!
//! Contains all `unsafe` code of the UDP link. Each function builds its tables on its own stack and does not keep
//! pointers after it returns.

use super::batch::{JOINED_BYTES, MAX_DATAGRAM_BYTES, Message, ReceiveBatch, ReceivedBytes};
use super::sockets::Received;
use super::{CE, ECT_0};
use std::io;
use std::mem::{size_of, size_of_val};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd};

/// Maximum number of messages per system call.
pub(super) const BATCH: usize = 32;

/// Configures a socket to build the IP header that the ICRC covers (contract rocev2 5.1), and to accept
/// datagrams without a UDP checksum over IPv6 (contract rocev2 5.6). Requests reports on undelivered
/// datagrams. The kernel's path MTU from ICMP errors, which can be forged, is not used.
pub(super) fn set_roce_options(socket: BorrowedFd<'_>, is_v4: bool) -> io::Result<()> {
    if is_v4 {
        set_option(socket, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE)?;
        set_option(socket, libc::IPPROTO_IP, libc::IP_RECVERR, 1)
    } else {
        set_option(socket, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_PROBE)?;
        set_option(socket, libc::IPPROTO_UDP, libc::UDP_NO_CHECK6_RX, 1)?;
        set_option(socket, libc::IPPROTO_IPV6, libc::IPV6_RECVERR, 1)
    }
}

/// Marks all sent datagrams as ECN-capable, and requests the ECN marks of received datagrams. If the system
/// refuses, round trips and losses remain as signs of congestion.
pub(super) fn use_ecn(socket: BorrowedFd<'_>, is_v4: bool) {
    let (level, receive, send) = if is_v4 {
        (libc::IPPROTO_IP, libc::IP_RECVTOS, libc::IP_TOS)
    } else {
        (libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, libc::IPV6_TCLASS)
    };
    let _refused =
        set_option(socket, level, receive, 1).and_then(|()| set_option(socket, level, send, ECT_0.into()));
}

/// Requests a receive buffer of this size, even beyond the system's limit if the process may exceed it. The
/// kernel may grant a smaller buffer.
pub(super) fn ask_receive_buffer(socket: BorrowedFd<'_>, bytes: i32) {
    let forced = set_option(socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, bytes);
    if forced.is_err() {
        // A smaller buffer only costs retransmissions.
        let _less = set_option(socket, libc::SOL_SOCKET, libc::SO_RCVBUF, bytes);
    }
}

/// Returns true if the kernel can split a message that this socket sends into several datagrams (Linux 4.18).
pub(super) fn can_segment(socket: BorrowedFd<'_>) -> bool {
    set_option(socket, libc::SOL_UDP, libc::UDP_SEGMENT, 0).is_ok()
}

/// Lets the kernel join datagrams that this socket receives. Returns false if it cannot (before Linux 5.0).
pub(super) fn join_received(socket: BorrowedFd<'_>) -> bool {
    set_option(socket, libc::SOL_UDP, libc::UDP_GRO, 1).is_ok()
}

/// Returns the number of datagrams that the kernel dropped because the socket's receive buffer was full.
pub(super) fn dropped_by_kernel(socket: BorrowedFd<'_>) -> u64 {
    // `SK_MEMINFO_VARS` words. The last one is `SK_MEMINFO_DROPS`.
    let mut words = [0u32; 9];
    let mut length: libc::socklen_t = 36;
    const _: () = assert!(size_of::<[u32; 9]>() == 36);
    // SAFETY: the descriptor is open for the life of the borrow; the kernel writes at most `length` bytes,
    // the size of `words`.
    let answer = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_MEMINFO,
            (&raw mut words).cast(),
            &raw mut length,
        )
    };
    if answer < 0 || length < 36 { 0 } else { words[8].into() }
}

fn set_option(socket: BorrowedFd<'_>, level: i32, name: i32, value: i32) -> io::Result<()> {
    // SAFETY: the descriptor is open for the life of the borrow; the pointer is valid for reads of the given
    // length, the size of an i32, and the kernel does not write through it.
    let answer = unsafe {
        libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const value).cast(), LENGTH_OF_INT)
    };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

const LENGTH_OF_INT: libc::socklen_t = 4;

/// A socket address of either family, as the kernel lays it out.
#[derive(Clone, Copy)]
#[repr(C)]
union RawAddress {
    family: libc::sa_family_t,
    v4: libc::sockaddr_in,
    v6: libc::sockaddr_in6,
}

const LENGTH_OF_V4: libc::socklen_t = 16;
const LENGTH_OF_V6: libc::socklen_t = 28;
const _: () = assert!(size_of::<libc::sockaddr_in>() == 16 && size_of::<libc::sockaddr_in6>() == 28);
#[allow(clippy::cast_possible_truncation, reason = "AF_INET and AF_INET6 are 2 and 10")]
const FAMILY_V4: libc::sa_family_t = libc::AF_INET as libc::sa_family_t;
#[allow(clippy::cast_possible_truncation, reason = "AF_INET and AF_INET6 are 2 and 10")]
const FAMILY_V6: libc::sa_family_t = libc::AF_INET6 as libc::sa_family_t;

impl RawAddress {
    fn zeroed() -> Self {
        // The larger member covers the whole union.
        Self {
            v6: libc::sockaddr_in6 {
                sin6_family: 0,
                sin6_port: 0,
                sin6_flowinfo: 0,
                sin6_addr: libc::in6_addr { s6_addr: [0; 16] },
                sin6_scope_id: 0,
            },
        }
    }

    fn new(address: SocketAddr) -> (Self, libc::socklen_t) {
        let mut raw = Self::zeroed();
        match address {
            SocketAddr::V4(v4) => {
                raw.v4 = libc::sockaddr_in {
                    sin_family: FAMILY_V4,
                    sin_port: v4.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from(*v4.ip()).to_be() },
                    sin_zero: [0; 8],
                };
                (raw, LENGTH_OF_V4)
            }
            SocketAddr::V6(v6) => {
                raw.v6 = libc::sockaddr_in6 {
                    sin6_family: FAMILY_V6,
                    sin6_port: v6.port().to_be(),
                    sin6_flowinfo: 0,
                    sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                    sin6_scope_id: v6.scope_id(),
                };
                (raw, LENGTH_OF_V6)
            }
        }
    }

    fn get(&self) -> Option<SocketAddr> {
        // SAFETY: every member begins with the family. All bytes were initialised by `zeroed`, and all values are
        // valid, so any member may be read, regardless of what the kernel wrote.
        unsafe {
            match self.family {
                FAMILY_V4 => {
                    let ip = Ipv4Addr::from(u32::from_be(self.v4.sin_addr.s_addr));
                    Some(SocketAddrV4::new(ip, u16::from_be(self.v4.sin_port)).into())
                }
                FAMILY_V6 => {
                    let ip = Ipv6Addr::from(self.v6.sin6_addr.s6_addr);
                    let port = u16::from_be(self.v6.sin6_port);
                    Some(SocketAddrV6::new(ip, port, 0, self.v6.sin6_scope_id).into())
                }
                _ => None,
            }
        }
    }
}

fn empty_header() -> libc::mmsghdr {
    // SAFETY: zeros are valid for the integers and pointers of mmsghdr.
    unsafe { std::mem::zeroed() }
}

/// Length of a control message with one integer and its padding, in words of eight bytes.
const CONTROL_WORDS: usize = 3;
/// Buffer for one such control message.
type Control = [u64; CONTROL_WORDS];
/// Maximum number of control messages per received message. They contain the length of joined datagrams, and the ECN
/// bits of the datagrams.
const RECEIVED_CONTROLS: usize = 2;
const _: () = assert!(size_of::<libc::cmsghdr>() == 16);

/// Sends up to [`BATCH`] messages with one call. Returns the number of datagrams that the kernel accepted, or
/// the error if it refused the first message.
pub(super) fn send<'a>(
    socket: BorrowedFd<'_>,
    messages: impl Iterator<Item = Message<'a>>,
) -> io::Result<usize> {
    let mut addresses = [RawAddress::zeroed(); BATCH];
    let mut pieces = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; BATCH];
    let mut controls: [Control; BATCH] = [[0; _]; _];
    let mut headers = [empty_header(); BATCH];
    let mut counts = [0; BATCH];
    let mut count = 0;
    for (message, ((address, piece), (header, control))) in
        messages.zip(addresses.iter_mut().zip(&mut pieces).zip(headers.iter_mut().zip(&mut controls)))
    {
        let (raw, length) = RawAddress::new(message.destination);
        *address = raw;
        // The kernel only reads the data to which an iovec of a send points.
        *piece =
            libc::iovec { iov_base: message.bytes.as_ptr().cast_mut().cast(), iov_len: message.bytes.len() };
        header.msg_hdr.msg_name = (&raw mut *address).cast();
        header.msg_hdr.msg_namelen = length;
        header.msg_hdr.msg_iov = piece;
        header.msg_hdr.msg_iovlen = 1;
        if message.count > 1 {
            *control = segment_control(message.segment_bytes);
            header.msg_hdr.msg_control = (&raw mut *control).cast();
            header.msg_hdr.msg_controllen = size_of::<Control>();
        }
        counts[count] = message.count;
        count += 1;
    }
    let Ok(length @ 1..) = libc::c_uint::try_from(count) else { return Ok(0) };
    // SAFETY: the first `count` headers point to addresses, pieces and control messages of this stack frame, and
    // the pieces to datagrams borrowed for 'a, which outlives the call; `count` is at most BATCH.
    let sent = unsafe {
        libc::sendmmsg(
            socket.as_raw_fd(),
            headers.as_mut_ptr(),
            length,
            libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
        )
    };
    let sent = usize::try_from(sent).map_err(|_| io::Error::last_os_error())?;
    Ok(counts.iter().take(sent).sum())
}

/// Returns the control message that splits a message into segments of this length.
fn segment_control(segment_bytes: usize) -> Control {
    // A `cmsghdr`: the length including its data, the level and the type; then the data, 16 bits.
    let kind = control_kind(libc::SOL_UDP, libc::UDP_SEGMENT);
    [18, kind.to_le(), (segment_bytes as u64).to_le()]
}

/// Returns the level and the type of a control message as one word.
fn control_kind(level: i32, name: i32) -> u64 {
    u64::from(level.cast_unsigned()) | u64::from(name.cast_unsigned()) << 32
}

/// Parses the control messages that the kernel wrote. Returns the length of joined datagrams, and true if the
/// network has marked them.
fn joined_and_marked(controls: &[Control]) -> (Option<usize>, bool) {
    let (mut segment_bytes, mut is_marked) = (None, false);
    for [_, kind, data] in controls {
        if *kind == control_kind(libc::SOL_UDP, libc::UDP_GRO) {
            segment_bytes = usize::try_from(data & 0xffff_ffff).ok();
        } else if [(libc::IPPROTO_IP, libc::IP_TOS), (libc::IPPROTO_IPV6, libc::IPV6_TCLASS)]
            .iter()
            .any(|(level, name)| *kind == control_kind(*level, *name))
        {
            is_marked = data & 3 == u64::from(CE);
        }
    }
    (segment_bytes, is_marked)
}

/// Receives up to `most` messages, but at most [`BATCH`], into the free bytes of `batch` with one call. If the
/// socket `joins` datagrams, a message may contain several.
pub(super) fn receive(
    socket: BorrowedFd<'_>,
    destination: SocketAddr,
    batch: &mut ReceiveBatch,
    joins: bool,
    most: usize,
) -> io::Result<Received> {
    let mut addresses = [RawAddress::zeroed(); BATCH];
    let mut pieces = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; BATCH];
    let mut controls: [[Control; RECEIVED_CONTROLS]; BATCH] = [[[0; _]; _]; _];
    let mut headers = [empty_header(); BATCH];
    let mut count = 0;
    let slot_bytes = if joins { JOINED_BYTES } else { MAX_DATAGRAM_BYTES };
    for (slot, ((address, piece), (header, control))) in batch
        .free_bytes()
        .chunks_exact_mut(slot_bytes)
        .take(most)
        .zip(addresses.iter_mut().zip(&mut pieces).zip(headers.iter_mut().zip(&mut controls)))
    {
        *piece = libc::iovec { iov_base: slot.as_mut_ptr().cast(), iov_len: slot.len() };
        header.msg_hdr.msg_name = (&raw mut *address).cast();
        header.msg_hdr.msg_namelen = LENGTH_OF_V6;
        header.msg_hdr.msg_iov = piece;
        header.msg_hdr.msg_iovlen = 1;
        header.msg_hdr.msg_control = (&raw mut *control).cast();
        header.msg_hdr.msg_controllen = size_of_val(control);
        count += 1;
    }
    let Ok(length @ 1..) = libc::c_uint::try_from(count) else { return Ok(Received::default()) };
    // SAFETY: the first `count` headers point to addresses, pieces and control messages of this stack frame, and
    // the pieces to parts of `batch`, which is borrowed exclusively until this function returns; the parts do not
    // overlap and all lengths are correct. No time limit is passed.
    let taken = unsafe {
        libc::recvmmsg(
            socket.as_raw_fd(),
            headers.as_mut_ptr(),
            length,
            libc::MSG_DONTWAIT,
            std::ptr::null_mut(),
        )
    };
    let taken = usize::try_from(taken).map_err(|_| io::Error::last_os_error())?;
    let (mut too_long, mut most_joined, mut joined) = (0, 1, 0);
    for ((header, address), control) in headers.iter().zip(&addresses).zip(&controls).take(taken) {
        let length = usize::try_from(header.msg_len).unwrap_or(0);
        let written = header.msg_hdr.msg_controllen / size_of::<Control>();
        let (segment_bytes, is_marked) = joined_and_marked(&control[..written.min(control.len())]);
        let segment_bytes = segment_bytes.unwrap_or(length);
        let is_whole = header.msg_hdr.msg_flags & libc::MSG_TRUNC == 0 && segment_bytes <= MAX_DATAGRAM_BYTES;
        too_long += usize::from(!is_whole);
        let received = address.get().filter(|_| is_whole).map(|source| ReceivedBytes {
            source,
            destination,
            length,
            segment_bytes,
            is_marked,
        });
        let count = batch.take(slot_bytes, received);
        most_joined = most_joined.max(count);
        joined += if count > 1 { count } else { 0 };
    }
    // If fewer than `count` messages were taken, the socket is empty or the batch is full.
    Ok(Received { too_long, may_have_more: taken == count, most_joined, joined })
}

/// Returns true if any of the sockets, or its error queue, is readable.
pub(super) fn any_readable<'a>(sockets: impl Iterator<Item = BorrowedFd<'a>>) -> bool {
    sockets.into_iter().any(|socket| {
        let mut watched = libc::pollfd { fd: socket.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: the pointer refers to one pollfd of this stack frame, which the call does not retain.
        let ready = unsafe { libc::poll(&raw mut watched, 1, 0) };
        ready > 0
    })
}

/// Returns the MTU of an interface.
pub(super) fn interface_mtu(socket: BorrowedFd<'_>, name: &str) -> io::Result<u32> {
    // SAFETY: zeros are valid for ifreq, which is plain data.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // The last byte stays zero, so that the name is always terminated.
    let room = request.ifr_name.len() - 1;
    for (to, from) in request.ifr_name.iter_mut().take(room).zip(name.bytes()) {
        *to = from.cast_signed();
    }
    // SAFETY: SIOCGIFMTU reads the name from the ifreq and writes the MTU to it; the ifreq lives on this stack
    // frame.
    let answer = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFMTU, &raw mut request) };
    if answer < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: SIOCGIFMTU succeeded, so it filled this member.
    let mtu = unsafe { request.ifr_ifru.ifru_mtu };
    Ok(u32::try_from(mtu).unwrap_or(0))
}
