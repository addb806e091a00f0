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
    /// Time from a packet to its answer, in nanoseconds.
    pub round_trip_ns: u64,
    /// True if the answer is the first response of a READ or an atomic, false if it is an acknowledgement.
    pub is_read: bool,
}

/// Measures one packet at a time; a packet that was sent twice is not measured (Karn's rule).
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct RoundTrip {
    smoothed_ns: Option<u64>,
    sample: Option<Sample>,
    measured: Option<Measured>,
}

impl RoundTrip {
    /// Notes that a packet that requests a response is sent for the first time.
    #[inline]
    pub(super) fn sent(&mut self, psn: Psn, is_read: bool, now: Time) {
        self.sample.get_or_insert(Sample { psn, sent: now, is_read });
    }

    /// Discards the running measurement, because packets are sent again.
    pub(super) fn cancel(&mut self) {
        self.sample = None;
    }

    /// Notes that everything before `una` is acknowledged. Returns true if that ends a measurement.
    pub(super) fn acknowledged(&mut self, una: Psn, now: Time) -> bool {
        let Some(sample) = self.sample.take_if(|sample| una.after(sample.psn) > 0) else { return false };
        let measured = now.since(sample.sent);
        self.measured = Some(Measured { round_trip_ns: measured, is_read: sample.is_read });
        // RFC 6298's smoothing: one eighth of the new value.
        self.smoothed_ns = Some(self.smoothed_ns.map_or(measured, |old| old - old / 8 + measured / 8));
        true
    }

    /// Takes the last measurement, unless it was taken before.
    pub(super) fn take_measured(&mut self) -> Option<Measured> {
        self.measured.take()
    }

    /// Returns the estimate, 0 before the first measurement.
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
        assert_eq!(round_trip.smoothed_ns(), 800);
        round_trip.sent(Psn::new(0), false, Time(1000));
        round_trip.cancel();
        round_trip.acknowledged(Psn::new(5), Time(9000));
        assert_eq!(round_trip.smoothed_ns(), 800);
        round_trip.sent(Psn::new(5), false, Time(10_000));
        round_trip.acknowledged(Psn::new(6), Time(10_000));
        assert_eq!(round_trip.smoothed_ns(), 700);
    }
}
