//! Reports on undelivered datagrams, read from a socket's error queue in the kernel.
//!
//! The kernel queues an ICMP error for the socket whose addresses and ports the error quotes. Such errors can
//! be forged. The next call on the socket fails with the error, even if the call concerns other datagrams.
#![forbid(unsafe_code)]

use crate::link::sockets::IcmpError;
use libc::sock_extended_err;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg};
use std::io::IoSliceMut;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd};
use trunkline_roce::wire::QuotedPacket;
use trunkline_verbs::UnreachableCause;

/// Maximum number of reports read per call of [`read`].
const BATCH: usize = 16;

/// Reads a batch of reports, and appends the reports that name a cause. Returns the number of reports that
/// the network sent.
pub(super) fn read(socket: BorrowedFd<'_>, local: SocketAddr, into: &mut Vec<IcmpError>) -> usize {
    let mut count = 0;
    for _ in 0..BATCH {
        let mut quoted = [0; QuotedPacket::BYTES];
        let mut pieces = [IoSliceMut::new(&mut quoted)];
        // Room for the error, the address of its sender, and the traffic class, which sockets request for
        // ECN.
        let mut space = nix::cmsg_space!(sock_extended_err, libc::sockaddr_in6, libc::c_int);
        let flags = MsgFlags::MSG_ERRQUEUE | MsgFlags::MSG_DONTWAIT;
        let message = recvmsg::<SockaddrStorage>(socket.as_raw_fd(), &mut pieces, Some(&mut space), flags);
        let Ok(message) = message else { break };
        let error = message.cmsgs().ok().and_then(|mut all| all.find_map(|one| error_of(&one)));
        let Some(error) = error.filter(is_of_network) else { continue };
        count += 1;
        let destination = message.address.as_ref().and_then(address_of);
        let length = message.bytes;
        if let (Some(destination), Some(cause)) = (destination, cause_of(&error)) {
            let packet = QuotedPacket::parse(quoted.get(..length).unwrap_or_default());
            into.push(IcmpError { source: local, destination, packet, cause });
        }
    }
    count
}

fn error_of(message: &ControlMessageOwned) -> Option<sock_extended_err> {
    match message {
        ControlMessageOwned::Ipv4RecvErr(error, _) | ControlMessageOwned::Ipv6RecvErr(error, _) => {
            Some(*error)
        }
        _ => None,
    }
}

fn is_of_network(error: &sock_extended_err) -> bool {
    matches!(error.ee_origin, libc::SO_EE_ORIGIN_ICMP | libc::SO_EE_ORIGIN_ICMP6)
}

fn address_of(address: &SockaddrStorage) -> Option<SocketAddr> {
    let v4 = address.as_sockaddr_in().map(|v4| SocketAddr::from((v4.ip(), v4.port())));
    v4.or_else(|| address.as_sockaddr_in6().map(|v6| SocketAddr::from((v6.ip(), v6.port()))))
}

/// Returns the cause that an error of type "destination unreachable" names (RFC 792, RFC 1812 5.2.7.1, RFC
/// 4443 3.1).
fn cause_of(error: &sock_extended_err) -> Option<UnreachableCause> {
    let is_v4 = error.ee_origin == libc::SO_EE_ORIGIN_ICMP;
    Some(match (is_v4, error.ee_type, error.ee_code) {
        (true, 3, 3) | (false, 1, 4) => UnreachableCause::Port,
        (true, 3, 0..=2 | 5..=8 | 11 | 12) | (false, 1, 0 | 2 | 3) => UnreachableCause::Host,
        (true, 3, 9 | 10 | 13..=15) | (false, 1, 1 | 5 | 6) => UnreachableCause::Prohibited,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn icmp_codes_map_to_causes() {
        let cause = |ee_origin, ee_type, ee_code| {
            let error = sock_extended_err {
                ee_errno: 0,
                ee_origin,
                ee_type,
                ee_code,
                ee_pad: 0,
                ee_info: 0,
                ee_data: 0,
            };
            cause_of(&error)
        };
        let (v4, v6) = (libc::SO_EE_ORIGIN_ICMP, libc::SO_EE_ORIGIN_ICMP6);
        assert_eq!([cause(v4, 3, 3), cause(v6, 1, 4)], [Some(UnreachableCause::Port); 2]);
        assert_eq!([cause(v4, 3, 1), cause(v6, 1, 0)], [Some(UnreachableCause::Host); 2]);
        assert_eq!([cause(v4, 3, 13), cause(v6, 1, 1)], [Some(UnreachableCause::Prohibited); 2]);
        // The errors "packet too big" and "time exceeded".
        assert_eq!([cause(v4, 3, 4), cause(v6, 2, 0), cause(v4, 11, 0)], [None; 3]);
    }
}
