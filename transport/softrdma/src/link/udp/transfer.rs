//! Sending and receiving through the UDP link's sockets.
//!
//! Owns the handling of socket errors, dropping of forged datagrams, and forwarding of datagrams for other
//! members.
#![forbid(unsafe_code)]

use super::ports::{Bound, Ports};
use crate::host::{MemberPorts, Source};
use crate::link::relay::Relay;
use crate::link::{Datagram, DatagramSocket, IcmpError, Judge, Origin, ReceiveBatch, SendBatch};
use std::io::ErrorKind;
use trunkline_roce::wire::QuotedPacket;
use trunkline_verbs::{Counter, Time, UnreachableCause};

/// Maximum number of stored reports on undelivered datagrams.
const MAX_ICMP_ERRORS: usize = 64;
/// Maximum number of times in a row that a call is repeated after it returned the error of an earlier datagram.
pub(super) const MAX_REPEATS: usize = 64;

/// Counts of datagrams that were not sent, delivered or received, and other counts.
#[derive(Debug, Default)]
pub(super) struct Losses {
    too_big: u64,
    not_open: u64,
    refused: u64,
    no_room: u64,
    queue_full: u64,
    too_long: u64,
    forged: u64,
    icmp_errors: u64,
    /// Numbers of datagrams sent and received in messages of several datagrams, and of sockets that no longer
    /// send such messages.
    segmented: u64,
    joined: u64,
    not_segmenting: u64,
    /// Reports that have not been taken yet.
    reports: Vec<IcmpError>,
    /// Number of receiving calls that returned an error since the last [`Losses::begin_receive`].
    receive_errors: usize,
}

impl Losses {
    pub(super) fn counters(&self) -> [Counter; 11] {
        [
            Counter { name: "drop_send_too_big", value: self.too_big },
            Counter { name: "drop_send_address_not_open", value: self.not_open },
            Counter { name: "drop_send_refused", value: self.refused },
            Counter { name: "send_postponed", value: self.no_room },
            Counter { name: "drop_send_queue_full", value: self.queue_full },
            Counter { name: "drop_receive_too_long", value: self.too_long },
            Counter { name: "drop_forged_source", value: self.forged },
            Counter { name: "icmp_errors", value: self.icmp_errors },
            Counter { name: "packets_segmented", value: self.segmented },
            Counter { name: "packets_joined", value: self.joined },
            Counter { name: "segmentation_refused", value: self.not_segmenting },
        ]
    }

    /// Reads reports on datagrams that a socket has sent. Returns false if there are none.
    pub(super) fn read_icmp_errors(&mut self, socket: &mut dyn DatagramSocket) -> bool {
        let read = socket.read_icmp_errors(&mut self.reports);
        self.icmp_errors += read as u64;
        self.reports.truncate(MAX_ICMP_ERRORS);
        read > 0
    }

    /// Reports that a firewall of this host forbids the first datagram of the batch, as a report of the network would.
    fn report_prohibited(&mut self, batch: &SendBatch) {
        let Some(Datagram { source, destination, bytes, .. }) = batch.at(0) else { return };
        if self.reports.len() < MAX_ICMP_ERRORS {
            let (packet, cause) = (QuotedPacket::parse(bytes), UnreachableCause::Prohibited);
            self.reports.push(IcmpError { source, destination, packet, cause });
        }
    }

    pub(super) fn next_icmp_error(&mut self) -> Option<IcmpError> {
        self.reports.pop()
    }

    pub(super) fn has_icmp_errors(&self) -> bool {
        !self.reports.is_empty()
    }

    pub(super) fn begin_receive(&mut self) {
        self.receive_errors = 0;
    }
}

/// Combines datagrams of the batch into messages if their sockets can send messages of several datagrams.
pub(super) fn segment(ports: &mut Ports, batch: &mut SendBatch, losses: &mut Losses) {
    let joined = batch.segment(|source| ports.at(source).is_some_and(|bound| bound.socket.can_segment()));
    losses.segmented += joined as u64;
}

/// Sends from the front of the batch until it is empty or the system lacks room. Datagrams whose source is the device's
/// port go through the process that holds the port, if that is another process.
pub(super) fn send(
    ports: &mut Ports,
    batch: &mut SendBatch,
    mut relay: Option<&mut Relay>,
    losses: &mut Losses,
) {
    while let Some(first) = batch.at(0) {
        let source = first.source;
        let main_port = ports.main_port();
        let Some(bound) = ports.at(source) else {
            let through = relay.as_mut().filter(|_| source.port() == main_port);
            if !through.is_some_and(|relay| relay.send_through_holder(first)) {
                losses.not_open += 1;
            }
            batch.remove_first(1);
            continue;
        };
        let run = batch.iter().take_while(|datagram| datagram.source == source).count();
        let (mut left, mut repeats) = (run, 0);
        let (mut was_split, mut is_reported) = (false, false);
        while left > 0 {
            match bound.socket.send(batch, left) {
                Ok(sent) => {
                    if std::mem::take(&mut was_split) {
                        tracing::debug!(address = %source, "segmentation refused by the system; sending datagrams one by one");
                        bound.socket.stop_segmenting();
                        losses.not_segmenting += 1;
                    }
                    (repeats, is_reported) = (0, false);
                    batch.remove_first(sent);
                    left -= sent.min(left);
                }
                Err(error) => match error.raw_os_error() {
                    Some(libc::EINTR) => {}
                    Some(libc::EAGAIN | libc::ENOMEM) => {
                        losses.no_room += 1;
                        return;
                    }
                    // With IP_RECVERR the system reports drops in the interface's queue (ip(7)). The queue may drop all
                    // datagrams of a kind, so they are not repeated.
                    Some(libc::ENOBUFS) => {
                        let count = batch.first_message().min(left);
                        losses.queue_full += count as u64;
                        batch.remove_first(count);
                        (left, repeats) = (left - count, 0);
                    }
                    // The error belongs to an earlier datagram, and is reported only once. This datagram was not sent,
                    // so try again.
                    _ if repeats < MAX_REPEATS && {
                        let has_reports = losses.read_icmp_errors(&mut *bound.socket);
                        is_reported |= has_reports;
                        has_reports || repeats == 0
                    } =>
                    {
                        repeats += 1;
                    }
                    // The segmentation may have caused the error. Send the datagrams one by one. If there were reports, which
                    // may be forged, the segmentation stays enabled.
                    code if batch.first_message() > 1 => {
                        batch.unsegment();
                        was_split = !is_reported
                            && matches!(
                                code,
                                Some(
                                    libc::EINVAL
                                        | libc::EIO
                                        | libc::ENOPROTOOPT
                                        | libc::EOPNOTSUPP
                                        | libc::EMSGSIZE
                                )
                            );
                        repeats = 0;
                    }
                    Some(libc::EMSGSIZE) => {
                        was_split = false;
                        losses.too_big += 1;
                        batch.remove_first(1);
                        (left, repeats) = (left - 1, 0);
                    }
                    code => {
                        was_split = false;
                        losses.refused += 1;
                        if code == Some(libc::EPERM) {
                            losses.report_prohibited(batch);
                        }
                        tracing::debug!(%error, address = %source, "datagram refused by the system");
                        batch.remove_first(1);
                        (left, repeats) = (left - 1, 0);
                    }
                },
            }
        }
    }
    if let Some(relay) = relay {
        relay.flush();
    }
}

/// Checks applied to received datagrams.
pub(super) struct Gate<'a, 'judge> {
    pub(super) relay: Option<&'a mut Relay>,
    pub(super) sources: Option<&'a mut MemberPorts>,
    pub(super) losses: &'a mut Losses,
    pub(super) judge: Option<&'judge mut dyn Judge>,
    pub(super) now: Time,
}

impl Gate<'_, '_> {
    /// Receives from one socket into the batch, drops datagrams with a forged source, and forwards datagrams for other
    /// members. Returns the number of slots used, or `None` if the socket is empty.
    pub(super) fn receive(&mut self, bound: &mut Bound, batch: &mut ReceiveBatch) -> Option<usize> {
        let (used, before) = (batch.used(), batch.len());
        let received = match bound.socket.receive(batch) {
            Ok(received) => received,
            Err(error) if error.kind() == ErrorKind::Interrupted => return Some(0),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return None,
            // The error belongs to an earlier datagram, and is reported before received datagrams. `arm` detects the
            // remaining datagrams.
            Err(_) => {
                self.losses.read_icmp_errors(&mut *bound.socket);
                self.losses.receive_errors += 1;
                return (self.losses.receive_errors <= MAX_REPEATS).then_some(0);
            }
        };
        self.losses.too_long += received.too_long as u64;
        self.losses.joined += received.joined as u64;
        let slots = batch.used() - used;
        let is_main = bound.is_main;
        batch.retain_from(before, |datagram, origin| {
            *origin = match self.origin(datagram) {
                Some(of) => Origin { is_marked: origin.is_marked, ..of },
                None => return false,
            };
            !(is_main && self.forward(datagram, *origin))
        });
        received.may_have_more.then_some(slots)
    }

    /// Returns the origin of a datagram; `None` if the datagram must be dropped.
    fn origin(&mut self, datagram: Datagram<'_>) -> Option<Origin> {
        let is_member = match &mut self.sources {
            None => false,
            Some(sources) => match sources.source(datagram.source, self.now) {
                Source::Member => true,
                Source::Stranger => false,
                Source::Forged => {
                    self.losses.forged += 1;
                    if let Some(judge) = &mut self.judge {
                        judge.dropped(datagram);
                    }
                    return None;
                }
            },
        };
        let verdict = self.judge.as_mut().and_then(|judge| judge.judge(datagram));
        Some(Origin { is_member, verdict, is_marked: false })
    }

    /// Forwards a datagram for another member. Returns false if the datagram is for this member.
    fn forward(&mut self, datagram: Datagram<'_>, origin: Origin) -> bool {
        let Some(relay) = &mut self.relay else { return false };
        let owner = relay.owner(datagram);
        if let Some(owner) = owner {
            relay.hand_on(owner, datagram, origin);
        }
        owner.is_some()
    }
}
