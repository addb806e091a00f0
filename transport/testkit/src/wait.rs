//! Waiting for a condition by polling.

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

/// Pause between two checks.
const PAUSE: Duration = Duration::from_millis(2);

/// Polls `look` until it returns a value, and returns the value.
///
/// # Panics
/// Panics if there is no value within `limit`. The message contains `what`.
pub fn wait_until<T>(what: &str, limit: Duration, mut look: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + limit;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < end, "{what}: not within {limit:?}");
        std::thread::sleep(PAUSE);
    }
}

/// Waits until one of the descriptors is readable, for at most `limit`.
pub fn wait_readable(descriptors: &[BorrowedFd<'_>], limit: Duration) {
    let mut polled: Vec<_> = descriptors.iter().map(|one| PollFd::new(*one, PollFlags::POLLIN)).collect();
    let _interrupted = poll(&mut polled, PollTimeout::try_from(limit).unwrap_or(PollTimeout::ZERO));
}
