//! Congestion control for the packets that travel in one direction between two hosts.
//!
//! A window bounds the number of packets in flight. Above a target for the round-trip time it shrinks, at most by half and
//! once per round trip, and below the target it grows. The method is taken from Swift (Kumar et al., SIGCOMM 2020), which is
//! designed for RPC over a software transport. The *shortest* of the last round trips is compared with the target, because
//! hosts that share their cores delay single packets by milliseconds. A loss or an ECN mark also shrinks the window. A loss
//! shrinks it less if the round trips show no queue.
//!
//! The target is the base, which is the round trip without queues, plus an allowed queueing delay.
//!
//! | round trip | base |
//! |---|---|
//! | under 2 ms | the shortest of the last 10 to 20 s, at most 100 us |
//! | 2 ms or more | the shortest of the last 10 to 20 s |
//!
//! With the limit of 100 us, a sender that starts behind a full queue does not get a larger share than others in a data
//! centre.
//!
//! Packets are paced if the round trip is a millisecond or more. They are sent at two windows per round trip while the
//! window doubles and at 1.2 windows later, in bursts of at most a millisecond. A window of less than one packet is a pause
//! between packets. If the queue stays although the window is at its minimum, it is attributed to other traffic, such as
//! loss-based TCP. The target then grows until the window gets a share, and shrinks again every 256 rounds, or sooner
//! without a queue.

#[cfg(test)]
mod tests;

use super::Time;
use core::ops::RangeInclusive;

/// Queueing delay that the target allows for a large window, in nanoseconds.
const QUEUE_NS: f64 = 300_000.0;
/// Divisor of the base for the queueing delay allowed on long paths. Applies if the result exceeds [`QUEUE_NS`].
const FAR_QUEUE_PART: f64 = 1.0;
/// Additional queueing delay allowed for a window of one packet, in nanoseconds. It falls with the square root of the
/// window, so that many senders with small windows get equal shares.
const SMALL_WINDOW_NS: f64 = 300_000.0;
/// Maximum queueing delay that the target allows because of other traffic, in nanoseconds.
const QUEUE_MAX_NS: f64 = 200_000_000.0;
/// Shortest round trip, in nanoseconds, for which the base is not limited to [`NEAR_BASE_NS`].
const FAR_NS: u64 = 2_000_000;
/// Maximum base of a shorter round trip, in nanoseconds.
const NEAR_BASE_NS: u64 = 100_000;
/// Half of the maximum time for which the shortest round trip is kept, in nanoseconds.
const BASE_EPOCH_NS: u64 = 10_000_000_000;
/// Size of the first window, in bytes, similar to TCP (RFC 6928), and its limits in packets.
const FIRST_WINDOW_BYTES: u32 = 16 << 10;
const FIRST_WINDOW: RangeInclusive<u32> = 2..=8;
/// Minimum window, in packets.
const LEAST_WINDOW: f64 = 0.25;
/// Growth of the window per round trip, in packets. It doubles every 8 rounds of growth, up to an eighth of the window.
const STEP: f64 = 0.25;
const ROUNDS_PER_DOUBLING: i32 = 8;
/// Divisor of the distance to the ceiling for the maximum growth of the window in a round trip.
const CEILING_PART: f64 = 8.0;
/// Minimum round trip of paced paths, and the burst that pacing permits, both in nanoseconds.
const BURST_NS: f64 = 1_000_000.0;
/// Multiple of the base that a round trip may exceed by [`QUEUE_NS`] before the window stops doubling (RFC 9406).
const START_DELAY: f64 = 1.125;
/// Pace in windows per round trip, while the window doubles and later. Both exceed 1, so that the window remains the limit.
/// Linux uses the same ratios for TCP.
const START_PACE: f64 = 2.0;
const PACE: f64 = 1.2;
/// Factors by which the window shrinks: after doubling, after a loss with and without a queue, and after a
/// mark (RFC 8511).
const START_CUT: f64 = 0.5;
const LOSS_CUT: f64 = 0.7;
const RANDOM_LOSS_CUT: f64 = 0.9;
const MARK_CUT: f64 = 0.85;
/// Minimum number of round trips measured in a round, for a window of two packets or more.
const SAMPLES: u32 = 4;
/// Number of rounds at the minimum window after which the queue is attributed to other traffic.
const ROUNDS_AT_LEAST: u32 = 24;
/// Shortest round trip, in nanoseconds, that is attributed to another route after some rounds at the minimum window, and the
/// number of these rounds.
const ROUTE_NS: u64 = 5_000_000;
const ROUNDS_OF_ROUTE: u32 = 4;
/// Number of rounds after which a target raised for other traffic shrinks.
const ROUNDS_OF_TARGET: u32 = 256;

/// The window for one direction of a path. Times are in nanoseconds, windows in packets.
#[derive(Debug, Clone)]
pub struct Congestion {
    window: f64,
    in_flight: u32,
    /// Shortest round trips in this epoch and in the previous one.
    base_ns: [u64; 2],
    epoch: Option<Time>,
    smoothed_ns: f64,
    /// Shortest round trip in this round, and the number of samples.
    shortest_ns: u64,
    samples: u32,
    round_end: Time,
    /// Queueing delay attributed to other traffic, or 0.
    kept_ns: f64,
    /// True before the first sign of congestion, while the window doubles each round trip.
    is_starting: bool,
    /// True if something waited for the window in this round, and in the previous one.
    is_limiting: bool,
    was_limiting: bool,
    /// True if the last round was above the target.
    is_over: bool,
    /// Number of successive rounds of growth.
    grown: i32,
    /// Window at the last loss or mark, or at the end of doubling. Growth is slow near this window, which is close to the
    /// path's capacity, as in CUBIC (RFC 9438).
    ceiling: f64,
    rounds_at_least: u32,
    rounds_of_target: u32,
    /// Time before which a loss or a mark does not shrink the window again.
    next_cut: Time,
    /// Time at which the next packet would be sent at the exact pace.
    next_send: Time,
}

impl Congestion {
    /// Creates the window for a path with an MTU of `mtu` bytes.
    #[must_use]
    pub fn new(mtu: u32) -> Self {
        let first = (FIRST_WINDOW_BYTES / mtu.max(1)).clamp(*FIRST_WINDOW.start(), *FIRST_WINDOW.end());
        Self {
            window: f64::from(first),
            in_flight: 0,
            base_ns: [u64::MAX; 2],
            epoch: None,
            smoothed_ns: 0.0,
            shortest_ns: u64::MAX,
            samples: 0,
            round_end: Time(0),
            kept_ns: 0.0,
            is_starting: true,
            is_limiting: false,
            was_limiting: false,
            is_over: false,
            grown: 0,
            ceiling: 0.0,
            rounds_at_least: 0,
            rounds_of_target: 0,
            next_cut: Time(0),
            next_send: Time(0),
        }
    }

    /// Returns the number of packets that may be sent now.
    #[must_use]
    pub fn room(&self, now: Time) -> u32 {
        let Some(interval_ns) = self.interval_ns() else { return self.window_room() };
        if now >= self.next_send {
            return self.window_room().min(self.burst());
        }
        let left_ns = self.ahead_ns() - to_f64(self.next_send.since(now));
        self.window_room().min(whole(left_ns / interval_ns))
    }

    /// Returns the number of packets that fit in the window, regardless of the pace.
    #[must_use]
    pub fn window_room(&self) -> u32 {
        if self.window < 1.0 {
            return u32::from(self.in_flight == 0);
        }
        self.whole_window().saturating_sub(self.in_flight)
    }

    /// Returns the number of packets that may be sent at once, at least 1.
    #[must_use]
    pub fn burst(&self) -> u32 {
        self.interval_ns().map_or(u32::MAX, |interval_ns| whole(self.ahead_ns() / interval_ns).max(1))
    }

    /// Returns the interval between paced packets. `None` for short round trips, whose windows are sent as short bursts.
    fn interval_ns(&self) -> Option<f64> {
        if self.window < 1.0 {
            return Some(self.smoothed_ns / self.window);
        }
        let pace = if self.is_starting { START_PACE } else { PACE };
        (self.smoothed_ns >= BURST_NS).then(|| self.smoothed_ns / (self.window * pace))
    }

    /// Returns the time by which packets may be sent ahead of the pace.
    fn ahead_ns(&self) -> f64 {
        if self.window < 1.0 { 0.0 } else { BURST_NS }
    }

    /// Returns the window in whole packets, at least 1.
    #[must_use]
    pub fn whole_window(&self) -> u32 {
        whole(self.window).max(1)
    }

    /// Returns the number of packets in flight.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Returns the time at which the pace admits half a burst, or one packet. `None` if the window is full, or if the pace
    /// already admits them.
    #[must_use]
    pub fn pause_end(&self, now: Time) -> Option<Time> {
        let interval_ns = self.interval_ns().filter(|_| self.window_room() > 0)?;
        let early_ns = (self.ahead_ns() - interval_ns).clamp(0.0, self.ahead_ns() / 2.0);
        let end = Time(self.next_send.0.saturating_sub(nanoseconds(early_ns)));
        (end > now).then_some(end)
    }

    /// Records that the window limits what is sent.
    pub fn limits(&mut self) {
        self.is_limiting = true;
    }

    /// Records that packets wait. Packets that wait only for the pace are not limited by the window, and an unused window
    /// must not grow.
    pub fn waits(&mut self, now: Time) {
        if self.window < 1.0 || self.pause_end(now).is_none() {
            self.limits();
        }
    }

    /// Changes a sender's number of packets in flight from `before` to `after`. An increase is the number of packets sent
    /// now.
    pub fn replace(&mut self, before: u32, after: u32, now: Time) {
        self.in_flight = (self.in_flight + after).saturating_sub(before);
        if let Some(interval_ns) = self.interval_ns().filter(|_| after > before) {
            let sent_ns = interval_ns * f64::from(after - before);
            // Packets whose interval exceeds a burst cannot be sent ahead. Late timers would therefore reduce the rate, and a
            // window that is not used up does not grow. Longer delays are pauses of the sender, not of the timers.
            let late_ns = if self.window >= 1.0 && interval_ns > BURST_NS { interval_ns / 2.0 } else { 0.0 };
            let is_late = self.next_send.plus_ns(nanoseconds(late_ns)) >= now;
            let earliest = if is_late { self.next_send } else { now };
            self.next_send = earliest.plus_ns(nanoseconds(sent_ns));
        }
    }

    /// Records that packets were acknowledged, and the round trip of one of them if it was measured. The window grows to at
    /// most `most` packets.
    pub fn acknowledged(&mut self, packets: u32, round_trip_ns: Option<u64>, most: u32, now: Time) {
        if let Some(sample) = round_trip_ns {
            self.measure(sample, now);
        }
        let needed = if self.window < 2.0 { 1 } else { SAMPLES };
        if now >= self.round_end && self.samples >= needed {
            self.judge(now);
        }
        self.grow(packets, most);
    }

    /// Records that packets were lost.
    pub fn lost(&mut self, now: Time) {
        let has_queue = self.samples == 0 || self.shortest() > self.base() + self.queue_target() / 2.0;
        self.cut(if has_queue { LOSS_CUT } else { RANDOM_LOSS_CUT }, now);
    }

    /// Records that the network marked a packet because of a long queue.
    pub fn marked(&mut self, now: Time) {
        self.cut(MARK_CUT, now);
    }

    /// Shrinks the window, at most once per round trip. The first cut after doubling is the largest.
    fn cut(&mut self, factor: f64, now: Time) {
        self.grown = 0;
        if now >= self.next_cut {
            self.next_cut = now.plus_ns(nanoseconds(self.smoothed_ns));
            let was_starting = std::mem::replace(&mut self.is_starting, false);
            self.ceiling = self.window;
            self.shrink(if was_starting { START_CUT } else { factor });
        }
    }

    fn measure(&mut self, sample: u64, now: Time) {
        let epoch = *self.epoch.get_or_insert(now);
        if now.since(epoch) > BASE_EPOCH_NS {
            self.base_ns = [u64::MAX, self.base_ns[0]];
            self.epoch = Some(now);
        }
        self.base_ns[0] = self.base_ns[0].min(sample);
        let sample_ns = to_f64(sample);
        self.smoothed_ns +=
            (sample_ns - self.smoothed_ns) * if self.smoothed_ns == 0.0 { 1.0 } else { 0.125 };
        self.shortest_ns = if self.samples == 0 { sample } else { self.shortest_ns.min(sample) };
        self.samples += 1;
    }

    /// Ends a round by comparing its shortest round trip with the target.
    fn judge(&mut self, now: Time) {
        let over = self.shortest() - self.base() - self.queue_target();
        self.is_over = over > 0.0;
        if self.is_starting && self.shortest() > self.base() * START_DELAY + QUEUE_NS {
            self.is_starting = false;
            self.ceiling = self.window;
        }
        let is_kept = self.kept_ns > 0.0;
        if self.is_over {
            self.is_starting = false;
            self.grown = 0;
            if is_kept || self.window <= LEAST_WINDOW {
                self.rounds_at_least += 1;
            } else {
                self.rounds_at_least = 0;
            }
            if self.rounds_at_least >= ROUNDS_OF_ROUTE && !is_kept && self.shortest_ns >= ROUTE_NS {
                self.rounds_at_least = 0;
                self.base_ns = [self.shortest_ns; 2];
            } else if self.rounds_at_least >= ROUNDS_AT_LEAST {
                self.rounds_at_least = 0;
                self.kept_ns = (self.kept_ns.max(QUEUE_NS) * 1.5).min(QUEUE_MAX_NS);
            }
            self.shrink((1.0 - 0.8 * over / self.shortest()).max(0.5));
        } else {
            self.rounds_at_least = if is_kept { self.rounds_at_least.saturating_sub(1) } else { 0 };
            self.grown += i32::from(self.is_limiting);
        }
        if is_kept {
            let is_empty = self.shortest() < self.base() + QUEUE_NS;
            self.rounds_of_target += if is_empty { 16 } else { 1 };
            if self.rounds_of_target >= ROUNDS_OF_TARGET {
                self.rounds_of_target = 0;
                self.kept_ns /= 1.5;
                if self.kept_ns <= QUEUE_NS {
                    self.kept_ns = 0.0;
                }
            }
        }
        self.was_limiting = std::mem::take(&mut self.is_limiting);
        self.samples = 0;
        self.round_end = now.plus_ns(nanoseconds(self.smoothed_ns));
    }

    fn grow(&mut self, packets: u32, most: u32) {
        let is_over =
            self.is_over || self.samples > 0 && self.shortest() >= self.base() + self.queue_target();
        if is_over || !(self.is_limiting || self.was_limiting) || packets == 0 {
            return;
        }
        let packets = f64::from(packets);
        if self.is_starting {
            self.window += packets;
        } else {
            let doubled = STEP * 2_f64.powi((self.grown / ROUNDS_PER_DOUBLING).min(10));
            let below = self.ceiling - self.window;
            let near = if below > 0.0 { below / CEILING_PART } else { f64::INFINITY };
            let step = doubled.min(near).min(self.window / 8.0).max(STEP);
            self.window += step * packets / self.window.max(1.0);
            if below > 0.0 && self.window >= self.ceiling {
                self.grown = 0;
            }
        }
        self.window = self.window.min(f64::from(most.max(1)));
    }

    fn shrink(&mut self, factor: f64) {
        self.window = (self.window * factor).max(LEAST_WINDOW);
    }

    /// Returns the round-trip time without queues, in nanoseconds.
    fn base(&self) -> f64 {
        let [now, before] = self.base_ns;
        let shortest = now.min(before);
        to_f64(if shortest < FAR_NS { shortest.min(NEAR_BASE_NS) } else { shortest })
    }

    fn shortest(&self) -> f64 {
        to_f64(self.shortest_ns)
    }

    fn queue_target(&self) -> f64 {
        QUEUE_NS.max(self.base() / FAR_QUEUE_PART).max(self.kept_ns)
            + SMALL_WINDOW_NS / self.window.max(1.0).sqrt()
    }
}

/// Rounds a number of packets down. The number is far below `u32::MAX`.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "casts of floats saturate")]
fn whole(packets: f64) -> u32 {
    packets as u32
}

/// Converts nanoseconds to a float. They are far below 2^53.
#[expect(clippy::cast_precision_loss, reason = "2^53 ns are 104 days")]
fn to_f64(ns: u64) -> f64 {
    ns as f64
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "casts of floats saturate")]
fn nanoseconds(ns: f64) -> u64 {
    ns as u64
}
