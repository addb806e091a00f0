//! The time type of all layers, and the clock that provides it.
//!
//! Owners of a [`Clock`] may read that clock; the protocol's state machines get a [`Time`] from their caller and never
//! read a clock. A simulation replaces the clock, so code that a simulation runs must not read the operating system's
//! time directly.

use nix::time::{ClockId, clock_gettime};
use std::fmt;
use std::ops::{Add, AddAssign, Sub};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Time in nanoseconds since a start that is common to all readings of a [`Clock`]. Readings never go backwards.
///
/// Arithmetic saturates at [`Time::MAX`], and differences at zero.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(pub u64);

impl Time {
    /// Later than any deadline.
    pub const MAX: Self = Self(u64::MAX);

    /// Returns the time `ns` nanoseconds later.
    #[must_use]
    pub const fn plus_ns(self, ns: u64) -> Self {
        Self(self.0.saturating_add(ns))
    }

    /// Returns the nanoseconds from `earlier` to this time; 0 when `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// Returns the time from `earlier` to this time; zero when `earlier` is later.
    #[must_use]
    pub const fn saturating_duration_since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.since(earlier))
    }
}

impl Add<Duration> for Time {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        self.plus_ns(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl AddAssign<Duration> for Time {
    fn add_assign(&mut self, duration: Duration) {
        *self = *self + duration;
    }
}

impl Sub for Time {
    type Output = Duration;

    fn sub(self, earlier: Self) -> Duration {
        self.saturating_duration_since(earlier)
    }
}

impl fmt::Debug for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:09}s", self.0 / 1_000_000_000, self.0 % 1_000_000_000)
    }
}

/// A source of time: the system's monotonic clock, or one that a simulation advances.
///
/// Clones read the same clock. All system clocks of a process have the same start.
#[derive(Debug, Clone, Default)]
pub struct Clock(Source);

#[derive(Debug, Clone, Default)]
enum Source {
    #[default]
    Monotonic,
    Virtual(Arc<VirtualClock>),
}

impl Clock {
    /// Creates a handle to the system's monotonic clock.
    #[must_use]
    pub const fn monotonic() -> Self {
        Self(Source::Monotonic)
    }

    /// Creates a clock that advances only by [`VirtualClock::set`].
    #[must_use]
    pub const fn simulated(clock: Arc<VirtualClock>) -> Self {
        Self(Source::Virtual(clock))
    }

    /// Returns the current time. Costs one `clock_gettime` through the vDSO; read the time once per batch.
    #[must_use]
    pub fn now(&self) -> Time {
        match &self.0 {
            Source::Monotonic => read(ClockId::CLOCK_MONOTONIC),
            Source::Virtual(clock) => clock.now(),
        }
    }

    /// Returns the CPU time used by the calling thread, or `None` for a simulated clock. Makes a system call.
    #[must_use]
    pub fn thread_cpu_time(&self) -> Option<Duration> {
        match &self.0 {
            Source::Monotonic => Some(read(ClockId::CLOCK_THREAD_CPUTIME_ID) - Time(0)),
            Source::Virtual(_) => None,
        }
    }

    /// Returns true if simulated work has been charged since the running machine's turn began. The turn then
    /// has to end, because its remaining work happens at a later time. Always `false` for the system's
    /// clock.
    #[must_use]
    pub fn is_charged(&self) -> bool {
        match &self.0 {
            Source::Monotonic => false,
            Source::Virtual(clock) => clock.charged_ns.load(Ordering::Relaxed) > 0,
        }
    }

    /// Returns the clock if it is simulated.
    #[must_use]
    pub const fn as_virtual(&self) -> Option<&Arc<VirtualClock>> {
        match &self.0 {
            Source::Monotonic => None,
            Source::Virtual(clock) => Some(clock),
        }
    }
}

fn read(clock: ClockId) -> Time {
    // The clocks that are read here exist on every Linux, and are neither negative nor beyond 584 years.
    #[expect(clippy::disallowed_methods, reason = "the one reader of the system's clocks")]
    let Ok(now) = clock_gettime(clock) else { return Time(0) };
    let (seconds, nanoseconds) = (now.tv_sec().unsigned_abs(), now.tv_nsec().unsigned_abs());
    Time(seconds.saturating_mul(1_000_000_000).saturating_add(nanoseconds))
}

/// A clock that only its scheduler advances. It also counts the time that the running machine has
/// used in its turn.
#[derive(Debug, Default)]
pub struct VirtualClock {
    now_ns: AtomicU64,
    charged_ns: AtomicU64,
}

impl VirtualClock {
    /// Creates a clock at time 0.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::new(Self::default())
    }

    /// Returns the current time, including the time charged to the running machine.
    #[must_use]
    pub fn now(&self) -> Time {
        Time(self.now_ns.load(Ordering::Relaxed)).plus_ns(self.charged_ns.load(Ordering::Relaxed))
    }

    /// Advances the clock before a machine's turn and resets the charged time. The clock never goes backwards.
    pub fn set(&self, now: Time) {
        self.charged_ns.store(0, Ordering::Relaxed);
        self.now_ns.fetch_max(now.0, Ordering::Relaxed);
    }

    /// Charges `work` to the running machine, as for a handler that blocks.
    pub fn charge(&self, work: Duration) {
        let ns = u64::try_from(work.as_nanos()).unwrap_or(u64::MAX);
        self.charged_ns.fetch_add(ns, Ordering::Relaxed);
    }

    /// Returns the time charged to the running machine since [`VirtualClock::set`].
    #[must_use]
    pub fn charged(&self) -> Duration {
        Duration::from_nanos(self.charged_ns.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "compares with the system's clock")]
    fn systems_clock_agrees_with_standard_library() {
        let (clock, std) = (Clock::monotonic(), std::time::Instant::now());
        let (began, before) = (clock.now(), std.elapsed());
        while std.elapsed() < before + Duration::from_millis(2) {
            std::hint::spin_loop();
        }
        let (passed, most) = (clock.now() - began, std.elapsed());
        assert!(passed >= Duration::from_millis(2) && passed <= most, "{passed:?} of {most:?}");
    }

    #[test]
    fn time_arithmetic_saturates() {
        assert_eq!(Time::MAX + Duration::from_secs(1), Time::MAX);
        assert_eq!(Time(1) - Time(2), Duration::ZERO);
        assert_eq!(Time(5).since(Time(2)), 3);
        assert_eq!(format!("{:?}", Time(1_000_000_001)), "1.000000001s");
    }

    #[test]
    fn set_of_virtual_clock_resets_charges_and_keeps_time_monotonic() {
        let moved = VirtualClock::new();
        let clock = Clock::simulated(Arc::clone(&moved));
        moved.set(Time(100));
        assert_eq!((clock.now(), clock.is_charged()), (Time(100), false));
        moved.charge(Duration::from_nanos(7));
        assert_eq!(
            (clock.now(), clock.is_charged(), moved.charged()),
            (Time(107), true, Duration::from_nanos(7))
        );
        moved.set(Time(50));
        assert_eq!((clock.now(), clock.is_charged()), (Time(100), false), "never backwards");
    }
}
