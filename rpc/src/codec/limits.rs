//! Limits on elements, nesting, stack and memory for decoding a message.

use super::buffering::Buffer;
use super::shapes::Lists;
use super::stack::{Level, Stack, TOP};
use serde::de::Error;
use std::any::type_name;
use std::cell::{Cell, OnceCell};
use std::fmt;

/// Number of elements that the sequences of a message may claim in addition to its length in bytes. An element occupies at
/// least one byte, except for types like `()`.
const EMPTY_ELEMENTS: usize = 1024;
/// Maximum nesting depth of values. [`Stack`] may refuse a lower depth.
pub(super) const DEPTH: usize = 256;
/// Size in bytes above which a type's stack use is checked before its level. Before that check, a type buffered by serde may
/// use 22 times its size.
const LARGE: usize = 1 << 10;
/// Heap memory that every message may use without a grant, in bytes.
pub(crate) const FREE: usize = 1024;
/// Minimum size of one request for memory, in bytes.
const PORTION: usize = 16 << 10;

/// Returns the heap memory that an allocation of `bytes` bytes takes, as rounded by glibc.
pub(crate) fn block(bytes: usize) -> usize {
    match bytes {
        0 => 0,
        // The maximum size of an allocation in Rust.
        _ => bytes.min(isize::MAX.cast_unsigned() - 32).next_multiple_of(16) + 16,
    }
}

/// The error of decoding a value, with a human-readable message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The bytes are not a value of the type.
    #[error("{0}")]
    Malformed(String),
    /// The value needs more memory than its limit allows.
    #[error("{0}")]
    TooLarge(String),
    /// The value needs more memory than is available now.
    #[error("{0}")]
    Exhausted(String),
}

impl DecodeError {
    /// Creates a [`DecodeError::Malformed`].
    #[must_use]
    pub fn malformed(reason: impl fmt::Display) -> Self {
        Self::Malformed(reason.to_string())
    }

    /// Prepends the argument's name to the error.
    pub(super) fn of_argument(self, name: &str) -> Self {
        match self {
            Self::Malformed(text) => Self::Malformed(format!("argument `{name}`: {text}")),
            // Other errors concern all arguments together.
            together => together,
        }
    }
}

impl Error for DecodeError {
    fn custom<T: fmt::Display>(reason: T) -> Self {
        Self::malformed(reason)
    }
}

/// A source of memory for decoding a message.
pub(crate) trait Allowance {
    /// Grants more bytes.
    ///
    /// # Errors
    /// Returns an error that states why the bytes were not granted.
    fn more(&self, bytes: usize) -> Result<(), DecodeError>;

    /// Releases granted bytes that are not needed.
    fn less(&self, bytes: usize);
}

/// An allowance without a limit, for decoding values that were encoded on this side.
pub(crate) struct Unlimited;

impl Allowance for Unlimited {
    fn more(&self, _: usize) -> Result<(), DecodeError> {
        Ok(())
    }

    fn less(&self, _: usize) {}
}

/// The remaining memory and nesting depth while a message is decoded. A codec charges memory before it allocates, and enters
/// a level before it decodes a nested value. All arguments of a call share these limits.
pub struct Limits<'m> {
    elements: Cell<usize>,
    depth: Cell<usize>,
    stack: Stack,
    buffer: Buffer,
    /// Granted bytes that have not been used.
    left: Cell<usize>,
    granted: Cell<usize>,
    allowance: &'m dyn Allowance,
    refusal: OnceCell<DecodeError>,
    /// True if a type has called `deserialize_any`.
    asked_for_any: Cell<bool>,
    /// Name of the innermost type whose decoding failed after it called `deserialize_any`.
    asking: Cell<Option<&'static str>>,
    /// Names of decoded fields and variants; `None` unless types are being checked.
    lists: Option<&'m Lists>,
}

impl Limits<'_> {
    /// Charges heap memory that the caller is about to allocate.
    ///
    /// # Errors
    /// Returns an error if the limit is exceeded.
    pub fn allocate(&self, bytes: usize) -> Result<(), DecodeError> {
        self.take(block(bytes))
    }

    /// Decodes a value of type `T` one level deeper.
    ///
    /// # Errors
    /// Returns an error if the message is nested too deeply, or the error of `inside`.
    pub fn nest<T>(&self, inside: impl FnOnce() -> Result<T, DecodeError>) -> Result<T, DecodeError> {
        let level = Some(Level::of_fields::<T>(0));
        self.descend(level)?;
        let value = inside();
        self.ascend(level);
        value
    }
}

impl fmt::Debug for Limits<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limits").field("left", &self.left).field("depth", &self.depth).finish_non_exhaustive()
    }
}

impl<'m> Limits<'m> {
    /// Creates the limits of a message of `length` bytes.
    pub(crate) fn of_message(length: usize, allowance: &'m dyn Allowance) -> Self {
        Self {
            elements: Cell::new(length.saturating_add(EMPTY_ELEMENTS)),
            depth: Cell::new(DEPTH),
            stack: Stack::default(),
            buffer: Buffer::default(),
            left: Cell::new(FREE),
            granted: Cell::new(0),
            allowance,
            refusal: OnceCell::new(),
            asked_for_any: Cell::new(false),
            asking: Cell::new(None),
            lists: None,
        }
    }

    /// Creates the limits of a message. Decoding then collects the names of types in `lists`.
    pub(super) fn listing(length: usize, allowance: &'m dyn Allowance, lists: &'m Lists) -> Self {
        Self { lists: Some(lists), ..Self::of_message(length, allowance) }
    }

    /// Calls `add` with the lists to be filled, if there are any.
    #[inline]
    pub(super) fn list(&self, add: impl FnOnce(&Lists)) {
        if let Some(lists) = self.lists {
            add(lists);
        }
    }

    /// Records that a type called `deserialize_any`.
    #[inline]
    pub(super) fn note_any(&self) {
        self.asked_for_any.set(true);
    }

    /// Records that the decoding of a `T` failed.
    #[cold]
    pub(super) fn note_failure<T>(&self) {
        if self.asked_for_any.get() && self.asking.get().is_none() {
            self.asking.set(Some(type_name::<T>()));
        }
    }

    /// Returns the name of the innermost type whose decoding failed after it called `deserialize_any`.
    pub(super) fn asking(&self) -> Option<&'static str> {
        self.asking.get()
    }

    /// Returns the state of the values collected for types that serde buffers.
    pub(super) fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    /// Checks that the stack has room to decode a collected value inside `depth` containers, for a type of `size` bytes.
    pub(super) fn admit_buffered<E: Error>(&self, depth: usize, size: usize) -> Result<(), E> {
        self.stack.admit_buffered(self.is_top(), depth, size)
    }

    /// Counts the elements claimed by a sequence.
    pub(super) fn claim<E: Error>(&self, elements: Option<usize>) -> Result<(), E> {
        let claimed = elements.unwrap_or_default();
        let left = self.elements.get().checked_sub(claimed).ok_or_else(|| {
            E::custom(format_args!("a sequence claims {claimed} elements, more than the message can hold"))
        })?;
        self.elements.set(left);
        Ok(())
    }

    /// Checks that one more level is allowed here.
    #[inline]
    pub(super) fn admit<E: Error>(&self, level: Level) -> Result<(), E> {
        if self.is_top() && level.is_modest() { Ok(()) } else { self.admit_deep(level) }
    }

    /// Returns true in the first [`TOP`] levels.
    #[inline]
    fn is_top(&self) -> bool {
        self.depth.get() > DEPTH - TOP
    }

    // Not inlined, because flat values do not need this check.
    #[inline(never)]
    fn admit_deep<E: Error>(&self, level: Level) -> Result<(), E> {
        if self.depth.get() == 0 {
            return Err(E::custom(format_args!("values are nested more than {DEPTH} deep")));
        }
        self.stack.admit(self.is_top(), level)
    }

    /// Checks the stack for a large value of type `T`. The level of the value is checked later.
    #[inline]
    pub(super) fn admit_large<T, E: Error>(&self) -> Result<(), E> {
        if size_of::<T>() > LARGE {
            self.stack.admit(self.is_top(), Level::of_fields::<T>(0))
        } else {
            Ok(())
        }
    }

    /// Enters a level, if one is given. Leave it with [`Self::ascend`].
    #[inline]
    pub(super) fn descend<E: Error>(&self, level: Option<Level>) -> Result<(), E> {
        if let Some(level) = level {
            self.admit(level)?;
            self.depth.set(self.depth.get() - 1);
        }
        Ok(())
    }

    /// Leaves a level entered with [`Self::descend`].
    #[inline]
    pub(super) fn ascend(&self, level: Option<Level>) {
        self.depth.set(self.depth.get() + usize::from(level.is_some()));
    }

    /// Charges heap memory, in bytes.
    #[inline]
    pub(super) fn take<E: Error>(&self, bytes: usize) -> Result<(), E> {
        match self.left.get().checked_sub(bytes) {
            Some(left) => {
                self.left.set(left);
                Ok(())
            }
            None => self.ask(bytes),
        }
    }

    /// Releases charged bytes.
    pub(super) fn put_back(&self, bytes: usize) {
        self.left.set(self.left.get() + bytes);
    }

    /// Returns the decoded value, or an error if memory was refused during decoding. The type's own code may have continued
    /// after the refusal.
    #[inline]
    pub(super) fn checked<T>(&self, decoded: Result<T, DecodeError>) -> Result<T, DecodeError> {
        match self.refusal.get() {
            Some(refusal) => Err(refusal.clone()),
            None => decoded,
        }
    }

    /// Returns unused granted memory to the allowance after decoding.
    pub(super) fn settle(self) {
        let unused = self.left.get().min(self.granted.get());
        if unused > 0 {
            self.allowance.less(unused);
        }
    }

    #[cold]
    fn ask<E: Error>(&self, bytes: usize) -> Result<(), E> {
        let left = self.left.get();
        let portion = (bytes - left).max(PORTION);
        self.allowance.more(portion).map_err(|refusal| {
            let error = E::custom(&refusal);
            let _ = self.refusal.set(refusal);
            error
        })?;
        self.granted.set(self.granted.get() + portion);
        self.left.set(left + portion - bytes);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_size_matches_malloc() {
        for (bytes, least) in [(0, 0), (1, 32), (24, 32), (25, 48), (4096, 4112)] {
            assert!((least..least + 17).contains(&block(bytes)), "{bytes}: {}", block(bytes));
        }
        assert!(block(usize::MAX) > 1 << 62);
    }
}
