//! Findings of the shard that are not its own business.
#![forbid(unsafe_code)]

use crate::host::{AreaHandle, MemberId};
use std::net::IpAddr;
use trunkline_roce::wire::Mad;
use trunkline_verbs::QpNumber;

/// Something that the shard has found. It queues them in order; control takes them at the end of each
/// turn, so there are no more than packets in a turn.
#[derive(Debug)]
pub(in crate::device) enum Found {
    /// A management datagram for QP 1.
    Mad {
        /// Sender's address.
        from: IpAddr,
        /// The own address that it was sent to.
        to: IpAddr,
        /// The management datagram.
        mad: Box<Mad>,
    },
    /// The first packet at a QP whose connection awaits its RTU. The data stands in for a lost or
    /// overtaken RTU (contract rocev2 12.4).
    FirstPacket(QpNumber),
    /// A message about shared memory from this shard to another of the device.
    OwnMessage {
        /// This process.
        me: MemberId,
        /// Kind that tells how to read its bytes.
        kind: u8,
        /// Body of the message.
        bytes: Vec<u8>,
        /// An area that goes along.
        area: Option<AreaHandle>,
    },
    /// A member of the host that a message was for cannot be reached any more.
    MemberGone(MemberId),
}
