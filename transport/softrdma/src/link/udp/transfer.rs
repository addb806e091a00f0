//! Sending and receiving by the UDP link's sockets.
//!
//! Owns how errors of a socket are handled, and how datagrams of other members are forwarded.
#![forbid(unsafe_code)]

use super::ports::{Bound, Ports};
use crate::link::relay::Relay;
use crate::link::{ReceiveBatch, SendBatch};
use std::io::ErrorKind;
use trunkline_verbs::Counter;

/// Counters of datagrams that were not sent or received.
#[derive(Debug, Default)]
pub(super) struct Losses {
    too_big: u64,
    not_open: u64,
    refused: u64,
    no_room: u64,
    too_long: u64,
}

impl Losses {
    pub(super) fn counters(&self) -> [Counter; 5] {
        [
            Counter { name: "drop_send_too_big", value: self.too_big },
            Counter { name: "drop_send_address_not_open", value: self.not_open },
            Counter { name: "drop_send_refused", value: self.refused },
            Counter { name: "send_postponed", value: self.no_room },
            Counter { name: "drop_receive_too_long", value: self.too_long },
        ]
    }
}

/// Sends from the front of the batch until it is empty or the system has no room.
pub(super) fn send(ports: &mut Ports, batch: &mut SendBatch, losses: &mut Losses) {
    while let Some(first) = batch.at(0) {
        let source = first.source;
        let Some(bound) = ports.at(source) else {
            losses.not_open += 1;
            batch.remove_first(1);
            continue;
        };
        let run = batch.iter().take_while(|datagram| datagram.source == source).count();
        let mut left = run;
        while left > 0 {
            match bound.socket.send(batch, left) {
                Ok(sent) => {
                    batch.remove_first(sent);
                    left -= sent.min(left);
                }
                Err(error) => match error.raw_os_error() {
                    Some(libc::EINTR) => {}
                    Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) => {
                        losses.no_room += 1;
                        return;
                    }
                    // The error is about an earlier datagram and no reason to drop this one;
                    // reading it has cleared it.
                    Some(libc::ECONNREFUSED) => {}
                    Some(libc::EMSGSIZE) => {
                        losses.too_big += 1;
                        batch.remove_first(1);
                        left -= 1;
                    }
                    _ => {
                        losses.refused += 1;
                        tracing::debug!(%error, %source, "a datagram was refused by the system");
                        batch.remove_first(1);
                        left -= 1;
                    }
                },
            }
        }
    }
}

/// Receives from one socket into the batch, and forwards the datagrams of other members. Returns how
/// many slots it used, or `None` when the socket is empty.
pub(super) fn receive(
    bound: &mut Bound,
    relay: Option<&mut Relay>,
    batch: &mut ReceiveBatch,
    losses: &mut Losses,
) -> Option<usize> {
    let (used, before) = (batch.used(), batch.len());
    let received = match bound.socket.receive(batch) {
        Ok(received) => received,
        Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionRefused) => {
            return Some(0);
        }
        Err(_) => return None,
    };
    losses.too_long += received.too_long as u64;
    let slots = batch.used() - used;
    if let Some(relay) = relay.filter(|_| bound.is_roce()) {
        batch.retain_from(before, |datagram| match relay.owner(datagram) {
            Some(owner) => {
                relay.hand_on(owner, datagram);
                false
            }
            None => true,
        });
    }
    received.may_have_more.then_some(slots)
}
