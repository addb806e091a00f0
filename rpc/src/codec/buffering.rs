//! Limits of types that serde buffers: those with `untagged`, `tag` or `flatten`.
//!
//! Such a type first collects everything that its bytes hold, then decodes from the collected values, unseen by
//! [`Bounded`](super::bounded). Each level of the second pass takes stack, may copy everything inside, and may try several
//! variants, each of which tries those of the next level. All three are therefore limited in the first pass, by the
//! number of containers around each collected value. Types without these attributes pay nothing.

use super::limits::Limits;
use super::stack::Level;
use serde::de::Error;
use std::any::type_name;
use std::cell::Cell;

/// Maximum number of containers around a collected value.
pub(super) const BUFFERED_DEPTH: usize = 12;
/// Maximum number of times that the values of a message may be looked at, for types with two variants that fit each
/// container. Values within 8 containers reach it later than the default limit on memory.
const MOST_TRIES: usize = 1 << 28;
/// Paths of the visitors that collect values. The other visitors of serde ask for a type.
const COLLECTORS: [&str; 4] = ["serde::", "serde_core::", "serde_with::content::", "typetag::content::"];

/// Returns true if the visitor collects values for a second pass.
#[inline]
pub(super) fn is_collector<V>() -> bool {
    let name = type_name::<V>();
    COLLECTORS.iter().any(|path| name.starts_with(path))
}

/// The collected values of a message.
#[derive(Debug, Default)]
pub(super) struct Buffer {
    /// Number of containers around the next value.
    depth: Cell<usize>,
    tries: Cell<usize>,
    /// Size in bytes of the type that is buffered.
    size: Cell<usize>,
}

impl Buffer {
    /// Returns the number of copies that a collected value may have, besides the first.
    pub(super) fn copies(&self) -> usize {
        self.depth.get()
    }

    /// Returns the size in bytes of the type that is buffered. A collected value may become one.
    pub(super) fn size(&self) -> usize {
        self.size.get()
    }
}

impl Limits<'_> {
    /// Collects a value for a type of `size` bytes.
    pub(super) fn collect<T, E: Error>(
        &self,
        size: usize,
        inside: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        let Buffer { depth: cell, tries, size: outer } = self.buffer();
        let depth = cell.get();
        if depth == 0 {
            outer.set(size);
            self.admit(Level::of_size(size))?;
        } else {
            self.admit_buffered(depth)?;
        }
        tries.set(tries.get() + (1 << depth));
        if depth > BUFFERED_DEPTH || tries.get() > MOST_TRIES {
            return Err(too_deep(depth));
        }
        cell.set(depth + 1);
        let collected = inside();
        cell.set(depth);
        collected
    }
}

#[cold]
fn too_deep<E: Error>(depth: usize) -> E {
    let limit = if depth > BUFFERED_DEPTH { BUFFERED_DEPTH } else { depth - 1 };
    let why = if depth > BUFFERED_DEPTH { "" } else { ", with so many values," };
    E::custom(format_args!(
        "values{why} are nested more than {limit} deep in a type that serde buffers (`untagged`, `tag` or `flatten`): an \
         enum without these attributes may nest deeper"
    ))
}
