//! What the rest of a message may still claim: elements, nesting, stack, memory.

use super::bounded::Seed;
use super::heap::block;
use super::stack::{Level, Stack, TOP};
use serde::de::{Deserialize, DeserializeSeed as _, Deserializer, Error};
use std::cell::{Cell, OnceCell};
use std::fmt;
use std::marker::PhantomData;

/// Elements that the sequences of a message may claim beyond its length in bytes. An element occupies at
/// least one byte, except for types like `()`.
const EMPTY_ELEMENTS: usize = 1024;
/// Deepest nesting of values. [`Stack`] may refuse it earlier.
pub(super) const DEPTH: usize = 256;
/// A type of more bytes takes a part of its level's stack that counts before the level is checked.
const LARGE: usize = 4 << 10;
/// Bytes of the heap that every message may take without asking.
pub(crate) const FREE: usize = 1024;
/// Least that is asked for at once.
const PORTION: usize = 16 << 10;

/// Why bytes were not decoded. All have a human-readable reason.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// They are not a value of the type.
    #[error("{0}")]
    Malformed(String),
    /// The value takes more memory than it could ever be granted.
    #[error("{0}")]
    TooLarge(String),
    /// The value takes more memory than there is at present.
    #[error("{0}")]
    Exhausted(String),
}

impl DecodeError {
    /// The bytes are not a value of the type, for this reason.
    #[must_use]
    pub fn malformed(reason: impl fmt::Display) -> Self {
        Self::Malformed(reason.to_string())
    }

    /// A value uses all of its bytes.
    pub(super) fn refuse_rest(bytes: usize) -> Result<(), Self> {
        match bytes {
            0 => Ok(()),
            _ => Err(Self::Malformed(format!("{bytes} bytes are left over"))),
        }
    }

    /// The same, of this argument.
    pub(super) fn of_argument(self, name: &str) -> Self {
        match self {
            Self::Malformed(text) => Self::Malformed(format!("argument `{name}`: {text}")),
            // They are about the arguments together.
            together => together,
        }
    }
}

impl Error for DecodeError {
    fn custom<T: fmt::Display>(reason: T) -> Self {
        Self::malformed(reason)
    }
}

/// Who grants memory to a message that is being decoded.
pub(crate) trait Allowance {
    /// Grants so many more bytes.
    ///
    /// # Errors
    /// Why not; nothing was granted.
    fn more(&self, bytes: usize) -> Result<(), DecodeError>;

    /// So many of the bytes that were granted are not needed.
    fn less(&self, bytes: usize);
}

/// What the rest of a message may still claim, of memory and of nesting. A codec asks them before it allocates and before it
/// decodes a value inside of another one. All arguments of a call share one.
pub struct Limits<'m> {
    elements: Cell<usize>,
    depth: Cell<usize>,
    stack: Stack,
    /// Bytes that may be taken without asking.
    left: Cell<usize>,
    granted: Cell<usize>,
    allowance: &'m dyn Allowance,
    refusal: OnceCell<DecodeError>,
}

impl Limits<'_> {
    /// Takes bytes of the heap, which the caller is about to allocate.
    ///
    /// # Errors
    /// There are not so many.
    pub fn allocate(&self, bytes: usize) -> Result<(), DecodeError> {
        self.take(block(bytes))
    }

    /// Decodes a value of type `T` one level deeper.
    ///
    /// # Errors
    /// The message is nested too deep, or what `inside` returns.
    pub fn nest<T>(&self, inside: impl FnOnce() -> Result<T, DecodeError>) -> Result<T, DecodeError> {
        self.deeper(Level::of_fields::<T>(0), inside)
    }

    /// Decodes a value by serde, within these limits. The deserializer must pass texts and bytes on as borrowed ones, or they take
    /// memory that is not counted.
    ///
    /// # Errors
    /// The deserializer's.
    pub fn deserialize<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
        &self,
        deserializer: D,
    ) -> Result<T, D::Error> {
        self.seed::<T>().deserialize(deserializer)
    }

    /// A seed of a value within these limits.
    #[inline]
    pub(super) fn seed<T>(&self) -> Seed<'_, PhantomData<T>> {
        Seed::new(PhantomData, self)
    }
}

impl fmt::Debug for Limits<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limits").field("left", &self.left).field("depth", &self.depth).finish_non_exhaustive()
    }
}

impl<'m> Limits<'m> {
    /// The limits of a message of `length` bytes.
    pub(crate) fn of_message(length: usize, allowance: &'m dyn Allowance) -> Self {
        Self {
            elements: Cell::new(length.saturating_add(EMPTY_ELEMENTS)),
            depth: Cell::new(DEPTH),
            stack: Stack::default(),
            left: Cell::new(FREE),
            granted: Cell::new(0),
            allowance,
            refusal: OnceCell::new(),
        }
    }

    /// Counts the elements that a sequence claims.
    pub(super) fn claim<E: Error>(&self, elements: Option<usize>) -> Result<(), E> {
        let claimed = elements.unwrap_or_default();
        let left = self.elements.get().checked_sub(claimed).ok_or_else(|| {
            E::custom(format_args!("a sequence claims {claimed} elements, more than the message can hold"))
        })?;
        self.elements.set(left);
        Ok(())
    }

    /// Checks that a message may have one more level here.
    #[inline]
    pub(super) fn admit<E: Error>(&self, level: Level) -> Result<(), E> {
        let is_top = self.depth.get() > DEPTH - TOP;
        if is_top && level.is_modest() { Ok(()) } else { self.admit_deep(level) }
    }

    // Out of line, because flat values do not come here.
    #[inline(never)]
    fn admit_deep<E: Error>(&self, level: Level) -> Result<(), E> {
        if self.depth.get() == 0 {
            return Err(E::custom(format_args!("values are nested more than {DEPTH} deep")));
        }
        if self.stack.admit(level) { Ok(()) } else { Err(self.stack.shortage()) }
    }

    /// Checks that the stack has room for a value of type `T`, whose own level is checked later, if it is large.
    #[inline]
    pub(super) fn admit_large<T, E: Error>(&self) -> Result<(), E> {
        if size_of::<T>() > LARGE && !self.stack.admit(Level::of_fields::<T>(0)) {
            return Err(self.stack.shortage());
        }
        Ok(())
    }

    /// Runs `inside` one level deeper. Decoding ends at the first error, so the level is returned only
    /// on success.
    #[inline]
    pub(super) fn deeper<T, E: Error>(
        &self,
        level: Level,
        inside: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        self.admit(level)?;
        let left = self.depth.get() - 1;
        self.depth.set(left);
        let value = inside()?;
        self.depth.set(left + 1);
        Ok(value)
    }

    /// Takes bytes of the heap.
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

    /// Bytes that were taken are free again.
    pub(super) fn put_back(&self, bytes: usize) {
        self.left.set(self.left.get() + bytes);
    }

    /// What was decoded, unless memory was refused meanwhile: a type's own code may have gone on after that.
    #[inline]
    pub(super) fn checked<T>(&self, decoded: Result<T, DecodeError>) -> Result<T, DecodeError> {
        match self.refusal.get() {
            Some(refusal) => Err(refusal.clone()),
            None => decoded,
        }
    }

    /// The message is decoded: what was granted and not taken is not needed.
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
