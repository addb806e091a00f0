//! Windows of several senders at one bottleneck, a link with a queue that drops excess packets.

use super::*;
use std::collections::BTreeMap;
use std::time::Duration;

const MAX_WINDOW: u32 = 1024;
/// Time after which senders are judged.
const SETTLED: Time = Time(1_000_000_000);

#[derive(Debug, Clone, Copy)]
struct Link {
    /// Nanoseconds to send a packet.
    packet_ns: u64,
    /// Maximum number of packets in the queue.
    queue: u64,
    /// Round trip without a queue, in nanoseconds.
    round_trip_ns: u64,
    /// Maximum of a random delay at the hosts, in nanoseconds.
    noise_ns: u64,
    /// One packet in this many is lost at random; 0 for none.
    lost_of: u64,
}

/// A link of 200 Mbit/s, with packets of about 1 KiB and a queue of 60 kB.
const LINK: Link =
    Link { packet_ns: 44_000, queue: 54, round_trip_ns: 100_000, noise_ns: 20_000, lost_of: 0 };

/// A sender that always has packets to send.
trait Sender {
    fn may_send(&self, now: Time) -> bool;
    fn sent(&mut self, now: Time);
    fn acknowledged(&mut self, round_trip_ns: u64, now: Time);
    fn lost(&mut self, now: Time);
    fn pause_end(&self, now: Time) -> Option<Time>;
}

impl Sender for Congestion {
    fn may_send(&self, now: Time) -> bool {
        self.room(now) > 0
    }

    fn sent(&mut self, now: Time) {
        self.replace(0, 1, now);
        if self.room(now) == 0 {
            self.waits(now);
        }
    }

    fn acknowledged(&mut self, round_trip_ns: u64, now: Time) {
        self.replace(1, 0, now);
        Self::acknowledged(self, 1, Some(round_trip_ns), MAX_WINDOW, now);
    }

    fn lost(&mut self, now: Time) {
        self.replace(1, 0, now);
        Self::lost(self, now);
    }

    fn pause_end(&self, now: Time) -> Option<Time> {
        Self::pause_end(self, now)
    }
}

/// A sender with the window of RFC 5681, which grows until a packet is lost.
#[derive(Default)]
struct Reno {
    window: f64,
    in_flight: f64,
    has_lost: bool,
    next_cut: Time,
}

impl Sender for Reno {
    fn may_send(&self, _: Time) -> bool {
        self.in_flight < self.window.max(2.0)
    }

    fn sent(&mut self, _: Time) {
        self.in_flight += 1.0;
    }

    fn acknowledged(&mut self, _: u64, _: Time) {
        self.in_flight -= 1.0;
        self.window += if self.has_lost { 1.0 / self.window.max(1.0) } else { 1.0 };
    }

    fn lost(&mut self, now: Time) {
        self.in_flight -= 1.0;
        self.has_lost = true;
        if now >= self.next_cut {
            self.window /= 2.0;
            self.next_cut = now.plus_ns(3_000_000);
        }
    }

    fn pause_end(&self, _: Time) -> Option<Time> {
        None
    }
}

#[derive(Debug, Clone, Copy)]
enum Event {
    Begins,
    Arrives { sent: Time },
    IsLost,
}

/// Results after [`SETTLED`].
#[derive(Debug)]
struct Outcome {
    /// Packets that arrived, by sender.
    arrived: Vec<u64>,
    /// Share of the link's rate.
    used: f64,
    /// Share of packets dropped by the full queue, from the start.
    dropped: f64,
    /// Time from the last sender's start until it had four fifths of its share for 100 ms.
    joined: Option<Duration>,
}

impl Outcome {
    /// Jain's index of fairness: 1 if all are equal.
    fn fairness(&self) -> f64 {
        let arrived = self.arrived.iter().map(|packets| to_f64(*packets)).collect::<Vec<_>>();
        let square = |of: f64| of * of;
        square(arrived.iter().sum())
            / (to_f64(arrived.len() as u64) * arrived.iter().copied().map(square).sum::<f64>())
    }
}

/// Runs the senders for `seconds`. The last sender starts at `last`, and the others within the first 2 ms.
fn run(link: Link, mut senders: Vec<Box<dyn Sender>>, last: Time, seconds: u64) -> Outcome {
    let mut random = fastrand::Rng::with_seed(7);
    let mut events = BTreeMap::new();
    let mut serial = 0;
    let mut schedule = |events: &mut BTreeMap<_, _>, at: Time, sender: usize, event: Event| {
        serial += 1;
        events.insert((at, serial), (sender, event));
    };
    let count = senders.len();
    for sender in 0..count {
        let at = if sender + 1 == count { last } else { Time(random.u64(0..2_000_000)) };
        schedule(&mut events, at, sender, Event::Begins);
    }
    let settled = SETTLED.max(last.plus_ns(SETTLED.0));
    let end = Time(seconds * 1_000_000_000);
    let (mut free, mut sent, mut dropped) = (Time(0), 0_u64, 0_u64);
    let (mut arrived, mut lately) = (vec![0_u64; count], vec![0_u64; count]);
    let (mut lately_until, mut joined) = (last, None);
    while let Some(((now, _), (sender, event))) = events.pop_first()
        && now < end
    {
        let own = &mut senders[sender];
        match event {
            Event::Begins => {}
            Event::Arrives { sent } => {
                own.acknowledged(now.since(sent), now);
                arrived[sender] += u64::from(now > settled);
                lately[sender] += 1;
            }
            Event::IsLost => own.lost(now),
        }
        if now > lately_until {
            let share = lately.iter().sum::<u64>() / u64::try_from(count).unwrap();
            if now > last && joined.is_none() && lately[count - 1] * 5 >= share * 4 {
                joined = Some(Duration::from_nanos(now.since(last)));
            }
            lately.fill(0);
            lately_until = now.plus_ns(100_000_000);
        }
        while own.may_send(now) {
            own.sent(now);
            sent += 1;
            let waiting = free.since(now) / link.packet_ns;
            let is_lost = link.lost_of > 0 && random.u64(0..link.lost_of) == 0;
            if waiting + 1 > link.queue || is_lost {
                dropped += u64::from(!is_lost);
                let at = now.plus_ns(link.round_trip_ns + waiting * link.packet_ns);
                schedule(&mut events, at, sender, Event::IsLost);
            } else {
                free = free.max(now).plus_ns(link.packet_ns);
                let at = free.plus_ns(link.round_trip_ns + random.u64(0..=link.noise_ns));
                schedule(&mut events, at, sender, Event::Arrives { sent: now });
            }
        }
        if let Some(at) = own.pause_end(now) {
            schedule(&mut events, at, sender, Event::Begins);
        }
    }
    let used = to_f64(arrived.iter().sum::<u64>() * link.packet_ns) / to_f64(end.since(settled));
    Outcome { arrived, used, dropped: to_f64(dropped) / to_f64(sent), joined }
}

fn ours(count: usize) -> Vec<Box<dyn Sender>> {
    (0..count).map(|_| Box::new(Congestion::new(1024)) as Box<dyn Sender>).collect()
}

#[test]
fn senders_fill_and_share_link_with_less_than_0_3_percent_loss() {
    for (count, link) in [
        (1, LINK),
        (4, LINK),
        (8, Link { queue: 27, ..LINK }),
        (16, Link { queue: 27, ..LINK }),
        (8, Link { noise_ns: 300_000, ..LINK }),
        (4, Link { round_trip_ns: 20_000_000, queue: 400, ..LINK }),
        (1, Link { packet_ns: 3_300, round_trip_ns: 30_000, queue: 120, ..LINK }),
    ] {
        let outcome = run(link, ours(count), Time(0), 20);
        assert!(outcome.used > 0.95, "{count} at {link:?}: {outcome:?}");
        assert!(outcome.dropped < 0.003, "{count} at {link:?}: {outcome:?}");
        assert!(outcome.fairness() > 0.95, "{count} at {link:?}: {outcome:?}");
    }
}

#[test]
fn sender_joining_behind_full_queue_gets_fair_share() {
    for count in [2, 4, 16] {
        let outcome = run(LINK, ours(count), Time(1_000_000_000), 6);
        assert!(outcome.joined.is_some_and(|after| after < Duration::from_secs(2)), "{count}: {outcome:?}");
        assert!(outcome.fairness() > 0.95, "{count}: {outcome:?}");
    }
}

#[test]
fn congestion_control_shares_link_with_reno() {
    for (link, most) in [(LINK, 3.0), (Link { packet_ns: 8_800, queue: 450, ..LINK }, 3.0)] {
        let senders: Vec<Box<dyn Sender>> = vec![Box::new(Congestion::new(1024)), Box::new(Reno::default())];
        let outcome = run(link, senders, Time(0), 20);
        let ratio = to_f64(outcome.arrived[1]) / to_f64(outcome.arrived[0]);
        assert!((1.0 / most..most).contains(&ratio), "{link:?}: {ratio} {outcome:?}");
    }
}

#[test]
fn one_percent_random_loss_keeps_half_of_throughput() {
    let link = Link { packet_ns: 8_800, queue: 300, lost_of: 100, ..LINK };
    let outcome = run(link, ours(1), Time(0), 3);
    assert!(outcome.used > 0.5, "{outcome:?}");
}

#[test]
fn mark_shrinks_window_once_per_round_trip_and_ends_start() {
    let mut congestion = Congestion { window: 100.0, smoothed_ns: 1000.0, ..Congestion::new(1024) };
    let windows = [5, 1004, 1005, 2005].map(|now| {
        congestion.marked(Time(now));
        congestion.whole_window()
    });
    assert_eq!(windows, [50, 50, 42, 36]);
    congestion.lost(Time(2006));
    congestion.limits();
    congestion.acknowledged(10, None, MAX_WINDOW, Time(2007));
    assert_eq!(congestion.whole_window(), 36, "one cut for a mark and a loss, and no doubling");
}

/// Acknowledges one window of packets while the window limits sending. Returns the time after the round.
fn round(congestion: &mut Congestion, round_trip_ns: u64, now: Time) -> Time {
    for _ in 0..congestion.whole_window() {
        congestion.limits();
        congestion.acknowledged(1, Some(round_trip_ns), MAX_WINDOW, now);
    }
    now.plus_ns(round_trip_ns)
}

#[test]
fn window_grows_slowly_near_size_of_last_loss() {
    const ROUND_TRIP: u64 = 10_000_000;
    let mut congestion = Congestion { window: 100.0, is_starting: false, ..Congestion::new(1024) };
    let mut now = round(&mut congestion, ROUND_TRIP, Time(1));
    congestion.lost(now);
    let mut sizes = Vec::new();
    while congestion.window < 200.0 {
        now = round(&mut congestion, ROUND_TRIP, now);
        sizes.push(congestion.whole_window());
    }
    let rounds = |range: RangeInclusive<u32>| sizes.iter().filter(|size| range.contains(size)).count();
    assert!(rounds(95..=99) > 8 && rounds(100..=105) > 8, "{sizes:?}");
    assert!(rounds(130..=200) < 20, "growth accelerates again: {sizes:?}");
}

#[test]
fn window_stops_doubling_when_round_trip_grows() {
    let mut congestion = Congestion::new(1024);
    let mut now = Time(1);
    for _ in 0..4 {
        now = round(&mut congestion, 10_000_000, now);
    }
    let before = congestion.window;
    for _ in 0..8 {
        now = round(&mut congestion, 12_000_000, now);
    }
    // The first of these rounds is judged by earlier round trips.
    assert!(before > 100.0 && congestion.window < 2.5 * before, "{before} {}", congestion.window);
}

#[test]
fn window_below_one_packet_is_pause() {
    let mut congestion =
        Congestion { window: LEAST_WINDOW, smoothed_ns: 1_000_000.0, ..Congestion::new(1024) };
    assert_eq!(congestion.room(Time(5)), 1);
    congestion.replace(0, 1, Time(5));
    assert_eq!((congestion.room(Time(4_000_005)), congestion.pause_end(Time(10))), (0, None), "in flight");
    congestion.replace(1, 0, Time(10));
    assert_eq!(congestion.pause_end(Time(10)), Some(Time(4_000_005)));
    assert_eq!([4_000_004, 4_000_005].map(|now| congestion.room(Time(now))), [0, 1]);
}

#[test]
fn window_of_long_round_trip_is_sent_in_millisecond_bursts() {
    let long = Congestion { window: 100.0, smoothed_ns: 10_000_000.0, ..Congestion::new(1024) };
    // A packet takes 50 us at twice the rate of the window, and 83 us after the start.
    assert_eq!(Congestion { is_starting: false, ..long.clone() }.burst(), 12);
    let mut congestion = long.clone();
    assert_eq!((congestion.room(Time(5)), congestion.window_room()), (20, 100));
    congestion.replace(0, 20, Time(5));
    assert_eq!((congestion.room(Time(5)), congestion.window_room()), (0, 80));
    assert_eq!(congestion.pause_end(Time(5)), Some(Time(500_005)));
    congestion.waits(Time(5));
    assert!(!congestion.is_limiting, "only the pace limits");
    assert_eq!((congestion.room(Time(500_005)), congestion.pause_end(Time(500_005))), (10, None));
    // Unused room later amounts to at most one burst.
    assert_eq!(congestion.room(Time(50_000_000)), 20);
    let short = Congestion { smoothed_ns: 900_000.0, ..long };
    assert_eq!((short.room(Time(5)), short.burst()), (100, u32::MAX));
}

/// If the pace lost the time by which timers are late, a small window would not be used up, and so would not grow.
#[test]
fn small_window_of_far_path_grows_although_timers_are_late() {
    const ROUND_TRIP_NS: u64 = 10_000_000;
    const LATE_NS: u64 = 500_000;
    let mut congestion = Congestion::new(4096);
    congestion.acknowledged(0, Some(ROUND_TRIP_NS), MAX_WINDOW, Time(0));
    congestion.lost(Time(0));
    let (mut now, mut acknowledgements) = (Time(0), std::collections::VecDeque::new());
    while now < Time(3_000_000_000) {
        while let Some(sent) =
            acknowledgements.front().copied().filter(|sent: &Time| sent.plus_ns(ROUND_TRIP_NS) <= now)
        {
            acknowledgements.pop_front();
            congestion.replace(1, 0, now);
            let at = sent.plus_ns(ROUND_TRIP_NS);
            congestion.acknowledged(1, Some(ROUND_TRIP_NS), MAX_WINDOW, at);
        }
        while congestion.room(now) > 0 {
            congestion.replace(0, 1, now);
            acknowledgements.push_back(now);
        }
        congestion.waits(now);
        let next = acknowledgements.front().map(|sent| sent.plus_ns(ROUND_TRIP_NS));
        now = congestion.pause_end(now).map(|end| end.plus_ns(LATE_NS)).or(next).expect("packets in flight");
    }
    assert!(congestion.whole_window() > 20, "{}", congestion.window);
}
