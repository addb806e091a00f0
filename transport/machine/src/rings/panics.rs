//! Runs code of the program, which may panic, on a poller's thread.
//!
//! Called wherever a handler or a task is created, polled or dropped, a waker is woken, or bytes of the
//! program are dropped. The payload of a panic is also a value of the program. It is dropped here, because
//! its drop may panic, too.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Error returned if the code panicked.
#[derive(Debug, PartialEq, Eq)]
pub struct Panicked;

/// Runs `code`, and never panics. State that `code` may have changed in part must not be used after a panic.
#[inline]
pub fn catch<T>(code: impl FnOnce() -> T) -> Result<T, Panicked> {
    catch_unwind(AssertUnwindSafe(code)).map_err(|payload| {
        discard(payload);
        Panicked
    })
}

/// Runs `code`, and never panics. After a panic, `describe` creates the error from the panic's message, if there is one.
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
    // If dropping the payload panics, the payload of that panic is leaked, because its drop could panic in turn, without
    // end.
    dropped.unwrap_or_else(std::mem::forget);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::panic_any;

    /// Panics when it is dropped, with a payload that does the same, the given number of times.
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
