//! The part of a message that is sent without a copy.

use bytes::Bytes;
use std::fmt;
use std::ops::Deref;
use trunkline_machine::rings::panics::catch;

/// Bytes to send. Their owner may be a type of the program ([`Bytes::from_owner`]). The last handle is usually
/// dropped on a poller's thread, where a panic in the owner's `drop` is caught.
// `None` for an empty body.
#[derive(Clone, Default)]
pub struct Body(Option<Bytes>);

impl Body {
    /// Creates an empty body.
    #[must_use]
    pub const fn new() -> Self {
        Self(None)
    }

    /// Returns the bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &Bytes {
        static NOTHING: Bytes = Bytes::new();
        self.0.as_ref().unwrap_or(&NOTHING)
    }
}

/// Writes only the length, since the contents may be secret or large.
impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Body({} bytes)", self.len())
    }
}

impl From<Bytes> for Body {
    #[inline]
    fn from(bytes: Bytes) -> Self {
        Self(Some(bytes))
    }
}

impl PartialEq for Body {
    fn eq(&self, other: &Self) -> bool {
        self[..] == other[..]
    }
}

impl Eq for Body {}

impl Deref for Body {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        self.0.as_deref().unwrap_or_default()
    }
}

impl Drop for Body {
    #[inline]
    fn drop(&mut self) {
        if let Some(bytes) = self.0.take() {
            let _ended = catch(|| drop(bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::panic_any;
    use std::sync::Arc;

    /// Panics when dropped, with a payload that also panics when dropped.
    struct Owner(Arc<()>, u32);

    impl AsRef<[u8]> for Owner {
        fn as_ref(&self) -> &[u8] {
            b"owned"
        }
    }

    impl Drop for Owner {
        fn drop(&mut self) {
            if self.1 > 0 {
                panic_any(Self(Arc::clone(&self.0), self.1 - 1));
            }
        }
    }

    #[test]
    fn debug_output_has_no_bytes() {
        let bodies = [Body::new(), Body::from(Bytes::new()), Body::from(Bytes::from_static(b"token"))];
        assert_eq!(format!("{bodies:?}"), "[Body(0 bytes), Body(0 bytes), Body(5 bytes)]");
    }

    #[test]
    fn panicking_owner_is_dropped_and_panic_is_contained() {
        let owners = Arc::new(());
        for panics in 0..3 {
            let body = Body::from(Bytes::from_owner(Owner(Arc::clone(&owners), panics)));
            let other = body.clone();
            drop(body);
            assert_eq!(&other[..], b"owned");
            drop(other);
        }
        // The payload of the last owner's panic would panic again when dropped, so it is leaked.
        assert_eq!(Arc::strong_count(&owners), 2);
    }
}
