//! Moving a QP to RTS without the connection manager, and the format of the messages.

use crate::Outcome;
use std::net::IpAddr;
use trunkline_testkit::{HandMadeConnection, bytes_of, key};
use trunkline_verbs::{QpNumber, QueuePair};

/// Length of the longest message in bytes.
pub(super) const LONGEST: usize = 2000;
/// 134 ms, eight times: a process that is delayed for a second on a loaded machine does not count as dead.
const ACK_TIMEOUT: u8 = 15;

/// Moves a QP from RESET to RTS.
pub(super) fn bring_up(qp: &dyn QueuePair, peer: IpAddr, peer_qp: QpNumber) -> Outcome<()> {
    let connection = HandMadeConnection {
        ack_timeout: ACK_TIMEOUT,
        rd_atomic: 4,
        ..HandMadeConnection::new(peer, peer_qp)
    };
    for step in connection.steps() {
        qp.modify(&step)?;
    }
    Ok(())
}

/// Returns the content of message `number` of a stream.
pub(super) fn message(stream: u64, number: u64) -> Vec<u8> {
    let mut bytes = stream.to_be_bytes().to_vec();
    bytes.extend(number.to_be_bytes());
    let seed = key(&[stream, number]);
    bytes.extend(bytes_of(seed, usize::try_from(seed).unwrap_or(0) % (LONGEST - 16)));
    bytes
}

/// Returns the stream and number of a message, if all of its bytes are right.
pub(super) fn parse(bytes: &[u8]) -> Option<(u64, u64)> {
    let (stream, rest) = bytes.split_first_chunk::<8>()?;
    let number = u64::from_be_bytes(*rest.first_chunk()?);
    let stream = u64::from_be_bytes(*stream);
    (message(stream, number) == bytes).then_some((stream, number))
}
