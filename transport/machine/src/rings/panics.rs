//! Runs code of the program, which may panic, on a poller's thread.
//!
//! Called wherever a handler or a task is created, polled or dropped, a waker is woken, or bytes of the
//! program are dropped. The payload of a panic is a value of the program, too. It is dropped here, because
//! its drop may also panic.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The code has panicked.
#[derive(Debug, PartialEq, Eq)]
pub struct Panicked;

/// Runs `code`; never panics. State that `code` leaves half done must not be used again.
#[inline]
pub fn catch<T>(code: impl FnOnce() -> T) -> Result<T, Panicked> {
    catch_unwind(AssertUnwindSafe(code)).map_err(|payload| {
        discard(payload);
        Panicked
    })
}

/// Runs `code`; never panics. `describe` creates the error from the panic's message, if it has one.
#[inline]
pub fn catch_or<T, E>(code: impl FnOnce() -> T, describe: impl FnOnce(Option<&str>) -> E) -> Result<T, E> {
    catch_unwind(AssertUnwindSafe(code)).map_err(|payload| {
        let text = payload.downcast_ref::<&str>().copied();
        let error = describe(text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)));
        discard(payload);
        error
    })
}

#[cold]
fn discard(payload: Box<dyn Any + Send>) {
    let dropped = catch_unwind(AssertUnwindSafe(|| drop(payload)));
    // The payload of a panic in a payload's drop is leaked: its drop could panic in turn, without end.
    dropped.unwrap_or_else(std::mem::forget);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::panic_any;

    /// Panics with another of its kind when it is dropped, as many times as its number says.
    struct Bomb(u32);

    impl Drop for Bomb {
        fn drop(&mut self) {
            if self.0 > 0 {
                panic_any(Self(self.0 - 1));
            }
        }
    }

    #[test]
    fn panics_of_code_and_of_payloads_are_contained() {
        assert_eq!(catch(|| 7), Ok(7));
        assert_eq!(catch(|| -> u32 { panic!("on purpose") }), Err(Panicked));
        let text = |message: Option<&str>| message.map(str::to_owned);
        assert_eq!(catch_or(|| -> u32 { panic!("on purpose") }, text), Err(Some("on purpose".to_owned())));
        let number = 7;
        assert_eq!(catch_or(|| -> u32 { panic!("number {number}") }, text), Err(Some("number 7".to_owned())));
        assert_eq!(catch_or(|| -> u32 { panic_any(7) }, text), Err(None));
        for depth in 0..4 {
            assert_eq!(catch(|| -> u32 { panic_any(Bomb(depth)) }), Err(Panicked), "{depth}");
        }
    }
}
