//! Waiting for something that can only be looked at.

use std::time::{Duration, Instant};

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(2);

/// Looks until there is something, and returns it.
///
/// # Panics
/// After `limit`, with what was waited for.
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
