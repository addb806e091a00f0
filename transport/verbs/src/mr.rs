//! Memory regions and their keys.

use crate::{Access, Memory, VerbsError};
use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

/// An address as devices see it. Rust code never dereferences one; it only adds to it.
#[repr(transparent)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct IoAddress(pub u64);

impl IoAddress {
    /// The address `bytes` further on; wraps at 2^64, where no region lies.
    #[must_use]
    pub const fn plus(self, bytes: u64) -> Self {
        Self(self.0.wrapping_add(bytes))
    }
}

/// Names a region in local work requests.
#[repr(transparent)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Lkey(pub u32);

/// Names a region in the requests of a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Rkey(pub u32);

/// A place in a peer's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct RemoteAddress {
    /// Where.
    pub address: IoAddress,
    /// Under which region's key.
    pub rkey: Rkey,
}

/// Registered memory. The keys work until it is destroyed or the last `Arc` is dropped.
pub trait MemoryRegion: Any + Send + Sync + Debug {
    /// Key for local requests.
    fn lkey(&self) -> Lkey;
    /// Key to give to a peer.
    fn rkey(&self) -> Rkey;
    /// What was registered.
    fn memory(&self) -> &Arc<Memory>;
    /// With which rights.
    fn access(&self) -> Access;
    /// Makes the keys invalid now; work that is under way in the region ends first.
    ///
    /// # Errors
    /// [`VerbsError::Gone`] when it was destroyed before.
    fn destroy(&self) -> Result<(), VerbsError>;
}
