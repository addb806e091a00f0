//! Findings of the shard that control handles.
#![forbid(unsafe_code)]

use crate::host::{AreaHandle, MemberId};
use std::net::IpAddr;
use trunkline_roce::wire::Mad;
use trunkline_verbs::QpNumber;

/// A finding of the shard. The shard queues them in order, and control takes them at the end of each turn, so
/// the queue never holds more than one turn's packets produce.
#[derive(Debug)]
pub(in crate::device) enum Found {
    /// A management datagram for QP 1.
    Mad {
        /// Sender's address.
        from: IpAddr,
        /// The local address that it was sent to.
        to: IpAddr,
        /// The management datagram.
        mad: Box<Mad>,
    },
    /// The first packet at a QP whose connection awaits its RTU. It replaces an RTU that was lost or
    /// overtaken (contract rocev2 12.4).
    FirstPacket(QpNumber),
    /// A message about shared memory from this shard to another of the device.
    OwnMessage {
        /// This process.
        me: MemberId,
        /// Kind of the message.
        kind: u8,
        /// Body of the message.
        bytes: Vec<u8>,
        /// An area that is handed over with the message.
        area: Option<AreaHandle>,
    },
    /// A member of the host that can no longer be reached, found while sending to it.
    MemberGone(MemberId),
}
