//! Smoothed round-trip time, for tail-loss probes.

use super::Time;
use trunkline_verbs::Psn;

/// A packet whose round trip is measured.
#[derive(Debug, Clone, Copy)]
struct Sample {
    psn: Psn,
    sent: Time,
    is_read: bool,
}

/// A measured round trip.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Measured {
    /// Time from sending a packet to its answer, in nanoseconds.
    pub round_trip_ns: u64,
    /// True if the answer is the first response to a READ or an atomic, false if it is an acknowledgement.
    pub is_read: bool,
}

/// Measures one packet at a time. A packet that was sent twice is not measured (Karn's rule).
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct RoundTrip {
    smoothed_ns: Option<u64>,
    /// Smoothed deviation of the round trips from `smoothed_ns`.
    variation_ns: u64,
    sample: Option<Sample>,
    measured: Option<Measured>,
}

impl RoundTrip {
    /// Records the first transmission of a packet that requests a response.
    #[inline]
    pub(super) fn sent(&mut self, psn: Psn, is_read: bool, now: Time) {
        self.sample.get_or_insert(Sample { psn, sent: now, is_read });
    }

    /// Discards the running measurement, because packets are sent again.
    pub(super) fn cancel(&mut self) {
        self.sample = None;
    }

    /// Records that everything before `una` is acknowledged. Returns true if this ends a measurement.
    pub(super) fn acknowledged(&mut self, una: Psn, now: Time) -> bool {
        let Some(sample) = self.sample.take_if(|sample| una.after(sample.psn) > 0) else { return false };
        let measured = now.since(sample.sent);
        self.measured = Some(Measured { round_trip_ns: measured, is_read: sample.is_read });
        // RFC 6298 §2: the smoothing factors are 1/8 for the round trip and 1/4 for its variation.
        let (smoothed, variation) = match self.smoothed_ns {
            None => (measured, measured / 2),
            Some(old) => {
                let variation = self.variation_ns;
                (old - old / 8 + measured / 8, variation - variation / 4 + old.abs_diff(measured) / 4)
            }
        };
        (self.smoothed_ns, self.variation_ns) = (Some(smoothed), variation);
        true
    }

    /// Records that the responses to `packets` PSNs have arrived, in any order. Returns true if this ends a measurement.
    pub(super) fn answered(&mut self, psn: Psn, packets: u32, now: Time) -> bool {
        self.is_sampled_in(psn, packets) && self.acknowledged(psn.plus(packets), now)
    }

    /// Discards the running measurement if its packet is one of those to be retransmitted.
    pub(super) fn cancel_in(&mut self, psn: Psn, packets: u32) {
        if self.is_sampled_in(psn, packets) {
            self.sample = None;
        }
    }

    /// Discards the running measurement if its packet comes before `una`.
    pub(super) fn cancel_before(&mut self, una: Psn) {
        self.sample = self.sample.filter(|sample| una.after(sample.psn) <= 0);
    }

    fn is_sampled_in(&self, psn: Psn, packets: u32) -> bool {
        let is_in = |sample: Sample| sample.psn.after(psn) >= 0 && psn.plus(packets).after(sample.psn) > 0;
        self.sample.is_some_and(is_in)
    }

    pub(super) fn take_measured(&mut self) -> Option<Measured> {
        self.measured.take()
    }

    /// Returns the time after which a response is late, or 0 before the first measurement (RFC 6298 §2.3). It is at least
    /// two round trips, as RFC 8985 §7.2 specifies for a probe.
    pub(super) fn timeout_ns(&self) -> u64 {
        let smoothed = self.smoothed_ns();
        smoothed.saturating_add(self.variation_ns.saturating_mul(4).max(smoothed))
    }

    /// Returns the smoothed round-trip time, or 0 before the first measurement.
    pub(super) fn smoothed_ns(&self) -> u64 {
        self.smoothed_ns.unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_packets_sent_once_are_measured() {
        let mut round_trip = RoundTrip::default();
        round_trip.sent(Psn::new(0xff_ffff), false, Time(100));
        round_trip.sent(Psn::new(0), false, Time(200));
        round_trip.acknowledged(Psn::new(0xff_ffff), Time(300));
        assert_eq!(round_trip.smoothed_ns(), 0);
        round_trip.acknowledged(Psn::new(0), Time(900));
        assert_eq!((round_trip.smoothed_ns(), round_trip.timeout_ns()), (800, 800 + 4 * 400));
        round_trip.sent(Psn::new(0), false, Time(1000));
        round_trip.cancel();
        round_trip.acknowledged(Psn::new(5), Time(9000));
        assert_eq!(round_trip.smoothed_ns(), 800);
        round_trip.sent(Psn::new(5), false, Time(10_000));
        round_trip.acknowledged(Psn::new(6), Time(10_000));
        assert_eq!((round_trip.smoothed_ns(), round_trip.timeout_ns()), (700, 700 + 4 * 500));
    }

    #[test]
    fn timeout_of_steady_path_is_two_round_trips() {
        let mut round_trip = RoundTrip::default();
        for step in 0..64 {
            round_trip.sent(Psn::new(step), false, Time(0));
            round_trip.acknowledged(Psn::new(step + 1), Time(8000));
        }
        assert_eq!(round_trip.timeout_ns(), 16_000);
    }
}
