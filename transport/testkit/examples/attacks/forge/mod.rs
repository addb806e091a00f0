//! Forged connection requests, forged packets of live connections, and the sockets that send them.

mod request;
mod socket;
mod tap;

pub(crate) use request::{Dialer, message_in, version_of};
pub(crate) use socket::{Caught, Forger, RawForger, Sink};
pub(crate) use tap::{Seen, Tap};

use crate::Outcome;
use std::time::{Duration, Instant};

/// Number of packets between two readings of the clock.
const BURST: u64 = 25;

/// Calls `one` `count` times, evenly spread over `over`. Returns the time taken.
pub(crate) fn paced(
    count: u64,
    over: Duration,
    mut one: impl FnMut(u64) -> Outcome<()>,
) -> Outcome<Duration> {
    let start = Instant::now();
    for number in 0..count {
        if number % BURST == 0 || count < BURST * 100 {
            let due = over.mul_f64(number as f64 / count as f64);
            if let Some(wait) = due.checked_sub(start.elapsed()) {
                std::thread::sleep(wait);
            }
        }
        one(number)?;
    }
    Ok(start.elapsed())
}
