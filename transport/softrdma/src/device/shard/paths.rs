//! Congestion control of the paths to other hosts.
//!
//! Owns a window for each direction of a path, and the QPs that wait for room in a window. All QPs of the
//! shard with the same two addresses share the windows of a path. Acknowledgements report on the requests
//! that a QP sends. Responses to its READs are not acknowledged, so the number of outstanding responses is
//! limited instead. Packets that do not leave the host are not controlled.

use super::qp::route::Route;
use slab::Slab;
use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use trunkline_machine::mutant;
use trunkline_roce::engine::{Allowance, Congestion, InFlight, Requester};
use trunkline_verbs::{ReadAllowance, Time};

/// Maximum window in packets. The window of a QP is smaller, to fit the buffers of its peer.
const MAX_WINDOW: u32 = 1024;
/// Number of parts of a window. A part is the length of a READ's piece, and of a run of packets without an
/// ACK request.
const PARTS: u32 = 4;
/// Maximum window, in packets, that counts as small. Small windows grow when READs fill them.
const SMALL_WINDOW: u32 = 2 * PARTS;

/// Maximum number of packets in flight for a QP whose peer has not answered yet, or no longer answers. These packets do
/// not count towards the window of the path.
const ON_TRIAL: InFlight = InFlight { requests: 2, responses: 8 };

/// Path of a QP's packets.
#[derive(Debug, Clone, Copy, Default)]
enum Place {
    /// Decided when the QP is next admitted.
    #[default]
    Undecided,
    /// Without congestion control.
    Free,
    /// Index of the path in [`Paths::paths`].
    Path(usize),
}

/// A QP's use of a path.
#[derive(Debug, Default)]
pub(super) struct OnPath {
    place: Place,
    /// Packets of the QP in flight that count towards the windows of the path.
    counted: InFlight,
    /// End of the pause for which the QP waits; `None` without a pause.
    pub(super) pause_end: Option<Time>,
}

impl OnPath {
    /// Returns true if the QP's packets are under congestion control.
    #[inline]
    pub(super) fn is_controlled(&self) -> bool {
        matches!(self.place, Place::Path(_))
    }
}

/// The window of one direction, and the numbers of QPs that wait for room in it.
#[derive(Debug)]
struct Direction {
    congestion: Congestion,
    waiting: VecDeque<u32>,
}

impl Direction {
    fn new(mtu: u32) -> Self {
        Self { congestion: Congestion::new(mtu), waiting: VecDeque::new() }
    }

    /// Returns the number of packets that a QP may send, which is 0 while another QP has waited longer.
    fn room_of(&self, qp_number: u32, now: Time) -> u32 {
        if self.is_turn_of(qp_number) { self.congestion.room(now) } else { 0 }
    }

    fn is_turn_of(&self, qp_number: u32) -> bool {
        self.waiting.front().is_none_or(|first| *first == qp_number)
    }

    /// Returns a part of the window, at most half a burst.
    fn part(&self) -> u32 {
        (self.congestion.whole_window() / PARTS).min(self.congestion.burst() / 2).max(1)
    }

    /// Records that a QP was served. A QP that has sent and still waits moves to the end of the queue.
    fn served(&mut self, qp_number: u32, has_sent: bool, waits: bool, now: Time) {
        if (has_sent || !waits) && !self.waiting.is_empty() {
            self.waiting.retain(|number| *number != qp_number);
        }
        if waits {
            self.congestion.waits(now);
            if !self.waiting.contains(&qp_number) {
                self.waiting.push_back(qp_number);
            }
        }
    }

    /// Returns the QP that has waited longest, if the window has room for it or a pause has to end first.
    fn released(&self, now: Time) -> Option<u32> {
        let first = *self.waiting.front()?;
        let congestion = &self.congestion;
        (congestion.room(now) > 0 || congestion.pause_end(now).is_some()).then_some(first)
    }
}

#[derive(Debug)]
struct Path {
    addresses: (IpAddr, SocketAddr),
    qps: usize,
    requests: Direction,
    responses: Direction,
    /// Number of QPs with responses in flight.
    readers: u32,
}

impl Path {
    /// Returns the unused part of a QP's share of the response window. `own` is the number of the QP's responses in
    /// flight. Also records whether the window limits its QPs, since an unused window must not grow: it would later be
    /// sent as a burst.
    fn share(&mut self, own: u32) -> u32 {
        let share = self.responses.congestion.whole_window() / self.readers.max(1);
        self.record_limit();
        share.saturating_sub(own)
    }

    /// Records, when READs are sent, that a small window limits its QPs. [`Path::share`] is called only after a
    /// response has made room, so a window of one packet would never grow.
    fn reads_sent(&mut self) {
        if self.responses.congestion.whole_window() <= SMALL_WINDOW {
            self.record_limit();
        }
    }

    /// Records that the window limits its QPs, if further READs do not fit.
    fn record_limit(&mut self) {
        let readers = self.readers.max(1);
        let usable = self.responses.congestion.whole_window() / readers * readers;
        if self.responses.congestion.in_flight() + self.responses.part() > usable {
            self.responses.congestion.limits();
        }
    }
}

/// The paths of a shard.
#[derive(Debug, Default)]
pub(super) struct Paths {
    paths: Slab<Path>,
    /// Index of each path, by local address and by the peer's address and UDP port. The port is part of the key because
    /// another port may belong to another user.
    numbers: BTreeMap<(IpAddr, SocketAddr), usize>,
    /// QPs that waited and may be served.
    released: VecDeque<u32>,
}

impl Paths {
    /// Grants room on the path to the requester of a QP. Only the first waiting QP gets room.
    #[inline]
    pub(super) fn admit(
        &mut self,
        qp: &mut OnPath,
        qp_number: u32,
        route: &Route,
        requester: &mut Requester,
        now: Time,
    ) {
        if let Place::Undecided = qp.place {
            self.join(qp, route, requester.mtu());
        }
        let Place::Path(number) = qp.place else { return };
        if requester.is_on_trial() {
            let in_flight = requester.in_flight();
            requester.admit(Some(Allowance {
                requests: ON_TRIAL.requests.saturating_sub(in_flight.requests),
                responses: ON_TRIAL.responses.saturating_sub(in_flight.responses),
                is_idle: in_flight.responses == 0,
                ack_every: 1,
                read_piece: ON_TRIAL.responses,
            }));
            return;
        }
        let Path { requests, responses, .. } = &self.paths[number];
        requester.admit(Some(Allowance {
            requests: requests.room_of(qp_number, now),
            responses: responses.room_of(qp_number, now),
            is_idle: responses.congestion.in_flight() == 0,
            ack_every: requests.part(),
            read_piece: responses.part(),
        }));
    }

    /// Returns the amount that new READs of a QP may request: the room of the window without pacing, limited
    /// to the QP's share. `None` on a path without congestion control.
    pub(super) fn read_allowance(
        &mut self,
        qp: &mut OnPath,
        qp_number: u32,
        route: &Route,
        requester: &mut Requester,
        now: Time,
    ) -> Option<ReadAllowance> {
        let Place::Path(number) = qp.place else { return None };
        if mutant!(reads_have_no_allowance) {
            return None;
        }
        self.admit(qp, qp_number, route, requester, now);
        let path = &mut self.paths[number];
        let share = path.share(qp.counted.responses);
        let responses = &path.responses;
        let room = if responses.is_turn_of(qp_number) { responses.congestion.window_room() } else { 0 };
        Some(requester.read_allowance(room.min(share)))
    }

    /// Adds a QP to the path of its packets.
    fn join(&mut self, qp: &mut OnPath, route: &Route, mtu: u32) {
        if !route.is_between_hosts() || mutant!(paths_have_no_windows) {
            qp.place = Place::Free;
            return;
        }
        let addresses = (route.source().ip(), route.destination());
        let paths = &mut self.paths;
        let number = *self.numbers.entry(addresses).or_insert_with(|| {
            let (requests, responses) = (Direction::new(mtu), Direction::new(mtu));
            paths.insert(Path { addresses, qps: 0, requests, responses, readers: 0 })
        });
        self.paths[number].qps += 1;
        qp.place = Place::Path(number);
    }

    /// Removes a QP from its path.
    pub(super) fn leave(&mut self, qp: &mut OnPath) {
        let OnPath { place: Place::Path(number), counted, .. } = std::mem::take(qp) else { return };
        let path = &mut self.paths[number];
        path.requests.congestion.replace(counted.requests, 0, Time(0));
        path.responses.congestion.replace(counted.responses, 0, Time(0));
        path.readers -= u32::from(counted.responses > 0);
        path.qps -= 1;
        // Other QPs may be waiting for the acknowledgement of this QP's packets.
        self.released.extend(path.requests.waiting.drain(..));
        self.released.extend(path.responses.waiting.drain(..));
        if path.qps == 0 {
            let path = self.paths.remove(number);
            self.numbers.remove(&path.addresses);
        }
    }

    /// Updates the path with a QP's acknowledged packets, and also with its sent packets if `was_served` is true.
    #[inline]
    pub(super) fn observe(
        &mut self,
        qp: &mut OnPath,
        qp_number: u32,
        requester: &mut Requester,
        was_served: bool,
        now: Time,
    ) {
        if let Place::Path(number) = qp.place {
            self.observe_path(number, qp, qp_number, requester, was_served, now);
        }
    }

    /// Records that the network marked requests of a QP, or responses to it.
    pub(super) fn marked(&mut self, qp: &OnPath, requests: bool, responses: bool, now: Time) {
        let Place::Path(number) = qp.place else { return };
        if mutant!(marks_are_ignored) {
            return;
        }
        let path = &mut self.paths[number];
        if requests {
            path.requests.congestion.marked(now);
        }
        if responses {
            path.responses.congestion.marked(now);
        }
    }

    fn observe_path(
        &mut self,
        number: usize,
        qp: &mut OnPath,
        qp_number: u32,
        requester: &mut Requester,
        was_served: bool,
        now: Time,
    ) {
        let path = &mut self.paths[number];
        let signals = requester.take_signals();
        let is_on_trial = requester.is_on_trial();
        let after = if is_on_trial { InFlight::default() } else { requester.in_flight() };
        let before = std::mem::replace(&mut qp.counted, after);
        let round_trip_ns = |is_read| {
            signals.measured.filter(|measured| measured.is_read == is_read).map(|of| of.round_trip_ns)
        };
        let most = if mutant!(windows_never_grow) { 1 } else { MAX_WINDOW };
        path.readers = path.readers + u32::from(after.responses > 0) - u32::from(before.responses > 0);
        path.requests.congestion.replace(before.requests, after.requests, now);
        path.responses.congestion.replace(before.responses, after.responses, now);
        if after.responses > before.responses {
            path.reads_sent();
        }
        let Path { requests, responses, .. } = path;
        requests.congestion.acknowledged(signals.acknowledged.requests, round_trip_ns(false), most, now);
        responses.congestion.acknowledged(signals.acknowledged.responses, round_trip_ns(true), most, now);
        if signals.lost_requests {
            requests.congestion.lost(now);
        }
        if signals.lost_responses {
            responses.congestion.lost(now);
        }
        if was_served {
            let is_held_back = requester.is_held_back() && !is_on_trial;
            let waits = |is_read| is_held_back && requester.is_reading() == is_read;
            requests.served(qp_number, after.requests > before.requests, waits(false), now);
            responses.served(qp_number, after.responses > before.responses, waits(true), now);
            qp.pause_end = match is_held_back {
                false => None,
                true if requester.is_reading() => responses.congestion.pause_end(now),
                true => requests.congestion.pause_end(now),
            };
            if is_held_back {
                return;
            }
        }
        self.released.extend([requests, responses].into_iter().filter_map(|way| way.released(now)));
    }

    /// Takes a QP that waited and may be served.
    #[inline]
    pub(super) fn next_released(&mut self) -> Option<u32> {
        self.released.pop_front()
    }

    /// Returns true if a QP that waited may be served.
    #[inline]
    pub(super) fn has_released(&self) -> bool {
        !self.released.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn direction(waiting: &[u32]) -> Direction {
        Direction { waiting: waiting.iter().copied().collect(), ..Direction::new(4096) }
    }

    #[test]
    fn window_is_shared_by_reading_qps() {
        let peer = SocketAddr::from(([192, 0, 2, 1], 4791));
        let [requests, responses] = [(); 2].map(|()| direction(&[]));
        let mut path = Path { addresses: (peer.ip(), peer), qps: 2, requests, responses, readers: 0 };
        assert_eq!(path.share(0), 4, "the whole window");
        path.readers = 2;
        assert_eq!([0, 1, 3].map(|own| path.share(own)), [2, 1, 0]);
    }

    #[test]
    fn window_grows_only_when_full_of_reads() {
        let asked: fn(&mut Path) = |path| {
            path.share(0);
        };
        for (in_flight, window) in [(3, 4), (4, 5)] {
            for record in [asked, Path::reads_sent] {
                let peer = SocketAddr::from(([192, 0, 2, 1], 4791));
                let [requests, responses] = [(); 2].map(|()| direction(&[]));
                let mut path = Path { addresses: (peer.ip(), peer), qps: 1, requests, responses, readers: 1 };
                path.responses.congestion.replace(0, in_flight, Time(0));
                record(&mut path);
                path.responses.congestion.acknowledged(1, None, MAX_WINDOW, Time(0));
                assert_eq!(path.responses.congestion.whole_window(), window);
            }
        }
    }

    #[test]
    fn qps_get_window_room_in_turn() {
        let mut way = direction(&[]);
        assert_eq!(way.room_of(7, Time(0)), 4, "nobody waits");
        way.served(7, true, true, Time(0));
        way.served(8, false, true, Time(0));
        way.congestion.replace(0, 4, Time(0));
        assert_eq!(way.released(Time(0)), None, "the window is full");
        way.congestion.replace(4, 1, Time(0));
        assert_eq!([7, 8].map(|qp| way.room_of(qp, Time(0))), [3, 0]);
        assert_eq!(way.released(Time(0)), Some(7));
        // QP 7 has sent and waits to send more, so QP 8 is next.
        way.served(7, true, true, Time(0));
        assert_eq!(([7, 8].map(|qp| way.room_of(qp, Time(0))), way.released(Time(0))), ([0, 3], Some(8)));
        // A QP that could not send keeps its position.
        way.served(8, false, true, Time(0));
        assert_eq!(way.released(Time(0)), Some(8));
        way.served(8, true, false, Time(0));
        assert_eq!(way.released(Time(0)), Some(7));
    }
}
