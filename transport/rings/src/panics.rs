//! Runs code of the program, which may panic, on a poller's thread.
//!
//! Called wherever a handler or a task is made, polled or dropped, a waker is woken, or bytes of the program are
//! dropped. The payload of a panic is a value of the
//! program too: it is dropped here, because its drop may panic as well.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// What was run has panicked.
#[derive(Debug, PartialEq, Eq)]
pub struct Panicked;

/// Runs `code`; never panics. What `code` leaves half done must not be used again.
pub fn catch<T>(code: impl FnOnce() -> T) -> Result<T, Panicked> {
    catch_unwind(AssertUnwindSafe(code)).map_err(|payload| {
        let dropped = catch_unwind(AssertUnwindSafe(|| drop(payload)));
        // A payload from a payload's drop is leaked: its drop could panic in turn, without end.
        dropped.unwrap_or_else(std::mem::forget);
        Panicked
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::panic_any;

    /// Panics with another of its kind when it is dropped, as often as its number says.
    struct Bomb(u32);

    impl Drop for Bomb {
        fn drop(&mut self) {
            if self.0 > 0 {
                panic_any(Self(self.0 - 1));
            }
        }
    }

    #[test]
    fn no_panic_of_code_or_of_payloads_gets_out() {
        assert_eq!(catch(|| 7), Ok(7));
        assert_eq!(catch(|| -> u32 { panic!("on purpose") }), Err(Panicked));
        for depth in 0..4 {
            assert_eq!(catch(|| -> u32 { panic_any(Bomb(depth)) }), Err(Panicked), "{depth}");
        }
    }
}
